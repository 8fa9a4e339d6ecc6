// Arguments that a compiled function writes with gradients: whoever holds what, all of it is freed, and gradients are
// eager's. See Note [Written arguments].
#include <gtest/gtest.h>

#include <functional>

#include "base/memory.h"
#include "tests/support/compare.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using test::identical;

struct Square : Function<Square> {
  Tensor forward(const Tensor& x) {
    save(x);
    return x * x;
  }
  TensorList backward(const TensorList& gradients) { return {gradients[0] * saved(0) * 2}; }
};

struct Case {
  const char* name;
  std::function<Tensor(Tensor, const Tensor&)> f;
  friend void PrintTo(const Case& c, std::ostream* to) { *to << c.name; }
};

std::vector<Case> cases() {
  return {
      {"Written",
       [](Tensor x, const Tensor& w) {
         x.mul_(w);
         return w.sin();
       }},
      {"SavedAfterwards",
       [](Tensor x, const Tensor& w) {
         x.mul_(w);
         return x * x;
       }},
      {"SavedByAView",
       [](Tensor x, const Tensor& w) {
         x.mul_(w);
         Tensor part = x.narrow(0, 0, 4);
         return (part * part.exp()).sum();
       }},
      {"WrittenThroughAView",
       [](Tensor x, const Tensor& w) {
         x.narrow(0, 0, 4).mul_(w.narrow(0, 0, 4));
         return (x * x).sum();
       }},
      {"SavedByAFunction",
       [](Tensor x, const Tensor& w) {
         x.mul_(w);
         return Square::apply(x);
       }},
      {"SavedForNothing",
       [](Tensor x, const Tensor& w) {
         x.mul_(w);
         Tensor unused = x * x.sin();
         return w * 2;
       }},
      {"WrittenTwice",
       [](Tensor x, const Tensor& w) {
         x.mul_(w).add_(w);
         return x.tanh() * x;
       }},
      {"SavedInACompiledFunction",
       [](Tensor x, const Tensor& w) {
         x.mul_(w);
         return compile([](const Tensor& y) { return y * y.cos(); })(x);
       }},
  };
}

class Written : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Functions, Written, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

constexpr int64_t kSize = 100'000;

TEST_P(Written, IsFreedWhetherOrNotBackwardRuns) {
  for (bool backward : {false, true}) {
    Tensor w = full({kSize}, 1.5).requires_grad_();
    int64_t before = memory::statistics().bytes_in_use;
    {
      auto compiled = compile(GetParam().f);
      for (int i = 0; i < 3; ++i) {
        Tensor x = ones({kSize}), y = compiled(x, w);
        if (backward) (x.sum() + y.sum()).backward();
      }
      w.set_grad({});
    }
    EXPECT_LT(memory::statistics().bytes_in_use - before, kSize) << "backward: " << backward;
  }
}

TEST(WrittenCaptures, AreFreedAfterBackward) {
  Tensor w = full({kSize}, 1.5).requires_grad_();
  int64_t before = memory::statistics().bytes_in_use;
  for (int i = 0; i < 3; ++i) {
    Tensor state = ones({kSize});
    auto compiled = compile([state, w](const Tensor& x) mutable {
      state.mul_(w);
      return (state * x).sum();
    });
    for (int turn = 0; turn < 3; ++turn) {
      compiled(ones({kSize})).backward();
      if (turn < 2) state.detach_();  // else it ends with a history, that of the function
    }
  }
  w.set_grad({});
  EXPECT_LT(memory::statistics().bytes_in_use - before, kSize);
}

TEST_P(Written, HasEagersGradients) {
  auto compiled = compile(GetParam().f);
  for (int i = 0; i < 3; ++i) {
    TensorList results[2];
    for (bool eager : {true, false}) {
      Tensor w = full({8}, 1.5, {.dtype = f64}).requires_grad_(), x = full({8}, 0.25 * (i + 1), {.dtype = f64});
      Tensor y = eager ? GetParam().f(x, w) : compiled(x, w);
      (x.exp().sum() + y.sum()).backward();
      results[eager] = {x, y, w.grad()};
    }
    for (size_t k = 0; k < 3; ++k) EXPECT_TRUE(identical(results[0][k], results[1][k])) << "call " << i << ", " << k;
  }
}

TEST_P(Written, HasEagersGradientsOfGradients) {
  TensorList found[2];
  for (bool eager : {true, false}) {
    auto compiled = compile(GetParam().f);
    Tensor w = full({8}, 1.5, {.dtype = f64}).requires_grad_(), x = full({8}, 0.25, {.dtype = f64});
    Tensor y = eager ? GetParam().f(x, w) : compiled(x, w);
    Tensor first = grad({x.exp().sum() + y.sum()}, {w}, {.create_graph = true})[0];
    found[eager] = grad({(first * first).sum()}, {w});
  }
  EXPECT_TRUE(identical(found[0][0], found[1][0]));
}

}  // namespace
}  // namespace tutti
