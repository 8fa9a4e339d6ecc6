// What hooks are given, and what they leave as it is.
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tutti/nn.h"

namespace tutti::test {
namespace {

using testing::ElementsAre;

std::vector<bool> defined(const TensorList& list) {
  std::vector<bool> result;
  for (const Tensor& t : list) result.push_back(t.defined());
  return result;
}

TEST(ModuleHooks, BackwardHooksListWhatForwardHooksList) {
  for (bool has_lengths : {false, true}) {
    SCOPED_TRACE(has_lengths);
    nn::LSTM lstm(2, 3);
    size_t inputs = 0, outputs = 0;
    std::vector<bool> before, after, of_outputs;
    lstm.register_forward_hook([&](nn::ModuleBase&, const TensorList& in, TensorList& out) {
      inputs = in.size();
      outputs = out.size();
    });
    lstm.register_backward_pre_hook([&](nn::ModuleBase&, TensorList& grads) { before = defined(grads); });
    lstm.register_backward_hook([&](nn::ModuleBase&, TensorList& grads, const TensorList& grad_outputs) {
      after = defined(grads);
      of_outputs = defined(grad_outputs);
    });
    Tensor x = randn({4, 2, 2}).requires_grad_();
    auto result = lstm(x, LstmState{}, has_lengths ? tensor({4, 2}) : Tensor());
    result.output.sum().backward();
    // x, no states, perhaps lengths (which have no gradient); the output, and two states that nothing was made of.
    EXPECT_EQ(inputs, 4u);
    EXPECT_EQ(outputs, 3u);
    EXPECT_THAT(before, ElementsAre(true, false, false));
    EXPECT_THAT(of_outputs, ElementsAre(true, false, false));
    EXPECT_THAT(after, ElementsAre(true, false, false, false));
    EXPECT_TRUE(x.grad().defined());
  }
}

struct Partial : nn::Module<Partial> {
  TUTTI_FIELDS()
  std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& a, const Tensor& b, const Tensor& c) {
    return {a * 2, Tensor(), (b.defined() ? b : a) * c};
  }
};

TEST(ModuleHooks, WhatTheyReplaceGoesToTheRightPlace) {
  Partial module;
  module.register_backward_pre_hook([](nn::ModuleBase&, TensorList& grads) {
    ASSERT_THAT(defined(grads), ElementsAre(true, false, true));
    grads[2] = grads[2] * 10;
  });
  module.register_backward_hook([](nn::ModuleBase&, TensorList& grads, const TensorList& grad_outputs) {
    ASSERT_THAT(defined(grads), ElementsAre(true, false, true));
    EXPECT_EQ(values(grad_outputs[2]), (Doubles{10}));
    grads[2] = grads[2] + 1;
  });
  Tensor a = full({1}, 3.0f).requires_grad_(), c = full({1}, 5.0f).requires_grad_();
  auto [x, none, y] = module(a, Tensor(), c);
  EXPECT_FALSE(none.defined());
  (x + y).sum().backward();
  EXPECT_EQ(values(a.grad()), (Doubles{2 + 10 * 5}));
  EXPECT_EQ(values(c.grad()), (Doubles{10 * 3 + 1}));
  // One that leaves another number is told so.
  Partial wrong;
  wrong.register_backward_hook([](nn::ModuleBase&, TensorList& grads, const TensorList&) { grads.pop_back(); });
  auto result = wrong(a, Tensor(), c);
  EXPECT_THAT(message_of<ValueError>([&] { std::get<0>(result).sum().backward(); }),
              testing::HasSubstr("left 2 tensors where there were 3"));
  // So is one that leaves another shape.
  nn::Linear linear(2, 3);
  HookHandle after = linear.register_backward_hook(
      [](nn::ModuleBase&, TensorList& grads, const TensorList&) { grads[0] = ones({5}); });
  Tensor in = ones({4, 2}).requires_grad_(), out = linear(in).sum();
  EXPECT_THAT(message_of<ShapeError>([&] { out.backward(); }),
              testing::StartsWith("register_backward_hook: the hook made f32[5]"));
  after.remove();
  linear.register_backward_pre_hook([](nn::ModuleBase&, TensorList& grads) { grads[0] = ones({7}); });
  out = linear(in).sum();
  EXPECT_THAT(message_of<ShapeError>([&] { out.backward(); }),
              testing::StartsWith("register_backward_pre_hook: the hook made f32[7]"));
}

struct Cache {
  Tensor last;
  int64_t calls = 0;
  TUTTI_FIELDS(last, calls)
};
struct Writer : nn::Module<Writer> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x, int& count, Cache& cache, TensorList& seen, const std::vector<int>& numbers) {
    count += static_cast<int>(numbers.size());
    ++cache.calls;
    cache.last = x * 2;
    seen.push_back(x);
    return x + 1;
  }
};

TEST(ModuleHooks, ArgumentsThatForwardWritesAreTheCallers) {
  Writer plain, hooked;
  hooked.register_forward_hook([](nn::ModuleBase&, const TensorList&, TensorList&) {});
  hooked.register_backward_hook([](nn::ModuleBase&, TensorList&, const TensorList&) {});
  hooked.register_forward_pre_hook([](nn::ModuleBase&, TensorList& inputs) { inputs[0] = inputs[0] + 1; });
  for (Writer* module : {&plain, &hooked}) {
    Tensor x = zeros({1}), first = ones({1}).requires_grad_(), given = x;
    int count = 1;
    Cache cache;
    TensorList seen{first};
    Tensor y = (*module)(x, count, cache, seen, std::vector<int>{1, 2});
    double shift = module == &hooked;
    EXPECT_EQ(values(y), (Doubles{shift + 1}));
    EXPECT_EQ(count, 3);
    EXPECT_EQ(cache.calls, 1);
    EXPECT_EQ(values(cache.last), (Doubles{shift * 2}));
    ASSERT_EQ(seen.size(), 2u);
    // What hooks do to arguments is forward's to see and nobody else's.
    EXPECT_TRUE(seen[0].is_same(first));
    EXPECT_TRUE(x.is_same(given));
  }
}

// A backward hook has a copy of the module from before the call, when a lazy one had no weights.
TEST(ModuleHooks, BackwardHooksOfALazyModulesFirstCallSeeItsWeights) {
  nn::Sequential net(nn::LazyLinear(3), nn::Linear(3, 2));
  std::vector<Shape> seen;
  net.register_backward_hook([&](nn::ModuleBase& module, TensorList&, const TensorList&) {
    for (const Tensor& p : module.parameters()) seen.push_back(p.sizes());
  });
  net(ones({1, 5})).sum().backward();
  EXPECT_EQ(seen, (std::vector<Shape>{{3, 5}, {3}, {2, 3}, {2}}));
}

// A pass that begins inside of the module comes by its inputs and not by its outputs.
struct Keeps : nn::Module<Keeps> {
  Tensor* kept = nullptr;
  TUTTI_FIELDS(kept)
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    *kept = x * 2;
    return {*kept + 1, x + 1};
  }
};

TEST(ModuleHooks, APassFromInsideHasNoGradientsOfOutputs) {
  Keeps net;
  Tensor kept;
  net.kept = &kept;
  std::vector<std::vector<bool>> seen;
  net.register_backward_hook(
      [&](nn::ModuleBase&, TensorList&, const TensorList& grad_outputs) { seen.push_back(defined(grad_outputs)); });
  Tensor x = ones({2}).requires_grad_();
  auto [a, b] = net(x);
  kept.sum().backward({.retain_graph = true});
  a.sum().backward({.retain_graph = true});
  kept.sum().backward();
  EXPECT_THAT(seen, ElementsAre(ElementsAre(false, false), ElementsAre(true, false), ElementsAre(false, false)));
}

}  // namespace
}  // namespace tutti::test
