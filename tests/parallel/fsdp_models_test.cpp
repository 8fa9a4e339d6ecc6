// Sharded training of real models: W ranks do what one process does with all batches, and the same bits on every
// transport.
#include <fstream>
#include <sstream>

#include "tests/parallel/models.h"
#include "tests/support/scratch.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::fully_shard;
using parallel::FullyShardOptions;

struct Perceptron : nn::Module<Perceptron> {
  nn::Linear first{6, 8}, second{8, 8}, last{8, 3};
  TUTTI_FIELDS(first, second, last)
  Tensor forward(const Tensor& x) { return last(tanh(second(tanh(first(x))))); }
  static Tensor input(uint64_t seed, int64_t rows) { return numbers({rows, 6}, seed); }
  Tensor loss(const Tensor& y, const Tensor& x) { return (y - x.narrow(1, 0, 3)).pow(2).mean(); }
};

// What becomes a unit of each model, beside the model itself.
void shard_parts(Perceptron& net, const FullyShardOptions& options) {
  fully_shard(net.first, options);
  fully_shard(net.second, options);
}
void shard_parts(Cnn& net, const FullyShardOptions& options) {
  fully_shard(net.conv1, options);
  fully_shard(net.fc1, options);
}
void shard_parts(Lstm& net, const FullyShardOptions& options) { fully_shard(net.lstm, options); }

// Of blocks, each of which can be a unit.
struct AttentionBlock : nn::Module<AttentionBlock> {
  nn::LayerNorm norm1{8}, norm2{8};
  nn::Linear mix{8, 8}, up{8, 16}, down{16, 8};
  TUTTI_FIELDS(norm1, norm2, mix, up, down)
  Tensor forward(const Tensor& x) {
    Tensor h = norm1(x);
    Tensor y = x + mix(scaled_dot_product_attention(h, h, h, {.causal = true}));
    return y + down(gelu(up(norm2(y))));
  }
};
struct ShardedGpt : nn::Module<ShardedGpt> {
  nn::Embedding tokens{11, 8}, places{6, 8};
  std::vector<AttentionBlock> blocks = std::vector<AttentionBlock>(3);
  nn::Linear head{8, 11};
  TUTTI_FIELDS(tokens, places, blocks, head)
  Tensor forward(const Tensor& text) {
    Tensor h = tokens(text) + places(arange(text.size(1)));
    for (AttentionBlock& block : blocks) h = block(h);
    return head(h);
  }
  static Tensor input(uint64_t seed, int64_t rows) {
    manual_seed(seed);
    return randint(0, 11, {rows, 6});
  }
  Tensor loss(const Tensor& y, const Tensor& x) { return cross_entropy(y.flatten(0, 1), ((x * 3 + 1) % 11).flatten()); }
};
void shard_parts(ShardedGpt& net, const FullyShardOptions& options) {
  for (AttentionBlock& block : net.blocks) fully_shard(block, options);
  fully_shard(net.head, options);
}

template <class M>
void compare_sharded(const FullyShardOptions& options = {}) {
  M net = seeded<M>(), whole = net.clone();
  shard_parts(net, options);
  fully_shard(net, options);
  optim::Adam adam(net.parameters(), {.lr = 0.05}), alone(whole.parameters(), {.lr = 0.05});
  for (uint64_t step = 0; step < 4; ++step) {
    Tensor x = M::input(step, 3 * world_size());
    adam.zero_grad();
    alone.zero_grad();
    net.loss(net(mine(x, 3)), mine(x, 3)).backward();
    whole.loss(whole(x), x).backward();
    double norm = parallel::clip_grad_norm_(net.parameters(), 0.1);
    EXPECT_NEAR(norm, optim::clip_grad_norm_(whole.parameters(), 0.1), 1e-12 * std::max(1.0, norm));
    adam.step();
    alone.step();
  }
  nn::StateDict found = parallel::full_state_dict(net), wanted = whole.state_dict();
  EXPECT_EQ(found.size(), rank() == 0 ? wanted.size() : 0u);
  for (auto& [name, value] : found) expect_close(value, wanted.at(name), name);
}

struct FsdpModels : QuickTest<1, 2, 3, 4> {};
TUTTI_RANK_TEST(FsdpModels, Mlp) { compare_sharded<Perceptron>(); }
TUTTI_RANK_TEST(FsdpModels, Cnn) { compare_sharded<Cnn>(); }
TUTTI_RANK_TEST(FsdpModels, Lstm) { compare_sharded<Lstm>(); }
TUTTI_RANK_TEST(FsdpModels, Gpt) { compare_sharded<ShardedGpt>(); }

struct FsdpWays : QuickTest<2, 3> {};
TUTTI_RANK_TEST(FsdpWays, KeptAfterForward) { compare_sharded<ShardedGpt>({.reshard_after_forward = false}); }
TUTTI_RANK_TEST(FsdpWays, NothingAhead) { compare_sharded<ShardedGpt>({.prefetch = 0}); }
TUTTI_RANK_TEST(FsdpWays, MuchAhead) { compare_sharded<ShardedGpt>({.prefetch = 5}); }

// All parameters after a few steps in f32, as bytes.
template <class M>
std::string train_sharded(const harness::Runner& runner, int ranks, const FullyShardOptions& options) {
  Scratch scratch;
  std::string path = scratch / "parameters";
  harness::run_ranks(
      ranks,
      [&] {
        set_num_threads(1);
        M net = seeded<M>();
        net.to(f32);
        shard_parts(net, options);
        fully_shard(net, options);
        optim::Adam adam(net.parameters(), {.lr = 0.05});
        for (uint64_t step = 0; step < 4; ++step) {
          Tensor x = M::input(step, 3 * world_size());
          if (x.is_floating()) x = x.to(f32);
          adam.zero_grad();
          net.loss(net(mine(x, 3)), mine(x, 3)).backward();
          parallel::clip_grad_norm_(net.parameters(), 0.5);
          adam.step();
        }
        nn::StateDict state = parallel::full_state_dict(net);
        if (rank() != 0) return;
        std::ofstream out(path, std::ios::binary);
        for (auto& [name, value] : state) {
          std::vector<float> values = value.template to_vector<float>();
          out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(4 * values.size()));
        }
      },
      {}, runner);
  std::stringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

template <class M>
void compare_sharded_transports() {
  for (int ranks : {2, 3}) {
    std::string first;
    for (const auto& runner : harness::every_transport())
      for (int prefetch : {0, 1}) {
        // When parameters are gathered must not show.
        std::string bytes =
            train_sharded<M>(runner, ranks, {.reshard_after_forward = prefetch == 0, .prefetch = prefetch});
        if (first.empty()) first = bytes;
        EXPECT_GT(bytes.size(), 100u);
        EXPECT_TRUE(bytes == first) << ranks << " ranks by " << runner.name << ", " << prefetch << " ahead";
      }
  }
}

TEST(FsdpSameBits, Cnn) { compare_sharded_transports<Cnn>(); }
TEST(FsdpSameBits, Lstm) { compare_sharded_transports<Lstm>(); }
TEST(FsdpSameBits, Gpt) { compare_sharded_transports<ShardedGpt>(); }

}  // namespace
}  // namespace tutti
