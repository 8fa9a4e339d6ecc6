#include "tools/tutti/guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace tutti::tool {
namespace {

constexpr size_t kMost = 1 << 16;  // as many as there may be ranks on a host

// Only calls that are safe after a fork. It leaves the groups and streams of its parent, so that nobody who ends that,
// or waits for the end of what it prints, meets the guard.
[[noreturn]] void stand_guard(int words) {
  static pid_t groups[kMost];
  size_t count = 0;
  ::setsid();
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  int nowhere = ::open("/dev/null", O_RDWR);
  for (int fd : {0, 1, 2}) ::dup2(nowhere, fd);
  if (::dup2(words, 3) < 0 || ::close_range(4, ~0U, 0) != 0) ::_exit(1);
  for (pid_t word = 0;;) {
    ssize_t n = ::read(3, &word, sizeof word);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof word) break;
    if (word == 0) ::_exit(0);  // it has ended well
    if (word > 0 && count < kMost) groups[count++] = word;
    for (size_t i = 0; word < 0 && i < count; ++i)
      if (groups[i] == -word) groups[i--] = groups[--count];
  }
  for (size_t i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

Guard::Guard() {
  auto [read_end, write_end] = make_pipe();
  pid_ = ::fork();
  if (pid_ == 0) stand_guard(read_end.get());
  if (pid_ < 0) cannot("no process can be started");
  words_ = std::move(write_end);
}

Guard::~Guard() {
  tell(0);
  words_.close();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::tell(pid_t word) const {
  while (::write(words_.get(), &word, sizeof word) < 0 && errno == EINTR) {
  }
}

}  // namespace tutti::tool
