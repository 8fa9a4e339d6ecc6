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
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>

#include "comm/transport/segment.h"
#include "tools/tutti/endings.h"
#include "tools/tutti/guard.h"
#include "tools/tutti/program.h"
#include "tools/tutti/terminal.h"

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
  bool alive = false, ended = false, out_is_terminal = false, err_is_terminal = false;
  int told = 0;     // the signal by which we have told it to end
  std::string how;  // it ended
};

// Of a rank that failed because another did: what its uncaught error says.
bool says_another_failed(const Child& c) {
  static const std::regex another("RankFailure|\\brank [0-9]+ failed: ");
  return std::any_of(c.last.begin(), c.last.end(),
                     [](const std::string& line) { return std::regex_search(line, another); });
}

/// In the child: becomes the program, or tells the error. Only calls that are safe after a fork.
[[noreturn]] void become(const Process& p, const char* file, std::vector<char*>& argv, std::vector<char*>& env,
                         const Signals& signals, pid_t parent, int in, int out, int err, int report) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  if (!p.cores.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int core : p.cores) CPU_SET(static_cast<size_t>(core), &set);
    ::sched_setaffinity(0, sizeof set, &set);  // best effort: a container may forbid it
  }
  if (::dup2(in, 0) >= 0 && ::dup2(out, 1) >= 0 && ::dup2(err, 2) >= 0) {
    signals.restore();
    ::execve(file, argv.data(), env.data());
  }
  int error = errno;
  [[maybe_unused]] auto written = ::write(report, &error, sizeof error);
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

std::string path_in(const std::vector<std::string>& environment) {
  for (const std::string& entry : environment)
    if (entry.starts_with("PATH=")) return entry.substr(5);
  return "/usr/local/bin:/usr/bin:/bin";
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

std::string ending_text(const siginfo_t& how) {
  if (how.si_code == CLD_EXITED) return fmt::format("exit code {}", how.si_status);
  return fmt::format("killed by signal {} ({})", how.si_status, ::strsignal(how.si_status));
}
// The same for a table of all: some ended because we told them.
std::string ending_among_all(const siginfo_t& how, int told, bool secondary) {
  std::string text = ending_text(how);
  bool killed = how.si_code != CLD_EXITED;
  if (killed && told && how.si_status == told) return fmt::format("ended by tutti run ({})", signal_name(told));
  if (!killed && how.si_status == 0) return text;
  if (secondary) return text + ", since another rank failed";
  return told ? fmt::format("{} after {} by tutti run", text, signal_name(told)) : text;
}

// A path as short as it can be typed here.
std::string short_path(const std::string& path) {
  std::error_code error;
  std::string near = std::filesystem::proximate(path, error).string();
  return error || near.starts_with("..") ? path : near;
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
  void cannot_start(size_t k, const std::string& why, int code);
  std::pair<Descriptor, Descriptor> make_stream(int to, const Process& p, bool& is_terminal);
  WindowSize window_for(const Process& p, int to) const;
  void follow_window();
  void list_endings();
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
  WindowSize window_[2];
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
  list_endings();
  return ending_;
}

// How each ended, where one has failed, and where its output is.
void Supervisor::list_endings() {
  if (!options_.explain || ending_.hopeless) return;
  std::vector<RankEnding> endings;
  std::vector<int> killed;
  for (size_t k = 0; k < children_.size(); ++k) {
    int rank = processes_[k].rank;
    if (rank < 0) return;
    endings.push_back({rank, children_[k].how});
    if (children_[k].told == SIGKILL && children_[k].how.starts_with("ended by")) killed.push_back(rank);
  }
  if (ending_.by_signal && !killed.empty())
    printer_.print(2, fmt::format("tutti: {} did not end by {}: tutti run killed {}\n", ranks_text(killed),
                                  signal_name(ending_.signal), killed.size() == 1 ? "it" : "them"));
  if (ending_.first < 0 || ending_.by_signal) return;
  const Process& first = processes_[static_cast<size_t>(ending_.first)];
  std::string text;
  if (endings.size() > 1) {
    text += "tutti: how the ranks ended:\n";
    for (const std::string& line : endings_table(endings, first.rank)) text += fmt::format("tutti:   {}\n", line);
  }
  if (!first.file.empty())
    text += fmt::format("tutti: the output of {} is in {}.out and .err{}\n", first.name, short_path(first.file),
                        endings.size() > 1 ? " (others beside it)" : "");
  printer_.print(2, text);
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

void Supervisor::cannot_start(size_t k, const std::string& why, int code) {
  ending_ = {.code = code, .first = static_cast<int>(k), .text = why, .hopeless = true};
  explain();
  pass_on(SIGKILL);
}

// A program is told of as many columns as its lines have behind the prefix; who draws a bar leaves the last one free.
WindowSize Supervisor::window_for(const Process& p, int to) const {
  WindowSize size = window_[to - 1];
  size.columns = std::max(1, size.columns - columns_of(p.prefix) - Printer::kNotDrawn + 1);
  return size;
}

// Where we print on a terminal the program does too, so that it prints by lines, in colors, and draws a bar live.
std::pair<Descriptor, Descriptor> Supervisor::make_stream(int to, const Process& p, bool& is_terminal) {
  if (options_.print && options_.redraw && printer_.is_terminal(to)) {
    window_[to - 1] = window_size(to);
    if (auto ends = make_pseudoterminal(window_for(p, to))) {
      is_terminal = true;
      return std::move(*ends);
    }
  }
  return make_pipe();
}

// Somebody has changed the size of our window.
void Supervisor::follow_window() {
  for (int to : {1, 2}) {
    if (!printer_.is_terminal(to) || window_size(to) == window_[to - 1]) continue;
    window_[to - 1] = window_size(to);
    for (size_t k = 0; k < children_.size(); ++k) {
      Child& c = children_[k];
      if (to == 1 ? c.out_is_terminal : c.err_is_terminal)
        resize_pseudoterminal((to == 1 ? c.out : c.err).get(), window_for(processes_[k], to));
    }
  }
}

void Supervisor::start(size_t k) {
  const Process& p = processes_[k];
  Child& c = children_[k];
  auto [out, out_end] = make_stream(1, p, c.out_is_terminal);
  auto [err, err_end] = make_stream(2, p, c.err_is_terminal);
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
  if (c.out_is_terminal || c.err_is_terminal) variables.push_back(std::string(kReadByLines) + "=1");
  std::string file = find_program(words[0], path_in(variables));
  auto not_started = [&](int error) {
    cannot_start(k, why_not_started(words[0], file, error), code_of_not_started(file, error));
  };
  if (file.find('/') == std::string::npos) return not_started(ENOENT);  // execve would look in this folder
  std::vector<char*> argv = pointers(words), env = pointers(variables);
  pid_t parent = ::getpid();
  c.pid = ::fork();
  if (c.pid == 0)
    become(p, file.c_str(), argv, env, signals_, parent, in.get(), out_end.get(), err_end.get(), report_end.get());
  if (c.pid < 0) return cannot_start(k, fmt::format("{} cannot be started: {}", p.name, std::strerror(errno)), 126);
  ::setpgid(c.pid, c.pid);  // in both, so that it does not matter who is first
  c.alive = true;
  guard_.watch(c.pid);
  c.pidfd = checked(static_cast<int>(::syscall(SYS_pidfd_open, c.pid, 0)), "a process cannot be waited for");
  ++left_;
  report_end.close();
  int error = 0;
  // Until it is another program, or has said why not.
  if (::read(report.get(), &error, sizeof error) == sizeof error) not_started(error);
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
  c.how = ending_among_all(how, c.told, says_another_failed(c));
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
  ending_.text = ending_text(how);
  if (!secondary) explain();
  if (options_.failed) options_.failed(ending_);
  fail_rest();
}

void Supervisor::explain() {
  if (ending_.first < 0 || std::exchange(explained_, true)) return;
  if (!options_.explain || ending_.by_signal) return;  // after a signal that we passed on there is nothing to explain
  auto k = static_cast<size_t>(ending_.first);
  std::string text = ending_.hopeless ? fmt::format("tutti: {}\n", ending_.text)
                                      : fmt::format("tutti: {} failed: {}\n", processes_[k].name, ending_.text);
  if (!children_[k].last.empty()) text += "tutti: its last lines were:\n";
  for (const std::string& line : children_[k].last) text += fmt::format("tutti:   {}\n", line);
  printer_.print(2, text);
}

void Supervisor::pass_on(int signal) {
  told_ = told_ || ends_programs(signal);
  for (size_t k = 0; k < children_.size(); ++k) {
    Child& c = children_[k];
    if (!c.alive) continue;
    if (ends_programs(signal)) c.told = signal;
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
  if (ends_programs(signal) && !signals_.obeys()) {  // under another host's orders that one says it
    bool ranks = processes_[0].rank >= 0 || processes_[0].control;
    printer_.print(
        2, again ? fmt::format("tutti: {} again: kills {}\n", signal_name(signal), ranks ? "all ranks" : "it")
                 : fmt::format("tutti: interrupted by {}, passed on to {}; a second one kills {}\n",
                               signal_name(signal), ranks ? "all ranks" : "the program", ranks ? "them" : "it"));
  }
  pass_on(again ? SIGKILL : signal);  // who asks twice means it
  // The shell waits for us to stop, too (^Z), and makes us go on (fg). Under another host's orders it is that one's
  // shell.
  if (signal == SIGTSTP && signals_.input() < 0) {
    printer_.hide();
    for (int to : {1, 2}) printer_.write(to);
    ::raise(SIGSTOP);
  }
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
  for (const auto& at : {terminate_at_, kill_at_, printer_.next_refresh()})
    if (at) until = std::min(until, *at);
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count() + 1;
  ::poll(polls.data(), polls.size(), static_cast<int>(std::max<int64_t>(0, left)));
  while (int signal = signals_.take()) obey(signal);
  follow_window();
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
  printer_.refresh();
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
