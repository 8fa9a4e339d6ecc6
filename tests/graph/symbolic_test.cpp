// Batch sizes that were never traced: the graph of others, with eager's bits. See Note [Symbolic batch].
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "graph/backends/native/library.h"
#include "tests/graph/programs.h"
#include "tests/support/compare.h"
#include "tutti/tutti.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

Tensor rows(int64_t count, const Shape& rest, uint64_t seed) {
  manual_seed(seed);
  Shape sizes = rest;
  sizes.insert(0, count);
  return randn(sizes, {.dtype = f64});
}

/// Runs both with the same rows and seed, and compares results and gradients of the rows and of `parameters`.
template <class F, class Compiled>
void compare_step(F& eager, const Compiled& compiled, const Shape& rest, int64_t count, const TensorList& parameters) {
  SCOPED_TRACE("batch size " + std::to_string(count));
  TensorList outcomes[2];
  auto run = [&](auto& f, TensorList& outcome) {
    for (Tensor p : parameters) p.set_grad({});
    Tensor x = rows(count, rest, static_cast<uint64_t>(count)).requires_grad_();
    manual_seed(7);
    Tensor y = f(x);
    y.sum().backward();
    outcome = {y.detach().clone(), x.grad()};
    for (const Tensor& p : parameters) outcome.push_back(p.grad());
  };
  run(eager, outcomes[0]);
  run(compiled, outcomes[1]);
  for (size_t i = 0; i < outcomes[0].size(); ++i) {
    ASSERT_EQ(outcomes[1][i].defined(), outcomes[0][i].defined()) << i;
    if (!outcomes[0][i].defined()) continue;
    ASSERT_TRUE(identical(outcomes[1][i], outcomes[0][i])) << i;
  }
}

std::vector<std::string> backends() {
  return graph::native::unavailable().empty() ? std::vector<std::string>{"eager", "native"}
                                              : std::vector<std::string>{"eager"};
}

// n (n - 1), n² - 1 and n² are zero at 1 or 0, as multiples of n - 1 and n are there.
TEST(Symbolic, SquaresAreNotTakenForMultiples) {
  using Scale = double (*)(double);
  for (auto [scale, low] : {std::pair<Scale, int64_t>{[](double n) { return n * (n - 1); }, 1},
                            {[](double n) { return n * n - 1; }, 1},
                            {[](double n) { return n * n; }, 0}}) {
    auto f = compile([scale = scale](const Tensor& x) { return x * scale(static_cast<double>(x.size(0))); },
                     {.dynamic_batch = true});
    for (int64_t n : {low, int64_t{4}, int64_t{2}, int64_t{3}})
      EXPECT_TRUE(identical(f(ones({n})), full({n}, scale(static_cast<double>(n))))) << n;
  }
}

// A view counted from the start of the memory is as far from its argument as it was.
TEST(Symbolic, AViewFollowsWhereItsArgumentBegins) {
  for (const std::string& backend : backends()) {
    auto f = compile([](const Tensor& x) { return as_strided(x, {2}, {1}) * 1; }, {.backend = backend});
    Tensor all = arange(8, {.dtype = f32});
    for (int64_t at : {0, 4, 2}) EXPECT_TRUE(identical(f(all.narrow(0, at, 4)), all.narrow(0, at, 2).clone())) << at;
  }
}

// The same for other batch sizes, whether traced rows begin where these do or elsewhere.
TEST(Symbolic, RowsMayBeginAnywhere) {
  auto step = [](const Tensor& x) { return (x.detach().reshape({-1}) * 2).sin() + x.narrow(0, 1, 1).detach().sum(); };
  Tensor all = rows(100, {3}, 1);
  for (const std::string& backend : backends())
    for (auto [low, high] : {std::pair{0, 0}, {7, 7}, {0, 20}}) {
      auto f = compile(step, {.backend = backend, .dynamic_batch = true});
      f(all.narrow(0, low, 3)), f(all.narrow(0, high, 40));
      for (int64_t begin : {0, 5, 7, 50})
        for (int64_t n : {4, 9, 17}) {
          Tensor part = all.narrow(0, begin, n);
          EXPECT_TRUE(identical(f(part), step(part))) << begin << " " << n;
        }
      // Two that begin at one place do not tell whether that is a captured tensor's: the first elsewhere are traced.
      EXPECT_EQ(f.stats().fitted, low == 7 ? 2 : 3) << f.explain();
      EXPECT_EQ(f.stats().traces, low == 7 ? 3 : low == high ? 5 : 2) << f.explain();
    }
}

// Sizes, lengths, offsets and numbers that are n + k, n·k or (n ± 1)·k; and such that are neither, 2·n + 1.
TEST(Symbolic, SizesThatFollowFromTheBatchSize) {
  using Step = Tensor (*)(const Tensor&);
  const std::pair<const char*, Step> steps[] = {
      {"n + 1", [](const Tensor& x) { return cat({x, x.narrow(0, 0, 1)}, 0).reshape({x.size(0) + 1, 2, 1}).sin(); }},
      {"rows of one", [](const Tensor& x) { return x.sin().sum({1}, true); }},
      {"n + 5", [](const Tensor& x) { return cat({zeros({5, 2}, f64), x}, 0).t().reshape({2, x.size(0) + 5}) * 3; }},
      {"2 n", [](const Tensor& x) { return cat({x, x * 3}, 0).view({2 * x.size(0), 2}).tanh(); }},
      {"2 (n + 1)", [](const Tensor& x) { return cat({x, ones({1, 2}, f64)}, 0).view({2 * (x.size(0) + 1)}).exp(); }},
      {"3 (n - 1)", [](const Tensor& x) { return x.narrow(0, 1, x.size(0) - 1).sum({1}).repeat({3}).cos(); }},
      {"an offset n", [](const Tensor& x) { return cat({x, x * 2}, 0).narrow(0, x.size(0), x.size(0)).detach() + x; }},
      {"an offset n + 1", [](const Tensor& x) { return cat({x, x * 2}, 0).narrow(0, x.size(0) + 1, 1).detach() * x; }},
      {"numbers", [](const Tensor& x) { return x * (x.size(0) + 1) + arange(2 * x.size(0), f64).sum() / x.size(0); }},
  };
  for (const std::string& backend : backends())
    for (auto [name, step] : steps) {
      SCOPED_TRACE(backend + ", " + name);
      auto f = compile(step, {.backend = backend, .dynamic_batch = true});
      for (int64_t n : {24, 3, 24, 3, 4, 10, 23}) compare_step(step, f, {2}, n, {});
      EXPECT_EQ(f.stats().fitted, 3) << f.explain();
      EXPECT_EQ(f.stats().traces, 2) << f.explain();
    }
  auto odd = [](const Tensor& x) { return cat({x, x, ones({1, 2}, f64)}, 0).reshape({2 * x.size(0) + 1, 2, 1}).sin(); };
  auto f = compile(odd, {.dynamic_batch = true});
  for (int64_t n : {24, 3, 4, 10}) compare_step(odd, f, {2}, n, {});
  EXPECT_EQ(f.stats().fitted, 0) << "two points lie on some line always";
}

// Everything that one makes of a batch size: views, ranges, divisors, expanded and cut tensors.
struct Uses : nn::Module<Uses> {
  nn::Linear in{3, 8, {.dtype = f64}}, out{4, 2, {.dtype = f64}};
  nn::Parameter shift = ones({1, 8}, {.dtype = f64});
  TUTTI_FIELDS(in, out, shift)

  Tensor forward(const Tensor& x) {
    int64_t n = x.size(0);
    Tensor h = gelu(in(x)) + shift.expand({n, 8});
    h = h.reshape({n * 2, 4}) * (1.0 / static_cast<double>(n));
    Tensor t = (out(h).t().reshape({2, n, 2}).transpose(0, 1).reshape({n, 4}) * static_cast<double>(n)).tanh();
    t = t + arange(n, {.dtype = f64}).unsqueeze(1) + zeros({n, 1}, {.dtype = f64}) - t.mean({0}, true);
    Tensor later = t.narrow(0, n / n, n - 1);
    return t.sum({1}) + t.mean() + later.reshape({(n - 1) * 4}).sum() / static_cast<double>(4 * n);
  }
};

TEST(Symbolic, BatchSizesBetweenTracedOnesAreNeitherTracedNorCompiled) {
  for (const std::string& backend : backends()) {
    SCOPED_TRACE(backend);
    Uses net;
    auto f = compile(std::ref(net), {.backend = backend, .dynamic_batch = true});
    for (int64_t n : {64, 2, 64, 2}) compare_step(net, f, {3}, n, net.parameters());
    EXPECT_EQ(f.stats().traces, 2);
    auto generated = graph::native::library_stats().generated;
    for (int64_t n : {7, 33, 3, 7, 63, 64, 2, 33}) compare_step(net, f, {3}, n, net.parameters());
    EXPECT_EQ(f.stats().traces, 2) << f.explain();
    EXPECT_EQ(f.stats().fitted, 4);
    EXPECT_EQ(f.stats().runs, 10);
    EXPECT_EQ(f.stats().forward_graphs, 1);
    EXPECT_EQ(f.stats().recompilations, 0);
    EXPECT_EQ(f.stats().fallbacks, 0);
    EXPECT_EQ(graph::native::library_stats().generated, generated);
    EXPECT_THAT(f.explain(), HasSubstr("4 batch sizes between traced ones were not traced"));
  }
}

TEST(Symbolic, OneRowAndNoneAreTracedForThemselves) {
  for (const std::string& backend : backends()) {
    SCOPED_TRACE(backend);
    nn::Linear net(3, 4, {.dtype = f64});
    auto step = [&](const Tensor& x) { return (net(x) - net(x).sum({0}, true)).reshape({-1}).exp(); };
    auto f = compile(step, {.backend = backend, .dynamic_batch = true});
    for (int64_t n : {64, 1, 0, 2, 7, 1, 0, 64}) compare_step(step, f, {3}, n, net.parameters());
    EXPECT_LE(f.stats().traces, 4) << f.explain();
  }
}

TEST(Symbolic, NumbersThatDoNotSimplyFollowAreTraced) {
  auto square = [](const Tensor& x) { return x * static_cast<double>(x.size(0) * x.size(0)); };
  auto f = compile(square, {.dynamic_batch = true});
  for (int64_t n : {3, 6, 5, 4, 9, 7}) compare_step(square, f, {2}, n, {});
  EXPECT_EQ(f.stats().fitted, 0);
  EXPECT_EQ(f.stats().traces, 6);
  EXPECT_EQ(f.stats().recompilations, 5);
  EXPECT_THAT(f.explain(), HasSubstr("not the graph of another batch size: a number that is used"));
  EXPECT_THAT(f.explain(), HasSubstr("is 9 for 3 and 36 for 6, which does not simply follow"));
}

TEST(Symbolic, HalvesOfABatchAreTraced) {
  auto halves = [](const Tensor& x) {
    TensorList parts = chunk(x, 2, 0);
    return parts[0].sum({0}) - parts.back().sum({0}) * 2;
  };
  auto f = compile(halves, {.dynamic_batch = true});
  for (int64_t n : {8, 4, 6, 5, 7, 64, 12}) compare_step(halves, f, {2}, n, {});
}

TEST(Symbolic, WhatHostCodeDecidesByTheBatchSizeIsKept) {
  auto decides = [](const Tensor& x) {
    Tensor y = x.size(0) > 8 ? x * 2 : x.sin() * 3;
    return y.narrow(0, 0, std::min<int64_t>(y.size(0), 12));
  };
  auto f = compile(decides, {.dynamic_batch = true});
  for (int64_t n : {4, 6, 5, 16, 7, 9, 12, 10, 8, 64, 2, 11, 32, 13, 14, 3}) compare_step(decides, f, {2}, n, {});
  EXPECT_GT(f.stats().fitted, 4) << f.explain();
  EXPECT_EQ(f.stats().forward_graphs, f.stats().recompilations + 1);
}

TEST(Symbolic, ResultsThatAreNoTensorsAreRight) {
  auto f = compile([](const Tensor& x) { return std::pair(x * 2, x.size(0)); }, {.dynamic_batch = true});
  for (int64_t n : {9, 2, 5, 6, 2, 9, 5}) EXPECT_EQ(f(rows(n, {2}, 1)).second, n);
  EXPECT_EQ(f.stats().fitted, 0);
  EXPECT_THAT(f.explain(), HasSubstr("it returns something else"));
}

TEST(Symbolic, ANumberThatIsAnArgumentIsGuarded) {
  auto plus = [](const Tensor& x, int64_t k) { return x + k; };
  auto f = compile(plus, {.dynamic_batch = true});
  for (int64_t n : {9, 2, 5})
    for (int64_t k : {int64_t{1}, n}) EXPECT_TRUE(identical(f(rows(n, {2}, 1), k), plus(rows(n, {2}, 1), k)));
}

// A parameter whose first dim happens to be the batch size once.
TEST(Symbolic, OtherArgumentsMayHaveAsManyRows) {
  auto product = [](const Tensor& x, const Tensor& w) { return matmul(x, w).exp() + x.sum(); };
  auto f = compile(product, {.dynamic_batch = true});
  Tensor w = rows(3, {2}, 5);
  for (int64_t n : {3, 9, 2, 5, 3, 4, 7})
    EXPECT_TRUE(identical(f(rows(n, {3}, 1), w), product(rows(n, {3}, 1), w))) << n;
  EXPECT_GT(f.stats().fitted, 0);
}

TEST(Symbolic, RowsOfALargerTensorAndTransposedOnes) {
  auto product = [](const Tensor& x) { return (x.t().reshape({-1}) * 2 + x.detach().reshape({-1})).sin(); };
  auto f = compile(product, {.dynamic_batch = true});
  Tensor all = rows(100, {3}, 1), wide = rows(3, {100}, 2);
  for (int64_t n : {40, 2, 9, 17}) {
    Tensor part = all.narrow(0, n, n), across = wide.narrow(1, n, n).t();
    EXPECT_TRUE(identical(f(part), product(part))) << n;
    EXPECT_TRUE(identical(f(across), product(across))) << n;
  }
}

// A function that writes its argument, returns views, and is random; with gradients accumulated inside.
TEST(Symbolic, EffectsAreThoseOfEager) {
  for (const std::string& backend : backends()) {
    SCOPED_TRACE(backend);
    Tensor w = rows(3, {4}, 3).requires_grad_();
    auto step = [&](const Tensor& x, Tensor target) {
      Tensor y = dropout(matmul(x, w).tanh(), 0.5, true);
      y.sum().backward();
      target.add_(y.detach());
      return TensorList{target.narrow(0, 1, target.size(0) - 1), y.detach().reshape({-1})};
    };
    auto f = compile(step, {.backend = backend, .dynamic_batch = true});
    for (int64_t n : {64, 64, 2, 2, 7, 33, 7, 8}) {
      TensorList outcome[2];
      auto run = [&](const auto& g, TensorList& kept) {
        Tensor target = rows(n, {4}, 11);
        w.set_grad(n % 2 ? Tensor() : ones_like(w).detach());
        manual_seed(static_cast<uint64_t>(n));
        TensorList results = g(rows(n, {3}, 2), target);
        results[0].mul_(2);
        kept = {target, results[0].clone(), results[1], w.grad()};
      };
      run(step, outcome[0]);
      run(f, outcome[1]);
      for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(identical(outcome[1][i], outcome[0][i])) << n << " " << i;
    }
    EXPECT_GT(f.stats().fitted, 0) << f.explain();
    EXPECT_LE(f.stats().traces, 5) << f.explain();
  }
}

struct ConvNet : nn::Module<ConvNet> {
  nn::Conv2d conv{2, 4, 3, {.padding = 1}};
  nn::BatchNorm2d norm{4};
  nn::Linear head{4, 3};
  TUTTI_FIELDS(conv, norm, head)
  Tensor forward(const Tensor& x) { return head(max_pool2d(relu(norm(conv(x))), 2).mean({2, 3})); }
};

TEST(Symbolic, NetworksWithBuffersThatTheyWrite) {
  ConvNet net, other;
  {
    NoGrad no_grad;
    for (size_t i = 0; i < net.parameters().size(); ++i) other.parameters()[i].copy_(net.parameters()[i]);
  }
  auto loss = [](ConvNet& of) {
    return [&of](const Tensor& x) { return cross_entropy(of(x.to(f32)), zeros({x.size(0)}, {.dtype = i64})); };
  };
  auto eager = loss(net), traced = loss(other);
  auto f = compile(traced, {.dynamic_batch = true});
  for (int64_t n : {16, 4, 8, 5, 16, 7}) {
    net.zero_grad(), other.zero_grad();
    Tensor x = rows(n, {2, 6, 6}, static_cast<uint64_t>(n));
    Tensor a = eager(x), b = f(x);
    EXPECT_TRUE(identical(b, a)) << n;
    a.backward(), b.backward();
    for (size_t i = 0; i < net.parameters().size(); ++i)
      EXPECT_TRUE(identical(other.parameters()[i].grad(), net.parameters()[i].grad())) << n << " " << i;
    for (size_t i = 0; i < net.buffers().size(); ++i)
      EXPECT_TRUE(identical(other.buffers()[i], net.buffers()[i])) << n << " " << i;
  }
  EXPECT_EQ(f.stats().fitted, 3) << f.explain();
  EXPECT_EQ(f.stats().traces, 2) << f.explain();
}

TEST(Symbolic, OldSizesAreForgottenAndFittedAgain) {
  auto f = compile([](const Tensor& x) { return (x * 2).reshape({-1}).sin(); }, {.dynamic_batch = true});
  for (int64_t n = 200; n >= 2; n = n == 200 ? 2 : 0) f(rows(n, {2}, 1));
  for (int turn = 0; turn < 2; ++turn)
    for (int64_t n = 3; n < 100; ++n)
      ASSERT_TRUE(identical(f(rows(n, {2}, 1)), (rows(n, {2}, 1) * 2).reshape({-1}).sin())) << n;
  EXPECT_EQ(f.stats().traces, 2);
  EXPECT_EQ(f.stats().fitted, 2 * 97);
}

TEST(Symbolic, ThreadsMayShareAFunction) {
  Tensor w = rows(3, {4}, 1);
  auto step = [w](const Tensor& x) { return (matmul(x, w).reshape({-1}) * static_cast<double>(x.size(0))).tanh(); };
  auto f = compile(step, {.dynamic_batch = true});
  std::vector<Tensor> inputs, wanted;
  for (int64_t n = 0; n < 24; ++n) {
    inputs.push_back(rows(n, {3}, 2));
    wanted.push_back(step(inputs.back()));
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t turn = 0; turn < 60; ++turn) {
        size_t n = (turn * 7 + t * 5) % inputs.size();
        if (!identical(f(inputs[n]), wanted[n])) ++wrong;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(f.stats().traces + f.stats().runs, 4 * 60);
}

// Each is traced, as it is larger than all before; but not all of them are kept.
TEST(Symbolic, SizesThatGrow) {
  nn::Linear net(2, 3, {.dtype = f64});
  auto step = [&](const Tensor& x) { return net(x).reshape({-1}).sin(); };
  auto f = compile(step, {.dynamic_batch = true, .limit = 4});
  for (int turn = 0; turn < 2; ++turn)
    for (int64_t n = 2; n < 40; ++n) compare_step(step, f, {2}, n, net.parameters());
  EXPECT_EQ(f.stats().traces, 38);
  EXPECT_EQ(f.stats().recompilations, 0) << f.explain();
  EXPECT_LE(f.graphs().size(), 2 * 9);
}

// Forward graphs have one form and backward graphs none: nothing is fitted between, and no size is traced twice.
TEST(Symbolic, SizesWhoseBackwardGraphsDoNotFit) {
  Tensor w = rows(1, {2}, 1).requires_grad_();
  auto step = [&](const Tensor& x) {
    Tensor h = x * w;
    auto n = static_cast<double>(x.size(0));
    h.register_hook([n](const Tensor& g) { return g * (n * n * n); });
    return h.sin();
  };
  auto f = compile(step, {.dynamic_batch = true});
  for (int turn = 0; turn < 4; ++turn)
    for (int64_t n = 2; n < 16; ++n) compare_step(step, f, {2}, n, {w});
  EXPECT_EQ(f.stats().traces, 14) << f.explain();
  EXPECT_EQ(f.stats().fallbacks, 0);
  EXPECT_THAT(f.explain(), testing::HasSubstr("not the graph of another batch size: backward: "));
  auto few = compile(step, {.dynamic_batch = true, .limit = 3});
  EXPECT_THROW(for (int64_t n = 2; n < 16; ++n) few(rows(n, {2}, 1)).sum().backward(), ValueError);
}

// Where every other size has a backward pass, neighbours never have the same backward graphs.
TEST(Symbolic, SizesThatGrowWithAndWithoutBackward) {
  Tensor w = rows(1, {2}, 1).requires_grad_();
  auto step = [&](const Tensor& x) { return (x * w).sin().mean(); };
  auto f = compile(step, {.dynamic_batch = true, .limit = 3});
  auto compare = [&](int64_t n, bool backward) {
    Tensor x = rows(n, {2}, 3), y = f(x), wanted = step(x);
    ASSERT_TRUE(identical(y, wanted)) << n;
    if (!backward) return;
    w.set_grad({});
    y.backward();
    Tensor got = w.grad();
    w.set_grad({});
    wanted.backward();
    ASSERT_TRUE(identical(got, w.grad())) << n;
  };
  for (int64_t n = 2; n < 100; ++n) compare(n, n % 2 != 0);
  for (int64_t n = 3; n < 99; ++n) compare(n, n % 3 != 0);
  EXPECT_EQ(f.stats().recompilations, 0) << f.explain();
  EXPECT_GT(f.stats().fitted, 60);
}

// What is refused is not remembered: neither as the form of other sizes, nor as what lies around them.
TEST(Symbolic, SizesBeyondTheLimitAreRefusedAgain) {
  auto f =
      compile([](const Tensor& x) { return x.size(0) > 5 ? x * 2 : x.sin(); }, {.dynamic_batch = true, .limit = 1});
  f(rows(3, {2}, 1));
  for (int64_t n : {6, 9, 7}) EXPECT_THROW(f(rows(n, {2}, 1)), ValueError) << n;
  EXPECT_TRUE(identical(f(rows(5, {2}, 1)), rows(5, {2}, 1).sin())) << "the form that it has";
  EXPECT_EQ(f.graphs().size(), 2u);
}

// It is asked while nothing is locked.
TEST(Symbolic, WhatIsWatchedMayDependOnTheFunction) {
  Tensor w = rows(2, {}, 1), other = rows(2, {}, 2);
  std::function<std::string()> explain;
  auto f = compile(
      [&](const Tensor& x) { return x * w; },
      {.dynamic_batch = true, .watch = [&] { return explain && explain().empty() ? TensorList{} : TensorList{w}; }});
  explain = [&] { return f.explain() + f.print(); };
  for (int64_t n : {8, 2, 5}) EXPECT_TRUE(identical(f(rows(n, {2}, 1)), rows(n, {2}, 1) * w)) << n;
  EXPECT_EQ(f.stats().fitted, 1) << f.explain();
  w = other;
  EXPECT_TRUE(identical(f(rows(5, {2}, 1)), rows(5, {2}, 1) * other));
  EXPECT_EQ(f.stats().traces, 3);
}

// Calls before the first backward trace theirs too; one backward graph is enough, and other sizes have as many.
TEST(Symbolic, SeveralFirstBackwardsAreOne) {
  auto step = [](const Tensor& x) { return (x.sin() * x).sum({1}); };
  auto f = compile(step, {.dynamic_batch = true});
  Tensor x = rows(8, {2}, 1).requires_grad_();
  Tensor first = f(x), second = f(x);
  first.sum().backward(), second.sum().backward();
  EXPECT_EQ(f.stats().backward_graphs, 1);
  for (int64_t n : {2, 5}) compare_step(step, f, {2}, n, {});
  EXPECT_EQ(f.stats().fitted, 1) << f.explain();
}

#ifdef TUTTI_SANITIZE_THREAD  // slow, and the threads of one program are those of another
constexpr uint64_t kSymbolicPrograms = 240;
#else
constexpr uint64_t kSymbolicPrograms = 480;
#endif

TEST(Symbolic, RandomProgramsGiveTheBitsOfEagerForManySizes) {
  int64_t fitted = 0;
  uint64_t programs = some_of(kSymbolicPrograms);
  for (uint64_t seed = 1; seed <= programs && !testing::Test::HasFailure(); ++seed)
    fitted += compare_program(seed, {60, 17, 33, 17, 41, 60, 33, 18, 16});
  EXPECT_GT(fitted, static_cast<int64_t>(programs));
}

}  // namespace
}  // namespace tutti::test
