// Ranks that are processes of a host: kills, ends, timeouts, what is left behind, and worlds from the environment.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/comm/started.h"
#include "tests/comm/ways.h"
#include "tests/support/entries.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

#ifndef TUTTI_SANITIZE_THREAD

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using namespace test;  // NOLINT
using Clock = std::chrono::steady_clock;

void spawn(int n, const std::function<void()>& body) { spawn_checked_processes(n, body, {}); }

int64_t shared_files() {
  int64_t count = 0;
  std::string prefix = "tutti-" + std::to_string(::getpid());
  for (auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    count += entry.path().filename().string().starts_with(prefix);
  return count;
}

TEST(Processes, AKilledRankFailsTheOthersAtOnce) {
  auto text = message_of<RankFailure>([] {
    spawn(4, [] {
      Tensor x = ones({100});
      for (int i = 0; i < 10; ++i) all_reduce(x, {.op = Reduce::max});
      if (rank() == 2) ::kill(::getpid(), SIGKILL);
      auto begin = Clock::now();
      EXPECT_THAT(message_of<RankFailure>([&] { all_reduce(x); }), HasSubstr("rank 2 failed: its process"));
      EXPECT_LT(Clock::now() - begin, 5s);  // 0.1 s where cores are free; by a timeout it would be minutes
      EXPECT_THROW(barrier(), RankFailure);
    });
  });
  EXPECT_THAT(text, AllOf(HasSubstr("rank 2 failed: its process"), HasSubstr("killed")));
  EXPECT_EQ(shared_files(), 0);
}

TEST(Processes, AreKilledInTheMiddleOfLargeCollectives) {
  for (int round = 0; round < 5; ++round)
    EXPECT_THROW(spawn(3,
                       [&] {
                         Tensor x = ones({3'000'000});
                         std::thread killer;
                         if (rank() == round % 3)
                           killer = std::thread([&] {
                             std::this_thread::sleep_for(std::chrono::milliseconds(5 * round));
                             ::kill(::getpid(), SIGKILL);
                           });
                         EXPECT_THROW(
                             {
                               while (true) all_reduce(x, {.op = Reduce::max});
                             },
                             RankFailure);
                         if (killer.joinable()) killer.join();
                       }),
                 RankFailure);
}

// Whether it had come or not: a rank that does not go on is named.
TEST(Processes, ARankThatStopsIsNamedByTheTimeout) {
  spawn(2, [] {
    Tensor x = ones({8'000'000});
    all_reduce(x, {.op = Reduce::max});
    if (rank() == 1 && ::fork() == 0) {
      std::this_thread::sleep_for(30ms);  // most of its time it is in the middle of a collective
      ::kill(::getppid(), SIGSTOP);
      std::this_thread::sleep_for(3500ms);
      ::kill(::getppid(), SIGCONT);
      ::_exit(0);
    }
    auto text = message_of<Error>([&] {
      while (true) all_reduce(x, {.op = Reduce::max, .timeout = 2s});
    });
    if (rank() == 0) {
      EXPECT_THAT(text, ContainsRegex("rank 1 (did not come|came, and stopped in the middle); its last"));
    } else {
      ::wait(nullptr);
    }
  });
}

// A thread of the library ends them, or the one that waits: whichever sees the failure first.
TEST(Processes, AFailureEndsAllThatWaitForMessages) {
  auto body = [] {
    std::vector<Work> works;
    barrier();
    if (rank() == 2) {
      std::this_thread::sleep_for(30ms);
      throw ValueError("no more");
    }
    try {
      for (int64_t tag = 0; tag < 500; ++tag) works.push_back(recv_async(ones({4}), 1 - rank(), {.tag = tag}));
    } catch (const RankFailure&) {  // already
    }
    while (!works.empty()) {
      EXPECT_THROW(works.back().wait(), RankFailure);
      works.pop_back();
    }
  };
  for (int round = 0; round < 8; ++round) EXPECT_THROW(spawn(3, body), ValueError);
}

TEST(Processes, ErrorsKeepClassRankAndText) {
  auto text = message_of<IndexError>([] {
    spawn(3, [] {
      barrier();
      if (rank() == 1) throw IndexError("this one");
      EXPECT_THAT(message_of<RankFailure>([] { barrier(); }), HasSubstr("rank 1 failed: this one"));
    });
  });
  EXPECT_EQ(text, "[rank 1] this one");
  text = message_of<RankFailure>([] {
    spawn(2, [] {
      if (rank() == 1) throw std::out_of_range("plain");
      EXPECT_THROW(barrier(), RankFailure);
    });
  });
  EXPECT_EQ(text, "rank 1 failed: plain");
  text = message_of<RankFailure>([] { spawn(2, [] { ::_exit(rank() ? 3 : 0); }); });
  EXPECT_THAT(text, HasSubstr("before its body did"));
}

TEST(Processes, MismatchesNameBothCalls) {
  spawn(2, [] {
    auto differ = [](const std::function<void()>& one, const std::function<void()>& two) {
      return message_of<MismatchError>(rank() == 0 ? one : two);
    };
    EXPECT_THAT(differ([] { all_reduce(ones({2, 3})); }, [] { broadcast(ones({2, 3})); }),
                AllOf(HasSubstr("ranks disagree in collective 0 of their group: they are different collectives"),
                      HasSubstr("rank 0: all_reduce(f32[2, 3], sum) at process_test.cpp:"),
                      HasSubstr("rank 1: broadcast(f32[2, 3], root 0) at process_test.cpp:")));
    EXPECT_THAT(differ([] { all_reduce(ones({200'000})); }, [] { all_reduce(ones({200'001})); }),
                HasSubstr("the shapes differ"));
    EXPECT_THAT(differ([] { all_gather(TensorList{ones({2}), ones({2})}, ones({2})); },
                       [] { all_gather(TensorList{ones({2}), ones({3})}, ones({3})); }),
                HasSubstr("rank 1 gives 3 elements where rank 0 takes 2"));
    Tensor x = ones({5});  // and all goes on
    all_reduce(x);
    EXPECT_EQ(x[4].item<double>(), 2);
  });
}

TEST(Processes, ATimeoutSaysWhoDidNotCome) {
  auto text = message_of<TimeoutError>([] {
    spawn(3, [] {
      barrier();
      if (rank() != 2) all_reduce(ones({4}), {.timeout = 100ms});
      std::this_thread::sleep_for(300ms);
    });
  });
  EXPECT_THAT(text, testing::ContainsRegex("rank [01] waited 0.1 s in collective 1, all_reduce\\(f32\\[4\\], sum\\) at "
                                           "process_test.cpp:"));
  EXPECT_THAT(text, HasSubstr("rank 2 did not come; its last call was collective 0 of this group, barrier at "
                              "process_test.cpp"));
}

TEST(Processes, ARankThatEndsIsNotWaitedFor) {
  auto text = message_of<RankFailure>([] {
    spawn(3, [] {
      if (rank() != 1) barrier();
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 1 failed: it ended without taking part in collective 0 of a group of 3"));
  text = message_of<RankFailure>([] {
    spawn(2, [] {
      if (rank() == 0) recv(ones({1}), 1);
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 1 failed: it ended without sending what rank 0 waits for: recv(f32[1]) at"));
}

TEST(Processes, MessagesTimeOutAndAreCancelled) {
  auto text = message_of<TimeoutError>([] {
    spawn(2, [] {
      if (rank() == 1) std::this_thread::sleep_for(300ms);
      if (rank() == 0) send(ones({100'000}), 1, {.timeout = 50ms});  // more than fits between them
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 0 waited 0.05 s for rank 1 to receive what it sends: send(f32[100000]) at"));
  spawn(2, [] {
    Tensor x = ones({4});
    if (rank() == 0) {
      Work never = recv_async(x, 1, {.tag = 9});
      EXPECT_FALSE(never.wait_for(30ms));
      EXPECT_TRUE(never.cancel());
      EXPECT_THROW(never.wait(), CancelledError);
    }
    barrier();
    Work work = barrier_async();
    work.wait();
    EXPECT_FALSE(work.cancel());
  });
}

// Descriptors, threads and shared files are back where they were.
TEST(Processes, GroupsComeAndGoThousandsOfTimes) {
  spawn(3, [] {
    barrier_async().wait();  // the process has one thread for works that nobody waits for
    barrier();
    auto descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int round = 0; round < 1000; ++round) {
      Group group = world().subgroup({2, 0, 1});
      Tensor x = full({3}, rank());
      all_reduce(x, {.group = group});
      ASSERT_EQ(x[0].item<double>(), 3);
      if (round % 100 == 0) all_reduce_async(x, {.group = group}).wait();
    }
    EXPECT_LE(entries("/proc/self/fd"), descriptors + 2);  // a rank that waits long looks after the two other processes
    EXPECT_LE(entries("/proc/self/task"), threads + 1);  // one that frees what a thread of its own was the last to hold
  });
  EXPECT_EQ(shared_files(), 0);
}

void all_reduce_and_draw_as(int n) {
  EXPECT_EQ(world_size(), n);
  EXPECT_EQ(world().transport(), "shm");
  Tensor x = full({50'000}, rank() + 1);
  all_reduce(x);
  EXPECT_TRUE(equal(x, full({50'000}, n * (n + 1) / 2)));
  Tensor a = rand({1}), b = a.clone();
  broadcast(b);
  EXPECT_EQ(rank() == 0, equal(a, b)) << "ranks have random numbers of their own";
}

TEST(Environment, RankAndWorldSize) {
  std::string port = std::to_string(reserved_port());
  std::vector<std::vector<std::pair<std::string, std::string>>> environments;
  for (int r = 0; r < 3; ++r)
    environments.push_back({{"RANK", std::to_string(r)},
                            {"WORLD_SIZE", "3"},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", port},
                            {"TUTTI_SECRET", "for this job"}});
  start_with(environments, [] { all_reduce_and_draw_as(3); });
}

TEST(Environment, ChoosesTheTransport) {
  if (!comm::has_ucx() || !comm::has_gloo()) GTEST_SKIP() << "this build has not both engines, UCX and Gloo";
  for (std::string transport : {"ucx", "gloo"})
    start_with(ranks_of(2, [&](int) { return Variables{{"TUTTI_TRANSPORT", transport}, {"TUTTI_EPOCH", "3"}}; }), [&] {
      EXPECT_EQ(world().transport(), transport);
      Tensor x = full({50'000}, rank() + 1);
      all_reduce(x);
      EXPECT_TRUE(equal(x, full({50'000}, 3)));
    });
  // Hosts by name.
  start_with(ranks_of(4, [](int r) { return Variables{{"TUTTI_HOST", r % 2 ? "odd" : "even"}}; }), [] {
    EXPECT_EQ(world().transport(), "shm+ucx");
    EXPECT_EQ(world().subgroup({1, 3}).transport(), "shm");
    Tensor x = full({50'000}, rank() + 1);
    all_reduce(x);
    EXPECT_TRUE(equal(x, full({50'000}, 10)));
  });
}

TEST(Environment, RanksThatDisagreeAreNamed) {
  start_with(ranks_of(3,
                      [](int r) {
                        return r == 2 ? Variables{{"TUTTI_TRANSPORT", "gloo"}} : Variables{{"TUTTI_TRANSPORT", "ucx"}};
                      }),
             [] {
               EXPECT_THAT(
                   message_of<ValueError>([] { world(); }),
                   HasSubstr("ranks disagree: TUTTI_TRANSPORT is 'ucx' for rank 0, but 'gloo' for rank 2; set it"));
             });
  start_with(
      ranks_of(2, [](int r) { return Variables{{"TUTTI_TRANSPORT", "shm"}, {"TUTTI_HOST", std::to_string(r)}}; }), [] {
        EXPECT_THAT(message_of<ValueError>([] { world(); }),
                    HasSubstr("TUTTI_TRANSPORT is shm, but rank 1 is on another host than rank 0: use shm+ucx"));
      });
  start_with(ranks_of(3, [](int) { return Variables{{"TUTTI_TRANSPORT", "tcp"}}; }),
             [] { EXPECT_THAT(message_of<ValueError>([] { world(); }), HasSubstr("the transport 'tcp' is none of")); });
}

TEST(Environment, WhatWentWrongIsSaidAgain) {
  start_with({{{"RANK", "0"}, {"WORLD_SIZE", "2"}}}, [] {
    std::string first = message_of<ValueError>([] { world(); });
    EXPECT_THAT(first, HasSubstr("nothing says where they meet"));
    EXPECT_EQ(message_of<ValueError>([] { rank(); }), first);
  });
}

TEST(Environment, ARankThatDoesNotComeIsNamed) {
  auto ranks = ranks_of(3, [](int) { return Variables{{"TUTTI_TIMEOUT", "3"}}; });
  ranks.erase(ranks.begin() + 1);
  start_with(ranks, [] {
    std::string text = message_of<Error>([] { world(); });
    // Both give up at the same time: who is first has failed for the other, or takes the store with it.
    EXPECT_THAT(text, testing::AnyOf(HasSubstr("for all 3 ranks to come: rank 1 did not. Were all started"),
                                     HasSubstr("rank 0 failed"), HasSubstr("rank 2 failed")));
  });
}

TEST(Environment, ARankZeroThatRunsAlreadyIsSaid) {
  TcpStore other({.serve = true});
  auto ranks = ranks_of(2, [&](int) { return Variables{{"MASTER_PORT", std::to_string(other.port())}}; });
  ranks.resize(1);
  start_with(ranks, [] {
    EXPECT_THAT(
        message_of<ConnectionError>([] { world(); }),
        testing::ContainsRegex("rank 0 of 2 \\(by .*\\) cannot open the store where ranks meet: .*Address already "
                               "in use. Does rank 0 of this job run already"));
  });
}

TEST(Environment, NobodyWhereRanksMeetIsSaid) {
  auto ranks = ranks_of(2, [](int) { return Variables{{"TUTTI_TIMEOUT", "0.3"}}; });
  ranks.erase(ranks.begin());
  start_with(ranks, [] {
    EXPECT_THAT(message_of<ConnectionError>([] { world(); }),
                testing::ContainsRegex(
                    "rank 1 of 2 \\(by .*\\) did not reach the store of rank 0, where ranks meet: .*no server at "
                    "127.0.0.1:[0-9]+ in 0.3 s: Connection refused. Is rank 0 started, with the same "
                    "MASTER_ADDR, MASTER_PORT and TUTTI_SECRET.*TUTTI_TIMEOUT"));
  });
}

// Long before the others' timeout.
TEST(Environment, ARankThatEndsAtTheStartIsNamed) {
  auto ranks = ranks_of(3, [](int r) {
    return Variables{{"TUTTI_TIMEOUT", "100"}, {"TUTTI_TRANSPORT", r == 1 ? "a rank that goes" : "ucx"}};
  });
  auto began = std::chrono::steady_clock::now();
  start_with(ranks, [] {
    if (std::string(std::getenv("RANK")) == "1") {
      TcpStore store({.host = "127.0.0.1",
                      .port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT"))),
                      .timeout = std::chrono::seconds(60)});
      store.leave_will("0/failed", "1\nRankFailure\nits process ended while the ranks were meeting", "", {});
      return;  // the connection ends, and with it this rank
    }
    EXPECT_THAT(message_of<RankFailure>([] { world(); }),
                HasSubstr("rank 1 failed: its process ended while the ranks"));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
}

TEST(Environment, WhatMakesNoSenseIsSaid) {
  using testing::ContainsRegex;
  auto says = [](std::vector<std::pair<std::string, std::string>> variables, const char* text) {
    start_with({variables}, [&] { EXPECT_THAT(message_of<ValueError>([] { world(); }), ContainsRegex(text)); });
  };
  says({{"RANK", "one"}, {"WORLD_SIZE", "2"}}, "the environment variable RANK is 'one', which is not a whole number");
  says({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK is 2 and WORLD_SIZE is 2: ranks are numbered from 0");
  says({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "nothing says where they meet: set MASTER_ADDR and MASTER_PORT");
  says({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "x"}}, "MASTER_PORT does not name a port");
  Variables meeting{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29519"}};
  auto with = [&](Variables more) {
    more.insert(more.end(), meeting.begin(), meeting.end());
    return more;
  };
  says(with({{"TUTTI_TRANSPORT", "tcp"}}), "the transport 'tcp' is none of shm, ucx, gloo, shm.ucx and shm.gloo");
  says(with({{"TUTTI_TIMEOUT", "soon"}}), "TUTTI_TIMEOUT is 'soon', which is not a time in seconds");
  says({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29519"}},
       "ranks meet at node0, where others can come too: set TUTTI_SECRET");
}

}  // namespace
}  // namespace tutti

#endif
