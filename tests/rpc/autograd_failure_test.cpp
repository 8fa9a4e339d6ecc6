// Backward passes that fail: everybody hears of it, and keeps nothing.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "comm/transport/segment.h"
#include "tests/rpc/support.h"
#include "tutti/rpc/autograd.h"

namespace tutti::test::of_autograd_failure {  // functions that are called have names of their own
namespace {

using Clock = std::chrono::steady_clock;
using dist_autograd::backward;
using dist_autograd::Context;
using dist_autograd::get_gradients;

class DistAutogradFailures : public Rpc {};
INSTANTIATE_TEST_SUITE_P(Ways, DistAutogradFailures, every_way(), testing::PrintToStringParamName());
class DistAutogradKills : public Rpc {};
INSTANTIATE_TEST_SUITE_P(Ways, DistAutogradKills, testing::ValuesIn([] {
                           auto ways = all_ways();
                           ways.erase(ways.begin());  // threads cannot be killed
                           return ways;
                         }()),
                         testing::PrintToStringParamName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DistAutogradKills);

Tensor weight() {
  Tensor w = ones({3}) * (rank() + 1);
  return w.requires_grad_();
}
enum class Trouble : uint8_t { none, raise, die, wait, die_early };
void make(Trouble trouble) {
  if (trouble == Trouble::raise) throw ShapeError("on purpose, on rank " + std::to_string(rank()));
  if (trouble == Trouble::die) ::raise(SIGKILL);
  // A slow function, not a way to wait.
  if (trouble == Trouble::wait) std::this_thread::sleep_for(2s);
}
/// Forward over these ranks, the last first; backward gets into trouble on one of them.
Tensor through(const Tensor& x, std::vector<int> ranks, int where, Trouble trouble) {
  Tensor y = x * weight();
  if (rank() == where && trouble == Trouble::die_early) ::raise(SIGKILL);
  if (rank() == where)
    y.register_hook([trouble](const Tensor& g) {
      make(trouble);
      return g;
    });
  if (ranks.empty()) return y;
  int next = ranks.back();
  ranks.pop_back();
  return rpc::sync<&through>(next, y, ranks, where, trouble);
}
size_t contexts_here() { return dist_autograd::statistics().contexts; }
void expect_nothing_left(const std::vector<int>& ranks) {
  auto until = Clock::now() + 20s;
  for (int r : ranks) {
    while (rpc::sync<&contexts_here>(r) > 0 && Clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(rpc::sync<&contexts_here>(r), 0u) << "on rank " << r;
  }
}

TEST_P(DistAutogradFailures, WhatAThirdWorkerThrowsIsThrownHere) {
  drive(4, [] {
    {
      Context context;
      Tensor x = weight();
      for (int where : {1, 2, 3}) {
        Context inner;
        Tensor y = rpc::sync<&through>(1, x, std::vector<int>{1, 3, 2}, where, Trouble::raise);
        std::string text = text_of_error<ShapeError>([&] { backward(inner, {y.sum()}); });
        EXPECT_NE(text.find("on purpose, on rank " + std::to_string(where)), std::string::npos) << text;
        EXPECT_NE(text.find("autograd_failure_test.cpp:" + std::to_string(__LINE__ - 2)), std::string::npos) << text;
        // The context is freed everywhere, and says so.
        text = text_of_error<GradError>([&] { get_gradients(inner); });
        EXPECT_NE(text.find("on purpose"), std::string::npos) << text;
        expect_nothing_left({1, 2, 3});
        // Calls inside of it go on, without gradients.
        EXPECT_FALSE(rpc::sync<&through>(1, x, std::vector<int>{}, 0, Trouble::none).requires_grad());
      }
      // The other context knows nothing of all that.
      Tensor y = rpc::sync<&through>(1, x, std::vector<int>{2}, 0, Trouble::none);
      backward(context, {y.sum()});
      EXPECT_TRUE(allclose(get_gradients(context).at(x), ones({3}) * 6));
    }
    expect_nothing_left({0, 1, 2, 3});
  });
}

TEST_P(DistAutogradFailures, TroubleAtHome) {
  drive(2, [] {
    {
      Context context;
      Tensor x = weight();
      Tensor y = rpc::sync<&through>(1, x * 2, std::vector<int>{0}, 0, Trouble::raise);
      EXPECT_THROW(backward(context, {y.sum()}), ShapeError);
      EXPECT_THROW(backward(context, {y.sum()}), GradError);
    }
    expect_nothing_left({0, 1});
  });
}

TEST_P(DistAutogradFailures, TimeoutsNameWhoIsLate) {
  drive(3, [] {
    Context context;
    Tensor y = rpc::sync<&through>(1, weight(), std::vector<int>{2}, 2, Trouble::wait);
    std::string text = text_of_error<TimeoutError>([&] { backward(context, {y.sum()}, {.timeout = 200ms}); });
    EXPECT_NE(text.find("worker"), std::string::npos) << text;
    EXPECT_NE(text.find("autograd_failure_test.cpp"), std::string::npos) << text;
  });
}

TEST_P(DistAutogradFailures, WhatCannotBe) {
  drive(2, [] {
    Context context;
    Tensor x = weight();
    EXPECT_THROW(backward(context, {}), ValueError);
    EXPECT_THROW(backward(context, {x * 2}), GradError);
    EXPECT_THROW(backward(context, {ones({})}), GradError);
    EXPECT_THROW(backward(context, {x.sum()}, {.timeout = -1ms}), ValueError);
    EXPECT_THROW(backward(dist_autograd::ContextId{42}, {x.sum()}), ValueError);
    // Nothing of that has hurt it.
    Tensor y = rpc::sync<&through>(1, x, std::vector<int>{}, 0, Trouble::none);
    std::string text = text_of_error<GradError>([&] { y.sum().backward(); });
    EXPECT_NE(text.find("dist_autograd::backward"), std::string::npos) << text;
    backward(context, {y.sum()});
    EXPECT_TRUE(allclose(get_gradients(context).at(x), ones({3}) * 2));
    // From within a function that runs again in backward no other worker can be called.
    Tensor again =
        checkpoint([](const Tensor& t) { return rpc::sync<&through>(1, t, std::vector<int>{}, 0, Trouble::none); }, x);
    EXPECT_THROW(backward(context, {again.sum()}), GradError);
  });
}

// A call that is not waited for arrives when its context is over.
Tensor late(const Tensor& x, int64_t milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));  // a slow function, not a way to wait
  return x * weight();
}
TEST_P(DistAutogradFailures, ContextsThatEndWhileCallsAreRunning) {
  drive(3, [] {
    std::vector<rpc::Future<Tensor>> results;
    for (int i = 0; i < 20; ++i) {
      Context context;
      results.push_back(rpc::async<&late>(1, weight(), int64_t{i % 3}));
      results.push_back(rpc::async<&through>(1, weight(), std::vector<int>{1, 2}, 0, Trouble::none));
    }
    for (auto& y : results) EXPECT_EQ(y.wait().numel(), 3);
    expect_nothing_left({0, 1, 2});
  });
}

// ---- Deaths

/// Runs body on one rank, while the others serve; what the world says of the death of a rank is as it should be. What
/// is asserted elsewhere is told by memory that all share, since of several failures the world tells the first.
void expect_death(const Way& way, int n, int victim, const std::function<void()>& body,
                  const std::function<void()>& others = {}) {
  comm::Segment shared = comm::Segment::anonymous(4096);
  auto* failures = reinterpret_cast<std::atomic<int>*>(shared.data());
  std::atomic<int>* left = failures + 1;  // that have not done what they have to
  *left = others ? n - 1 : 1;             // one of whom dies
  auto serve = [&] {
    rpc::Session session;
    try {
      if (rank() == 0) {
        body();
        --*left;
      } else if (others) {
        others();
        --*left;
      }
      auto until = Clock::now() + 25s;
      while (left->load() > 0 && Clock::now() < until) std::this_thread::yield();
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
      *left = 0;
    }
    if (testing::Test::HasFailure()) ++*failures;
  };
  try {
    way.spawn(n, serve, {.timeout = 30s, .silence = 1s});
    ADD_FAILURE() << "nobody noticed";
  } catch (const RankFailure& e) {
    EXPECT_NE(std::string(e.what()).find("rank " + std::to_string(victim) + " failed"), std::string::npos) << e.what();
  }
  EXPECT_EQ(failures->load(), 0);
}

TEST_P(DistAutogradKills, AWorkerThatDiesInBackward) {
  expect_death(GetParam(), 4, 2, [] {
    {
      Context context;
      Tensor y = rpc::sync<&through>(1, weight(), std::vector<int>{3, 2}, 2, Trouble::die);
      std::string text = text_of_error<RankFailure>([&] { backward(context, {y.sum()}); });
      EXPECT_NE(text.find("'worker2' (rank 2) is lost"), std::string::npos) << text;
      EXPECT_THROW(get_gradients(context), GradError);
      expect_nothing_left({0, 1, 3});
    }
    // The others go on.
    Context context;
    Tensor x = weight();
    Tensor y = rpc::sync<&through>(1, x, std::vector<int>{3}, 0, Trouble::none);
    backward(context, {y.sum()});
    EXPECT_TRUE(allclose(get_gradients(context).at(x), ones({3}) * 8));
  });
}

void die() { ::raise(SIGKILL); }
TEST_P(DistAutogradKills, AWorkerThatDiedBefore) {
  expect_death(GetParam(), 3, 1, [] {
    Tensor x = weight();
    {
      Context context;
      // Rank 2 was called by rank 1 only, and lives.
      Tensor y = rpc::sync<&through>(1, x, std::vector<int>{2}, 0, Trouble::none);
      EXPECT_EQ(rpc::sync<&contexts_here>(2), 1u);
      EXPECT_THROW(rpc::sync<&die>(1), RankFailure);
      std::string text = text_of_error<RankFailure>([&] { backward(context, {y.sum()}); });
      EXPECT_NE(text.find("'worker1' (rank 1) is lost"), std::string::npos) << text;
    }
    expect_nothing_left({0, 2});
  });
}

// The one that began it: all others let go of its contexts.
TEST_P(DistAutogradKills, TheWorkerThatBeganDies) {
  expect_death(
      GetParam(), 3, 0,
      [] {
        Context context;
        Tensor x = weight();
        Tensor y = rpc::sync<&through>(1, x, std::vector<int>{1, 2}, 1, Trouble::wait);
        auto pass = dist_autograd::backward_async(context, {y.sum()});
        while (!pass.wait_for(50ms)) ::raise(SIGKILL);
        ADD_FAILURE() << "it ended early";
      },
      [] {
        auto until = Clock::now() + 20s;
        bool had = false;
        while (Clock::now() < until && !(had && contexts_here() == 0)) {
          had = had || contexts_here() > 0;
          std::this_thread::yield();
        }
        EXPECT_LT(Clock::now(), until);
      });
}

// In forward and in backward, after some rounds. What is found until then is right, and then there is an error that
// names who died.
TEST_P(DistAutogradKills, InTheMiddleOfTraining) {
  struct Death {
    int victim, round;
    bool forward;
  };
  for (Death death : {Death{1, 3, false}, Death{2, 5, false}, Death{1, 2, true}, Death{2, 7, true}}) {
    expect_death(GetParam(), 3, death.victim, [&] {
      std::string text = text_of_error<RankFailure>([&] {
        for (int round = 0; round < 20; ++round) {
          Context context;
          Tensor x = weight();
          bool dies = round == death.round;
          Trouble trouble = !dies ? Trouble::none : death.forward ? Trouble::die_early : Trouble::die;
          Tensor y = rpc::sync<&through>(1, x, std::vector<int>{1, 2}, dies ? death.victim : 0, trouble);
          backward(context, {y.sum()});
          EXPECT_TRUE(allclose(get_gradients(context).at(x), ones({3}) * 12));
        }
      });
      EXPECT_NE(text.find("'worker" + std::to_string(death.victim) + "'"), std::string::npos) << text;
      expect_nothing_left({0, death.victim == 1 ? 2 : 1});
    });
  }
}

void die_after(int64_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));  // so as to die in the middle of something
  die();
}
// At any moment. What was found until then is right, and then there is an error that names who died. (tests/soak/kills
// does it thousands of times.)
TEST_P(DistAutogradKills, AtAnyMoment) {
  for (int microseconds : {0, 1301}) {
    int victim = 1 + microseconds % 2;
    expect_death(GetParam(), 3, victim, [&] {
      rpc::Future<> death = rpc::async<&die_after>(victim, int64_t{5000 + microseconds});
      auto until = Clock::now() + 20s;
      std::string text = text_of_error<RankFailure>([&] {
        while (Clock::now() < until) {
          Context context;
          Tensor x = weight();
          Tensor y = rpc::sync<&through>(1, x, std::vector<int>{1, 2}, 0, Trouble::none);
          backward(context, {y.sum()});
          EXPECT_TRUE(allclose(get_gradients(context).at(x), ones({3}) * 12));
        }
      });
      EXPECT_NE(text.find("'worker" + std::to_string(victim) + "'"), std::string::npos) << text;
      EXPECT_THROW(death.wait(), RankFailure);
      expect_nothing_left({0, victim == 1 ? 2 : 1});
    });
  }
}

}  // namespace
}  // namespace tutti::test::of_autograd_failure
