// tutti run, with real processes: what they are told, what is heard of them, how they end, and that they do.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>

#include "tests/tools/program.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;
using namespace test;  // NOLINT

const char* const kNoneJoined = "ranks joined the world";

TEST(Run, TellsRanksWhoTheyAre) {
  Program p(tutti_run({"-n3", "--env", "MINE=a=b"},
                      shell("echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK $TUTTI_EPOCH "
                            "$TUTTI_MAX_RESTARTS $MINE; "
                            "[ -n \"$MASTER_ADDR\" ] && [ -n \"$MASTER_PORT\" ] && [ -n \"$TUTTI_SECRET\" ]")));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_EQ(lines(p.out()),
            (std::set<std::string>{"[0] 0 3 0 3 0 0 0 0 a=b", "[1] 1 3 1 3 0 0 0 0 a=b", "[2] 2 3 2 3 0 0 0 0 a=b"}));
}

TEST(Run, LinesStayWholeAndKeepTheirStream) {
  Program p(tutti_run({"-n", "4"}, shell("for i in $(seq 200); do echo out-$RANK-$i; echo err-$RANK-$i >&2; done; "
                                         "printf unfinished")));
  EXPECT_EQ(p.wait(), 0);
  auto out = lines(p.out()), err = lines(p.err());
  EXPECT_EQ(out.size(), 4 * 201u);
  EXPECT_EQ(std::count_if(err.begin(), err.end(), [](auto& line) { return !line.starts_with("tutti: "); }), 4 * 200);
  for (std::string r : {"0", "1", "2", "3"}) {
    EXPECT_TRUE(out.contains("[" + r + "] out-" + r + "-200"));
    EXPECT_TRUE(out.contains("[" + r + "] unfinished"));
    EXPECT_TRUE(err.contains("[" + r + "] err-" + r + "-1"));
  }
  Program plain(tutti_run({"-n", "1", "--plain"}, shell("echo as it is")));
  EXPECT_EQ(plain.wait(), 0);
  EXPECT_EQ(plain.out(), "as it is\n");
}

TEST(Run, WritesFiles) {
  Folder folder;
  Program p(tutti_run({"-n", "2", "--quiet", "--log", folder / "logs"}, shell("echo out $RANK; echo err $RANK >&2")));
  EXPECT_EQ(p.wait(), 0);
  EXPECT_EQ(p.out(), "");
  EXPECT_THAT(p.err(), Not(HasSubstr("err")));
  EXPECT_EQ(contents(folder / "logs/rank-1.out"), "out 1\n");
  EXPECT_EQ(contents(folder / "logs/rank-0.err"), "err 0\n");
  Program again(tutti_run({"-n", "2", "--quiet", "--log", folder / "logs"}, shell("echo again")));
  EXPECT_EQ(again.wait(), 0);
  EXPECT_EQ(contents(folder / "logs/rank-1.out"), "again\n");  // not behind what was there
}

// Whoever prints without end is heard in turns.
TEST(Run, ARankThatPrintsWithoutEndKeepsNobodyWaiting) {
  Program p(tutti_run({"-n", "2", "--quiet", "--grace", "0.2"}, shell("[ $RANK = 1 ] && exit 3; exec yes")));
  EXPECT_EQ(p.wait(), 3);
  EXPECT_THAT(p.err(), HasSubstr("tutti: rank 1 failed: exit code 3"));
}

// A reader that has stopped reading, as a pager does.
TEST(Run, AReaderThatStopsKeepsNobodyFromEnding) {
  Folder folder;
  std::string pipe = folder / "pipe", done = folder / "done";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  int reader = ::open(pipe.c_str(), O_RDWR);
  // Rank 0 has filled the pipe when rank 1 is heard to end.
  std::string command = std::string("exec '") + TUTTI_TOOL +
                        "' run -n 2 --grace 0.2 sh -c '[ $RANK = 0 ] && exec yes; " + "touch " + done +
                        "; while true; do sleep 0.01; done' > " + pipe;
  Program p({"sh", "-c", command});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(done); }));
  ASSERT_TRUE(eventually([&] {  // nobody can write there any more
    pollfd ready{reader, POLLOUT, 0};
    return ::poll(&ready, 1, 0) == 0;
  }));
  p.signal(SIGTERM);
  EXPECT_EQ(p.wait(), 128 + SIGTERM);
  ::close(reader);
}

TEST(Run, TooManyOpenFilesAreSaid) {
  Program p({"sh", "-c", std::string("ulimit -n 64; exec '") + TUTTI_TOOL + "' run -n 40 sleep 1000"});
  EXPECT_EQ(p.wait(), 1);
  EXPECT_THAT(p.err(), HasSubstr("too many open files: raise ulimit -n"));
}

// A rank that only says that another failed is not the one that did, even if it ends first.
TEST(Run, WhatFollowsFromAFailureIsNotTheFirst) {
  Folder folder;
  std::string script = "if [ $RANK = 0 ]; then echo '[rank 0] all_reduce: rank 1 failed: no more' >&2; touch " +
                       folder.path() + "/seen; exit 3; fi; while [ ! -e " + folder.path() +
                       "/seen ]; do sleep 0.01; done; sleep 0.5; exit 5";
  Program p(tutti_run({"-n", "2", "--grace", "60"}, shell(script)));
  EXPECT_EQ(p.wait(), 5);
  EXPECT_THAT(p.err(), AllOf(HasSubstr("tutti: rank 1 failed: exit code 5"), Not(HasSubstr("failed: exit code 3")),
                             HasSubstr("tutti:   rank 0  exit code 3, since another rank failed\n")));
  Program alone(tutti_run({"-n", "1"}, shell("echo rank 7 failed: it says; exit 3")));
  EXPECT_EQ(alone.wait(), 3);  // if nobody else does, it is
  EXPECT_THAT(alone.err(), HasSubstr("tutti: rank 0 failed: exit code 3"));
}

TEST(Run, TheFirstFailureIsTheOneReported) {
  Program p(
      tutti_run({"-n", "3", "--grace", "0.2"},
                shell("if [ $RANK = 1 ]; then for i in $(seq 30); do echo line $i; done; echo why >&2; exit 5; fi; "
                      "sleep 1000")));
  EXPECT_EQ(p.wait(), 5);
  EXPECT_THAT(p.err(), AllOf(HasSubstr("tutti: rank 1 failed: exit code 5\n"), HasSubstr("tutti:   line 30\n"),
                             HasSubstr("tutti:   why\n"), Not(HasSubstr("tutti:   line 1\n")),
                             Not(HasSubstr("rank 0 failed")), Not(HasSubstr("rank 2 failed"))));
  Program killed(tutti_run({"-n", "2", "--grace", "0.2"}, shell("[ $RANK = 0 ] && kill -9 $$; sleep 1000")));
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_THAT(killed.err(), HasSubstr("tutti: rank 0 failed: killed by signal 9 (Killed)"));
}

TEST(Run, WhatCannotBeStartedIsSaidOnce) {
  Folder folder;
  auto make = [&](const std::string& name, const std::string& text, bool executable) {
    std::ofstream(folder / name) << text;
    if (executable) std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
    return folder / name;
  };
  std::string bare = make("bare", "echo it runs\n", true), plain = make("plain", "#!/bin/sh\n", false),
              lost = make("lost", "#!/no/such/shell -e\n", true), none = folder / "none";
  struct Case {
    std::string program;
    int code;
    std::string says;
  };
  std::filesystem::create_directory(folder / "inside");
  std::string wrong_format = "nor a script whose first line names its interpreter";
  std::vector<Case> cases = {
      {none, 127, none + " cannot be started: there is no such file. Build it"},
      {plain, 126, plain + " cannot be started: it is not executable. Make it so (chmod +x " + plain + ")"},
      {folder.path(), 126, "cannot be started: it is a folder"},
      {"inside", 127, "it is a folder here. Name a program in it (inside/program)"},
      {bare, 126, wrong_format},
      {lost, 126, "names the interpreter /no/such/shell, which is not there"},
      {"bare", 127, "bare cannot be started: no folder of PATH has it. Did you mean ./bare?"},
      {"plain", 127, "and ./plain is not executable"},
      {"no-such-program", 127, "no folder of PATH has it. Name a program of PATH"},
      {"./none", 127, "./none cannot be started: there is no such file in " + folder.path()},
      {"", 127, "the name of the program is empty"}};
  for (const Case& c : cases) {
    Program p({"sh", "-c", "cd " + folder.path() + " && exec \"$0\" \"$@\"", TUTTI_TOOL, "run", "-n", "2",
               "--max-restarts", "5", c.program});
    EXPECT_EQ(p.wait(), c.code) << c.program << ": " << p.err();
    EXPECT_THAT(p.err(), AllOf(testing::StartsWith("tutti: "), HasSubstr(c.says)));
    std::string err = p.err();
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  }
}

TEST(Run, ProgramsAreFoundWhereRanksLookForThem) {
  Folder folder;
  std::ofstream(folder / "program") << "#!/bin/sh\necho found\n";
  std::filesystem::permissions(folder / "program", std::filesystem::perms::owner_all);
  Program p(tutti_run({"-n", "1", "--plain", "--env", "PATH=/nowhere:" + folder.path()}, {"program"}));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_EQ(p.out(), "found\n");
}

TEST(Run, WrongWordsAreSaid) {
  auto says = [](const Words& words) {
    Program p(words);
    EXPECT_EQ(p.wait(), 2);
    return p.err();
  };
  EXPECT_THAT(says(tutti_run({"-n", "0"}, {"true"})), HasSubstr("-n cannot be 0: it is from 1 to"));
  EXPECT_THAT(says(tutti_run({"-nx"}, {"true"})), HasSubstr("takes a whole number, not 'x'"));
  EXPECT_THAT(says(tutti_run({"--log", "/proc/none"}, {"true"})), HasSubstr("the folder /proc/none cannot be made: "));
  for (std::string hosts : {"a,,b", "a,", ","})
    EXPECT_THAT(says(tutti_run({"--hosts", hosts}, {"true"})), HasSubstr("a name is missing in '" + hosts + "'"));
  EXPECT_THAT(says(tutti_run({"-n", "two"}, {"true"})), HasSubstr("takes a whole number, not 'two'"));
  EXPECT_THAT(says(tutti_run({"--nonsense"}, {"true"})), HasSubstr("there is no option --nonsense"));
  EXPECT_THAT(says(tutti_run({}, {})), HasSubstr("no program is given"));
  EXPECT_THAT(says(tutti_run({"--nnodes", "2", "--node-rank", "2"}, {"true"})), HasSubstr("numbered from 0"));
  EXPECT_THAT(says(tutti_run({"--nnodes", "2"}, {"true"})), HasSubstr("needs --master-addr"));
  for (std::string hosts : {"a:2x", "a:0", "a:", "[::1]:x"})
    EXPECT_THAT(says(tutti_run({"--hosts", hosts}, {"true"})),
                HasSubstr("'" + hosts + "' does not name a number of ranks"));
  EXPECT_THAT(says(tutti_run({"--hosts", "[::1"}, {"true"})), HasSubstr("should be like [::1] or [::1]:4"));
  EXPECT_THAT(says(tutti_run({"--hosts", "a,me@:2"}, {"true"})), HasSubstr("'me@:2' is a host without a name"));
  EXPECT_THAT(says({TUTTI_TOOL, "walk"}), HasSubstr("tutti: there is no command 'walk'\nusage: tutti <command>"));
  EXPECT_THAT(says({TUTTI_TOOL, "rnu"}), HasSubstr("tutti: there is no command 'rnu'; did you mean run?\n"));
  EXPECT_THAT(says({TUTTI_TOOL, "help", "rnu"}), HasSubstr("did you mean run?\n"));
  EXPECT_THAT(says({TUTTI_TOOL}), HasSubstr("usage: tutti <command>"));
}

TEST(Run, HelpAndVersion) {
  auto prints = [](const Words& words) {
    Program p(words);
    EXPECT_EQ(p.wait(), 0);
    EXPECT_EQ(p.err(), "");
    return p.out();
  };
  std::string help = prints({TUTTI_TOOL, "run", "--help"});
  EXPECT_THAT(help, AllOf(StartsWith("usage: tutti run [options] program"), HasSubstr("--max-restarts N")));
  EXPECT_EQ(prints({TUTTI_TOOL, "help", "run"}), help);
  EXPECT_THAT(prints({TUTTI_TOOL, "--help"}), HasSubstr("  tutti bench  measure collectives\n"));
  EXPECT_EQ(prints({TUTTI_TOOL, "help"}), prints({TUTTI_TOOL, "--help"}));
  EXPECT_THAT(prints({TUTTI_TOOL, "--version"}), MatchesRegex("tutti [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(Run, HelpFitsAScreen) {
  Program help({TUTTI_TOOL, "run", "--help"}), all({TUTTI_TOOL, "run", "--help-all"});
  EXPECT_EQ(help.wait() + all.wait(), 0);
  std::string text = help.out();
  EXPECT_THAT(text, AllOf(HasSubstr("--max-restarts N"), HasSubstr("tutti run -n 4 ./train"), HasSubstr("--help-all")));
  EXPECT_THAT(text, Not(HasSubstr("--node-timeout")));
  EXPECT_THAT(all.out(), HasSubstr("--node-timeout SECONDS"));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 23) << text;
  for (const std::string& line : lines(text + all.out())) EXPECT_LE(line.size(), 80u) << line;
}

// ---- Ends

TEST(Run, SignalsArePassedOn) {
  Folder ready;
  std::string script = "trap 'echo usr' USR1; trap 'echo term; exit 0' TERM; touch " + ready.path() +
                       "/$RANK; while true; do sleep 0.01; done";
  Program p(tutti_run({"-n", "2"}, shell(script)));
  auto all_ready = [&] { return std::filesystem::exists(ready / "0") && std::filesystem::exists(ready / "1"); };
  ASSERT_TRUE(eventually(all_ready));
  p.signal(SIGUSR1);
  EXPECT_TRUE(eventually([&] { return lines(p.out()).size() == 2; }));
  p.signal(SIGTERM);
  EXPECT_EQ(p.wait(), 0);  // they ended well
  EXPECT_THAT(p.err(), HasSubstr("tutti: interrupted by SIGTERM, passed on to all ranks; a second one kills them\n"));
  EXPECT_EQ(lines(p.out()), (std::set<std::string>{"[0] usr", "[1] usr", "[0] term", "[1] term"}));
}

// The letter of a process's state: T is stopped.
char state_of(pid_t pid) {
  std::string line = contents("/proc/" + std::to_string(pid) + "/stat");
  size_t end = line.rfind(')');
  return end == std::string::npos || end + 2 >= line.size() ? '?' : line[end + 2];
}
TEST(Run, StopsAndGoesOn) {
  Folder folder, gates;
  std::string gate = gates / "gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  int door = ::open(gate.c_str(), O_RDWR);
  // They wait without processes of their own: a shell is not seen to stop while one that it starts has.
  Program p(tutti_run({"-n", "2"}, shell("echo $$ > " + folder.path() + "/$RANK; read line < " + gate)));
  auto children = pids(folder.path(), 2);
  for (int round = 0; round < 2; ++round) {
    p.signal(SIGTSTP);
    for (pid_t pid : {p.pid(), children[0], children[1]})
      EXPECT_TRUE(eventually([&] { return state_of(pid) == 'T'; })) << pid;
    p.signal(SIGCONT);
    for (pid_t pid : {p.pid(), children[0], children[1]})
      EXPECT_TRUE(eventually([&] { return state_of(pid) != 'T'; })) << pid;
  }
  EXPECT_EQ(::write(door, "\n\n", 2), 2);
  EXPECT_EQ(p.wait(), 0);
  ::close(door);
}

TEST(Run, WhoDoesNotListenIsKilled) {
  Folder ready;
  std::string script = "trap '' TERM INT; echo $$ > " + ready.path() + "/$RANK; while true; do sleep 0.01; done";
  Program p(tutti_run({"-n", "2", "--grace", "0.2", "--max-restarts", "3"}, shell(script)));
  auto children = pids(ready.path(), 2);
  p.signal(SIGINT);
  EXPECT_EQ(p.wait(), 128 + SIGINT);
  for (pid_t pid : children) EXPECT_FALSE(is_alive(pid));
  EXPECT_THAT(p.err(), AllOf(HasSubstr("tutti: interrupted by SIGINT"), Not(HasSubstr("starts all ranks again")),
                             HasSubstr("tutti: ranks 0, 1 did not end by SIGINT: tutti run killed them\n")));
}

TEST(Run, ASignalAfterAFailureDoesNotChangeWhatFailed) {
  Folder ready;
  Program p(tutti_run({"-n", "2", "--grace", "60"}, shell("[ $RANK = 0 ] && exit 4; trap '' TERM INT; echo $$ > " +
                                                          ready.path() + "/1; while true; do sleep 0.01; done")));
  pids(ready.path(), 1);
  ASSERT_TRUE(eventually([&] { return p.err().find("rank 0 failed: exit code 4") != std::string::npos; }));
  p.signal(SIGINT);
  ASSERT_TRUE(eventually([&] { return p.err().find("interrupted by SIGINT") != std::string::npos; }));
  p.signal(SIGTERM);  // who asks twice means it
  EXPECT_EQ(p.wait(), 4);
  EXPECT_THAT(p.err(), HasSubstr("tutti: SIGTERM again: kills all ranks\n"));
}

TEST(Run, TheEndSaysHowEachRankEndedAndWhereItsOutputIs) {
  Folder folder, ready;
  std::string script =
      "case $RANK in 4) exit 0;; 5) trap '' TERM;; 6) trap 'exit 2' TERM;; esac; cd " + ready.path() +
      "; touch $RANK; if [ $RANK = 1 ]; then while [ $(ls | wc -l) != 7 ]; do sleep 0.05; done; exit 3; fi; "
      "while true; do sleep 0.05; done";
  Program p(tutti_run({"-n", "8", "--grace", "1.5", "--log", folder / "logs"}, shell(script)));
  EXPECT_EQ(p.wait(), 3);
  EXPECT_THAT(p.err(), testing::EndsWith("tutti: how the ranks ended:\n"
                                         "tutti:   rank 1            exit code 3\n"
                                         "tutti:   ranks 0, 2, 3, 7  ended by tutti run (SIGTERM)\n"
                                         "tutti:   rank 4            exit code 0\n"
                                         "tutti:   rank 5            ended by tutti run (SIGKILL)\n"
                                         "tutti:   rank 6            exit code 2 after SIGTERM by tutti run\n"
                                         "tutti: the output of rank 1 is in " +
                                         (folder / "logs") + "/rank-1.out and .err (others beside it)\n"));
  // Paths as they can be typed here; many ranks in few words.
  Program many({"sh", "-c", "cd " + folder.path() + " && exec \"$0\" \"$@\"", TUTTI_TOOL, "run", "-n", "32", "--log",
                "logs", "--grace", "1.5", "sh", "-c", "[ $RANK = 7 ] && kill -9 $$; exec sleep 1000"});
  EXPECT_EQ(many.wait(), 128 + SIGKILL);
  EXPECT_THAT(many.err(), HasSubstr("tutti:   rank 7           killed by signal 9 (Killed)\n"
                                    "tutti:   ranks 0-6, 8-31  ended by tutti run (SIGTERM)\n"
                                    "tutti: the output of rank 7 is in logs/rank-7.out and .err (others beside it)\n"));
}

TEST(Run, NothingIsSaidOfRanksThatEndedWell) {
  Program p(tutti_run({"-n", "1"}, {"true"}));
  EXPECT_EQ(p.wait(), 0);
  EXPECT_EQ(p.out() + p.err(), "");
}

TEST(Run, NohupIsRespected) {
  Folder folder;
  std::string script =
      "touch " + folder.path() + "/ready; while [ ! -e " + folder.path() + "/go ]; do sleep 0.01; done";
  Program p(
      {"sh", "-c",
       std::string("trap '' HUP; exec '") + TUTTI_TOOL + "' run -n 1 sh -c '" + script + "; kill -HUP $$; exit 0'"});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder / "ready"); }));
  p.signal(SIGHUP);
  std::ofstream(folder / "go") << "go";
  EXPECT_EQ(p.wait(), 0);
}

TEST(Run, OrphansAreBuried) {
  Folder folder;
  // Its parent ends first; then it does, and is nobody's but the command's.
  std::string orphan = "sh -c \"sh -c 'echo \\$\\$ > " + folder.path() + "/orphan' &\"; ";
  Program p(tutti_run({"-n", "1"}, shell(orphan + "while [ ! -e " + folder.path() + "/go ]; do sleep 0.01; done")));
  std::string entry;
  ASSERT_TRUE(eventually([&] {
    int pid = std::atoi(contents(folder / "orphan").c_str());
    entry = "/proc/" + std::to_string(pid);
    return pid > 0;
  }));
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(entry); })) << contents(entry + "/stat");
  std::ofstream(folder / "go") << "go";
  EXPECT_EQ(p.wait(), 0);
}

TEST(Run, WhatRanksStartedGoesWithThem) {
  Folder running;
  // A child in the background, and one that has left for a session of its own.
  std::string script = "sleep 1000 & echo $! > " + running.path() + "/$RANK-child; setsid sh -c 'echo $$ > " +
                       running.path() + "/'$RANK'-daemon; exec sleep 1000' & " + "while [ ! -s " + running.path() +
                       "/0-daemon ] || [ ! -s " + running.path() + "/1-daemon ] || [ ! -s " + running.path() +
                       "/0-child ]; do sleep 0.01; done; exit $RANK";
  Program p(tutti_run({"-n", "2", "--grace", "0.2"}, shell(script)));
  EXPECT_EQ(p.wait(), 1);
  for (pid_t pid : pids(running.path(), 4)) EXPECT_TRUE(eventually([&] { return !is_alive(pid); })) << pid;
}

TEST(Run, RanksDieWithTheirParent) {
  Folder running;
  std::string script = "trap '' TERM; echo $$ > " + running.path() + "/$RANK; while true; do sleep 0.01; done";
  Program p(tutti_run({"-n", "3"}, shell(script)));
  auto children = pids(running.path(), 3);
  for (pid_t pid : children) EXPECT_TRUE(is_alive(pid));
  p.signal(SIGKILL);
  EXPECT_EQ(p.wait(), 128 + SIGKILL);
  for (pid_t pid : children) EXPECT_TRUE(eventually([&] { return !is_alive(pid); }));
}

TEST(Run, WhatRanksStartedDiesWithTheirParentToo) {
  Folder running;
  Program p(tutti_run({"-n", "2"}, shell("sleep 1000 & echo $! > " + running.path() + "/$RANK; wait")));
  auto children = pids(running.path(), 2);
  p.signal(SIGKILL);
  EXPECT_EQ(p.wait(), 128 + SIGKILL);
  for (pid_t pid : children) EXPECT_TRUE(eventually([&] { return !is_alive(pid); }));
}

TEST(Run, SharedMemoryOfRanksThatWereKilledGoesWithThem) {
  Folder names;
  Program p(tutti_run(
      {"-n", "2", "--grace", "0.2"},
      shell("name=/dev/shm/tutti-$$-test; echo mine > $name; echo $name > " + names.path() + "/$RANK; kill -9 $$")));
  EXPECT_EQ(p.wait(), 128 + SIGKILL);
  int found = 0;
  for (std::string rank : {"0", "1"}) {
    std::string name = contents(names / rank);
    if (name.empty()) continue;  // it was ended before it came to that
    ++found;
    EXPECT_FALSE(std::filesystem::exists(name.substr(0, name.find('\n')))) << name;
  }
  EXPECT_GE(found, 1);
}

TEST(Run, CoresAreDivided) {
  Program all({"sh", "-c", "grep Cpus_allowed_list /proc/self/status"});
  ASSERT_EQ(all.wait(), 0);
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core cannot be divided";
  Words command{"grep", "Cpus_allowed_list", "/proc/self/status"};
  Program bound(tutti_run({"-n", "2", "--plain"}, command)),
      free(tutti_run({"-n", "2", "--plain", "--no-bind"}, command)),
      many(tutti_run({"-n", std::to_string(std::thread::hardware_concurrency() + 1), "--plain"}, command));
  EXPECT_EQ(bound.wait() + free.wait() + many.wait(), 0);
  EXPECT_EQ(lines(bound.out()).size(), 2u);
  EXPECT_EQ(lines(free.out()), lines(all.out()));
  EXPECT_EQ(lines(many.out()), lines(all.out()));  // more than cores: nobody is bound
}

TEST(Run, OnlyAllowedCoresAreShared) {
  auto allowed = [](const std::string& text) { return text.substr(text.find_last_of(" \t", text.size() - 2) + 1); };
  Program mine({"grep", "Cpus_allowed_list", "/proc/self/status"});
  ASSERT_EQ(mine.wait(), 0);
  std::string first = allowed(mine.out());
  first = first.substr(0, first.find_first_of(",-\n"));
  Program probe({"taskset", "-c", first, "true"});
  if (probe.wait() != 0) GTEST_SKIP() << "there is no taskset";
  // One core is allowed, so one rank is started, there.
  Words words{"taskset", "-c", first};
  for (const std::string& w : tutti_run({"--plain"}, {"grep", "Cpus_allowed_list", "/proc/self/status"}))
    words.push_back(w);
  Program p(words);
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_EQ(lines(p.out()).size(), 1u);
  EXPECT_EQ(allowed(p.out()), first + "\n");
  Program info({"taskset", "-c", first, TUTTI_TOOL, "info"});
  EXPECT_EQ(info.wait(), 0);
  EXPECT_THAT(info.out(), ContainsRegex("cores +1"));
}

// ---- Restarts

TEST(Run, StartsAgainAfterAFailure) {
  Folder folder;
  std::string script = "echo epoch $TUTTI_EPOCH; [ $RANK = 0 ] || sleep 0.05; [ $TUTTI_EPOCH = 2 ] || exit 3";
  Program p(tutti_run({"-n", "2", "--max-restarts", "4", "--log", folder / "logs"}, shell(script)));
  EXPECT_EQ(p.wait(), 0);
  EXPECT_EQ(lines(p.out()), (std::set<std::string>{"[0] epoch 0", "[1] epoch 0", "[0] epoch 1", "[1] epoch 1",
                                                   "[0] epoch 2", "[1] epoch 2"}));
  EXPECT_THAT(p.err(), AllOf(HasSubstr("restarting all ranks (restart 1 of 4)"), HasSubstr("restart 2 of 4"),
                             Not(HasSubstr("3 of 4"))));
  EXPECT_EQ(contents(folder / "logs/epoch-1/rank-1.out"), "epoch 1\n");
  Program never(tutti_run({"-n", "2", "--max-restarts", "2"}, shell("exit $((RANK + 4))")));
  EXPECT_THAT(never.wait(), testing::AnyOf(4, 5));
  EXPECT_THAT(never.err(), AllOf(HasSubstr("restart 2 of 2"), Not(HasSubstr("restart 3"))));
}

// ---- Worlds

Words bench(const Words& options) {
  Words words{TUTTI_TOOL, "bench"};
  words.insert(words.end(), options.begin(), options.end());
  return words;
}

TEST(Run, RanksFindTheirWorld) {
  Program p(tutti_run({"-n", "3"}, bench({"-e", "64K", "-f", "64", "-i", "5"})));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_THAT(p.out(), AllOf(HasSubstr("[0] # all_reduce f32 sum, 3 ranks by shm"), Not(HasSubstr("[1]"))));
  EXPECT_EQ(p.err(), "");
}

TEST(Run, RanksThatNeverMeetAreCopiesAndItSaysSo) {
  Program copies(tutti_run({"-n", "3"}, {TUTTI_RANK_PROGRAM, "nothing"}));
  EXPECT_EQ(copies.wait(), 1);
  EXPECT_EQ(copies.err(), "tutti: error: none of the 3 ranks joined the world, so 3 copies of " TUTTI_RANK_PROGRAM
                          " ran on their own\n"
                          "tutti: a rank joins by its first call of launch(), world(), rank() or a collective\n");
  EXPECT_EQ(copies.out(), "");
  Program others(tutti_run({"-n", "3"}, {"true"}));  // may be meant so
  EXPECT_EQ(others.wait(), 0);
  EXPECT_THAT(others.err(), HasSubstr("tutti: none of the 3 ranks joined the world"));
  // In each of these they do meet, the last time without Tutti.
  for (std::string how : {"rank", "launch", "socket"}) {
    Program p(tutti_run({"-n", "2"}, {TUTTI_RANK_PROGRAM, how}));
    EXPECT_EQ(p.wait(), 0) << how << ": " << p.err();
    EXPECT_EQ(p.err(), "") << how;
  }
  // By a shell that keeps no descriptors for what it starts.
  Program closed(tutti_run({"-n", "2"}, shell("exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; " TUTTI_RANK_PROGRAM " rank")));
  EXPECT_EQ(closed.wait(), 0);
  EXPECT_EQ(closed.err(), "");
  Program alone(tutti_run({"-n", "1"}, {TUTTI_RANK_PROGRAM, "nothing"}));
  EXPECT_EQ(alone.wait(), 0);
  EXPECT_EQ(alone.err(), "");
  // A failure is all that there is to say.
  Program failed(tutti_run({"-n", "2"}, {"false"}));
  EXPECT_EQ(failed.wait(), 1);
  EXPECT_THAT(failed.err(), Not(HasSubstr(kNoneJoined)));
}

TEST(Run, AKilledRankEndsTheWorldAndLeavesATrace) {
  Folder folder;
  Program p(
      tutti_run({"-n", "3", "--grace", "60", "--trace", folder / "trace", "--env", "TUTTI_FAULTS=kill rank=1 call=40"},
                bench({"-i", "1000"})));
  EXPECT_EQ(p.wait(), 128 + SIGKILL);
  EXPECT_THAT(p.err(),
              AllOf(HasSubstr("tutti: rank 1 failed: killed by signal 9"), HasSubstr("rank 1 failed: its process")));
  Program trace({TUTTI_TOOL, "trace", folder / "trace"});
  EXPECT_EQ(trace.wait(), 0) << trace.err();
  EXPECT_THAT(trace.out(), AllOf(HasSubstr("2 of 3 ranks left a record"),
                                 ContainsRegex("rank 0 failed: .*rank 1 failed"), HasSubstr("largest skew")));
  EXPECT_THAT(contents(folder / "trace/trace.json"), HasSubstr("\"traceEvents\""));
}

TEST(Trace, DrawsAPicture) {
  Folder folder;
  Program p(tutti_run({"-n", "2", "--trace", folder / "trace"}, bench({"-e", "64K", "-i", "5"})));
  ASSERT_EQ(p.wait(), 0) << p.err();
  Program trace({TUTTI_TOOL, "trace", "--picture", folder / "a.svg", folder / "trace"});
  EXPECT_EQ(trace.wait(), 0) << trace.err();
  EXPECT_THAT(trace.out(), HasSubstr("the picture is in " + (folder / "a.svg")));
  EXPECT_THAT(contents(folder / "a.svg"),
              AllOf(HasSubstr(">rank 0<"), HasSubstr(">rank 1<"), HasSubstr(">all_reduce in flight<")));
  Program end({TUTTI_TOOL, "trace", "-p", folder / "b.svg", "--last", "0.25", folder / "trace"});
  EXPECT_EQ(end.wait(), 0) << end.err();
  EXPECT_THAT(contents(folder / "b.svg"), HasSubstr("in the last 0.25 ms<"));
  Program wrong({TUTTI_TOOL, "trace", "--picture", folder / "a.png", folder / "trace"});
  EXPECT_EQ(wrong.wait(), 2);
  EXPECT_THAT(wrong.err(), HasSubstr("--picture takes a file that ends in .svg"));
}

TEST(Run, TheTraceOfAKilledRunSaysWhatTheSurvivorDid) {
  Folder folder;
  Program p(
      tutti_run({"-n", "2", "--grace", "60", "--trace", folder / "trace", "--env", "TUTTI_FAULTS=kill rank=1 call=40"},
                bench({"-i", "1000"})));
  EXPECT_EQ(p.wait(), 128 + SIGKILL);
  Program trace({TUTTI_TOOL, "trace", folder / "trace"});
  EXPECT_EQ(trace.wait(), 0) << trace.err();
  EXPECT_THAT(
      trace.out(),
      AllOf(HasSubstr("no collective is in the records of two ranks"),
            ContainsRegex("rank 0 was in collective [0-9]+, all_reduce.* at bench.cpp:[0-9]+, which failed after"),
            ContainsRegex("rank 0 failed: .*rank 1 failed"),
            HasSubstr("1 of 2 ranks left a record; rank 1 did not: killed, or ended by force")));
}

TEST(Run, TheTraceOfRestartedRanksIsTheNewest) {
  Folder folder;
  Program p(tutti_run({"-n", "2", "--max-restarts", "2", "--trace", folder / "trace"},
                      shell("[ $TUTTI_EPOCH = 1 ] || export TUTTI_FAULTS='kill rank=1 call=20'; exec \"" TUTTI_TOOL
                            "\" bench -e 1K -i 10")));
  EXPECT_EQ(p.wait(), 0) << p.err();
  Program trace({TUTTI_TOOL, "trace", folder / "trace"});
  EXPECT_EQ(trace.wait(), 0) << trace.err();
  EXPECT_THAT(trace.out(), AllOf(HasSubstr("the newest records of " + (folder / "trace") + " are in " +
                                           (folder / "trace/epoch-1") + ":"),
                                 HasSubstr("largest skew"), Not(HasSubstr("failed"))));
  EXPECT_THAT(contents(folder / "trace/epoch-1/trace.json"), HasSubstr("\"traceEvents\""));
  Program first({TUTTI_TOOL, "trace", folder / "trace/epoch-0"});
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_THAT(first.out(), AllOf(HasSubstr("rank 1 did not"), Not(HasSubstr("the newest records"))));
}

TEST(Run, WorldsMeetAgainInEveryEpoch) {
  // The fault strikes every epoch at the same call; with too few calls it does not strike.
  Program p(tutti_run({"-n", "2", "--max-restarts", "3"},
                      shell("[ $TUTTI_EPOCH = 2 ] || export TUTTI_FAULTS='kill rank=1 call=20'; exec \"" TUTTI_TOOL
                            "\" bench -i 100 -e 4K")));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_THAT(p.err(), AllOf(HasSubstr("restart 2 of 3"), Not(HasSubstr(kNoneJoined))));
}

// ---- Many hosts: here they are all this one, which each reaches by a shell instead of ssh

struct Hosts : testing::Test {
  Hosts() {
    std::ofstream(folder / "rsh") << "#!/bin/sh\nprintf '%s\\n' \"$*\" >> " << (folder / "commands")
                                  << "\n[ \"$1\" = nobody ] && exec cat > /dev/null\nshift\nexec sh -c \"$*\"\n";
    std::filesystem::permissions(folder / "rsh", std::filesystem::perms::owner_all);
  }
  Words options(const Words& more) {
    Words words{"--rsh", folder / "rsh", "--master-port", std::to_string(reserved_port())};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Folder folder;
};

TEST_F(Hosts, RanksAreNumberedOverAllOfThem) {
  Program p(tutti_run(options({"--hosts", "127.0.0.1:2,localhost:1", "--env", "TUTTI_TEXT=it's"}),
                      shell("echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK \"$TUTTI_TEXT\"")));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_EQ(lines(p.out()), (std::set<std::string>{"[0] 0 3 0 2 0 it's", "[1] 1 3 1 2 0 it's", "[2] 2 3 0 1 1 it's"}));
  EXPECT_THAT(contents(folder / "commands"), Not(HasSubstr("SECRET")));
}

TEST_F(Hosts, MayHaveUsers) {
  Program p(tutti_run(options({"--hosts", "me@127.0.0.1:1,you@[localhost]:1"}), shell("echo $RANK $MASTER_ADDR")));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_EQ(lines(p.out()), (std::set<std::string>{"[0] 0 127.0.0.1", "[1] 1 127.0.0.1"}));
  EXPECT_THAT(contents(folder / "commands"),
              AllOf(HasSubstr("me@127.0.0.1 cd "), HasSubstr("you@localhost cd "), Not(HasSubstr("'me@127.0.0.1'"))));
}

TEST_F(Hosts, AreOneWorld) {
  Program p(tutti_run(options({"--hosts", "127.0.0.1,localhost", "-n", "2"}), bench({"-e", "4K", "-i", "5"})),
            {{"TUTTI_SECRET", "only for this"}});
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_THAT(p.out(), HasSubstr("4 ranks by"));
  EXPECT_THAT(contents(folder / "commands"), Not(HasSubstr("only for this")));
}

TEST_F(Hosts, AFailureOfOneEndsAllAndAllStartAgain) {
  Folder started;
  Program p(tutti_run(options({"--hosts", "127.0.0.1:1,localhost:2", "--max-restarts", "1", "--grace", "0.3"}),
                      shell("echo epoch $TUTTI_EPOCH; cd " + started.path() +
                            "; touch $RANK-$TUTTI_EPOCH; [ $RANK = 2 ] || exec sleep 1000; "
                            "while [ ! -e 0-$TUTTI_EPOCH ] || [ ! -e 1-$TUTTI_EPOCH ]; do sleep 0.01; done; exit 7")));
  EXPECT_EQ(p.wait(), 7) << p.err();
  EXPECT_EQ(lines(p.out()).size(), 6u);
  EXPECT_THAT(p.err(), AllOf(HasSubstr("tutti: rank 2 failed: exit code 7"),
                             HasSubstr("on another node, rank 2: exit code 7"), HasSubstr("restart 1 of 1")));
}

// The node of the first failure has a rank that takes its time; the failure counts from when it happened.
TEST_F(Hosts, TheFirstFailureOfAllNodesCounts) {
  Folder failed;
  Program p(tutti_run(options({"--hosts", "127.0.0.1:1,localhost:2", "--grace", "4"}),
                      shell("cd " + failed.path() +
                            "; trap '' TERM; if [ $RANK = 2 ]; then touch now; exit 7; fi; "
                            "while [ $RANK = 1 ] || [ ! -e now ]; do sleep 0.01; done; sleep 2; exit 5")));
  EXPECT_EQ(p.wait(), 7) << p.err();
}

// While nodes wait for each other they hear what they are told, too.
TEST_F(Hosts, EndWhileTheyWaitForOthers) {
  Program p(tutti_run(options({"--hosts", "127.0.0.1:1,nobody:1", "--grace", "1000"}), {"true"}));
  ASSERT_TRUE(eventually([&] {
    std::string commands = contents(folder / "commands");
    return commands.find("127.0.0.1 cd") != std::string::npos && commands.find("nobody cd") != std::string::npos;
  }));
  p.signal(SIGTERM);
  EXPECT_EQ(p.wait(), 128 + SIGTERM);
  EXPECT_THAT(p.err(), HasSubstr("tutti: interrupted by SIGTERM"));
}

TEST_F(Hosts, EndWhenToldTo) {
  Folder ready;
  std::string script = "trap 'echo usr' USR1; trap 'echo term; exit 0' TERM; echo $$ > " + ready.path() +
                       "/$RANK; while true; do sleep 0.01; done";
  Program p(tutti_run(options({"--hosts", "127.0.0.1:1,localhost:1"}), shell(script)));
  auto children = pids(ready.path(), 2);
  p.signal(SIGUSR1);
  EXPECT_TRUE(eventually([&] { return lines(p.out()).size() == 2; }));
  p.signal(SIGTERM);
  EXPECT_EQ(p.wait(), 0);
  for (pid_t pid : children) EXPECT_FALSE(is_alive(pid));
  EXPECT_TRUE(lines(p.out()).contains("[1] term"));
  std::string err = p.err(), said = "tutti: interrupted by SIGTERM";  // once, not by each host
  EXPECT_THAT(err, HasSubstr(said));
  EXPECT_EQ(err.find(said), err.rfind(said)) << err;
}

TEST_F(Hosts, DieWithTheOneThatStartedThem) {
  Folder ready;
  Program p(tutti_run(options({"--hosts", "127.0.0.1:1,localhost:1", "--grace", "0.3"}),
                      shell("trap '' TERM; echo $$ > " + ready.path() + "/$RANK; while true; do sleep 0.01; done")));
  auto children = pids(ready.path(), 2);
  p.signal(SIGKILL);
  p.wait();
  for (pid_t pid : children) EXPECT_TRUE(eventually([&] { return !is_alive(pid); }));
}

TEST_F(Hosts, ANodeThatDoesNotComeIsNamed) {
  Words words =
      options({"--nnodes", "3", "--node-rank", "0", "--master-addr", "127.0.0.1", "--join-timeout", "1", "-n", "1"});
  Words other = words;
  other[std::find(other.begin(), other.end(), "--node-rank") - other.begin() + 1] = "2";
  std::vector<std::pair<std::string, std::string>> secret{{"TUTTI_SECRET", "shared"}};
  Program first(tutti_run(words, {"true"}), secret), third(tutti_run(other, {"true"}), secret);
  EXPECT_EQ(first.wait(), 1);
  third.wait();
  EXPECT_THAT(first.err(), HasSubstr("of 3 nodes these did not come within 1 s: 1"));
  Program without(tutti_run(words, {"true"}), {{"TUTTI_SECRET", ""}});
  EXPECT_EQ(without.wait(), 2);
  EXPECT_THAT(without.err(), HasSubstr("the job needs a secret: set TUTTI_SECRET"));
}

// ---- The other commands

TEST(Info, SaysWhatThereIs) {
  Program p({TUTTI_TOOL, "info"});
  EXPECT_EQ(p.wait(), 0);
  for (const char* word : {"tutti ", "transports     threads, shm", "compiler ", "kernels ", "cores ", "numa nodes ",
                           "gpus ", "network ", "lo 127.0.0.1", "rdma ", "shared memory "})
    EXPECT_THAT(p.out(), HasSubstr(word));
}

TEST(Bench, EveryCollectiveIsRight) {
  for (std::string kind : {"all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter",
                           "all_to_all", "send_recv", "barrier"})
    for (std::string dtype : {"f32", "bf16", "i32"}) {
      Program p(bench({kind, "-n", "3", "-d", dtype, "-b", "12", "-e", "200K", "-f", "128", "-i", "3", "-r", "1"}));
      EXPECT_EQ(p.wait(), 0) << kind << " " << dtype << "\n" << p.out() << p.err();
      EXPECT_THAT(p.out(), HasSubstr(kind + " " + dtype + " sum, 3 ranks by threads"));
    }
}

TEST(Bench, EveryReductionIsRight) {
  for (std::string op : {"sum", "average", "product", "min", "max", "band", "bor", "bxor"}) {
    std::string dtype = op[0] == 'b' ? "i64" : "f64";
    Program p(bench({"all_reduce", "-n", "3", "-d", dtype, "-o", op, "-e", "64K", "-f", "64", "-i", "3", "--async"}));
    EXPECT_EQ(p.wait(), 0) << op << "\n" << p.out() << p.err();
  }
}

#ifndef TUTTI_SANITIZE_THREAD
TEST(Bench, ProcessesAndJson) {
  Program p(bench({"-n", "2", "--processes", "-e", "1K", "-f", "32", "-i", "3", "--json"}));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_EQ(lines(p.out()).size(), 2u);
  EXPECT_THAT(p.out(), AllOf(HasSubstr("\"transport\":\"shm\",\"bytes\":4,"), HasSubstr("\"wrong\":0}")));
}
#endif

TEST(Bench, WrongWordsAreSaid) {
  auto says = [](const Words& options) {
    Program p(bench(options));
    EXPECT_NE(p.wait(), 0);
    return p.err();
  };
  EXPECT_THAT(
      says({"all_redcue"}),
      HasSubstr("there is no collective 'all_redcue': there are all_gather, all_reduce, all_to_all, barrier, "));
  EXPECT_THAT(says({"-d", "f8"}), HasSubstr("-d cannot be 'f8': it is one of f32, f64, "));
  EXPECT_THAT(says({"-o", "mean"}), HasSubstr("-o cannot be 'mean': it is one of sum, average, "));
  EXPECT_THAT(says({"-r", "2"}), HasSubstr("there is no rank 2 to be the root"));
  EXPECT_THAT(says({"-b", "64", "-e", "4"}), HasSubstr("sizes begin at 1 byte"));
  EXPECT_THAT(says({"-o", "band"}), HasSubstr("there is no Reduce::band of f32"));
}

}  // namespace
}  // namespace tutti
