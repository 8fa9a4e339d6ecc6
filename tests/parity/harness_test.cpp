// The harness as users meet it: what docs/collectives.md shows.
#include "tutti/testing.h"
#include "tutti/tutti.h"

namespace {

using namespace tutti;  // NOLINT

struct Sums : harness::RankTest<2, 4> {};  // worlds of two and of four ranks

TUTTI_RANK_TEST(Sums, AddUp) {
  Tensor x = ones({3});
  all_reduce(x);
  EXPECT_EQ(x[0].item<double>(), world_size());  // a failure says "[rank 1 of 4]"
  ON_RANK(0) EXPECT_EQ(x.numel(), 3);            // on that rank only
}

struct Seeds : harness::RankTest<3> {
  SpawnOptions options() const override { return {.seed = 7}; }
};

// One world size: the name has no number. Every rank draws numbers of its own, by the seed.
TUTTI_RANK_TEST(Seeds, ReachTheRanks) {
  EXPECT_STREQ(testing::UnitTest::GetInstance()->current_test_info()->name(), "ReachTheRanks");
  Tensor all = zeros({12});
  all_gather(all, rand({4}));
  EXPECT_FALSE(equal(all.narrow(0, 0, 4), all.narrow(0, 4, 4)));
  Tensor again;
  ON_RANK(0) spawn_ranks(1, [&] { again = rand({4}); }, {.seed = 7});
  ON_RANK(0) EXPECT_TRUE(equal(all.narrow(0, 0, 4), again));
}

}  // namespace
