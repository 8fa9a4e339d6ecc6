// tutti run with the options of torchrun and mpirun.
#include <gmock/gmock.h>

#include "tests/tools/program.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

std::string says(const Words& options) {
  Program p(tutti_run(options, {"true"}));
  EXPECT_EQ(p.wait(), 2);
  return p.err();
}

TEST(LaunchWords, NumbersOfRanksAreThoseOfOtherLaunchers) {
  for (const Words& options : std::vector<Words>{{"-n", "2"},
                                                 {"-n2"},
                                                 {"-np", "2"},
                                                 {"--np=2"},
                                                 {"--ranks=2"},
                                                 {"--nproc-per-node", "2"},
                                                 {"--nproc_per_node=2"},
                                                 {"--nnodes=1", "--nproc_per_node", "2", "--standalone"},
                                                 {"--nnodes", "1", "-np", "2", "--rdzv_endpoint=localhost:0"}}) {
    Program p(tutti_run(options, shell("echo $WORLD_SIZE")));
    EXPECT_EQ(p.wait(), 0) << options[0] << ": " << p.err();
    EXPECT_EQ(lines(p.out()), (std::set<std::string>{"[0] 2", "[1] 2"})) << options[0];
  }
}

TEST(LaunchWords, AutoAndCpuAreOneForEachCore) {
  std::set<std::string> worlds;
  for (const Words& options : std::vector<Words>{{}, {"--nproc-per-node=auto"}, {"--nproc-per-node", "cpu"}}) {
    Program p(tutti_run(options, shell("[ $RANK != 0 ] || echo $WORLD_SIZE")));
    EXPECT_EQ(p.wait(), 0) << p.err();
    worlds.insert(p.out());
  }
  EXPECT_EQ(worlds.size(), 1u);
  EXPECT_THAT(says({"--nproc-per-node", "gpu"}), HasSubstr("this build of Tutti computes on CPUs only"));
}

TEST(LaunchWords, AreNotThoseOfTheProgram) {
  for (const Words& between : std::vector<Words>{{}, {"--"}}) {
    Words options{"--max_restarts", "0", "-x", "--odd_value=1", "-n1", "--plain"};
    options.insert(options.end(), between.begin(), between.end());
    Program p(tutti_run(options, {"echo", "--batch_size", "3", "-np", "4", "--"}));
    EXPECT_EQ(p.wait(), 0) << p.err();
    EXPECT_EQ(p.out(), "--batch_size 3 -np 4 --\n");
  }
  // A value that looks like an option.
  Program p(tutti_run({"-n", "1", "--plain", "--env", "A=--x_y"}, shell("echo $A")));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_EQ(p.out(), "--x_y\n");
}

TEST(LaunchWords, VariablesAreExported) {
  Program p(tutti_run({"-n", "1", "--plain", "-x", "MINE", "-x", "OTHER=b=c"}, shell("echo $MINE $OTHER")),
            {{"MINE", "a"}});
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_EQ(p.out(), "a b=c\n");
  EXPECT_THAT(says({"-x", "TUTTI_NO_SUCH"}),
              HasSubstr("there is no such variable here; give its value: -x TUTTI_NO_SUCH="));
  EXPECT_THAT(says({"--env", "MINE"}), HasSubstr("--env takes NAME=VALUE, not 'MINE'"));
}

TEST(LaunchWords, LogFoldersAreThoseOfTorchrun) {
  Folder folder;
  Program p(tutti_run({"-n", "1", "--log_dir", folder / "logs"}, {"echo", "text"}));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_EQ(contents(folder / "logs/rank-0.out"), "text\n");
}

TEST(LaunchWords, ThatCannotBeAreSaid) {
  EXPECT_THAT(says({"--nnodes", "1:4"}),
              HasSubstr("a world that grows and shrinks (elastic), which Tutti does not have"));
  EXPECT_THAT(says({"--nnodes", "two"}), HasSubstr("--nnodes takes a whole number, not 'two'"));
  EXPECT_THAT(says({"--nnodes", "0"}), HasSubstr("--nnodes cannot be 0"));
  EXPECT_THAT(says({"-n", "2", "-np", "2"}), HasSubstr("give the number of ranks once"));
  EXPECT_THAT(says({"--nnodes", "2", "--master-addr", "a", "-np", "2"}), HasSubstr("say how many this one has (-n)"));
  EXPECT_THAT(says({"--nnodes", "2", "--standalone", "--master-addr", "a"}),
              HasSubstr("--standalone is a job on this host"));
  EXPECT_THAT(says({"--rdzv-backend", "etcd"}),
              HasSubstr("--rdzv-backend etcd: the nodes meet at --rdzv-endpoint by themselves"));
  EXPECT_THAT(says({"--rdzv-endpoint", "a:b"}), HasSubstr("--rdzv-endpoint is host:port, not 'a:b'"));
  EXPECT_THAT(says({"--rdzv-endpoint", ":29400"}), HasSubstr("--rdzv-endpoint is host:port, not ':29400'"));
  EXPECT_THAT(says({"--nnodes", "2", "--rdzv-endpoint", "a:0"}), HasSubstr("port 0 is any"));
  EXPECT_THAT(says({"--rdzv-endpoint", "a:1", "--master-addr", "a"}), HasSubstr("give one of them"));
}

// ---- Hosts: a command that only notes what it was given

struct HostWords : testing::Test {
  // "host ranks", for each that is reached.
  std::set<std::string> reached(const Words& options) {
    Folder folder;
    std::ofstream(folder / "rsh") << "#!/bin/sh\necho \"$@\" > " << folder.path() << "/host-$1\nexit 0\n";
    std::filesystem::permissions(folder / "rsh", std::filesystem::perms::owner_all);
    Words words{"--rsh", folder / "rsh"};
    words.insert(words.end(), options.begin(), options.end());
    Program p(tutti_run(words, {"true"}));
    EXPECT_EQ(p.wait(), 0) << p.err();
    std::set<std::string> hosts;
    for (auto& entry : std::filesystem::directory_iterator(folder.path())) {
      std::string name = entry.path().filename().string();
      if (!name.starts_with("host-")) continue;
      std::istringstream command(contents(entry.path().string()));
      std::string word, ranks = "all";
      while (command >> word)
        if (word == "'-n'") command >> ranks;
      hosts.insert(name.substr(5) + " " + ranks);
    }
    return hosts;
  }
  using Set = std::set<std::string>;
};

TEST_F(HostWords, NameHostsAndTheirRanks) {
  EXPECT_EQ(reached({"-H", "a:2,b"}), (Set{"a '2'", "b all"}));
  EXPECT_EQ(reached({"--host", "a:2,b", "-n", "3"}), (Set{"a '2'", "b '3'"}));
  EXPECT_EQ(reached({"--hosts=a,a,b", "-np", "3"}), (Set{"a '2'", "b '1'"}));
  EXPECT_EQ(reached({"-H", "a,b", "-np", "5"}), (Set{"a '3'", "b '2'"}));
  EXPECT_EQ(reached({"-H", "a:4,b:4", "-np", "5"}), (Set{"a '4'", "b '1'"}));
  EXPECT_EQ(reached({"-H", "a:4,b:4", "-np", "3"}), (Set{"a '3'"}));
  EXPECT_THAT(says({"-H", "a:2,b:2", "-np", "5"}), HasSubstr("-np is 5, but the hosts have room for 4"));
  EXPECT_THAT(says({"-H", "a:2,b", "-np", "3"}), HasSubstr("all name their number of ranks"));
}

}  // namespace
}  // namespace tutti
