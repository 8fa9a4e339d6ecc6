// Calls that wait for their turn behind others of their rank: their time is over when they said, not later.
#include <atomic>
#include <thread>

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

class Turns : public EveryWay {
 protected:
  /// Rank 0 does this; rank 1 comes to no collective, and stays until the other's failure ends it.
  static void alone(const std::function<void()>& body) {
    auto both = [&] {
      Tensor word = zeros({1});
      barrier();
      if (rank() == 0)
        body();
      else
        EXPECT_THROW(recv(word, 0, {.tag = 9}), RankFailure);
    };
    try {
      spawn(2, both, {.timeout = 20s});
    } catch (const Error& e) {  // some ways also tell who started them
      EXPECT_THAT(e.what(), HasSubstr("rank 0 waited 0.2 s"));
    }
  }
  static auto says_who_did_not_come() {
    return AllOf(HasSubstr("rank 0 waited 0.2 s in collective 2, all_reduce(f32[5], sum) at turns_test.cpp"),
                 HasSubstr("rank 1 did not come"), HasSubstr("its last call was recv(f32[1]) at turns_test.cpp"),
                 Not(HasSubstr("rank 0 did not come")));
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, Turns, every_way(), name_way);

TEST_P(Turns, ACallBehindAnotherEndsInTime) {
  for (int64_t count : {3, 100'000})
    alone([&] {
      Tensor x = ones({count}), y = ones({5});
      Work first = all_reduce_async(x);
      EXPECT_THAT(message_of<TimeoutError>([&] { all_reduce(y, {.timeout = 200ms}); }), says_who_did_not_come());
      EXPECT_THROW(first.wait(), RankFailure);  // the world has failed, as it does when any other call is late
      EXPECT_THROW(all_reduce(y), RankFailure);
    });
}

TEST_P(Turns, SoDoesAnAsynchronousOneThatIsWaitedFor) {
  alone([] {
    Tensor x = ones({3}), y = ones({5});
    Work first = all_reduce_async(x), second = all_reduce_async(y, {.timeout = 200ms}), third = all_reduce_async(x);
    EXPECT_THAT(message_of<TimeoutError>([&] { second.wait(); }), says_who_did_not_come());
    EXPECT_THROW(first.wait(), RankFailure);
    EXPECT_THROW(third.wait(), RankFailure);
  });
}

// One thread looks after all works that nobody waits for: it waits for none of them.
TEST_P(Turns, SoDoesOneThatNobodyWaitsFor) {
  alone([] {
    Tensor x = ones({3}), y = ones({5}), z = ones({1});
    Work first = all_reduce_async(x), second = all_reduce_async(y, {.timeout = 200ms}), message = recv_async(z, 1);
    while (!second.done() || !message.done()) std::this_thread::sleep_for(1ms);
    EXPECT_THAT(message_of<TimeoutError>([&] { std::rethrow_exception(second.exception()); }), says_who_did_not_come());
    EXPECT_THROW(message.wait(), RankFailure);
    EXPECT_THROW(first.wait(), RankFailure);
  });
}

TEST_P(Turns, SoDoesACallBehindThatOfAnotherThread) {
  for (int64_t count : {3, 100'000})
    alone([&] {
      Tensor x = ones({count}), y = ones({5});
      Context mine = context();
      std::thread other([&] {
        ContextGuard guard(mine);
        EXPECT_THROW(all_reduce(x), RankFailure);
      });
      std::this_thread::sleep_for(100ms);
      EXPECT_THAT(message_of<TimeoutError>([&] { all_reduce(y, {.timeout = 200ms}); }),
                  AllOf(HasSubstr("rank 0 waited 0.2 s in collective"), HasSubstr("rank 1 did not come"),
                        Not(HasSubstr("rank 0 did not come"))));
      other.join();
    });
}

// What takes its turn in time is done, whoever called it.
TEST_P(Turns, CallsThatAreInTimeAreDoneInOrder) {
  spawn(2,
        [] {
          for (int64_t count : {3, 100'000}) {
            Tensor x = ones({count}), y = ones({5}), z = ones({count});
            if (rank() == 1) std::this_thread::sleep_for(50ms);
            Work first = all_reduce_async(x, {.timeout = 15s});
            all_reduce(y, {.timeout = 15s});
            all_reduce(z);
            first.wait();
            EXPECT_EQ(x[-1].item<float>() + y[-1].item<float>() + z[-1].item<float>(), 6);
          }
        },
        {.timeout = 20s});
}

}  // namespace
}  // namespace tutti
