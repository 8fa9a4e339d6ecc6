// A terminal for programs that a test starts, and what one sees there.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/tools/program.h"

namespace tutti::test {

/// What a terminal shows of the few control sequences that `tutti run` may send. Others are failures.
class Screen {
 public:
  Screen(int columns, int rows) : columns_(columns), rows_(rows), lines_(1) {}
  void resize(int columns) { columns_ = columns; }
  void put(const std::string& bytes) {
    pending_ += bytes;
    size_t at = 0;
    for (size_t n = 0; (n = next(at)) > 0; at += n) take(pending_.substr(at, n));
    pending_.erase(0, at);
  }
  /// All lines, also those that have left at the top.
  std::vector<std::string> lines() const {
    std::vector<std::string> list;
    for (const auto& line : lines_) {
      std::string text;
      for (const std::string& character : line) text += character;
      list.push_back(text.substr(0, text.find_last_not_of(' ') + 1));
    }
    while (!list.empty() && list.back().empty()) list.pop_back();
    return list;
  }
  std::string text() const {
    std::string all;
    for (const std::string& line : lines()) all += line + "\n";
    return all;
  }

 private:
  // The bytes of a character or control sequence that is complete; 0: there is none.
  size_t next(size_t at) const {
    if (at >= pending_.size()) return 0;
    auto c = static_cast<unsigned char>(pending_[at]);
    size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    if (c == 0x1b) {
      for (n = 2; at + n < pending_.size() && static_cast<unsigned char>(pending_[at + n]) < 0x40;) ++n;
      ++n;
    }
    return at + n <= pending_.size() ? n : 0;
  }
  void take(const std::string& c) {
    if (c == "\n") {
      if (++row_ == lines_.size()) lines_.emplace_back();
    } else if (c == "\r") {
      column_ = 0;
    } else if (c[0] == '\x1b') {
      control(c);
    } else {
      if (column_ == static_cast<size_t>(columns_)) {
        if (!wraps_) return;
        take("\n");
        take("\r");
      }
      auto& line = lines_[row_];
      if (line.size() <= column_) line.resize(column_ + 1, " ");
      line[column_++] = c;
    }
  }
  void control(const std::string& c) {
    if (c == "\x1b[?7l" || c == "\x1b[?7h") {
      wraps_ = c.back() == 'h';
    } else if (c == "\x1b[K") {
      lines_[row_].resize(std::min(lines_[row_].size(), column_));
    } else if (c == "\x1b[A") {
      // Lines that have left at the top cannot be reached.
      if (row_ > 0 && row_ > lines_.size() - std::min(lines_.size(), static_cast<size_t>(rows_))) --row_;
    } else if (c.back() != 'm') {
      ADD_FAILURE() << "a control sequence that ends in " << c.back();
    }
  }
  int columns_, rows_;
  std::vector<std::vector<std::string>> lines_;  // of characters
  size_t row_ = 0, column_ = 0;
  bool wraps_ = true;
  std::string pending_;
};

/// A program on a terminal of its own, which is that of its session, as a shell's is.
class TerminalProgram {
 public:
  struct Options {
    int columns = 80, rows = 24;
    std::string out = {}, err = {};  // files, instead of the terminal
    std::vector<std::pair<std::string, std::string>> variables = {};
  };
  explicit TerminalProgram(Words words, const Options& options) : screen_(options.columns, options.rows) {
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    winsize size = size_of(options.columns, options.rows);
    std::fflush(nullptr);  // or the child would print it again
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ < 0) ADD_FAILURE() << "there is no terminal";
    if (pid_ != 0) return;
    ::setenv("TERM", "xterm", 1);
    for (auto& [name, value] : options.variables) ::setenv(name.c_str(), value.c_str(), 1);
    if (!options.out.empty() && !std::freopen(options.out.c_str(), "w", stdout)) ::_exit(126);
    if (!options.err.empty() && !std::freopen(options.err.c_str(), "w", stderr)) ::_exit(126);
    ::execvp(argv[0], argv.data());
    ::_exit(126);
  }
  explicit TerminalProgram(Words words) : TerminalProgram(std::move(words), Options()) {}
  ~TerminalProgram() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    if (terminal_ >= 0) ::close(terminal_);
  }
  TerminalProgram(const TerminalProgram&) = delete;
  TerminalProgram& operator=(const TerminalProgram&) = delete;

  void type(const std::string& keys) const {
    EXPECT_EQ(::write(terminal_, keys.data(), keys.size()), ssize_t(keys.size()));
  }
  void resize(int columns, int rows) {
    winsize size = size_of(columns, rows);
    EXPECT_EQ(::ioctl(terminal_, TIOCSWINSZ, &size), 0);
    screen_.resize(columns);
  }
  const Screen& screen() {
    read();
    return screen_;
  }
  const std::string& bytes() {
    read();
    return bytes_;
  }
  /// Waits until the screen shows it.
  bool shows(const std::string& text) {
    bool found = eventually([&] { return screen().text().find(text) != std::string::npos; });
    EXPECT_TRUE(found) << "no '" << text << "' on the screen:\n" << screen_.text();
    return found;
  }
  /// Its exit code, or 128 + the signal that killed it.
  int wait() {
    int status = 0;
    bool ended = eventually([&] {
      read();
      return ::waitpid(pid_, &status, WNOHANG) == pid_;
    });
    EXPECT_TRUE(ended) << "it does not end; the screen shows\n" << screen().text();
    if (!ended) return -1;
    pid_ = -1;
    read();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static winsize size_of(int columns, int rows) {
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = static_cast<unsigned short>(rows);
    return size;
  }
  void read() {
    char buffer[4096];
    while (true) {
      pollfd ready{terminal_, POLLIN, 0};
      if (::poll(&ready, 1, 0) <= 0) return;
      ssize_t n = ::read(terminal_, buffer, sizeof buffer);
      if (n <= 0) return;  // nobody has it open any more
      bytes_.append(buffer, static_cast<size_t>(n));
      screen_.put(std::string(buffer, static_cast<size_t>(n)));
    }
  }
  Screen screen_;
  std::string bytes_;
  int terminal_ = -1;
  pid_t pid_ = -1;
};

}  // namespace tutti::test
