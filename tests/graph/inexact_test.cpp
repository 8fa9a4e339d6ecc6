// CompileOptions::exact = false: close to eager, and said to be so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/isa.h"
#include "graph/backends/native/library.h"
#include "tests/support/compare.h"
#include "tutti/tutti.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// A polynomial, so that there are products to be added.
Tensor polynomial(const Tensor& x) { return (((x * 3 + 1) * x - 2) * x + 0.5) * x - 0.25; }

double largest_difference(const Tensor& a, const Tensor& b) {
  return (a.to(f64) - b.to(f64)).abs().amax().item<double>();
}

class Inexact : public testing::Test {
 protected:
  void SetUp() override {
    if (!graph::native::unavailable().empty()) GTEST_SKIP() << graph::native::unavailable();
  }
};

TEST_F(Inexact, ProductsAndSumsRoundOnce) {
  manual_seed(1);
  NoGrad no_grad;
  Tensor x = rand({100000}), wanted = polynomial(x.to(f64));
  auto exact = compile(polynomial, {.backend = "native"});
  auto quick = compile(polynomial, {.backend = "native", .exact = false});
  exact(x), quick(x);
  EXPECT_TRUE(identical(exact(x), polynomial(x)));
  Tensor got = quick(x);
  EXPECT_LT(largest_difference(got, wanted), 1e-6);
  if (best_isa() == Isa::base) return;  // which has no such operation
  EXPECT_FALSE(identical(got, polynomial(x)));
  EXPECT_THAT(quick.print({.assembly = true}), HasSubstr("vfmadd"));
  EXPECT_THAT(exact.print({.assembly = true}), Not(HasSubstr("vfmadd")));
}

TEST_F(Inexact, NarrowNumbersAreRoundedWhenTheyAreStored) {
  manual_seed(2);
  NoGrad no_grad;
  for (DType dtype : {bf16, f16}) {
    if (dtype == f16 && best_isa() == Isa::base) continue;
    Tensor x = rand({10001}).to(dtype), wanted = polynomial(x.to(f64));
    auto quick = compile(polynomial, {.backend = "native", .exact = false});
    quick(x);
    Tensor got = quick(x);
    EXPECT_EQ(got.dtype(), dtype);
    EXPECT_TRUE(identical(got, polynomial(x.to(f32)).to(dtype)) ||
                largest_difference(got, wanted) < largest_difference(polynomial(x), wanted));
    EXPECT_LT(largest_difference(got, wanted), dtype == bf16 ? 0.01 : 0.002);
  }
}

TEST_F(Inexact, IntegersAndTruthsAreTheSame) {
  NoGrad no_grad;
  auto f = [](const Tensor& x) { return where((x * 7 + 3) > x * x, x * 5 - 1, -x); };
  auto quick = compile(f, {.backend = "native", .exact = false});
  for (DType dtype : {i64, i32, i8, u8}) {
    Tensor x = arange(200, {.dtype = i64}).to(dtype);
    quick(x);
    EXPECT_TRUE(identical(quick(x), f(x)));
  }
}

TEST_F(Inexact, GradientsAreClose) {
  manual_seed(3);
  nn::Linear net(16, 32);
  auto loss = [&](const Tensor& x) { return polynomial(gelu(net(x))).tanh().mean(); };
  auto quick = compile(loss, {.backend = "native", .exact = false});
  for (int turn = 0; turn < 3; ++turn) {
    Tensor x = randn({64, 16}), got[2];
    net.zero_grad();
    loss(x).backward();
    got[0] = net.weight.grad().clone();
    net.zero_grad();
    quick(x).backward();
    got[1] = net.weight.grad();
    EXPECT_LT(largest_difference(got[1], got[0]), 1e-6);
  }
}

TEST(InexactPrints, SayIt) {
  NoGrad no_grad;
  for (bool exact : {true, false}) {
    auto f = compile(polynomial, {.backend = "eager", .exact = exact});
    f(ones({4}));
    bool text = f.print().find("inexact: bits may differ from eager's") != std::string::npos;
    bool page = f.html().find("<b>inexact</b>: bits may differ from eager's") != std::string::npos;
    EXPECT_EQ(text, !exact);
    EXPECT_EQ(page, !exact);
    EXPECT_TRUE(identical(f(ones({4})), polynomial(ones({4}))));  // operators themselves are what they are
  }
}

}  // namespace
}  // namespace tutti::test
