// What is given to then(): whose it is, what it may do, and what becomes of works that nobody waits for. On every way.
#include <atomic>
#include <thread>

#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using namespace test;  // NOLINT

class Callbacks : public testing::TestWithParam<Way> {
 protected:
  static void spawn(int n, const std::function<void()>& body, SpawnOptions options = {}) {
    GetParam().spawn(n, body, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, Callbacks, every_way(), testing::PrintToStringParamName());

template <class Done>
void poll_until(const Done& done) {
  auto limit = std::chrono::steady_clock::now() + 60s;
  while (!done() && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
}

TEST_P(Callbacks, RunAsTheRankThatGaveThem) {
  spawn(3, [] {
    for (int64_t size : {3, 300'000}) {
      Tensor x = ones({size}), y = full({2}, rank() + 1);
      std::atomic<int> seen{-1}, of{-1};
      Work inner;
      Work work = all_reduce_async(x);
      work.then([&] {
        seen = rank();
        of = world_size();
        inner = all_reduce_async(y);  // what follows may be begun there
      });
      work.wait();
      EXPECT_EQ(seen, rank());
      EXPECT_EQ(of, 3);
      inner.wait();
      EXPECT_TRUE(equal(y, full({2}, 6)));
    }
  });
}

TEST_P(Callbacks, WhatTheyThrowIsTheWorks) {
  spawn(2, [] {
    Tensor x = ones({300'000});
    Work work = all_reduce_async(x);
    std::atomic<bool> second{false};
    work.then([] { throw std::runtime_error("of my own"); });
    work.then([&] { second = true; });
    try {
      work.wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
      EXPECT_THAT(e.what(), HasSubstr("of my own"));
    }
    EXPECT_TRUE(second);
    all_reduce(x);  // the group goes on
    EXPECT_EQ(x[0].item<double>(), 4);
  });
}

TEST_P(Callbacks, MustNotWait) {
  spawn(2, [] {
    Tensor x = ones({300'000}), y = ones({2});
    Work work = all_reduce_async(x);
    std::string text;
    work.then([&] { text = message_of<ValueError>([&] { all_reduce(y); }); });
    work.wait();
    EXPECT_THAT(text, HasSubstr("all_reduce: a function given to then() must not wait"));
  });
}

TEST_P(Callbacks, MayHoldTheLastOfAGroup) {
  spawn(2, [] {
    for (int round = 0; round < 5; ++round) {
      Tensor x = ones({round % 2 ? 3 : 300'000});
      std::atomic<bool> called{false};
      {
        Group group = world().subgroup({1, 0});
        Work work = all_reduce_async(x, {.group = group});
        work.then([&called, group] { called = true; });
      }
      poll_until([&] { return called.load(); });
      EXPECT_TRUE(called);
    }
    barrier();
  });
}

// A rank that has ended will not come; who only polls, or has left a function, is told so.
TEST_P(Callbacks, OfWorksThatCannotEnd) {
  try {
    spawn(2,
          [] {
            if (rank() == 1) return;
            Tensor x = ones({300'000}), y = ones({3}), z = ones({3});
            std::atomic<int> called{0};
            std::vector<Work> works{all_reduce_async(x), recv_async(y, 1), recv_async(z, -1)};
            for (Work& w : works) w.then([&] { ++called; });
            poll_until([&] { return called == 3; });
            EXPECT_EQ(called, 3);
            for (Work& w : works) EXPECT_THROW(w.wait(), RankFailure);
          },
          {.timeout = 50s});
  } catch (const RankFailure&) {  // some ways also tell who started them
  }
}

TEST_P(Callbacks, OfWorksWhoseTimeIsOver) {
  EXPECT_THROW(spawn(2,
                     [] {
                       Tensor x = ones({3}), y = ones({3});
                       if (rank() == 1) {  // stays until the other's failure ends it
                         recv(y, 0, {.tag = 9});
                         return;
                       }
                       Work work = all_reduce_async(x, {.timeout = 200ms});
                       poll_until([&] { return work.done(); });
                       EXPECT_TRUE(work.done());
                       EXPECT_THAT(message_of<TimeoutError>([&] { work.wait(); }), HasSubstr("rank 1 did not come"));
                       throw std::runtime_error("seen");
                     }),
               Error);
}

TEST_P(Callbacks, AnErrorThatNobodySawIsThrownByTheNextCall) {
  spawn(2, [] {
    Tensor x = ones({rank() == 0 ? 300'000 : 300'001}), y = ones({2});
    std::atomic<bool> ended{false};
    {
      Work dropped = all_reduce_async(x);
      dropped.then([&] { ended = true; });
    }
    poll_until([&] { return ended.load(); });
    std::string text;
    poll_until([&] {  // the work goes a moment after its callbacks
      text = message_of<MismatchError>([&] { send_async(y, rank()).cancel(); });
      return text != "nothing was thrown";
    });
    EXPECT_THAT(text, HasSubstr("an asynchronous call that nobody waited for has failed"));
    EXPECT_THAT(text, HasSubstr("the shapes differ"));
    all_reduce(y);
    EXPECT_EQ(y[0].item<double>(), 2);
  });
}

TEST_P(Callbacks, ErrorsAreOfTheRankThatWaits) {
  spawn(2, [] {
    Tensor x = ones({rank() == 0 ? 3 : 4});
    Work work = all_reduce_async(x);
    EXPECT_THAT(message_of<MismatchError>([&] { work.wait(); }),
                testing::StartsWith("[rank " + std::to_string(rank()) + "] "));
  });
}

}  // namespace
}  // namespace tutti
