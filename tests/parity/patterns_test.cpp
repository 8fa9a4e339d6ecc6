// Section D of docs/parity.md: patterns of distributed training under the compiler.
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/held.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using test::identical;

void expect_same_gradient(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.requires_grad(), b.requires_grad());
  ASSERT_EQ(a.grad().defined(), b.grad().defined());
  if (a.grad().defined()) {
    EXPECT_TRUE(identical(b.grad(), a.grad()));
  }
}

// ---- Hooks on intermediate tensors

struct Object {
  Tensor value;
  TUTTI_FIELDS(value)
};

template <class F>
void check_hooks(F f) {
  // A hook that holds a tensor made from its own one is held by it in turn: such programs never free them.
  [[maybe_unused]] test::Held held;
  auto compiled = compile(f);
  CompiledBackward backward;
  Object one{full({}, 88.0)}, two{full({}, 99.0)};
  for (const Object& object : {one, two, one}) {
    Tensor x = ones({4}).requires_grad_(), y = ones({4}).requires_grad_();
    f(x, object).sum().backward();
    backward(compiled(y, object).sum());
    expect_same_gradient(x, y);
  }
  EXPECT_EQ(compiled.stats().forward_graphs, 1);
  EXPECT_EQ(compiled.stats().backward_graphs, 1);
}

TEST(ParityD, IntermediateHookWithClosure) {
  check_hooks([](const Tensor& x, const Object& object) {
    Tensor y = sin(x), closed_over = y + 1;
    y.register_hook([object, closed_over](const Tensor& g) { return g + object.value + closed_over; });
    return sin(y);
  });
}

TEST(ParityD, IntermediateHookWithNestedClosure) {
  check_hooks([](const Tensor& x, const Object& object) {
    auto run = [&] {
      Tensor y = sin(x), closed_over = y + 1;
      auto inner = [object](const Tensor& g, const Tensor& c) { return g + object.value + c; };
      y.register_hook([inner, closed_over](const Tensor& g) { return inner(g, closed_over); });
      return sin(y);
    };
    return run();
  });
}

// ---- Storage

TEST(ParityD, StorageResizeZeroCpu) {
  auto f = compile([](const Tensor& x) {
    Tensor y = sin(x);
    x.resize_storage(0);
    return cos(y);
  });
  for (int i = 0; i < 3; ++i) {
    Tensor x = randn({10}), expected = cos(sin(x));
    EXPECT_TRUE(identical(f(x), expected));
    EXPECT_EQ(x.storage_bytes(), 0u);
  }
  EXPECT_EQ(f.stats().forward_graphs, 1);
}

TEST(ParityD, StorageResizeNonzeroCpu) {
  auto f = compile([](const Tensor& x, Tensor out) {
    Tensor y = sin(x);
    out.resize_storage(x.storage_bytes());
    out.copy_(cos(y));
  });
  for (int i = 0; i < 3; ++i) {
    Tensor x = randn({10}), out = randn({10}), expected = cos(sin(x));
    out.resize_storage(0);
    f(x, out);
    EXPECT_EQ(out.storage_bytes(), x.storage_bytes());
    EXPECT_TRUE(identical(out, expected));
  }
  EXPECT_EQ(f.stats().forward_graphs, 1);
}

// ---- Versions

TEST(ParityD, UnsafeSetVersionCounter1) {
  auto f = compile([](Tensor w, const Tensor& x) {
    Tensor y = sin(x);
    uint64_t version = w.version();
    w.copy_(y + 1);
    w.set_version(version);
    return w;
  });
  for (uint64_t version : {3, 0, 1}) {
    Tensor w = randn({16}).clone(), x = randn({16});
    w.set_version(0);
    for (uint64_t i = 0; i < version; ++i) w.fill_(i);
    ASSERT_EQ(w.version(), version);
    Tensor got = f(w, x);
    EXPECT_TRUE(got.is_same(w));
    EXPECT_TRUE(identical(w, sin(x) + 1));
    EXPECT_EQ(w.version(), version);
  }
  EXPECT_EQ(f.stats().forward_graphs, 1);
}

// Forward saves w, then w is written behind the gradient's back: backward sees what is there now.
template <class F>
void check_written_behind(F f) {
  auto compiled = compile(f);
  for (int i = 0; i < 3; ++i) {
    Tensor w = randn({1}).requires_grad_(), x = randn({1}), expected = sin(w.detach());
    Tensor r = compiled(w, x);
    r.backward();
    EXPECT_TRUE(identical(r, expected));
    EXPECT_TRUE(identical(w, x));
    EXPECT_TRUE(identical(w.grad(), cos(x)));
  }
  EXPECT_EQ(compiled.stats().forward_graphs, 1);
  EXPECT_EQ(compiled.stats().backward_graphs, 1);
}

TEST(ParityD, UnsafeSetVersionCounter2) {
  check_written_behind([](Tensor w, const Tensor& x) {
    Tensor r = sin(w);
    NoGrad no_grad;
    uint64_t version = w.version();
    w.copy_(x);
    w.set_version(version);
    return r;
  });
}

TEST(ParityD, UnsafePreserveVersionCounter1) {
  auto f = compile([](Tensor w, const Tensor& x) {
    Tensor y = sin(x);
    PreserveVersion guard;
    w.copy_(y + 1);
    return w;
  });
  for (uint64_t version : {3, 0, 1}) {
    Tensor w = randn({16}).clone(), x = randn({16});
    w.set_version(0);
    for (uint64_t i = 0; i < version; ++i) w.fill_(i);
    f(w, x);
    EXPECT_TRUE(identical(w, sin(x) + 1));
    EXPECT_EQ(w.version(), version);
  }
  EXPECT_EQ(f.stats().forward_graphs, 1);
}

TEST(ParityD, UnsafePreserveVersionCounter2) {
  check_written_behind([](Tensor w, const Tensor& x) {
    Tensor r = sin(w);
    NoGrad no_grad;
    PreserveVersion guard;
    w.copy_(x);
    return r;
  });
}

// ---- Module hooks around backward

struct Hooked : nn::Module<Hooked> {
  nn::Linear linear{10, 10};
  nn::Buffer before = zeros({}, i64), after = zeros({}, i64);
  TUTTI_FIELDS(linear, before, after)
  Tensor forward(const Tensor& x) { return linear(x); }
};

void add_hooks(Hooked& m) {
  m.register_backward_pre_hook([](nn::ModuleBase& module, TensorList& gradients) {
    auto& self = dynamic_cast<Hooked&>(module);
    EXPECT_EQ(self.linear.weight.sizes(), Shape({10, 10}));
    self.before.add_(1);
    gradients[0] = sin(gradients[0] + 1.2);
  });
  m.register_backward_hook([](nn::ModuleBase& module, TensorList& gradients, const TensorList&) {
    dynamic_cast<Hooked&>(module).after.add_(1);
    if (gradients[0].defined()) gradients[0] = sin(gradients[0] + 3.4);
  });
}

struct Layers : nn::Module<Layers> {
  Hooked first, second, third;
  TUTTI_FIELDS(first, second, third)
  Tensor forward(const Tensor& x) { return third(relu(second(relu(first(x))))); }
};

struct Counts {
  int64_t forward, backward, passes;
};

// Four steps of a module and of its compiled twin.
template <class M, class Check>
Counts compare_steps(M& eager, M& twin, Check check, bool whole_backward) {
  auto compiled = compile(twin);
  CompiledBackward backward;
  manual_seed(7);
  Tensor x = rand({2, 10}).requires_grad_(), y = x.detach().clone().requires_grad_(), a, b;
  for (int i = 0; i < 4; ++i) {
    a = eager(x);
    a.sum().backward();
    b = compiled(y);
    if (whole_backward)
      backward(b.sum());
    else
      b.sum().backward();
    EXPECT_TRUE(identical(b, a));
    expect_same_gradient(x, y);
    auto wanted = eager.parameters(), got = twin.parameters();
    for (size_t k = 0; k < wanted.size(); ++k) expect_same_gradient(wanted[k], got[k]);
  }
  check();
  return {compiled.stats().forward_graphs, compiled.stats().backward_graphs, backward.graph_count()};
}

void expect_counts(Hooked& eager, Hooked& twin) {
  EXPECT_EQ(eager.before.item<int64_t>(), 4);
  EXPECT_EQ(twin.before.item<int64_t>(), 4);
  EXPECT_EQ(twin.after.item<int64_t>(), 4);
}

TEST(ParityD, ModuleBackwardHooksEager) {
  Hooked eager, twin = eager.clone();
  add_hooks(eager);
  add_hooks(twin);
  Counts counts = compare_steps(eager, twin, [&] { expect_counts(eager, twin); }, false);
  EXPECT_EQ(counts.forward, 1);
  EXPECT_EQ(counts.backward, 1) << "accumulation is outside, so that gradients make no difference";
}

TEST(ParityD, ModuleBackwardHooksAot) {
  Hooked eager, twin = eager.clone();
  add_hooks(eager);
  add_hooks(twin);
  Counts counts = compare_steps(eager, twin, [&] { expect_counts(eager, twin); }, true);
  EXPECT_EQ(counts.forward, 1);
  EXPECT_LE(counts.passes, 2) << "no gradient yet, and gradient present";
  EXPECT_GE(counts.passes, 1);
}

// The whole step, backward pass and accumulation included, as one graph.
TEST(ParityD, ModuleBackwardHooksInductor) {
  Hooked eager, twin = eager.clone();
  add_hooks(eager);
  add_hooks(twin);
  auto step = [](Hooked& m, const Tensor& x) {
    Tensor out = m(x);
    out.sum().backward();
    return out.detach();
  };
  auto compiled = compile([&](const Tensor& x) { return step(twin, x); });
  manual_seed(7);
  Tensor x = rand({2, 10}).requires_grad_(), y = x.detach().clone().requires_grad_();
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(identical(compiled(y), step(eager, x)));
    expect_same_gradient(x, y);
    expect_same_gradient(eager.linear.weight, twin.linear.weight);
    expect_same_gradient(eager.linear.bias, twin.linear.bias);
  }
  expect_counts(eager, twin);
  EXPECT_EQ(compiled.stats().forward_graphs, 2) << compiled.explain();
}

TEST(ParityD, ModuleBackwardHooksMultiLayers) {
  Layers eager, twin = eager.clone();
  for (Layers* m : {&eager, &twin})
    for (Hooked* layer : {&m->first, &m->second, &m->third}) add_hooks(*layer);
  auto check = [&] {
    expect_counts(eager.first, twin.first);
    expect_counts(eager.third, twin.third);
  };
  Counts counts = compare_steps(eager, twin, check, true);
  EXPECT_EQ(counts.forward, 1);
  EXPECT_EQ(counts.backward, 1);
  EXPECT_LE(counts.passes, 2);
}

// ---- Parameters made inside and returned

template <class F>
void check_parameters(F f) {
  auto compiled = compile(f);
  for (int i = 0; i < 3; ++i) {
    Tensor x = randn({16}), y = x.clone();
    auto [p, r] = f(x);
    auto [q, s] = compiled(y);
    EXPECT_TRUE(identical(s, r));
    EXPECT_TRUE(identical(q, p));
    EXPECT_TRUE(q.is_leaf());
    if (r.requires_grad()) {
      r.sum().backward();
      s.sum().backward();
    }
    expect_same_gradient(p, q);
    EXPECT_EQ(q.is_same(y), p.is_same(x));
  }
  EXPECT_EQ(compiled.stats().forward_graphs, 1);
  EXPECT_LE(compiled.stats().backward_graphs, 1);
}

TEST(ParityD, NnParamReturn1) {
  check_parameters([](const Tensor& x) {
    nn::Parameter p(x);
    return std::pair<Tensor, Tensor>(p, sin(p));
  });
}
TEST(ParityD, NnParamReturn2) {
  check_parameters([](const Tensor& x) {
    nn::Parameter p(x, false);
    return std::pair<Tensor, Tensor>(p, x + 1);
  });
}
TEST(ParityD, NnParamReturn3) {
  check_parameters([](const Tensor& x) {
    nn::Parameter p(x + 123);
    return std::pair<Tensor, Tensor>(p, sin(p));
  });
}
TEST(ParityD, NnParamReturn4) {
  check_parameters([](const Tensor& x) {
    nn::Parameter p(x + 123, false);
    return std::pair<Tensor, Tensor>(p, x + 1);
  });
}

// ---- A sharded layer

constexpr int64_t kWorld = 4;
Tensor all_gather(const Tensor& t) {
  NoGrad no_grad;
  return cat(TensorList(kWorld, t), 0);
}
// A copy: what goes in and what comes out do not share memory.
Tensor reduce_scatter(const Tensor& t) {
  NoGrad no_grad;
  return t.narrow(0, 0, t.size(0) / kWorld).clone();
}

struct Sharded : nn::Module<Sharded> {
  nn::Parameter shard, whole;
  TUTTI_FIELDS(shard, whole)
  Tensor forward(const Tensor& x) { return matmul(x, whole.t()); }

  void gather() {
    whole.resize_storage(static_cast<size_t>(whole.numel()) * whole.element_size());
    NoGrad no_grad;
    PreserveVersion keep;
    whole.copy_(all_gather(shard));
  }
  void release() { whole.resize_storage(0); }
};

Sharded make_sharded() {
  manual_seed(1234);
  Sharded m;
  m.shard = nn::Parameter(randn({3, 20}));
  m.whole = nn::Parameter(all_gather(m.shard));
  m.release();
  m.register_forward_pre_hook([](nn::ModuleBase& self, TensorList&) { dynamic_cast<Sharded&>(self).gather(); });
  m.register_forward_hook(
      [](nn::ModuleBase& self, const TensorList&, TensorList&) { dynamic_cast<Sharded&>(self).release(); });
  m.register_backward_pre_hook([](nn::ModuleBase& self, TensorList&) { dynamic_cast<Sharded&>(self).gather(); });
  m.register_backward_hook([](nn::ModuleBase& self, TensorList&, const TensorList&) {
    auto& m = dynamic_cast<Sharded&>(self);
    m.shard.set_grad(reduce_scatter(m.whole.grad()));
    m.release();
  });
  return m;
}

Tensor sharded_step(Sharded& m, const Tensor& x) {
  Tensor out = m(x);
  out.sum().backward();
  return out.detach();
}

template <class Step>
void check_sharded(Sharded& eager, Sharded& twin, Step step) {
  manual_seed(5);
  Tensor x = rand({2, 20}).requires_grad_(), y = x.detach().clone().requires_grad_();
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(identical(step(y), sharded_step(eager, x)));
    EXPECT_EQ(twin.whole.storage_bytes(), 0u) << "the gathered weight is freed";
    expect_same_gradient(eager.shard, twin.shard);
    expect_same_gradient(x, y);
    expect_same_gradient(eager.whole, twin.whole);
  }
}

// Forward as it is, backward as a graph: the hooks are called each time, from within it.
TEST(ParityD, FakeDistributedAotEager) {
  Sharded eager = make_sharded(), twin = make_sharded();
  CompiledBackward backward;
  check_sharded(eager, twin, [&](const Tensor& x) {
    Tensor out = twin(x);
    backward(out.sum());
    return out.detach();
  });
  EXPECT_EQ(backward.graph_count(), 2) << "no gradient yet, and gradient present";
  EXPECT_EQ(backward.stats().runs, 2);
}

TEST(ParityD, FakeDistributedInductor) {
  Sharded eager = make_sharded(), twin = make_sharded();
  auto compiled = compile([&](const Tensor& x) { return sharded_step(twin, x); });
  check_sharded(eager, twin, [&](const Tensor& x) { return compiled(x); });
  EXPECT_EQ(compiled.stats().forward_graphs, 2) << compiled.explain();
  EXPECT_EQ(compiled.stats().runs, 2);
}

}  // namespace
}  // namespace tutti
