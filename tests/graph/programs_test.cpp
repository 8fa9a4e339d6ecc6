#include "tests/graph/programs.h"

namespace tutti::test {
namespace {

#ifdef TUTTI_SANITIZE_THREAD  // slow, and the threads of one program are those of another
constexpr uint64_t kPrograms = 600;
#else
constexpr uint64_t kPrograms = 1200;  // soak_programs tries more
#endif

TEST(Programs, RandomProgramsGiveTheBitsOfEager) {
  for (uint64_t seed = 1; seed <= some_of(kPrograms); ++seed) {
    compare_program(seed, {3, 3, 3}, use_of(seed));
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace tutti::test
