// The checks of the table find what they are there for: operators with a fault each, and the same without.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "tests/support/table.h"
#include "tutti/autograd.h"

namespace tutti::test {
namespace {

// What a check has to say of a row; empty where it finds nothing.
std::string findings(void (*check)(const Row&), const Row& row) {
  testing::TestPartResultArray results;
  {
    testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    try {
      check(row);
    } catch (const std::exception& e) {
      return e.what();
    }
  }
  std::string text;
  for (int i = 0; i < results.size(); ++i)
    if (results.GetTestPartResult(i).failed()) text += results.GetTestPartResult(i).message();
  return text;
}

Row unary(Tensor (*f)(const Tensor&)) {
  return row("relu", [f](In x) -> Out { return {f(x[0])}; }, {{value({2, 3})}}).takes(kFloat);
}

// The square, by a gradient that can be derived again or not.
template <bool Detached>
struct Square : Function<Square<Detached>> {
  Tensor forward(const Tensor& x) {
    this->save(x);
    return x * x;
  }
  TensorList backward(const TensorList& g) {
    Tensor slope = g[0] * this->saved(0) * 2;
    return {Detached ? slope.detach() : slope};
  }
};

TEST(Checks, OfSecondGradients) {
  Row good = unary([](const Tensor& x) { return Square<false>::apply(x); });
  Row forgotten = unary([](const Tensor& x) { return Square<true>::apply(x); });
  EXPECT_EQ(findings(check_second_gradient, good), "");
  EXPECT_EQ(findings(check_gradient, forgotten), "");
  EXPECT_NE(findings(check_second_gradient, forgotten).find("the gradient has no gradient"), std::string::npos);
  EXPECT_EQ(findings(check_second_gradient, forgotten.constant_gradient()), "");  // who says so has looked at it
  EXPECT_NE(findings(check_second_gradient, good.constant_gradient()).find("but the gradient has one"),
            std::string::npos);
}

TEST(Checks, OfDTypes) {
  auto row_of = [](std::function<Tensor(const Tensor&)> f) {
    return row("relu", [f](In x) -> Out { return {f(x[0])}; }, {{value({2, 3})}}).takes(kNumber);
  };
  auto widens = [](const Tensor& x) { return x.dtype() == i8 ? x.to(i16) : x * 1; };
  EXPECT_EQ(findings(check_dtypes, row_of([](const Tensor& x) { return x * 1; })), "");
  EXPECT_NE(findings(check_dtypes, row_of(widens)).find("dtype of output 0"), std::string::npos);
}

TEST(Checks, OfLayouts) {
  // Reads memory as if it were contiguous.
  Row careless = unary([](const Tensor& x) { return as_strided(x, x.sizes(), {x.size(1), 1}) * 1; });
  EXPECT_NE(findings(check_layouts, careless), "");
  EXPECT_EQ(findings(check_layouts, unary([](const Tensor& x) { return x * 1; })), "");
  // Goes wrong in one dtype only.
  Row once = unary([](const Tensor& x) { return x.dtype() == bf16 && !x.is_contiguous() ? x * 2 : x * 1; });
  EXPECT_NE(findings(check_layouts, once), "");
  Row meta = unary([](const Tensor& x) { return x.dtype() == f16 && x.device().is_meta() ? x.t() * 1 : x * 1; });
  EXPECT_NE(findings(check_meta, meta), "");
}

TEST(Checks, OfReferencesAtSpecialValues) {
  Row r = POINTWISE(relu).reference([](In x) -> Out { return {where(lt(x[0], 0), 0, x[0])}; });
  EXPECT_EQ(findings(check_special, r), "");
  r.reference([](In x) -> Out { return {where(gt(x[0], 0), x[0], 0)}; });  // loses NaN
  EXPECT_NE(findings(check_special, r), "");
}

TEST(Checks, OfCreation) {
  auto row_of = [](std::function<Out(const Options&)> f) { return row("ones", {}, {}).takes(kNumber).creates(f); };
  EXPECT_EQ(findings(check_created, row_of([](const Options& o) -> Out { return {ones({2}, o)}; })), "");
  EXPECT_NE(findings(check_created, row_of([](const Options& o) -> Out {
                       return {ones({2}, {.dtype = o.dtype == i8 ? i16 : o.dtype, .device = o.device})};
                     })),
            "");
  EXPECT_NE(findings(check_created, row_of([](const Options& o) -> Out { return {ones({2}, {.dtype = o.dtype})}; })),
            "");
}

TEST(Checks, OfMixedDTypes) {
  Row r = POINTWISE_PURE(maximum);
  EXPECT_EQ(findings(check_mixed, r), "");
  r.body = [](In x) -> Out { return {maximum(x[0], x[1].to(x[0].dtype()))}; };
  EXPECT_NE(findings(check_mixed, r), "");
}

}  // namespace
}  // namespace tutti::test
