// Training under tutti run whose ranks are killed at random, again and again: it must get to the end, with the weights
// of a run that was left alone. In turns, ranks are killed in one of their collectives (by faults), and at any time,
// from outside.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "tools/flags/flags.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Outcome {
  std::string last;  // line that it printed
  int restarts = 0;
  bool ended_well = false;
};

// Kills a rank now and then, at moments that nothing else depends on. Ranks leave their numbers in files.
class Killer {
 public:
  Killer(std::string folder, int ranks, double seconds, uint64_t seed)
      : folder_(std::move(folder)), ranks_(ranks), seconds_(seconds), random_(seed) {
    plan();
  }
  int milliseconds() const {
    return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(next_ - Clock::now()).count());
  }
  void strike() {
    if (Clock::now() < next_) return;
    plan();
    long pid = 0;
    std::string name;
    std::ifstream(fmt::format("{}/{}", folder_, random_() % static_cast<uint64_t>(ranks_))) >> pid;
    std::ifstream(fmt::format("/proc/{}/comm", pid)) >> name;
    if (pid > 0 && name == std::filesystem::path(TUTTI_RESTART).filename()) ::kill(static_cast<pid_t>(pid), SIGKILL);
  }

 private:
  void plan() {
    std::chrono::duration<double> wait(std::exponential_distribution<>(1 / seconds_)(random_));
    next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
  }
  std::string folder_;
  int ranks_;
  double seconds_;
  std::mt19937_64 random_;
  Clock::time_point next_;
};

void read_line_of(Outcome& outcome, const std::string& text) {
  if (text.find("restarting all ranks") != std::string::npos) ++outcome.restarts;
  if (text.find("the weights are") != std::string::npos) outcome.last = text;
}

Outcome run(const std::string& command, Killer* killer = nullptr) {
  Outcome outcome;
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen((command + " 2>&1").c_str(), "r"), nullptr);
  std::string rest;
  while (pipe) {
    pollfd ready{::fileno(pipe.get()), POLLIN, 0};
    int left = killer ? std::max(0, killer->milliseconds() + 1) : -1;
    if (::poll(&ready, 1, left) > 0) {
      char bytes[4096];
      ssize_t n = ::read(::fileno(pipe.get()), bytes, sizeof bytes);
      if (n <= 0) break;
      rest.append(bytes, static_cast<size_t>(n));
      for (size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1))
        read_line_of(outcome, rest.substr(0, end + 1));
    }
    if (killer) killer->strike();
  }
  outcome.ended_well = pipe && ::pclose(pipe.release()) == 0;
  return outcome;
}

std::string train(int ranks, int64_t steps, const std::string& checkpoint, const std::string& faults) {
  return fmt::format(
      "{} run -n {} --max-restarts 10000 --grace 1 sh -c 'echo $$ > {}.pids/$RANK; {} exec {} --steps {} --checkpoint "
      "{}'",
      TUTTI_TOOL, ranks, checkpoint, faults, TUTTI_RESTART, steps, checkpoint);
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 300;
  int64_t seed = 1, steps = 200;
  bool is_short = false;
  tutti::flags::Options options("soak_restart", "Kills ranks under tutti run --max-restarts, at random moments.");
  options.flag("--short", "one run of each kind, for the tests", is_short);
  options.real("--seconds", "N", "until these are over", seconds);
  options.number("--seed", "N", "begin with these random numbers", seed);
  options.parse(argc, argv);
  if (is_short) seconds = 0, steps = 60;
  std::string folder = (std::filesystem::temp_directory_path() / ("tutti-soak-" + std::to_string(::getpid()))).string();
  std::filesystem::create_directory(folder);
  struct Calm {
    std::string last;
    double seconds = 0;
  };
  std::map<int, Calm> calm;  // by the number of ranks
  int runs = 0, restarts = 0, wrong = 0;
  auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    ::alarm(900);  // a hang ends the program
    int ranks = 2 + static_cast<int>(seed) % 3;
    std::string checkpoint = fmt::format("{}/{}", folder, seed);
    for (const std::string& name : {checkpoint, checkpoint + ".calm"})
      std::filesystem::create_directory(name + ".pids");
    if (calm[ranks].last.empty()) {
      auto begin = Clock::now();
      calm[ranks].last = run(train(ranks, steps, checkpoint + ".calm", "")).last;
      calm[ranks].seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    // Each epoch has a fate of its own, or one that is too hard would be met again and again.
    std::string faults = fmt::format(
        "TUTTI_FAULTS=\"seed=$(({} + TUTTI_EPOCH)); kill probability=0.02; delay probability=0.05 ms=1\"", seed * 1000);
    // Some epochs get to their end between two kills.
    Killer killer(checkpoint + ".pids", ranks, 0.7 * calm[ranks].seconds, static_cast<uint64_t>(seed));
    bool any_time = runs % 2 == 1;
    Outcome hard =
        any_time ? run(train(ranks, steps, checkpoint, ""), &killer) : run(train(ranks, steps, checkpoint, faults));
    ++runs;
    restarts += hard.restarts;
    if (!hard.ended_well || hard.last.empty() || hard.last != calm[ranks].last) {
      ++wrong;
      std::printf("seed %ld: %d ranks, %d restarts: it ended %s with\n  %s  instead of\n  %s", long(seed), ranks,
                  hard.restarts, hard.ended_well ? "well" : "badly", hard.last.c_str(), calm[ranks].last.c_str());
    }
    ++seed;
  } while (Clock::now() < end || runs < 2);
  std::filesystem::remove_all(folder);
  std::printf("%d runs with %d restarts: %d wrong\n", runs, restarts, wrong);
  return wrong || restarts == 0 ? 1 : 0;
}
