#include "tests/graph/programs.h"

namespace tutti::test {
namespace {

TEST(Programs, RandomProgramsGiveTheBitsOfEager) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    compare_program(seed);
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace tutti::test
