// What must not happen: deadlocks, races, and gradients that are silently wrong, in corners where they once did.
#include <atomic>
#include <thread>

#include "tests/support/expect_ops.h"
#include "tutti/amp.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

// A graph that outlives main() is freed after the thread's own objects.
Tensor global = [] {
  Tensor x = ones({2}).requires_grad_();
  for (int i = 0; i < 100; ++i) x = x * 2;
  return x;
}();

TEST(Robust, AGlobalTensorMayHoldAGraph) { EXPECT_TRUE(global.requires_grad()); }

TEST(Robust, ClearingAGradientThatIsTheLastToKnowItsLeaf) {
  Tensor x = tensor({1.0, 2.0}).requires_grad_();
  {
    (x * x * x).sum().backward({}, true, true);
  }
  x.zero_grad();
  x.set_grad(x * 2);
  x.set_grad({});
  {
    (x * x).sum().backward({}, true, true);
  }
  {
    (x * x).sum().backward({}, true, true);
  }
  EXPECT_EQ(values(x.grad()), (Doubles{4, 8}));
  x.zero_grad();
}

TEST(Robust, WritingFreedStorageIsAnError) {
  Tensor x = ones({4}), y = ones({4});
  x.resize_storage(0);
  EXPECT_THAT(message_of<ValueError>([&] { x.zero_(); }), HasSubstr("resize it back first"));
  EXPECT_THROW(x.copy_(y), ValueError);
  EXPECT_THROW(add_out(x, y, y), ValueError);
  Tensor long_one = ones({1000}), every_other = long_one.slice(0, 0, 1000, 2);
  long_one.resize_storage(600 * 4);
  EXPECT_THROW(every_other.sum(), ValueError);
}

TEST(Robust, SizesThatAreNone) {
  EXPECT_THROW(zeros({-2, -3}), ShapeError);
  EXPECT_THROW(zeros({3, 0x5555555555555556}), ShapeError);
  EXPECT_THROW(ones({1}).expand({-2, -3, 1}), ShapeError);
  EXPECT_THROW(empty_strided({2, 2}, {-1, 1}), ShapeError);
  float data[4] = {};
  EXPECT_THROW(from_blob(data, {-2, -2}), ShapeError);
  EXPECT_THROW(ones({4}).narrow(0, 1, INT64_MAX), IndexError);
  EXPECT_EQ(ones({4}).slice(0, 0, 4, INT64_MAX).sizes(), Shape{1});
}

TEST(Robust, UndefinedTensorsAnswer) {
  EXPECT_FALSE(Tensor().requires_grad());
  EXPECT_FALSE(Tensor().shares_storage(ones({1})));
  EXPECT_THROW(ones({1}).set_data({}), ValueError);
  EXPECT_THROW(Tensor().set_grad(ones({1})), ValueError);
}

struct Same : Function<Same> {
  Tensor forward(const Tensor& x) { return x; }
  TensorList backward(const TensorList& g) { return g; }
};
struct Doubled : Function<Doubled> {
  Tensor forward(Tensor x, bool say) {
    x.mul_(2);
    if (say) mark_dirty(x);
    return x;
  }
  TensorList backward(const TensorList& g) { return {g[0] * 2}; }
};

TEST(Robust, FunctionsThatReturnOrWriteTheirInput) {
  Tensor p = ones({2}).requires_grad_(), q = p * 1;
  Tensor r = Same::apply(q);
  EXPECT_THAT(message_of<GradError>([&] { r.mul_(3); }),
              HasSubstr("the result of a custom Function that gave back an argument"));
  EXPECT_THROW(Same::apply(p).mul_(3), GradError);
  EXPECT_EQ(values(p), (Doubles{1, 1}));

  EXPECT_THAT(message_of<GradError>([&] { Doubled::apply(p * 1, false); }), HasSubstr("mark_dirty()"));
  EXPECT_THAT(message_of<GradError>([&] { Doubled::apply(p, true); }), HasSubstr("leaf that requires a gradient"));
  Tensor h = ones({2}).requires_grad_(), g = h * 1;
  Tensor out = Doubled::apply(g, true);
  EXPECT_TRUE(out.is_same(g));
  g.sum().backward();
  EXPECT_EQ(values(h.grad()), (Doubles{2, 2}));
}

TEST(Robust, CheckpointsOnSeveralDevicesDrawTheirOwnNumbers) {
  Devices devices(2);
  for (int round = 0; round < 20; ++round) {
    manual_seed(static_cast<uint64_t>(round));
    Tensor a = ones({500}).requires_grad_(), b = ones({500}, {.device = "cpu:1", .requires_grad = true});
    auto drop = [](const Tensor& x) { return dropout(x, 0.5); };
    Tensor ya = checkpoint(drop, a), yb = checkpoint(drop, b);
    backward({ya.sum(), yb.sum()});
    ASSERT_TRUE(equal(a.grad(), ya.detach()));
    ASSERT_TRUE(equal(b.grad(), yb.detach()));
  }
}

TEST(Robust, ACheckpointRunsAgainInTheContextItHad) {
  std::vector<DType> dtypes;
  int calls = 0;
  Tensor x = ones({4, 4}).requires_grad_();
  Tensor y;
  {
    ModeGuard autocast(kAutocastMode, 0);
    context().autocast_dtype = DType::f16;
    y = checkpoint(
        [&](const Tensor& t) {
          Tensor product = mm(t, t);
          dtypes.push_back(product.dtype());
          if (++calls == 2) throw ValueError("stopped");
          return product;
        },
        x);
    context().autocast_dtype = DType::bf16;
  }
  auto state = generator().state();
  EXPECT_THROW(y.sum().backward(), ValueError);
  EXPECT_EQ(dtypes, (std::vector<DType>{DType::f16, DType::f16}));
  EXPECT_EQ(generator().state(), state);
}

TEST(Robust, HooksMustKeepShapeAndDtype) {
  Tensor leaf = ones({2}).requires_grad_();
  auto handle = leaf.register_hook([](const Tensor&) { return ones({3}); });
  EXPECT_THAT(message_of<ShapeError>([&] { leaf.sum().backward(); }),
              HasSubstr("register_hook: f32[3] on cpu:0 cannot be the gradient of f32[2] on cpu:0"));
  handle.remove();
  handle = leaf.register_hook([](const Tensor& g) { return g.to(DType::f64); });
  EXPECT_THROW(leaf.sum().backward(), DTypeError);
  handle.remove();
  Tensor y = leaf * 2;
  register_post_hook(*y.grad_node(), [](Gradients& g, const Gradients&) { g[0] = ones({5}); });
  EXPECT_THROW(y.sum().backward(), ShapeError);
  y = leaf * 2;
  register_pre_hook(*y.grad_node(), [](Gradients& g) { g.clear(); });
  EXPECT_THROW(y.sum().backward(), ValueError);
  EXPECT_THROW(leaf.set_grad(ones({2}, {DType::f64})), DTypeError);
  EXPECT_THROW((leaf * 2).backward(ones({2}, {.device = "meta"})), DeviceError);
  EXPECT_FALSE(leaf.grad().defined());
}

TEST(Robust, RetainedGradientsAccumulateLastAndFollowWrites) {
  Tensor x = ones({1}).requires_grad_();
  Tensor y = x * 2;
  y.retain_grad();
  y.register_hook([](const Tensor& g) { return g * 10; });
  (y * 3).sum().backward({}, true);
  (y * 3).sum().backward({}, true);
  EXPECT_EQ(values(y.grad()), (Doubles{60}));
  Tensor z = x * 2;
  z.retain_grad();
  z.mul_(5);
  (z * 3).sum().backward();
  EXPECT_EQ(values(z.grad()), (Doubles{3}));
}

// Also writes of parts: what is retained is the gradient of what the tensor is at the end.
TEST(Robust, RetainedGradientsFollowWritesOfParts) {
  auto gradient_after = [](auto write) {
    Tensor x = ones({4}).requires_grad_(), y = x * 1;
    y.retain_grad();
    write(y);
    y.sum().backward();
    return values(y.grad());
  };
  Doubles ones{1, 1, 1, 1};
  EXPECT_EQ(gradient_after([](Tensor& y) { y[0].fill_(7); }), ones);
  EXPECT_EQ(gradient_after([](Tensor& y) { y.narrow(0, 0, 2).mul_(3); }), ones);
  EXPECT_EQ(gradient_after([](Tensor& y) { y.index_put_({0}, 7.0); }), ones);
  EXPECT_EQ(gradient_after([](Tensor& y) {
              y[1].mul_(2);
              y.mul_(5);
            }),
            ones);
  // The view itself: of what it became, and nothing where nobody used that.
  Tensor x = tutti::ones({4}).requires_grad_(), y = x * 1, view = y.narrow(0, 0, 2), unused = y.narrow(0, 2, 2);
  view.retain_grad();
  unused.retain_grad();
  view.mul_(3);
  unused.mul_(3);
  (view * 2).sum().backward();
  EXPECT_EQ(values(view.grad()), (Doubles{2, 2}));
  EXPECT_FALSE(unused.grad().defined());
}

TEST(Robust, RetainedGradientsAreOnesOwn) {
  Tensor x = ones({1}).requires_grad_(), g = ones({1});
  for (bool create_graph : {false, true}) {
    Tensor a = x + 0, b = a + 0;
    a.retain_grad();
    b.retain_grad();
    b.backward(g, false, create_graph);
    NoGrad guard;
    b.grad().mul_(5);
    EXPECT_EQ(values(a.grad()), (Doubles{1}));
    EXPECT_EQ(values(g), (Doubles{1}));
  }
}

// Another thread drops them at the moment when their gradients come, latest first.
TEST(Robust, RetainedTensorsMayGoDuringAPass) {
  Tensor x = ones({1}).requires_grad_();
  constexpr int kRounds = 20, kTensors = 300;
  for (int round = 0; round < kRounds; ++round) {
    TensorList ys;
    Tensor total = zeros({1});
    std::atomic<int> now = kTensors;
    for (int i = 0; i < kTensors; ++i) {
      ys.push_back(x * 2);
      ys.back().retain_grad();
      ys.back().register_hook([&, i](const Tensor&) {
        now = i;
        return Tensor();
      });
      total = total + ys.back();
    }
    std::thread other([&] {
      for (int i = kTensors; i-- > 0;) {
        while (now > i) {
        }
        ys[static_cast<size_t>(i)].reset();
      }
    });
    total.backward();
    other.join();
  }
  EXPECT_EQ(values(x.grad()), (Doubles{2.0 * kRounds * kTensors}));
}

TEST(Robust, AViewKeepsItsRetainedGradientWhenItsBaseIsWritten) {
  Tensor x = ones({2, 2}).requires_grad_();
  Tensor base = x * 1, view = base[0];
  view.retain_grad();
  base.mul_(2);
  (view * 3).sum().backward();
  EXPECT_EQ(values(view.grad()), (Doubles{3, 3}));
  EXPECT_EQ(values(x.grad()), (Doubles{6, 6, 0, 0}));
}

// A graph that two threads go back through at once.
TEST(Robust, TwoPassesAtOnceThroughOneGraph) {
  Tensor x = ones({64}).requires_grad_();
  Tensor y = x;
  for (int i = 0; i < 50; ++i) y = y * 1.5 + x;
  Tensor loss = y.sum();
  auto once = [&] { return grad({loss}, {x}, {.retain_graph = true})[0]; };
  Tensor expected = once();
  std::vector<std::thread> threads;
  std::atomic<int> equal_ones = 0;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) equal_ones += equal(once(), expected);
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(equal_ones, 40);
}

TEST(Robust, ThreadsMayReadOneStaleViewAndHookOneLeaf) {
  Tensor leaf = ones({64}).requires_grad_();
  std::atomic<int> hooks = 0;
  for (int round = 0; round < 20; ++round) {
    Tensor base = leaf * 1, view = base.narrow(0, 0, 32);
    base.mul_(2);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        EXPECT_TRUE(view.requires_grad());
        EXPECT_EQ(grad({(view * 3).sum()}, {leaf}, {.retain_graph = true})[0].sum().item<double>(), 32 * 6);
        leaf.register_hook([&](const Tensor&) {
          ++hooks;
          return Tensor();
        });
      });
    for (auto& t : threads) t.join();
  }
  hooks = 0;  // those that ran above saw as many hooks as there were
  leaf.sum().backward();
  EXPECT_EQ(hooks, 60);
}

TEST(Robust, LogsumexpOfInfinity) {
  double inf = std::numeric_limits<double>::infinity();
  Tensor x = tensor({inf, 1.0}).requires_grad_();
  logsumexp(x, 0).backward();
  EXPECT_EQ(x.grad()[1].item<double>(), 0);
  EXPECT_TRUE(std::isnan(x.grad()[0].item<double>()));
  Tensor none = tensor({-inf, -inf}).requires_grad_();
  logsumexp(none, 0).backward();
  EXPECT_EQ(values(none.grad()), (Doubles{0, 0}));
}

}  // namespace
}  // namespace tutti
