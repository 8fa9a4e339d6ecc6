#include "tools/tutti/signals.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace tutti::tool {
namespace {

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

bool is_ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

bool ends_programs(int signal) {
  return signal != SIGUSR1 && signal != SIGUSR2 && signal != SIGTSTP && signal != SIGCONT;
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void cannot(const char* what) {
  int error = errno;
  throw std::runtime_error(error == EMFILE || error == ENFILE
                               ? fmt::format("{}: too many open files: raise ulimit -n, or start fewer ranks", what)
                               : fmt::format("{}: {}", what, std::strerror(error)));
}

std::pair<Descriptor, Descriptor> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) cannot("no pipe can be made");
  return {Descriptor(fds[0]), Descriptor(fds[1])};
}

Signals::Signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (int s : kPassedOn)
    if (!is_ignored(s)) ::sigaddset(&set, s);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  pipes_ignored_ = is_ignored(SIGPIPE);
  ::signal(SIGPIPE, SIG_IGN);  // who reads our output may leave
  fd_ = checked(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC), "signals cannot be waited for");
}

int Signals::take() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) == sizeof info) return static_cast<int>(info.ssi_signo);
  read_orders();
  if (ordered_.empty()) return 0;
  int next = ordered_.front();
  ordered_.pop_front();
  return next;
}

void Signals::read_orders() {
  pollfd ready{input_, POLLIN, 0};
  if (input_ < 0 || ::poll(&ready, 1, 0) <= 0) return;
  char buffer[256];
  ssize_t n = ::read(input_, buffer, sizeof buffer);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) {
    input_ = -1;
    ordered_.push_back(SIGTERM);
    return;
  }
  orders_.append(buffer, static_cast<size_t>(n));
  for (size_t end; (end = orders_.find('\n')) != std::string::npos; orders_.erase(0, end + 1))
    if (orders_.starts_with("signal ")) ordered_.push_back(std::atoi(orders_.c_str() + 7));
}

void Signals::restore() const {
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!pipes_ignored_) ::signal(SIGPIPE, SIG_DFL);
}

}  // namespace tutti::tool
