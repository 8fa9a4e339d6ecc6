// What the rows of losses (tests/ops/table) leave: wide rows, odd input, threads, layouts of the gradients, errors.
#include "tutti/ops/loss.h"

#include <cmath>
#include <limits>

#include "tests/ops/numbers.h"
#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/compile.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

constexpr std::pair<const char*, Reduction> kReductions[] = {
    {"none", Reduction::none}, {"mean", Reduction::mean}, {"sum", Reduction::sum}};

TEST(BinaryCrossEntropy, IsFiniteAtTheEnds) {
  Tensor x = tensor({0.0, 1.0, 0.0, 1.0}, {f64}).requires_grad_();
  Tensor loss = binary_cross_entropy(x, tensor({0.0, 1.0, 1.0, 0.0}, {f64}), {.reduction = Reduction::none});
  EXPECT_EQ(values(loss), (Doubles{0, 0, 100, 100}));
  loss.sum().backward();
  EXPECT_EQ(values(x.grad()), (Doubles{0, 0, -1e12, 1e12}));
  EXPECT_THAT(message_of<ValueError>([] { binary_cross_entropy(tensor({1.5}), tensor({1.0})); }),
              HasSubstr("probabilities"));
}

TEST(BinaryCrossEntropy, WithLogitsHasNoOverflow) {
  Tensor x = tensor({1000.0, -1000.0, 1000.0}, {f32}).requires_grad_();
  Tensor loss = binary_cross_entropy_with_logits(x, tensor({1.0, 0.0, 0.0}), {.reduction = Reduction::none});
  EXPECT_EQ(values(loss), (Doubles{0, 0, 1000}));
  loss.sum().backward();
  EXPECT_EQ(values(x.grad()), (Doubles{0, 0, 1}));
}

TEST(CrossEntropy, TakesAnyLayoutAndDtype) {
  Tensor x = scattered({3, 5, 20}), t = randint(0, 5, {3, 20});
  Tensor whole = cross_entropy(x, t);
  Tensor laid = transpose(transpose(x, 0, 2).contiguous(), 0, 2);
  EXPECT_TRUE(identical(cross_entropy(laid, transpose(t.t().contiguous(), 0, 1)), whole));
  EXPECT_TRUE(identical(cross_entropy(x, t.to(i32)), whole));
  for (DType dtype : {bf16, f16}) {
    Tensor h = x.to(dtype).requires_grad_(), wide = h.detach().to(f32).requires_grad_();
    Tensor loss = cross_entropy(h, t);
    EXPECT_EQ(loss.dtype(), dtype);
    loss.backward();
    cross_entropy(wide, t).backward();
    EXPECT_TRUE(close(h.grad(), wide.grad(), 0.01));
  }
  Tensor meta = cross_entropy(x.to("meta"), t.to("meta"), {.reduction = Reduction::none});
  EXPECT_EQ(meta.sizes(), (Shape{3, 20}));
}

TEST(CrossEntropy, HasWideRowsRight) {
  // One row longer than the kernels' blocks, and large logits that would overflow without a shift.
  Tensor x = scattered({2, 10001}, f64, 3, -50, 800).requires_grad_(), t = tensor({17, 9999});
  Tensor loss = cross_entropy(x, t, {.reduction = Reduction::sum}),
         plain = -sum(gather(log_softmax(x, 1), 1, unsqueeze(t, 1)));
  EXPECT_TRUE(close(loss, plain, 1e-12));
  Tensor g = grad({loss}, {x})[0], h = grad({plain}, {x})[0];
  EXPECT_TRUE(close(g, h, 1e-12));
}

TEST(CrossEntropy, IgnoresWhatIsToBeIgnored) {
  double nan = std::numeric_limits<double>::quiet_NaN();
  Tensor x = reshape(tensor({nan, 1.0, 0.5, 2.0}, {f64}), {2, 2}).requires_grad_();
  Tensor loss = cross_entropy(x, tensor({-100, 1}));
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), std::log1p(std::exp(-1.5)), 1e-12);
  EXPECT_EQ(values(x.grad())[0], 0);
  EXPECT_EQ(values(x.grad())[1], 0);
  EXPECT_TRUE(std::isnan(cross_entropy(x, tensor({-100, -100})).item<double>()));
  EXPECT_EQ(cross_entropy(x, tensor({-100, -100}), {.reduction = Reduction::sum}).item<double>(), 0);
  EXPECT_TRUE(std::isnan(cross_entropy(zeros({0, 3}), zeros({0}, {i64})).item<double>()));
  Tensor bad = x.detach().clone().requires_grad_();
  cross_entropy(bad, tensor({0, 1}), {.reduction = Reduction::sum}).backward();
  EXPECT_TRUE(std::isnan(values(bad.grad())[0]));
}

TEST(CrossEntropy, RefusesWhatItCannotTake) {
  Tensor x = zeros({2, 3});
  EXPECT_THAT(message_of<IndexError>([&] { cross_entropy(x, tensor({0, 3})); }),
              HasSubstr("target 3 at position 1 is not a class: there are 3"));
  EXPECT_THAT(message_of<IndexError>([&] { nll_loss(x, tensor({-1, 0})); }), HasSubstr("target -1 at position 0"));
  EXPECT_THAT(message_of<ShapeError>([&] { cross_entropy(x, tensor({0, 1, 2})); }), HasSubstr("[2]"));
  EXPECT_THAT(message_of<DTypeError>([&] { cross_entropy(x, tensor({0.5, 1.0})); }), HasSubstr("i64"));
  EXPECT_THAT(message_of<DTypeError>([&] { cross_entropy(x.to(i64), tensor({0, 1})); }), HasSubstr("floating"));
  EXPECT_THAT(message_of<ShapeError>([&] { cross_entropy(x, tensor({0, 1}), {.weight = ones({2})}); }),
              HasSubstr("3 classes"));
  EXPECT_THAT(message_of<ValueError>([&] { cross_entropy(x, tensor({0, 1}), {.label_smoothing = 2}); }),
              HasSubstr("[0, 1]"));
  EXPECT_THAT(message_of<ShapeError>([&] { mse_loss(x, zeros({3})); }), HasSubstr("[2, 3]"));
  EXPECT_THROW(kl_div(zeros({}), ones({}), {.batch_mean = true}), ShapeError);
  Tensor far = zeros({2, 3}, {.device = "meta"}), weight = ones({3}, {.device = "meta"});
  EXPECT_THAT(message_of<DeviceError>([&] { binary_cross_entropy(far, x); }), HasSubstr("different devices"));
  EXPECT_THAT(message_of<DeviceError>([&] { cross_entropy(x, tensor({0, 1}), {.weight = weight}); }),
              HasSubstr("different devices"));
}

TEST(NllLoss, LooksAtTheTargetsOfEveryCompiledRun) {
  auto f = compile([](const Tensor& x, const Tensor& t) { return nll_loss(x, t); });
  Tensor x = scattered({2, 3}, f32);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(identical(f(x, tensor({0, 2})), nll_loss(x, tensor({0, 2}))));
  EXPECT_THAT(message_of<IndexError>([&] { f(x, tensor({0, 3})); }), HasSubstr("target 3 at position 1"));
  EXPECT_EQ(f.stats().traces, 1);
}

TEST(CrossEntropy, HasTheSameBitsOnAnyThreads) {
  Tensor x = scattered({700, 33}, f32), t = randint(0, 33, {700});
  auto run = [&](int threads) {
    ThreadsGuard guard(threads);
    Tensor leaf = x.clone().requires_grad_(), loss = cross_entropy(leaf, t, {.label_smoothing = 0.1});
    loss.backward();
    return TensorList{loss.detach(), leaf.grad()};
  };
  TensorList one = run(1), four = run(4);
  EXPECT_TRUE(identical(one[0], four[0]));
  EXPECT_TRUE(identical(one[1], four[1]));
}

TEST(Loss, HingeHasAMarginWhateverElseIsSaid) {
  Tensor x = tensor({0.25, -0.5}), t = tensor({-1.0, -1.0});
  EXPECT_NEAR(hinge_embedding_loss(x, t, {.reduction = Reduction::sum}).item<double>(), 0.75 + 1.5, 1e-6);
  EXPECT_NEAR(hinge_embedding_loss(x, t).item<double>(), (0.75 + 1.5) / 2, 1e-6);
}

TEST(Loss, PairwiseDistance) {
  Tensor a = tensor({{0.0, 3.0}, {1.0, 1.0}}, f64), b = tensor({{4.0, 0.0}, {1.0, 3.0}}, f64);
  EXPECT_TRUE(allclose(pairwise_distance(a, b, 2, 0), tensor({5.0, 2.0}, f64)));
  EXPECT_TRUE(allclose(pairwise_distance(a, b, 1, 0), tensor({7.0, 2.0}, f64)));
  EXPECT_EQ(pairwise_distance(a, b, 2, 1e-6, true).sizes(), (Shape{2, 1}));
}

TEST(CrossEntropy, SaysThatOneHotTargetsAreProbabilities) {
  Tensor logits = zeros({2, 3}), target = one_hot(tensor({0, 2}, {i64}), 3);
  EXPECT_THAT(message_of<ShapeError>([&] { cross_entropy(logits, target); }),
              testing::AllOf(testing::HasSubstr("[2]"), testing::HasSubstr("target.to(f32)")));
  EXPECT_NO_THROW(cross_entropy(logits, target.to(f32)));
}

TEST(CrossEntropy, KeepsChannelsLast) {
  auto last = [](const Tensor& t) { return t.is_contiguous(MemoryFormat::channels_last) && !t.is_contiguous(); };
  for (const Shape& sizes : {Shape{2, 4, 3, 5}, Shape{2, 3, 2, 2, 3}}) {
    int64_t classes = sizes[1];
    Shape places = sizes;
    places.erase(1);
    Tensor plain = scattered(sizes).requires_grad_();
    Tensor x = plain.detach().contiguous(MemoryFormat::channels_last).requires_grad_();
    Tensor target = randint(0, classes, places), weight = scattered({classes}, f64, 3, 0.5, 2);
    target.flatten()[1].fill_(-100);
    for (auto [label, r] : kReductions) {
      CrossEntropyOptions o{.weight = weight, .label_smoothing = 0.1, .reduction = r};
      Tensor expected = cross_entropy(plain, target, o), loss = cross_entropy(x, target, o);
      EXPECT_TRUE(close(loss, expected, 1e-13)) << label;
      Tensor from_above = fixed_weights(loss);
      Tensor wanted = grad({expected}, {plain}, {.create_graph = true}, {from_above})[0];
      Tensor found = grad({loss}, {x}, {.create_graph = true}, {from_above})[0];
      EXPECT_TRUE(last(found)) << label;
      EXPECT_TRUE(close(found, wanted, 1e-13)) << label;
      Tensor again = grad({found.square().sum()}, {x})[0];
      EXPECT_TRUE(last(again)) << label;
      EXPECT_TRUE(close(again, grad({wanted.square().sum()}, {plain})[0], 1e-12)) << label;
      Tensor soft = softmax(scattered(sizes, f64, 7), 1), by_soft = cross_entropy(x, soft, o);
      EXPECT_TRUE(last(grad({by_soft}, {x}, {}, {fixed_weights(by_soft)})[0])) << label;
    }
  }
  Tensor none = zeros({0, 3, 2, 2}).contiguous(MemoryFormat::channels_last);
  EXPECT_EQ(cross_entropy(none, zeros({0, 2, 2}, {i64}), {.reduction = Reduction::sum}).item<double>(), 0);
  Tensor wrong = zeros({2, 3, 2, 4}).contiguous(MemoryFormat::channels_last), far = zeros({2, 2, 4}, {i64});
  far[1][0][1].fill_(3);
  EXPECT_THAT(message_of<IndexError>([&] { cross_entropy(wrong, far); }), HasSubstr("target 3 at position 9"));
}

}  // namespace
}  // namespace tutti::test
