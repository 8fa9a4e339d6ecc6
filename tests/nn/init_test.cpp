// Initialisers, and what layers begin with.
#include "tutti/nn/init.h"

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tutti/nn.h"

namespace tutti::test {
namespace {

using namespace nn;
using init::FanMode;
using testing::HasSubstr;

// That t is spread evenly over [-bound, bound].
void expect_uniform(const Tensor& t, double bound) {
  Tensor x = t.detach();
  double n = static_cast<double>(x.numel()), deviation = bound / std::sqrt(3.0);
  EXPECT_LE(x.max().item<double>(), bound * (1 + 1e-6));
  EXPECT_GE(x.min().item<double>(), -bound * (1 + 1e-6));
  EXPECT_GT(x.max().item<double>(), bound * (1 - 20 / n));
  EXPECT_LT(x.min().item<double>(), -bound * (1 - 20 / n));
  EXPECT_NEAR(x.mean().item<double>(), 0, 5 * deviation / std::sqrt(n));
  EXPECT_NEAR(x.std().item<double>(), deviation, 4 * deviation / std::sqrt(n));
}
void expect_normal(const Tensor& t, double mean, double deviation) {
  Tensor x = t.detach().to(f64);
  double n = static_cast<double>(x.numel());
  EXPECT_NEAR(x.mean().item<double>(), mean, 5 * deviation / std::sqrt(n));
  EXPECT_NEAR(x.std().item<double>(), deviation, 5 * deviation / std::sqrt(2 * n));
  EXPECT_GT((x - mean).abs().max().item<double>(), 2.5 * deviation);
  Tensor fourth = square(square((x - mean) / deviation)).mean();
  EXPECT_NEAR(fourth.item<double>(), 3, 50 / std::sqrt(n));
}

TEST(Init, FillsWithOneDistribution) {
  manual_seed(1);
  Tensor t = empty({40, 50});
  expect_uniform(init::uniform_(t, -2, 2), 2);
  Tensor positive = init::uniform_(t);
  EXPECT_GE(positive.min().item<double>(), 0);
  EXPECT_LT(positive.max().item<double>(), 1);
  expect_normal(init::normal_(t, 3, 0.5), 3, 0.5);
  expect_normal(init::normal_(t), 0, 1);
  EXPECT_EQ(values(init::constant_(empty({2, 2}), 7)), Doubles(4, 7));
  EXPECT_EQ(values(init::ones_(empty({3}))), Doubles(3, 1));
  EXPECT_EQ(values(init::zeros_(empty({3}))), Doubles(3, 0));
  EXPECT_EQ(values(init::eye_(empty({2, 3}))), (Doubles{1, 0, 0, 0, 1, 0}));
  EXPECT_THROW(init::eye_(empty({2})), ShapeError);
  // In place, without a record, of leaves that are trained too.
  Parameter p(zeros({2}));
  Tensor same = init::constant_(p, 2);
  EXPECT_TRUE(same.is_same(p));
  EXPECT_TRUE(p.is_leaf() && p.requires_grad());
  // Each draws from the thread's generator.
  manual_seed(5);
  Tensor first = init::normal_(empty({9}));
  manual_seed(5);
  EXPECT_TRUE(identical(init::normal_(empty({9})), first));
}

TEST(Init, FansAndGains) {
  init::Fan f = init::fan(empty({6, 4, 3, 2}));
  EXPECT_EQ(f.in, 24);
  EXPECT_EQ(f.out, 36);
  f = init::fan(empty({6, 4}));
  EXPECT_EQ(f.in, 4);
  EXPECT_EQ(f.out, 6);
  EXPECT_THROW(init::fan(empty({6})), ShapeError);
  EXPECT_EQ(init::gain("linear"), 1);
  EXPECT_EQ(init::gain("sigmoid"), 1);
  EXPECT_DOUBLE_EQ(init::gain("tanh"), 5.0 / 3);
  EXPECT_DOUBLE_EQ(init::gain("relu"), std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(init::gain("leaky_relu", 0.5), std::sqrt(2 / 1.25));
  EXPECT_DOUBLE_EQ(init::gain("leaky_relu"), std::sqrt(2 / 1.0001));
  EXPECT_DOUBLE_EQ(init::gain("selu"), 0.75);
  EXPECT_THAT(message_of<ValueError>([] { init::gain("gelu"); }), HasSubstr("'gelu'"));
}

TEST(Init, ScalesByFans) {
  manual_seed(2);
  Tensor w = empty({30, 20, 3});  // fans of 60 and 90
  expect_uniform(init::xavier_uniform_(w), std::sqrt(6.0 / 150));
  expect_uniform(init::xavier_uniform_(w, 2), 2 * std::sqrt(6.0 / 150));
  expect_normal(init::xavier_normal_(w), 0, std::sqrt(2.0 / 150));
  expect_normal(init::xavier_normal_(w, 3), 0, 3 * std::sqrt(2.0 / 150));
  expect_uniform(init::kaiming_uniform_(w), std::sqrt(3.0) * std::sqrt(2.0 / 60));
  expect_uniform(init::kaiming_uniform_(w, std::sqrt(5.0)), std::sqrt(1.0 / 60));
  expect_uniform(init::kaiming_uniform_(w, 0, FanMode::out, "tanh"), std::sqrt(3.0 / 90) * 5 / 3);
  expect_normal(init::kaiming_normal_(w), 0, std::sqrt(2.0 / 60));
  expect_normal(init::kaiming_normal_(w, 1, FanMode::out), 0, std::sqrt(1.0 / 90));
}

TEST(Init, DiracPassesChannelsOn) {
  Tensor x = randn({2, 4, 5, 6});
  Tensor w = init::dirac_(empty({4, 4, 3, 3}));
  EXPECT_TRUE(close(conv2d(x, w, {}, {.padding = 1}), x, 1e-6));
  Tensor two = init::dirac_(empty({4, 2, 3, 3}), 2);
  EXPECT_TRUE(close(conv2d(x, two, {}, {.padding = 1, .groups = 2}), x, 1e-6));
  EXPECT_EQ(two.sum().item<double>(), 4);
  // More outputs than inputs: the rest is zero, in each group.
  Tensor more = init::dirac_(empty({6, 2, 1}), 2);
  EXPECT_EQ(values(more), (Doubles{1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0}));
  EXPECT_THROW(init::dirac_(empty({4, 4})), ShapeError);
  EXPECT_THROW(init::dirac_(empty({5, 2, 3}), 2), ShapeError);
}

TEST(Init, LayersBeginAsUsual) {
  manual_seed(3);
  Linear linear(100, 60);
  expect_uniform(linear.weight, 0.1);
  EXPECT_LE(linear.bias.abs().max().item<double>(), 0.1);
  EXPECT_GT(linear.bias.abs().max().item<double>(), 0.08);
  LazyLinear lazy(60);
  lazy(zeros({1, 100}));
  expect_uniform(lazy.weight, 0.1);
  expect_uniform(Bilinear(25, 16, 40).weight, 0.2);
  Conv2d conv(8, 50, {3, 2}, {.groups = 2});  // 4 channels of 6 taps
  expect_uniform(conv.weight, 1 / std::sqrt(24.0));
  EXPECT_LE(conv.bias.abs().max().item<double>(), 1 / std::sqrt(24.0));
  expect_uniform(ConvTranspose2d(40, 8, {3, 2}, {.groups = 2}).weight, 1 / std::sqrt(24.0));
  expect_normal(Embedding(200, 30).weight, 0, 1);
  expect_normal(EmbeddingBag(200, 30).weight, 0, 1);
  LSTM lstm(20, 25);
  for (const auto& [name, p] : lstm.named_parameters()) {
    EXPECT_LE(p.abs().max().item<double>(), 0.2) << name;
    EXPECT_GT(p.abs().max().item<double>(), 0.19) << name;
  }
  MultiheadAttention attention(32, 4);
  expect_uniform(attention.in_proj_weight, std::sqrt(6.0 / (32 + 96)));
  EXPECT_EQ(attention.in_proj_bias.abs().max().item<double>(), 0);
  EXPECT_EQ(attention.out_proj.bias.abs().max().item<double>(), 0);
  expect_uniform(attention.out_proj.weight, 1 / std::sqrt(32.0));
  LayerNorm norm(7);
  EXPECT_EQ(values(norm.weight), Doubles(7, 1));
  EXPECT_EQ(values(norm.bias), Doubles(7, 0));
  EXPECT_EQ(values(PReLU(2).weight), (Doubles{0.25, 0.25}));
}

}  // namespace
}  // namespace tutti::test
