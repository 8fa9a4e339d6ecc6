// Real models: W ranks do what one process does with all batches; and the bits are the same on every transport.
#include "tests/parallel/models.h"

#include <fstream>
#include <sstream>

#include "tests/support/scratch.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT

struct Gpt : nn::Module<Gpt> {
  nn::Embedding tokens{11, 8}, places{6, 8};
  nn::TransformerEncoder body{
      8, 2, 2, {.feedforward = 16, .dropout = 0, .gelu = true, .batch_first = true, .norm_first = true}};
  nn::Linear head{8, 11};
  TUTTI_FIELDS(tokens, places, body, head)
  Tensor forward(const Tensor& text) {
    return head(body(tokens(text) + places(arange(text.size(1))), nn::AttendOptions{.causal = true}));
  }
  static Tensor input(uint64_t seed, int64_t rows) {
    manual_seed(seed);
    return randint(0, 11, {rows, 6});
  }
  Tensor loss(const Tensor& y, const Tensor& x) { return cross_entropy(y.flatten(0, 1), ((x * 3 + 1) % 11).flatten()); }
};

struct Recommender : nn::Module<Recommender> {
  nn::EmbeddingBag listener{40, 6, {.mode = BagMode::mean, .sparse = true}};
  nn::Embedding song{40, 6, {.sparse = true}};
  TUTTI_FIELDS(listener, song)
  Tensor forward(const Tensor& x) { return (listener(x.narrow(1, 0, 3)) * song(x.select(1, 3))).sum(-1); }
  static Tensor input(uint64_t seed, int64_t rows) {
    manual_seed(seed);
    return randint(0, 40, {rows, 4});
  }
  Tensor loss(const Tensor& y, const Tensor& x) {
    return binary_cross_entropy_with_logits(y, (x.select(1, 0) % 2).to(y.dtype()));
  }
};

template <class M>
void compare() {
  M net = seeded<M>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.bucket_bytes = 1500});
  optim::SGD sgd(ddp.parameters(), {.lr = 0.1}), alone(whole.parameters(), {.lr = 0.1});
  for (uint64_t step = 0; step < 4; ++step) {
    Tensor x = M::input(step, 3 * world_size());
    sgd.zero_grad();
    alone.zero_grad();
    net.loss(ddp(mine(x, 3)), mine(x, 3)).backward();
    whole.loss(whole(x), x).backward();
    expect_same_gradients(ddp, whole);
    sgd.step();
    alone.step();
  }
  expect_same_values(net, whole);
}

struct Models : QuickTest<1, 2, 4> {};
TUTTI_RANK_TEST(Models, Cnn) { compare<Cnn>(); }
TUTTI_RANK_TEST(Models, Lstm) { compare<Lstm>(); }
TUTTI_RANK_TEST(Models, Gpt) { compare<Gpt>(); }
TUTTI_RANK_TEST(Models, Recommender) { compare<Recommender>(); }

// All parameters after a few steps in f32, as bytes.
template <class M>
std::string train(const harness::Runner& runner, int ranks, const parallel::DdpOptions& options) {
  Scratch scratch;
  std::string path = scratch / "parameters";
  harness::run_ranks(
      ranks,
      [&] {
        set_num_threads(1);
        M net = seeded<M>();
        net.to(f32);
        DistributedDataParallel ddp(net, options);
        optim::SGD sgd(ddp.parameters(), {.lr = 0.1});
        for (uint64_t step = 0; step < 5; ++step) {
          Tensor x = M::input(step, 3 * world_size());
          if (x.is_floating()) x = x.to(f32);
          sgd.zero_grad();
          net.loss(ddp(mine(x, 3)), mine(x, 3)).backward();
          sgd.step();
        }
        ddp.check_equal();
        if (rank() != 0) return;
        std::ofstream out(path, std::ios::binary);
        for (const Tensor& p : net.parameters()) {
          auto values = p.detach().to_vector<float>();
          out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(4 * values.size()));
        }
      },
      {}, runner);
  std::stringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

template <class M>
void compare_transports() {
  for (int ranks : {2, 3, 4}) {
    std::string first;
    for (const auto& runner : harness::every_transport())
      for (int64_t bucket : {200, 1500, 1 << 20})
        for (bool hooked : {false, true}) {
          // How gradients are put together, and when, must not show.
          parallel::CommunicationHook hook = [](parallel::GradientBucket& b) -> std::function<void()> {
            return [&b] { all_reduce(b.gradients, b.average); };
          };
          std::string bytes = train<M>(runner, ranks, {.bucket_bytes = bucket, .hook = hooked ? hook : nullptr});
          if (first.empty()) first = bytes;
          EXPECT_GT(bytes.size(), 100u);
          EXPECT_TRUE(bytes == first) << ranks << " ranks by " << runner.name << ", buckets of " << bucket;
        }
  }
}

TEST(SameBits, CnnSlow) { compare_transports<Cnn>(); }
TEST(SameBits, Lstm) { compare_transports<Lstm>(); }
TEST(SameBits, GptSlow) { compare_transports<Gpt>(); }
TEST(SameBits, RecommenderSlow) { compare_transports<Recommender>(); }

}  // namespace
}  // namespace tutti
