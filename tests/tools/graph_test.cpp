// tutti graph, with a real program: this one, which is another when it is started by the tool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/program.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using namespace test;  // NOLINT

Words tutti_graph(const Words& options, const Words& command) { return tutti_command("graph", options, command); }

// A test of this program, run by the tool.
Words this_test(const std::string& name) {
  return {std::filesystem::read_symlink("/proc/self/exe").string(), "--gtest_filter=" + name, "--gtest_brief=1"};
}

std::vector<std::string> files_in(const std::string& folder, const std::string& ending) {
  std::vector<std::string> list;
  for (const auto& file : std::filesystem::directory_iterator(folder))
    if (file.path().extension() == ending) list.push_back(file.path());
  return list;
}

void compile_something() {
  auto wave = compile([](const Tensor& x) { return (x * 2 + 1).sin() * x; }, {.name = "wave <1>", .backend = "eager"});
  for (int i = 0; i < 2; ++i) {
    Tensor x = ones({4, 8}).requires_grad_();
    wave(x).sum().backward();
  }
  CompiledBackward backward({.backend = "eager"});
  Tensor x = ones({3}).requires_grad_();
  backward((x * x).sum());
}

TEST(GraphCommand, PrintsWhatAProgramCompilesAndLeavesPages) {
  if (std::getenv("TUTTI_GRAPH")) return compile_something();
  Folder folder;
  Program p(tutti_graph({"-o", folder / "pages"}, this_test("GraphCommand.PrintsWhatAProgramCompilesAndLeavesPages")));
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_THAT(p.out(), AllOf(HasSubstr("graph wave <1> ("), HasSubstr("graph wave <1> backward ("), HasSubstr("sin(%"),
                             HasSubstr("# group 0"), HasSubstr("group 0: "), HasSubstr("buffer 0: "),
                             HasSubstr("graph backward ("), HasSubstr("1 calls traced, 1 run from graphs"),
                             HasSubstr("2 compiled functions; open in a browser:")));
  std::vector<std::string> pages = files_in(folder / "pages", ".html");
  ASSERT_EQ(pages.size(), 2u);
  std::string page;
  for (const std::string& path : pages) {
    EXPECT_THAT(p.out(), HasSubstr(path));
    if (path.find("wave") != std::string::npos) page = contents(path);
  }
  EXPECT_THAT(page, AllOf(HasSubstr("<h1>wave &lt;1&gt;</h1>"), HasSubstr("Fusion groups"), HasSubstr("Memory plan"),
                          HasSubstr("<rect class=\"v\""), HasSubstr("data-v=\"0\">%0</span>"), Not(HasSubstr("http")),
                          Not(HasSubstr("wave <1>"))))
      << "whole, and all of it in the file";
  EXPECT_TRUE(files_in(folder / "pages", ".part").empty());
}

TEST(GraphCommand, EndsAsTheProgramDoes) {
  Folder folder;
  Program p(tutti_graph({"-q", "-o", folder / "pages"}, {"sh", "-c", "echo hello; exit 7"}));
  EXPECT_EQ(p.wait(), 7);
  EXPECT_THAT(p.out(), AllOf(HasSubstr("hello"), HasSubstr("sh compiled nothing")));
}

TEST(GraphCommand, SaysWhatItCannotDo) {
  Program nothing({TUTTI_TOOL, "graph"});
  EXPECT_EQ(nothing.wait(), 2);
  EXPECT_THAT(nothing.err(), HasSubstr("name the program to run"));
  Program kind({TUTTI_TOOL, "graph", "--code", "fortran", "true"});
  EXPECT_EQ(kind.wait(), 2);
  EXPECT_THAT(kind.err(), HasSubstr("it is one of llvm, assembly, none"));
}

TEST(GraphCommand, AFolderThatCannotBeWrittenIsSaidAndHarmsNobody) {
  if (std::getenv("TUTTI_GRAPH")) return compile_something();
  Folder folder;
  std::ofstream(folder / "file") << "not a folder";
  Program p(this_test("GraphCommand.AFolderThatCannotBeWrittenIsSaidAndHarmsNobody"),
            {{"TUTTI_GRAPH", folder / "file"}});
  EXPECT_EQ(p.wait(), 0) << p.err();
  EXPECT_THAT(p.err(), HasSubstr("cannot write " + folder / "file"));
}

}  // namespace
}  // namespace tutti
