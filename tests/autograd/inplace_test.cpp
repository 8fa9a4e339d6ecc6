#include "tests/support/expect_ops.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

TEST(Version, CountsWritesAndIsSharedByViews) {
  Tensor x = zeros({4});
  uint64_t before = x.version();
  x.add_(1);
  EXPECT_EQ(x.version(), before + 1);
  x.narrow(0, 0, 2).mul_(2);
  EXPECT_EQ(x.version(), before + 2);
  EXPECT_EQ(x.detach().version(), before + 2);
}

TEST(Version, ErrorNamesTheCulprit) {
  Tensor x = ones({3}, {.requires_grad = true});
  Tensor y = x * 2;
  Tensor z = sum(y * y);
  y.sin_();
  std::string text = message_of<VersionError>([&] { z.backward(); });
  EXPECT_THAT(text, HasSubstr("'sin' wrote to it"));
  EXPECT_THAT(text, HasSubstr("'mul' needs f32[3]"));
}

TEST(Version, PreserveGuardHidesAWrite) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = x * 2;
  Tensor z = sum(y * y);
  uint64_t version = y.version();
  {
    PreserveVersion guard;
    NoGrad no_grad;
    y.fill_(5);
  }
  EXPECT_EQ(y.version(), version);
  z.backward();
  EXPECT_EQ(values(x.grad()), (Doubles{20, 20}));
}

TEST(Version, WhatIsNotSavedMayChange) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = x * 2;
  Tensor z = sum(y + 1);
  y.mul_(100);
  z.backward();
  EXPECT_EQ(values(x.grad()), (Doubles{2, 2}));
}

TEST(InPlace, LeavesAreProtected) {
  Tensor x = ones({2}, {.requires_grad = true});
  EXPECT_THAT(message_of<GradError>([&] { x.add_(1); }), HasSubstr("leaf"));
  EXPECT_THAT(message_of<GradError>([&] { x[0].add_(1); }), HasSubstr("leaf"));
  NoGrad guard;
  x.add_(1);
  EXPECT_EQ(values(x), (Doubles{2, 2}));
}

TEST(InPlace, KeepsTheHistoryGoing) {
  Tensor x = tensor({1.0, 2.0}, {.dtype = f64, .requires_grad = true});
  Tensor y = x * 3;
  y.exp_();
  y.mul_(y);
  y.add_(x);
  sum(y).backward();
  auto g = values(x.grad());
  EXPECT_NEAR(g[0], 6 * std::exp(6.0) + 1, 1e-9 * std::exp(6.0));
  EXPECT_NEAR(g[1], 6 * std::exp(12.0) + 1, 1e-9 * std::exp(12.0));
}

TEST(InPlace, OnAViewReachesTheBase) {
  Tensor x = tensor({1.0, 2.0, 3.0, 4.0}, {.dtype = f64, .requires_grad = true});
  Tensor y = x * 1;
  y.narrow(0, 1, 2).mul_(10);
  EXPECT_EQ(values(y), (Doubles{1, 20, 30, 4}));
  sum(y * y).backward();
  EXPECT_EQ(values(x.grad()), (Doubles{2, 400, 600, 8}));
}

TEST(InPlace, OnABaseReachesItsViews) {
  Tensor x = tensor({1.0, 2.0, 3.0}, {.dtype = f64, .requires_grad = true});
  Tensor y = x * 1, v = y[1];
  y.mul_(x);
  v.backward();
  EXPECT_EQ(values(x.grad()), (Doubles{0, 4, 0}));
}

TEST(InPlace, FillingABufferFromAGraph) {
  Tensor buffer = zeros({2, 2}, {f64});
  Tensor w = tensor({1.0, 2.0}, {.dtype = f64, .requires_grad = true});
  buffer[0].copy_(w * 2);
  EXPECT_TRUE(buffer.requires_grad());
  EXPECT_TRUE(buffer[1].requires_grad());
  buffer[1].copy_(w * 3);
  sum(buffer * tensor({{1.0, 10.0}, {100.0, 1000.0}})).backward();
  EXPECT_EQ(values(w.grad()), (Doubles{2 + 300, 20 + 3000}));
}

TEST(InPlace, OverwritingDropsTheOldHistory) {
  Tensor x = tensor({1.0, 2.0}, {.dtype = f64, .requires_grad = true});
  Tensor y = x * 2;
  y[0].zero_();
  sum(y).backward();
  EXPECT_EQ(values(x.grad()), (Doubles{0, 2}));
  Tensor z = x * 2;
  z.zero_();
  EXPECT_FALSE(z.requires_grad());
}

TEST(InPlace, ViewOfViewAndSecondOrder) {
  auto f = [](const TensorList& xs) {
    Tensor y = xs[0] * xs[0];
    y[0].narrow(0, 1, 2).mul_(xs[1]);
    y.select(1, 0).sin_();
    return TensorList{y * y};
  };
  Tensor x = rand({2, 3}, {.dtype = f64, .requires_grad = true}), w = rand({2}, {.dtype = f64, .requires_grad = true});
  EXPECT_TRUE(gradcheck(f, {x, w}));
  EXPECT_TRUE(gradgradcheck(f, {x, w}));
}

TEST(InPlace, ThroughViewsOfAnotherDtype) {
  auto f = [](const TensorList& xs) {
    Tensor z = xs[0] * 2;
    view_as_real(z).select(-1, 0).mul_(3);
    return TensorList{z * z};
  };
  Tensor z = complex(rand({3}, {f64}), rand({3}, {f64})).requires_grad_();
  EXPECT_TRUE(gradcheck(f, {z}));
}

TEST(InPlace, ThroughAViewOnAnotherDevice) {
  Devices two(2);
  auto f = [](const TensorList& xs) {
    Tensor base = xs[0] * 1, view = view_on(base, "cpu:1");
    view.narrow(0, 0, 2).mul_(xs[1]);
    view.sin_();
    return TensorList{view * view, base * 2};
  };
  Tensor x = rand({3}, {.dtype = f64, .requires_grad = true});
  Tensor w = rand({2}, {.dtype = f64, .device = "cpu:1", .requires_grad = true});
  EXPECT_TRUE(gradcheck(f, {x, w}));
  EXPECT_TRUE(gradgradcheck(f, {x, w}));
  auto z = f({x, w});
  (z[0].sum() + z[1].to("cpu:1").sum()).backward();
  EXPECT_EQ(x.grad().device(), x.device());
  EXPECT_EQ(w.grad().device(), w.device());
}

TEST(InPlace, OverlapIsHandledOrRefused) {
  Tensor x = arange(6).to(f64);
  x.narrow(0, 1, 5).add_(x.narrow(0, 0, 5));
  EXPECT_EQ(values(x), (Doubles{0, 1, 3, 5, 7, 9}));
  Tensor wide = zeros({1}).expand({4});
  EXPECT_THAT(message_of<ShapeError>([&] { wide.add_(1); }), HasSubstr("share memory"));
}

TEST(InPlace, RefusesLosingTheKind) {
  Tensor i = ones({2}, {i64});
  EXPECT_THAT(message_of<DTypeError>([&] { i.add_(1.5); }), HasSubstr("cast it first"));
  EXPECT_THAT(message_of<ShapeError>([&] { i.add_(ones({3, 2}, {i64})); }), HasSubstr("cannot be written into"));
  Tensor f = ones({2}, {f32});
  f.add_(ones({2}, {f64}));
  EXPECT_EQ(f.dtype(), f32);
}

TEST(Storage, ResizedToNothingAndBack) {
  Tensor x = ones({1000}, {f32}), v = x.narrow(0, 10, 5);
  x.resize_storage(0);
  EXPECT_EQ(x.storage_bytes(), 0u);
  EXPECT_THAT(message_of<ValueError>([&] { (void)(x + 1); }), HasSubstr("resize"));
  EXPECT_THROW((void)v.sum(), ValueError);
  x.resize_storage(4000);
  x.fill_(2);
  EXPECT_EQ(v.sum().item<double>(), 10);
}

// Views of another kind of numbers: gradients cannot follow a write there, and say so only if it happens.
TEST(InPlace, ThroughViewsThatGradientsCannotFollow) {
  Tensor x = ones({4}).requires_grad_(), base = x * 1;
  Tensor bits = base.view_dtype(DType::i32);
  base.mul_(3);
  EXPECT_FALSE(bits.requires_grad());
  EXPECT_EQ(bits[0].item<int>(), 0x40400000);
  base.sum().backward();
  EXPECT_EQ(values(x.grad()), (Doubles{3, 3, 3, 3}));
  Tensor other = x * 1;
  other.view_dtype(DType::i32).fill_(0);
  EXPECT_THAT(message_of<GradError>([&] { other.sum().backward(); }), HasSubstr("cannot follow a change of dtype"));
}

TEST(InPlace, AViewMadeInsideNoGradIsNotWrittenOutside) {
  Tensor x = ones({4}).requires_grad_(), base = x * 1, view;
  {
    NoGrad guard;
    view = base.narrow(0, 0, 2);
    view.mul_(2);
  }
  EXPECT_EQ(values(base), (Doubles{2, 2, 1, 1}));
  Tensor plain = zeros({4}), part;
  {
    NoGrad guard;
    part = plain.narrow(0, 0, 2);
  }
  part.copy_(x.narrow(0, 0, 2));  // there was no gradient to lose
  plain.sum().backward();
  EXPECT_EQ(values(x.grad()), (Doubles{1, 1, 0, 0}));
}

TEST(InPlace, WhatSharesMemoryWithoutAHistoryIsRefused) {
  Tensor values_of = tensor({1.0, 2.0}).requires_grad_() * 1;
  Tensor s = sparse_coo(tensor({{0, 2}}, {i64}), values_of, {3});
  EXPECT_THAT(message_of<GradError>([&] { s.values().mul_(2); }), HasSubstr("values() of a sparse tensor"));
  EXPECT_THAT(message_of<GradError>([&] { s.values().narrow(0, 0, 1).mul_(2); }), HasSubstr("clone() it"));
  Tensor dense = to_dense(s);
  values_of.mul_(2);  // the sparse tensor's own memory
  EXPECT_THAT(message_of<VersionError>([&] { dense.sum().backward(); }), HasSubstr("'mul' wrote"));
}

// The operator that wrote a part is a node like any other: its hooks run, and it is named.
TEST(InPlace, TheWriterOfAPartIsInTheGraph) {
  Tensor x = ones({4}).requires_grad_(), w = ones({2}).requires_grad_(), base = x * 1;
  base.narrow(0, 1, 2).mul_(w * 3);
  auto next = next_nodes(*base.grad_node());
  ASSERT_EQ(next.size(), 2u);
  EXPECT_EQ(node_name(*next[1]), "mul");
  int ran = 0;
  register_post_hook(*next[1], [&](Gradients& g, const Gradients&) {
    ++ran;
    g[1] = g[1] * 10;
  });
  base.sum().backward();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(values(w.grad()), (Doubles{30, 30}));
  EXPECT_EQ(values(x.grad()), (Doubles{1, 3, 3, 1}));
}

// A view looks at how its base lies, not at what is there.
TEST(Storage, ViewsOfFreedMemory) {
  Tensor x = ones({1000}, {f32});
  x.resize_storage(0);
  Tensor v = x.view({10, 100}).narrow(0, 2, 3).unsqueeze(0).expand({2, 3, 100}), w = x[7];
  EXPECT_EQ(v.sizes(), (Shape{2, 3, 100}));
  EXPECT_THROW((void)v.sum(), ValueError);
  x.resize_storage(4000);
  x.fill_(2);
  EXPECT_EQ(v.sum().item<double>(), 1200);
  EXPECT_EQ(w.item<double>(), 2);
  x.resize_storage(400);
  EXPECT_EQ(x.narrow(0, 0, 100).sum().item<double>(), 200);  // what is there can be read
  EXPECT_THROW((void)x.narrow(0, 1, 100).sum(), ValueError);
}

TEST(InPlace, TwoDimsThatStepPastEachOtherDoNotMeet) {
  Tensor x = zeros({8});
  as_strided(x, {2, 3}, {3, 2}).add_(1);
  EXPECT_EQ(values(x), (Doubles{1, 0, 1, 1, 1, 1, 0, 1}));
  EXPECT_THROW(as_strided(x, {2, 4}, {3, 1}).add_(1), ShapeError);
  EXPECT_THROW(as_strided(x, {3, 4}, {2, 1}).add_(1), ShapeError);
  EXPECT_THROW(as_strided(zeros({30}), {3, 3}, {4, 2}).add_(1), ShapeError);
  Tensor wide = zeros({40});
  as_strided(wide, {2, 2, 3}, {20, 3, 2}).add_(1);
  EXPECT_EQ(wide.sum().item<double>(), 12);
}

}  // namespace
}  // namespace tutti
