#include "tests/support/expect_ops.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

struct Cube : Function<Cube> {
  double scale = 0;
  std::string note;
  Tensor forward(const Tensor& x, double s, std::string text) {
    EXPECT_FALSE(grad_enabled());
    scale = s;
    note = std::move(text);
    save(x);
    return x * x * x * s;
  }
  TensorList backward(const TensorList& g) {
    EXPECT_EQ(note, "kept");
    Tensor x = saved(0);
    return {g[0] * 3 * x * x * scale};
  }
};

TEST(Function, WithStateAndSecondOrder) {
  Tensor x = tensor({1.0, 2.0}, {.dtype = f64, .requires_grad = true});
  auto f = [](const TensorList& xs) { return TensorList{Cube::apply(xs[0], 2.0, "kept")}; };
  EXPECT_TRUE(gradcheck(f, {x}));
  EXPECT_TRUE(gradgradcheck(f, {x}));
  EXPECT_THAT(node_name(*Cube::apply(x, 2.0, "kept").grad_node()), HasSubstr("Cube"));
}

struct Split : Function<Split> {
  TensorList forward(const TensorList& xs, const Tensor& y) {
    Tensor index = arange(3);
    mark_non_differentiable(index);
    return {xs[0] + y, xs[1] * y, index};
  }
  TensorList backward(const TensorList& g) {
    EXPECT_TRUE(g[1].defined());  // missing gradients arrive as zeros
    return {g[0], needs_gradient(1) ? g[1] * 2 : Tensor(), g[0] + g[1]};
  }
};

TEST(Function, SeveralInputsAndOutputs) {
  Tensor a = ones({2}, {.requires_grad = true}), b = ones({2}), y = ones({2}, {.requires_grad = true});
  auto out = Split::apply(TensorList{a, b}, y);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_FALSE(out[2].requires_grad());
  sum(out[0] * 3).backward();
  EXPECT_EQ(values(a.grad()), (Doubles{3, 3}));
  EXPECT_FALSE(b.grad().defined());
  EXPECT_EQ(values(y.grad()), (Doubles{3, 3}));
}

struct SavesOutput : Function<SavesOutput> {
  Tensor forward(const Tensor& x) {
    Tensor y = exp(x);
    save(y);
    return y;
  }
  TensorList backward(const TensorList& g) { return {g[0] * saved(0)}; }
};

TEST(Function, MaySaveItsOutput) {
  Tensor x = tensor({0.5, 1.0}, {.dtype = f64, .requires_grad = true});
  auto f = [](const TensorList& xs) { return TensorList{SavesOutput::apply(xs[0])}; };
  EXPECT_TRUE(gradcheck(f, {x}));
  EXPECT_TRUE(gradgradcheck(f, {x}));
  Tensor y = SavesOutput::apply(x);
  y.add_(1);
  EXPECT_THAT(message_of<VersionError>([&] { sum(y).backward(); }), HasSubstr("'add' wrote"));
}

struct WrongCount : Function<WrongCount> {
  Tensor forward(const Tensor& x) { return x * 1; }
  TensorList backward(const TensorList& g) { return {g[0], g[0]}; }
};
struct WrongShape : Function<WrongShape> {
  Tensor forward(const Tensor& x) { return x * 1; }
  TensorList backward(const TensorList&) { return {ones({5})}; }
};
struct HalfUndefined : Function<HalfUndefined> {
  TensorList forward(const Tensor& x) { return {x * 1, Tensor()}; }
  TensorList backward(const TensorList& g) { return {g[0]}; }
};

TEST(Function, MistakesAreNamed) {
  Tensor x = ones({2}, {.requires_grad = true});
  EXPECT_THAT(message_of<GradError>([&] { sum(WrongCount::apply(x)).backward(); }), HasSubstr("returned 2 gradients"));
  EXPECT_THAT(message_of<ShapeError>([&] { sum(WrongShape::apply(x)).backward(); }), HasSubstr("shape [5]"));
  EXPECT_THAT(message_of<ValueError>([&] { HalfUndefined::apply(x); }),
              AllOf(HasSubstr("HalfUndefined: "), HasSubstr("output 1 of its forward is undefined")));
}

struct WrongGradient : Function<WrongGradient> {
  Tensor forward(const Tensor& x) { return x * 2; }
  TensorList backward(const TensorList& g) { return {g[0] * 3}; }
};

TEST(Gradcheck, FindsAWrongGradient) {
  Tensor x = rand({3}, {.dtype = f64, .requires_grad = true});
  auto f = [](const TensorList& xs) { return TensorList{WrongGradient::apply(xs[0])}; };
  EXPECT_FALSE(gradcheck(f, {x}, {.throw_on_failure = false}));
  EXPECT_THAT(message_of<GradError>([&] { gradcheck(f, {x}); }), HasSubstr("differences say"));
}

struct WrongSecond : Function<WrongSecond> {
  Tensor forward(const Tensor& x) {
    save(x);
    return x * x;
  }
  TensorList backward(const TensorList& g) { return {g[0] * 2 * saved(0).detach()}; }
};

TEST(Gradcheck, FindsAWrongSecondDerivative) {
  Tensor x = rand({3}, {.dtype = f64, .requires_grad = true});
  auto f = [](const TensorList& xs) { return TensorList{WrongSecond::apply(xs[0])}; };
  EXPECT_TRUE(gradcheck(f, {x}));
  EXPECT_FALSE(gradgradcheck(f, {x}, {.throw_on_failure = false}));
}

TEST(Gradcheck, LeavesTheInputsAlone) {
  Tensor x = rand({3}, {.dtype = f64, .requires_grad = true});
  auto before = values(x);
  gradcheck([](const TensorList& xs) { return TensorList{xs[0] * xs[0]}; }, {x});
  EXPECT_EQ(values(x), before);
  EXPECT_FALSE(x.grad().defined());
}

TEST(Checkpoint, GivesTheSameGradientsWithTheSameRandomNumbers) {
  manual_seed(3);
  Tensor x = randn({4, 8}, {.requires_grad = true}), w = randn({8, 8}, {.requires_grad = true});
  auto body = [&](const TensorList& xs) { return TensorList{dropout(tanh(matmul(xs[0], w)), 0.5)}; };
  auto run = [&](bool checkpointed) {
    manual_seed(11);
    x.zero_grad();
    w.zero_grad();
    Tensor y = checkpointed ? checkpoint(body, TensorList{x})[0] : body({x})[0];
    Tensor after = rand({2});
    (sum(y * y) + sum(after)).backward();
    return std::pair(values(x.grad()), values(w.grad()));
  };
  EXPECT_EQ(run(true), run(false));
  auto state = generator().state();
  run(true);
  auto once = generator().state();
  generator().set_state(state);
  run(false);
  EXPECT_EQ(once, generator().state());  // backward leaves the generator where forward did
}

TEST(Checkpoint, KeepsNothingInside) {
  Tensor x = ones({2}, {.dtype = f64, .requires_grad = true});
  int runs = 0;
  Tensor y = checkpoint(
      [&](const Tensor& t) {
        ++runs;
        return exp(t) * t;
      },
      x);
  EXPECT_EQ(runs, 1);
  sum(y).backward();
  EXPECT_EQ(runs, 2);
  EXPECT_NEAR(values(x.grad())[0], 2 * std::exp(1.0), 1e-12);
}

TEST(Checkpoint, OfTheSecondOrder) {
  auto f = [](const TensorList& xs) {
    return checkpoint([](const TensorList& ts) { return TensorList{sin(ts[0]) * ts[1]}; }, xs);
  };
  Tensor x = rand({3}, {.dtype = f64, .requires_grad = true}), y = rand({3}, {.dtype = f64, .requires_grad = true});
  EXPECT_TRUE(gradcheck(f, {x, y}));
  EXPECT_TRUE(gradgradcheck(f, {x, y}));
}

// What the function uses beside its inputs is treated like them.
TEST(Checkpoint, OfCapturedTensors) {
  Tensor x = ones({2}, {.requires_grad = true}), p = full({2}, 3.0, {.requires_grad = true}), q = p * 2;
  auto f = [&](const Tensor& a) { return a * p * q; };
  // grad() gives gradients back and accumulates none, of leaves and others.
  TensorList g = grad({checkpoint(f, x).sum()}, {x, p, q}, {.retain_graph = true});
  EXPECT_EQ(values(g[0]), (Doubles{18, 18}));
  EXPECT_EQ(values(g[1]), (Doubles{12, 12}));  // 6 by itself, 6 by q
  EXPECT_EQ(values(g[2]), (Doubles{3, 3}));
  EXPECT_FALSE(p.grad().defined() || x.grad().defined());
  // A leaf accumulates once a backward, however many checkpoints use it.
  int times = 0;
  p.register_post_accumulate_hook([&](const Tensor&) { ++times; });
  auto twice = [&](const Tensor& a) { return a * p; };
  (checkpoint(twice, x) + checkpoint(twice, x) + x * p).sum().backward();
  EXPECT_EQ(times, 1);
  EXPECT_EQ(values(p.grad()), (Doubles{3, 3}));
  // Checkpoints inside of checkpoints, custom functions, second order.
  struct Square : Function<Square> {
    Tensor forward(const Tensor& t) {
      save(t);
      return t * t;
    }
    TensorList backward(const TensorList& gs) { return {gs[0] * saved(0) * 2}; }
  };
  Tensor w = rand({3}, {.dtype = f64, .requires_grad = true}), y = rand({3}, {.dtype = f64, .requires_grad = true});
  auto nested = [](const TensorList& xs) {
    auto inner = [w = xs[1]](const Tensor& t) { return sin(t) * Square::apply(w); };
    return TensorList{checkpoint([inner, w = xs[1]](const Tensor& t) { return checkpoint(inner, t) * w; }, xs[0])};
  };
  EXPECT_TRUE(gradcheck(nested, {y, w}));
  EXPECT_FALSE(checkpoint([](const Tensor& t) { return t * 2; }, ones({2})).requires_grad());
}

TEST(Checkpoint, WhoseInputsNeedNoGradient) {
  Tensor x = ones({2}), w = ones({2}, {.requires_grad = true});
  Tensor y = checkpoint([&](const Tensor& t) { return t * w * 3; }, x);
  sum(y).backward();
  EXPECT_EQ(values(w.grad()), (Doubles{3, 3}));
}

// A pass inside of another one ends at the checkpoint's inputs: their hooks are the outer pass's, and run once.
TEST(Checkpoint, HooksOfWhatItUsesRunOnce) {
  Tensor w = ones({2}).requires_grad_(), x = ones({2}).requires_grad_();
  int of_leaf = 0, of_input = 0;
  w.register_hook([&](const Tensor& g) { return ++of_leaf, g * 10; });
  Tensor in = x * 1;
  in.register_hook([&](const Tensor& g) { return ++of_input, g * 100; });
  checkpoint([&](const Tensor& t) { return t * w; }, in).sum().backward();
  EXPECT_EQ(of_leaf, 1);
  EXPECT_EQ(of_input, 1);
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{10, 10}));
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{100, 100}));
}

// The function may know its argument by another way too: what it finds when it runs again is not the argument then.
TEST(Checkpoint, WhoseArgumentIsCapturedToo) {
  Tensor x = tensor({3.0}, {.dtype = f64, .requires_grad = true});
  checkpoint([&](const Tensor& a) { return a * x; }, x).sum().backward();
  EXPECT_EQ(values(x.grad()), (Doubles{6}));
  Tensor y = x * 2;
  x.zero_grad();
  checkpoint([&](const Tensor& a) { return a * y * y; }, y).sum().backward();
  EXPECT_EQ(values(x.grad()), (Doubles{3 * 6 * 6 * 2}));
}

// Where the function records by itself, too: what it makes is its own, what it finds is not.
TEST(Checkpoint, OfAFunctionThatRecords) {
  Tensor x = tensor({2.0}, {.dtype = f64, .requires_grad = true}),
         w = tensor({5.0}, {.dtype = f64, .requires_grad = true});
  auto f = [&](const Tensor& a) {
    EnableGrad guard;
    Tensor own = w * w;
    return a * own;
  };
  checkpoint(f, x).sum().backward();
  EXPECT_EQ(values(x.grad()), (Doubles{25}));
  EXPECT_EQ(values(w.grad()), (Doubles{20}));
}

TEST(Checkpoint, WhatItUsesMayNotChange) {
  Tensor x = ones({2}, {.requires_grad = true}), w = ones({2}, {.requires_grad = true});
  Tensor y = checkpoint([&](const Tensor& a) { return a * w; }, x);
  {
    NoGrad guard;
    w.fill_(7);
  }
  EXPECT_THAT(message_of<VersionError>([&] { y.sum().backward(); }), HasSubstr("'fill_' wrote"));
  EXPECT_THAT(message_of<GradError>([&] { checkpoint([](const Tensor& a) { return Tensor(a).mul_(2); }, x * 1); }),
              HasSubstr("wrote to its argument 0"));
  int runs = 0;
  TensorList z = checkpoint([&](const TensorList& a) { return ++runs == 1 ? TensorList{a[0] * 2, a[0] * 3} : a; }, {x});
  EXPECT_THAT(message_of<GradError>([&] { z[0].sum().backward(); }), HasSubstr("gave 2 tensors, and 1 when"));
}

// Says what it does to its argument, whatever that is.
struct Marks : Function<Marks> {
  TensorList forward(Tensor x, bool write, bool give_back, bool differentiable) {
    if (write) x.mul_(2);
    mark_dirty(x);
    if (!differentiable) mark_non_differentiable(x);
    return {give_back ? x : x.clone()};
  }
  TensorList backward(const TensorList& g) { return {g[0] * 2}; }
};

TEST(Function, MarkedDirty) {
  Tensor p = ones({2}, {.requires_grad = true});
  Tensor x = p * 1;
  EXPECT_THAT(message_of<GradError>([&] { Marks::apply(x, false, false, true); }), HasSubstr("forward must return it"));
  EXPECT_TRUE(Marks::apply(x, false, true, true)[0].is_same(x));  // marked, and not written after all
  x.sum().backward();
  EXPECT_EQ(values(p.grad()), (Doubles{2, 2}));
  Tensor y = p * 1;
  Marks::apply(y, true, true, false);
  EXPECT_FALSE(y.requires_grad());  // what it was is gone, what it is has no gradient
}

TEST(Gradcheck, OfSparseInputs) {
  Tensor s = sparse_coo(tensor({{0, 1, 1}, {2, 0, 0}}, {i64}), tensor({1.0, 2.0, 3.0}, {f64}), {2, 3}).requires_grad_();
  Tensor d = rand({3, 2}, {.dtype = f64, .requires_grad = true});
  auto f = [](const TensorList& xs) { return TensorList{square(mm(xs[0], xs[1])), to_dense(xs[0] * 2)}; };
  EXPECT_TRUE(gradcheck(f, {s, d}));
  EXPECT_TRUE(gradgradcheck(f, {s, d}));
  auto wrong = [](const TensorList& xs) { return TensorList{WrongGradient::apply(to_dense(xs[0]))}; };
  EXPECT_FALSE(gradcheck(wrong, {s}, {.throw_on_failure = false}));
}

TEST(Gradcheck, OfWhatHasNoGradient) {
  Tensor x = rand({3}, {.dtype = f64, .requires_grad = true});
  auto f = [](const TensorList& xs) { return TensorList{xs[0].detach()}; };
  EXPECT_FALSE(gradcheck(f, {x}, {.throw_on_failure = false}));
  EXPECT_THAT(message_of<GradError>([&] { gradcheck(f, {x}); }), HasSubstr("no output depends"));
}

}  // namespace
}  // namespace tutti
