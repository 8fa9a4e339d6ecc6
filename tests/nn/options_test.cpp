// What layers do with their options: defaults, refusals, what is shown; and modules that are moved about.
#include <sstream>
#include <thread>

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

template <class F>
void expect_named(F make, const char* name, const char* text) {
  EXPECT_THAT(message_of<ValueError>(make), testing::AllOf(testing::StartsWith(name), HasSubstr(text)));
}

TEST(Options, LayersRefuseNonsenseWhenTheyAreMade) {
  expect_named([] { GroupNorm(3, 4); }, "GroupNorm: ", "4 channels do not divide into 3");
  expect_named([] { GroupNorm(0, 4); }, "GroupNorm: ", "into 0 groups");
  expect_named([] { GroupNorm(2, 4, {.eps = -1}); }, "GroupNorm: ", "eps");
  expect_named([] { Dropout(1.5); }, "Dropout: ", "1.5");
  expect_named([] { Dropout2d(-0.5); }, "ChannelDropout: ", "-0.5");
  expect_named([] { Dropout{NAN}; }, "Dropout: ", "nan");
  expect_named([] { PReLU(0); }, "PReLU: ", "not 0");
  expect_named([] { LazyLinear(-1); }, "LazyLinear: ", "-1");
  expect_named([] { Linear(-1, 2); }, "Linear: ", "-1");
  expect_named([] { Bilinear(2, -3, 2); }, "Bilinear: ", "-3");
  expect_named([] { LayerNorm(-4); }, "LayerNorm: ", "-4");
  expect_named([] { LayerNorm(4, {.eps = -1}); }, "LayerNorm: ", "eps");
  expect_named([] { RMSNorm({2, -4}); }, "RMSNorm: ", "-4");
  expect_named([] { RMSNorm(4, {.eps = NAN}); }, "RMSNorm: ", "eps");
  expect_named([] { BatchNorm1d(-4); }, "BatchNorm1d: ", "-4");
  expect_named([] { BatchNorm2d(4, {.eps = -1}); }, "BatchNorm2d: ", "eps");
  expect_named([] { BatchNorm3d(4, {.momentum = 7}); }, "BatchNorm3d: ", "momentum");
  expect_named([] { InstanceNorm1d(4, {.momentum = -1}); }, "InstanceNorm1d: ", "momentum");
  expect_named([] { Conv2d(1, 1, 0); }, "Conv2d: ", "kernel of 1 or more");
  expect_named([] { Conv2d(1, 1, -1); }, "Conv2d: ", "kernel");
  expect_named([] { Conv1d(1, -1, 1); }, "Conv1d: ", "-1");
  expect_named([] { Conv3d(1, 1, 1, {.stride = 0}); }, "Conv3d: ", "stride");
  expect_named([] { ConvTranspose1d(1, 1, 0); }, "ConvTranspose1d: ", "kernel");
  expect_named([] { TransformerEncoder(4, 2, -1); }, "TransformerEncoder: ", "-1");
  expect_named([] { TransformerDecoder(4, 2, -1); }, "TransformerDecoder: ", "-1");
  expect_named([] { TransformerEncoderLayer(4, 2, {.feedforward = -1}); }, "TransformerEncoderLayer: ", "feedforward");
  expect_named([] { TransformerDecoderLayer(4, 3); }, "TransformerDecoderLayer: ", "3 heads");
  expect_named([] { TransformerEncoderLayer(4, 2, {.dropout = 2}); }, "TransformerEncoderLayer: ", "dropout");
  expect_named([] { MultiheadAttention(4, 2, {.dropout = 2}); }, "MultiheadAttention: ", "dropout");
  expect_named([] { MultiheadAttention(-4, 2); }, "MultiheadAttention: ", "-4");
  expect_named([] { MultiheadAttention(4, 2, {.key_width = -1}); }, "MultiheadAttention: ", "-1");
}

TEST(Options, NothingInIsOnlyTheBias) {
  nn::Linear l(0, 4);
  Tensor y = l(ones({2, 3, 0}));
  EXPECT_EQ(y.sizes(), (Shape{2, 3, 4}));
  EXPECT_TRUE(identical(y[1][2].detach(), l.bias.detach()));
  EXPECT_EQ(nn::Linear(0, 4, {.bias = false})(ones({0})).sizes(), Shape{4});
  EXPECT_EQ(nn::Linear(3, 4)(ones({2, 0, 3})).sizes(), (Shape{2, 0, 4}));
  nn::TransformerEncoder encoder(4, 2, 1, {.feedforward = 0, .dropout = 0});
  Tensor x = randn({3, 2, 4});
  EXPECT_EQ(encoder(x).sizes(), x.sizes());
  encoder(x).sum().backward();
}

TEST(Options, ABatchThatIsRefusedIsNotCounted) {
  nn::BatchNorm1d norm(3), average(3, {.momentum = std::nullopt});
  for (nn::BatchNorm1d* m : {&norm, &average}) {
    EXPECT_THROW((*m)(randn({4, 2})), ShapeError);
    EXPECT_EQ(m->num_batches_tracked.item<double>(), 0);
    EXPECT_EQ(values(m->running_mean), (Doubles{0, 0, 0}));
    (*m)(ones({4, 3}));
    (*m)(zeros({4, 3}));
    EXPECT_EQ(m->num_batches_tracked.item<double>(), 2);
  }
  EXPECT_TRUE(close(average.running_mean, full({3}, 0.5f), 1e-6));
}

TEST(Options, CopiesOfALazyModuleWaitForOneValue) {
  manual_seed(3);
  nn::LazyLinear one(3), two = one, apart = one.clone();
  two.to(f64);
  one(ones({2}, {f64}));
  EXPECT_EQ(two.parameters().size(), 2u);
  EXPECT_TRUE(two.weight.is_same(one.weight) && two.bias.is_same(one.bias));
  EXPECT_TRUE(identical(two(ones({2}, {f64})), one(ones({2}, {f64}))));
  EXPECT_THROW(apart.parameters(), ValueError);
  apart(ones({5}));
  EXPECT_EQ(apart.weight.sizes(), (Shape{3, 5}));
  EXPECT_EQ(apart.weight.dtype(), f32);
  // By loading too; and a list of copies is one set of weights.
  std::vector<nn::LazyLinear> many(3, nn::LazyLinear(2));
  many[1].load_state_dict({{"weight", ones({2, 2})}, {"bias", zeros({2})}});
  EXPECT_EQ(values(many[2](ones({2}))), (Doubles{2, 2}));
  EXPECT_TRUE(many[2].weight.is_same(many[1].weight));
  nn::LazyLinear later = many[0], own = many[0].clone();
  EXPECT_TRUE(later.parameters()[0].is_same(many[1].weight));
  EXPECT_FALSE(own.parameters()[0].is_same(many[1].weight));
}

TEST(Options, CopiesOfALazyModuleMayRunFirstAtOnce) {
  for (int round = 0; round < 50; ++round) {
    nn::LazyLinear one(3);
    std::vector<nn::LazyLinear> copies(4, one);
    std::vector<Tensor> results(copies.size());
    {
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < copies.size(); ++i) threads.emplace_back([&, i] { results[i] = copies[i](ones({2, 5})); });
    }
    for (const Tensor& r : results) EXPECT_TRUE(identical(r, one(ones({2, 5}))));
  }
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

TEST(Options, BagsOfMaximaHaveDenseGradients) {
  EXPECT_THAT(message_of<ValueError>([] { EmbeddingBag(10, 4, {.mode = BagMode::max, .sparse = true}); }),
              HasSubstr("EmbeddingBag: gradients of the mode max are dense"));
}

}  // namespace
}  // namespace tutti::test
