// Layers against PyTorch's of the same weights, which load_state_dict takes by their names.
#include "tests/nn/golden.h"

namespace tutti::test {
namespace {

using namespace nn;
using testing::HasSubstr;

const Npz& golden_layers() {
  static const Npz file("tests/golden/layers.npz");
  return file;
}

template <class M>
void agree(const std::string& key, const M& module, const LayerOptions& o = {}) {
  expect_layer(golden_layers(), key, module, o);
}

TEST(Layers, LinearAgreesWithPyTorch) {
  agree("linear", Linear(3, 4));
  agree("linear.deep", Linear(3, 4));
  agree("linear.one", Linear(3, 4, {.bias = false}));
  agree("linear", LazyLinear(4));
  auto two = [](Bilinear& m, const TensorList& x) { return TensorList{m(x[0], x[1])}; };
  expect_layer(golden_layers(), "bilinear", Bilinear(2, 3, 2), two);
  expect_layer(golden_layers(), "bilinear.nobias", Bilinear(2, 3, 2, {.bias = false}), two);
  agree("sequential", Sequential(Linear(3, 4), Tanh(), Sequential(Linear(4, 2))));
}

TEST(Layers, ConvolutionsAgreeWithPyTorch) {
  agree("conv1d", Conv1d(2, 3, 3, {.stride = 2, .padding = 1}));
  agree("conv1d.circular", Conv1d(2, 2, 3, {.padding = 2, .padding_mode = PadMode::circular}));
  agree("conv2d", Conv2d(2, 4, {3, 2}, {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2}));
  agree("conv2d.nobias", Conv2d(2, 2, 2, {.bias = false}));
  agree("conv2d.same", Conv2d(2, 2, {2, 3}, {.dilation = {1, 2}, .same = true}));
  agree("conv2d.reflect", Conv2d(2, 2, 3, {.padding = {1, 2}, .padding_mode = PadMode::reflect}));
  agree("conv2d.replicate", Conv2d(2, 2, 3, {.stride = 2, .padding = {1, 2}, .padding_mode = PadMode::replicate}));
  agree("conv2d.circular", Conv2d(2, 2, 3, {.padding = {1, 2}, .padding_mode = PadMode::circular}));
  agree("conv2d.same.circular", Conv2d(2, 2, {4, 3}, {.same = true, .padding_mode = PadMode::circular}));
  agree("conv2d.same.replicate",
        Conv2d(2, 2, {2, 3}, {.dilation = {1, 2}, .same = true, .padding_mode = PadMode::replicate}));
  agree("conv2d.same.reflect", Conv2d(2, 2, {4, 3}, {.same = true, .padding_mode = PadMode::reflect}));
  agree("conv3d", Conv3d(2, 2, 2, {.stride = {1, 2, 1}, .padding = 1}));
  agree("conv3d.replicate", Conv3d(1, 2, 2, {.padding = {0, 1, 2}, .padding_mode = PadMode::replicate}));
  agree("conv1d.reflect", Conv1d(2, 2, 3, {.stride = 2, .padding = 2, .padding_mode = PadMode::reflect}));
  agree("conv1d.replicate", Conv1d(2, 2, 3, {.padding = 2, .dilation = 2, .padding_mode = PadMode::replicate}));
  agree("conv1d.same", Conv1d(2, 2, 4, {.dilation = 3, .same = true}));
  agree("conv3d.groups", Conv3d(2, 4, {1, 2, 2}, {.dilation = {1, 2, 1}, .groups = 2, .bias = false}));
  agree("conv3d.reflect", Conv3d(1, 2, 2, {.padding = {1, 0, 2}, .padding_mode = PadMode::reflect}));
  agree("conv3d.circular", Conv3d(1, 2, 2, {.padding = {1, 0, 2}, .padding_mode = PadMode::circular}));
  agree("conv3d.same", Conv3d(1, 2, {2, 1, 3}, {.dilation = {1, 1, 2}, .same = true}));
  agree("transpose1d.groups", ConvTranspose1d(4, 2, 3, {.stride = 2, .dilation = 2, .groups = 2, .bias = false}));
  agree("transpose3d.groups", ConvTranspose3d(2, 4, {1, 2, 2}, {.dilation = {1, 1, 2}, .groups = 2, .bias = false}));
  agree("transpose1d", ConvTranspose1d(2, 3, 3, {.stride = 2, .padding = 1, .output_padding = 1}));
  agree("transpose2d", ConvTranspose2d(4, 2, {3, 2}, {.stride = {2, 1}, .padding = {1, 0}, .groups = 2}));
  agree("transpose2d.nobias", ConvTranspose2d(2, 2, 2, {.dilation = 2, .bias = false}));
  agree("transpose3d", ConvTranspose3d(2, 2, 2, {.stride = {1, 2, 1}, .output_padding = {0, 1, 0}}));
}

TEST(Layers, PoolsAgreeWithPyTorch) {
  agree("max1d", MaxPool1d(3, {.stride = 2, .padding = 1}));
  agree("avg1d", AvgPool1d(3, {.stride = 2, .padding = 1, .count_include_pad = false}));
  agree("amax1d", AdaptiveMaxPool1d(3));
  agree("aavg1d", AdaptiveAvgPool1d(3));
  agree("max2d", MaxPool2d({2, 3}, {.dilation = {2, 1}, .ceil_mode = true}));
  agree("avg2d", AvgPool2d({2, 3}, {.stride = {1, 2}, .padding = 1, .ceil_mode = true}));
  agree("amax2d", AdaptiveMaxPool2d({2, 4}));
  agree("aavg2d", AdaptiveAvgPool2d({2, 4}));
  agree("max3d", MaxPool3d(2, {.stride = 1}));
  agree("avg3d", AvgPool3d(2, {.stride = {2, 1, 1}}));
  agree("max1d.ceil", MaxPool1d(2, {.stride = 3, .dilation = 2, .ceil_mode = true}));
  agree("avg1d.ceil", AvgPool1d(2, {.stride = 2, .ceil_mode = true}));
  agree("max3d.ceil", MaxPool3d(2, {.stride = {3, 2, 1}, .dilation = {1, 1, 2}, .ceil_mode = true}));
  agree("avg3d.ceil", AvgPool3d(2, {.stride = {3, 2, 2}, .padding = 1, .ceil_mode = true, .count_include_pad = false}));
  agree("avg3d.divisor", AvgPool3d(2, {.stride = 2, .padding = 1, .divisor_override = 3}));
  agree("amax3d", AdaptiveMaxPool3d({2, 1, 2}));
  agree("aavg3d", AdaptiveAvgPool3d({2, 1, 2}));
}

// Training on two batches, of which the second gives the result.
template <class M>
void agree_after_two(const std::string& key, const M& module) {
  expect_layer(golden_layers(), key, module,
               [](M& m, const TensorList& x) {
                 m(x[0]);
                 return TensorList{m(x[1])};
               },
               {});
}

TEST(Layers, BatchNormsAgreeWithPyTorch) {
  agree_after_two("batch1d", BatchNorm1d(3));
  agree_after_two("batch1d.long", BatchNorm1d(3));
  agree_after_two("batch2d", BatchNorm2d(2));
  agree_after_two("batch3d", BatchNorm3d(2));
  agree_after_two("batch2d.average", BatchNorm2d(2, {.eps = 1e-2, .momentum = {}}));
  agree_after_two("batch1d.plain", BatchNorm1d(3, {.momentum = 0.3, .affine = false}));
  LayerOptions eval{.training = false};
  agree("batch1d.eval", BatchNorm1d(3), eval);
  agree("batch1d.long.eval", BatchNorm1d(3), eval);
  agree("batch2d.eval", BatchNorm2d(2), eval);
  agree("batch3d.eval", BatchNorm3d(2), eval);
  agree("batch2d.untracked", BatchNorm2d(2, {.track_running_stats = false}), {.training = false});
  agree("batch2d.untracked.train", BatchNorm2d(2, {.track_running_stats = false}));
  BatchNorm2d norm(2);
  EXPECT_THAT(message_of<ShapeError>([&] { norm(zeros({2, 2, 3})); }), HasSubstr("BatchNorm"));
}

TEST(Layers, NormsAgreeWithPyTorch) {
  InstanceNormOptions tracked{.affine = true, .track_running_stats = true};
  agree("instance1d", InstanceNorm1d(3));
  agree("instance2d", InstanceNorm2d(2, {.eps = 1e-3, .affine = true}));
  agree("instance2d.tracked", InstanceNorm2d(2, tracked), {.counts_batches = false});
  agree("instance2d.eval", InstanceNorm2d(2, tracked), {.training = false});
  agree("instance3d", InstanceNorm3d(2, {.affine = true}));
  InstanceNormOptions slow{.momentum = 0.3, .affine = true, .track_running_stats = true};
  agree("instance1d.tracked", InstanceNorm1d(3, slow), {.counts_batches = false});
  agree("instance1d.eval", InstanceNorm1d(3, tracked), {.training = false});
  agree("instance3d.tracked", InstanceNorm3d(2, slow), {.counts_batches = false});
  agree("instance3d.eval", InstanceNorm3d(2, tracked), {.training = false});
  agree("instance2d.plain", InstanceNorm2d(2, {.track_running_stats = true}), {.counts_batches = false});
  agree("instance2d.plain.eval", InstanceNorm2d(2, {.track_running_stats = true}), {.training = false});
  agree("layer.nobias", LayerNorm(4, {.bias = false}));
  agree("group.nobias", GroupNorm(2, 4, {.bias = false}));
  agree("layer", LayerNorm(4));
  agree("layer.two", LayerNorm({2, 3}, {.eps = 1e-2}));
  agree("layer.plain", LayerNorm(4, {.affine = false}));
  agree("group", GroupNorm(2, 4));
  agree("group.plain", GroupNorm(1, 4, {.eps = 1e-2, .affine = false}));
  agree("rms", RMSNorm(4));
  agree("rms.two", RMSNorm({2, 3}, {.eps = 1e-2}));
  agree("rms.plain", RMSNorm(4, {.affine = false}));
}

// Not PyTorch's, which takes no momentum for a momentum of 0 here: as for batch norm, the average of all batches.
TEST(Layers, InstanceNormsWithoutMomentumAverage) {
  manual_seed(4);
  InstanceNorm2d norm(2, {.momentum = {}, .track_running_stats = true});
  norm.to(f64);
  Tensor x = randn({3, 2, 4, 5}, {f64}), y = randn({3, 2, 4, 5}, {f64}) * 3.0 + 1.0;
  auto means = [](const Tensor& t) { return t.mean({0, 2, 3}); };
  auto variances = [](const Tensor& t) { return t.flatten(2).var(-1).mean(0); };
  norm(x);
  EXPECT_TRUE(close(norm.running_mean, means(x), 1e-12));
  norm(y);
  EXPECT_TRUE(close(norm.running_mean, (means(x) + means(y)) / 2.0, 1e-12));
  EXPECT_TRUE(close(norm.running_var, (variances(x) + variances(y)) / 2.0, 1e-12));
}

TEST(Layers, EmbeddingsAgreeWithPyTorch) {
  agree("embedding", Embedding(5, 3));
  agree("embedding.padding", Embedding(5, 3, {.padding_idx = 1, .scale_grad_by_freq = true}));
  agree("embedding.sparse", Embedding(5, 3, {.sparse = true}));
  agree("bag.sum", EmbeddingBag(5, 3, {.mode = BagMode::sum}));
  auto offsets = [](EmbeddingBag& m, const TensorList& x) { return TensorList{m(x[0], x[1])}; };
  expect_layer(golden_layers(), "bag.mean", EmbeddingBag(5, 3, {.padding_idx = 2}), offsets);
  expect_layer(golden_layers(), "bag.max", EmbeddingBag(5, 3, {.mode = BagMode::max}), offsets);
  expect_layer(golden_layers(), "bag.weighted", EmbeddingBag(5, 3, {.mode = BagMode::sum}),
               [](EmbeddingBag& m, const TensorList& x) { return TensorList{m(x[0], x[1], x[2])}; });
  expect_layer(golden_layers(), "bag.last", EmbeddingBag(5, 3, {.include_last_offset = true}), offsets);
  // Not from PyTorch: 1.13 divides by the frequencies of other rows.
  EmbeddingBag plain(5, 3), fair = plain.clone();
  fair.options.scale_grad_by_freq = true;
  Tensor line = tensor({1, 4, 2, 2, 0, 1}), starts = tensor({0, 2, 2});
  plain(line, starts).square().sum().backward();
  fair(line, starts).square().sum().backward();
  EXPECT_TRUE(close(fair.weight.grad() * tensor({1, 2, 2, 1, 1}).unsqueeze(1), plain.weight.grad(), 1e-6));
  agree("bag.sparse", EmbeddingBag(5, 3, {.mode = BagMode::sum, .sparse = true}));
  EmbeddingBag sparse(5, 3, {.mode = BagMode::sum, .sparse = true});
  sparse(tensor({{1, 2}})).sum().backward();
  EXPECT_TRUE(sparse.weight.grad().is_sparse());
  // Rows that are looked up are shortened in place.
  auto shortened = [](auto& m, const TensorList& x) {
    Tensor y = m(x[0]);
    return TensorList{y, m.weight.detach()};
  };
  expect_layer(golden_layers(), "embedding.norm", Embedding(5, 3, {.max_norm = 1}), shortened);
  expect_layer(golden_layers(), "embedding.norm1", Embedding(5, 3, {.max_norm = 1.5, .norm_type = 1}), shortened);
  expect_layer(golden_layers(), "bag.norm", EmbeddingBag(5, 3, {.max_norm = 1, .norm_type = 3}), shortened);
  Embedding padded(4, 3, {.padding_idx = -1});
  EXPECT_EQ(values(padded.weight[3]), (Doubles{0, 0, 0}));
  EXPECT_THROW(Embedding(4, 3, {.padding_idx = 4}), IndexError);
}

// Goldens of a bag of public operators, which PyTorch can differentiate twice.
TEST(Layers, BagsAgreeInSecondGradients) {
  auto offsets = [](EmbeddingBag& m, const TensorList& x) { return TensorList{m(x[0], x[1])}; };
  expect_layer(golden_layers(), "bag.twice.sum", EmbeddingBag(5, 3, {.mode = BagMode::sum, .padding_idx = 1}), offsets);
  expect_layer(golden_layers(), "bag.twice.mean", EmbeddingBag(5, 3), offsets);
  expect_layer(golden_layers(), "bag.twice.max", EmbeddingBag(5, 3, {.mode = BagMode::max}), offsets);
  expect_layer(golden_layers(), "bag.twice.weighted", EmbeddingBag(5, 3, {.mode = BagMode::sum, .padding_idx = 4}),
               [](EmbeddingBag& m, const TensorList& x) { return TensorList{m(x[0], x[1], x[2])}; });
  auto squared = [](auto& m, const TensorList& x) { return TensorList{m(x[0]).square()}; };
  auto bags = [](EmbeddingBag& m, const TensorList& x) { return TensorList{m(x[0], x[1]).square()}; };
  expect_layer(golden_layers(), "embedding.fair", Embedding(5, 3, {.padding_idx = 1, .scale_grad_by_freq = true}),
               squared);
  expect_layer(golden_layers(), "bag.squared.mean", EmbeddingBag(5, 3, {.padding_idx = 1}), bags);
  expect_layer(golden_layers(), "bag.squared.max", EmbeddingBag(5, 3, {.mode = BagMode::max, .padding_idx = 4}), bags);
  expect_layer(golden_layers(), "bag.squared.matrix", EmbeddingBag(5, 3), squared);
  expect_layer(golden_layers(), "bag.squared.matrix.max", EmbeddingBag(5, 3, {.mode = BagMode::max}), squared);
  expect_layer(golden_layers(), "bag.squared.last", EmbeddingBag(5, 3, {.include_last_offset = true, .padding_idx = 2}),
               bags);
}

TEST(Layers, SparseBagsAgreeWithPyTorch) {
  // What comes is dense in the golden; here it must be sparse before it is compared.
  auto is_sparse = [](EmbeddingBag& m, const Tensor& y) {
    EXPECT_TRUE(grad({y.sum()}, {m.weight}, {.retain_graph = true})[0].is_sparse());
    return TensorList{y};
  };
  expect_layer(golden_layers(), "bag.sparse.weighted", EmbeddingBag(5, 3, {.mode = BagMode::sum, .sparse = true}),
               [&](EmbeddingBag& m, const TensorList& x) { return is_sparse(m, m(x[0], x[1], x[2])); });
  expect_layer(golden_layers(), "bag.sparse.padding",
               EmbeddingBag(5, 3, {.mode = BagMode::sum, .sparse = true, .padding_idx = 1}),
               [&](EmbeddingBag& m, const TensorList& x) { return is_sparse(m, m(x[0], x[1])); });
}

TEST(Layers, ActivationsAgreeWithPyTorch) {
  agree("prelu", PReLU());
  agree("prelu.channels", PReLU(3));
  agree("relu", ReLU());
  agree("relu6", ReLU6());
  agree("leaky", LeakyReLU(0.2));
  agree("elu", ELU(1.5));
  agree("selu", SELU());
  agree("celu", CELU(0.5));
  agree("silu", SiLU());
  agree("mish", Mish());
  agree("softplus", Softplus(2));
  agree("softsign", Softsign());
  agree("tanh", Tanh());
  agree("sigmoid", Sigmoid());
  agree("logsigmoid", LogSigmoid());
  agree("hardtanh", Hardtanh(-0.5, 1.5));
  agree("hardsigmoid", Hardsigmoid());
  agree("hardswish", Hardswish());
  agree("hardshrink", Hardshrink(0.7));
  agree("softshrink", Softshrink(0.7));
  agree("threshold", Threshold(0.3, -0.5));
  agree("tanhshrink", Tanhshrink());
  agree("gelu", GELU());
  agree("gelu.tanh", GELU(true));
  agree("softmax", Softmax(1));
  agree("logsoftmax", LogSoftmax(0));
  agree("glu", GLU(1));
  agree("softmin", Softmin(0));
  agree("rrelu.eval", RReLU(0.1, 0.4), {.training = false});
}

TEST(Layers, WrongArgumentsAreNamed) {
  EXPECT_THAT(message_of<ValueError>([] { Conv2d(3, 4, 3, {.groups = 2}); }), HasSubstr("groups"));
  EXPECT_THAT(message_of<ShapeError>([] { Conv2d(3, 4, {3, 3, 3}); }), HasSubstr("kernel of one entry or 2"));
  EXPECT_THAT(message_of<ShapeError>([] { Linear(3, 4)(zeros({2, 5})); }), HasSubstr("[2, 5]"));
  EXPECT_THAT(message_of<ShapeError>([] { Bilinear(3, 4, 2)(zeros({2, 3}), zeros({2, 5})); }), HasSubstr("[2, 5]"));
  EXPECT_THROW(PReLU(3)(zeros({2, 4})), ShapeError);
  EXPECT_THROW(PReLU(3)(zeros({4})), ShapeError);
  EXPECT_THAT(message_of<ShapeError>([] { GLU()(zeros({2, 3})); }), HasSubstr("halves"));
  EXPECT_THROW(GLU(2)(zeros({2, 2})), IndexError);
  EXPECT_THROW(LayerNorm(4)(zeros({2, 3})), ShapeError);
}

TEST(Layers, ChannelDropoutDropsWholeChannels) {
  manual_seed(3);
  Dropout2d drop(0.4);
  Tensor x = ones({20, 10, 2, 3}), y = drop(x);
  Tensor sums = y.sum({2, 3});
  int64_t kept = 0;
  for (double s : values(sums)) {
    EXPECT_TRUE(s == 0 || std::abs(s - 10) < 1e-4) << s;
    kept += s != 0;
  }
  EXPECT_GT(kept, 90);
  EXPECT_LT(kept, 150);
  drop.eval();
  EXPECT_TRUE(drop(x).is_same(x));
}

// Convolutions have forward from a base of theirs.
TEST(Sequential, TakesModulesThatInheritForward) {
  nn::Conv2d conv(1, 2, 3);
  nn::Sequential net(conv, nn::ReLU(), nn::MaxPool2d(2), nn::Flatten());
  Tensor x = randn({3, 1, 6, 6});
  EXPECT_TRUE(equal(net(x), max_pool2d(relu(conv(x)), 2).flatten(1)));
}

}  // namespace
}  // namespace tutti::test
