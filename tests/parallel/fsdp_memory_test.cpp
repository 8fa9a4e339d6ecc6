// What sharded training needs at most, by the allocator's counters: each rank is a process, and has its own.
#include "base/memory.h"
#include "base/memory_peak.h"
#include "tests/parallel/support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::fully_shard;

constexpr int64_t kWidth = 128, kBlocks = 12;
constexpr int64_t kUnit = (2 * kWidth * 4 * kWidth + 5 * kWidth) * 4;  // bytes of a block's parameters
constexpr int64_t kModel = kBlocks * kUnit;

struct Block : nn::Module<Block> {
  nn::Linear up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};
  TUTTI_FIELDS(up, down)
  Tensor forward(const Tensor& x) { return x + down(relu(up(x))); }
};
struct Tower : nn::Module<Tower> {
  std::vector<Block> blocks;
  TUTTI_FIELDS(blocks)
  Tensor forward(Tensor x) {
    for (Block& block : blocks) x = block(x);
    return x;
  }
};

// Blocks are cut as they are made, so that there is never more than one whole.
int64_t peak_of(const parallel::FullyShardOptions& options, bool sharded = true) {
  set_num_threads(1);
  memory::empty_cache();
  int64_t before = memory::statistics().bytes_in_use;
  memory::reset_peak();
  Tower net;
  for (int64_t i = 0; i < kBlocks; ++i) {
    net.blocks.emplace_back();
    if (sharded) fully_shard(net.blocks.back(), options);
  }
  if (sharded) fully_shard(net, options);
  optim::Adam adam(net.parameters());
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    net(randn({2, kWidth})).pow(2).mean().backward();
    adam.step();
  }
  return memory::peak_bytes() - before;
}

// Large blocks of memory are rounded up by an eighth at most; activations of two rows are small.
double bound(double bytes) { return bytes * 1.125 + (1 << 18); }

#if !defined(TUTTI_SANITIZE_THREAD) && !defined(__SANITIZE_THREAD__)  // which does not follow processes
TEST(FsdpMemory, PartsAndTwoUnits) {
  for (int ranks : {2, 4})
    harness::run_ranks(
        ranks,
        [&] {
          double parts = 4.0 * kModel / ranks;  // parameters, gradients and the two states of Adam
          auto one_ahead = static_cast<double>(peak_of({}));
          EXPECT_GE(one_ahead, parts);
          EXPECT_LE(one_ahead, bound(parts + 2 * 2.0 * kUnit)) << "two units: parameters and gradients of each";
          auto kept = static_cast<double>(peak_of({.reshard_after_forward = false}));
          EXPECT_GE(kept, one_ahead + kModel / 4.0) << "all parameters stay until backward";
          if (rank() == 0) {
            EXPECT_GE(static_cast<double>(peak_of({}, false)), 4.0 * kModel) << "what one process needs";
          }
        },
        {}, harness::processes());
}
#endif

}  // namespace
}  // namespace tutti
