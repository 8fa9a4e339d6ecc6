#include "tools/tutti/supervise.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <regex>

#include "comm/transport/segment.h"
#include "tools/tutti/guard.h"

namespace tutti::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kChunk = 16 << 10;    // of what a process printed: it is taken in turns
constexpr size_t kMostLeft = 1 << 20;  // of what it left in its pipe; more is of somebody who goes on printing
constexpr auto kLook = std::chrono::seconds(1);  // for orphans
constexpr auto kAsk = std::chrono::milliseconds(200);

struct Child {
  pid_t pid = -1;
  Descriptor pidfd, out, err, control;
  std::deque<std::string> last;
  std::unique_ptr<Lines> out_lines, err_lines;
  bool alive = false, ended = false;
};

// Of a rank that failed because another did: what its uncaught error says.
bool says_another_failed(const Child& c) {
  static const std::regex another("RankFailure|\\brank [0-9]+ failed: ");
  return std::any_of(c.last.begin(), c.last.end(),
                     [](const std::string& line) { return std::regex_search(line, another); });
}

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

siginfo_t how_it_ended(pid_t pid) {
  siginfo_t how{};
  ::waitid(P_PID, static_cast<id_t>(pid), &how, WEXITED | WNOHANG | WNOWAIT);
  return how;
}

class Supervisor {
 public:
  Supervisor(const std::vector<Process>& processes, const SuperviseOptions& options, Signals& signals, Printer& printer)
      : processes_(processes), options_(options), signals_(signals), printer_(printer), children_(processes.size()) {}
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

  Ending run();

 private:
  void start(size_t k);
  void finish(Child& c);
  void wait_for_something();
  static void take_from(Descriptor& from, Lines& lines);
  void take_rest(Child& c);
  void reap_all();
  void reap_orphans();
  void reap(size_t k);
  void note_failure(size_t k, const siginfo_t& how);
  void explain();
  void cannot_start(size_t k, const std::string& why);
  void pass_on(int signal);
  void obey(int signal);
  void keep_time();
  /// One has failed: the others notice by themselves, or are told later.
  void fail_rest() {
    if (!terminate_at_ && !kill_at_) terminate_at_ = Clock::now() + options_.grace;
  }

  const std::vector<Process>& processes_;
  const SuperviseOptions& options_;
  Signals& signals_;
  Printer& printer_;
  Guard guard_;
  std::vector<Child> children_;
  size_t left_ = 0;
  Ending ending_;
  bool explained_ = false, ended_by_others_ = false, told_ = false;  // told: they may fail because we made them
  std::optional<Clock::time_point> terminate_at_, kill_at_;
  Clock::time_point look_at_{};  // for orphans
};

Ending Supervisor::run() {
  for (size_t k = 0; k < children_.size() && ending_.first < 0; ++k) start(k);
  while (left_ > 0) {
    wait_for_something();
    if (options_.interrupted && !ended_by_others_)
      if (auto why = options_.interrupted()) {
        ended_by_others_ = true;
        if (!ending_.code)
          ending_ = {.code = 1, .text = *why, .signal = ending_.signal, .by_signal = ending_.signal != 0};
        fail_rest();
      }
    keep_time();
  }
  explain();
  return ending_;
}

void Supervisor::keep_time() {
  auto now = Clock::now();
  if (terminate_at_ && now >= *terminate_at_) {
    terminate_at_.reset();
    kill_at_ = now + options_.grace;
    explain();
    pass_on(SIGTERM);
  }
  if (kill_at_ && now >= *kill_at_) {
    kill_at_.reset();
    explain();
    pass_on(SIGKILL);
  }
}

void Supervisor::cannot_start(size_t k, const std::string& why) {
  ending_ = {.code = 127, .first = static_cast<int>(k), .text = "it cannot be started: " + why, .hopeless = true};
  explain();
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
    in = checked(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null cannot be opened");
  }
  int to[2] = {options_.print ? 1 : -1, options_.print ? 2 : -1};
  c.out_lines = std::make_unique<Lines>(printer_, to[0], p.prefix, p.file.empty() ? "" : p.file + ".out", c.last);
  c.err_lines = std::make_unique<Lines>(printer_, to[1], p.prefix, p.file.empty() ? "" : p.file + ".err", c.last);
  std::vector<std::string> words = p.command, variables = environment_of(p);
  std::vector<char*> argv = pointers(words), env = pointers(variables);
  pid_t parent = ::getpid();
  c.pid = ::fork();
  if (c.pid == 0) become(p, argv, env, signals_, parent, in.get(), out_end.get(), err_end.get(), report_end.get());
  if (c.pid < 0) return cannot_start(k, std::strerror(errno));
  ::setpgid(c.pid, c.pid);  // in both, so that it does not matter who is first
  c.alive = true;
  guard_.watch(c.pid);
  c.pidfd = checked(static_cast<int>(::syscall(SYS_pidfd_open, c.pid, 0)), "a process cannot be waited for");
  ++left_;
  report_end.close();
  char text[256];
  ssize_t n = ::read(report.get(), text, sizeof text);  // until it is another program, or has said why not
  if (n > 0) cannot_start(k, std::string(text, static_cast<size_t>(n)));
  c.out = std::move(out);
  c.err = std::move(err);
  for (Descriptor* d : {&c.out, &c.err}) ::fcntl(d->get(), F_SETFL, O_NONBLOCK);
}

// A part of what there is, so that none keeps us from the others.
void Supervisor::take_from(Descriptor& from, Lines& lines) {
  char buffer[kChunk];
  ssize_t n = ::read(from.get(), buffer, sizeof buffer);
  if (n > 0) return lines.add({buffer, static_cast<size_t>(n)});
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  lines.end();
  from.close();
}

// What it printed last. Nobody of its group is left who could print more; who left that may go on, but is not heard.
void Supervisor::take_rest(Child& c) {
  for (auto [from, lines] : {std::pair{&c.out, c.out_lines.get()}, {&c.err, c.err_lines.get()}}) {
    char buffer[kChunk];
    ssize_t n = 0;
    for (size_t total = 0; from->get() >= 0 && total < kMostLeft; total += static_cast<size_t>(n)) {
      n = ::read(from->get(), buffer, sizeof buffer);
      if (n <= 0) break;
      lines->add({buffer, static_cast<size_t>(n)});
    }
    lines->end();
    from->close();
  }
}

// Whatever is left of it and of what it started in its group.
void Supervisor::finish(Child& c) {
  ::kill(-c.pid, SIGKILL);
  c.control.close();
  while (::waitpid(c.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  c.alive = false;
  guard_.forget(c.pid);
}

void Supervisor::reap(size_t k) {
  Child& c = children_[k];
  siginfo_t how = how_it_ended(c.pid);
  if (how.si_pid != c.pid) return;
  finish(c);
  --left_;
  take_rest(c);
  if (how.si_code != CLD_EXITED || how.si_status != 0) note_failure(k, how);
}

// The first one counts; but not if it only says that another failed, whose own end comes to light later. What fails
// after it was told to end says nothing.
void Supervisor::note_failure(size_t k, const siginfo_t& how) {
  bool secondary = says_another_failed(children_[k]);
  bool better = !ending_.code || (ending_.first >= 0 && ending_.secondary && !secondary && !told_ && !explained_);
  if (!better) return;
  bool exited = how.si_code == CLD_EXITED;
  ending_.code = exited ? how.si_status : 128 + how.si_status;
  ending_.first = static_cast<int>(k);
  ending_.secondary = secondary;
  ending_.by_signal = ending_.signal != 0;
  ending_.text = exited ? fmt::format("exit code {}", ending_.code)
                        : fmt::format("killed by signal {} ({})", how.si_status, ::strsignal(how.si_status));
  if (!secondary) explain();
  if (options_.failed) options_.failed(ending_);
  fail_rest();
}

void Supervisor::explain() {
  if (ending_.first < 0 || std::exchange(explained_, true)) return;
  if (!options_.explain || ending_.by_signal) return;  // after a signal that we passed on there is nothing to explain
  auto k = static_cast<size_t>(ending_.first);
  std::string text = fmt::format("tutti: {} failed: {}\n", processes_[k].name, ending_.text);
  if (!children_[k].last.empty()) text += "tutti: its last lines were:\n";
  for (const std::string& line : children_[k].last) text += fmt::format("tutti:   {}\n", line);
  printer_.print(2, text);
}

void Supervisor::pass_on(int signal) {
  told_ = told_ || ends_programs(signal);
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
  // The shell waits for us to stop, too (^Z), and makes us go on (fg). Under another host's orders it is that one's
  // shell.
  if (signal == SIGTSTP && signals_.input() < 0) ::raise(SIGSTOP);
  if (!ends_programs(signal)) return;
  if (!ending_.signal) ending_.signal = signal;
  if (!kill_at_) kill_at_ = Clock::now() + options_.grace;
}

void Supervisor::wait_for_something() {
  bool full[] = {printer_.is_full(1), printer_.is_full(2)};
  std::vector<pollfd> polls{{signals_.descriptor(), POLLIN, 0},
                            {signals_.input(), POLLIN, 0},
                            {printer_.has(1) ? 1 : -1, POLLOUT, 0},
                            {printer_.has(2) ? 2 : -1, POLLOUT, 0}};
  const size_t first = polls.size();
  for (Child& c : children_) {
    polls.push_back({c.alive ? c.pidfd.get() : -1, POLLIN, 0});
    polls.push_back({full[0] ? -1 : c.out.get(), POLLIN, 0});
    polls.push_back({full[1] ? -1 : c.err.get(), POLLIN, 0});
  }
  auto until = Clock::now() + (options_.interrupted ? kAsk : kLook);
  for (const auto& at : {terminate_at_, kill_at_})
    if (at) until = std::min(until, *at);
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count() + 1;
  ::poll(polls.data(), polls.size(), static_cast<int>(std::max<int64_t>(0, left)));
  while (int signal = signals_.take()) obey(signal);
  for (int to : {1, 2})
    if (printer_.has(to)) printer_.write(to);
  for (size_t k = 0; k < children_.size(); ++k) {
    Child& c = children_[k];
    if (polls[first + 3 * k + 1].revents) take_from(c.out, *c.out_lines);
    if (polls[first + 3 * k + 2].revents) take_from(c.err, *c.err_lines);
    c.ended = c.alive && polls[first + 3 * k].revents;
  }
  reap_all();
  reap_orphans();
}

// If several have ended by now, those that were killed (not by themselves: abort) come first, then those that say
// nothing of another's failure: the others end when they notice.
void Supervisor::reap_all() {
  auto was_killed = [](const Child& c) {
    siginfo_t how = how_it_ended(c.pid);
    return how.si_pid == c.pid && how.si_code != CLD_EXITED && how.si_status != SIGABRT;
  };
  for (size_t k = 0; k < children_.size(); ++k)
    if (children_[k].ended && was_killed(children_[k])) reap(k);
  for (size_t k = 0; k < children_.size(); ++k)
    if (children_[k].ended && children_[k].alive) reap(k);
}

// Whoever loses its parent becomes ours (PR_SET_CHILD_SUBREAPER), and when it ends it is ours to bury.
void Supervisor::reap_orphans() {
  if (Clock::now() < look_at_) return;
  look_at_ = Clock::now() + kLook;
  std::ifstream file(fmt::format("/proc/self/task/{}/children", ::getpid()));
  for (pid_t pid = 0; file >> pid;) {
    auto own = [&](const Child& c) { return c.alive && c.pid == pid; };
    if (pid != guard_.pid() && std::none_of(children_.begin(), children_.end(), own)) ::waitpid(pid, nullptr, WNOHANG);
  }
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

Ending supervise(const std::vector<Process>& processes, const SuperviseOptions& options, Signals& signals,
                 Printer& printer) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  Ending ending = Supervisor(processes, options, signals, printer).run();
  end_orphans();
  // Who is told to end does not wait for a reader.
  std::optional<std::chrono::milliseconds> time;
  if (ending.signal) time = options.grace;
  printer.flush(signals, time);
  return ending;
}

}  // namespace tutti::tool
