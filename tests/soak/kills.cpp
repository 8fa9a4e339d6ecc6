// Workers that train over rpc, one of which is killed (SIGKILL) at a moment drawn at random: while they meet, call,
// answer, or pass gradients on. What was found until then is right; then all that wait for it hear of it by its name,
// nobody waits in vain, nothing of its contexts is left, and the others go on.
#include <fmt/format.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "comm/transport/segment.h"
#include "tests/support/entries.h"
#include "tools/flags/flags.h"
#include "tutti/rpc.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace tutti::soak_kills {

constexpr int kWorkers = 4;
constexpr auto kPatience = 20s;  // after which a wait counts as one in vain

/// What went wrong, and how far they are: in memory that all share.
struct Shared {
  std::atomic<int> hangs, leaks, wrong, passes, over, ended;
};
struct Round {
  int victim;
  useconds_t after;  // microseconds
  bool early;        // counted from before the session
  int64_t size;      // of tensors: the largest are lent, the others copied through a ring
};

Tensor weight(int64_t size) { return full({size}, rank() + 1.0).requires_grad_(); }
Tensor through(const Tensor& x, std::vector<int> ranks) {
  Tensor y = x * weight(x.numel());
  if (ranks.empty()) return y;
  int next = ranks.back();
  ranks.pop_back();
  return rpc::sync<&through>(next, y, ranks);
}
size_t contexts_here() { return dist_autograd::statistics().contexts; }

void die_at(useconds_t microseconds) {
  ::signal(SIGALRM, [](int) { ::kill(::getpid(), SIGKILL); });
  ::ualarm(microseconds + 1, 0);
}

/// One pass over all workers; `skip` is no more.
void train_once(Shared& shared, int64_t size, int skip) {
  std::vector<int> path;
  double gradient = 1;
  for (int r = 1; r < kWorkers; ++r)
    if (r != skip) {
      path.push_back(r);
      gradient *= r + 1;
    }
  int first = path.back();
  path.pop_back();
  dist_autograd::Context context;
  Tensor x = weight(size);
  Tensor y = rpc::sync<&through>(first, x, path);
  dist_autograd::backward(context, {y.sum()});
  if (!equal(dist_autograd::get_gradients(context).at(x), full({size}, gradient))) ++shared.wrong;
  ++shared.passes;
}

bool names(const std::exception& e, int victim) {
  return std::string(e.what()).find("'worker" + std::to_string(victim) + "'") != std::string::npos;
}

void await_none(Shared& shared, const std::function<bool()>& none) {
  auto until = Clock::now() + kPatience;
  while (!none())
    if (Clock::now() > until) {
      ++shared.leaks;
      return;
    } else {
      std::this_thread::yield();
    }
}

void drive(Shared& shared, const Round& round) {
  auto until = Clock::now() + kPatience;
  try {
    while (Clock::now() < until) train_once(shared, round.size, 0);
    ++shared.hangs;  // nobody died?
  } catch (const RankFailure& e) {
    if (!names(e, round.victim)) ++shared.wrong, std::printf("another error: %s\n", e.what());
  }
  for (int r = 0; r < kWorkers; ++r)
    if (r != round.victim) await_none(shared, [&] { return rpc::sync<&contexts_here>(r) == 0; });
  train_once(shared, round.size, round.victim);
}

/// When it is the driver that dies.
void outlive(Shared& shared) {
  auto until = Clock::now() + kPatience;
  try {
    while (Clock::now() < until) rpc::sync<&contexts_here>(0);
    ++shared.hangs;
  } catch (const RankFailure&) {
  }
  await_none(shared, [] { return contexts_here() == 0; });
}

void work(Shared& shared, const Round& round) {
  bool made = false;
  try {
    if (round.early) barrier();  // there is a world
    if (rank() == round.victim && round.early) die_at(round.after);
    rpc::Session session({.timeout = kPatience});
    made = true;
    if (rank() == round.victim && !round.early) die_at(round.after);
    if (rank() == 0)
      drive(shared, round);
    else if (round.victim == 0 && rank() != 0)
      outlive(shared);
    // Whoever has done its part serves the others, until all have; the one that dies has none.
    int parts = round.victim == 0 ? kWorkers - 1 : 1;
    if (rank() != round.victim && (rank() == 0 || round.victim == 0)) ++shared.over;
    auto until = Clock::now() + kPatience;
    while ((rank() == round.victim || shared.over.load() < parts) && Clock::now() < until) std::this_thread::yield();
  } catch (const TimeoutError& e) {
    ++shared.hangs;
    std::printf("rank %d waited in vain: %s\n", rank(), e.what());
  } catch (const Error& e) {
    if (round.early || !made) {  // whoever has a session need not wait for this one's part
      shared.over += kWorkers;
      return;
    }
    ++shared.wrong;
    std::printf("rank %d: %s\n", rank(), e.what());
  }
}

bool run(const Round& round, const std::string& transport, int& passes, int& crashes) {
  auto memory = comm::Segment::anonymous(4096);
  auto& shared = *reinterpret_cast<Shared*>(memory.data());
  SpawnOptions options{.timeout = kPatience, .transport = transport};
  if (transport.find('+') != std::string::npos) options.hosts = {0, 0, 1, 1};
  auto begin = Clock::now();
  size_t files = test::entries("/proc/self/fd");
  bool noticed = false;
  std::string text;
  try {
    spawn_processes(kWorkers, [&] { work(shared, round), ++shared.ended; }, options);
  } catch (const Error& e) {
    noticed = true;
    text = e.what();
  }
  if (test::entries("/proc/self/fd") != files) ++shared.leaks;
  if (Clock::now() - begin > kPatience) ++shared.hangs;
  passes += shared.passes;
  int crashed = kWorkers - 1 - shared.ended;  // with it
  crashes += crashed;
  bool good = noticed && shared.hangs == 0 && shared.leaks == 0 && shared.wrong == 0 && crashed == 0;
  if (!good)
    std::printf(
        "FAILED: rank %d killed after %u us (early: %d, size %ld): noticed %d, %d hangs, %d leaks, %d wrong, %d others "
        "ended too: %s\n",
        round.victim, round.after, round.early, static_cast<long>(round.size), noticed, shared.hangs.load(),
        shared.leaks.load(), shared.wrong.load(), crashed, text.c_str());
  return good;
}

}  // namespace tutti::soak_kills

int main(int argc, char** argv) {
  using namespace tutti::soak_kills;
  int64_t rounds = 3000, seed = 1;
  double seconds = 0;
  std::string transport = "shm";
  bool meeting = false, is_short = false;
  tutti::flags::Options options("soak_kills", "Kills workers of RPC sessions at random moments.");
  options.flag("--short", "a few kills, for the tests", is_short);
  options.number("--rounds", "N", "kills", rounds, 1);
  options.real("--seconds", "N", "instead of rounds: until these are over", seconds);
  options.number("--seed", "N", "begin with these random numbers", seed);
  options.choice("--transport", "what carries the calls", transport, {"shm", "ucx", "shm+ucx"});
  options.flag("--meeting", "all kills while workers are still being connected", meeting);
  options.parse(argc, argv);
  if (is_short) rounds = 8;
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  auto end = Clock::now() + std::chrono::duration<double>(seconds);
  size_t memory = test::entries("/dev/shm");
  int kills = 0, failures = 0, passes = 0, crashes = 0, by_role[kWorkers] = {};
  while (seconds > 0 ? Clock::now() < end : kills < rounds) {
    Round round{static_cast<int>(random() % kWorkers), static_cast<useconds_t>(random() % 30000),
                meeting || random() % 4 == 0, std::array<int64_t, 4>{5, 5, 20000, 50000}[random() % 4]};
    failures += run(round, transport, passes, crashes) ? 0 : 1;
    ++by_role[round.victim];
    ++kills;
    std::fflush(stdout);
  }
  std::printf(
      "%d kills by %s (driver %d, workers %d, %d, %d), %d passes before and after, %d failures, %d others ended "
      "too; /dev/shm had %zu files and has %zu\n",
      kills, transport.c_str(), by_role[0], by_role[1], by_role[2], by_role[3], passes, failures, crashes, memory,
      test::entries("/dev/shm"));
  return failures > 0;
}
