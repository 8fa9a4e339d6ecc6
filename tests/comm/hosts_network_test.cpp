// Ranks on hosts of their own: network namespaces, joined by a bridge, whose cables can be pulled.
#include <signal.h>

#include <thread>

#include "comm/transport/wire.h"
#include "tests/comm/fingerprint.h"
#include "tests/comm/started.h"
#include "tests/support/expect_ops.h"
#include "tests/support/network.h"
#include "tutti/comm.h"

#ifndef TUTTI_SANITIZE_THREAD

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::HasSubstr;
using namespace test;  // NOLINT
using Clock = std::chrono::steady_clock;

#define NEED_NETWORK(network)                                                                                 \
  if (!comm::has_ucx() || !comm::has_gloo()) GTEST_SKIP() << "this build has not both engines, UCX and Gloo"; \
  if (!(network).made()) GTEST_SKIP() << Network::why_not_made()

/// Ranks on these hosts of a network; what they assert fails the test.
class Job {
 public:
  Job(const Network& network, const std::vector<int>& hosts, const std::function<void()>& body,
      const Variables& more = {}) {
    for (size_t r = 0; r < hosts.size(); ++r) {
      Variables variables{{"RANK", std::to_string(r)},
                          {"WORLD_SIZE", std::to_string(hosts.size())},
                          {"MASTER_ADDR", Network::address(hosts[0])},
                          {"MASTER_PORT", "29517"},
                          {"TUTTI_SECRET", "of this test"},
                          {"TUTTI_SILENCE", "1"},
                          {"TUTTI_TIMEOUT", "60"}};
      variables.insert(variables.end(), more.begin(), more.end());
      children_.push_back(start_one(variables, body, network.host(hosts[r])));
    }
  }
  pid_t process(int rank) const { return children_[static_cast<size_t>(rank)]; }
  /// `killed`: a rank that does not end by itself.
  void join(int killed = -1) {
    for (size_t r = 0; r < children_.size(); ++r) {
      int status = 0;
      ::waitpid(children_[r], &status, 0);
      EXPECT_TRUE(status == 0 || static_cast<int>(r) == killed)
          << "rank " << r << (WIFSIGNALED(status) ? " was killed by signal " : " ended with code ")
          << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
  }

 private:
  std::vector<pid_t> children_;
};

/// Written by a rank, read by the test.
struct Signal {
  Signal() { EXPECT_EQ(::pipe(ends), 0); }
  ~Signal() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  void give() const { EXPECT_EQ(::write(ends[1], "x", 1), 1); }
  void await() const {
    char c;
    EXPECT_EQ(::read(ends[0], &c, 1), 1);
  }
  int ends[2];
};

TEST(Network, LayoutsGiveTheBitsOfThreadsSlow) {
  Network network(3);
  NEED_NETWORK(network);
  for (const auto& [hosts, transport] :
       {std::pair{std::vector<int>{0, 0, 1, 1}, ""}, std::pair{std::vector<int>{0, 1, 2}, ""},
        std::pair{std::vector<int>{0, 1, 0, 2, 1}, ""}, std::pair{std::vector<int>{0, 1, 1}, "ucx"},
        std::pair{std::vector<int>{0, 0, 1}, "shm+gloo"}, std::pair{std::vector<int>{0, 1}, "gloo"}}) {
    std::vector<std::string> expected(hosts.size());
    spawn_ranks(static_cast<int>(hosts.size()), [&] { expected[static_cast<size_t>(rank())] = fingerprint(); });
    Variables more;
    if (*transport) more = {{"TUTTI_TRANSPORT", transport}};
    Job(network, hosts, [&] { EXPECT_EQ(fingerprint(), expected[static_cast<size_t>(rank())]); }, more).join();
  }
}

TEST(Network, GroupsChooseTheirTransport) {
  Network network(2);
  NEED_NETWORK(network);
  Job(network, {0, 0, 1, 1}, [] {
    EXPECT_EQ(world().transport(), "shm+ucx");
    EXPECT_EQ(world().split(rank() / 2).transport(), "shm");
    EXPECT_EQ(world().split(rank() % 2).transport(), "ucx");
  }).join();
}

// What the survivors see, and that they see it soon.
void expect_failure(const std::function<void()>& body, const testing::Matcher<const std::string&>& text) {
  auto begin = Clock::now();
  EXPECT_THAT(message_of<RankFailure>(body), text);
  EXPECT_LT(Clock::now() - begin, 5s);  // about 1 s where it is cut off; by a timeout it would be a minute
  EXPECT_THROW(barrier(), RankFailure);
}

TEST(Network, AKilledRankFailsTheOthers) {
  Network network(2);
  NEED_NETWORK(network);
  for (const char* transport : {"shm+ucx", "ucx", "gloo"})
    for (int victim : {3, 0}) {
      Signal ready;
      Job job(network, {0, 0, 1, 1},
              [&] {
                Tensor x = ones({300'000});
                expect_failure(
                    [&] {
                      all_reduce(x, {.op = Reduce::max});
                      if (rank() == victim) {
                        ready.give();
                        ::pause();
                      }
                      while (true) all_reduce(x, {.op = Reduce::max});
                    },
                    HasSubstr("rank " + std::to_string(victim) + " failed: it"));
              },
              {{"TUTTI_TRANSPORT", transport}});
      ready.await();
      ::kill(job.process(victim), SIGKILL);
      job.join(victim);
    }
}

// The cable of a host is pulled while ranks wait for each other, and in the middle of large collectives.
TEST(Network, AHostThatIsCutOffFailsAll) {
  for (const char* transport : {"shm+ucx", "gloo"})
    for (bool busy : {false, true}) {
      Network network(3);
      NEED_NETWORK(network);
      Signal ready;
      Job job(network, {0, 0, 1, 2},
              [&] {
                Tensor x = ones({busy ? 2'000'000 : 100});
                all_reduce(x, {.op = Reduce::max});
                if (rank() == 2) ready.give();
                auto wait = [&] {
                  while (busy || rank() < 2) all_reduce(x, {.op = Reduce::max});
                  recv(x, 0);
                };
                // Where it is cut off, the first rank is what cannot be reached.
                expect_failure(wait, rank() == 2 ? HasSubstr("rank 0 failed: it cannot be reached any more")
                                                 : HasSubstr("rank 2 failed: nothing was heard of it for 1 s"));
              },
              {{"TUTTI_TRANSPORT", transport}});
      ready.await();
      network.pull(1);
      job.join();
    }
}

}  // namespace
}  // namespace tutti

#endif
