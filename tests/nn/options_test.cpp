// What layers do with their options: defaults, refusals, what is shown; and modules that are moved about.
#include <sstream>

#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tutti/amp.h"
#include "tutti/nn.h"
#include "tutti/optim.h"

namespace tutti::test {
namespace {

using namespace nn;
using testing::HasSubstr;

TEST(Options, NormsHaveTheirOwnDefaults) {
  EXPECT_EQ(RMSNorm(4, {.affine = false}).eps, 1e-6);
  EXPECT_EQ(LayerNorm(4, {.affine = false}).eps, 1e-5);
  EXPECT_FALSE(RMSNorm(4, {.affine = false}).weight.defined());
  InstanceNorm2d norm(2, {.affine = true});
  EXPECT_TRUE(norm.weight.defined());
  EXPECT_FALSE(norm.running_mean.defined());
  EXPECT_FALSE(norm.num_batches_tracked.defined());
  InstanceNorm2d tracked(2, {.track_running_stats = true});
  EXPECT_FALSE(tracked.weight.defined());
  EXPECT_TRUE(tracked.running_mean.defined());
  EXPECT_FALSE(InstanceNorm1d(2).weight.defined());
  EXPECT_TRUE(BatchNorm2d(2, {.affine = false}).running_mean.defined());
  // Without running statistics evaluation is as training.
  Tensor x = randn({3, 2, 4, 4});
  Tensor y = norm(x);
  norm.eval();
  EXPECT_TRUE(identical(norm(x), y));
}

TEST(Options, LazyLinearKeepsWhatItWasTold) {
  Tensor x = randn({2, 3});
  LazyLinear wide(4, {.dtype = f64});
  wide(x.to(f64));
  EXPECT_EQ(wide.weight.dtype(), f64);
  EXPECT_EQ(wide.bias.dtype(), f64);
  LazyLinear meta(4, {.bias = false, .device = Device("meta")});
  meta(zeros({2, 3}, {.device = "meta"}));
  EXPECT_TRUE(meta.weight.device().is_meta());
  EXPECT_FALSE(meta.bias.defined());

  Sequential net(LazyLinear(4), Linear(4, 2));
  net.to(f64);
  net.requires_grad_(false);
  Tensor y = net(x.to(f64));
  EXPECT_EQ(net[0].get<LazyLinear>().weight.dtype(), f64);
  EXPECT_EQ(y.dtype(), f64);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_FALSE(net[0].get<LazyLinear>().bias.requires_grad());
  LazyLinear moved(4);
  moved.to("meta");
  LazyLinear twin = moved.clone();
  twin(zeros({2, 3}, {.device = "meta"}));
  EXPECT_TRUE(twin.weight.device().is_meta());
  LazyLinear trained(4);
  trained.requires_grad_(false);
  trained.requires_grad_(true);
  EXPECT_TRUE(trained(x).requires_grad());

  // Low precision that only passes through is no reason to have weights in it.
  LazyLinear lazy(4);
  {
    amp::Autocast cast(bf16);
    EXPECT_EQ(lazy(x.to(bf16)).dtype(), bf16);
  }
  EXPECT_EQ(lazy.weight.dtype(), f32);
  EXPECT_THROW(LazyLinear(4)(zeros({})), ShapeError);
}

TEST(Options, ConvolutionsRefuseWhatDoesNotFit) {
  EXPECT_THAT(message_of<ShapeError>([] { Conv2d(1, 1, 3, {.padding = {1, 2, 3}, .padding_mode = PadMode::reflect}); }),
              HasSubstr("padding of one entry or 2, not [1, 2, 3]"));
  EXPECT_THROW(Conv2d(1, 1, 3, {.padding = {1, 2, 3}}), ShapeError);
  EXPECT_THROW(Conv2d(1, 1, 3, {.stride = {1, 2, 3}}), ShapeError);
  EXPECT_THROW(Conv3d(1, 1, 3, {.dilation = {1, 2}}), ShapeError);
  EXPECT_THROW(Conv1d(1, 1, 3, {.stride = 0}), ValueError);
  EXPECT_THROW(Conv1d(1, 1, 3, {.padding = -1}), ValueError);
  EXPECT_THAT(message_of<ValueError>([] { Conv2d(1, 1, 3, {.padding = 5, .same = true}); }), HasSubstr("not both"));
  EXPECT_THAT(message_of<ValueError>([] { Conv2d(1, 1, 3, {.stride = {1, 2}, .same = true}); }), HasSubstr("stride 1"));
  EXPECT_THROW(ConvTranspose2d(1, 1, 3, {.output_padding = {1, 2, 3}}), ShapeError);
  EXPECT_THROW(ConvTranspose2d(1, 1, 3, {.stride = {}}), ShapeError);
}

TEST(Options, BagsRefuseWeightsOfLookups) {
  EXPECT_THAT(
      message_of<ValueError>([] { EmbeddingBag(4, 2, {.mode = BagMode::sum, .per_sample_weights = ones({3})}); }),
      HasSubstr("third argument"));
}

std::string shown(const ModuleBase& m) { return to_string(m); }

TEST(Options, PrintingShowsWhatIsNotUsual) {
  EXPECT_EQ(shown(Conv2d(1, 2, 3)), "Conv2d(weight=[2, 1, 3, 3], bias=[2])\n20 parameters\n");
  EXPECT_EQ(shown(Conv2d(2, 2, {3, 1}, {.stride = 2, .groups = 2, .bias = false, .padding_mode = PadMode::reflect})),
            "Conv2d(weight=[2, 1, 3, 1], bias=none, stride=[2], groups=2, padding_mode=reflect)\n6 parameters\n");
  EXPECT_EQ(shown(EmbeddingBag(4, 2, {.mode = BagMode::max, .padding_idx = 1})),
            "EmbeddingBag(weight=[4, 2], mode=max, padding_idx=1)\n8 parameters\n");
  EXPECT_EQ(shown(Embedding(4, 2, {.sparse = true})), "Embedding(weight=[4, 2], sparse=true)\n8 parameters\n");
  EXPECT_EQ(shown(MaxPool2d(2, {.stride = 1})), "MaxPool2d(kernel=[2], stride=[1])\n0 parameters\n");
  EXPECT_EQ(shown(AvgPool2d(2)), "AvgPool2d(kernel=[2])\n0 parameters\n");
  EXPECT_THAT(shown(BatchNorm2d(2, {.momentum = {}})), HasSubstr("num_batches_tracked=[], momentum=none)"));
  EXPECT_THAT(shown(RNN(1, 1, {.layers = 2}, Nonlinearity::relu)), HasSubstr("layers=2, relu)"));
  EXPECT_EQ(shown(LazyLinear(3)), "LazyLinear(out=3, weight=awaited, bias=awaited)\n0 parameters\n");
}

TEST(Options, ModulesGoChannelsLast) {
  struct Net : Module<Net> {
    Conv2d plane{2, 4, 3};
    Conv3d space{2, 4, 3};
    Linear flat{4, 2};
    TUTTI_FIELDS(plane, space, flat)
  } net;
  Tensor plane = net.plane.weight.clone(), space = net.space.weight.clone();
  net.to(MemoryFormat::channels_last);
  EXPECT_TRUE(net.plane.weight.is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(net.space.weight.is_contiguous(MemoryFormat::channels_last));
  EXPECT_FALSE(net.space.weight.is_contiguous());
  EXPECT_TRUE(net.flat.weight.is_contiguous());
  EXPECT_TRUE(equal(net.plane.weight, plane) && equal(net.space.weight, space));
  // The layout stays through a step of training, in weights, gradients and results.
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  Tensor x = randn({2, 2, 5, 5}).contiguous(MemoryFormat::channels_last);
  Tensor v = randn({2, 2, 5, 5, 5}).contiguous(MemoryFormat::channels_last);
  for (int i = 0; i < 2; ++i) {
    sgd.zero_grad();
    Tensor y = net.plane(x), z = net.space(v);
    EXPECT_TRUE(y.is_contiguous(MemoryFormat::channels_last));
    EXPECT_TRUE(z.is_contiguous(MemoryFormat::channels_last));
    (y.square().mean() + z.square().mean()).backward();
    EXPECT_TRUE(net.plane.weight.grad().is_contiguous(MemoryFormat::channels_last));
    sgd.step();
    EXPECT_TRUE(net.plane.weight.is_contiguous(MemoryFormat::channels_last));
    EXPECT_TRUE(net.space.weight.is_contiguous(MemoryFormat::channels_last));
  }
  net.to(MemoryFormat::contiguous);
  EXPECT_TRUE(net.space.weight.is_contiguous());
}

TEST(Options, GluKeepsChannelsLast) {
  Tensor x = randn({2, 4, 3, 5}), last = x.contiguous(MemoryFormat::channels_last);
  Tensor y = GLU(1)(last);
  EXPECT_TRUE(y.is_contiguous(MemoryFormat::channels_last));
  EXPECT_FALSE(y.is_contiguous());
  EXPECT_TRUE(identical(y.contiguous(), GLU(1)(x)));
  EXPECT_TRUE(GLU(1)(x).is_contiguous());
}

TEST(Options, ModulesMoveToDevices) {
  Sequential net(Linear(3, 4), BatchNorm1d(4));
  Tensor weight = net[0].get<Linear>().weight;
  net(randn({5, 3})).sum().backward();
  net.to("meta");
  EXPECT_TRUE(weight.device().is_meta());  // the handle an optimizer has
  EXPECT_TRUE(weight.grad().device().is_meta());
  EXPECT_TRUE(net[1].get<BatchNorm1d>().running_mean.device().is_meta());
  EXPECT_TRUE(weight.requires_grad());
}

TEST(Options, RandomSlopesAndSoftmin) {
  manual_seed(2);
  RReLU random(0.1, 0.3);
  Tensor x = full({4000}, -1.0, {f64}).requires_grad_();
  Tensor y = random(x);
  EXPECT_GE((-y).min().item<double>(), 0.1);
  EXPECT_LE((-y).max().item<double>(), 0.3);
  EXPECT_NEAR(-y.mean().item<double>(), 0.2, 0.005);
  EXPECT_NEAR(y.std().item<double>(), 0.2 / std::sqrt(12.0), 0.003);
  y.sum().backward();
  EXPECT_TRUE(close(x.grad(), -y.detach(), 1e-14));
  EXPECT_EQ(values(random(tensor({2.0, 0.5}))), (Doubles{2, 0.5}));
  random.eval();
  EXPECT_TRUE(close(random(tensor({-1.0, 2.0})), tensor({-0.2, 2.0}), 1e-6));
  EXPECT_THROW(RReLU(0.3, 0.1), ValueError);
  Tensor z = randn({3, 4});
  EXPECT_TRUE(identical(Softmin(1)(z), softmax(-z, 1)));
  EXPECT_FALSE(identical(Softmin(1)(z), softmax(z, 1)));
}

TEST(Options, OneOptionLeavesTheOthersAsTheyAre) {
  InstanceNorm2d norm(4, {.eps = 1e-3});
  EXPECT_EQ(norm.options.eps, 1e-3);
  EXPECT_FALSE(norm.weight.defined());
  EXPECT_FALSE(norm.running_mean.defined());
}

TEST(Options, ShapesInBraces) {
  EXPECT_EQ(LayerNorm({8}).weight.sizes(), Shape({8}));
  EXPECT_EQ(LayerNorm({8}, {.affine = false}).normalized_shape, Shape({8}));
  EXPECT_EQ(LayerNorm({2, 8}).weight.sizes(), Shape({2, 8}));
  EXPECT_EQ(LayerNorm{8}.weight.sizes(), Shape({8}));
  EXPECT_EQ(RMSNorm({8}).weight.sizes(), Shape({8}));
  EXPECT_EQ(RMSNorm({size_t{8}}).weight.sizes(), Shape({8}));
  Tensor x = randn({1, 2, 4, 4});
  EXPECT_EQ(MaxPool2d({2})(x).sizes(), Shape({1, 2, 2, 2}));
  EXPECT_EQ(MaxPool2d({2}, {.stride = 1})(x).sizes(), Shape({1, 2, 3, 3}));
  EXPECT_EQ(AvgPool2d({2, 4})(x).sizes(), Shape({1, 2, 2, 1}));
  EXPECT_EQ(AdaptiveAvgPool2d({1})(x).sizes(), Shape({1, 2, 1, 1}));
  EXPECT_EQ(AdaptiveMaxPool2d({1, 2})(x).sizes(), Shape({1, 2, 1, 2}));
  LayerNorm norm({8}), twin(norm);
  EXPECT_TRUE(twin.weight.is_same(norm.weight));
}

TEST(Options, LinearNamesInputsOfOtherDTypes) {
  Linear linear(4, 8);
  for (DType dtype : {i64, f64, bf16})
    EXPECT_THAT(message_of<DTypeError>([&] { linear(ones({3, 4}, {dtype})); }),
                testing::AllOf(HasSubstr("linear: input " + std::string(name(dtype)) +
                                         "[3, 4] on cpu:0, weight f32[8, 4] on cpu:0"),
                               HasSubstr("x.to(f32)")));
  EXPECT_THAT(message_of<ValueError>([&] { linear(Tensor()); }), HasSubstr("linear: the input is undefined"));
  amp::Autocast cast(bf16);
  EXPECT_EQ(linear(ones({3, 4}, {bf16})).dtype(), bf16);
  EXPECT_EQ(linear(ones({3, 4})).dtype(), bf16);
}

TEST(Options, EntriesThatAreNoneAreNamed) {
  Sequential net(ReLU{}, ReLU{});
  EXPECT_THAT(message_of<IndexError>([&] { net[5]; }), HasSubstr("Sequential has no entry 5: it has 2"));
  EXPECT_THROW(ModuleList()[0], IndexError);
  EXPECT_THROW(ParameterList()[0], IndexError);
}

TEST(Options, PrintingMarksWhatIsShared) {
  Sequential tied;
  for (int i = 0; i < 2; ++i) tied.push_back(Linear(3, 2));
  EXPECT_THAT(to_string(tied), testing::Not(HasSubstr("shared")));
  tied.push_back(tied[1]);
  EXPECT_THAT(to_string(tied), HasSubstr("2: Linear(weight=[2, 3] shared, bias=[2] shared)"));
  EXPECT_THAT(to_string(tied), HasSubstr("1: Linear(weight=[2, 3], bias=[2])"));
}

}  // namespace
}  // namespace tutti::test
