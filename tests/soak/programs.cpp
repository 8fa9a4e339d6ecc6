// Random programs, compiled against eager, until the time is up. What went wrong can be had again by its seed.
#include "tests/graph/programs.h"

#include <chrono>
#include <cstdio>

#include "tools/flags/flags.h"

int main(int argc, char** argv) {
  double seconds = 60;
  int64_t first = 100000;
  bool is_short = false;
  tutti::flags::Options options("soak_programs", "Random programs, compiled against eager, until the time is up.");
  options.flag("--short", "a few seconds, for the tests", is_short);
  options.real("--seconds", "N", "until these are over", seconds);
  options.number("--seed", "N", "the first program", first);
  options.parse(argc, argv);
  if (is_short) seconds = 3;
  testing::InitGoogleTest();  // the comparison speaks through its assertions
  struct Stop : testing::EmptyTestEventListener {
    void OnTestPartResult(const testing::TestPartResult& result) override {
      if (result.failed()) failed = true, std::fprintf(stderr, "%s\n", result.message());
    }
    bool failed = false;
  };
  auto* stop = new Stop;
  testing::UnitTest::GetInstance()->listeners().Append(stop);
  auto seed = static_cast<uint64_t>(first);
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; std::chrono::steady_clock::now() < end && !stop->failed; ++seed) {
    bool any_batch = seed % 5 == 2;
    tutti::test::compare_program(
        seed, any_batch ? std::vector<int64_t>{20, 7, 13, 7, 16, 20, 13, 8, 6} : std::vector<int64_t>{3, 3, 3},
        tutti::test::use_of(seed));
  }
  std::printf("%llu programs from seed %llu%s\n",
              static_cast<unsigned long long>(seed) - static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first), stop->failed ? ": the last one differs" : ", all equal");
  return stop->failed ? 1 : 0;
}
