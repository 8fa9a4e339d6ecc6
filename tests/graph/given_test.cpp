// Arguments that the function also finds elsewhere: see Note [Arguments that are captured] in src/graph/given.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/memory.h"
#include "tests/graph/support.h"
#include "tests/support/compare.h"
#include "tutti/compile.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using test::identical;
using test::leaf;
using test::numbers;

class Given : public testing::TestWithParam<const char*> {
 protected:
  CompileOptions options() const { return {.backend = GetParam()}; }
};

TEST_P(Given, ACapturedTensorMayBeTheFirstArgument) {
  Tensor w = numbers({5}, 1);
  auto f = [&](const Tensor& x) { return (x * w).tanh(); };
  auto compiled = compile(f, options());
  std::vector<Tensor> others;
  for (uint64_t i = 0; i < 4; ++i) {
    for (const Tensor& x : {w, numbers({5}, 10 + i), w.detach()}) {
      others.push_back(x);
      EXPECT_TRUE(identical(compiled(x), f(x))) << i;
    }
    w.add_(1);
  }
  EXPECT_EQ(compiled.stats().forward_graphs, 2) << compiled.explain();
  EXPECT_LE(compiled.stats().traces, 3) << compiled.explain();
}

TEST_P(Given, OneOfSeveralCapturedTensors) {
  Tensor v = numbers({5}, 1), w = numbers({5}, 2);
  auto f = [&](const Tensor& x, const Tensor& y) { return (x * v - y) * w; };
  auto compiled = compile(f, options());
  Tensor a = numbers({5}, 3), b = numbers({5}, 4), c = numbers({5}, 5);
  for (int i = 0; i < 3; ++i)
    for (const auto& [x, y] : {std::pair(v, w), {w, v}, {a, b}, {v, v}, {c, a}, {a, v}, {w, a}, {b, c}})
      EXPECT_TRUE(identical(compiled(x, y), f(x, y))) << compiled.explain();
  EXPECT_EQ(compiled.stats().forward_graphs, 6) << compiled.explain();
}

TEST_P(Given, GradientsGoWhereTheyBelong) {
  Tensor w = leaf({4}, 1), w2 = w.detach().clone().requires_grad_();
  auto f = [](const Tensor& x, const Tensor& p) { return (x * p).sin().sum(); };
  auto compiled = compile([&](const Tensor& x) { return f(x, w2); }, options());
  std::vector<Tensor> kept;
  for (uint64_t i = 0; i < 4; ++i) {
    f(w, w).backward();
    compiled(w2).backward();
    EXPECT_TRUE(identical(w2.grad(), w.grad())) << i;
    Tensor x = leaf({4}, 20 + i), x2 = x.detach().clone().requires_grad_();
    kept.push_back(x2);
    f(x, w).backward();
    compiled(x2).backward();
    EXPECT_TRUE(identical(w2.grad(), w.grad())) << i;
    EXPECT_TRUE(identical(x2.grad(), x.grad())) << i;
  }
  EXPECT_EQ(compiled.stats().backward_graphs, 2);
  EXPECT_EQ(compiled.stats().traces, 3) << compiled.explain();
  EXPECT_EQ(compiled.stats().fallbacks, 0);
}

TEST_P(Given, AModulesOwnParameter) {
  nn::Linear a(3, 3, {.dtype = f64}), b = a.clone();
  auto net = compile(b, options());
  std::vector<Tensor> kept;
  for (uint64_t i = 0; i < 3; ++i) {
    a(a.weight).sum().backward();
    net(b.weight).sum().backward();
    EXPECT_TRUE(identical(b.weight.grad(), a.weight.grad())) << i;
    Tensor x = leaf({3, 3}, i), x2 = x.detach().clone().requires_grad_();
    kept.push_back(x2);
    Tensor wanted = a(x), given = net(x2);
    EXPECT_TRUE(identical(given, wanted));
    (wanted * wanted).sum().backward();
    (given * given).sum().backward();
    EXPECT_TRUE(identical(b.weight.grad(), a.weight.grad())) << i;
    EXPECT_TRUE(identical(x2.grad(), x.grad())) << i;
  }
}

TEST_P(Given, ViewsOfACapturedTensor) {
  Tensor w = numbers({12}, 1), row = w.narrow(0, 4, 4);
  for (bool whole : {false, true}) {
    auto f = [&](const Tensor& x) { return whole ? x.sum() * w : x * row; };
    auto compiled = compile(f, options());
    Tensor other = numbers({4}, 2), another = numbers({4}, 3);
    for (int i = 0; i < 3; ++i)
      for (const Tensor& x : {row, w.narrow(0, 0, 4), w.narrow(0, 8, 4), other, w.narrow(0, 4, 4), another})
        EXPECT_TRUE(identical(compiled(x), f(x))) << whole << i << compiled.explain();
  }
}

// Memory of one, but two leaves, each with a gradient of its own.
TEST_P(Given, LeavesThatShareMemory) {
  Tensor w = leaf({4}, 1), w2 = w.detach().clone().requires_grad_();
  auto f = [](const Tensor& x, const Tensor& p) { return (x.sin() * p).sum(); };
  auto compiled = compile([&](const Tensor& x) { return f(x, w2); }, options());
  Tensor x = w.detach().requires_grad_(), x2 = w2.detach().requires_grad_();
  Tensor y = leaf({4}, 3), y2 = y.detach().clone().requires_grad_();
  for (int i = 0; i < 3; ++i) {
    for (auto& [a, b] : {std::pair(x, x2), {y, y2}, {w, w2}}) {
      f(a, w).backward();
      compiled(b).backward();
      EXPECT_TRUE(identical(b.grad(), a.grad())) << i;
      EXPECT_TRUE(identical(w2.grad(), w.grad())) << i;
    }
  }
}

// An argument that is written, and captured too, is one memory; a graph for two would read the other one too early.
TEST_P(Given, ArgumentsThatAreWritten) {
  for (bool captured_first : {false, true}) {
    Tensor w = numbers({4}, 1), other = numbers({4}, 2), another = numbers({4}, 3);
    auto f = [](Tensor x, const Tensor& p) {
      x.mul_(0.5);
      return x + p * 3;
    };
    auto compiled = compile([&](const Tensor& x) { return f(x, w); }, options());
    std::vector<Tensor> calls{other, another, w, other, w};
    if (captured_first) std::swap(calls[0], calls[2]);
    for (const Tensor& x : calls) {
      Tensor w2 = w.clone(), x2 = x.is_same(w) ? w2 : x.clone();
      Tensor wanted = f(x2, w2);
      EXPECT_TRUE(identical(compiled(x), wanted)) << captured_first;
      EXPECT_TRUE(identical(x, x2)) << captured_first;
      EXPECT_TRUE(identical(w, w2)) << captured_first;
    }
  }
}

// What only the backward pass uses.
TEST_P(Given, AHookMayHaveCapturedAnArgument) {
  for (bool writes : {false, true}) {
    Tensor c = numbers({4}, 1), count = zeros({1}, {.dtype = f64});
    auto f = [&](const Tensor& x, const Tensor& p) {
      Tensor h = x * p;
      h.register_hook([&](const Tensor& g) { return g * c; });
      if (writes) count.add_(1);
      return h.sin().sum();
    };
    auto compiled = compile(f, options());
    std::vector<Tensor> kept;
    for (uint64_t i = 0; i < 5; ++i)
      for (const Tensor& x : {c, numbers({4}, 30 + i)}) {
        kept.push_back(x);
        Tensor p = leaf({4}, 50 + i), p2 = p.detach().clone().requires_grad_();
        f(x, p).backward();
        compiled(x, p2).backward();
        EXPECT_TRUE(identical(p2.grad(), p.grad())) << writes << i;
      }
    EXPECT_LE(compiled.stats().traces, 4) << compiled.explain();
  }
}

TEST_P(Given, BatchSizesBetween) {
  Tensor w = numbers({16, 3}, 1);
  auto f = [&](const Tensor& x) { return x.sum() + w.narrow(0, 0, x.size(0)) * 2; };
  CompileOptions dynamic = options();
  dynamic.dynamic_batch = true;
  auto compiled = compile(f, dynamic);
  Tensor x16 = numbers({16, 3}, 2), x4 = numbers({4, 3}, 3), x8 = numbers({8, 3}, 4);
  for (const Tensor& x : {w, w.narrow(0, 0, 4), w.narrow(0, 0, 8), x8, w.narrow(0, 8, 8), x16, x4, x8})
    EXPECT_TRUE(identical(compiled(x), f(x))) << compiled.explain();
}

// Rows of one large tensor are what many programs call with.
TEST_P(Given, RowsOfOneTensorAreTracedTwice) {
  Tensor all = numbers({40, 3}, 1), w = leaf({3}, 2);
  auto f = [&](const Tensor& x) { return (x * w).tanh().sum(); };
  auto compiled = compile(f, options());
  for (int64_t i = 0; i < 10; ++i) {
    Tensor x = all.narrow(0, 4 * i, 4), wanted = grad(f(x), w);
    EXPECT_TRUE(identical(grad(compiled(x), w), wanted)) << i;
  }
  EXPECT_EQ(compiled.stats().traces, 2) << compiled.explain();
  EXPECT_EQ(compiled.stats().forward_graphs, 1);
  EXPECT_EQ(compiled.stats().backward_graphs, 1);
}

// And whole passes through them are captured a few times, not for each row.
TEST_P(Given, PassesThroughRowsOfOneTensorAreCapturedOnce) {
  Tensor all = numbers({80, 3}, 1), w = leaf({3}, 2);
  auto f = [&](const Tensor& x) { return (x * w).tanh().sum(); };
  auto compiled = compile(f, options());
  CompiledBackward backward({.limit = 4});
  for (int64_t i = 0; i < 20; ++i) {
    Tensor x = all.narrow(0, 4 * i, 4), wanted = grad(f(x), w);
    w.zero_grad();
    backward(compiled(x));
    EXPECT_TRUE(identical(w.grad(), wanted)) << i;
  }
  EXPECT_LE(backward.graph_count(), 3) << backward.explain();
  EXPECT_GE(backward.stats().runs, 10);
}

// So do such as make a new leaf of one memory for each call.
TEST_P(Given, NewLeavesOfOneMemoryAreTracedTwice) {
  Tensor all = numbers({4, 3}, 1), w = leaf({3}, 2);
  auto f = [&](const Tensor& x) { return (x * w).tanh().sum(); };
  auto compiled = compile(f, options());
  std::vector<Tensor> kept;
  for (int64_t i = 0; i < 6; ++i) {
    Tensor x = all.detach().requires_grad_(), wanted = grad(f(x), x);
    kept.push_back(x);
    EXPECT_TRUE(identical(grad(compiled(x), x), wanted)) << i;
  }
  EXPECT_EQ(compiled.stats().traces, 2) << compiled.explain();
  EXPECT_EQ(compiled.stats().backward_graphs, 1);
}

TEST_P(Given, NoSecondTraceForWhatIsGone) {
  Tensor w = leaf({3}, 2);
  auto compiled = compile([&](const Tensor& x) { return (x * w).tanh().sum(); }, options());
  for (uint64_t i = 0; i < 4; ++i) compiled(numbers({4, 3}, i)).backward();
  EXPECT_EQ(compiled.stats().traces, 1);
  EXPECT_EQ(compiled.stats().fallbacks, 0);
  std::vector<Tensor> all;
  auto another = compile([&](const Tensor& x) { return (x * w).tanh().sum(); }, options());
  for (uint64_t i = 0; i < 4; ++i) another(all.emplace_back(numbers({4, 3}, i))).backward();
  EXPECT_EQ(another.stats().traces, 2);
  EXPECT_EQ(another.stats().backward_graphs, 1);
}

// A captured tensor that was given other memory is still the captured one.
TEST_P(Given, CapturedTensorsMayGetOtherMemory) {
  Tensor w = numbers({4}, 1), other = numbers({4}, 3);
  auto f = [&](const Tensor& x) { return x * w; };
  auto compiled = compile(f, options());
  EXPECT_TRUE(identical(compiled(w), f(w)));
  w.set_data(numbers({4}, 2));
  EXPECT_TRUE(identical(compiled(w), f(w)));
  EXPECT_TRUE(identical(compiled(other), f(other)));
}

TEST_P(Given, ArgumentsAreNotHeldPastTheNextCall) {
  auto compiled = compile([](const Tensor& x) { return x.tanh(); }, options());
  compiled(zeros({1000}));
  compiled(zeros({2000}));
  compiled(zeros({1}));
  int64_t before = memory::statistics().bytes_in_use;
  compiled(zeros({100000}));
  compiled(zeros({1}));
  EXPECT_LT(memory::statistics().bytes_in_use - before, 300000);
}

// Passes of one form whose tensors are one in the first, and two in the next.
TEST_P(Given, KeptTensorsOfAPassMayBeOne) {
  Tensor w = leaf({4}, 1), w2 = w.detach().clone().requires_grad_(), a = numbers({4}, 2), b = numbers({4}, 3);
  CompiledBackward backward(options());
  for (const auto& [x, y] : {std::pair(a, a), {a, a}, {a, b}, {b, a}, {b, b}}) {  // the first has no gradient yet
    (w * x + w * y).sum().backward();
    backward((w2 * x + w2 * y).sum());
    EXPECT_TRUE(identical(w2.grad(), w.grad()));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Given, testing::Values("eager", "native"));

}  // namespace
}  // namespace tutti
