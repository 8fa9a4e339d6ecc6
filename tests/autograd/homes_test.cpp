// Note [Gradients born in place]: where gradients lie, and that nothing else is ever found there.
#include "autograd/homes.h"

#include <gtest/gtest.h>

#include "tutti/tutti.h"

namespace tutti {
namespace {

bool lies_in(const Tensor& x, const Tensor& home) {
  return x.defined() && x.shares_storage(home) && x.storage_offset() == home.storage_offset() &&
         x.strides() == home.strides();
}

// Backward of loss, with homes offered by a hook on it as DDP does.
void backward_with_homes(const Tensor& loss, const TensorList& leaves, const TensorList& homes) {
  loss.register_hook([=](const Tensor&) {
    for (size_t i = 0; i < leaves.size(); ++i) offer_home(leaves[i], homes[i]);
    return Tensor();
  });
  loss.backward();
}

// A part of a larger storage, full of what must not be seen.
Tensor make_home(const Shape& sizes) {
  int64_t count = Shape(sizes).product();
  return full({count + 32}, NAN).narrow(0, 16, count).view(sizes).detach();
}

Tensor weights(const Shape& sizes) { return randn(sizes).requires_grad_(); }

TEST(Homes, AWeightsGradientIsMadeThere) {
  Tensor w = weights({5, 3}), x = randn({4, 3}), home = make_home({5, 3});
  backward_with_homes(linear(x, w).square().sum(), {w}, {home});
  EXPECT_TRUE(lies_in(w.grad(), home));
  Tensor found = w.grad().clone();
  w.set_grad({});
  linear(x, w).square().sum().backward();
  EXPECT_TRUE(equal(found, w.grad()));
  EXPECT_FALSE(w.grad().shares_storage(home));
}

TEST(Homes, WithABiasAndInAProductOfItsOwn) {
  Tensor w = weights({3, 5}), b = weights({5}), x = randn({4, 3}).requires_grad_();
  Tensor home_w = make_home({3, 5}), home_b = make_home({5});
  backward_with_homes(addmm(b, x, w).square().sum(), {w, b}, {home_w, home_b});
  EXPECT_TRUE(lies_in(w.grad(), home_w));
  Tensor dw = w.grad().clone(), db = b.grad().clone(), dx = x.grad();
  for (const Tensor& t : {w, b, x}) t.set_grad({});
  addmm(b, x, w).square().sum().backward();
  EXPECT_TRUE(equal(dw, w.grad()));
  EXPECT_TRUE(equal(db, b.grad()));
  EXPECT_TRUE(equal(dx, x.grad()));
}

// The gradient of x has the geometry of w's home, and is made first.
TEST(Homes, AnotherTensorOfThatGeometryIsMovedOut) {
  Tensor w = weights({4, 4}), x = weights({4, 4}), home = make_home({4, 4});
  backward_with_homes(mm(x, w).square().sum(), {w}, {home});
  EXPECT_FALSE(x.grad().shares_storage(home));
  Tensor dw = w.grad().clone(), dx = x.grad().clone();
  home.fill_(7);
  EXPECT_TRUE(equal(dx, x.grad()));
  for (const Tensor& t : {w, x}) t.set_grad({});
  mm(x, w).square().sum().backward();
  EXPECT_TRUE(equal(dw, w.grad()));
  EXPECT_TRUE(equal(dx, x.grad()));
}

TEST(Homes, AWeightUsedTwiceGetsTheSum) {
  Tensor w = weights({4, 4}), x = randn({6, 4}), home = make_home({4, 4});
  auto loss = [&] { return linear(linear(x, w).tanh(), w).square().sum() + mm(x, w).sum(); };
  backward_with_homes(loss(), {w}, {home});
  Tensor dw = w.grad().clone();
  w.set_grad({});
  loss().backward();
  EXPECT_TRUE(equal(dw, w.grad()));
}

TEST(Homes, NotWhereAHookSeesTheGradient) {
  Tensor w = weights({5, 3}), x = randn({4, 3}), home = make_home({5, 3}), seen;
  w.register_hook([&](const Tensor& g) {
    seen = g;
    return Tensor();
  });
  backward_with_homes(linear(x, w).square().sum(), {w}, {home});
  EXPECT_FALSE(seen.shares_storage(home));
  Tensor t = w.t();
  t.register_hook([&](const Tensor& g) {
    seen = g;
    return Tensor();
  });
  w.set_grad({});
  backward_with_homes(mm(x, t).square().sum(), {w}, {home});
  EXPECT_FALSE(seen.shares_storage(home));
}

// Hooks on what a layer gives see another gradient than the weight's: that of the output, as DDP's do.
TEST(Homes, WhereAHookSeesTheOutputsGradient) {
  Tensor w = weights({5, 3}), x = randn({4, 3}), home = make_home({5, 3}), y = linear(x, w);
  y.register_hook([=](const Tensor&) {
    offer_home(w, home);
    return Tensor();
  });
  y.square().sum().backward();
  EXPECT_TRUE(lies_in(w.grad(), home));
  Tensor found = w.grad().clone(), seen;
  w.set_grad({});
  y = linear(x, w);
  register_post_hook(*y.grad_node(), [&](Gradients& inputs, const Gradients&) { seen = inputs[0]; });
  backward_with_homes(y.square().sum(), {w}, {home});
  EXPECT_FALSE(w.grad().shares_storage(home));
  EXPECT_TRUE(equal(found, w.grad()));
}

TEST(Homes, NotWhereAGraphIsKept) {
  Tensor w = weights({5, 3}), x = randn({4, 3}), home = make_home({5, 3});
  Tensor loss = linear(x, w).square().sum();
  loss.register_hook([=](const Tensor&) {
    offer_home(w, home);
    return Tensor();
  });
  loss.backward({.create_graph = true});
  EXPECT_FALSE(w.grad().shares_storage(home));
  w.set_grad({});  // its graph holds w, which holds it
}

TEST(Homes, AWriteThereIsCounted) {
  Tensor w = weights({5, 3}), x = randn({4, 3}), home = make_home({5, 3}), c = ones({5, 3}).requires_grad_();
  Tensor later = (c * home).sum();  // saves what lies there now
  backward_with_homes(linear(x, w).square().sum(), {w}, {home});
  ASSERT_TRUE(lies_in(w.grad(), home));
  EXPECT_THROW(later.backward(), VersionError);
}

TEST(Homes, OfAnotherGeometryIsLeftAlone) {
  Tensor w = weights({5, 3}), x = randn({4, 3}), home = make_home({3, 5}), before = home.clone();
  backward_with_homes(linear(x, w).square().sum(), {w}, {home.t()});
  EXPECT_FALSE(w.grad().shares_storage(home));
  EXPECT_TRUE(isnan(home).all().item<bool>());
}

}  // namespace
}  // namespace tutti
