// Work that fails, is cancelled or polled; small calls beside large and asynchronous ones; messages without waiting.
#include <atomic>
#include <random>
#include <thread>

#include "tests/comm/ways.h"
#include "tests/support/expect.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using namespace test;  // NOLINT

// What a program that only polls, or only leaves a function behind, learns of a failure.
TEST(Works, EndWhenARankFails) {
  std::atomic<int> called{0};
  EXPECT_THROW(spawn_ranks(3,
                           [&] {
                             if (rank() == 2) {
                               std::this_thread::sleep_for(20ms);
                               throw std::runtime_error("lost");
                             }
                             Tensor x = ones({100'000}), y = ones({3});
                             Work collective = all_reduce_async(x);
                             Work message = recv_async(y, 2);
                             collective.then([&] { ++called; });
                             message.then([&] { ++called; });
                             while (!collective.done() || !message.done()) std::this_thread::yield();
                             EXPECT_THAT(message_of<RankFailure>([&] { collective.wait(); }),
                                         HasSubstr("rank 2 failed: lost"));
                             EXPECT_THROW(std::rethrow_exception(message.exception()), RankFailure);
                           }),
               RankFailure);
  EXPECT_EQ(called, 4);
}

TEST(Works, MessagesAreCancelledWithoutHarm) {
  spawn_ranks(2, [] {
    Tensor x = full({100'000}, rank(), {f32}), y = zeros({100'000});
    if (rank() == 0) {
      Work never = send_async(x, 1, {.tag = 7}), wanted = recv_async(y, 1, {.tag = 8});
      EXPECT_TRUE(never.cancel());
      EXPECT_FALSE(never.cancel());
      EXPECT_THROW(never.wait(), CancelledError);
      EXPECT_TRUE(wanted.cancel());
      EXPECT_THROW(std::rethrow_exception(wanted.exception()), CancelledError);
    }
    barrier();
    rank() == 0 ? send(x, 1) : static_cast<void>(recv(y, 0));
    EXPECT_EQ(y[5].item<double>(), 0);
    Work done = barrier_async();
    done.wait();
    EXPECT_FALSE(done.cancel());
  });
}

TEST(Works, ACancelledCollectiveFailsTheOthers) {
  std::string text = message_of<RankFailure>([] {
    spawn_ranks(2, [] {
      Tensor x = ones({10});
      if (rank() == 0) {
        Work work = all_reduce_async(x);
        EXPECT_TRUE(work.cancel());
        EXPECT_THROW(work.wait(), CancelledError);
        return;
      }
      std::this_thread::sleep_for(20ms);
      all_reduce(x);
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 0 failed: it cancelled all_reduce(f32[10], sum) at work_test.cpp"));
}

// Some ranks wait where others do not, and some calls are small where others are not: all of them are one sequence.
TEST(Works, SmallLargeAndAsynchronousCallsMix) {
  for (int n : {2, 3, 8}) {
    spawn_ranks(n, [&] {
      std::mt19937 shared(1), own(static_cast<unsigned>(rank()));
      std::vector<std::pair<Work, Tensor>> open;
      double expected = n * (n + 1) / 2.0;
      for (int k = 0; k < 300; ++k) {
        int64_t size = std::array<int64_t, 5>{0, 1, 9, 2000, 30'000}[shared() % 5];
        Tensor x = full({size}, rank() + 1, {f32});
        if (own() % 3 == 0) {
          open.emplace_back(all_reduce_async(x), x);
        } else {
          all_reduce(x);
          ASSERT_TRUE(equal(x, full({size}, expected, {f32}))) << k;
        }
        if (open.size() > 5) {
          for (auto& [work, y] : open) {
            work.wait();
            ASSERT_TRUE(equal(y, full(y.sizes(), expected, {f32})));
          }
          open.clear();
        }
      }
      for (auto& [work, y] : open) work.wait();
    });
  }
}

// Differences that only the long way can name are found although all calls are small.
TEST(Works, SmallCallsThatDifferAreNamed) {
  spawn_ranks(3, [] {
    Tensor x = ones({rank() == 1 ? 3 : 2});
    EXPECT_THAT(message_of<MismatchError>([&] { all_reduce(x); }),
                AllOf(HasSubstr("ranks disagree in collective 0"), HasSubstr("rank 1: all_reduce(f32[3], sum)")));
    Tensor y = ones({2});
    EXPECT_THROW(rank() ? broadcast(y) : all_reduce(y), MismatchError);
    EXPECT_THROW(broadcast(y, {.root = rank() ? 1 : 0}), MismatchError);
    // Afterwards all goes on.
    all_reduce(y);
    EXPECT_EQ(y[0].item<double>(), 3);
  });
}

TEST(Works, AsynchronousMessagesInAnyOrder) {
  spawn_ranks(4, [] {
    int n = world_size(), me = rank();
    TensorList out, in;
    std::vector<Work> works;
    for (int k = 0; k < n; ++k) {
      // Small ones are copied, large ones wait for their receive.
      out.push_back(full({k % 2 ? 3 : 50'000}, 10 * me + k, {f32}));
      in.push_back(zeros({me % 2 ? 3 : 50'000}));
    }
    for (int k = 0; k < n; ++k) works.push_back(recv_async(in[static_cast<size_t>(k)], k, {.tag = 1}));
    for (int k = 0; k < n; ++k) works.push_back(send_async(out[static_cast<size_t>(k)], k, {.tag = 1}));
    for (Work& w : works) w.wait();
    for (int k = 0; k < n; ++k) {
      EXPECT_EQ(in[static_cast<size_t>(k)][2].item<double>(), 10 * k + me);
      EXPECT_EQ(works[static_cast<size_t>(k)].source(), k);
    }
  });
}

// Also if the sender has left the group, and ended, before the receiver makes it.
TEST(Works, MessagesInAGroupThatItsSenderHasLeft) {
  for (const Way& way : all_ways()) {
    way.spawn(2,
              [] {
                if (rank() == 0) return send(full({3}, 5, {f32}), 1, {.group = world().subgroup({0, 1})});
                std::this_thread::sleep_for(50ms);
                Tensor x = zeros({3});
                recv(x, 0, {.group = world().subgroup({0, 1}), .timeout = 5s});
                EXPECT_EQ(x[2].item<double>(), 5);
              },
              {});
  }
  // A group that one rank never makes is no leak.
  spawn_ranks(2, [] {
    if (rank() == 0) world().subgroup({0, 1});
  });
}

// A group may be used by several threads of a rank; a pair of calls that threads make in any order is of the same kind.
TEST(Works, ThreadsOfARankShareAGroup) {
  spawn_ranks(2, [] {
    Group group = world();
    Context mine = context();
    std::vector<std::thread> threads;
    std::atomic<int> sum{0};
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        ContextGuard guard(mine);
        for (int k = 0; k < 50; ++k) {
          Tensor x = full({4}, 1);
          all_reduce(x, {.group = group});
          sum += x[0].item<int>();
        }
      });
    for (auto& t : threads) t.join();
    EXPECT_EQ(sum, 300);
  });
}

}  // namespace
}  // namespace tutti
