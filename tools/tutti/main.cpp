// The command-line program `tutti`.
#include <cstdio>
#include <exception>

#include "tools/tutti/command.h"

using namespace tutti::tool;

namespace {

struct Command {
  const char *name, *about;
  int (*run)(const Words&);
};
constexpr Command kCommands[] = {
    {"run", "start a program as several ranks, on this host or many", run},
    {"bench", "measure collectives", bench},
    {"info", "features of this build and this machine", info},
    {"trace", "merge flight records: slow and failed ranks, a trace, a picture", trace},
    {"graph", "run a program and show its compiled graphs and code", graph},
};

int usage(FILE* to, int code) {
  std::fprintf(to, "usage: tutti <command> [options]\n\n");
  for (const Command& c : kCommands) std::fprintf(to, "  tutti %-6s %s\n", c.name, c.about);
  std::fprintf(to, "\ntutti <command> --help says more, tutti --version which version this is.\n");
  return code;
}

int no_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& c : kCommands) names.emplace_back(c.name);
  names.insert(names.end(), {"--help", "--version", "help"});
  std::string near = nearest(name, names);
  if (!near.empty()) near = "; did you mean " + near + "?";
  std::fprintf(stderr, "tutti: there is no command '%s'%s\n", name.c_str(), near.c_str());
  return usage(stderr, 2);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return usage(stderr, 2);
  std::string name = argv[1];
  Words words(argv + 2, argv + argc);
  if (name == "--version") return std::printf("tutti %s\n", TUTTI_TOOL_VERSION), 0;
  bool help = name == "--help" || name == "-h" || name == "help";
  if (help && words.empty()) return usage(stdout, 0);
  if (help) {  // tutti help run
    name = words[0];
    words = {"--help"};
  }
  try {
    for (const Command& c : kCommands)
      if (name == c.name) return c.run(words);
    return no_command(name);
  } catch (const UsageError& e) {
    std::fprintf(stderr, "tutti %s: %s\n", name.c_str(), e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tutti %s: %s\n", name.c_str(), e.what());
    return 1;
  }
}
