// Losses against PyTorch, their gradients against differences, and what they do with odd input.
#include "tutti/ops/loss.h"

#include <cmath>
#include <limits>

#include "tests/ops/family.h"
#include "tutti/autograd.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

const Npz& golden_losses() {
  static const Npz file("tests/golden/loss.npz");
  return file;
}

constexpr std::pair<const char*, Reduction> kReductions[] = {
    {"none", Reduction::none}, {"mean", Reduction::mean}, {"sum", Reduction::sum}};

TEST(Loss, AgreesWithPyTorch) {
  for (auto [label, r] : kReductions) {
    auto expect = [&, suffix = "." + std::string(label)](const std::string& name, auto body) {
      expect_golden(golden_losses(), name + suffix, [&](const TensorList& x) { return TensorList{body(x)}; });
    };
    expect("mse_loss", [&](auto& x) { return mse_loss(x[0], x[1], r); });
    expect("l1_loss", [&](auto& x) { return l1_loss(x[0], x[1], r); });
    expect("smooth_l1_loss", [&](auto& x) { return smooth_l1_loss(x[0], x[1], 0.75, r); });
    expect("huber_loss", [&](auto& x) { return huber_loss(x[0], x[1], 1.25, r); });
    expect("kl_div", [&](auto& x) { return kl_div(x[0], x[1], {.reduction = r}); });
    expect("kl_div.log", [&](auto& x) { return kl_div(x[0], x[1], {.log_target = true, .reduction = r}); });
    expect("binary_cross_entropy", [&](auto& x) {
      return binary_cross_entropy(x[0], x[1].detach(), {.weight = x[2].detach(), .reduction = r});
    });
    expect("binary_cross_entropy_with_logits", [&](auto& x) {
      return binary_cross_entropy_with_logits(x[0], x[1].detach(),
                                              {.weight = x[2].detach(), .pos_weight = x[3].detach(), .reduction = r});
    });
    expect("binary_cross_entropy_with_logits.plain",
           [&](auto& x) { return binary_cross_entropy_with_logits(x[0], x[1].detach(), {.reduction = r}); });
    expect("binary_cross_entropy.plain",
           [&](auto& x) { return binary_cross_entropy(x[0], x[1].detach(), {.reduction = r}); });
    expect("binary_cross_entropy_with_logits.weight", [&](auto& x) {
      return binary_cross_entropy_with_logits(x[0], x[1].detach(), {.weight = x[2].detach(), .reduction = r});
    });
    expect("binary_cross_entropy_with_logits.pos_weight", [&](auto& x) {
      return binary_cross_entropy_with_logits(x[0], x[1].detach(), {.pos_weight = x[2].detach(), .reduction = r});
    });
    expect("binary_cross_entropy.targets", [&](auto& x) { return binary_cross_entropy(x[0], x[1], {.reduction = r}); });
    expect("binary_cross_entropy_with_logits.targets", [&](auto& x) {
      return binary_cross_entropy_with_logits(x[0], x[1], {.pos_weight = x[2].detach(), .reduction = r});
    });
    MarginOptions margin{.margin = 0.1, .reduction = r};
    expect("cosine_embedding_loss", [&](auto& x) { return cosine_embedding_loss(x[0], x[1], x[2], margin); });
    margin.margin = 0.3;
    expect("margin_ranking_loss", [&](auto& x) { return margin_ranking_loss(x[0], x[1], x[2], margin); });
    HingeOptions hinge{.margin = 0.7, .reduction = r};
    expect("hinge_embedding_loss", [&](auto& x) { return hinge_embedding_loss(x[0], x[1], hinge); });
    expect("soft_margin_loss", [&](auto& x) { return soft_margin_loss(x[0], x[1], r); });
    for (int p : {1, 2, 3})
      for (bool swap : {false, true})
        if (r == Reduction::mean || p == 2)
          expect("triplet_margin_loss." + std::to_string(p) + (swap ? ".swap" : ".plain"), [&](auto& x) {
            return triplet_margin_loss(x[0], x[1], x[2], {.margin = 0.8, .p = double(p), .swap = swap, .reduction = r});
          });
  }
  auto one = [](const std::string& name, auto body) {
    expect_golden(golden_losses(), name, [&](const TensorList& x) { return TensorList{body(x)}; });
  };
  one("smooth_l1_loss.zero", [](auto& x) { return smooth_l1_loss(x[0], x[1], 0); });
  one("kl_div.batchmean", [](auto& x) { return kl_div(x[0], x[1], {.batch_mean = true}); });
  EXPECT_THROW(kl_div(zeros({}), ones({}), {.batch_mean = true}), ShapeError);
  one("kl_div.log.batchmean", [](auto& x) { return kl_div(x[0], x[1], {.log_target = true, .batch_mean = true}); });
  one("cosine_similarity.eps", [](auto& x) { return cosine_similarity(x[0], x[1], 1, 2.25); });
  one("triplet_margin_loss.eps",
      [](auto& x) { return triplet_margin_loss(x[0], x[1], x[2], {.epsilon = 0.5, .swap = true}); });
  one("pairwise_distance", [](auto& x) { return pairwise_distance(x[0], x[1]); });
  one("pairwise_distance.options", [](auto& x) { return pairwise_distance(x[0], x[1], 3, 0.25, true); });
  one("cosine_similarity", [](auto& x) { return cosine_similarity(x[0], x[1]); });
  one("cosine_similarity.broadcast", [](auto& x) { return cosine_similarity(x[0], x[1], -1); });
}

// Every golden whose name begins with `family` (and "." ), by its own options.
TEST(CrossEntropy, AgreesWithPyTorch) {
  int found = 0;
  for (const std::string& member : golden_losses().keys("cross_entropy.")) {
    if (!member.ends_with("/in0")) continue;
    ++found;
    std::string key = member.substr(0, member.size() - 4);
    auto has = [&](const char* part) { return key.find(part) != std::string::npos; };
    CrossEntropyOptions o{.label_smoothing = has(".0.2.") ? 0.2 : has(".ignore") ? 0.1 : 0};
    if (has(".ignore")) o.ignore_index = has(".ignore2.") ? 2 : -7;
    for (auto [label, r] : kReductions)
      if (key.ends_with(label)) o.reduction = r;
    expect_golden(golden_losses(), key, [&](const TensorList& x) {
      if (has(".weighted.")) o.weight = x[2];
      return TensorList{cross_entropy(x[0], x[1], o)};
    });
  }
  EXPECT_GE(found, 56);
}

TEST(NllLoss, AgreesWithPyTorch) {
  int found = 0;
  for (const std::string& member : golden_losses().keys("nll_loss.")) {
    if (!member.ends_with("/in0")) continue;
    ++found;
    std::string key = member.substr(0, member.size() - 4);
    NllOptions o;
    if (key.find(".ignore") != std::string::npos) o.ignore_index = key.find(".ignore2.") != std::string::npos ? 2 : -7;
    for (auto [label, r] : kReductions)
      if (key.ends_with(label)) o.reduction = r;
    expect_golden(golden_losses(), key, [&](const TensorList& x) {
      if (key.find(".weighted.") != std::string::npos) o.weight = x[2];
      return TensorList{nll_loss(x[0], x[1], o)};
    });
  }
  EXPECT_GE(found, 18);
}

TEST(CrossEntropy, PassesGradcheck) {
  Tensor target = reshape(tensor({0, 3, -7, 2, 1, 1}), {2, 3});
  for (auto [label, r] : kReductions) {
    CrossEntropyOptions o{
        .weight = tensor({0.5, 1.0, 2.0, 1.5}), .ignore_index = -7, .label_smoothing = 0.1, .reduction = r};
    auto f = [&](const TensorList& x) { return TensorList{cross_entropy(x[0], target, o)}; };
    EXPECT_TRUE(gradcheck(f, {scattered({2, 4, 3}).requires_grad_()})) << label;
    EXPECT_TRUE(gradgradcheck(f, {scattered({2, 4, 3}).requires_grad_()})) << label;
    auto soft = [&](const TensorList& x) { return TensorList{cross_entropy(x[0], x[1], o)}; };
    TensorList both{scattered({2, 4, 3}).requires_grad_(), scattered({2, 4, 3}, f64, 2, 0, 1).requires_grad_()};
    EXPECT_TRUE(gradcheck(soft, both)) << label;
  }
}

TEST(BinaryCrossEntropy, IsFiniteAtTheEnds) {
  Tensor x = tensor({0.0, 1.0, 0.0, 1.0}, {f64}).requires_grad_();
  Tensor loss = binary_cross_entropy(x, tensor({0.0, 1.0, 1.0, 0.0}, {f64}), {.reduction = Reduction::none});
  EXPECT_EQ(values(loss), (Doubles{0, 0, 100, 100}));
  loss.sum().backward();
  EXPECT_EQ(values(x.grad()), (Doubles{0, 0, -1e12, 1e12}));
  auto f = [](const TensorList& p) { return TensorList{binary_cross_entropy(p[0], p[1])}; };
  TensorList in{scattered({5}, f64, 1, 0.1, 0.9).requires_grad_(), scattered({5}, f64, 2, 0.1, 0.9).requires_grad_()};
  EXPECT_TRUE(gradcheck(f, in));
  EXPECT_TRUE(gradgradcheck(f, in));
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
  EXPECT_TRUE(gradcheck([](const TensorList& x) { return TensorList{pairwise_distance(x[0], x[1])}; },
                        {a.requires_grad_(), b.requires_grad_()}));
}

TEST(CrossEntropy, SaysThatOneHotTargetsAreProbabilities) {
  Tensor logits = zeros({2, 3}), target = one_hot(tensor({0, 2}, {i64}), 3);
  EXPECT_THAT(message_of<ShapeError>([&] { cross_entropy(logits, target); }),
              testing::AllOf(testing::HasSubstr("[2]"), testing::HasSubstr("target.to(f32)")));
  EXPECT_NO_THROW(cross_entropy(logits, target.to(f32)));
}

TEST(Loss, RarerOptionsAgreeWithPyTorch) {
  for (auto [label, r] : kReductions) {
    auto expect = [&, suffix = "." + std::string(label)](const std::string& name, auto body) {
      expect_golden(golden_losses(), name + suffix, [&](const TensorList& x) { return TensorList{body(x)}; });
    };
    // By the weights too, which in PyTorch have no gradient.
    expect("binary_cross_entropy.weights",
           [&](auto& x) { return binary_cross_entropy(x[0], x[1], {.weight = x[2], .reduction = r}); });
    expect("binary_cross_entropy_with_logits.weights", [&](auto& x) {
      return binary_cross_entropy_with_logits(x[0], x[1], {.weight = x[2], .pos_weight = x[3], .reduction = r});
    });
    MarginOptions margin{.margin = -0.9, .reduction = r};
    expect("cosine_embedding_loss.one", [&](auto& x) { return cosine_embedding_loss(x[0], x[1], x[2], margin); });
    for (int p : {1, 3})
      for (bool swap : {false, true})
        expect("triplet_margin_loss." + std::to_string(p) + (swap ? ".swap" : ".plain"), [&](auto& x) {
          return triplet_margin_loss(x[0], x[1], x[2], {.margin = 0.8, .p = double(p), .swap = swap, .reduction = r});
        });
  }
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
