// Kills writers of checkpoints again and again.
//
//   soak_crash [--rounds 5000] [--seconds 0]     (--short: a few, for the tests; seconds: until they are over)
#include "tests/support/crash.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

int main(int argc, char** argv) {
  int rounds = 5000;
  double seconds = 0;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    auto next = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (word == "--short")
      rounds = 20;
    else if (word == "--rounds")
      rounds = std::atoi(next());
    else if (word == "--seconds")
      seconds = std::atof(next());
    else
      return std::fprintf(stderr, "what is %s?\n", word.c_str()), 2;
  }
  unsigned seed = std::random_device()();
  int kills = 0, replaced = 0;
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  do {
    auto result = tutti::test::crash_writers(seconds > 0 ? 100 : rounds, seed++);
    kills += result.kills;
    replaced += result.replaced;
    if (!result.failure.empty()) return std::printf("FAILED: %s (seed %u)\n", result.failure.c_str(), seed - 1), 1;
  } while (std::chrono::steady_clock::now() < end);
  std::printf("%d writers killed (last seed %u), %d of them after they had written a newer checkpoint\n", kills,
              seed - 1, replaced);
  return 0;
}
