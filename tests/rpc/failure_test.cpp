// Workers that die, and messages that are nobody's.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "comm/transport/segment.h"
#include "tests/rpc/support.h"
#include "tests/support/entries.h"

namespace tutti::test::of_failure {  // functions that are called have names of their own
namespace {

using Clock = std::chrono::steady_clock;

class RpcFailures : public Rpc {};
INSTANTIATE_TEST_SUITE_P(Ways, RpcFailures, every_way(), testing::PrintToStringParamName());
class RpcKills : public Rpc {};
INSTANTIATE_TEST_SUITE_P(Ways, RpcKills, testing::ValuesIn([] {
                           auto ways = all_ways();
                           ways.erase(ways.begin());  // threads cannot be killed
                           return ways;
                         }()),
                         testing::PrintToStringParamName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RpcKills);

int64_t one() { return 1; }
void die() { ::raise(SIGKILL); }
int64_t wait_for_ever() {
  auto until = Clock::now() + 30s;
  while (!rpc::cancelled() && Clock::now() < until) std::this_thread::yield();
  return 1;
}
int64_t wait_by(const std::string& worker) { return rpc::sync<&wait_for_ever>(worker); }

struct Thing {
  int64_t value = 3;
  int64_t get() const { return value; }
};
using ThingRef = rpc::RemoteRef<Thing>;
std::map<int, ThingRef>& kept() {
  static std::map<int, ThingRef> kept;
  return kept;
}
// Has a lease when it returns: one who dies while a fork is on its way may take the object along.
void keep(const ThingRef& thing) {
  kept()[rank()] = thing;
  thing.call<&Thing::get>();
}
void let_go() {
  EXPECT_EQ(kept()[rank()].call<&Thing::get>(), 3);
  kept().clear();
}

/// Runs body; what the world says of the death of a rank is as it should be. What others assert is told by memory that
/// they share, since of several failures the world tells the first.
void expect_death(const Way& way, int n, int victim, const std::function<void(rpc::Session&)>& body) {
  comm::Segment shared = comm::Segment::anonymous(4096);
  auto* failures = reinterpret_cast<std::atomic<int>*>(shared.data());
  try {
    way.spawn(n,
              [&] {
                rpc::Session session;
                body(session);
                if (testing::Test::HasFailure()) ++*failures;
              },
              {.timeout = 20s, .silence = 1s});
    ADD_FAILURE() << "nobody noticed";
  } catch (const RankFailure& e) {
    EXPECT_NE(std::string(e.what()).find("rank " + std::to_string(victim) + " failed"), std::string::npos) << e.what();
  }
  EXPECT_EQ(failures->load(), 0);
}

void wait_until_lost(const std::string& worker) {
  std::string text = text_of_error<RankFailure>([&] {
    auto until = Clock::now() + 20s;
    while (Clock::now() < until) rpc::sync<&one>(worker);
  });
  EXPECT_NE(text.find("'" + worker + "'"), std::string::npos) << text;
}

TEST_P(RpcKills, CallsToAWorkerThatDiesFailByName) {
  auto begin = Clock::now();
  expect_death(GetParam(), 3, 1, [](rpc::Session&) {
    if (rank() == 1) return (void)wait_for_ever();
    if (rank() == 2) {
      // By way of a handler of its own.
      std::string text = text_of_error<RankFailure>([] { rpc::sync<&wait_by>("worker2", "worker1"); });
      EXPECT_NE(text.find("'worker1' (rank 1) is lost"), std::string::npos) << text;
      return;
    }
    auto waiting = rpc::async<&wait_for_ever>("worker1");
    auto death = rpc::async<&die>("worker1");
    std::string text = text_of_error<RankFailure>([&] { waiting.wait(); });
    EXPECT_NE(text.find("'worker1' (rank 1) is lost"), std::string::npos) << text;
    EXPECT_THROW(death.wait(), RankFailure);
    EXPECT_THROW(rpc::sync<&one>("worker1"), RankFailure);  // at once
    auto made = rpc::remote<Thing>("worker1");
    EXPECT_THROW(made.call<&Thing::get>(), RankFailure);
    EXPECT_EQ(rpc::sync<&one>("worker0"), 1);
  });
  EXPECT_LT(Clock::now() - begin, 15s);
}

// Note [Meeting by UCX]: UCX 1.13 does not bear all deaths while it connects.
TEST(RpcMeeting, WorkersThatConnectByUcxHearOfOneThatIsKilledAndNoneEndsWithIt) {
#ifdef TUTTI_SANITIZE_THREAD
  GTEST_SKIP() << "UCX is not compiled for it";
#endif
  if (!comm::has_ucx()) GTEST_SKIP() << "this build has no UCX";
  constexpr int kRounds = 40, kWorkers = 4;
  comm::Segment shared = comm::Segment::anonymous(4096);
  auto* heard = reinterpret_cast<std::atomic<int>*>(shared.data());
  auto connect = [&](int round) {
    std::jthread killer;
    if (rank() == 1)
      killer = std::jthread([before = sockets(), round] {
        // UCX listens by the first ones; then there is one more for each that it connects to, or that connects to it.
        size_t wanted = before + 1 + static_cast<size_t>(round % 10);
        while (sockets() < wanted) continue;
        std::this_thread::sleep_for(std::chrono::microseconds(round / 10 * 50));
        die();
      });
    try {
      rpc::Session session({.timeout = 20s});
      if (rank() == 1) die();  // there are no more sockets
      while (true) rpc::sync<&one>("worker1");
    } catch (const RankFailure& e) {
      std::string text = e.what();  // of the group, or of the session
      bool names = text.find("rank 1 failed") != text.npos || text.find("(rank 1) is lost") != text.npos;
      names ? (void)++*heard : (void)std::fprintf(stderr, "rank %d: %s\n", rank(), e.what());
    } catch (const Error& e) {
      std::fprintf(stderr, "rank %d: %s\n", rank(), e.what());
    }
  };
  for (int round = 0; round < kRounds; ++round)
    EXPECT_THROW(spawn_ucx(kWorkers, [&] { connect(round); }, {.timeout = 20s}), RankFailure);
  EXPECT_EQ(heard->load(), (kWorkers - 1) * kRounds);
}

TEST_P(RpcKills, WhatACallerHeldIsFreedWhenItDies) {
  expect_death(GetParam(), 3, 0, [](rpc::Session& session) {
    if (rank() == 0) {
      std::vector<ThingRef> things;
      for (int i = 0; i < 5; ++i) {
        things.push_back(rpc::remote<Thing>("worker1"));
        things.back().wait();
      }
      rpc::sync<&keep>("worker2", things[0]);  // which a third worker holds as well
      (void)rpc::async<&wait_for_ever>("worker1");
      die();
    }
    wait_until_lost("worker0");
    auto until = Clock::now() + 20s;
    if (rank() == 1) {
      while (session.statistics().objects > 1 && Clock::now() < until) std::this_thread::yield();
      EXPECT_EQ(session.statistics().objects, 1u);
      // The call of the dead worker has learned that nobody waits for it.
      while (session.statistics().handlers > 0 && Clock::now() < until) std::this_thread::yield();
      EXPECT_EQ(session.statistics().handlers, 0u);
      rpc::sync<&let_go>("worker2");
      while (session.statistics().objects > 0 && Clock::now() < until) std::this_thread::yield();
      EXPECT_EQ(session.statistics().objects, 0u);
    } else {
      // Which holds one itself, and stays until it is told.
      while (kept().count(2) && Clock::now() < until) std::this_thread::yield();
    }
    EXPECT_LT(Clock::now(), until);
  });
}

// A rank whose body throws leaves at once; others that wait for it hear so.
TEST_P(RpcFailures, AWorkerThatThrowsIsLost) {
  auto begin = Clock::now();
  try {
    GetParam().spawn(3,
                     [] {
                       rpc::Session session;
                       if (rank() == 1) {
                         rpc::sync<&one>("worker0");
                         throw ValueError("on purpose");
                       }
                       wait_until_lost("worker1");
                     },
                     {.timeout = 20s});
    ADD_FAILURE() << "nobody noticed";
  } catch (const ValueError& e) {
    EXPECT_EQ(e.rank(), 1);
  }
  EXPECT_LT(Clock::now() - begin, 15s);
}

}  // namespace
}  // namespace tutti::test::of_failure
