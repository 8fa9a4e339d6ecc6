// Faults on purpose: each kind, at a call or by chance, on every transport; and their text in the environment.
#include "tutti/comm/fault.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using namespace test;  // NOLINT
using Clock = std::chrono::steady_clock;

struct Faults : testing::TestWithParam<Way> {
  void spawn(int n, const std::function<void()>& body, const SpawnOptions& options) {
    GetParam().spawn(n, body, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, Faults, every_way(), testing::PrintToStringParamName());

TEST_P(Faults, ADelayMakesARankLateAndNothingElse) {
  spawn(3,
        [] {
          Tensor x = ones({4});
          auto begin = Clock::now();
          for (int i = 0; i < 4; ++i) all_reduce(x, {.op = Reduce::max});
          EXPECT_GE(Clock::now() - begin, 60ms);  // all wait for the late one
          EXPECT_EQ(x[3].item<double>(), 1);
        },
        {.faults = {{.kind = Fault::delay, .rank = 1, .call = 2, .time = 60ms}}});
}

TEST_P(Faults, AFaultIsThrownAtTheCallItIsFor) {
  auto text = message_of<InjectedError>([&] {
    spawn(2,
          [] {
            Tensor x = ones({4});
            all_reduce(x);
            barrier();
            all_reduce(x);
            EXPECT_EQ(x[0].item<double>(), 4) << "the fault came too early";
            all_reduce(x);
            ADD_FAILURE() << "the fault did not come";
          },
          {.faults = {{.kind = Fault::fail, .rank = 1, .call = 2, .collective = "all_reduce"}}});
  });
  EXPECT_THAT(text, AllOf(HasSubstr("[rank 1]"), HasSubstr("an injected fault at call 2, all_reduce(f32[4], sum) at "
                                                           "fault_test.cpp:")));
}

TEST_P(Faults, AKilledRankFailsAllOthers) {
  std::string text;
  try {
    spawn(3,
          [] {
            for (int i = 0; i < 10; ++i) barrier();
            EXPECT_THAT(message_of<RankFailure>([] {
                          while (true) barrier();
                        }),
                        HasSubstr("rank 2 failed: "));
          },
          {.faults = {{.kind = Fault::kill, .rank = 2, .call = 20}}});
  } catch (const Error& e) {
    text = e.what();
  }
  // A thread's rank throws; a process is no more.
  EXPECT_THAT(text, testing::AnyOf(HasSubstr("an injected fault at call 20, barrier"), HasSubstr("was killed")));
}

TEST_P(Faults, ALostMessageNeverArrives) {
  auto text = message_of<TimeoutError>([&] {
    spawn(2,
          [] {
            Tensor x = zeros({3});
            if (rank() == 0) {
              send(ones({3}), 1);
              send(full({3}, 2.0), 1, {.tag = 1});
              EXPECT_THROW(barrier(), RankFailure);
            } else {
              recv(x, 0, {.tag = 1});
              EXPECT_EQ(x[0].item<double>(), 2);
              recv(x, 0, {.timeout = 50ms});
            }
          },
          {.faults = {{.kind = Fault::drop, .rank = 0, .call = 0, .collective = "send"}}});
  });
  EXPECT_THAT(text, HasSubstr("rank 1 waited 0.05 s for rank 0 to send: recv(f32[3])"));
}

TEST_P(Faults, ALostPartOfACollectiveIsMissed) {
  auto text = message_of<MismatchError>([&] {
    spawn(2,
          [] {
            Tensor x = ones({3});
            all_reduce(x);  // rank 0's is lost: its next call meets rank 1's first
            EXPECT_EQ(x[0].item<double>(), 1) << "only rank 0 comes here";
            broadcast(x);
          },
          {.faults = {{.kind = Fault::drop, .rank = 0, .call = 0}}});
  });
  EXPECT_THAT(text, AllOf(HasSubstr("all_reduce(f32[3], sum)"), HasSubstr("broadcast(f32[3], root 0)")));
}

// Which calls are struck depends on the seed and the rank, and on nothing else.
TEST(FaultsOfThreads, ChanceIsSeeded) {
  auto struck = [&](uint64_t seed) {
    std::vector<Fault> faults{{.kind = Fault::fail, .probability = 0.2}};
    std::array<std::vector<int>, 2> calls;
    spawn_ranks(2, [&] {
      Group alone = world().split(rank());
      InjectFaults guard(faults, seed);
      for (int i = 0; i < 100; ++i) try {
          barrier({.group = alone});
        } catch (const InjectedError&) {
          calls[static_cast<size_t>(rank())].push_back(i);
        }
    });
    return calls;
  };
  auto one = struck(1);
  EXPECT_EQ(one, struck(1));
  EXPECT_NE(one, struck(2));
  EXPECT_NE(one[0], one[1]);
  for (auto& list : one) {
    EXPECT_GT(list.size(), 5u);
    EXPECT_LT(list.size(), 45u);
  }
}

TEST_P(Faults, EndWithTheirGuard) {
  spawn(2,
        [] {
          {
            InjectFaults guard({{.kind = Fault::fail, .call = 1}});
            barrier();
            EXPECT_THROW(barrier(), InjectedError);
            EXPECT_NO_THROW(barrier());
          }
          InjectFaults other({{.kind = Fault::fail, .rank = 7, .call = 0}});
          EXPECT_NO_THROW(barrier());
          EXPECT_NO_THROW(barrier_async().wait());
        },
        {});
}

TEST_P(Faults, MeetAsynchronousCalls) {
  spawn(2,
        [] {
          InjectFaults guard({{.kind = Fault::fail, .call = 1}});
          Tensor x = ones({2});
          Work work = all_reduce_async(x);
          EXPECT_THROW(all_reduce_async(x), InjectedError);
          work.wait();
          EXPECT_EQ(x[0].item<double>(), 2);
        },
        {});
}

TEST(FaultText, IsParsed) {
  FaultPlan plan =
      parse_faults("seed=7; kill rank=2 call=100;delay probability=0.01 ms=2.5 ; drop collective=send call=3;");
  EXPECT_EQ(plan.seed, 7u);
  ASSERT_EQ(plan.faults.size(), 3u);
  EXPECT_EQ(plan.faults[0].kind, Fault::kill);
  EXPECT_EQ(plan.faults[0].rank, 2);
  EXPECT_EQ(plan.faults[0].call, 100);
  EXPECT_EQ(plan.faults[1].kind, Fault::delay);
  EXPECT_EQ(plan.faults[1].rank, -1);
  EXPECT_EQ(plan.faults[1].probability, 0.01);
  EXPECT_EQ(plan.faults[1].time, 2500us);
  EXPECT_EQ(plan.faults[2].collective, "send");
  EXPECT_TRUE(parse_faults("").faults.empty());
}

TEST(FaultText, SaysWhatItDoesNotKnow) {
  auto says = [](const char* text) { return message_of<ValueError>([&] { parse_faults(text); }); };
  EXPECT_THAT(says("explode rank=2 call=1"),
              HasSubstr("'explode' is no kind of fault: delay, drop, fail and kill are"));
  EXPECT_THAT(says("kill rank=two call=1"), HasSubstr("'two' is not a number in 'rank=two'"));
  EXPECT_THAT(says("kill where=2 call=1"), HasSubstr("'where=2' says nothing about a fault"));
  EXPECT_THAT(says("kill rank=2"), HasSubstr("at the call of one number (from 0 on) or with a probability"));
  EXPECT_THAT(says("kill call=1 probability=0.5"), HasSubstr("one of them is to be given"));
  EXPECT_THAT(says("delay probability=1.5"), HasSubstr("the probability 1.5 is not between 0 and 1"));
  EXPECT_THAT(says("drop collective=all_redcue call=0"), HasSubstr("there is no collective called 'all_redcue'"));
}

TEST(FaultText, IsTakenFromTheEnvironment) {
  ::setenv("TUTTI_FAULTS", "fail rank=1 call=2", 1);
  auto text = message_of<InjectedError>([] {
    spawn_ranks(2, [] {
      for (int i = 0; i < 3; ++i) barrier();
    });
  });
  ::unsetenv("TUTTI_FAULTS");
  EXPECT_THAT(text, HasSubstr("[rank 1]"));
  EXPECT_THAT(text, HasSubstr("at call 2, barrier"));
}

#ifndef TUTTI_SANITIZE_THREAD
void read_nothing() { throw FileError("no such file"); }

// A program that others started, and that dies of an error nobody catches: the other ranks are told which.
TEST(Uncaught, ErrorsAreToldToTheOthers) {
  std::string port = std::to_string(TcpStore({.serve = true}).port());
  std::vector<pid_t> children;
  for (int r = 0; r < 2; ++r) {
    pid_t pid = ::fork();
    if (pid == 0) {
      ::setenv("RANK", std::to_string(r).c_str(), 1);
      ::setenv("WORLD_SIZE", "2", 1);
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
      ::setenv("MASTER_PORT", port.c_str(), 1);
      [r]() noexcept {  // what leaves main() has the same end
        barrier();
        if (r == 1) read_nothing();
        std::string text = message_of<RankFailure>([] { barrier(); });
        std::_Exit(text.starts_with("[rank 0] rank 1 failed: no such file\n") ? 0 : 3);
      }();
    }
    children.push_back(pid);
  }
  int status = 0;
  ::waitpid(children[0], &status, 0);
  EXPECT_EQ(status, 0);
  ::waitpid(children[1], &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
}
#endif

// Rows that a sparse all_reduce has lost are missed, and not looked for where there are none.
TEST(FaultsOfThreads, LostRowsOfASparseTensorAreAnError) {
  std::string text;
  spawn_ranks(1,
              [&] {
                Tensor x = sparse_coo(full({1, 1}, 3, {i64}), ones({1}), {5});
                text = message_of<MismatchError>([&] { all_reduce(x); });
              },
              {.faults = {{.kind = Fault::drop, .rank = 0, .call = 1}}});
  EXPECT_THAT(text, HasSubstr("row 3 of this rank is not among those that came from all ranks"));
}

}  // namespace
}  // namespace tutti
