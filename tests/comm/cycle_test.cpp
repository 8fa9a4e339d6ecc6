// Ranks that wait for each other in a circle are told so, long before their timeout; others are left alone.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using namespace test;  // NOLINT
using Clock = std::chrono::steady_clock;

struct Cycles : testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, Cycles, testing::ValuesIn(one_host_ways()), testing::PrintToStringParamName());

// All ranks that make this get the error, and it says this.
void expect_cycle(const Way& way, int n, const std::function<void()>& body, const testing::Matcher<std::string>& says) {
  auto begin = Clock::now();
  auto on_each = [&] {
    EXPECT_THAT(message_of<DeadlockError>(body), says) << "rank " << rank();
    EXPECT_THROW(barrier(), DeadlockError);
  };
  try {
    way.spawn(n, on_each, {});
  } catch (const DeadlockError& e) {  // a world of processes that has failed ends so whatever its bodies caught
    EXPECT_THAT(e.what(), says);
  }
  EXPECT_LT(Clock::now() - begin, 60s);  // the timeout would be five minutes
}

TEST_P(Cycles, AcrossGroups) {
  auto body = [] {
    Group one = world().subgroup({0, 1}), two = world().subgroup({1, 0});
    Tensor x = ones({4});
    if (rank() == 0)
      all_reduce(x, {.group = one});
    else
      broadcast(x, {.group = two});
  };
  expect_cycle(
      GetParam(), 2, body,
      AllOf(HasSubstr("ranks wait for each other in a circle:"),
            ContainsRegex("rank 0 waits for rank 1 in collective 0 of a group, all_reduce\\(f32\\[4\\], sum\\) at "
                          "cycle_test.cpp:[0-9]+"),
            ContainsRegex("rank 1 waits for rank 0 in collective 0 of a group, broadcast\\(f32\\[4\\], root 0\\) at "
                          "cycle_test.cpp:[0-9]+")));
}

TEST_P(Cycles, OfThreeRanksAndOneBesideThem) {
  auto body = [] {
    int n = 3;
    Tensor x = ones({100'000});
    if (rank() == 3) barrier();  // waits for the others, who are in the circle
    recv(x, (rank() + 1) % n);
    send(x, (rank() + n - 1) % n);
  };
  expect_cycle(GetParam(), 4, body,
               AllOf(ContainsRegex("rank 0 waits for rank 1 in recv\\(f32\\[100000\\]\\) at cycle_test.cpp:"),
                     ContainsRegex("rank 1 waits for rank 2 in recv"), ContainsRegex("rank 2 waits for rank 0 in recv"),
                     testing::Not(HasSubstr("rank 3 waits"))));
}

TEST_P(Cycles, OfMessagesAndCollectives) {
  auto body = [] {
    Tensor x = ones({10});
    if (rank() == 0) recv(x, 1, {.tag = 3});
    barrier();
    send(x, 0, {.tag = 3});
  };
  expect_cycle(GetParam(), 2, body,
               AllOf(HasSubstr("rank 0 waits for rank 1 in recv(f32[10])"),
                     HasSubstr("rank 1 waits for rank 0 in collective 0 of a group, barrier at")));
}

// Large messages are not kept on the way, so their senders wait for the receiver.
TEST_P(Cycles, OfLargeSends) {
  auto body = [] {
    Tensor x = ones({1'000'000});
    send(x, 1 - rank());
    recv(x, 1 - rank());
  };
  expect_cycle(GetParam(), 2, body,
               AllOf(HasSubstr("rank 0 waits for rank 1 in send"), HasSubstr("rank 1 waits for rank 0 in send")));
}

TEST_P(Cycles, OfAsynchronousWork) {
  auto body = [] {
    Group pair = world().subgroup({0, 1});
    Tensor x = ones({100'000}), y = ones({3});
    if (rank() == 0) {
      Work work = all_reduce_async(x);
      work.wait();
    } else {
      all_reduce(y, {.group = pair});
    }
  };
  expect_cycle(GetParam(), 2, body,
               AllOf(HasSubstr("all_reduce(f32[100000], sum)"), HasSubstr("all_reduce(f32[3], sum)")));
}

TEST_P(Cycles, OfReceivesFromAny) {
  auto body = [] {
    Tensor x = ones({3});
    recv(x, -1);
  };
  expect_cycle(GetParam(), 3, body, HasSubstr("(or another) in recv(f32[3])"));
}

// What looks like a circle, but is none.

TEST_P(Cycles, ASlowRankIsNoCycle) {
  GetParam().spawn(3,
                   [] {
                     Tensor x = ones({4});
                     if (rank() == 2) std::this_thread::sleep_for(1500ms);
                     all_reduce(x);
                     EXPECT_EQ(x[0].item<double>(), 3);
                     if (rank() == 0) recv(x, -1);
                     if (rank() == 1) {
                       std::this_thread::sleep_for(1500ms);
                       send(x, 0);
                     }
                     barrier();
                   },
                   {});
}

#ifndef TUTTI_SANITIZE_THREAD  // whose own thread always runs: there others are not asked
// Rank 0 waits for rank 1 and rank 1 for rank 0, but another thread of rank 0 is about to come.
TEST_P(Cycles, AThreadThatWorksMayCome) {
  GetParam().spawn(2,
                   [] {
                     Group one = world().subgroup({0, 1}), two = world().subgroup({1, 0});
                     Tensor x = ones({4}), y = ones({4});
                     if (rank() == 0) {
                       std::thread helper([&] {
                         volatile double sum = 0;
                         for (auto begin = Clock::now(); Clock::now() - begin < 1500ms;) sum = sum + 1;
                         all_reduce(y, {.group = two});
                       });
                       all_reduce(x, {.group = one});
                       helper.join();
                     } else {
                       all_reduce(y, {.group = two});
                       all_reduce(x, {.group = one});
                     }
                     EXPECT_EQ(x[0].item<double>() + y[0].item<double>(), 4);
                   },
                   {});
}
#endif

TEST_P(Cycles, WaitsThatGiveUpAreNoCycle) {
  GetParam().spawn(2,
                   [] {
                     Tensor x = ones({4});
                     if (rank() == 0) {
                       Work work = recv_async(x, 1);
                       for (int i = 0; i < 3; ++i) EXPECT_FALSE(work.wait_for(400ms));
                       barrier();
                       work.wait();
                     } else {
                       barrier();
                       send(x, 0);
                     }
                   },
                   {});
}

TEST_P(Cycles, AMessageThatTakesLongIsNoCycle) {
  GetParam().spawn(2,
                   [] {
                     Tensor x = ones({64'000'000});
                     Work work;
                     if (rank() == 1) work = send_async(x, 0);
                     if (rank() == 0) recv(x, 1);
                     barrier();
                     if (work.defined()) work.wait();
                   },
                   {});
}

#ifndef TUTTI_SANITIZE_THREAD
// Rank 1 has what it waits for, but gets no time to see it.
TEST(CyclesOfProcesses, AStoppedProcessIsNone) {
  auto body = [] {
    Tensor mine = full({1}, ::getpid(), {.dtype = DType::i64}), all = zeros({3}, {.dtype = DType::i64}), x = ones({4});
    all_gather(all, mine);
    if (rank() == 2) {
      std::this_thread::sleep_for(800ms);  // the others have written down what they wait for
      auto stopped = static_cast<pid_t>(all[1].item<int64_t>());
      ::kill(stopped, SIGSTOP);
      if (::fork() == 0) {
        std::this_thread::sleep_for(1500ms);
        ::kill(stopped, SIGCONT);
        ::_exit(0);
      }
      send(x, 1);
    }
    recv(x, (rank() + 1) % 3);
    if (rank() != 2) send(x, (rank() + 2) % 3);
    if (rank() == 2) ::wait(nullptr);
  };
  spawn_checked_processes(3, body, {});
}
#endif

}  // namespace
}  // namespace tutti
