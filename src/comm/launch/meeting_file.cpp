#include "comm/launch/meeting_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "tutti/comm/store.h"

namespace tutti::comm {

std::string process_identity(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  size_t name_end = text.rfind(')');  // a program's name may have anything in it
  if (name_end == std::string::npos) return {};
  std::istringstream rest(text.substr(name_end + 1));
  std::string word, state;
  rest >> state;
  for (int k = 4; k <= 22; ++k) rest >> word;  // the 22nd is when it was started
  if (state == "Z" || state == "X") return {};
  return fmt::format("{} {}", pid, word);
}

namespace {

std::string list_of(const std::string& path) { return path + ".ranks"; }

// The list, locked for as long as this lives. Who removes it holds the lock.
class LockedList {
 public:
  explicit LockedList(const std::string& path) {
    while (true) {
      fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      check<StoreError>(fd_ >= 0, "world", "cannot open {}, where ranks of this host meet: {}", path,
                        std::strerror(errno));
      while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
      }
      struct stat mine{};
      if (::fstat(fd_, &mine) == 0 && mine.st_nlink > 0) return;
      ::close(fd_);  // removed while this waited for it
    }
  }
  ~LockedList() { ::close(fd_); }
  LockedList(const LockedList&) = delete;
  LockedList& operator=(const LockedList&) = delete;

  std::string read() const {
    std::string text(64 << 10, 0);
    ssize_t n = ::pread(fd_, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    return text;
  }
  void write(const std::string& text) const {
    bool written =
        ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
    check<StoreError>(written, "world", "cannot write the list of ranks that meet on this host: {}",
                      std::strerror(errno));
  }

 private:
  int fd_ = -1;
};

bool any_alive(const std::string& list) {
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);)
    if (process_identity(std::atoi(line.c_str())) == line) return true;
  return false;
}

}  // namespace

std::string join_meeting_file(const std::string& job) {
  std::string name = job;
  std::replace(name.begin(), name.end(), '/', '_');
  std::string path = fmt::format("/tmp/tutti-{}-{}", ::getuid(), name);
  LockedList list(list_of(path));
  std::string who = list.read();
  if (!any_alive(who)) {
    ::unlink(path.c_str());
    who.clear();
  }
  list.write(who + process_identity(::getpid()) + "\n");
  return path;
}

void leave_meeting(const std::string& path) {
  LockedList list(list_of(path));
  std::string mine = process_identity(::getpid()), others;
  std::istringstream lines(list.read());
  for (std::string line; std::getline(lines, line);)
    if (line != mine) others += line + "\n";
  if (any_alive(others))
    list.write(others);
  else
    ::unlink(list_of(path).c_str());
}

void forget_meeting(const std::string& path) { ::unlink(list_of(path).c_str()); }

}  // namespace tutti::comm
