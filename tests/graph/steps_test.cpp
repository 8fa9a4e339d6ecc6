// Whole training steps of models of many kinds, compiled as the guide says: losses, gradients, buffers and what the
// optimizer keeps are eager's, bit for bit, and graphs are made when the batch size or the mode is another, not else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tutti/tutti.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

struct Batch {
  Tensor x, y;
  TUTTI_FIELDS(x, y)
};

/// How a step is compiled.
enum class StepWay {
  loss,      // the function gives the loss
  step,      // and has the backward pass in it
  captured,  // the pass is one of CompiledBackward
};
const char* name(StepWay way) { return way == StepWay::loss ? "loss" : way == StepWay::step ? "step" : "captured"; }

struct Training {
  std::optional<DType> autocast = {};
  bool scaler = false, clip = true, any_batch = false;
};

void expect_same(const TensorList& got, const TensorList& wanted, const char* what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), wanted[i].defined()) << what << ' ' << i;
    if (!got[i].defined()) continue;
    if (got[i].is_sparse())
      ASSERT_TRUE(identical(got[i].to_dense(), wanted[i].to_dense())) << what << ' ' << i;
    else
      ASSERT_TRUE(identical(got[i], wanted[i])) << what << ' ' << i;
  }
}
TensorList gradients(const nn::ModuleBase& net) {
  TensorList list;
  for (const Tensor& p : net.parameters()) list.push_back(p.grad());
  return list;
}

template <class Net, class Optimizer>
struct Trainer {
  Net& net;
  Optimizer optimizer;
  Training how;
  optim::Scheduler schedule{optimizer, optim::warmup(3) * optim::cosine(10)};
  amp::GradScaler scaler{{.scale = 1024, .growth_interval = 2, .enabled = how.scaler}};

  /// `run` gives a loss whose gradients are there, or are to be had by `pass`.
  template <class Run, class Pass>
  Tensor step(const Batch& batch, uint64_t seed, const Run& run, const Pass& pass) {
    manual_seed(seed);
    optimizer.zero_grad();
    Tensor loss = run(batch);
    pass(loss);
    if (how.scaler) scaler.unscale_(optimizer);
    if (how.clip) optim::clip_grad_norm_(net.parameters(), 0.5);
    how.scaler ? void(scaler.step(optimizer)) : optimizer.step();
    if (how.scaler) scaler.update();
    schedule.step();
    return loss.detach();
  }
};

template <class Optimizer = optim::Adam, class Net, class Loss, class Make>
void expect_steps(StepWay way, const Net& given, const Loss& loss, const Make& make, const Training& how = {}) {
  SCOPED_TRACE(std::string(name(way)) + (how.any_batch ? ", any batch" : ""));
  Net net = given.clone(), twin = given.clone();
  auto loss_of = [&](Net& n, const Batch& b, const Tensor& scale) {
    std::optional<amp::Autocast> cast;
    if (how.autocast) cast.emplace(*how.autocast);
    Tensor found = loss(n, b);
    cast.reset();
    return how.scaler ? found * scale : found;
  };
  Trainer<Net, Optimizer> eager{net, Optimizer(net.parameters(), {.lr = 0.01}), how};
  Trainer<Net, Optimizer> other{twin, Optimizer(twin.parameters(), {.lr = 0.01}), how};
  auto compiled = compile(
      [&](const Batch& b, const Tensor& scale) {
        Tensor found = loss_of(twin, b, scale);
        if (way == StepWay::step) found.backward();
        return way == StepWay::step ? found.detach() : found;
      },
      {.name = "step", .dynamic_batch = how.any_batch});
  CompiledBackward captured;
  auto pass = [](const Tensor& found) { found.backward(); };
  auto steps = [&](int64_t rows, int count, uint64_t from) {
    for (int i = 0; i < count; ++i) {
      uint64_t seed = from + static_cast<uint64_t>(i);
      manual_seed(seed);
      Batch batch = make(rows);
      Tensor wanted = eager.step(
          batch, seed, [&](const Batch& b) { return loss_of(net, b, full({}, eager.scaler.scale())); }, pass);
      auto run = [&](const Batch& b) { return compiled(b, full({}, other.scaler.scale())); };
      Tensor got = way == StepWay::loss   ? other.step(batch, seed, run, pass)
                   : way == StepWay::step ? other.step(batch, seed, run, [](const Tensor&) {})
                                          : other.step(batch, seed, run, [&](const Tensor& found) { captured(found); });
      SCOPED_TRACE("step " + std::to_string(seed) + "\n" + compiled.explain());
      ASSERT_TRUE(identical(got, wanted));
      expect_same(gradients(twin), gradients(net), "gradient");
      expect_same(twin.parameters(), net.parameters(), "parameter");
      expect_same(twin.buffers(), net.buffers(), "buffer");
      ASSERT_EQ(io::state_to_bytes(other.optimizer.state()), io::state_to_bytes(eager.optimizer.state()));
    }
  };
  steps(6, 5, 1);
  EXPECT_EQ(compiled.stats().forward_graphs, 1) << compiled.explain();
  EXPECT_EQ(compiled.stats().traces, 1) << compiled.explain();
  if (how.any_batch) {
    steps(4, 1, 10), steps(5, 3, 11);
    EXPECT_EQ(compiled.stats().forward_graphs, 1) << compiled.explain();
    EXPECT_EQ(compiled.stats().traces, 2) << compiled.explain();
    EXPECT_EQ(compiled.stats().fitted, 1) << compiled.explain();
    return;
  }
  steps(4, 3, 10);
  EXPECT_EQ(compiled.stats().forward_graphs, 2) << compiled.explain();
  EXPECT_EQ(compiled.stats().traces, 2) << compiled.explain();
  EXPECT_THAT(compiled.explain(), HasSubstr("graph 1: argument 0: "));
  net.eval(), twin.eval();
  steps(4, 2, 20);
  EXPECT_EQ(compiled.stats().forward_graphs, 3) << compiled.explain();
  EXPECT_THAT(compiled.explain(), HasSubstr("that does not train"));
  net.train(), twin.train();
  steps(4, 2, 30), steps(6, 2, 40);
  EXPECT_EQ(compiled.stats().traces, 3) << compiled.explain();
  EXPECT_EQ(compiled.stats().recompilations, 2);
  EXPECT_EQ(compiled.stats().fallbacks, 0);
}

constexpr StepWay kWays[] = {StepWay::loss, StepWay::step, StepWay::captured};

template <class Optimizer = optim::Adam, class Net, class Loss, class Make>
void expect_all_ways(const Net& net, const Loss& loss, const Make& make, const Training& how = {}) {
  for (StepWay way : kWays)
    for (bool any_batch : {false, true}) {
      Training training = how;
      training.any_batch = any_batch;
      expect_steps<Optimizer>(way, net, loss, make, training);
    }
}

Batch labelled_images(int64_t rows) { return {randn({rows, 3, 8, 8}), randint(5, {rows})}; }
Batch words(int64_t rows) { return {randint(11, {rows, 7}), randint(11, {rows, 7})}; }
Batch sequences(int64_t rows) { return {randn({rows, 5, 4}), randn({rows, 5, 1})}; }

struct ResidualBlock : nn::Module<ResidualBlock> {
  nn::Conv2d first, second;
  nn::BatchNorm2d norm1, norm2;
  std::optional<nn::Conv2d> side;
  TUTTI_FIELDS(first, second, norm1, norm2, side)
  ResidualBlock(int64_t in, int64_t out, int64_t stride, const nn::BatchNormOptions& norm)
      : first(in, out, 3, {.stride = stride, .padding = 1, .bias = false}),
        second(out, out, 3, {.padding = 1, .bias = false}),
        norm1(out, norm),
        norm2(out, norm) {
    if (in != out || stride != 1) side.emplace(in, out, 1, nn::ConvLayerOptions{.stride = stride});
  }
  Tensor forward(const Tensor& x) {
    Tensor y = norm2(second(relu(norm1(first(x)))));
    return relu(y + (side ? (*side)(x) : x));
  }
};
struct ResNet : nn::Module<ResNet> {
  nn::Conv2d stem{3, 16, 3, {.padding = 1}};
  ResidualBlock one, two;
  nn::Linear head{32, 5};
  TUTTI_FIELDS(stem, one, two, head)
  explicit ResNet(const nn::BatchNormOptions& norm = {}) : one(16, 16, 1, norm), two(16, 32, 2, norm) {}
  Tensor forward(const Tensor& x) { return head(two(one(relu(stem(x)))).mean({2, 3})); }
};
constexpr auto classify = [](auto& net, const Batch& b) { return cross_entropy(net(b.x), b.y); };

TEST(Steps, AResNet) {
  manual_seed(1);
  ResNet net;
  expect_all_ways<optim::SGD>(net, classify, labelled_images);
}

TEST(Steps, AResNetWhoseNormsAverageAllBatches) {
  manual_seed(1);
  ResNet net({.momentum = {}});
  expect_all_ways(net, classify, labelled_images);
}

// The share of a batch is a tensor there, and gives what the number would.
TEST(Steps, NormsThatAverageAllBatchesHaveTheBitsOfNumbers) {
  nn::BatchNorm2d average(4, {.momentum = {}}), numbers(4);
  nn::InstanceNorm2d instances(4, {.momentum = {}, .track_running_stats = true}),
      instance_numbers(4, {.track_running_stats = true});
  nn::BatchNorm2d everywhere(4, {.momentum = {}}), everywhere_numbers(4);
  parallel::sync_batch_norms(everywhere);
  parallel::sync_batch_norms(everywhere_numbers);
  auto compiled = compile([&](const Tensor& x) { return average(x); });
  for (int k = 0; k < 7; ++k) {
    manual_seed(static_cast<uint64_t>(k));
    Tensor x = randn({3, 4, 5, 5}) * 3 + 1;
    auto compare = [&](auto& run, auto& norm, auto& reference) {
      reference.options.momentum = 1.0 / (k + 1);
      EXPECT_TRUE(identical(run(x), reference(x))) << k;
      expect_same(norm.buffers(), reference.buffers(), "buffer");
    };
    {
      NoGrad guard;  // there is no backward pass, for which a function that writes buffers would wait
      compare(compiled, average, numbers);
    }
    compare(instances, instances, instance_numbers);
    compare(everywhere, everywhere, everywhere_numbers);
  }
  EXPECT_EQ(compiled.stats().traces, 1) << compiled.explain();
  average(zeros({0, 4, 5, 5}));  // is counted, and changes nothing
  expect_same({average.running_mean, average.running_var}, {numbers.running_mean, numbers.running_var}, "buffer");
}

TEST(Steps, AConvolutionalNet) {
  manual_seed(2);
  nn::Sequential net(nn::Conv2d(3, 8, 3), nn::ReLU(), nn::MaxPool2d(2), nn::Dropout(0.2), nn::Flatten(),
                     nn::Linear(72, 5));
  expect_all_ways<optim::AdamW>(net, classify, labelled_images);
}

struct Autoencoder : nn::Module<Autoencoder> {
  nn::Conv2d down1{3, 8, 3, {.stride = 2, .padding = 1}}, down2{8, 16, 3, {.stride = 2, .padding = 1}};
  nn::Linear mean{64, 6}, spread{64, 6}, back{6, 64};
  nn::ConvTranspose2d up1{16, 8, 4, {.stride = 2, .padding = 1}}, up2{8, 3, 4, {.stride = 2, .padding = 1}};
  TUTTI_FIELDS(down1, down2, mean, spread, back, up1, up2)
  TensorList forward(const Tensor& x) {
    Tensor h = leaky_relu(down2(leaky_relu(down1(x)))).flatten(1);
    Tensor m = mean(h), s = spread(h), z = m + exp(s * 0.5) * randn(m.sizes());
    Tensor y = up2(relu(up1(relu(back(z)).reshape({-1, 16, 2, 2}))));
    return {sigmoid(y), m, s};
  }
};
TEST(Steps, AVariationalAutoencoder) {
  manual_seed(3);
  auto loss = [](Autoencoder& net, const Batch& b) {
    TensorList r = net(b.x);
    return mse_loss(r[0], sigmoid(b.x)) - 0.5 * (1 + r[2] - r[1].square() - exp(r[2])).mean();
  };
  expect_all_ways(Autoencoder(), loss, labelled_images);
}

template <class Cell>
struct Recurrent : nn::Module<Recurrent<Cell>> {
  Cell cell{4, 6, {.layers = 2, .batch_first = true, .dropout = 0.1, .bidirectional = true}};
  nn::Linear head{12, 1};
  TUTTI_FIELDS(cell, head)
  Tensor forward(const Tensor& x) { return head(cell(x).output); }
};
constexpr auto follow = [](auto& net, const Batch& b) { return mse_loss(net(b.x), b.y); };

TEST(Steps, RecurrentNets) {
  manual_seed(4);
  expect_all_ways(Recurrent<nn::LSTM>(), follow, sequences);
  expect_all_ways<optim::RMSprop>(Recurrent<nn::GRU>(), follow, sequences);
  expect_all_ways(Recurrent<nn::RNN>(), follow, sequences);
}

struct Words : nn::Module<Words> {
  nn::Embedding tokens{11, 16}, places{7, 16};
  nn::TransformerEncoder body{
      16, 2, 2, {.feedforward = 32, .dropout = 0.1, .gelu = true, .batch_first = true, .norm_first = true}};
  nn::Linear head{16, 11};
  bool again = false;  // checkpointed
  TUTTI_FIELDS(tokens, places, body, head, again)
  Tensor forward(const Tensor& x) {
    Tensor h = tokens(x) + places(arange(x.size(1)));
    auto run = [this](const Tensor& t) { return body(t, nn::AttendOptions{.causal = true}); };
    return head(again ? checkpoint(run, h) : run(h));
  }
};
constexpr auto continue_text = [](auto& net, const Batch& b) {
  return cross_entropy(net(b.x).flatten(0, 1), b.y.flatten(), {.label_smoothing = 0.1});
};

TEST(Steps, ATransformerWithDropout) {
  manual_seed(5);
  Words net;
  expect_all_ways<optim::AdamW>(net, continue_text, words);
}

TEST(Steps, ATransformerWithCheckpoints) {
  manual_seed(6);
  Words net;
  net.again = true;
  expect_all_ways(net, continue_text, words);
}

TEST(Steps, MixedPrecision) {
  manual_seed(7);
  expect_all_ways(Words(), continue_text, words, {.autocast = bf16});
  expect_all_ways(ResNet(), classify, labelled_images, {.autocast = bf16});
  expect_all_ways(Words(), continue_text, words, {.autocast = f16, .scaler = true});
}

struct Table : nn::Module<Table> {
  nn::EmbeddingBag played;
  nn::Embedding song;
  TUTTI_FIELDS(played, song)
  Table(bool sparse, std::optional<int64_t> padding)
      : played(50, 8, {.mode = BagMode::mean, .sparse = sparse}),
        song(50, 8, {.padding_idx = padding, .sparse = sparse}) {}
  Tensor forward(const Tensor& x) { return (played(x) * song(x.select(1, 0))).sum(-1); }
};
TEST(Steps, ARecommender) {
  manual_seed(8);
  auto make = [](int64_t rows) { return Batch{randint(50, {rows, 4}), randint(2, {rows}).to(f32)}; };
  auto loss = [](Table& net, const Batch& b) { return binary_cross_entropy_with_logits(net(b.x), b.y); };
  expect_all_ways(Table(false, 3), loss, make);
  expect_all_ways<optim::SparseAdam>(Table(true, {}), loss, make, {.clip = false});
}

// Rotations of complex numbers, which generated code leaves to operators.
struct Rotations : nn::Module<Rotations> {
  nn::Parameter angle = randn({4}), length = rand({4});
  nn::Linear head{8, 1};
  TUTTI_FIELDS(angle, length, head)
  Tensor forward(const Tensor& x) {
    Tensor turn = complex(length * cos(angle), length * sin(angle));
    Tensor z = complex(x, x.flip({-1})) * turn;
    return head(cat({real(z) + z.abs(), imag(z * conj(turn))}, -1));
  }
};
TEST(Steps, ComplexNumbers) {
  manual_seed(9);
  expect_all_ways(Rotations(), follow, sequences);
}

}  // namespace
}  // namespace tutti::test
