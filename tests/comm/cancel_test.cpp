// Work::cancel, which is the same on every transport; and what a rank is told of its own failure.
#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using namespace test;  // NOLINT
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Cancel : public testing::TestWithParam<Way> {
 protected:
  static void spawn(int n, const std::function<void()>& body) { GetParam().spawn(n, body, {.timeout = 60s}); }
};
INSTANTIATE_TEST_SUITE_P(Ways, Cancel, every_way(), [](const auto& info) { return std::string(info.param.name); });

// Small and large ones, whether they wait for others already or not: rank 1 comes when it is over.
TEST_P(Cancel, ACollectiveThatARankHasNotComeTo) {
  for (int64_t count : {10, 300'000})
    for (bool begun : {false, true}) {
      std::string text = message_of<RankFailure>([&] {
        spawn(2, [&] {
          Tensor x = full({count}, rank() + 1, {f32});
          barrier();
          if (rank() == 1) {
            Tensor word = zeros({1});
            EXPECT_THROW(recv(word, 0), RankFailure);
            return all_reduce(x);
          }
          Work first = all_reduce_async(x);
          if (begun) {
            EXPECT_FALSE(first.wait_for(30ms));
          }
          EXPECT_TRUE(first.cancel());
          EXPECT_FALSE(first.cancel());
          EXPECT_TRUE(first.done());
          EXPECT_THROW(first.wait(), CancelledError);
          EXPECT_TRUE(equal(x, full({count}, 1, {f32})));
        });
      });
      EXPECT_THAT(text, HasSubstr("rank 0 failed: it cancelled all_reduce(f32[" + std::to_string(count) +
                                  "], sum) at cancel_test.cpp"));
    }
}

// One that is behind another in its group.
TEST_P(Cancel, ACollectiveThatWaitsForItsTurn) {
  EXPECT_THROW(spawn(2,
                     [] {
                       Tensor x = ones({5000}), y = ones({7});
                       barrier();
                       if (rank() == 1) {
                         Tensor word = zeros({1});
                         EXPECT_THROW(recv(word, 0), RankFailure);
                         return barrier();
                       }
                       Work first = all_reduce_async(x), second = broadcast_async(y);
                       EXPECT_TRUE(second.cancel());
                       EXPECT_THROW(second.wait(), CancelledError);
                       EXPECT_THROW(first.wait(), RankFailure);  // the world has failed
                     }),
               RankFailure);
}

TEST_P(Cancel, WhatIsDoneIsLeftAlone) {
  spawn(3, [] {
    for (int64_t count : {3, 100'000}) {
      Tensor x = ones({count});
      Work work = all_reduce_async(x);
      work.wait();
      EXPECT_FALSE(work.cancel());
      EXPECT_EQ(x[-1].item<float>(), 3);
      EXPECT_EQ(work.exception(), nullptr);
    }
    barrier();
  });
}

// A message that nobody asks for, and a receive that nobody sends to.
TEST_P(Cancel, MessagesAreTakenBackWithoutHarm) {
  spawn(2, [] {
    constexpr int64_t kCount = 100'000;
    Tensor x = full({kCount}, 5, {f32}), y = zeros({kCount});
    if (rank() == 0) {
      Work never = send_async(x, 1, {.tag = 7}), wanted = recv_async(y, 1, {.tag = 8});
      EXPECT_TRUE(never.cancel());
      EXPECT_FALSE(never.cancel());
      EXPECT_THROW(never.wait(), CancelledError);
      x.fill_(6);  // it is free
      EXPECT_TRUE(wanted.cancel());
      EXPECT_THROW(wanted.wait(), CancelledError);
      barrier();
      send(x, 1, {.tag = 7});
      recv(y, 1, {.tag = 8});
      EXPECT_EQ(y[kCount - 1].item<float>(), 9);
    } else {
      barrier();  // who asks for a message may begin to take it
      recv(y, 0, {.tag = 7});
      EXPECT_TRUE(equal(y, full({kCount}, 6, {f32})));
      send(full({kCount}, 9, {f32}), 0, {.tag = 8});
    }
    barrier();
  });
}

// A rank that is the failure itself is not told of another.
TEST_P(Cancel, ARankIsNotToldOfItselfAsOfAnother) {
  EXPECT_THROW(
      spawn(2,
            [] {
              Tensor x = ones({3});
              if (rank() == 1) {  // which must not have come to the collective before it is cancelled
                EXPECT_THROW(recv(x, 0, {.tag = 1}), RankFailure);
                return barrier();
              }
              Work other = recv_async(x, 1), work = all_reduce_async(ones({3}));
              EXPECT_TRUE(work.cancel());
              for (auto& text :
                   {message_of<RankFailure>([] { barrier(); }), message_of<RankFailure>([&] { other.wait(); })})
                EXPECT_THAT(text, AllOf(HasSubstr("this rank counts as failed: it cancelled all_reduce(f32[3]"),
                                        Not(HasSubstr("rank 0 failed"))));
            }),
      RankFailure);
}

}  // namespace
}  // namespace tutti
