// Autocast and the scaling of gradients.
#include "tutti/amp.h"

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tutti/nn.h"
#include "tutti/optim.h"

namespace tutti::test {
namespace {

using amp::Autocast;
using amp::GradScaler;
using testing::HasSubstr;

struct Net : nn::Module<Net> {
  nn::Linear first{8, 16}, last{16, 4};
  TUTTI_FIELDS(first, last)
  Tensor forward(const Tensor& x) { return last(relu(first(x))); }
};

TEST(Autocast, ProductsAreLowAndLossesFull) {
  for (DType low : {bf16, f16}) {
    manual_seed(1);
    Net net;
    Tensor x = randn({5, 8}), target = tensor({0, 1, 2, 3, 0});
    Tensor full_loss = cross_entropy(net(x), target);
    full_loss.backward();
    Tensor full_gradient = net.first.weight.grad().clone();
    net.zero_grad();
    Tensor loss;
    {
      Autocast cast(low);
      Tensor logits = net(x);
      EXPECT_EQ(logits.dtype(), low);
      EXPECT_EQ(relu(logits).dtype(), low);
      EXPECT_EQ(softmax(logits, 1).dtype(), f32);
      EXPECT_EQ(logits.sum().dtype(), f32);
      EXPECT_EQ(mse_loss(logits, logits * 2).dtype(), f32);
      EXPECT_EQ(matmul(x, x.t()).dtype(), low);
      EXPECT_EQ(matmul(x.to(f64), x.t().to(f64)).dtype(), f64);  // asked for by name
      loss = cross_entropy(logits, target);
      EXPECT_EQ(loss.dtype(), f32);
    }
    EXPECT_EQ(matmul(x, x.t()).dtype(), f32);
    loss.backward();
    for (const Tensor& p : net.parameters()) {
      EXPECT_EQ(p.dtype(), f32);
      EXPECT_EQ(p.grad().dtype(), f32);
    }
    EXPECT_TRUE(close(loss.detach(), full_loss.detach(), 0.02));
    EXPECT_TRUE(close(net.first.weight.grad(), full_gradient, low == bf16 ? 0.2 : 0.03));
    EXPECT_FALSE(identical(net.first.weight.grad(), full_gradient));
  }
}

TEST(Autocast, EveryLossIsFull) {
  Autocast cast(f16);
  Tensor x = full({2, 3}, 300, {.dtype = f16}).requires_grad_(), y = zeros({2, 3}, {.dtype = f16});
  auto expect_full = [&](const char* what, const Tensor& loss) {
    EXPECT_EQ(loss.dtype(), f32) << what;
    EXPECT_TRUE(std::isfinite(loss.item<double>())) << what;
    Tensor g = grad({loss}, {x})[0];
    EXPECT_EQ(g.dtype(), f16) << what;
  };
  expect_full("mse", mse_loss(x, y));  // 300² is no f16
  expect_full("l1", l1_loss(x, y));
  expect_full("smooth_l1", smooth_l1_loss(x, y));
  expect_full("huber", huber_loss(x, y, 500));
  expect_full("cross_entropy", cross_entropy(x, tensor({0, 1})));
  expect_full("nll", nll_loss(x, tensor({0, 1})));
  expect_full("binary", binary_cross_entropy(x / 400, y));
  expect_full("logits", binary_cross_entropy_with_logits(x, y));
  expect_full("kl", kl_div(x, y));
  expect_full("cosine", cosine_similarity(x, x * 2 + tensor({1, 2, 3}).to(f16)).sum());
  Tensor ones_row = ones({2}), all_ones = ones({2, 3});
  expect_full("cosine_embedding", cosine_embedding_loss(x, y + 1, ones_row));
  expect_full("margin", margin_ranking_loss(y, x, all_ones));
  expect_full("hinge", hinge_embedding_loss(x, all_ones));
  expect_full("soft_margin", soft_margin_loss(x, all_ones));
  expect_full("triplet", triplet_margin_loss(x, y, y + 1));
}

// What is learnt from probabilities is not rounded to the dtype of the logits.
TEST(Autocast, SoftTargetsKeepTheirPrecision) {
  Tensor x = tensor({{0.5f, -1.0f, 0.25f}}), p = tensor({{0.3f, 0.6f, 0.1f}}), half = x.to(bf16);
  Tensor entropy = cross_entropy(x, p, {.label_smoothing = 0.1}), binary = binary_cross_entropy(sigmoid(x), p);
  Tensor low = sigmoid(x).to(bf16), rounded = binary_cross_entropy(low.to(f32), p);
  Autocast cast(bf16);
  EXPECT_TRUE(identical(cross_entropy(half, p, {.label_smoothing = 0.1}), entropy));
  EXPECT_TRUE(identical(binary_cross_entropy(sigmoid(x), p), binary));
  EXPECT_TRUE(identical(binary_cross_entropy(low, p), rounded));
}

TEST(Autocast, GuardsNest) {
  Tensor x = randn({2, 2});
  {
    Autocast outer(bf16);
    {
      Autocast inner(f16);
      EXPECT_EQ(mm(x, x).dtype(), f16);
      {
        Autocast off(bf16, false);
        EXPECT_EQ(mm(x, x).dtype(), f32);
      }
      EXPECT_EQ(mm(x, x).dtype(), f16);
    }
    EXPECT_EQ(mm(x, x).dtype(), bf16);
  }
  EXPECT_EQ(mm(x, x).dtype(), f32);
  EXPECT_THAT(message_of<DTypeError>([] { Autocast cast(f32); }), HasSubstr("bf16 or f16"));
  EXPECT_EQ(mm(x, x).dtype(), f32);
}

// Layers of every kind after a product, which gives them low precision.
TEST(Autocast, LayersFollowProducts) {
  for (DType low : {bf16, f16}) {
    manual_seed(2);
    nn::Linear in(6, 8);
    Tensor x = randn({3, 2, 6});
    auto check = [&](const char* what, auto& layer, auto&& run) {
      SCOPED_TRACE(what);
      Tensor expected = run(in(x));
      Tensor y;
      {
        Autocast cast(low);
        y = run(in(x));
      }
      EXPECT_TRUE(close(y.detach().to(f32), expected.detach(), 0.15));
      in.zero_grad();
      y.to(f32).square().mean().backward();
      for (const auto& [name, p] : layer.named_parameters()) {
        ASSERT_TRUE(p.grad().defined()) << name;
        EXPECT_EQ(p.grad().dtype(), f32) << name;
      }
      EXPECT_EQ(in.weight.grad().dtype(), f32);
    };
    nn::LSTM lstm(8, 4);
    check("LSTM", lstm, [&](const Tensor& h) { return lstm(h).output; });
    nn::GRU gru(8, 4, {.layers = 2, .bidirectional = true});
    check("GRU", gru, [&](const Tensor& h) { return gru(h).output; });
    nn::RNN rnn(8, 4);
    check("RNN", rnn, [&](const Tensor& h) { return rnn(h).output; });
    nn::MultiheadAttention attention(8, 2);
    check("MultiheadAttention", attention, [&](const Tensor& h) { return attention(h, h, h); });
    Tensor mask = randn({3, 3});
    check("mask", attention, [&](const Tensor& h) { return attention(h, h, h, nn::AttendOptions{.mask = mask}); });
    nn::TransformerEncoderLayer encoder(8, 2, {.feedforward = 8, .dropout = 0});
    check("TransformerEncoderLayer", encoder, [&](const Tensor& h) { return encoder(h); });
    nn::LayerNorm layer_norm(8);
    check("LayerNorm", layer_norm, [&](const Tensor& h) { return layer_norm(h); });
    nn::RMSNorm rms_norm(8);
    check("RMSNorm", rms_norm, [&](const Tensor& h) { return rms_norm(h); });
    nn::BatchNorm1d batch_norm(2);
    check("BatchNorm", batch_norm, [&](const Tensor& h) { return batch_norm(h); });
    nn::GroupNorm group_norm(1, 2);
    check("GroupNorm", group_norm, [&](const Tensor& h) { return group_norm(h); });
    nn::Conv1d conv(2, 3, 3);
    check("Conv1d", conv, [&](const Tensor& h) { return conv(h); });
    nn::ConvTranspose1d back(2, 3, 3);
    check("ConvTranspose1d", back, [&](const Tensor& h) { return back(h); });
    nn::PReLU prelu;
    check("PReLU", prelu, [&](const Tensor& h) { return prelu(h); });
    nn::Bilinear bilinear(8, 8, 2);
    check("Bilinear", bilinear, [&](const Tensor& h) { return bilinear(h, h); });
  }
}

TEST(Autocast, LayersAreAsAmpSays) {
  Tensor x = randn({3, 2, 8}), h = x.to(bf16);
  nn::LSTM lstm(8, 4);
  nn::GRU gru(8, 4);
  nn::RNN rnn(8, 4);
  nn::LSTM projected(8, 4, {.projection = 2});
  nn::MultiheadAttention attention(8, 2);
  nn::Bilinear bilinear(8, 8, 3);
  nn::BatchNorm1d batch_norm(2);
  nn::LayerNorm layer_norm(8);
  nn::GroupNorm group_norm(1, 2);
  nn::RMSNorm rms_norm(8);
  nn::EmbeddingBag bag(5, 8, {.mode = BagMode::sum});
  Autocast cast(bf16);
  for (const Tensor& in : {x, h}) {
    SCOPED_TRACE(to_string(in.dtype()));
    auto r = lstm(in);
    EXPECT_EQ(r.output.dtype(), bf16);
    EXPECT_EQ(r.hidden.dtype(), bf16);
    EXPECT_EQ(r.cell.dtype(), bf16);
    EXPECT_EQ(lstm(in, LstmState{r.hidden, r.cell}).output.dtype(), bf16);
    EXPECT_EQ(projected(in).output.dtype(), bf16);
    EXPECT_EQ(gru(in).output.dtype(), bf16);
    EXPECT_EQ(rnn(in).hidden.dtype(), bf16);
    EXPECT_EQ(attention(in, in, in).dtype(), bf16);
    EXPECT_EQ(bilinear(in, in).dtype(), bf16);
    EXPECT_EQ(layer_norm(in).dtype(), f32);
    EXPECT_EQ(group_norm(in).dtype(), f32);
    EXPECT_EQ(rms_norm(in).dtype(), f32);
    EXPECT_EQ(batch_norm(in).dtype(), in.dtype());
    EXPECT_EQ(nn::InstanceNorm1d(2)(in).dtype(), in.dtype());
    EXPECT_EQ(scaled_dot_product_attention(in, x, h).dtype(), bf16);
    EXPECT_EQ(scaled_dot_product_attention(in, x, h, {.mask = zeros({2, 2})}).dtype(), bf16);
    Tensor mask = zeros({2, 2}).requires_grad_();
    EXPECT_EQ(scaled_dot_product_attention(in, x, h, {.mask = mask, .dropout = 0.5}).dtype(), bf16);
  }
  EXPECT_EQ(batch_norm.running_mean.dtype(), f32);
  EXPECT_EQ(scaled_dot_product_attention(x.to(f64), x.to(f64), x.to(f64)).dtype(), f64);
  nn::LSTM wide(8, 4);
  wide.to(f64);
  EXPECT_EQ(wide(x.to(f64)).output.dtype(), f64);
  // Weights of lookups that a product made.
  Tensor ids = tensor({{1, 2}, {0, 4}}), weights = matmul(x[0], x[1].t());
  ASSERT_EQ(weights.dtype(), bf16);
  Tensor y = bag(ids, Tensor(), weights.detach().requires_grad_());
  EXPECT_EQ(y.dtype(), f32);
  y.sum().backward();
  EXPECT_EQ(bag.weight.grad().dtype(), f32);
}

// What trained in f32 gets gradients of f32 through low precision.
TEST(Autocast, SequencesTrain) {
  manual_seed(6);
  nn::LSTM lstm(4, 8);
  nn::TransformerEncoderLayer layer(8, 2, {.feedforward = 8});
  Tensor x = randn({5, 3, 4});
  Tensor loss;
  {
    Autocast cast(bf16);
    loss = layer(lstm(x).output).square().mean();
  }
  EXPECT_EQ(loss.dtype(), f32);
  loss.backward();
  for (const auto& [name, p] : lstm.named_parameters()) {
    EXPECT_EQ(p.grad().dtype(), f32) << name;
    EXPECT_GT(p.grad().abs().max().item<double>(), 0) << name;
  }
  EXPECT_EQ(layer.self_attn.in_proj_weight.grad().dtype(), f32);
}

TEST(GradScaler, ScalesAndUnscales) {
  Tensor p = ones({2}).requires_grad_();
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.scale = 1024});
  scaler.scale((p * tensor({1.0f, 3.0f})).sum()).backward();
  EXPECT_EQ(values(p.grad()), (Doubles{1024, 3072}));
  EXPECT_TRUE(scaler.step(sgd));
  scaler.update();
  EXPECT_EQ(values(p), (Doubles{0, -2}));
  EXPECT_EQ(scaler.scale(), 1024);
}

TEST(GradScaler, SkipsOverflowsAndRecovers) {
  for (double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    Tensor p = ones({2}).requires_grad_();
    optim::Adam adam({p});
    GradScaler scaler({.scale = 64, .growth = 4, .backoff = 0.25, .growth_interval = 3});
    p.set_grad(tensor({1.0, bad}).to(f32));
    EXPECT_FALSE(scaler.step(adam));
    scaler.update();
    EXPECT_EQ(values(p), (Doubles{1, 1}));
    EXPECT_EQ(scaler.scale(), 16);
    std::vector<double> scales;
    for (int i = 0; i < 7; ++i) {
      p.set_grad(tensor({1.0f, 2.0f}));
      EXPECT_TRUE(scaler.step(adam));
      scaler.update();
      scales.push_back(scaler.scale());
    }
    EXPECT_EQ(scales, (Doubles{16, 16, 64, 64, 64, 256, 256}));
    EXPECT_EQ(scaler.state().good_steps, 1);
    GradScaler fresh;
    fresh.load_state(scaler.state());
    EXPECT_EQ(fresh.scale(), 256);
  }
}

TEST(GradScaler, UnscalesBeforeClippingOnce) {
  Tensor p = zeros({2}).requires_grad_();
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.scale = 8});
  p.set_grad(tensor({24.0f, 32.0f}));
  scaler.unscale_(sgd);
  EXPECT_NEAR(optim::clip_grad_norm_({p}, 2.5), 5, 1e-6);
  EXPECT_THAT(message_of<ValueError>([&] { scaler.unscale_(sgd); }), HasSubstr("unscale_ was called twice"));
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_TRUE(close(p.detach(), tensor({-1.5, -2.0}), 1e-6));
  EXPECT_THAT(message_of<ValueError>([&] { scaler.step(sgd); }), HasSubstr("twice"));
  scaler.update();
  EXPECT_THAT(message_of<ValueError>([&] { scaler.update(); }), HasSubstr("before any step"));
}

TEST(GradScaler, SparseGradientsAddUpFirst) {
  Tensor p = zeros({3, 1}).requires_grad_();
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.scale = 2});
  p.set_grad(sparse_coo(tensor({{1, 1}}), tensor({{2.0f}, {4.0f}}), {3, 1}));
  EXPECT_TRUE(scaler.step(sgd));
  scaler.update();
  EXPECT_EQ(values(p), (Doubles{0, -3, 0}));
  p.set_grad(sparse_coo(tensor({{1, 1}}), tensor({{3e38f}, {3e38f}}), {3, 1}));
  EXPECT_FALSE(scaler.step(sgd));
  scaler.update();
  EXPECT_EQ(values(p), (Doubles{0, -3, 0}));
}

TEST(GradScaler, OptimizersOverflowApart) {
  Tensor p = zeros({1}).requires_grad_(), q = zeros({1}).requires_grad_();
  optim::SGD one({p}, {.lr = 1}), two({q}, {.lr = 1});
  GradScaler scaler({.scale = 2});
  p.set_grad(tensor({2.0f}));
  q.set_grad(tensor({INFINITY}));
  EXPECT_TRUE(scaler.step(one));
  EXPECT_FALSE(scaler.step(two));
  scaler.update();
  EXPECT_EQ(p.item<double>(), -1);
  EXPECT_EQ(q.item<double>(), 0);
  EXPECT_EQ(scaler.scale(), 1);
}

TEST(GradScaler, RefusesWhatCannotScale) {
  for (double scale : {0.0, -1.0, double{INFINITY}, double{NAN}})
    EXPECT_THROW(amp::GradScaler({.scale = scale}), ValueError) << scale;
  EXPECT_THROW(amp::GradScaler({.growth = INFINITY}), ValueError);
  EXPECT_THROW(amp::GradScaler({.growth_interval = 0}), ValueError);
  amp::GradScaler scaler({.scale = 8});
  for (double scale : {0.0, -3.0, double{INFINITY}, double{NAN}})
    EXPECT_THROW(scaler.load_state({scale, 1}), ValueError) << scale;
  EXPECT_THROW(scaler.load_state({2, -5}), ValueError);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.load_state({4, 5});
  EXPECT_EQ(scaler.scale(), 4);
  // It never grows to what it could not come back from.
  amp::GradScaler huge({.scale = 1e308, .growth = 10, .growth_interval = 1});
  optim::SGD sgd({ones({1}).requires_grad_()}, {.lr = 0});
  huge.step(sgd);
  huge.update();
  EXPECT_EQ(huge.scale(), 1e308);
}

TEST(GradScaler, DisabledItStandsAside) {
  Tensor p = zeros({1}).requires_grad_();
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.enabled = false});
  Tensor loss = ones({});
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  p.set_grad(tensor({2.0f}));
  EXPECT_TRUE(scaler.step(sgd));
  scaler.update();
  EXPECT_EQ(p.item<double>(), -2);
  EXPECT_THROW(GradScaler({.scale = 0}), ValueError);
  EXPECT_THROW(GradScaler({.backoff = 1}), ValueError);
}

TEST(GradScaler, TrainsInHalfPrecision) {
  manual_seed(4);
  Net net;
  optim::SGD sgd(net.parameters(), {.lr = 0.5, .momentum = 0.5});
  GradScaler scaler({.scale = 1e8});  // too large: the first steps overflow
  Tensor x = randn({16, 8}), target = randint(0, 4, {16});
  double first = 0, last = 0;
  int skipped = 0;
  for (int i = 0; i < 60; ++i) {
    sgd.zero_grad();
    Tensor loss;
    {
      Autocast cast(f16);
      loss = cross_entropy(net(x), target);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(sgd);
    optim::clip_grad_norm_(net.parameters(), 10);
    skipped += !scaler.step(sgd);
    scaler.update();
    (i ? last : first) = loss.item<double>();
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 30);
  EXPECT_LT(last, first / 4);
}

}  // namespace
}  // namespace tutti::test
