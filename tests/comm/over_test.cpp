// Ranks whose body is over, and who have begun what they did not wait for: it is done, or they say soon why not.
#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

#ifndef TUTTI_SANITIZE_THREAD

namespace tutti {
namespace {

using namespace std::chrono_literals;
using namespace test;  // NOLINT
using testing::ContainsRegex;
using Clock = std::chrono::steady_clock;

class Over : public testing::TestWithParam<Way> {
 protected:
  static void spawn(int n, const std::function<void()>& body) { GetParam().spawn(n, body, {.timeout = 60s}); }
};
std::vector<Way> process_ways() {
  std::vector<Way> ways = all_ways();
  ways.erase(ways.begin());
  return ways;
}
INSTANTIATE_TEST_SUITE_P(Ways, Over, testing::ValuesIn(process_ways()), name_way);

// Each waits for the others, in a group where they never come.
TEST_P(Over, CallsInGroupsOfTheirOwnDoNotWaitForEachOther) {
  auto begin = Clock::now();
  auto leave_one = [] {
    std::vector<Group> groups;
    for (int k = 0; k < world_size(); ++k) groups.push_back(world().subgroup({0, 1, 2}));
    static Tensor x = ones({3});  // lives until the process ends
    all_reduce_async(x, {.group = groups[static_cast<size_t>(rank())]});
  };
  EXPECT_THAT(message_of<RankFailure>([&] { spawn(3, leave_one); }),
              ContainsRegex("rank [012] failed: it ended without taking part in collective 0 of a group of 3"));
  EXPECT_LT(Clock::now() - begin, 30s);  // half of the timeout; one to two seconds where cores are free
}

// The same behind calls that all have made, and which are done.
TEST_P(Over, WhatAllHaveBegunIsDone) {
  Shared<std::atomic<int>> done;
  constexpr int kCalls = 20;
  auto begin = Clock::now();
  auto leave_many = [&](bool one_more) {
    *done = 0;
    spawn(3, [&] {
      Group a = world().subgroup({0, 1, 2}), b = world().subgroup({0, 1, 2});
      for (int k = 0; k < kCalls; ++k)
        for (const Group& group : {rank() == 1 ? b : a, rank() == 1 ? a : b}) {
          Tensor x = full({50'000}, rank());
          all_reduce_async(x, {.group = group}).then([&done, x] { *done += x[9].item<int>() == 3; });
        }
      static Tensor x = ones({3});  // lives until the process ends
      if (one_more) all_reduce_async(x, {.group = rank() == 1 ? a : b});
    });
  };
  leave_many(false);
  EXPECT_EQ(*done, 3 * 2 * kCalls);
  EXPECT_THROW(leave_many(true), RankFailure);
  EXPECT_GE(*done, kCalls);  // before somebody came to that one
  EXPECT_LT(Clock::now() - begin, 30s);
}

}  // namespace
}  // namespace tutti

#endif
