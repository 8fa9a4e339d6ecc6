// What sharded training needs at most, by the allocator's counters: each rank is a process, and has its own.
#include "base/memory.h"
#include "tests/parallel/support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::fully_shard;

constexpr int64_t kWidth = 128, kBlocks = 12;
constexpr int64_t kUnit = (2 * kWidth * 4 * kWidth + 5 * kWidth) * 4;  // bytes of a block's parameters
constexpr int64_t kModel = kBlocks * kUnit;

struct WideBlock : nn::Module<WideBlock> {
  nn::Linear up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};
  TUTTI_FIELDS(up, down)
  Tensor forward(const Tensor& x) { return x + down(relu(up(x))); }
};
struct Tower : nn::Module<Tower> {
  std::vector<WideBlock> blocks;
  TUTTI_FIELDS(blocks)
  Tensor forward(Tensor x) {
    for (WideBlock& block : blocks) x = block(x);
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
  Tensor loss;  // of the step before, while the next is made
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    loss = net(randn({2, kWidth})).pow(2).mean();
    loss.backward();
    adam.step();
  }
  return memory::statistics().bytes_peak - before;
}

// What is large beside the blocks, as words are: in the unit of the outermost module, or in units of its own.
constexpr int64_t kWords = 4096, kTable = kWords * kWidth * 4;  // bytes of its parameters
struct TowerWithWords : nn::Module<TowerWithWords> {
  nn::Embedding tokens{kWords, kWidth};
  Tower tower;
  nn::Linear head{kWidth, kWords};
  TUTTI_FIELDS(tokens, tower, head)
  Tensor forward(const Tensor& x) { return head(tower(tokens(x))); }
};
int64_t peak_with_words(bool units) {
  set_num_threads(1);
  memory::empty_cache();
  int64_t before = memory::statistics().bytes_in_use;
  TowerWithWords net;
  for (int64_t i = 0; i < kBlocks; ++i) {
    net.tower.blocks.emplace_back();
    fully_shard(net.tower.blocks.back());
  }
  if (units) {
    fully_shard(net.tokens);
    fully_shard(net.head);
  }
  fully_shard(net);
  optim::Adam adam(net.parameters());
  for (int step = 0; step < 2; ++step) {
    if (step == 1) memory::reset_peak();  // the whole net was there at first
    adam.zero_grad();
    Tensor x = randint(0, kWords, {8});
    cross_entropy(net(x), x).backward();
    adam.step();
  }
  return memory::statistics().bytes_peak - before;
}

// Large blocks of memory are rounded up by an eighth at most; activations of two rows are small.
double bound(double bytes) { return bytes * 1.125 + (1 << 18); }

#if !defined(TUTTI_SANITIZE_THREAD) && !defined(__SANITIZE_THREAD__)  // which does not follow processes
TEST(FsdpMemory, PartsAndTwoUnits) {
  auto body = [](bool group_memory) {
    double parts = 4.0 * kModel / world_size();  // parameters, gradients and the two states of Adam
    // By shared memory, parameters' parts and two units' gradients are where the allocator does not count them.
    double more = group_memory ? 1.0 * kModel / world_size() + 2.0 * kUnit : 0;
    double one_ahead = static_cast<double>(peak_of({})) + more;
    EXPECT_GE(one_ahead, parts);
    EXPECT_LE(one_ahead, bound(parts + 2 * 2.0 * kUnit)) << "two units: parameters and gradients of each";
    double kept = static_cast<double>(peak_of({.reshard_after_forward = false})) + more;
    EXPECT_GE(kept, one_ahead + kModel / 4.0) << "all parameters stay until backward";
    if (rank() == 0) {
      EXPECT_GE(static_cast<double>(peak_of({}, false)), 4.0 * kModel) << "what one process needs";
    }
  };
  for (int ranks : {2, 4}) harness::run_ranks(ranks, [&] { body(true); }, {}, harness::processes());
  if (comm::has_engine("ucx")) harness::run_ranks(2, [&] { body(false); }, {}, harness::hosts("ucx"));
}

// The outermost unit's parameters and gradients are whole from the beginning of backward to its end.
TEST(FsdpMemory, LargePartsOfTheOutermostModuleAreWorthUnits) {
  harness::run_ranks(
      2,
      [] {
        int64_t inside = peak_with_words(false), apart = peak_with_words(true);
        EXPECT_LE(apart + 2 * kTable, inside) << "one table's parameters and gradients";
      },
      {}, harness::processes());
}
#endif

}  // namespace
}  // namespace tutti
