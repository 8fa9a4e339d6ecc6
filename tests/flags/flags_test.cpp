#include "tools/flags/flags.h"

#include <gmock/gmock.h>

#include <sstream>

namespace tutti::flags {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using Words = std::vector<std::string>;

// Some of everything, as a launcher would have it.
struct Launcher {
  int64_t ranks = 4, nodes = 1, threads = 0, offset = 0, size = 64 << 10;
  double grace = 5;
  bool quiet = false, plain = false, check = false;
  std::string log, transport = "threads";
  std::vector<std::string> variables;
  Options options{"launch [options] program [arguments]", "Starts a program."};

  Launcher() {
    options.number("-n, -np, --ranks, --nproc-per-node", "N", "ranks on this host", ranks, 1, 64);
    options.number("--nnodes", "N", "hosts", nodes, 1);
    options.number("--threads", "N", "threads of a rank (its share of the cores)", threads, 1);
    options.number("--offset", "N", "where to begin", offset, INT64_MIN);
    options.bytes("-b, --bytes", "size of a message", size);
    options.real("--grace", "SECONDS", "before a rank is killed", grace);
    options.flag("-q, --quiet", "print nothing of the ranks", quiet);
    options.flag("-p", "print lines as they are", plain);
    options.flag("--no-check", "believe it", check);
    options.text("-l, --log", "FOLDER", "where output goes", log);
    options.choice("--transport", "what carries messages", transport, {"threads", "shm", "ucx"});
    options.list("--env", "NAME=VALUE", "a variable for the ranks", variables);
  }
  Words parse(const Words& words) { return options.parse(words); }
  Words parse_all(const Words& words) { return options.parse_all(words); }
  std::string error(const Words& words) {
    try {
      options.parse(words);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "no error";
  }
};

// ---- Values

TEST(Flags, EveryWayToWriteAValue) {
  for (const Words& words :
       {Words{"-n", "3"}, Words{"-n3"}, Words{"--ranks", "3"}, Words{"--ranks=3"}, Words{"-np", "3"},
        Words{"--nproc-per-node=3"}, Words{"--nproc_per_node", "3"}, Words{"--nproc_per_node=3"}}) {
    Launcher l;
    EXPECT_THAT(l.parse(words), IsEmpty());
    EXPECT_EQ(l.ranks, 3) << words[0];
  }
  Launcher l;
  l.parse({"-qpn5", "--grace=0.25", "-b", "16M", "--log=out", "--transport", "shm"});
  EXPECT_TRUE(l.quiet && l.plain && !l.check);
  EXPECT_EQ(l.ranks, 5);
  EXPECT_EQ(l.grace, 0.25);
  EXPECT_EQ(l.size, 16 << 20);
  EXPECT_EQ(l.log, "out");
  EXPECT_EQ(l.transport, "shm");
}

TEST(Flags, WhatIsNotGivenKeepsItsDefault) {
  Launcher l;
  EXPECT_THAT(l.parse({}), IsEmpty());
  EXPECT_EQ(l.ranks, 4);
  EXPECT_EQ(l.threads, 0);
  EXPECT_EQ(l.size, 64 << 10);
  EXPECT_EQ(l.transport, "threads");
}

TEST(Flags, NegativeNumbersAreValues) {
  Launcher l;
  l.parse({"--offset", "-5"});
  EXPECT_EQ(l.offset, -5);
  l.parse({"--offset=-6"});
  EXPECT_EQ(l.offset, -6);
  EXPECT_THAT(l.parse_all({"-5", "--ranks", "2", "-.5"}), ElementsAre("-5", "-.5"));
}

TEST(Flags, TheLastValueCountsAndListsKeepAll) {
  Launcher l;
  l.parse({"-n", "2", "--env", "A=1", "--ranks=3", "-q", "-q", "--env=B=2"});
  EXPECT_EQ(l.ranks, 3);
  EXPECT_TRUE(l.quiet);
  EXPECT_THAT(l.variables, ElementsAre("A=1", "B=2"));
  EXPECT_EQ(l.error({"-n", "0", "-n", "3"}),
            "-n cannot be 0: it is from 1 to 64");  // what is wrong is an error all the same
}

// CLI11 would take the next word for an empty value, and divide what is in brackets.
TEST(Flags, ValuesAreTakenAsTheyAre) {
  Launcher l;
  l.log = "before";
  EXPECT_THAT(l.parse({"--log=", "prog"}), ElementsAre("prog"));
  EXPECT_EQ(l.log, "");
  l.log = "before";
  EXPECT_THAT(l.parse({"--log", "", "prog"}), ElementsAre("prog"));
  EXPECT_EQ(l.log, "");
  l.parse({"--log", "[::1],[::2]", "--env=[a,b]", "--env", "x=y=z", "--env", "--unknown=1", "--env=--ranks"});
  EXPECT_EQ(l.log, "[::1],[::2]");
  EXPECT_THAT(l.variables, ElementsAre("[a,b]", "x=y=z", "--unknown=1", "--ranks"));
  l.parse({"-l-"});
  EXPECT_EQ(l.log, "-");
}

// ---- Other words

TEST(Flags, OptionsEndAtTheProgram) {
  Launcher l;
  EXPECT_THAT(l.parse({"-n", "2", "prog", "-np", "9", "--ranks=9", "--nproc_per_node", "--", "--help", "-q"}),
              ElementsAre("prog", "-np", "9", "--ranks=9", "--nproc_per_node", "--", "--help", "-q"));
  EXPECT_EQ(l.ranks, 2);
  EXPECT_FALSE(l.quiet);
  EXPECT_THAT(l.parse({"-q", "--", "-n", "--", "-np"}), ElementsAre("-n", "--", "-np"));
  EXPECT_THAT(l.parse({"--", "prog", "--x=y"}), ElementsAre("prog", "--x=y"));
  EXPECT_THAT(l.parse({"-n", "2", "--"}), IsEmpty());
  EXPECT_THAT(l.parse({"-"}), ElementsAre("-"));
  EXPECT_THAT(l.parse({"-q", "", "-n"}), ElementsAre("", "-n"));
}

TEST(Flags, OptionsMayComeAfterOtherWords) {
  Launcher l;
  EXPECT_THAT(l.parse_all({"a", "-n", "2", "b=c", "--", "-q", "--", "-np"}),
              ElementsAre("a", "b=c", "-q", "--", "-np"));
  EXPECT_EQ(l.ranks, 2);
  EXPECT_FALSE(l.quiet);
}

TEST(Flags, Arguments) {
  std::string collective = "all_reduce", folder;
  std::vector<std::string> files;
  bool quiet = false;
  auto options = [&] {
    Options o("tool", "Does it.");
    o.flag("-q", "say nothing", quiet);
    o.argument("FOLDER", "where it is", folder);
    o.argument("COLLECTIVE", "which one", collective);
    return o;
  };
  EXPECT_THAT(options().help(), StartsWith("usage: tool [options] FOLDER [COLLECTIVE]\n\nDoes it.\n\n"
                                           "  FOLDER      where it is\n"
                                           "  COLLECTIVE  which one (default all_reduce)\n"
                                           "  -q          say nothing\n"));
  EXPECT_THAT(options().parse_all({"here", "-q"}), IsEmpty());
  EXPECT_EQ(folder, "here");
  EXPECT_EQ(collective, "all_reduce");
  options().parse_all({"there", "--", "-gather"});
  EXPECT_EQ(folder, "there");
  EXPECT_EQ(collective, "-gather");
  auto error = [&](const Words& words) -> std::string {
    try {
      options().parse_all(words);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error({"a", "b", "c"}), "'c' is one word too many; --help says which there may be");
  folder = "";
  EXPECT_EQ(error({}), "FOLDER is missing (where it is); --help says more");

  Options rest("tool", "Does it.");
  rest.argument("FOLDER", "where it is", folder);
  rest.arguments("FILE", "what to read", files);
  EXPECT_THAT(rest.help(), StartsWith("usage: tool FOLDER [FILE ...]\n"));
  EXPECT_THAT(rest.parse_all({"a", "b", "c"}), IsEmpty());
  EXPECT_THAT(files, ElementsAre("b", "c"));
}

// ---- Errors

TEST(Flags, UnknownOptions) {
  Launcher l;
  EXPECT_EQ(l.error({"--rank", "2", "prog"}), "there is no option --rank; did you mean --ranks? --help lists all");
  EXPECT_EQ(l.error({"--rnaks=2", "prog"}), "there is no option --rnaks; did you mean --ranks? --help lists all");
  EXPECT_EQ(l.error({"--nproc", "2", "prog"}),
            "there is no option --nproc; did you mean --nproc-per-node? --help lists all");
  EXPECT_EQ(l.error({"-ranks", "2", "prog"}), "there is no option -ranks; did you mean --ranks? --help lists all");
  EXPECT_EQ(l.error({"-Q", "prog"}), "there is no option -Q; did you mean -q? --help lists all");
  EXPECT_EQ(l.error({"-x", "prog"}), "there is no option -x; --help lists all");
  EXPECT_EQ(l.error({"-qx", "prog"}), "there is no option -x; --help lists all");
  EXPECT_EQ(l.error({"--nonsense", "prog"}), "there is no option --nonsense; --help lists all");
  EXPECT_EQ(l.error({"--hlep"}), "there is no option --hlep; did you mean --help? --help lists all");
  EXPECT_THAT(l.error({"--"}), "no error");
  EXPECT_THROW(l.parse_all({"word", "--nonsense"}), UsageError);
}

TEST(Flags, MissingValues) {
  Launcher l;
  EXPECT_EQ(l.error({"--ranks"}), "--ranks has no value; write --ranks N, for example --ranks 4");
  EXPECT_EQ(l.error({"-q", "-np"}), "-np has no value; write -np N, for example -np 4");
  EXPECT_EQ(l.error({"-qn"}), "-n has no value; write -n N, for example -n 4");
  EXPECT_EQ(l.error({"--nproc_per_node"}),
            "--nproc_per_node has no value; write --nproc_per_node N, for example --nproc_per_node 4");
  EXPECT_EQ(l.error({"--log"}), "--log has no value; write --log FOLDER");
  // Another option is no value.
  for (const char* next : {"--ranks", "-np", "--nproc_per_node", "-q", "--", "--help", "-h"})
    EXPECT_EQ(l.error({"--log", next, "prog"}), "--log has no value; write --log FOLDER") << next;
  EXPECT_EQ(l.error({"--quiet=1"}), "--quiet takes no value; write --quiet alone");
  EXPECT_EQ(l.error({"--quiet="}), "--quiet takes no value; write --quiet alone");
}

TEST(Flags, WrongValues) {
  Launcher l;
  EXPECT_EQ(l.error({"-nx"}), "-n takes a whole number, not 'x'; write for example -n 4");
  EXPECT_EQ(l.error({"--ranks", "4.5"}), "--ranks takes a whole number, not '4.5'; write for example --ranks 4");
  EXPECT_EQ(l.error({"--ranks=", "2"}), "--ranks takes a whole number, not ''; write for example --ranks 4");
  EXPECT_EQ(l.error({"--threads", "many"}),
            "--threads takes a whole number, not 'many'; write for example --threads 1");
  EXPECT_EQ(l.error({"-np", "65"}), "-np cannot be 65: it is from 1 to 64");
  EXPECT_EQ(l.error({"--nnodes", "0"}), "--nnodes cannot be 0: it is 1 or more");
  EXPECT_EQ(l.error({"--nnodes", "99999999999999999999"}),
            "--nnodes takes a whole number, not '99999999999999999999'; write for example --nnodes 1");
  EXPECT_EQ(l.error({"--grace", "soon"}), "--grace takes a number, not 'soon'; write for example --grace 5");
  EXPECT_EQ(l.error({"--grace", "-1"}), "--grace cannot be -1: it is 0 or more");
  EXPECT_EQ(l.error({"--grace", "inf"}), "--grace cannot be inf: it is 0 or more");
  EXPECT_EQ(l.error({"--grace", "nan"}), "--grace cannot be nan: it is 0 or more");
  for (const char* size : {"K", "4Q", "-1", "9999999999G", "1.5K", "0x10"})
    EXPECT_EQ(l.error({"-b", size}),
              std::string("-b takes a number of bytes, not '") + size + "'; write for example 4096, 64K, 16M or 1G");
  EXPECT_EQ(l.error({"--transport", "thread"}),
            "--transport cannot be 'thread': it is one of threads, shm, ucx; did you mean threads?");
  EXPECT_EQ(l.error({"--transport", "mpi"}), "--transport cannot be 'mpi': it is one of threads, shm, ucx");
  // None of them has changed anything.
  EXPECT_EQ(l.ranks, 4);
  EXPECT_EQ(l.nodes, 1);
  EXPECT_EQ(l.grace, 5);
  EXPECT_EQ(l.transport, "threads");
}

TEST(Flags, Nearest) {
  std::vector<std::string> commands{"run", "bench", "info", "trace", "graph"};
  EXPECT_EQ(nearest("rnu", commands), "run");
  EXPECT_EQ(nearest("runs", commands), "run");
  EXPECT_EQ(nearest("trcae", commands), "trace");
  EXPECT_EQ(nearest("Bench", commands), "bench");
  EXPECT_EQ(nearest("gr", commands), "graph");
  EXPECT_EQ(nearest("walk", commands), "");
  EXPECT_EQ(nearest("", commands), "");
  EXPECT_EQ(nearest("--", commands), "");
  EXPECT_EQ(nearest("--log_folder", {"--log", "--log-folder"}), "--log-folder");
  EXPECT_EQ(nearest("--lo", {"--log-folder", "--log"}),
            "--log");  // a slip is nearer than the beginning of a longer one
}

// ---- Help

TEST(Flags, Help) {
  Launcher l;
  l.options.example("launch -n 4 ./train", "four processes on this host");
  l.options.example("launch -q -- prog", "quietly");
  EXPECT_EQ(l.options.help(), R"(usage: launch [options] program [arguments]

Starts a program.

  -n, -np, --ranks, --nproc-per-node N
                               ranks on this host (default 4)
  --nnodes N                   hosts (default 1)
  --threads N                  threads of a rank (its share of the cores)
  --offset N                   where to begin (default 0)
  -b, --bytes BYTES            size of a message (default 64K)
  --grace SECONDS              before a rank is killed (default 5)
  -q, --quiet                  print nothing of the ranks
  -p                           print lines as they are
  --no-check                   believe it
  -l, --log FOLDER             where output goes
  --transport threads|shm|ucx  what carries messages (default threads)
  --env NAME=VALUE             a variable for the ranks
  -h, --help                   print this and end

examples:
  launch -n 4 ./train  # four processes on this host
  launch -q -- prog    # quietly
)");
}

TEST(Flags, LinesOfHelpFitAScreen) {
  std::string dtype = "f32", words;
  for (int i = 0; i < 60; ++i) words += "wörd" + std::to_string(i) + (i % 10 ? " " : "\n");
  bool many = false;
  Options options("tool", words + "\n\nA second paragraph.");
  options.flag("--many", words, many);
  options.choice("-d, --dtype", "of elements", dtype, {"f32", "f64", "bf16", "f16", "i8", "u8", "i16", "i32"});
  std::string command = "ssh -o BatchMode=yes";
  options.text("--rsh", "COMMAND",
               "what starts the other hosts, where that is not what this computer has as its own command", command);
  options.example("tool --many " + std::string(60, 'x'), "an example that is too long for its explanation beside it");
  std::istringstream lines(options.help());
  size_t longest = 0, count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    auto columns =
        static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
    longest = std::max(longest, columns);
    EXPECT_THAT(line, Not(testing::EndsWith(" ")));
  }
  EXPECT_LE(longest, 80u);
  EXPECT_GE(longest, 70u);  // lines are filled
  EXPECT_GE(count, 20u);
  EXPECT_THAT(options.help(), HasSubstr("\n\nA second paragraph.\n"));
  EXPECT_THAT(options.help(), HasSubstr("  -d, --dtype DTYPE  of elements: f32, f64, bf16, f16, i8, u8, i16, i32\n     "
                                        "                (default f32)\n"));
  EXPECT_THAT(options.help(), HasSubstr("\n                     (default ssh -o BatchMode=yes)\n"));
}

TEST(Flags, AdvancedOptions) {
  int64_t steps = 10, port = 29400;
  Options options("tool", "Does it.");
  options.number("--steps", "N", "steps", steps);
  EXPECT_THAT(options.help(), Not(HasSubstr("--help-all")));
  options.advanced();
  options.number("--port", "PORT", "where it listens", port);
  EXPECT_THAT(options.help(), HasSubstr("\n\n--help-all lists 1 more option.\n"));
  EXPECT_THAT(options.help(), Not(HasSubstr("--port")));
  EXPECT_THAT(options.help(true), HasSubstr("  --port PORT  where it listens (default 29400)\n"));
  EXPECT_THAT(options.help(true), Not(HasSubstr("more option")));
  options.parse({"--port", "1"});
  EXPECT_EQ(port, 1);
  try {
    options.parse({"--prot", "1"});
    ADD_FAILURE() << "--prot is no option";
  } catch (const UsageError& e) {
    EXPECT_STREQ(e.what(), "there is no option --prot; did you mean --port? --help-all lists all");
  }
}

// ---- Programs

void run_main(std::vector<const char*> words) {
  int64_t steps = 1000;
  Options options("train_gpt", "Trains.");
  options.number("--steps", "N", "steps", steps, 1);
  words.insert(words.begin(), "build/train_gpt");
  options.parse(static_cast<int>(words.size()), words.data());
  std::cerr << "steps " << steps;
  std::exit(42);
}

TEST(FlagsDeathTest, ProgramsEndWithACodeAndAMessage) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(run_main({"--steps", "20"}), testing::ExitedWithCode(42), "^steps 20$");
  EXPECT_EXIT(run_main({"--step", "20"}), testing::ExitedWithCode(2),
              "^train_gpt: there is no option --step; did you mean --steps\\? --help lists all\n$");
  EXPECT_EXIT(run_main({"steps=20"}), testing::ExitedWithCode(2),
              "^train_gpt: 'steps=20' is no option; did you mean --steps\\? --help lists all\n$");
  EXPECT_EXIT(run_main({"20"}), testing::ExitedWithCode(2), "^train_gpt: '20' is no option; --help lists all\n$");
  for (const char* help : {"--help", "-h", "--help-all"})
    EXPECT_EXIT(run_main({"--steps", "20", help}), testing::ExitedWithCode(0), "^$") << help;
}

}  // namespace
}  // namespace tutti::flags
