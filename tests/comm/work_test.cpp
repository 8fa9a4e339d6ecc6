// Work that fails, is cancelled or polled; small calls beside large and asynchronous ones; messages without waiting.
#include <atomic>
#include <optional>
#include <random>
#include <thread>

#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using namespace test;  // NOLINT

class Works : public EveryWay {};
INSTANTIATE_TEST_SUITE_P(Ways, Works, every_way(), name_way);

// What a program that only polls, or only leaves a function behind, learns of a failure.
TEST_P(Works, EndWhenARankFails) {
  Shared<std::atomic<int>> begun, called;
  auto body = [&] {
    if (rank() == 2) {
      wait_until(begun, 2);
      throw std::runtime_error("lost");
    }
    Tensor x = ones({100'000}), y = ones({3});
    Work collective = all_reduce_async(x);
    Work message = recv_async(y, 2);
    collective.then([&] { ++*called; });
    message.then([&] { ++*called; });
    ++*begun;
    while (!collective.done() || !message.done()) std::this_thread::yield();
    EXPECT_THAT(message_of<RankFailure>([&] { collective.wait(); }), HasSubstr("rank 2 failed: lost"));
    EXPECT_THROW(std::rethrow_exception(message.exception()), RankFailure);
    EXPECT_THROW(message.wait_for(0s), RankFailure);
  };
  EXPECT_THAT(message_of<RankFailure>([&] { spawn(3, body); }), HasSubstr("rank 2 failed: lost"));
  EXPECT_EQ(*called, 4);
}

TEST_P(Works, AreAwaitedPolledAndFollowed) {
  Shared<std::atomic<int>> waited;
  spawn(3, [&] {
    int me = rank();
    Tensor x = full({2000}, me, {f32});
    if (me == 2) wait_until(waited, 2);
    Work work = all_reduce_async(x);
    std::atomic<int> called = 0;
    Tensor next = ones({4});
    std::optional<Work> second;
    work.then([&] {
      EXPECT_EQ(rank(), me);  // as the rank that gave it
      second = all_reduce_async(next);
      ++called;
    });
    if (me != 2) {
      EXPECT_FALSE(work.wait_for(1ms));  // gives up waiting, not the work
      EXPECT_FALSE(work.done());
      EXPECT_EQ(work.exception(), nullptr);
    }
    ++*waited;
    while (!work.wait_for(50ms)) {
    }
    work.wait();
    EXPECT_TRUE(work.done());
    EXPECT_EQ(work.exception(), nullptr);
    EXPECT_EQ(called, 1);
    EXPECT_TRUE(equal(x, full({2000}, 3, {f32})));
    second->wait();
    EXPECT_TRUE(equal(next, full({4}, 3, {f32})));
    // Of one that is done already, at once; what it throws, wait() throws.
    work.then([&] { ++called; });
    EXPECT_EQ(called, 2);
    Work third = barrier_async();
    third.then([] { throw IndexError("of the function"); });
    EXPECT_THAT(message_of<IndexError>([&] { third.wait(); }), HasSubstr("of the function"));
    EXPECT_NE(third.exception(), nullptr);
    barrier();
  });
}

TEST_P(Works, MessagesAreCancelledWithoutHarm) {
  spawn(2, [] {
    Tensor x = full({100'000}, rank(), {f32}), y = zeros({100'000}), begun = zeros({1});
    Work never;
    if (rank() == 0) {
      Work wanted = recv_async(y, 1, {.tag = 8});
      EXPECT_TRUE(wanted.cancel());
      EXPECT_FALSE(wanted.cancel());
      EXPECT_THROW(wanted.wait(), CancelledError);
      EXPECT_THROW(std::rethrow_exception(wanted.exception()), CancelledError);
      never = send_async(x, 1, {.tag = 7});
      if (never.cancel())
        EXPECT_THROW(never.wait(), CancelledError);
      else
        begun.fill_(1);  // too late: between processes, what fits there leaves at once
    }
    broadcast(begun);
    if (begun.item<double>() != 0) {
      if (rank() == 1) recv(y, 0, {.tag = 7});
      never.wait();
    }
    rank() == 0 ? send(x, 1) : static_cast<void>(recv(y, 0));
    EXPECT_EQ(y[5].item<double>(), 0);
    Work done = barrier_async();
    done.wait();
    EXPECT_FALSE(done.cancel());
  });
}

TEST_P(Works, ACancelledCollectiveFailsTheOthers) {
  Shared<std::atomic<int>> cancelled;
  std::string text = message_of<RankFailure>([&] {
    spawn(2, [&] {
      Tensor x = ones({10});
      if (rank() == 0) {
        Work work = all_reduce_async(x);
        EXPECT_TRUE(work.cancel());
        ++*cancelled;
        EXPECT_THROW(work.wait(), CancelledError);
        return;
      }
      wait_until(cancelled, 1);
      all_reduce(x);
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 0 failed: it cancelled all_reduce(f32[10], sum) at work_test.cpp"));
}

// Some ranks wait where others do not, and some calls are small where others are not: all of them are one sequence.
TEST_P(Works, SmallLargeAndAsynchronousCallsMix) {
  for (int n : {2, 3, 8}) {
    spawn(n, [&] {
      std::mt19937 shared(1), own(static_cast<unsigned>(rank()));
      std::vector<std::pair<Work, Tensor>> open;
      double expected = n * (n + 1) / 2.0;
      for (int k = 0; k < 200; ++k) {
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
TEST_P(Works, SmallCallsThatDifferAreNamed) {
  spawn(3, [] {
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

TEST_P(Works, AsynchronousMessagesInAnyOrder) {
  spawn(4, [] {
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
TEST_P(Works, MessagesInAGroupThatItsSenderHasLeft) {
  Shared<std::atomic<int>> left;
  spawn(2, [&] {
    if (rank() == 0) {
      send(full({3}, 5, {f32}), 1, {.group = world().subgroup({0, 1})});
      ++*left;
      return;
    }
    wait_until(left, 1);
    Tensor x = zeros({3});
    recv(x, 0, {.group = world().subgroup({0, 1}), .timeout = 60s});
    EXPECT_EQ(x[2].item<double>(), 5);
  });
  // A group that one rank never makes is no leak.
  spawn(2, [] {
    if (rank() == 0) world().subgroup({0, 1});
  });
}

// Nor by who keeps neither the work nor the group.
TEST_P(Works, ALongMessageIsNotLostWithItsGroup) {
  Shared<std::atomic<int>> left, received;
  spawn(2, [&] {
    Tensor x = full({100'000}, rank(), {f32});
    Group group = world().subgroup({0, 1});
    if (rank() == 1) {
      send_async(x, 0, {.group = group});
      group = {};
      ++*left;
      wait_until(received, 1);
    } else {
      wait_until(left, 1);
      recv(x, 1, {.group = group, .timeout = 20s});
      ++*received;
      EXPECT_TRUE(equal(x, ones({100'000})));
    }
  });
}

TEST_P(Works, ARankThatDoesNotComeIsMissedInADroppedGroup) {
  spawn(2, [] {
    auto missed = [] {
      Group alone = world().subgroup({rank()});
      for (auto end = std::chrono::steady_clock::now() + 20s; std::chrono::steady_clock::now() < end;) {
        barrier({.group = alone});
        std::this_thread::sleep_for(1ms);
      }
    };
    {
      Group group = world().subgroup({0, 1});
      if (rank() == 0) all_reduce_async(ones({3}), {.group = group, .timeout = 200ms});
    }
    EXPECT_THAT(message_of<Error>(missed), HasSubstr("rank 0 waited 0.2 s in collective 0, all_reduce(f32[3], sum)"));
  });
}

// A group may be used by several threads of a rank; a pair of calls that threads make in any order is of the same kind.
TEST_P(Works, ThreadsOfARankShareAGroup) {
  spawn(2, [] {
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
