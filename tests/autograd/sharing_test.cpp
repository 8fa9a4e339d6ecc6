// Gradients where memory, nodes or passes are shared: between results, arguments, threads and passes inside of passes.
#include <atomic>
#include <cmath>
#include <optional>
#include <thread>

#include "autograd/engine.h"
#include "tests/support/expect_ops.h"
#include "tutti/memory.h"
#include "tutti/ops/embedding.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

// ---- Functions and their arguments

// As nn::Parameter is.
struct Named : Tensor {
  Named(const Tensor& t) : Tensor(t) { requires_grad_(); }  // NOLINT
};

struct Scaled : Function<Scaled> {
  Tensor forward(const Tensor& x, const std::optional<Tensor>& by, const std::vector<Named>& more) {
    save(x);
    Tensor y = by ? x * *by : x * 1;
    for (const Tensor& m : more) y = y + m;
    return y;
  }
  TensorList backward(const TensorList& g) {
    TensorList gradients = {g[0] * 2, needs_gradient(1) ? g[0] * saved(0) : Tensor()};
    while (needs_gradient(gradients.size())) gradients.push_back(g[0]);
    return gradients;
  }
};

TEST(Function, TakesParametersListsAndOptionalTensors) {
  Named p(ones({2})), q(ones({2}));
  Tensor by = full({2}, 3.0).requires_grad_();
  Scaled::apply(p, std::optional<Tensor>(by), std::vector<Named>{q, q}).sum().backward();
  EXPECT_EQ(values(p.grad()), (Doubles{2, 2}));
  EXPECT_EQ(values(by.grad()), (Doubles{1, 1}));
  EXPECT_EQ(values(q.grad()), (Doubles{2, 2}));
  p.zero_grad();
  Scaled::apply(p, std::optional<Tensor>(), std::vector<Named>()).sum().backward();
  EXPECT_EQ(values(p.grad()), (Doubles{2, 2}));
}

struct Halves : Function<Halves> {
  TensorList forward(const Tensor& x) {
    Tensor h = x * 2;
    return {h, h.narrow(0, 0, 2)};
  }
  TensorList backward(const TensorList& g) { return {g[0] * 2 + cat({g[1] * 2, zeros({2})}, 0)}; }
};

TEST(Function, ResultsThatShareMemoryAreNotWritten) {
  Tensor x = ones({4}).requires_grad_();
  TensorList y = Halves::apply(x);
  EXPECT_THAT(message_of<GradError>([&] { y[1].mul_(10); }), HasSubstr("two results in one memory"));
  EXPECT_THROW(y[0].mul_(10), GradError);
  (y[0].sum() + y[1].sum()).backward();
  EXPECT_EQ(values(x.grad()), (Doubles{4, 4, 2, 2}));
}

struct SameAgain : Function<SameAgain> {
  Tensor forward(const Tensor& x, bool part) { return part ? x.narrow(0, 0, 2) : x; }
  TensorList backward(const TensorList& g) { return {g[0].size(0) == 2 ? cat({g[0], zeros({1})}, 0) : g[0]}; }
};

TEST(Function, AResultInTheArgumentsMemoryFollowsItsWrites) {
  for (bool part : {false, true}) {
    Tensor x = ones({3}).requires_grad_(), q = x * 1, y = SameAgain::apply(q, part);
    EXPECT_THAT(message_of<GradError>([&] { y.mul_(2); }), HasSubstr("gave back an argument"));
    q.mul_(3);
    y.sum().backward();
    EXPECT_EQ(values(x.grad()), part ? (Doubles{3, 3, 0}) : (Doubles{3, 3, 3}));
  }
}

struct WritesAndSaves : Function<WritesAndSaves> {
  Tensor forward(Tensor x) {
    x.mul_(2);
    mark_dirty(x);
    save(x);
    return x;
  }
  TensorList backward(const TensorList& g) {
    EXPECT_EQ(values(saved(0))[0], 2);
    return {g[0] * 2};
  }
};

TEST(Function, WhatItWritesAndSavesIsFreed) {
  int64_t before = memory::statistics().bytes_in_use;
  for (bool use : {false, true})
    for (int i = 0; i < 3; ++i) {
      Tensor x = ones({10'000}).requires_grad_(), y = WritesAndSaves::apply(x * 1);
      if (use) y.sum().backward({.retain_graph = true});
    }
  EXPECT_LT(memory::statistics().bytes_in_use, before + 10'000);
}

TEST(Function, SavedIsForBackward) {
  struct Early : Function<Early> {
    Tensor forward(const Tensor& x) {
      save(x);
      return saved(0);
    }
    TensorList backward(const TensorList& g) { return g; }
  };
  Tensor x = ones({1}).requires_grad_();
  EXPECT_THAT(message_of<GradError>([&] { Early::apply(x); }), HasSubstr("saved: is for backward"));
}

// ---- Other memory

TEST(Version, SetDataTwiceIsNoticed) {
  Tensor x = full({4}, 1.0).requires_grad_(), loss = (x * x).sum();
  x.set_data(full({4}, 3.0));
  x.set_data(full({4}, 5.0));  // perhaps where the first was
  EXPECT_THAT(message_of<VersionError>([&] { loss.backward(); }), HasSubstr("set_data()"));
}

TEST(InPlace, ALeafThatIsAViewIsProtectedToo) {
  Tensor base = ones({4}), v = base.narrow(0, 0, 2).requires_grad_();
  EXPECT_THAT(message_of<GradError>([&] { v.mul_(2); }), HasSubstr("leaf"));
  EXPECT_TRUE(v.is_leaf());
}

// ---- Gradients that somebody else holds

TEST(Backward, SparseGradientsHaveIndicesOfTheirOwn) {
  Tensor weight = zeros({5, 1}).requires_grad_(), ids = tensor({1, 3}, {i64});
  embedding(weight, ids, {.sparse = true}).sum().backward();
  ids.copy_(tensor({0, 2}, {i64}));  // the next micro-batch, in the same memory
  embedding(weight, ids, {.sparse = true}).sum().backward();
  EXPECT_EQ(values(to_dense(weight.grad())), (Doubles{1, 1, 1, 1, 0}));
}

TEST(Backward, MemoryOfSomebodyElseIsNotTakenAsAGradient) {
  float memory[2] = {1, 1};
  Tensor x = ones({2}).requires_grad_();
  x.backward(from_blob(memory, {2}));
  x.backward(ones({2}));
  EXPECT_EQ(values(x.grad()), (Doubles{2, 2}));
  EXPECT_EQ(memory[0], 1);
}

TEST(Backward, IntoAGradientThatIsAStaleView) {
  for (int round = 0; round < 300; ++round) {  // views and leaves share locks by their addresses
    Tensor x = ones({2}).requires_grad_(), base = ones({4}) * 1;
    x.set_grad(base.narrow(0, 0, 2));
    Tensor w = ones({4}).requires_grad_();
    base.copy_(w * 2);
    x.sum().backward();
    ASSERT_EQ(values(x.grad()), (Doubles{3, 3}));
  }
}

// ---- Passes inside of passes

TEST(Engine, HooksMayDifferentiateByWhatTheyHookOn) {
  Tensor x = ones({2}).requires_grad_(), y = tanh(x);
  int calls = 0;
  y.register_hook([&](const Tensor& g) {
    if (++calls == 1) {
      EnableGrad guard;
      EXPECT_EQ(values(grad((y * y).sum(), y))[0], 2 * std::tanh(1.0f));
      EXPECT_TRUE(grad(y, x, {.retain_graph = true}, g).defined());
    }
    return Tensor();
  });
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_THAT(message_of<GradError>([&] { y.sum().backward(); }), HasSubstr("already used and freed"));
}

struct ByItsOutput : Function<ByItsOutput> {
  Tensor forward(const Tensor& x) {
    Tensor y = exp(x);
    save(y);
    return y;
  }
  TensorList backward(const TensorList& g) {
    EnableGrad guard;
    Tensor y = saved(0);
    return {g[0] * grad((y * y).sum(), y) / 2};
  }
};

TEST(Engine, AFunctionMayDifferentiateByItsOwnResult) {
  Tensor x = ones({2}).requires_grad_();
  ByItsOutput::apply(x).sum().backward();
  EXPECT_NEAR(values(x.grad())[0], std::exp(1.0), 1e-6);
}

// A pass that ends at a node has nothing to do with what is freed there.
TEST(Engine, APassThatEndsWhereAnotherIs) {
  Tensor x = ones({2}).requires_grad_(), y = tanh(x);
  std::atomic<bool> inside = false, done = false;
  Tensor z = y * 3;
  std::thread other;
  y.register_hook([&](const Tensor&) {
    if (inside.exchange(true)) return Tensor();
    other = std::thread([&] {
      EXPECT_EQ(values(grad(z.sum(), y, {.retain_graph = true}))[0], 3);
      done = true;
    });
    while (!done) std::this_thread::yield();
    return Tensor();
  });
  y.sum().backward();
  other.join();
}

// As DDP asks, from the hooks of its parameters.
TEST(AfterBackward, OfAPassInsideOneOfGrad) {
  Tensor x = ones({1}).requires_grad_(), y = x * 2, w = ones({1}).requires_grad_();
  bool asked = false, at_end = false, ended = false;
  w.register_post_accumulate_hook([&](const Tensor&) { asked = after_backward([&](bool well) { at_end = well; }); });
  y.register_hook([&](const Tensor&) {
    EnableGrad guard;
    (w * 3).sum().backward();
    ended = asked && at_end;
    return Tensor();
  });
  grad(y.sum(), x);
  EXPECT_TRUE(ended);
  EXPECT_EQ(values(w.grad()), (Doubles{3}));
}

// ---- Checkpoints under EnableGrad

TEST(Checkpoint, FindsAStaleViewUnderEnableGrad) {
  Tensor w = ones({4}).requires_grad_(), x = ones({2}).requires_grad_();
  Tensor base = w * 1, view = base.narrow(0, 0, 2);
  base.mul_(3);
  auto f = [&](const Tensor& a) {
    EnableGrad guard;
    return a * view;
  };
  EXPECT_EQ(values(grad(checkpoint(f, x).sum(), x, {.retain_graph = true})), (Doubles{3, 3}));
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(values(grad(checkpoint(f, x).sum(), w, {.retain_graph = true})), (Doubles{3, 3, 0, 0}));
  (checkpoint(f, x) + checkpoint(f, x)).sum().backward();
  EXPECT_EQ(values(w.grad()), (Doubles{6, 6, 0, 0}));
}

// ---- What gradcheck sees

struct OnlyContiguous : Function<OnlyContiguous> {
  bool contiguous = true;
  Tensor forward(const Tensor& x) {
    contiguous = x.is_contiguous();
    return x * 2;
  }
  TensorList backward(const TensorList& g) { return {g[0] * (contiguous ? 2 : 3)}; }
};

TEST(Gradcheck, OfInputsAsTheyLie) {
  auto f = [](const TensorList& xs) { return TensorList{OnlyContiguous::apply(xs[0])}; };
  EXPECT_TRUE(gradcheck(f, {rand({2, 3}, {f64}).requires_grad_()}));
  EXPECT_FALSE(gradcheck(f, {rand({3, 2}, {f64}).t().requires_grad_()}, {.throw_on_failure = false}));
}

}  // namespace
}  // namespace tutti
