// Channels-last layouts, from what goes into a layer to the gradient that comes out of it.
#include <functional>

#include "tests/support/compare.h"
#include "tutti/autograd.h"
#include "tutti/nn.h"
#include "tutti/ops/loss.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

using namespace nn;

constexpr MemoryFormat kLast = MemoryFormat::channels_last;

testing::AssertionResult is_last(const Tensor& t) {
  if (t.defined() && t.is_contiguous(kLast) && !t.is_contiguous()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << (t.defined() ? testing::PrintToString(t.strides()) : "undefined")
                                     << " are no channels-last strides";
}

using Body = std::function<Tensor(const Tensor&)>;

// Gradients of pointwise layers lie in memory as those from above do; others' as the input does.
enum class Kind { layer, pointwise };

// The result and the gradient by the input keep the layout, and are what they are for a contiguous input.
void expect_kept(const char* name, const Shape& sizes, const Body& body, Kind kind = Kind::layer) {
  SCOPED_TRACE(name);
  manual_seed(3);
  Tensor plain = randn(sizes).requires_grad_(), x = plain.detach().contiguous(kLast).requires_grad_();
  manual_seed(4);
  Tensor expected = body(plain);
  Tensor from_above = randn(expected.sizes()), wanted = grad({expected}, {plain}, {}, {from_above})[0];
  manual_seed(4);
  Tensor y = body(x);
  EXPECT_TRUE(is_last(y)) << "result";
  EXPECT_TRUE(close(y, expected.detach(), 1e-5));
  for (const Tensor& g : {from_above.contiguous(kLast), from_above}) {
    if (kind == Kind::pointwise && g.is_contiguous()) continue;
    Tensor found = grad({y}, {x}, {.retain_graph = true}, {g})[0];
    EXPECT_TRUE(is_last(found)) << "gradient, of one that is " << (g.is_contiguous() ? "contiguous" : "channels-last");
    EXPECT_TRUE(close(found, wanted, 1e-5));
  }
}

const Shape kPlane{2, 4, 7, 5}, kSpace{2, 4, 5, 6, 3};

template <class M>
Body of(const M& module) {
  return [m = module](const Tensor& x) mutable { return m(x); };
}
template <class M>
Body evaluating(M module) {
  module.eval();
  return of(module);
}

TEST(ChannelsLast, ConvolutionsKeepIt) {
  expect_kept("Conv2d", kPlane, of(Conv2d(4, 6, 3, {.padding = 1})));
  expect_kept("Conv2d, groups", kPlane, of(Conv2d(4, 6, 3, {.stride = 2, .groups = 2, .bias = false})));
  expect_kept("Conv2d, 1 by 1", kPlane, of(Conv2d(4, 6, 1)));
  expect_kept("Conv2d, circular", kPlane, of(Conv2d(4, 6, 3, {.padding = 1, .padding_mode = PadMode::circular})));
  expect_kept("Conv2d, reflect", kPlane, of(Conv2d(4, 6, 3, {.same = true, .padding_mode = PadMode::reflect})));
  expect_kept("Conv3d", kSpace, of(Conv3d(4, 6, 3, {.padding = 1})));
  expect_kept("Conv3d, dilation", kSpace, of(Conv3d(4, 6, 2, {.dilation = 2})));
  expect_kept("ConvTranspose2d", kPlane, of(ConvTranspose2d(4, 6, 3, {.stride = 2, .output_padding = 1})));
  expect_kept("ConvTranspose2d, groups", kPlane, of(ConvTranspose2d(4, 6, 2, {.groups = 2, .bias = false})));
  expect_kept("ConvTranspose3d", kSpace, of(ConvTranspose3d(4, 6, 2, {.stride = 2})));
}

TEST(ChannelsLast, PoolsKeepIt) {
  expect_kept("MaxPool2d", kPlane, of(MaxPool2d(2)));
  expect_kept("AvgPool2d", kPlane, of(AvgPool2d(3, {.stride = 2, .padding = 1})));
  expect_kept("AdaptiveMaxPool2d", kPlane, of(AdaptiveMaxPool2d({3, 2})));
  expect_kept("AdaptiveAvgPool2d", kPlane, of(AdaptiveAvgPool2d({3, 2})));
  expect_kept("MaxPool3d", kSpace, of(MaxPool3d(2, {.stride = 1})));
  expect_kept("AvgPool3d", kSpace, of(AvgPool3d(2, {.stride = 1})));
  expect_kept("AdaptiveMaxPool3d", kSpace, of(AdaptiveMaxPool3d({2, 3, 2})));
  expect_kept("AdaptiveAvgPool3d", kSpace, of(AdaptiveAvgPool3d({2, 3, 2})));
}

TEST(ChannelsLast, NormsKeepIt) {
  expect_kept("BatchNorm2d", kPlane, of(BatchNorm2d(4)));
  expect_kept("BatchNorm2d, evaluating", kPlane, evaluating(BatchNorm2d(4)), Kind::pointwise);
  expect_kept("BatchNorm2d, not affine", kPlane, evaluating(BatchNorm2d(4, {.affine = false})), Kind::pointwise);
  expect_kept("BatchNorm3d", kSpace, of(BatchNorm3d(4)));
  expect_kept("InstanceNorm2d", kPlane, of(InstanceNorm2d(4, {.affine = true})));
  InstanceNormOptions tracked{.track_running_stats = true};
  expect_kept("InstanceNorm2d, evaluating", kPlane, evaluating(InstanceNorm2d(4, tracked)), Kind::pointwise);
  expect_kept("InstanceNorm3d", kSpace, of(InstanceNorm3d(4)));
  expect_kept("GroupNorm", kPlane, of(GroupNorm(2, 4)));
}

TEST(ChannelsLast, ActivationsKeepIt) {
  expect_kept("ReLU", kPlane, of(ReLU()), Kind::pointwise);
  expect_kept("GELU", kPlane, of(GELU()), Kind::pointwise);
  expect_kept("PReLU", kPlane, of(PReLU()), Kind::pointwise);
  expect_kept("PReLU, channels", kPlane, of(PReLU(4)), Kind::pointwise);
  expect_kept("PReLU, channels", kSpace, of(PReLU(4)), Kind::pointwise);
  expect_kept("GLU", kPlane, of(GLU(1)));
  expect_kept("GLU, batch", kPlane, of(GLU(0)));
  expect_kept("GLU, height", {2, 4, 6, 5}, of(GLU(-2)));
  expect_kept("GLU, height", kSpace, of(GLU(3)));
  expect_kept("RReLU", kPlane, of(RReLU()), Kind::pointwise);
  expect_kept("Softmax", kPlane, of(Softmax(1)));
  expect_kept("Softmax, rows", kPlane, of(Softmax(3)));
  expect_kept("LogSoftmax", kPlane, of(LogSoftmax(1)));
}

TEST(ChannelsLast, DropoutsKeepIt) {
  expect_kept("Dropout", kPlane, of(Dropout(0.5)), Kind::pointwise);
  expect_kept("Dropout2d", kPlane, of(Dropout2d(0.5)), Kind::pointwise);
  expect_kept("Dropout3d", kSpace, of(Dropout3d(0.5)), Kind::pointwise);
}

TEST(ChannelsLast, GoesThroughANetworkAndBack) {
  manual_seed(5);
  Conv2d first(4, 6, 3, {.padding = 1});
  BatchNorm2d norm(6);
  MaxPool2d pool(2);
  ConvTranspose2d back(6, 4, 2, {.stride = 2});
  Dropout drop(0.3);
  Tensor x = randn({2, 4, 8, 10}).contiguous(kLast).requires_grad_();
  TensorList passed{x};
  const Body layers[] = {of(first), of(norm), of(ReLU()), of(pool), of(back), of(drop)};
  for (const Body& layer : layers) passed.push_back(layer(passed.back()));
  for (size_t i = 0; i < passed.size(); ++i) EXPECT_TRUE(is_last(passed[i])) << "what " << i << " layers give";
  auto expect_gradients = [&](const Tensor& loss, const char* what) {
    TensorList gradients = grad({loss}, passed, {.retain_graph = true});
    for (size_t i = 0; i < passed.size(); ++i)
      EXPECT_TRUE(is_last(gradients[i])) << "gradient by what " << i << " layers gave, of " << what;
  };
  const Tensor& last = passed.back();
  expect_gradients(last.square().mean(), "squares");
  expect_gradients(cross_entropy(last, randint(0, 4, {2, 8, 10})), "cross entropy");
  expect_gradients(Linear(4, 3)(AdaptiveAvgPool2d(1)(last).flatten(1)).sum(), "a head");
  // What accumulates in the leaf too.
  last.square().mean().backward();
  EXPECT_TRUE(is_last(x.grad()));
}

}  // namespace
}  // namespace tutti::test
