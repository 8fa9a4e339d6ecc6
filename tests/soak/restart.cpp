// Training under tutti run whose ranks are killed at random, again and again: it must get to the end, with the weights
// of a run that was left alone.
//
//   soak_restart [--seconds 300] [--seed 1]     (--short: one run, for the tests)
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

struct Outcome {
  std::string last;  // line that it printed
  int restarts = 0;
  bool ended_well = false;
};

Outcome run(const std::string& command) {
  Outcome outcome;
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen((command + " 2>&1").c_str(), "r"), nullptr);
  char line[4096];
  while (pipe && std::fgets(line, sizeof line, pipe.get())) {
    std::string text = line;
    if (text.find("starts all ranks again") != std::string::npos) ++outcome.restarts;
    if (text.find("the weights are") != std::string::npos) outcome.last = text;
  }
  outcome.ended_well = pipe && ::pclose(pipe.release()) == 0;
  return outcome;
}

std::string train(int ranks, int64_t steps, const std::string& checkpoint, const std::string& faults) {
  return fmt::format("{} run -n {} --max-restarts 10000 --grace 1 sh -c '{} exec {} --steps {} --checkpoint {}'",
                     TUTTI_TOOL, ranks, faults, TUTTI_RESTART, steps, checkpoint);
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 300;
  long seed = 1;
  int64_t steps = 200;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--short")
      seconds = 0, steps = 60;
    else if (word == "--seconds" && i + 1 < argc)
      seconds = std::atof(argv[++i]);
    else if (word == "--seed" && i + 1 < argc)
      seed = std::atol(argv[++i]);
    else
      return std::fprintf(stderr, "what is %s?\n", word.c_str()), 2;
  }
  std::string folder = (std::filesystem::temp_directory_path() / ("tutti-soak-" + std::to_string(::getpid()))).string();
  std::filesystem::create_directory(folder);
  std::map<int, std::string> calm;
  int runs = 0, restarts = 0, wrong = 0;
  auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    ::alarm(900);  // a hang ends the program
    int ranks = 2 + static_cast<int>(seed) % 3;
    std::string checkpoint = fmt::format("{}/{}", folder, seed);
    if (calm[ranks].empty()) calm[ranks] = run(train(ranks, steps, checkpoint + ".calm", "")).last;
    // Each epoch has a fate of its own, or one that is too hard would be met again and again.
    std::string faults = fmt::format(
        "TUTTI_FAULTS=\"seed=$(({} + TUTTI_EPOCH)); kill probability=0.02; delay probability=0.05 ms=1\"", seed * 1000);
    Outcome hard = run(train(ranks, steps, checkpoint, faults));
    ++runs;
    restarts += hard.restarts;
    if (!hard.ended_well || hard.last.empty() || hard.last != calm[ranks]) {
      ++wrong;
      std::printf("seed %ld: %d ranks, %d restarts: it ended %s with\n  %s  instead of\n  %s", seed, ranks,
                  hard.restarts, hard.ended_well ? "well" : "badly", hard.last.c_str(), calm[ranks].c_str());
    }
    ++seed;
  } while (Clock::now() < end);
  std::filesystem::remove_all(folder);
  std::printf("%d runs with %d restarts: %d wrong\n", runs, restarts, wrong);
  return wrong || restarts == 0 ? 1 : 0;
}
