// What tutti run prints of its ranks: lines as they come, bars on a terminal, logs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "tests/tools/program.h"
#include "tests/tools/terminal.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using namespace test;  // NOLINT

Words rank_program(const std::string& what, const std::string& word = "") { return {TUTTI_RANK_PROGRAM, what, word}; }

// A chroot may have none.
bool has_pseudoterminals() {
  int fd = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}
constexpr const char* kNoPseudoterminals = "this system has no pseudoterminals: mount devpts at /dev/pts";

// ---- Lines of programs that buffer them

TEST(Output, ThatARankPrintedLastArrivesHoweverItEnds) {
  for (std::string end : {"die", "exit"}) {
    Program p(tutti_run({"-n", end == "die" ? "2" : "1"}, rank_program(end)));
    EXPECT_EQ(p.wait(), end == "die" ? 128 + SIGKILL : 0);
    EXPECT_THAT(p.out(), AllOf(HasSubstr("from printf\n"), HasSubstr("from cout\n")));
  }
}

// Threads of a process that nobody launched, into a pipe.
TEST(Output, OfThreadsArrivesBeforeTheirErrorEndsTheProcess) {
  Program p(rank_program("throw"));
  EXPECT_EQ(p.wait(), 128 + SIGABRT);
  EXPECT_THAT(p.out(), AllOf(HasSubstr("from printf\n"), HasSubstr("from cout\n")));
  EXPECT_THAT(p.err(), HasSubstr("no luck"));
}

TEST(Output, ArrivesWhenItIsPrinted) {
  Folder folder;
  Program p(tutti_run({"-n", "1", "--plain"}, rank_program("wait", folder / "go")));
  EXPECT_TRUE(eventually([&] { return p.out() == "from printf\nfrom cout\n"; })) << p.out();
  std::ofstream(folder / "go") << "go";
  EXPECT_EQ(p.wait(), 0);
}

TEST(Output, OfPythonIsNotBufferedEither) {
  Program p(tutti_run({"-n", "1", "--plain"}, shell("echo $PYTHONUNBUFFERED")));
  EXPECT_EQ(p.wait(), 0);
  EXPECT_EQ(p.out(), "1\n");
  Program chosen(tutti_run({"-n", "1", "--plain"}, shell("echo $PYTHONUNBUFFERED")), {{"PYTHONUNBUFFERED", "x"}});
  EXPECT_EQ(chosen.wait(), 0);
  EXPECT_EQ(chosen.out(), "x\n");
}

TEST(Output, OfSpawnedProcessesIsNeitherLostNorDoubled) {
  Program p(rank_program("spawn"));
  EXPECT_EQ(p.wait(), 0) << p.err();
  std::string out = p.out();
  for (std::string line : {"before\n", "from the rank that dies\n", "after\n"}) {
    EXPECT_THAT(out, HasSubstr(line));
    EXPECT_EQ(out.find(line), out.rfind(line)) << out;
  }
}

// ---- A bar, in what is no terminal

TEST(Output, ThatIsRedrawnIsWrittenOnceToALog) {
  Folder folder;
  Program p(tutti_run({"-n", "1", "--log", folder / "logs"},
                      shell("for i in 1 2 3 4 5; do printf '\\rstep %s  ' $i; done; echo; "
                            "printf 'windows\\r\\n'; printf '\\033[31mred\\033[0m\\n'; printf '\\rlast'")));
  EXPECT_EQ(p.wait(), 0);
  EXPECT_EQ(p.out(), "[0] step 5\n[0] windows\n[0] \x1b[31mred\x1b[0m\n[0] last\n");
  EXPECT_EQ(contents(folder / "logs/rank-0.out"), "step 5\nwindows\nred\nlast\n");
}

TEST(Output, ABarInALogIsLines) {
  Folder folder;
  std::ofstream(folder / "go") << "go";
  Program p(tutti_run({"-n", "2"}, rank_program("bar", folder / "go")));
  EXPECT_EQ(p.wait(), 0);
  std::string err = p.err();
  EXPECT_THAT(err, AllOf(HasSubstr("[0] epoch 1: 20/20 (100%)"), Not(HasSubstr("\r"))));
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
}

// ---- Terminals

std::string last(const Screen& screen) { return screen.lines().empty() ? "" : screen.lines().back(); }

TEST(Terminal, ABarStaysBelowTheLines) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  Folder folder;
  std::string script = "printf '\\rhalf\\033[K' >&2; echo line one; echo line two; while [ ! -e " + folder.path() +
                       "/go ]; do sleep 0.01; done; echo line three; printf '\\rdone\\033[K\\n' >&2";
  TerminalProgram p(tutti_run({"-n", "1"}, shell(script)));
  ASSERT_TRUE(eventually([&] {
    return p.screen().lines() == std::vector<std::string>{"[0] line one", "[0] line two", "[0] half"};
  })) << p.screen().text();
  std::ofstream(folder / "go") << "go";
  EXPECT_EQ(p.wait(), 0);
  auto lines = p.screen().lines();  // what comes first of two streams is not said
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(lines, ElementsAre("[0] done", "[0] line one", "[0] line three", "[0] line two"));
}

TEST(Terminal, TheLibrarysBarIsLive) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  Folder folder;
  TerminalProgram p(tutti_run({"-n", "2", "--log", folder / "logs"}, rank_program("bar", folder / "go")));
  EXPECT_TRUE(eventually([&] {
    return last(p.screen()).starts_with("[0] epoch 1  55%|") && p.screen().lines().size() == 3;
  })) << p.screen().text();
  std::ofstream(folder / "go") << "go";
  EXPECT_EQ(p.wait(), 0);
  EXPECT_EQ(p.screen().lines().size(), 3u) << p.screen().text();
  EXPECT_THAT(p.screen().text(), AllOf(HasSubstr("[0] epoch 1 100%|"), HasSubstr("[1] half of it is done\n")));
  std::string log = contents(folder / "logs/rank-0.err");
  EXPECT_THAT(log, AllOf(HasSubstr("epoch 1 100%|"), Not(HasSubstr("\r")), Not(HasSubstr("\x1b"))));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST(Terminal, EveryRankMayHaveABar) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  Folder folder;
  std::string script = "printf '\\rbar of %s\\033[K' $RANK >&2; while [ ! -e " + folder.path() +
                       "/go ]; do sleep 0.01; done; printf '\\r\\033[K' >&2";
  TerminalProgram p(tutti_run({"-n", "12"}, shell(script)));
  std::vector<std::string> expected;
  for (int r = 0; r < 7; ++r) expected.push_back("[" + std::to_string(r) + "] bar of " + std::to_string(r));
  expected.emplace_back("... and 5 more");  // a third of 24 rows, and not more
  EXPECT_TRUE(eventually([&] { return p.screen().lines() == expected; })) << p.screen().text();
  std::ofstream(folder / "go") << "go";
  EXPECT_EQ(p.wait(), 0);
  EXPECT_THAT(p.screen().text(), Not(HasSubstr("bar of")));
}

TEST(Terminal, ALineIsCutWhereItWouldWrap) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  Folder folder;
  TerminalProgram p(tutti_run({"-n", "1"}, shell("printf '\\r\\033[32m%s\\033[0m' $(seq -s '' 100) >&2; while [ ! -e " +
                                                 folder.path() + "/go ]; do sleep 0.01; done; printf '\\r' >&2")),
                    {.columns = 40});
  ASSERT_TRUE(p.shows("[0] 123456789101112131415161718192021"));
  EXPECT_EQ(p.screen().lines().size(), 1u) << p.screen().text();
  EXPECT_EQ(last(p.screen()).size(), 37u);  // ^C has its place behind it
  std::ofstream(folder / "go") << "go";
  EXPECT_EQ(p.wait(), 0);
}

TEST(Terminal, IsOneToRanksToo) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  TerminalProgram p(tutti_run({"-n", "1"}, shell("[ -t 1 ] && [ -t 2 ] && stty size <&2")));
  EXPECT_EQ(p.wait(), 0);
  EXPECT_EQ(p.screen().lines()[0], "[0] 24 74");  // behind the prefix
}

TEST(Terminal, ItsSizeIsFollowed) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  TerminalProgram p(
      tutti_run({"-n", "1"}, shell("echo ready; while [ \"$(stty size <&2)\" != '30 94' ]; do sleep 0.05; "
                                   "done; echo resized")));
  ASSERT_TRUE(p.shows("ready"));
  p.resize(100, 30);
  EXPECT_EQ(p.wait(), 0);
  EXPECT_THAT(p.screen().text(), HasSubstr("[0] resized"));
}

TEST(Terminal, WhereOnlyOneStreamGoesThereTheOtherIsALog) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  Folder folder;
  Words words = tutti_run({"-n", "1"}, shell("[ -t 1 ] && echo out; [ -t 2 ] && echo err >&2; printf '\\rbar\\n' >&2"));
  TerminalProgram out(words, {.err = folder / "err"});
  EXPECT_EQ(out.wait(), 0);
  EXPECT_EQ(out.screen().text(), "[0] out\n");
  EXPECT_EQ(contents(folder / "err"), "[0] bar\n");
  TerminalProgram err(words, {.out = folder / "out"});
  EXPECT_EQ(err.wait(), 0);
  EXPECT_EQ(err.screen().text(), "[0] err\n[0] bar\n");
  EXPECT_EQ(contents(folder / "out"), "");
}

TEST(Terminal, ThatCannotRedrawIsALog) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  for (std::pair<std::string, std::string> variable : {std::pair{"TERM", "dumb"}, {"TUTTI_READ_BY_LINES", "1"}}) {
    TerminalProgram p(tutti_run({"-n", "1"}, shell("[ -t 2 ] || echo no terminal; printf '\\r1\\r2\\n' >&2")),
                      {.variables = {variable}});
    EXPECT_EQ(p.wait(), 0);
    EXPECT_THAT(p.screen().text(), AllOf(HasSubstr("[0] no terminal\n"), HasSubstr("[0] 2\n")));
  }
}

// As a library's error ends a program in the middle of its bar.
TEST(Terminal, AnErrorBehindABarHasALineOfItsOwn) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  TerminalProgram p(tutti_run({"-n", "1"}, shell("printf '\\r 50%% of it\\033[K' >&2; sleep 1; echo terminate >&2; "
                                                 "kill -9 $$")));
  EXPECT_EQ(p.wait(), 128 + SIGKILL);
  EXPECT_THAT(p.screen().text(), HasSubstr("[0]  50% of it\n[0] terminate\ntutti: rank 0 failed: killed by signal 9"));
  EXPECT_THAT(p.screen().text(), HasSubstr("tutti:   terminate\n"));
}

TEST(Terminal, ColorsReachItAndOtherSequencesDoNot) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  TerminalProgram p(tutti_run({"-n", "1"}, shell("printf '\\033[2J\\033]0;title\\007\\033[31mred\\033[5;5Hline\\n'")));
  EXPECT_EQ(p.wait(), 0);
  EXPECT_THAT(p.bytes(), HasSubstr("[0] \x1b[31mredline\x1b[0m"));
  EXPECT_EQ(p.screen().lines()[0], "[0] redline");
}

TEST(Terminal, ControlCInterrupts) {
  if (!has_pseudoterminals()) GTEST_SKIP() << kNoPseudoterminals;
  Folder folder;
  TerminalProgram p(tutti_run({"-n", "2"}, shell("printf '\\rbar\\033[K' >&2; echo $$ > " + folder.path() +
                                                 "/$RANK; while true; do sleep 0.05; done")));
  pids(folder.path(), 2);
  ASSERT_TRUE(p.shows("[1] bar"));
  p.type("\x03");
  EXPECT_EQ(p.wait(), 128 + SIGINT);
  EXPECT_THAT(p.screen().text(), AllOf(HasSubstr("tutti: interrupted by SIGINT, passed on to all ranks; a second one"),
                                       Not(HasSubstr("failed")), Not(HasSubstr("^C"))));
}

}  // namespace
}  // namespace tutti
