// Worlds whose ranks have nothing in common but their environment, one of which is killed (SIGKILL) at a moment drawn
// at random: while they meet, or while large tensors move. All others hear of it by its number, soon, and none ends
// with it or waits in vain.
#include <dlfcn.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "comm/transport/segment.h"
#include "comm/transport/wire.h"
#include "tests/support/entries.h"
#include "tests/support/ports.h"
#include "tools/flags/flags.h"
#include "tutti/comm.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

#if TUTTI_SANITIZE_ADDRESS
// A world that was cut leaves UCX's worker to the end of the process (UcxWire::cut), and part of what that holds is
// known only to memory in which LeakSanitizer does not look.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libucs.so\n"; }
#endif

namespace tutti::soak_worlds {

constexpr auto kSoon = 5s;     // others hear of it in this time
constexpr int kPatience = 30;  // seconds: the timeout of the world
constexpr int kWrong = 3, kUnmet = 4;

struct Round {
  int ranks, victim;
  bool meeting;
  std::chrono::microseconds after;
  std::vector<int> hosts;
  int64_t count;  // of numbers in a large tensor
  int kind;       // of what is called

  std::string text() const {
    return fmt::format("rank {} of {} killed {} us after {}, {} numbers, kind {}", victim, ranks, after.count(),
                       meeting ? "they began to meet" : "they had met", count, kind);
  }
};

Round draw(std::mt19937_64& random, const std::string& transport, const std::string& only) {
  auto pick = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  Round r{.ranks = static_cast<int>(3 + pick(3)),
          .victim = 0,
          .meeting = pick(2) == 0,
          .after = {},
          .hosts = {},
          .count = 1 << (20 + pick(5)),
          .kind = static_cast<int>(pick(4))};
  r.victim = static_cast<int>(pick(static_cast<uint64_t>(r.ranks)));
  if (!only.empty()) r.meeting = only == "meeting";
  r.after = std::chrono::microseconds(pick(r.meeting ? 30'000 : 200'000));
  for (int k = 0; k < r.ranks; ++k) r.hosts.push_back(transport.starts_with("shm") ? k * 2 / r.ranks : k);
  return r;
}

/// From a thread of its own: nothing that the rank does delays it.
std::thread die_later(std::chrono::microseconds after, const std::string& library) {
  return std::thread([=] {
    // What precedes the engine is a meeting by the store alone.
    while (!library.empty() && !::dlopen(library.c_str(), RTLD_NOLOAD | RTLD_LAZY)) std::this_thread::sleep_for(20us);
    auto until = Clock::now() + after;
    while (Clock::now() < until) std::this_thread::sleep_for(std::min<Clock::duration>(until - Clock::now(), 50us));
    ::kill(::getpid(), SIGKILL);
  });
}

void move_large(const Round& r) {
  Tensor x = full({r.count}, rank() + 1.0);
  TensorList all;
  for (int k = 0; k < r.ranks && r.kind == 1; ++k) all.push_back(empty({r.count}));
  int next = (rank() + 1) % r.ranks, before = (rank() + r.ranks - 1) % r.ranks;
  Tensor y = empty({r.count});
  while (true) {
    if (r.kind == 0) all_reduce(x, {.op = Reduce::max});
    if (r.kind == 1) all_gather(all, x);
    if (r.kind == 2) {
      Work sent = send_async(x, next), come = recv_async(y, before);
      sent.wait();
      come.wait();
    }
    if (r.kind == 3) {
      Work reduced = all_reduce_async(x, {.op = Reduce::max}), sent = send_async(y, next);
      recv(y, before);
      sent.wait();
      reduced.wait();
    }
  }
}

[[noreturn]] void be_rank(int me, const Round& r, const std::string& transport, uint16_t port) {
  auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(me));
  set("WORLD_SIZE", std::to_string(r.ranks));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  set("TUTTI_TIMEOUT", std::to_string(kPatience));
  set("TUTTI_TRANSPORT", transport);
  set("TUTTI_HOST", fmt::format("host{}", r.hosts[static_cast<size_t>(me)]));
  NoGrad guard;
  std::thread killer;
  bool has_ucx = transport.find("ucx") != transport.npos, met = false;
  if (me == r.victim && r.meeting) killer = die_later(r.after, has_ucx ? "libucp.so.0" : "");
  std::string wrong = "nobody died?";
  try {
    barrier();
    met = true;
    if (me == r.victim && !r.meeting) killer = die_later(r.after, "");
    move_large(r);
  } catch (const RankFailure& e) {
    wrong = e.what();
    if (wrong.find(fmt::format("rank {} failed", r.victim)) != wrong.npos) wrong = "";
  } catch (const std::exception& e) {
    wrong = e.what();
  }
  if (!wrong.empty()) std::printf("  rank %d: %s\n", me, wrong.c_str());
  std::fflush(nullptr);
  if (me == r.victim) ::pause();
  std::exit(!wrong.empty() ? kWrong : met ? 0 : kUnmet);  // as if main had returned
}

struct Totals {
  int kills = 0, bad = 0, crashed = 0, hung = 0, wrong = 0, unmet = 0;
  double slowest = 0;
};

void run(const Round& r, const std::string& transport, Totals& totals) {
  // Kept, since a port of an earlier round may have clients yet.
  static std::vector<uint16_t> ports;
  if (ports.size() < 16) ports.push_back(test::reserved_port());
  uint16_t port = ports[static_cast<size_t>(totals.kills) % ports.size()];
  std::map<pid_t, int> ranks;
  std::fflush(nullptr);
  for (int k = 0; k < r.ranks; ++k) {
    pid_t pid = ::fork();
    if (pid == 0) be_rank(k, r, transport, port);
    ranks[pid] = k;
  }
  ++totals.kills;
  int bad = 0;
  bool unmet = false;
  Clock::time_point died{}, begin = Clock::now();
  while (!ranks.empty()) {
    int status = 0;
    pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid == 0) {
      std::this_thread::sleep_for(1ms);
      if (Clock::now() - begin < std::chrono::seconds(2 * kPatience)) continue;
      for (auto& [left, k] : ranks) ::kill(left, SIGKILL);
      ++totals.hung, ++bad;
      begin = Clock::now();
      continue;
    }
    int k = ranks.at(pid);
    ranks.erase(pid);
    if (k == r.victim) {
      died = Clock::now();
      if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) ++totals.crashed, ++bad;
      continue;
    }
    double late = died == Clock::time_point() ? 0 : std::chrono::duration<double>(Clock::now() - died).count();
    totals.slowest = std::max(totals.slowest, late);
    if (WIFSIGNALED(status)) {
      std::printf("  rank %d was ended by signal %d\n", k, WTERMSIG(status));
      ++totals.crashed, ++bad;
    } else if (WEXITSTATUS(status) == kUnmet) {
      unmet = true;
    } else if (WEXITSTATUS(status) != 0) {
      ++totals.wrong, ++bad;
    } else if (died != Clock::time_point() && Clock::now() - died > kSoon) {
      std::printf("  rank %d heard of it after %.3g s\n", k, late);
      ++totals.hung, ++bad;
    }
  }
  totals.unmet += unmet;
  if (bad == 0) return;
  ++totals.bad;
  std::printf("FAILED: %s\n", r.text().c_str());
}

}  // namespace tutti::soak_worlds

int main(int argc, char** argv) {
  using namespace tutti::soak_worlds;
  int64_t rounds = 500, seed = 1;
  double seconds = 0;
  std::string transport = "ucx", only;
  bool is_short = false;
  tutti::flags::Options options("soak_worlds", "Kills ranks of worlds between hosts at random moments.");
  options.flag("--short", "a few kills, for the tests", is_short);
  options.number("--rounds", "N", "kills", rounds, 1);
  options.real("--seconds", "N", "instead of rounds: until these are over", seconds);
  options.number("--seed", "N", "begin with these random numbers", seed);
  options.choice("--transport", "what carries the messages", transport, {"ucx", "shm+ucx", "gloo", "shm+gloo"});
  options.choice("--only", "when ranks are killed", only, {"meeting", "moving"});
  options.parse(argc, argv);
  if (is_short) rounds = 6;
  if (!comm::has_ucx() && transport.ends_with("ucx")) return std::printf("this build has no UCX\n"), 0;
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  auto end = Clock::now() + std::chrono::duration<double>(seconds);
  size_t memory = test::entries("/dev/shm");
  Totals totals;
  while (seconds > 0 ? Clock::now() < end : totals.kills < rounds) {
    run(draw(random, transport, only), transport, totals);
    std::fflush(stdout);
  }
  std::printf(
      "%d kills by %s, %d while some had not met: %d rounds wrong (%d others ended by signals, %d hung, %d heard "
      "something else); the slowest heard after %.3g s; /dev/shm had %zu files and has %zu\n",
      totals.kills, transport.c_str(), totals.unmet, totals.bad, totals.crashed, totals.hung, totals.wrong,
      totals.slowest, memory, test::entries("/dev/shm"));
  return totals.bad > 0;
}
