#include "tools/tutti/supervise.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "comm/transport/segment.h"
#include "tools/tutti/command.h"

namespace tutti::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
bool ends_programs(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

std::pair<Descriptor, Descriptor> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0)
    throw std::runtime_error(fmt::format("no pipe can be made: {}", std::strerror(errno)));
  return {Descriptor(fds[0]), Descriptor(fds[1])};
}

struct Child {
  pid_t pid = -1;
  Descriptor pidfd, out, err, control;
  std::deque<std::string> last;
  std::unique_ptr<Lines> out_lines, err_lines;
  bool alive = false;
};

/// In the child: becomes the program, or tells why it cannot. Only calls that are safe after a fork.
[[noreturn]] void become(const Process& p, std::vector<char*>& argv, std::vector<char*>& env, const Signals& signals,
                         pid_t parent, int in, int out, int err, int report) {
  auto give_up = [&](const char* what) {
    char text[256];
    int n = std::snprintf(text, sizeof text, "%s: %s", what, std::strerror(errno));
    [[maybe_unused]] auto written = ::write(report, text, static_cast<size_t>(n));
    ::_exit(127);
  };
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  if (!p.cores.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int core : p.cores) CPU_SET(static_cast<size_t>(core), &set);
    ::sched_setaffinity(0, sizeof set, &set);  // best effort: a container may forbid it
  }
  if (::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) give_up("its streams cannot be connected");
  signals.restore();
  ::execvpe(argv[0], argv.data(), env.data());
  give_up(argv[0]);
  ::_exit(127);
}

std::vector<std::string> environment_of(const Process& p) {
  std::vector<std::string> list;
  for (char** e = environ; *e; ++e) {
    std::string entry = *e, name = entry.substr(0, entry.find('='));
    bool replaced = false;
    for (auto& [key, value] : p.environment) replaced = replaced || key == name;
    if (!replaced) list.push_back(entry);
  }
  for (auto& [key, value] : p.environment) list.push_back(fmt::format("{}={}", key, value));
  return list;
}

std::vector<char*> pointers(std::vector<std::string>& list) {
  std::vector<char*> result;
  for (std::string& s : list) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

// Whether a process that has ended was killed, and not by itself (abort).
bool was_killed(pid_t pid) {
  siginfo_t how{};
  ::waitid(P_PID, static_cast<id_t>(pid), &how, WEXITED | WNOHANG | WNOWAIT);
  return how.si_pid == pid && how.si_code != CLD_EXITED && how.si_status != SIGABRT;
}

class Supervisor {
 public:
  Supervisor(const std::vector<Process>& processes, const SuperviseOptions& options, Signals& signals)
      : processes_(processes), options_(options), signals_(signals), children_(processes.size()) {}
  ~Supervisor() {
    for (Child& c : children_)
      if (c.alive) finish(c);
    // Memory that ranks share is named after one of them, and has a name until all have found it: who was killed before
    // leaves it behind.
    for (const Child& c : children_)
      if (c.pid > 0) comm::Segment::remove_all(fmt::format("tutti-{}-", c.pid));
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  Ending run(const std::function<std::optional<std::string>()>& interrupted, int input) {
    input_ = input;
    for (size_t k = 0; k < children_.size() && ending_.first < 0; ++k) start(k);
    while (left_ > 0) {
      wait_for_something(interrupted != nullptr);
      if (interrupted && !ended_by_others_)
        if (auto why = interrupted()) {
          ended_by_others_ = true;
          if (!ending_.code) ending_ = {.code = 1, .text = *why};
          fail_rest();
        }
      auto now = Clock::now();
      if (terminate_at_ && now >= *terminate_at_) {
        terminate_at_.reset();
        kill_at_ = now + options_.grace;
        pass_on(SIGTERM);
      }
      if (kill_at_ && now >= *kill_at_) {
        kill_at_.reset();
        pass_on(SIGKILL);
      }
    }
    return ending_;
  }

 private:
  void start(size_t k);
  void finish(Child& c);
  void wait_for_something(bool often);
  void read_from(Descriptor& from, Lines& lines);
  void reap(size_t k);
  void explain(size_t k);
  void cannot_start(size_t k, const std::string& why);
  void pass_on(int signal);
  void obey(int signal);
  void read_orders();
  /// One has failed: the others notice by themselves, or are told later.
  void fail_rest() {
    if (!terminate_at_ && !kill_at_) terminate_at_ = Clock::now() + options_.grace;
  }

  const std::vector<Process>& processes_;
  const SuperviseOptions& options_;
  Signals& signals_;
  std::vector<Child> children_;
  size_t left_ = 0;
  Ending ending_;
  bool ended_by_others_ = false;
  std::optional<Clock::time_point> terminate_at_, kill_at_;
  int input_ = -1;
  std::string orders_;
};

void Supervisor::cannot_start(size_t k, const std::string& why) {
  ending_ = {.code = 127, .first = static_cast<int>(k), .text = "it cannot be started: " + why, .hopeless = true};
  explain(k);
  pass_on(SIGKILL);
}

void Supervisor::start(size_t k) {
  const Process& p = processes_[k];
  Child& c = children_[k];
  auto [out, out_end] = make_pipe();
  auto [err, err_end] = make_pipe();
  auto [report, report_end] = make_pipe();
  Descriptor in;
  if (p.control) {
    auto [read_end, write_end] = make_pipe();
    in = std::move(read_end);
    c.control = std::move(write_end);
    write_all(c.control.get(), *p.control + "\n");
  } else {
    in = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  int to[2] = {options_.print ? 1 : -1, options_.print ? 2 : -1};
  c.out_lines = std::make_unique<Lines>(to[0], p.prefix, p.file.empty() ? "" : p.file + ".out", c.last);
  c.err_lines = std::make_unique<Lines>(to[1], p.prefix, p.file.empty() ? "" : p.file + ".err", c.last);
  std::vector<std::string> words = p.command, variables = environment_of(p);
  std::vector<char*> argv = pointers(words), env = pointers(variables);
  pid_t parent = ::getpid();
  c.pid = ::fork();
  if (c.pid == 0) become(p, argv, env, signals_, parent, in.get(), out_end.get(), err_end.get(), report_end.get());
  if (c.pid < 0) {
    return cannot_start(k, std::strerror(errno));
  }
  ::setpgid(c.pid, c.pid);  // in both, so that it does not matter who is first
  c.alive = true;
  ++left_;
  c.pidfd = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, c.pid, 0)));
  report_end.close();
  char text[256];
  ssize_t n = ::read(report.get(), text, sizeof text);  // until it is another program, or has said why not
  if (n > 0) cannot_start(k, std::string(text, static_cast<size_t>(n)));
  c.out = std::move(out);
  c.err = std::move(err);
  for (Descriptor* d : {&c.out, &c.err}) ::fcntl(d->get(), F_SETFL, O_NONBLOCK);
}

void Supervisor::read_from(Descriptor& from, Lines& lines) {
  char buffer[16 << 10];
  while (from.get() >= 0) {
    ssize_t n = ::read(from.get(), buffer, sizeof buffer);
    if (n > 0) {
      lines.add({buffer, static_cast<size_t>(n)});
      continue;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    lines.end();
    from.close();
  }
}

// Whatever is left of it and of what it started in its group.
void Supervisor::finish(Child& c) {
  ::kill(-c.pid, SIGKILL);
  c.control.close();
  while (::waitpid(c.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  c.alive = false;
}

void Supervisor::reap(size_t k) {
  Child& c = children_[k];
  siginfo_t how{};
  if (::waitid(P_PID, static_cast<id_t>(c.pid), &how, WEXITED | WNOHANG | WNOWAIT) != 0 || how.si_pid != c.pid) return;
  finish(c);
  --left_;
  // What it printed last; nobody of its group is left who could print more.
  read_from(c.out, *c.out_lines);
  read_from(c.err, *c.err_lines);
  c.out_lines->end();
  c.err_lines->end();
  bool exited = how.si_code == CLD_EXITED;
  int code = exited ? how.si_status : 128 + how.si_status;
  if (code == 0 || ending_.code) return;
  ending_.code = code;
  ending_.first = static_cast<int>(k);
  ending_.text = exited ? fmt::format("exit code {}", code)
                        : fmt::format("killed by signal {} ({})", how.si_status, ::strsignal(how.si_status));
  explain(k);
  fail_rest();
}

void Supervisor::explain(size_t k) {
  if (!options_.explain || ending_.signal) return;  // after a signal that we passed on there is nothing to explain
  std::string text = fmt::format("tutti: {} failed: {}\n", processes_[k].name, ending_.text);
  if (!children_[k].last.empty()) text += "tutti: its last lines were:\n";
  for (const std::string& line : children_[k].last) text += fmt::format("tutti:   {}\n", line);
  write_all(2, text);
}

void Supervisor::pass_on(int signal) {
  for (size_t k = 0; k < children_.size(); ++k) {
    Child& c = children_[k];
    if (!c.alive) continue;
    if (!processes_[k].control || signal == SIGKILL)
      ::kill(-c.pid, signal);
    else if (ends_programs(signal))
      c.control.close();
    else
      write_all(c.control.get(), fmt::format("signal {}\n", signal));
  }
}

void Supervisor::obey(int signal) {
  bool again = ending_.signal != 0 && ends_programs(signal);
  pass_on(again ? SIGKILL : signal);  // who asks twice means it
  if (!ends_programs(signal)) return;
  ending_.signal = signal;
  if (!kill_at_) kill_at_ = Clock::now() + options_.grace;
}

void Supervisor::read_orders() {
  char buffer[256];
  ssize_t n = ::read(input_, buffer, sizeof buffer);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) {
    input_ = -1;
    return obey(SIGTERM);
  }
  orders_.append(buffer, static_cast<size_t>(n));
  for (size_t end; (end = orders_.find('\n')) != std::string::npos; orders_.erase(0, end + 1))
    if (orders_.starts_with("signal ")) obey(std::atoi(orders_.c_str() + 7));
}

void Supervisor::wait_for_something(bool often) {
  std::vector<pollfd> polls{{signals_.descriptor(), POLLIN, 0}, {input_, POLLIN, 0}};
  for (Child& c : children_) {
    polls.push_back({c.alive ? c.pidfd.get() : -1, POLLIN, 0});
    polls.push_back({c.out.get(), POLLIN, 0});
    polls.push_back({c.err.get(), POLLIN, 0});
  }
  auto until = Clock::now() + (often ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10'000));
  for (const auto& at : {terminate_at_, kill_at_})
    if (at) until = std::min(until, *at);
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count() + 1;
  if (::poll(polls.data(), polls.size(), static_cast<int>(std::max<int64_t>(0, left))) <= 0) return;
  while (int signal = signals_.take()) obey(signal);
  if (polls[1].revents) read_orders();
  for (size_t k = 0; k < children_.size(); ++k) {
    if (polls[3 + 3 * k].revents) read_from(children_[k].out, *children_[k].out_lines);
    if (polls[4 + 3 * k].revents) read_from(children_[k].err, *children_[k].err_lines);
  }
  // If several have ended by now, those that were killed are first: others end by themselves when they notice.
  for (bool killed : {true, false})
    for (size_t k = 0; k < children_.size(); ++k)
      if (polls[2 + 3 * k].revents && children_[k].alive && (!killed || was_killed(children_[k].pid))) reap(k);
}

// Processes that left their group, and whose parents are gone, have become ours (PR_SET_CHILD_SUBREAPER).
void end_orphans() {
  while (true) {
    std::ifstream file(fmt::format("/proc/self/task/{}/children", ::getpid()));
    bool any = false;
    for (pid_t pid = 0; file >> pid;) {
      any = true;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    if (!any) return;
  }
}

}  // namespace

void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Signals::Signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (int s : kPassedOn) ::sigaddset(&set, s);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // who reads our output may leave
  fd_ = Descriptor(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
}

int Signals::take() {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

void Signals::restore() const {
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
}

Ending supervise(const std::vector<Process>& processes, const SuperviseOptions& options, Signals& signals,
                 const std::function<std::optional<std::string>()>& interrupted, int input) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  Ending ending = Supervisor(processes, options, signals).run(interrupted, input);
  end_orphans();
  return ending;
}

}  // namespace tutti::tool
