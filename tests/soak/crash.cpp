// Kills writers of checkpoints again and again.
#include "tests/support/crash.h"

#include <chrono>
#include <cstdio>
#include <random>

#include "tools/flags/flags.h"

int main(int argc, char** argv) {
  int64_t rounds = 5000;
  double seconds = 0;
  bool is_short = false;
  tutti::flags::Options options("soak_crash", "Kills writers of checkpoints again and again.");
  options.flag("--short", "a few kills, for the tests", is_short);
  options.number("--rounds", "N", "kills", rounds, 1, 1'000'000);
  options.real("--seconds", "N", "instead of rounds: until these are over", seconds);
  options.parse(argc, argv);
  if (is_short) rounds = 20;
  unsigned seed = std::random_device()();
  int kills = 0, replaced = 0;
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  do {
    auto result = tutti::test::crash_writers(seconds > 0 ? 100 : static_cast<int>(rounds), seed++);
    kills += result.kills;
    replaced += result.replaced;
    if (!result.failure.empty()) return std::printf("FAILED: %s (seed %u)\n", result.failure.c_str(), seed - 1), 1;
  } while (std::chrono::steady_clock::now() < end);
  std::printf("%d writers killed (last seed %u), %d of them after they had written a newer checkpoint\n", kills,
              seed - 1, replaced);
  return 0;
}
