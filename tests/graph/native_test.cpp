// Generated code: against eager, bit for bit, over shapes, layouts, dtypes and operators; and what it is made for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "base/isa.h"
#include "graph/backends/native/library.h"
#include "tests/support/compare.h"
#include "tutti/autograd.h"
#include "tutti/compile.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

using graph::native::library_stats;
using testing::HasSubstr;

class Native : public testing::Test {
 protected:
  void SetUp() override {
    if (!graph::native::unavailable().empty()) GTEST_SKIP() << graph::native::unavailable();
    ASSERT_GE(library_stats().kernels, 0);
  }
};

Tensor mixed_numbers(const Shape& sizes, DType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  Tensor t = empty(sizes, {.dtype = DType::f64});
  constexpr double special[] = {0.0,   -0.0,   1.0, -1.0,   std::numeric_limits<double>::infinity(),
                                1e-40, 1e-310, NAN, -1e300, -std::numeric_limits<double>::infinity()};
  for (int64_t i = 0; i < t.numel(); ++i) {
    bool odd = is_floating(dtype) && random() % 16 == 0;
    t.data<double>()[i] = odd ? special[random() % 10] : static_cast<double>(random() % 8001) / 1000.0 - 4;
  }
  return t.to(dtype);
}

/// Traces f twice, with tensors that are all in use, then runs it natively, and compares with eager.
template <class F>
void compare(const F& f, const TensorList& first, const TensorList& second, bool groups = true) {
  NoGrad no_grad;
  auto compiled = compile(f, {.backend = "native"});
  compiled(first);
  compiled(second);
  TensorList got = compiled(second), wanted = f(second);
  ASSERT_EQ(compiled.stats().runs, 1);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(identical(got[i], wanted[i])) << "result " << i << "\n" << compiled.print();
    EXPECT_TRUE(same_form(got[i], wanted[i])) << "result " << i;
  }
  // Where there is no instruction for f16, its operators stay.
  if (groups && (best_isa() != Isa::base || compiled.print().find("f16") == std::string::npos)) {
    EXPECT_THAT(compiled.print(), HasSubstr("define void @tutti_kernel"));
  }
}

TensorList made(std::initializer_list<std::pair<Shape, DType>> forms, uint64_t seed) {
  TensorList list;
  for (auto& [sizes, dtype] : forms) list.push_back(mixed_numbers(sizes, dtype, seed++));
  return list;
}

TEST_F(Native, AChainOfEveryLength) {
  auto f = [](const TensorList& x) { return TensorList{((x[0] * 2 + 1).tanh() * x[0] - 0.5).sigmoid()}; };
  for (DType t : {f32, f64, bf16, f16})
    for (int64_t n : {1, 2, 7, 8, 15, 16, 17, 31, 33, 100, 513, 4099, 70001})
      compare(f, made({{{n}, t}}, 1), made({{{n}, t}}, 2));
  compare(f, {mixed_numbers({0}, f32, 1)}, {mixed_numbers({0}, f32, 2)});
  compare(f, {mixed_numbers({}, f32, 1)}, {mixed_numbers({}, f32, 2)});
}

TEST_F(Native, ResultsTooLargeForCaches) {
  auto f = [](const TensorList& x) { return TensorList{(x[0] + 1) * x[1], x[0] - x[1] * 3}; };
  Shape large{5000003};
  compare(f, made({{large, f32}, {large, f32}}, 1), made({{large, f32}, {large, f32}}, 3));
}

TEST_F(Native, Broadcasting) {
  auto f = [](const TensorList& x) { return TensorList{(x[0] + x[1]) * x[2] - x[3]}; };
  auto forms = [](uint64_t seed) { return made({{{3, 1, 7}, f32}, {{5, 7}, f32}, {{5, 1}, f32}, {{}, f32}}, seed); };
  compare(f, forms(1), forms(9));
  auto rows = [](uint64_t seed) { return made({{{40, 33}, f32}, {{40, 1}, f32}, {{33}, f32}, {{1, 1}, f32}}, seed); };
  compare(f, rows(1), rows(9));
}

TEST_F(Native, AnyLayout) {
  auto f = [](const TensorList& x) { return TensorList{(x[0] + x[1]).exp() * x[0], (x[1] * 2).neg()}; };
  for (Arrangement a : kArrangements)
    for (Arrangement b : kArrangements) {
      auto forms = [&](uint64_t seed) {
        return TensorList{arrange(mixed_numbers({2, 3, 18, 5}, f32, seed), a),
                          arrange(mixed_numbers({2, 3, 18, 5}, f32, seed + 1), b)};
      };
      SCOPED_TRACE(std::string(name(a)) + " " + name(b));
      compare(f, forms(1), forms(5));
    }
}

TEST_F(Native, MixedDtypes) {
  auto f = [](const TensorList& x) {
    Tensor a = x[0] * x[1], b = a + x[2], c = where(x[3], b, x[0]);
    return TensorList{a, b, c, a < b, c.to(f32) * 0.1, (c * 3).to(bf16), logical_and(x[3], a < b)};
  };
  const DType dtypes[] = {f32, f64, bf16, f16, i64, i32, i16, i8, u8, boolean};
  for (DType a : dtypes)
    for (DType b : dtypes)
      for (DType c : {f32, i64, u8}) {
        auto forms = [&](uint64_t seed) { return made({{{37}, a}, {{37}, b}, {{37}, c}, {{37}, boolean}}, seed); };
        SCOPED_TRACE(to_string(a) + " " + to_string(b) + " " + to_string(c));
        compare(f, forms(1), forms(5));
        if (HasFailure()) return;
      }
}

TEST_F(Native, OtherNumbersAreTheSameCode) {
  NoGrad no_grad;
  Tensor x = mixed_numbers({50}, f32, 1);
  auto with = [&](double a, double b) {
    auto f = [=](const TensorList& xs) { return TensorList{(xs[0] * a).cos() - b}; };
    compare(f, {x}, {mixed_numbers({50}, f32, 2)});
  };
  with(2, 3);
  auto before = library_stats();
  with(-0.7, 1e6);
  auto after = library_stats();
  EXPECT_EQ(after.kernels, before.kernels);
  EXPECT_EQ(after.generated, before.generated);
}

TEST_F(Native, PowersThatAreCheaper) {
  for (double power : {2.0, 3.0, 0.5, -1.0, 1.0, 1.7}) {
    auto f = [=](const TensorList& x) { return TensorList{pow(x[0], power) + 1}; };
    compare(f, {mixed_numbers({90}, f64, 1)}, {mixed_numbers({90}, f64, 2)});
  }
}

// What stays inside of a group is never in memory; what leaves it is there once.
TEST_F(Native, OnlyWhatIsNeededIsWritten) {
  NoGrad no_grad;
  auto f = [](const TensorList& x) {
    Tensor a = x[0].sin(), b = a * 2, c = b + a;
    return TensorList{b, c.sum()};
  };
  compare(f, {mixed_numbers({77, 3}, f32, 1)}, {mixed_numbers({77, 3}, f32, 2)});
  auto compiled = compile(f, {.backend = "native"});
  compiled(TensorList{ones({77, 3})});
  ASSERT_EQ(compiled.graphs()[0]->groups.size(), 1u);
  EXPECT_EQ(compiled.graphs()[0]->groups[0].outputs.size(), 2u) << compiled.print();
}

TEST_F(Native, TwoGroupsThatNeedEachOtherStayTwo) {
  auto f = [](const TensorList& x) {
    Tensor a = x[0].exp(), b = x[1].sin();    // of two shapes
    Tensor c = a + b.sum(), d = b * a.sum();  // each needs the other's reduction
    return TensorList{c * 2, d - 1, c.sum() * d};
  };
  auto forms = [](uint64_t seed) { return made({{{6, 5}, f64}, {{4, 5}, f64}}, seed); };
  compare(f, forms(1), forms(4));
  auto g = [](const TensorList& x) {
    Tensor a = x[0].exp() + 1, b = x[0].sin() * 2;
    Tensor up = matmul(a, a), down = matmul(b, b);
    Tensor c = b + up, d = a - down;  // c's group may not be around `up`, nor d's around `down`
    return TensorList{c * d, c - 1, d + 1};
  };
  auto squares = [](uint64_t seed) { return TensorList{rand({5, 5}) + static_cast<double>(seed)}; };
  compare(g, squares(1), squares(4));
}

TEST_F(Native, Gradients) {
  auto f = [](const Tensor& x, const Tensor& w) {
    return ((gelu(x * w + 1) * sigmoid(x)).tanh() / (w.square() + 1)).sum();
  };
  auto compiled = compile(f, {.backend = "native"});
  for (uint64_t turn = 1; turn < 4; ++turn) {
    TensorList mine{rand({20, 33}), rand({33})}, theirs;
    for (Tensor& t : mine) theirs.push_back(t.clone().requires_grad_()), t.requires_grad_();
    Tensor got = compiled(mine[0], mine[1]), wanted = f(theirs[0], theirs[1]);
    EXPECT_TRUE(identical(got.detach(), wanted.detach()));
    got.backward();
    wanted.backward();
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(identical(mine[i].grad(), theirs[i].grad())) << "turn " << turn;
  }
  EXPECT_EQ(compiled.stats().backward_graphs, 1);
  EXPECT_THAT(compiled.print(), HasSubstr("gradient0_f32"));
}

// A compiled function in another's trace runs its operators one by one, so that they are heard of.
TEST_F(Native, InsideAnotherTrace) {
  NoGrad no_grad;
  auto inner = compile([](const Tensor& x) { return (x * 2 + 1).sin(); }, {.backend = "native"});
  Tensor x = rand({9}), y = rand({9});
  inner(x);
  auto outer = compile([&](const Tensor& t) { return inner(t) * 3; }, {.backend = "native"});
  outer(x);
  EXPECT_TRUE(identical(outer(y), (y * 2 + 1).sin() * 3)) << outer.print();
}

TEST_F(Native, MemoryThatIsGoneIsAnError) {
  NoGrad no_grad;
  auto f = compile([](const Tensor& x) { return (x * 2 + 1).sin(); }, {.backend = "native"});
  Tensor w = rand({64});
  auto g = compile([=](const Tensor& x) { return (x * w + 1).sin(); }, {.backend = "native"});
  g(rand({64}));
  g(rand({64}));
  w.resize_storage(0);
  EXPECT_THROW(g(rand({64})), Error);
}

TEST_F(Native, ShowsItsCode) {
  NoGrad no_grad;
  auto f = compile([](const Tensor& x) { return (x * 2 + 1).sin(); }, {.backend = "native"});
  f(rand({64}));
  EXPECT_THAT(f.print(), HasSubstr("call <"));
  EXPECT_THAT(f.print({.code = false}), testing::Not(HasSubstr("define")));
  EXPECT_THAT(f.print({.assembly = true}), HasSubstr(".text"));
  EXPECT_THAT(f.html(), HasSubstr("<summary>generated code</summary>"));
}

// Ranks that are threads want the same code at the same time.
TEST_F(Native, ManyThreadsAtATime) {
  auto f = [](const Tensor& x) { return ((x * 3).sin() + x).tanh() * 2; };
  graph::native::forget_entries();
  auto shared = compile(f, {.backend = "native"});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      NoGrad no_grad;
      Tensor x = mixed_numbers({40'000}, f64, t), wanted = f(x);
      auto own = compile(f, {.backend = "native"});
      for (int i = 0; i < 3; ++i) wrong += !identical(own(x), wanted) + !identical(shared(x), wanted);
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(library_stats().kernels, 1);
}

TEST_F(Native, BackendsThatAreNone) {
  EXPECT_THROW(compile([](const Tensor& x) { return x; }, {.backend = "nativ"}), ValueError);
}

// Random expressions over all kinds of operands.
TEST_F(Native, RandomExpressions) {
  using Unary = Tensor (*)(const Tensor&);
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const Unary unary[] = {exp,  log,   sin,  cos,   tanh,  sigmoid, sqrt, abs,   neg,  erf,   log1p, expm1,
                         relu, floor, ceil, round, trunc, sign,    atan, isnan, silu, isinf, square};
  const Binary binary[] = {add, sub, mul,   div,   maximum,    minimum, lt,      ge,
                           eq,  ne,  atan2, hypot, logical_or, fmax,    copysign};
  const DType dtypes[] = {f32, f32, f32, f64, f64, bf16, f16, i64, i32, u8, boolean};
  const Shape shapes[] = {{4, 19}, {4, 19}, {19}, {4, 1}, {}};
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("expression " + std::to_string(seed));
    auto f = [&](const TensorList& given) {
      std::mt19937_64 random(seed);
      TensorList values = given;
      for (int i = 0; i < 12; ++i) {
        Tensor a = values[random() % values.size()], b = values[random() % values.size()];
        size_t which = random() % 3, one = random() % std::size(unary), two = random() % std::size(binary);
        try {
          values.push_back(which == 0   ? unary[one](a)
                           : which == 1 ? binary[two](a, b)
                                        : a.to(dtypes[random() % 7]) * 0.5);
        } catch (const Error&) {
          values.push_back(a * 1);  // bools have no difference, say
        }
      }
      return TensorList(values.begin() + static_cast<std::ptrdiff_t>(given.size()), values.end());
    };
    auto forms = [&](uint64_t which) {
      std::mt19937_64 random(seed * 77);
      TensorList list;
      for (int i = 0; i < 4; ++i) {
        Shape sizes = shapes[random() % std::size(shapes)];
        DType dtype = dtypes[random() % std::size(dtypes)];
        list.push_back(mixed_numbers(sizes, dtype, which * 1000 + seed * 10 + static_cast<uint64_t>(i)));
      }
      return list;
    };
    compare(f, forms(1), forms(2), false);
    if (HasFailure()) return;
  }
}

// Operators that are another's formula under a name of their own, between others.
TEST_F(Native, OperatorsThatHaveAnothersFormula) {
  auto f = [](Tensor x, const Tensor& y) {
    Tensor mask = x > 0, h = x * 2, written = x * 3;
    written.masked_fill_(mask, -1);
    return TensorList{h.masked_fill(mask, -0.5) * y, tril(h) + y, triu(h, 1) - y, written * y,
                      outer(x[0], y[0]).sin() * h};
  };
  auto compiled = compile(f, {.backend = "native"});
  for (int64_t turn = 0; turn < 3; ++turn)
    for (DType dtype : {f32, f64}) {
      TensorList found[2];
      auto run = [&](auto& g, TensorList& list) {
        manual_seed(static_cast<uint64_t>(turn));
        Tensor x = randn({5, 5}, {.dtype = dtype}).requires_grad_(),
               y = randn({5, 5}, {.dtype = dtype}).requires_grad_();
        list = g(x, y);
        Tensor sum = zeros({}, {.dtype = dtype});
        for (const Tensor& t : list) sum = sum + t.square().sum();
        sum.backward();
        list.push_back(x.grad()), list.push_back(y.grad());
      };
      run(f, found[0]), run(compiled, found[1]);
      for (size_t i = 0; i < found[0].size(); ++i) EXPECT_TRUE(identical(found[1][i], found[0][i])) << turn << ' ' << i;
    }
  EXPECT_EQ(compiled.stats().runs, 4) << compiled.explain();
}

}  // namespace
}  // namespace tutti::test
