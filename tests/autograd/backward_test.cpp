#include <cmath>
#include <thread>

#include "tests/support/expect_ops.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

TEST(Hooks, MustBeSomethingToCall) {
  Tensor x = ones({2}, {.requires_grad = true});
  EXPECT_THAT(message_of<ValueError>([&] { x.register_hook(nullptr); }), testing::StartsWith("register_hook:"));
  EXPECT_THAT(message_of<ValueError>([&] { x.register_post_accumulate_hook(nullptr); }),
              testing::StartsWith("register_post_accumulate_hook:"));
}

TEST(Backward, AccumulatesIntoLeaves) {
  Tensor x = tensor({1.0, 2.0, 3.0}, {.requires_grad = true});
  sum(x * x).backward();
  EXPECT_EQ(values(x.grad()), (Doubles{2, 4, 6}));
  sum(x * 3).backward();
  EXPECT_EQ(values(x.grad()), (Doubles{5, 7, 9}));
  x.zero_grad();
  EXPECT_FALSE(x.grad().defined());
}

TEST(Backward, SharedSubexpressionsAddUp) {
  Tensor x = tensor(2.0, {.dtype = f64, .requires_grad = true});
  Tensor y = x * x;
  (y * y + y).backward();
  EXPECT_DOUBLE_EQ(x.grad().item<double>(), 4 * 8 + 4);
}

// A gradient that somebody else holds is copied: what is done to .grad in place shows nowhere else.
TEST(Backward, GradientsAreTheLeavesOwn) {
  for (bool create_graph : {false, true}) {
    SCOPED_TRACE(create_graph);
    Tensor x = ones({2, 3}, {.requires_grad = true}), w = ones({2, 3}, {.requires_grad = true});
    Tensor turned = ones({3, 2}).t().requires_grad_(), v = full({2, 3}, 3.0, {.requires_grad = create_graph});
    Tensor given = create_graph ? v * v : v;
    (x + w + turned).backward(given, false, create_graph);
    EXPECT_EQ(turned.grad().strides(), turned.strides());
    EXPECT_EQ(x.grad().requires_grad(), create_graph);
    if (create_graph) {
      EXPECT_THAT(values(grad(sum(turned.grad() * x.grad() * w.grad()), v)), testing::Each(6 * 243));
    }
    {
      NoGrad guard;
      x.grad().zero_();
    }
    double all = create_graph ? 9 : 3;
    EXPECT_THAT(values(w.grad()), testing::Each(all));
    EXPECT_THAT(values(turned.grad()), testing::Each(all));
    EXPECT_THAT(values(given), testing::Each(all));
    // One that nobody else holds is taken as it is, with its history.
    Tensor y = full({2}, 2.0, {.requires_grad = true}), z = y * y * y;
    sum(z).backward({.create_graph = create_graph});
    EXPECT_THAT(values(y.grad()), testing::Each(12));
    if (create_graph) {
      EXPECT_THAT(values(grad(sum(y.grad()), y)), testing::Each(12));
    }
    y.set_grad({});  // its history holds y, which holds it
  }
}

TEST(Backward, NeedsAScalarOrAGradient) {
  Tensor x = ones({3}, {.requires_grad = true});
  EXPECT_THAT(message_of<GradError>([&] { (x * 2).backward(); }), HasSubstr("not a scalar"));
  (x * 2).backward(tensor({1.0, 10.0, 100.0}));
  EXPECT_EQ(values(x.grad()), (Doubles{2, 20, 200}));
  EXPECT_THAT(message_of<ShapeError>([&] { (x * 2).backward(ones({2})); }), HasSubstr("does not fit"));
  EXPECT_THAT(message_of<GradError>([&] { sum(ones({2})).backward(); }), HasSubstr("does not require a gradient"));
}

TEST(Backward, RootsThatCannotBe) {
  Tensor z = complex(ones({1}), ones({1})).requires_grad_(), x = ones({1}).requires_grad_();
  EXPECT_THAT(message_of<GradError>([&] { (z * 2).backward(); }), HasSubstr("take a real number of it"));
  (z * 2).backward(z.detach());
  EXPECT_TRUE(z.grad().defined());
  EXPECT_THAT(message_of<DTypeError>([&] { (x * 2).backward(z.detach()); }), HasSubstr("is complex, and the output"));
  EXPECT_THAT(message_of<GradError>([&] { backward({}); }), HasSubstr("nothing to start from"));
  EXPECT_THAT(message_of<GradError>([&] { grad(TensorList{}, {x}); }), HasSubstr("nothing to start from"));
}

TEST(Backward, FreedGraphSaysSo) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = sum(exp(x));
  y.backward();
  std::string text = message_of<GradError>([&] { y.backward(); });
  EXPECT_THAT(text, HasSubstr("retain_graph"));
  EXPECT_THAT(text, HasSubstr("exp"));
  Tensor z = sum(exp(x));
  z.backward({}, true);
  EXPECT_NO_THROW(z.backward());
}

TEST(Grad, ReturnsWithoutAccumulating) {
  Tensor x = tensor({1.0, 2.0}, {.requires_grad = true}), w = tensor({3.0, 4.0}, {.requires_grad = true});
  auto g = grad({sum(x * w)}, {w});
  EXPECT_EQ(values(g[0]), (Doubles{1, 2}));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
}

TEST(Grad, UnusedInputs) {
  Tensor x = ones({2}, {.requires_grad = true}), unused = ones({2}, {.requires_grad = true});
  EXPECT_THAT(message_of<GradError>([&] { grad({sum(x)}, {unused}); }), HasSubstr("allow_unused"));
  auto g = grad({sum(x)}, {x, unused}, {.allow_unused = true});
  EXPECT_TRUE(g[0].defined());
  EXPECT_FALSE(g[1].defined());
}

TEST(Grad, OfIntermediateTensors) {
  Tensor x = tensor(3.0, {.dtype = f64, .requires_grad = true});
  Tensor y = x * x, z = y * y;
  auto g = grad({z}, {y, x});
  EXPECT_DOUBLE_EQ(g[0].item<double>(), 18);
  EXPECT_DOUBLE_EQ(g[1].item<double>(), 108);
}

TEST(Grad, OfAnyOrder) {
  Tensor x = tensor(0.5, {.dtype = f64, .requires_grad = true});
  Tensor y = sin(x);
  double expected[] = {std::cos(0.5), -std::sin(0.5), -std::cos(0.5), std::sin(0.5), std::cos(0.5)};
  for (double e : expected) {
    y = grad({y}, {x}, {.create_graph = true})[0];
    EXPECT_NEAR(y.item<double>(), e, 1e-12);
  }
}

TEST(Grad, OfAnyOrderThroughComposedFormulas) {
  // Beyond the second order derivatives come from the composition of public operators.
  Tensor x = tensor(0.7, {.dtype = f64, .requires_grad = true});
  auto nth = [&](int n, double at) {
    Tensor p = tensor(at, {.dtype = f64, .requires_grad = true});
    Tensor y = gelu(p);
    for (int i = 0; i < n; ++i) y = grad({y}, {p}, {.create_graph = true})[0];
    return y.item<double>();
  };
  for (int n = 1; n <= 4; ++n) {
    double h = 1e-4;
    EXPECT_NEAR(nth(n, 0.7), (nth(n - 1, 0.7 + h) - nth(n - 1, 0.7 - h)) / (2 * h), 1e-6) << "order " << n;
  }
}

TEST(Modes, NoGradAndInference) {
  Tensor x = ones({2}, {.requires_grad = true});
  {
    NoGrad guard;
    EXPECT_FALSE((x * 2).requires_grad());
    EnableGrad again;
    EXPECT_TRUE((x * 2).requires_grad());
  }
  Tensor made;
  {
    InferenceMode guard;
    made = x * 2;
    EXPECT_FALSE(made.requires_grad());
  }
  EXPECT_THROW(made.requires_grad_(), GradError);
  EXPECT_THROW(made.add_(x), GradError);
  EXPECT_NO_THROW(made.clone().requires_grad_());
}

// What was there before stays what it was.
TEST(Modes, TensorsAreWrittenInInferenceMode) {
  Tensor mean = zeros({2}), weight = ones({2}, {.requires_grad = true}), y = weight * 1;
  {
    InferenceMode guard;
    mean.mul_(0.5).add_(1);
    add_out(mean, mean, ones({2}));
    weight.mul_(0.9);
    y.copy_(ones({2}));
  }
  EXPECT_NO_THROW(mean.add_(1));
  EXPECT_NO_THROW(y.mul_(2));
  EXPECT_NO_THROW(weight.requires_grad_(false).requires_grad_());
  EXPECT_EQ(values(mean), (Doubles{3, 3}));
}

TEST(Modes, DetachSharesDataNotHistory) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = x * 2, d = y.detach();
  EXPECT_FALSE(d.requires_grad());
  EXPECT_TRUE(d.shares_storage(y));
  EXPECT_TRUE(d.is_leaf());
  EXPECT_THROW(y.requires_grad_(false), GradError);
  EXPECT_THROW(ones({2}, {i64}).requires_grad_(), GradError);
}

TEST(Modes, RetainGrad) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = x * 3;
  y.retain_grad();
  sum(y * y).backward();
  EXPECT_EQ(values(y.grad()), (Doubles{6, 6}));
  EXPECT_EQ(values(x.grad()), (Doubles{18, 18}));
}

TEST(Hooks, ChangeTheGradientAndCanBeRemoved) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = x * 2;
  int calls = 0;
  HookHandle on_y = y.register_hook([&](const Tensor& g) {
    ++calls;
    return g * 10;
  });
  HookHandle on_x = x.register_hook([&](const Tensor& g) {
    ++calls;
    return g + 1;
  });
  sum(y).backward({}, true);
  EXPECT_EQ(values(x.grad()), (Doubles{21, 21}));
  EXPECT_EQ(calls, 2);
  on_y.remove();
  on_x.remove();
  x.zero_grad();
  sum(y).backward();
  EXPECT_EQ(values(x.grad()), (Doubles{2, 2}));
  EXPECT_EQ(calls, 2);
}

TEST(Hooks, OfLeavesRunForGradToo) {
  Tensor x = ones({2}, {.requires_grad = true});
  x.register_hook([](const Tensor& g) { return g * 7; });
  EXPECT_EQ(values(grad({sum(x)}, {x})[0]), (Doubles{7, 7}));
}

TEST(Hooks, OnNodesBeforeAndAfter) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = x * 2;
  std::vector<std::string> order;
  register_pre_hook(*y.grad_node(), [&](Gradients& g) {
    order.push_back("before");
    g[0] = g[0] * 3;
  });
  register_post_hook(*y.grad_node(), [&](Gradients& inputs, const Gradients& outputs) {
    order.push_back("after");
    EXPECT_EQ(values(outputs[0]), (Doubles{3, 3}));
    EXPECT_EQ(values(inputs[0]), (Doubles{6, 6}));
    inputs[0] = inputs[0] + 1;
  });
  EXPECT_EQ(node_name(*y.grad_node()), "mul");
  EXPECT_EQ(node_name(*next_nodes(*y.grad_node())[0]), "accumulate");
  sum(y).backward();
  EXPECT_EQ(order, (std::vector<std::string>{"before", "after"}));
  EXPECT_EQ(values(x.grad()), (Doubles{7, 7}));
}

// What a hook holds goes with it, and may take other hooks of the same tensor along.
TEST(Hooks, MayHoldWhatRemovesOthers) {
  Tensor x = ones({2}, {.requires_grad = true});
  int calls = 0;
  HookHandle other = x.register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  struct Remover {
    HookHandle handle;
    ~Remover() { handle.remove(); }
  };
  auto remover = std::make_shared<Remover>(other);
  HookHandle handle = x.register_hook([remover](const Tensor&) { return Tensor(); });
  remover.reset();
  handle.remove();
  handle.remove();  // once is enough
  x.sum().backward();
  EXPECT_EQ(calls, 0);
}

TEST(Hooks, AfterAccumulation) {
  Tensor x = ones({2}, {.requires_grad = true});
  Doubles seen;
  auto handle =
      x.register_post_accumulate_hook([&](const Tensor& leaf) { seen.push_back(leaf.grad().sum().item<double>()); });
  sum(x * 2).backward();
  sum(x * 2).backward();
  handle.remove();
  sum(x * 2).backward();
  EXPECT_EQ(seen, (Doubles{4, 8}));
}

struct TableSink : GradientSink {
  std::vector<std::pair<Tensor, Tensor>> table;
  void accumulate(const Tensor& leaf, Tensor gradient) override { table.emplace_back(leaf, gradient); }
  Tensor gradient(const Tensor& leaf) override {
    for (auto& [l, g] : table)
      if (l.is_same(leaf)) return g;
    return {};
  }
  void set_gradient(const Tensor& leaf, Tensor gradient) override { accumulate(leaf, gradient); }
};

TEST(Sink, ReceivesLeafGradientsInsteadOfGrad) {
  Tensor x = ones({2}, {.requires_grad = true});
  TableSink sink;
  bool saw_hook = false;
  x.register_post_accumulate_hook([&](const Tensor& leaf) { saw_hook = gradient_sink().gradient(leaf).defined(); });
  {
    SinkGuard guard(sink);
    sum(x * 5).backward();
  }
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(saw_hook);
  ASSERT_EQ(sink.table.size(), 1u);
  EXPECT_EQ(values(sink.gradient(x)), (Doubles{5, 5}));
}

TEST(Layout, GradientsKeepTheLeafsStrides) {
  Tensor x = randn({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last).requires_grad_();
  sum(x.contiguous() * 2).backward();
  EXPECT_TRUE(x.grad().is_contiguous(MemoryFormat::channels_last));
}

// Formulas that choose between two do not let the derivatives of the other in, however often they are derived.
TEST(Grad, OfAnyOrderWhereFormulasMeet) {
  auto nth = [](int n, double at, const std::function<Tensor(const Tensor&)>& f) {
    Tensor p = tensor(at, {.dtype = f64, .requires_grad = true}), y = f(p);
    for (int i = 0; i < n; ++i) {
      Tensor g = grad({y}, {p}, {.create_graph = true, .allow_unused = true})[0];
      if (!g.defined() || !g.requires_grad()) return i + 1 == n && g.defined() ? g.item<double>() : 0.0;
      y = g;
    }
    return y.item<double>();
  };
  for (double power : {0.0, 1.0, 2.0, 3.0, 4.0})
    for (int n = 1; n <= 6; ++n) {
      double expected = n == power ? std::tgamma(power + 1) : 0;
      EXPECT_EQ(nth(n, 0, [&](const Tensor& x) { return pow(x, power); }), expected)
          << "order " << n << " of " << power;
      EXPECT_EQ(nth(n, 0, [&](const Tensor& x) { return pow(x, tensor({power}, {f64})).sum(); }), expected) << n;
    }
  constexpr double pi = 3.14159265358979323846;
  EXPECT_EQ(nth(3, 0, [](const Tensor& x) { return sinc(x); }), 0);
  EXPECT_NEAR(nth(4, 0, [](const Tensor& x) { return sinc(x); }), pi * pi * pi * pi / 5, 1e-9);
  EXPECT_NEAR(nth(3, 1, [](const Tensor& x) { return digamma(x); }), pi * pi * pi * pi / 15, 1e-9);
  EXPECT_NEAR(nth(4, 2, [](const Tensor& x) { return digamma(x); }), -24 * (1.03692775514337 - 1), 1e-9);
}

}  // namespace
}  // namespace tutti
