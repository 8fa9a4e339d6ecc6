#include "base/ticks.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

TEST(Ticks, BecomeTimesOfTheSteadyClock) {
  std::vector<Clock::time_point> before, after;
  std::vector<int64_t> ticks;
  for (int i = 0; i < 20; ++i) {
    before.push_back(Clock::now());
    ticks.push_back(ticks_now());
    after.push_back(Clock::now());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  TickScale scale;
  constexpr auto slack = std::chrono::microseconds(20);
  for (size_t i = 0; i < ticks.size(); ++i) {
    EXPECT_GE(scale.time(ticks[i]), before[i] - slack);
    EXPECT_LE(scale.time(ticks[i]), after[i] + slack);
    if (i > 0) {
      EXPECT_GT(scale.time(ticks[i]), scale.time(ticks[i - 1]));
    }
  }
  EXPECT_NEAR(scale.seconds_since(ticks[0]), std::chrono::duration<double>(Clock::now() - before[0]).count(), 0.5);
}

TEST(Ticks, AreTheSameOnAllThreads) {
  int64_t first = ticks_now(), second = 0;
  std::thread([&] { second = ticks_now(); }).join();
  EXPECT_GE(second, first);
  EXPECT_GE(ticks_now(), second);
}

}  // namespace
}  // namespace tutti
