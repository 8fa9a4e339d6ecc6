// Kills writers of checkpoints a few thousand times: soak_crash [rounds].
#include "tests/support/crash.h"

#include <cstdio>
#include <cstdlib>
#include <random>

int main(int argc, char** argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 5000;
  unsigned seed = std::random_device()();
  auto result = tutti::test::crash_writers(rounds, seed);
  std::printf("%d writers killed (seed %u), %d of them after they had written a newer checkpoint\n", result.kills, seed,
              result.replaced);
  if (result.failure.empty()) return 0;
  std::printf("FAILED: %s\n", result.failure.c_str());
  return 1;
}
