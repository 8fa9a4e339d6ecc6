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

}  // namespace
}  // namespace tutti
