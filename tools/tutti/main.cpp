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
    {"info", "what this build and this machine have", info},
    {"trace", "put the flight records of ranks together: who is slow, and a trace for Perfetto", trace},
    {"graph", "run a program and show what it compiled: graphs, generated code, fusion groups, memory", graph},
};

int usage(FILE* to, int code) {
  std::fprintf(to, "usage: tutti <command> [options]\n\n");
  for (const Command& c : kCommands) std::fprintf(to, "  tutti %-6s %s\n", c.name, c.about);
  std::fprintf(to, "\ntutti <command> --help says more.\n");
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return usage(stderr, 2);
  std::string name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") return usage(stdout, 0);
  try {
    for (const Command& c : kCommands)
      if (name == c.name) return c.run(Words(argv + 2, argv + argc));
    std::fprintf(stderr, "tutti: there is no command '%s'\n", name.c_str());
    return usage(stderr, 2);
  } catch (const UsageError& e) {
    std::fprintf(stderr, "tutti %s: %s\n", name.c_str(), e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tutti %s: %s\n", name.c_str(), e.what());
    return 1;
  }
}
