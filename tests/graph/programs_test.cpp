#include "tests/graph/programs.h"

#include "base/memory.h"

namespace tutti::test {
namespace {

TEST(Programs, RandomProgramsGiveTheBitsOfEager) {
  compare_program(1);  // what stays for good is there now
  int64_t before = memory::statistics().bytes_in_use;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    compare_program(seed);
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_LE(memory::statistics().bytes_in_use, before + 4096) << "programs that leave memory behind";
}

}  // namespace
}  // namespace tutti::test
