#include "tests/graph/programs.h"

#ifdef TUTTI_SANITIZE_ADDRESS
#include <sanitizer/lsan_interface.h>
#endif

namespace tutti::test {
namespace {

TEST(Programs, RandomProgramsGiveTheBitsOfEager) {
#ifdef TUTTI_SANITIZE_ADDRESS
  // An argument that a program writes, and whose backward never runs, is held by its own history: docs/compile.md.
  __lsan_disable();
#endif
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    compare_program(seed);
    if (testing::Test::HasFailure()) break;
  }
#ifdef TUTTI_SANITIZE_ADDRESS
  __lsan_enable();
#endif
}

}  // namespace
}  // namespace tutti::test
