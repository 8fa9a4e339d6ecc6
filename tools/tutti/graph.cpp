// tutti graph: runs a program, and shows the functions that it compiled.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/tutti/command.h"
#include "tools/tutti/supervise.h"

namespace tutti::tool {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Files of earlier runs have other processes' numbers in their names.
std::vector<fs::path> pages_in(const fs::path& folder) {
  std::vector<fs::path> list;
  for (const auto& file : fs::directory_iterator(folder))
    if (file.path().extension() == ".html") list.push_back(file.path());
  std::sort(list.begin(), list.end());
  return list;
}

}  // namespace

int graph(const Words& words) {
  std::string folder = "graphs", code = "llvm";
  bool quiet = false;
  Options options(
      "tutti graph [options] program [arguments]",
      "Runs a program (or `tutti run -n 2 program`), and prints each function that it compiled: its graphs, fusion "
      "groups, plan of memory and generated code. The same is left in a folder, a page a function. A program that runs "
      "without this command leaves them where TUTTI_GRAPH=folder says.");
  options.text("-o, --output", "FOLDER", "where the pages go (what is there of earlier runs stays)", folder);
  options.choice("--code", "which code is printed", code, {"llvm", "assembly", "none"});
  options.flag("-q, --quiet", "say only where the pages are", quiet);
  options.example("tutti graph ./train", "what compile() made of the functions of a program");
  Words command = options.parse(words);
  if (command.empty()) throw UsageError("name the program to run");
  fs::create_directories(folder);
  std::vector<fs::path> before = pages_in(folder);

  Process process;
  process.name = command[0];
  process.command = command;
  process.environment = {{"TUTTI_GRAPH", fs::absolute(folder).string()}, {"TUTTI_GRAPH_CODE", code}};
  Signals signals;
  Printer printer;
  Ending ending = supervise({process}, {}, signals, printer);

  size_t shown = 0;
  std::string where;
  for (const fs::path& page : pages_in(folder)) {
    if (std::find(before.begin(), before.end(), page) != before.end()) continue;
    ++shown;
    if (!quiet) printer.print(1, contents(fs::path(page).replace_extension(".txt")) + "\n");
    where += "  " + page.string() + "\n";
  }
  printer.print(
      1, shown ? fmt::format("{} compiled function{}; open in a browser:\n{}", shown, shown > 1 ? "s" : "", where)
               : fmt::format("{} compiled nothing\n", command[0]));
  bool flushed = printer.flush(signals);
  if (ending.by_signal) return 128 + ending.signal;
  return flushed ? ending.code : 1;
}

}  // namespace tutti::tool
