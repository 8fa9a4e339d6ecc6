// Kills writers of checkpoints a few thousand times: soak_crash [rounds] (--short: a few, for the tests).
#include "tests/support/crash.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>

int main(int argc, char** argv) {
  bool brief = argc > 1 && std::string_view(argv[1]) == "--short";
  int rounds = brief ? 20 : argc > 1 ? std::atoi(argv[1]) : 5000;
  unsigned seed = std::random_device()();
  auto result = tutti::test::crash_writers(rounds, seed);
  std::printf("%d writers killed (seed %u), %d of them after they had written a newer checkpoint\n", result.kills, seed,
              result.replaced);
  if (result.failure.empty()) return 0;
  std::printf("FAILED: %s\n", result.failure.c_str());
  return 1;
}
