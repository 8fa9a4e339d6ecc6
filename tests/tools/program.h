// Programs as a test runs them: started, signalled, waited for, and read.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/ports.h"

namespace tutti::test {

using Words = std::vector<std::string>;

/// tutti <name> options... command...
inline Words tutti_command(const std::string& name, const Words& options, const Words& command) {
  Words words{TUTTI_TOOL, name};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), command.begin(), command.end());
  return words;
}
inline Words tutti_run(const Words& options, const Words& command) { return tutti_command("run", options, command); }

/// A folder that goes with it.
class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "tutti-tools-XXXXXX").string()) {
    if (!::mkdtemp(path_.data())) ADD_FAILURE() << "no folder can be made in " << path_;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Waits until it is so; a test that waits for a minute has failed.
template <class F>
bool eventually(const F& is_so) {
  for (auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
       std::chrono::steady_clock::now() < end;) {
    if (is_so()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

class Program {
 public:
  explicit Program(Words words, const std::vector<std::pair<std::string, std::string>>& variables = {}) {
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    std::string out = folder_ / "out", err = folder_ / "err";
    std::fflush(nullptr);  // or the child would print it again
    pid_ = ::fork();
    if (pid_ != 0) return;
    for (auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    if (!std::freopen(out.c_str(), "w", stdout) || !std::freopen(err.c_str(), "w", stderr)) ::_exit(126);
    ::execvp(argv[0], argv.data());
    ::_exit(126);
  }
  ~Program() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  std::string out() const { return contents(folder_ / "out"); }
  std::string err() const { return contents(folder_ / "err"); }
  /// Its exit code, or 128 + the signal that killed it.
  int wait() {
    int status = 0;
    bool ended = eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
    EXPECT_TRUE(ended) << "it does not end; it printed\n" << out() << err();
    if (!ended) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  Folder folder_;
  pid_t pid_ = -1;
};

inline bool is_alive(pid_t pid) {
  if (::kill(pid, 0) != 0) return false;
  // A process that nobody has waited for yet is not alive.
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  size_t end = line.rfind(')');
  return end != std::string::npos && end + 2 < line.size() && line[end + 2] != 'Z' && line[end + 2] != 'X';
}

inline Words shell(const std::string& script) { return {"sh", "-c", script}; }

inline std::set<std::string> lines(const std::string& text) {
  std::set<std::string> set;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) set.insert(line);
  return set;
}

/// Numbers that processes wrote into files, one each.
inline std::vector<pid_t> pids(const std::string& folder, size_t count) {
  std::vector<pid_t> list;
  EXPECT_TRUE(eventually([&] {
    list.clear();
    for (auto& entry : std::filesystem::directory_iterator(folder))
      if (int pid = std::atoi(contents(entry.path().string()).c_str())) list.push_back(pid);
    return list.size() == count;
  }));
  return list;
}

}  // namespace tutti::test
