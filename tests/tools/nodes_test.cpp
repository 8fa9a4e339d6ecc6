// tutti run on several nodes, one command for each: here they are all on this machine. What becomes of the job when one
// of the commands is killed or falls silent, and worlds and restarts over all of them.
#include <gmock/gmock.h>

#include <memory>

#include "tests/support/network.h"
#include "tests/tools/program.h"
#include "tutti/testing.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using namespace test;  // NOLINT

struct Nodes : testing::Test {
  /// The command of one node.
  std::unique_ptr<Program> start(int node, int nodes, const Words& more, const Words& command,
                                 const std::string& host = "") {
    std::vector<std::pair<std::string, std::string>> variables{{"TUTTI_SECRET", "shared"}};
    if (!host.empty()) variables.emplace_back("TUTTI_HOST", host);
    return std::make_unique<Program>(words_of(node, nodes, "127.0.0.1", more, command), variables);
  }
  Words words_of(int node, int nodes, const std::string& master, const Words& more, const Words& command) const {
    Words words{"--nnodes", std::to_string(nodes), "--node-rank",       std::to_string(node), "--master-addr",
                master,     "--master-port",       std::to_string(port)};
    words.insert(words.end(), more.begin(), more.end());
    return tutti_run(words, command);
  }
  /// Ranks that end only by force, and say who they are in a folder.
  Words stubborn() const {
    return shell("trap '' TERM; echo $$ > " + running.path() + "/$RANK; while true; do sleep 0.05; done");
  }
  /// A node that is connected listens in a thread of its own.
  static void await_connection(const Program& node) {
    std::string threads = "/proc/" + std::to_string(node.pid()) + "/task";
    EXPECT_TRUE(eventually([&] {
      std::error_code gone;
      auto list = std::filesystem::directory_iterator(threads, gone);
      return !gone && std::distance(begin(list), end(list)) >= 2;
    }));
  }
  const int port = reserved_port();
  Folder running;
};

std::string is_lost(int node) { return "node " + std::to_string(node) + " is lost: "; }

struct LostOfThree : Nodes, testing::WithParamInterface<int> {};

TEST_P(LostOfThree, KilledEndsTheOthers) {
  int victim = GetParam();
  std::vector<std::unique_ptr<Program>> nodes;
  for (int k = 0; k < 3; ++k)
    nodes.push_back(start(k, 3, {"-n", "2", "--grace", "0.2", "--max-restarts", "3"}, stubborn()));
  auto children = pids(running.path(), 6);
  nodes[static_cast<size_t>(victim)]->signal(SIGKILL);
  for (int k = 0; k < 3; ++k) {
    Program& p = *nodes[static_cast<size_t>(k)];
    EXPECT_EQ(p.wait(), k == victim ? 128 + SIGKILL : 1) << k << ": " << p.err();
    if (k == victim) continue;
    EXPECT_THAT(p.err(), AllOf(HasSubstr("tutti: " + is_lost(victim)), Not(HasSubstr("restarting all ranks"))));
  }
  for (pid_t pid : children) EXPECT_TRUE(eventually([&] { return !is_alive(pid); }));
}

// Those who hear of it later do not take node 0, which leaves because of it, for the one that is lost.
TEST_P(LostOfThree, IsTheSameToAllWheneverTheyHear) {
  int victim = GetParam(), soon = victim ? 0 : 1, late = 3 - victim - soon;
  std::unique_ptr<Program> nodes[3];
  for (int k : {0, 1, 2}) nodes[k] = start(k, 3, {"-n", "1", "--grace", "0"}, stubborn());
  pids(running.path(), 3);
  nodes[late]->signal(SIGSTOP);
  nodes[victim]->signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return nodes[soon]->err().find(is_lost(victim)) != std::string::npos; }));
  // Time enough for one that does not wait for the other.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  nodes[late]->signal(SIGCONT);
  for (int k : {soon, late}) {
    EXPECT_EQ(nodes[k]->wait(), 1);
    EXPECT_THAT(nodes[k]->err(), AllOf(HasSubstr("tutti: " + is_lost(victim)), Not(HasSubstr(is_lost(soon))))) << k;
  }
}

// Three of four have come.
TEST_P(LostOfThree, KilledBeforeAllHaveCome) {
  int victim = GetParam();
  std::unique_ptr<Program> nodes[3];
  for (int k : {0, 1, 2}) nodes[k] = start(k, 4, {"-n", "1"}, {"true"});
  for (int k : {1, 2}) await_connection(*nodes[k]);
  nodes[victim]->signal(SIGKILL);
  for (int k : {0, 1, 2}) {
    if (k == victim) continue;
    EXPECT_EQ(nodes[k]->wait(), 1);
    EXPECT_THAT(nodes[k]->err(), HasSubstr(is_lost(victim))) << k;
  }
}
INSTANTIATE_TEST_SUITE_P(Victims, LostOfThree, testing::Values(0, 1, 2));

struct LostNode : Nodes, testing::WithParamInterface<int> {};

// As if its host had stopped, or the network: nothing says that the connection is gone.
TEST_P(LostNode, SilentEndsTheOther) {
  int victim = GetParam();
  std::unique_ptr<Program> nodes[2];
  for (int k : {0, 1}) nodes[k] = start(k, 2, {"-n", "1", "--grace", "0.2", "--node-timeout", "4"}, stubborn());
  auto children = pids(running.path(), 2);
  nodes[victim]->signal(SIGSTOP);
  Program& other = *nodes[1 - victim];
  EXPECT_EQ(other.wait(), 1) << other.err();
  EXPECT_THAT(other.err(), HasSubstr("tutti: " + is_lost(victim)));
  nodes[victim]->signal(SIGKILL);
  nodes[victim]->wait();
  for (pid_t pid : children) EXPECT_TRUE(eventually([&] { return !is_alive(pid); }));
}

TEST_P(LostNode, KilledWhileOthersWaitForItsEnd) {
  int victim = GetParam();
  Words command = shell("echo $$ > " + running.path() + "/$RANK; [ $NODE_RANK != " + std::to_string(victim) +
                        " ] || exec sleep 1000");
  std::unique_ptr<Program> nodes[2];
  for (int k : {0, 1}) nodes[k] = start(k, 2, {"-n", "1"}, command);
  auto children = pids(running.path(), 2);
  EXPECT_TRUE(eventually([&] { return !is_alive(children[0]) || !is_alive(children[1]); }));
  nodes[victim]->signal(SIGKILL);
  EXPECT_EQ(nodes[1 - victim]->wait(), 1);
  EXPECT_THAT(nodes[1 - victim]->err(), HasSubstr("tutti: " + is_lost(victim)));
}
INSTANTIATE_TEST_SUITE_P(Victims, LostNode, testing::Values(0, 1));

TEST_F(Nodes, WhoDidNotComeIsTheSameToAll) {
  std::unique_ptr<Program> nodes[2];
  for (int k : {1, 0}) nodes[k] = start(k, 3, {"-n", "1", "--join-timeout", k ? "100" : "2"}, {"true"});
  for (int k : {0, 1}) {
    EXPECT_EQ(nodes[k]->wait(), 1);
    EXPECT_THAT(nodes[k]->err(), HasSubstr("of 3 nodes these did not come within 2 s: 2")) << k;
  }
}

// A number that two commands have: whoever comes later ends. A job that is complete goes on; one that waits for another
// node cannot be, since that is the one with the wrong number.
TEST_F(Nodes, ThatHaveTheSameNumber) {
  for (int nodes : {2, 3}) {
    Folder end;
    int port = reserved_port();
    auto begin = [&](int node) {
      Words words{"--nnodes",      std::to_string(nodes), "--node-rank", std::to_string(node),
                  "--master-addr", "127.0.0.1",           "-n",          "1",
                  "--master-port", std::to_string(port)};
      return std::make_unique<Program>(
          tutti_run(words, shell("while [ ! -e " + end.path() + "/now ]; do sleep 0.05; done")),
          std::vector<std::pair<std::string, std::string>>{{"TUTTI_SECRET", "shared"}});
    };
    auto zero = begin(0), one = begin(1);
    await_connection(*one);
    auto again = begin(1);
    std::string text = "node 1 is process " + std::to_string(one->pid()) + " on host ";
    std::string other = "and process " + std::to_string(again->pid()) + " on host ";
    EXPECT_EQ(again->wait(), 1);
    EXPECT_THAT(again->err(),
                AllOf(HasSubstr(text), HasSubstr(other), HasSubstr("--node-rank must be another one for each")));
    std::ofstream(end / "now") << "now";
    for (Program* p : {zero.get(), one.get()}) {
      EXPECT_EQ(p->wait(), nodes == 2 ? 0 : 1) << p->err();
      if (nodes == 3) {
        EXPECT_THAT(p->err(), HasSubstr(text));
      }
    }
  }
}

// As torchrun is used: the same command on each.
TEST_F(Nodes, WithoutNumbersGetThemAsTheyCome) {
  Folder end;
  auto begin = [&](const std::string& job = "one") {
    Words words{"--nnodes=2",       "--nproc_per_node=1", "--rdzv_endpoint", "127.0.0.1:" + std::to_string(port),
                "--rdzv_id=" + job, "--rdzv_backend=c10d"};
    return std::make_unique<Program>(
        tutti_run(words, shell("echo $RANK $NODE_RANK; touch " + end.path() + "/$RANK; while [ ! -e " + end.path() +
                               "/now ]; do sleep 0.05; done")),
        std::vector<std::pair<std::string, std::string>>{{"TUTTI_SECRET", "shared"}});
  };
  auto one = begin(), other = begin();
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(end / "0") && std::filesystem::exists(end / "1"); }));
  auto late = begin();
  EXPECT_EQ(late->wait(), 1);
  EXPECT_THAT(late->err(), HasSubstr("all 2 nodes of the job at 127.0.0.1:" + std::to_string(port) + " have come"));
  std::ofstream(end / "now") << "now";
  EXPECT_EQ(one->wait() + other->wait(), 0) << one->err() << other->err();
  EXPECT_EQ(lines(one->out() + other->out()), (std::set<std::string>{"[0] 0 0", "[1] 1 1"}));
  auto a = begin("a"), b = begin("b");
  EXPECT_EQ(a->wait() + b->wait(), 2);
  EXPECT_THAT(a->err() + b->err(),
              AllOf(HasSubstr("nodes disagree: "), HasSubstr("--rdzv-id a"), HasSubstr("--rdzv-id b")));
}

TEST_F(Nodes, AreInterruptedWhileTheyWait) {
  auto node = start(0, 2, {"-n", "1"}, {"true"});
  await_connection(*node);
  node->signal(SIGINT);
  EXPECT_EQ(node->wait(), 128 + SIGINT);
  EXPECT_EQ(node->err(), "tutti: interrupted by SIGINT\n");
}

// They would wait for one that does not start again.
TEST_F(Nodes, WithDifferentOptionsDisagree) {
  std::unique_ptr<Program> nodes[2];
  for (int k : {0, 1})
    nodes[k] = start(k, 2, {"-n", "1", "--max-restarts", k ? "3" : "0", "--join-timeout", "300"}, {"false"});
  for (int k : {0, 1}) {
    EXPECT_EQ(nodes[k]->wait(), 1);
    EXPECT_THAT(nodes[k]->err(),
                AllOf(HasSubstr("nodes disagree: "), HasSubstr("--nnodes 2 --max-restarts 0 on node 0"),
                      HasSubstr("--nnodes 2 --max-restarts 3 on node 1"), HasSubstr("give all the same")))
        << k;
  }
}

TEST_F(Nodes, OneThatCannotStartItsRanksIsLost) {
  std::unique_ptr<Program> nodes[2];
  for (int k : {0, 1})
    nodes[k] = start(k, 2, {"-n", "1", "--grace", "0", "--log", k ? "/dev/null/logs" : running / "logs"}, stubborn());
  EXPECT_NE(nodes[1]->wait(), 0);
  EXPECT_EQ(nodes[0]->wait(), 1);
  EXPECT_THAT(nodes[0]->err(), HasSubstr("tutti: " + is_lost(1)));
}

TEST_F(Nodes, ASignalToOneEndsAllAndNobodyStartsAgain) {
  Words command = shell("echo $$ > " + running.path() + "/$RANK; while true; do sleep 0.05; done");
  std::unique_ptr<Program> nodes[2];
  for (int k : {0, 1}) nodes[k] = start(k, 2, {"-n", "1", "--grace", "0.5", "--max-restarts", "5"}, command);
  pids(running.path(), 2);
  nodes[1]->signal(SIGTERM);
  EXPECT_EQ(nodes[1]->wait(), 128 + SIGTERM);
  EXPECT_NE(nodes[0]->wait(), 0);
  EXPECT_THAT(nodes[0]->err() + nodes[1]->err(), Not(HasSubstr("restarting all ranks")));
}

// ---- Worlds

struct Engine : Nodes, testing::WithParamInterface<const char*> {
  Words bench() const { return {TUTTI_TOOL, "bench", "-e", "64K", "-f", "64", "-i", "5"}; }
};

TEST_P(Engine, StartsOnOneHost) {
  if (!comm::has_engine(GetParam())) GTEST_SKIP() << "this build has no " << GetParam();
  Program p(tutti_run({"-n", "3", "--env", std::string("TUTTI_TRANSPORT=") + GetParam()}, bench()));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_THAT(p.out(), HasSubstr(std::string("# all_reduce f32 sum, 3 ranks by ") + GetParam()));
  EXPECT_THAT(p.err(), Not(HasSubstr("joined the world")));
}

TEST_P(Engine, StartsOnTwo) {
  if (!comm::has_engine(GetParam())) GTEST_SKIP() << "this build has no " << GetParam();
  std::string transport = std::string("shm+") + GetParam();
  std::unique_ptr<Program> nodes[2];
  for (int k : {0, 1})
    nodes[k] = start(k, 2, {"-n", "2", "--env", "TUTTI_TRANSPORT=" + transport}, bench(), k ? "one" : "other");
  for (int k : {0, 1}) {
    EXPECT_EQ(nodes[k]->wait(), 0) << nodes[k]->err();
    EXPECT_THAT(nodes[k]->err(), Not(HasSubstr("joined the world")));
  }
  EXPECT_THAT(nodes[0]->out(), HasSubstr("# all_reduce f32 sum, 4 ranks by " + transport));
}

TEST_P(Engine, EndsWithAKilledRank) {
  if (!comm::has_engine(GetParam())) GTEST_SKIP() << "this build has no " << GetParam();
  Program p(tutti_run({"-n", "3", "--grace", "60", "--env", std::string("TUTTI_TRANSPORT=") + GetParam(), "--env",
                       "TUTTI_FAULTS=kill rank=1 call=40"},
                      {TUTTI_TOOL, "bench", "-i", "1000"}));
  EXPECT_EQ(p.wait(), 128 + SIGKILL);
  EXPECT_THAT(p.err(), HasSubstr("tutti: rank 1 failed: killed by signal 9"));
}
INSTANTIATE_TEST_SUITE_P(Engines, Engine, testing::Values("ucx", "gloo"), [](const auto& info) { return info.param; });

#ifdef TUTTI_RESTART
std::string last_line(const std::string& text) { return text.substr(text.rfind('\n', text.size() - 2) + 1); }

// Rank 3, on the second node, is killed again and again; what comes out is what an undisturbed run gives.
TEST_P(Engine, StartsAgainOnTwoFromTheLastCheckpoint) {
  if (!comm::has_engine(GetParam())) GTEST_SKIP() << "this build has no " << GetParam();
  Program undisturbed(tutti_run({"-n", "4", "--plain"}, {TUTTI_RESTART, "--steps", "40"}));
  EXPECT_EQ(undisturbed.wait(), 0) << undisturbed.err();
  Words options{"-n",
                "2",
                "--plain",
                "--max-restarts",
                "20",
                "--env",
                "TUTTI_FAULTS=kill rank=3 call=60",
                "--env",
                std::string("TUTTI_TRANSPORT=shm+") + GetParam()};
  std::unique_ptr<Program> nodes[2];
  for (int k : {0, 1})
    nodes[k] = start(k, 2, options, {TUTTI_RESTART, "--steps", "40", "--checkpoint", running / "checkpoint"},
                     k ? "one" : "other");
  for (int k : {0, 1}) EXPECT_EQ(nodes[k]->wait(), 0) << nodes[k]->err();
  EXPECT_THAT(nodes[0]->out(), HasSubstr("goes on at step"));
  EXPECT_THAT(nodes[0]->err(), AllOf(HasSubstr("on another node, rank 3: killed by signal 9"),
                                     HasSubstr("restarting all ranks (restart 1 of 20)")));
  EXPECT_THAT(undisturbed.out(), HasSubstr("40 steps, the last loss is"));
  EXPECT_EQ(last_line(nodes[0]->out()), last_line(undisturbed.out()));
}

// Each node has a network of its own, and no way to the other but a cable: what DistributedDataParallel trains there is
// what it trains on one host, to the bit of the loss and of the weights.
TEST_F(Nodes, TrainOverANetworkAsOnOneHost) {
  if (!comm::has_engine("ucx")) GTEST_SKIP() << "this build has no ucx";
  Network network(2);
  if (!network.made()) GTEST_SKIP() << Network::why_not_made();
  auto start_there = [&](int node, const Words& command) {
    Words words = words_of(node, 2, Network::address(0), {"-n", "2", "--plain"}, command);
    words.insert(words.begin(), {"ip", "netns", "exec", network.host(node)});
    return std::make_unique<Program>(words, std::vector<std::pair<std::string, std::string>>{{"TUTTI_SECRET", "x"}});
  };
  auto run_there = [&](const Words& command) {
    std::unique_ptr<Program> nodes[2];
    for (int k : {0, 1}) nodes[k] = start_there(k, command);
    for (int k : {0, 1}) EXPECT_EQ(nodes[k]->wait(), 0) << k << ": " << nodes[k]->err();
    return nodes[0]->out();
  };
  EXPECT_THAT(run_there({TUTTI_TOOL, "bench", "-e", "64K", "-f", "64", "-i", "5"}),
              HasSubstr("# all_reduce f32 sum, 4 ranks by shm+ucx"));
  Program here(tutti_run({"-n", "4", "--plain"}, {TUTTI_RESTART, "--steps", "20"}));
  EXPECT_EQ(here.wait(), 0) << here.err();
  EXPECT_THAT(here.out(), HasSubstr("20 steps, the last loss is"));
  EXPECT_EQ(last_line(run_there({TUTTI_RESTART, "--steps", "20"})), last_line(here.out()));
}
#endif

}  // namespace
}  // namespace tutti
