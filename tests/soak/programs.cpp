// Random programs, compiled against eager, until the time is up. What went wrong can be had again by its seed.
//
//   soak_programs [--seconds 60] [--seed 1]      (--short: a few seconds, for the tests)
#include "tests/graph/programs.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  double seconds = 60;
  uint64_t seed = 100000;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    auto next = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (word == "--short")
      seconds = 3;
    else if (word == "--seconds")
      seconds = std::atof(next());
    else if (word == "--seed")
      seed = std::strtoull(next(), nullptr, 10);
    else
      return std::fprintf(stderr, "what is %s?\n", word.c_str()), 2;
  }
  testing::InitGoogleTest();  // the comparison speaks through its assertions
  struct Stop : testing::EmptyTestEventListener {
    void OnTestPartResult(const testing::TestPartResult& result) override {
      if (result.failed()) failed = true, std::fprintf(stderr, "%s\n", result.message());
    }
    bool failed = false;
  };
  auto* stop = new Stop;
  testing::UnitTest::GetInstance()->listeners().Append(stop);
  uint64_t first = seed;
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; std::chrono::steady_clock::now() < end && !stop->failed; ++seed) {
    bool any_batch = seed % 5 == 2;
    tutti::test::compare_program(
        seed, any_batch ? std::vector<int64_t>{20, 7, 13, 7, 16, 20, 13, 8, 6} : std::vector<int64_t>{3, 3, 3},
        tutti::test::use_of(seed));
  }
  std::printf("%llu programs from seed %llu%s\n", static_cast<unsigned long long>(seed - first),
              static_cast<unsigned long long>(first), stop->failed ? ": the last one differs" : ", all equal");
  return stop->failed ? 1 : 0;
}
