// Ranks that need not share a host, by every engine: failures, ends, timeouts, messages, layouts of ranks over hosts.
#include "comm/transport/hosts.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "comm/algorithm/reduce.h"
#include "tests/comm/fingerprint.h"
#include "tests/comm/started.h"
#include "tests/comm/ways.h"
#include "tests/support/entries.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"
#include "tutti/testing.h"

#ifndef TUTTI_SANITIZE_THREAD

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using namespace test;  // NOLINT
using Clock = std::chrono::steady_clock;

struct Engine {
  const char* name;
  const char* transport;
  bool shares;  // ranks of a host share memory
  friend std::ostream& operator<<(std::ostream& out, const Engine& e) { return out << e.name; }
};

std::vector<Engine> engines() {
  std::vector<Engine> list;
  if (comm::has_ucx()) list = {{"ucx", "ucx", false}, {"shm_ucx", "shm+ucx", true}};
  if (comm::has_gloo()) list.push_back({"gloo", "gloo", false});
  return list;
}

class Engines : public testing::TestWithParam<Engine> {
 protected:
  static void spawn(int n, const std::function<void()>& body, std::chrono::milliseconds silence = 5s) {
    SpawnOptions options{.transport = GetParam().transport, .silence = silence};
    if (GetParam().shares)
      for (int r = 0; r < n; ++r) options.hosts.push_back(r % 2);
    spawn_checked_processes(n, body, options);
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Engines);
INSTANTIATE_TEST_SUITE_P(Hosts, Engines, testing::ValuesIn(engines()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Engines, AKilledRankFailsTheOthers) {
  auto text = message_of<RankFailure>([] {
    spawn(4, [] {
      Tensor x = ones({100});
      for (int i = 0; i < 10; ++i) all_reduce(x, {.op = Reduce::max});
      if (rank() == 2) ::kill(::getpid(), SIGKILL);
      auto begin = Clock::now();
      EXPECT_THAT(message_of<RankFailure>([&] { all_reduce(x); }), HasSubstr("rank 2 failed: its process"));
      EXPECT_LT(Clock::now() - begin, 5s);  // some ms; by a timeout it would be minutes
      EXPECT_THROW(barrier(), RankFailure);
    });
  });
  EXPECT_THAT(text, AllOf(HasSubstr("rank 2 failed: its process"), HasSubstr("killed")));
}

TEST_P(Engines, AreKilledInTheMiddleOfLargeCollectives) {
  for (int round = 0; round < 5; ++round)
    EXPECT_THROW(spawn(3,
                       [&] {
                         Tensor x = ones({3'000'000});
                         std::thread killer;
                         if (rank() == round % 3)
                           killer = std::thread([&] {
                             std::this_thread::sleep_for(std::chrono::milliseconds(15 * round));
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

// A host that stops says nothing: it is given up after the time that is set, and no sooner than that.
TEST_P(Engines, ARankThatFallsSilentFailsTheOthers) {
  auto run = [] {
    spawn(
        3,
        [] {
          barrier();
          if (rank() == 1) {
            pid_t child = ::fork();  // wakes it up when all is over, so that it can end
            if (child == 0) {
              std::this_thread::sleep_for(2500ms);
              ::kill(::getppid(), SIGCONT);
              ::_exit(0);
            }
            ::kill(::getpid(), SIGSTOP);
            // What the others said to the first before they gave up may be here, and enough.
            EXPECT_THROW((barrier(), barrier()), RankFailure);
            return;
          }
          auto begin = Clock::now();
          EXPECT_THAT(message_of<RankFailure>([] { barrier(); }),
                      HasSubstr("rank 1 failed: nothing was heard of it for 1 s"));
          EXPECT_LT(Clock::now() - begin, 5s);
        },
        1s);
  };
  // Whoever was stopped may find its world gone when it wakes up, and then does not end well.
  std::string text = message_of<RankFailure>(run);
  EXPECT_THAT(text, testing::AnyOf("nothing was thrown", HasSubstr("rank 1 failed: nothing was heard of it")));
}

TEST_P(Engines, ErrorsKeepClassRankAndText) {
  auto text = message_of<IndexError>([] {
    spawn(3, [] {
      barrier();
      if (rank() == 1) throw IndexError("this one");
      EXPECT_THAT(message_of<RankFailure>([] { barrier(); }), HasSubstr("rank 1 failed: this one"));
    });
  });
  EXPECT_EQ(text, "[rank 1] this one");
  text = message_of<RankFailure>([] { spawn(2, [] { ::_exit(rank() ? 3 : 0); }); });
  EXPECT_THAT(text, HasSubstr("ended"));
}

TEST_P(Engines, MismatchesNameBothCalls) {
  spawn(3, [] {
    auto differ = [](const std::function<void()>& one, const std::function<void()>& two) {
      return message_of<MismatchError>(rank() == 0 ? one : two);
    };
    EXPECT_THAT(differ([] { all_reduce(ones({2, 3})); }, [] { broadcast(ones({2, 3})); }),
                AllOf(HasSubstr("ranks disagree in collective 0 of their group: they are different collectives"),
                      HasSubstr("rank 0: all_reduce(f32[2, 3], sum) at hosts_test.cpp:"),
                      HasSubstr("ranks 1, 2: broadcast(f32[2, 3], root 0) at hosts_test.cpp:")));
    EXPECT_THAT(differ([] { all_reduce(ones({200'000})); }, [] { all_reduce(ones({200'001})); }),
                HasSubstr("the shapes differ"));
    Tensor x = ones({50'000});  // and all goes on
    all_reduce(x);
    EXPECT_EQ(x[4].item<double>(), 3);
  });
}

// Who writes tests says after what silence a host is lost; otherwise it is what a crowded machine needs.
TEST_P(Engines, TheSilenceOfATestIsWhatItsOptionsSay) {
  auto silence = [](const SpawnOptions& options, const harness::Runner& runner) {
    Shared<std::atomic<int>> seen;
    runner.run(
        2,
        [&] {
          *seen = static_cast<int>(
              dynamic_cast<comm::HostsGroup&>(*world().handle()->group).hosts().options().silence.count());
        },
        options);
    return int{*seen};
  };
  std::string transport = GetParam().transport;
  EXPECT_EQ(silence({}, harness::hosts(transport)), 5'000);
  EXPECT_EQ(silence({.silence = 3s}, harness::hosts(transport)), 3'000);
  EXPECT_EQ(silence({.silence = 8s}, harness::hosts(transport)), 8'000);
  EXPECT_EQ(silence({}, harness::hosts(transport, 1s)), 1'000);
}

TEST_P(Engines, ATimeoutSaysWhoDidNotComeAndWhatItDid) {
  auto text = message_of<TimeoutError>([] {
    spawn(3, [] {
      barrier();
      if (rank() != 2) all_reduce(ones({4}), {.timeout = 200ms});
      std::this_thread::sleep_for(600ms);
    });
  });
  EXPECT_THAT(text, testing::ContainsRegex("rank [01] waited 0.2 s in collective 1, all_reduce\\(f32\\[4\\], sum\\) at "
                                           "hosts_test.cpp:"));
  EXPECT_THAT(text, HasSubstr("rank 2 did not come; its last call was collective 0 of this group, barrier at "
                              "hosts_test.cpp"));
}

TEST_P(Engines, ARankThatEndsIsNotWaitedFor) {
  auto text = message_of<RankFailure>([] {
    spawn(
        3,
        [] {
          if (rank() != 1) barrier();
        },
        1s);
  });
  EXPECT_THAT(text, HasSubstr("rank 1 failed: it ended without taking part in collective 0 of a group of 3"));
  text = message_of<RankFailure>([] {
    spawn(
        2,
        [] {
          if (rank() == 0) recv(ones({1}), 1);
        },
        1s);
  });
  EXPECT_THAT(text, HasSubstr("rank 1 failed: it ended without sending what rank 0 waits for: recv(f32[1]) at"));
}

TEST_P(Engines, MessagesTimeOutAndAreCancelled) {
  auto text = message_of<TimeoutError>([] {
    spawn(2, [] {
      if (rank() == 1) std::this_thread::sleep_for(500ms);
      if (rank() == 0) send(ones({100'000}), 1, {.timeout = 50ms});  // longer than what goes unasked
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 0 waited 0.05 s for rank 1 to receive what it sends: send(f32[100000]) at"));
  spawn(2, [] {
    Tensor x = full({100'000}, rank(), {f32}), y = zeros({100'000});
    if (rank() == 0) {
      Work never = send_async(x + 5, 1, {.tag = 7}), wanted = recv_async(y, 1, {.tag = 8});
      EXPECT_FALSE(wanted.wait_for(30ms));
      EXPECT_TRUE(never.cancel());
      EXPECT_THROW(never.wait(), CancelledError);
      EXPECT_TRUE(wanted.cancel());
      EXPECT_THROW(wanted.wait(), CancelledError);
      send(ones({1}), 1, {.tag = 3});
      send(x, 1, {.tag = 7});
    } else {
      recv(ones({1}), 0, {.tag = 3});
      recv(y, 0, {.tag = 7});
    }
    EXPECT_EQ(y[5].item<double>(), 0);
    barrier();
    Work work = barrier_async();
    work.wait();
    EXPECT_FALSE(work.cancel());
  });
}

TEST_P(Engines, MessagesShortAndLongInAnyOrder) {
  spawn(4, [] {
    int n = world_size(), me = rank();
    TensorList out, in;
    std::vector<Work> works;
    for (int k = 0; k < n; ++k) {
      out.push_back(full({k % 2 ? 3 : 50'000}, 10 * me + k, {f32}));
      in.push_back(zeros({me % 2 ? 3 : 50'000}, {f32}));
    }
    for (int k = 0; k < n; ++k) works.push_back(send_async(out[static_cast<size_t>(k)], k));
    for (int k = n - 1; k >= 0; --k) works.push_back(recv_async(in[static_cast<size_t>(k)], k));
    for (Work& work : works) work.wait();
    for (int k = 0; k < n; ++k) EXPECT_EQ(in[static_cast<size_t>(k)][0].item<double>(), 10 * k + me);
    // From any; and a wrong size is named.
    if (me == 0) {
      double sum = 0;
      for (int k = 1; k < n; ++k) {
        Tensor x = zeros({1});
        int from = recv(x, -1, {.tag = 1});
        EXPECT_EQ(x.item<double>(), from);
        sum += from;
      }
      EXPECT_EQ(sum, n * (n - 1) / 2);
      EXPECT_THAT(message_of<MismatchError>([] { recv(zeros({40'000}), 1, {.tag = 2}); }),
                  HasSubstr("rank 1 sent 30000 elements of f32"));
    } else {
      send(full({1}, me, {f32}), 0, {.tag = 1});
      if (me == 1) {  // long ones wait to be asked for, so that their sender is told as well
        EXPECT_THAT(message_of<MismatchError>([] { send(zeros({30'000}), 0, {.tag = 2}); }),
                    HasSubstr("but rank 0 takes 40000 of f32 by recv(f32[40000]) at hosts_test.cpp:"));
      }
    }
    barrier();
  });
}

// What only polls, or leaves a function behind, learns of a failure too.
TEST_P(Engines, OpenWorkEndsWhenARankFails) {
  EXPECT_THROW(spawn(3,
                     [&] {
                       if (rank() == 2) {
                         std::this_thread::sleep_for(20ms);
                         throw std::runtime_error("lost");
                       }
                       int called = 0;
                       Tensor x = ones({100'000}), y = ones({3});
                       Work collective = all_reduce_async(x);
                       Work message = recv_async(y, 2);
                       message.then([&] { ++called; });
                       while (!collective.done() || !message.done()) std::this_thread::yield();
                       EXPECT_THAT(message_of<RankFailure>([&] { collective.wait(); }),
                                   HasSubstr("rank 2 failed: lost"));
                       EXPECT_THROW(message.wait(), RankFailure);
                       EXPECT_EQ(called, 1);
                     }),
               RankFailure);
}

// Descriptors and threads are back where they were.
TEST_P(Engines, GroupsComeAndGoThousandsOfTimes) {
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
    EXPECT_LE(entries("/proc/self/fd"), descriptors + 2);
    EXPECT_LE(entries("/proc/self/task"), threads + 1);  // one that frees what a thread of its own was the last to hold
  });
}

// ---- Layouts

// Processes of a host, every engine alone, and hosts that hold ranks in all kinds of orders.
class Layout : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Layout, testing::Values(std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1}));
INSTANTIATE_TEST_SUITE_P(SlowLayouts, Layout,
                         testing::Values(std::vector<int>{0, 1, 0, 1}, std::vector<int>{0, 0, 0, 1},
                                         std::vector<int>{0, 1, 1, 0, 2}, std::vector<int>{2, 0, 0, 1, 1, 1, 0}));

TEST_P(Layout, GivesTheBitsOfThreads) {
  const std::vector<int>& hosts = GetParam();
  int n = static_cast<int>(hosts.size());
  std::vector<std::string> expected(hosts.size());
  spawn_ranks(n, [&] { expected[static_cast<size_t>(rank())] = fingerprint(); });
  EXPECT_THAT(expected[0], Not(HasSubstr("other bits")));
  auto compare = [&](const std::string& transport, const std::vector<int>& on) {
    SCOPED_TRACE(transport);
    auto body = [&] { EXPECT_EQ(fingerprint(), expected[static_cast<size_t>(rank())]); };
    spawn_by(transport.c_str(), on, n, body, {});
  };
  compare("shm", {});
  for (std::string engine : {"ucx", "gloo"})
    if (engine == "ucx" ? comm::has_ucx() : comm::has_gloo()) {
      compare(engine, {});
      compare("shm+" + engine, hosts);
    }
}

TEST(Layouts, GroupsOfAHostShareMemory) {
  if (!comm::has_ucx()) GTEST_SKIP() << "this build has no UCX";
  spawn_by("shm+ucx", {0, 0, 1, 1}, 4,
           [] {
             EXPECT_EQ(world().transport(), "shm+ucx");
             EXPECT_EQ(world().split(rank() / 2).transport(), "shm");
             EXPECT_EQ(world().subgroup({0, 2}).transport(), "ucx");
             Group host = world().split(rank() / 2);
             Tensor x = full({50'000}, rank(), {f32});
             all_reduce(x, {.group = host});
             EXPECT_EQ(x[7].item<double>(), rank() / 2 ? 5 : 1);
             all_reduce(x);
             EXPECT_EQ(x[7].item<double>(), 12);
           },
           {});
}

TEST(Layouts, WhatMakesNoSenseIsSaid) {
  auto says = [](SpawnOptions options, const char* text) {
    EXPECT_THAT(message_of<ValueError>([&] { spawn_processes(2, [] {}, options); }), HasSubstr(text));
  };
  says({.transport = "tcp"}, "the transport 'tcp' is none of shm, ucx, gloo, shm+ucx and shm+gloo");
  says({.hosts = {0, 1}}, "ranks on several hosts need a transport between them: shm is not one");
  says({.transport = "shm+ucx", .hosts = {0}}, "hosts has 1 entries for 2 ranks");
  says({.transport = "shm+ucx", .hosts = {0, 7}}, "a host's number is 7");
}

// Who fails a world may be the thread that looks after the times of all groups of a process: it does not wait for the
// store, which here does not answer. The others are told when it does.
TEST(HostsWorlds, AFailureDoesNotWaitForTheStore) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  pid_t server = ::fork();
  if (server == 0) {
    TcpStore store({.host = "127.0.0.1", .serve = true});
    uint16_t port = store.port();
    auto written = ::write(ends[1], &port, sizeof port);
    while (written > 0) ::pause();
    ::_exit(1);
  }
  uint16_t port = 0;
  ASSERT_EQ(::read(ends[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  TcpStoreOptions at{.host = "127.0.0.1", .port = port, .timeout = 60s, .grace = 60s};
  auto local = std::make_shared<comm::ProcessWorld>(comm::Segment::anonymous(comm::SharedWorld::bytes(1)),
                                                    "tutti-alone-" + std::to_string(::getpid()), 0, 1, 60s);
  auto world = std::make_shared<comm::HostsWorld>(
      local, std::make_shared<TcpStore>(at), "alone/",
      comm::HostsOptions{
          .host_of = {0}, .engine = comm::has_ucx() ? "ucx" : "gloo", .silence = 30s, .address = "127.0.0.1"});
  ::kill(server, SIGSTOP);
  auto began = Clock::now();
  world->fail(0, "on purpose");
  EXPECT_LT(Clock::now() - began, 10s);
  EXPECT_TRUE(world->failed());
  ::kill(server, SIGCONT);
  EXPECT_THAT(TcpStore(at).get("alone/failed"), HasSubstr("on purpose"));
  world.reset();
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  for (int end : ends) ::close(end);
}

// A rank that gives up the meeting, since another has failed, says whose failure it is: it is not taken for its own.
static void meet_one_that_fails() {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  pid_t server = ::fork();
  if (server == 0) {
    TcpStore store({.host = "127.0.0.1", .serve = true});
    uint16_t port = store.port();
    auto written = ::write(ends[1], &port, sizeof port);
    while (written > 0) ::pause();
    ::_exit(1);
  }
  uint16_t port = 0;
  ASSERT_EQ(::read(ends[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  TcpStoreOptions at{.host = "127.0.0.1", .port = port, .timeout = 60s, .grace = 60s};
  std::string engine = comm::has_ucx() ? "ucx" : "gloo";
  auto local = std::make_shared<comm::ProcessWorld>(comm::Segment::anonymous(comm::SharedWorld::bytes(2)),
                                                    "tutti-two-" + std::to_string(::getpid()), 0, 2, 60s);
  std::atomic<bool> ended = false;
  static constexpr char hello = 0;
  comm::Pending sent;
  std::thread other([&] {
    auto store = std::make_shared<PrefixStore>("two/", std::make_shared<TcpStore>(at));
    auto wire =
        engine == "ucx" ? comm::make_ucx_wire(1, 2, store, false) : comm::make_gloo_wire(1, 2, store, "127.0.0.1", {});
    std::this_thread::sleep_for(200ms);
    ::kill(server, SIGSTOP);  // who asks the store for news has none yet
    local->fail(1, "on purpose");
    wire->send(0, {0, 0, 1, comm::Channel::hello}, &hello, 1, sent);  // who waits for it looks around
    wire->wait(Clock::now() + 300ms, [] { return false; });
    ::kill(server, SIGCONT);
    while (!ended) std::this_thread::sleep_for(1ms);
    wire->cut();
  });
  comm::HostsOptions options{.host_of = {0, 1}, .engine = engine, .silence = 30s, .address = "127.0.0.1"};
  EXPECT_THAT(
      message_of<RankFailure>([&] { comm::HostsWorld(local, std::make_shared<TcpStore>(at), "two/", options); }),
      HasSubstr("rank 1 failed: on purpose"));
  EXPECT_THAT(TcpStore(at).get("two/failed"), HasSubstr("on purpose"));
  ended = true;
  other.join();
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  for (int end : ends) ::close(end);
}
// In a process of its own, since what the engine has begun here does not survive a fork.
TEST(HostsWorlds, WhoHearsOfAFailureWhileMeetingSaysWhose) { spawn_checked_processes(1, meet_one_that_fails, {}); }

// One of the ranks cannot even begin to meet the others: it says so in the store, and they end, wherever they wait;
// here most wait for Gloo to connect to another that waits too.
TEST(HostsWorlds, ARankThatCannotConnectEndsTheMeeting) {
  if (!comm::has_gloo()) GTEST_SKIP() << "this build has no gloo";
  auto began = Clock::now();
  auto environments = ranks_of(6, [](int r) {
    return Variables{{"TUTTI_TRANSPORT", "gloo"}, {"TUTTI_ADDRESS", r == 1 ? "203.0.113.77" : "127.0.0.1"}};
  });
  start_with(environments, [] {
    if (std::string(std::getenv("RANK")) == "1") {
      EXPECT_THAT(message_of<ConnectionError>([] { world(); }), HasSubstr("203.0.113.77"));
      std::this_thread::sleep_for(3s);  // it lives on
    } else {
      EXPECT_THAT(message_of<RankFailure>([] { world(); }),
                  AllOf(HasSubstr("rank 1 failed: "), HasSubstr("Gloo cannot connect"), HasSubstr("203.0.113.77")));
    }
  });
  EXPECT_LT(Clock::now() - began, 30s);
}

// The largest subtrees of the canonical order that a host holds.
TEST(Subtrees, AreTheLargestWholeOnes) {
  auto of = [](std::vector<int> ranks, size_t n) {
    std::vector<bool> mine(n, false);
    for (int r : ranks) mine[static_cast<size_t>(r)] = true;
    return comm::whole_subtrees(mine);
  };
  using List = std::vector<comm::Subtree>;
  EXPECT_EQ(of({0, 1, 2, 3}, 8), (List{{0, 4}}));
  EXPECT_EQ(of({4, 5, 6}, 7), (List{{4, 7}}));
  EXPECT_EQ(of({1, 2, 3}, 4), (List{{1, 2}, {2, 4}}));
  EXPECT_EQ(of({0, 2, 4}, 6), (List{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(of({}, 3), List{});
}

}  // namespace
}  // namespace tutti

#endif
