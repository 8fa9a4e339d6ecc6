// Reductions against plain loops: shapes, memory layouts, dtypes, special values, gradients, errors.
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "tests/ops/numbers.h"
#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"

namespace tutti::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Complex = std::complex<double>;
using Values = std::vector<Complex>;
using Reference = std::function<Complex(const Values&)>;

// Numbers without a pattern, the same each time.
Tensor reduce_numbers(const Shape& sizes, DType dtype = f64, double low = -2, double high = 2) {
  std::vector<double> v(static_cast<size_t>(sizes.product()));
  uint64_t state = 12345;
  for (double& x : v) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x = low + (high - low) * static_cast<double>(state >> 40) / 16777216.0;
  }
  Tensor t = reshape(tensor(v), sizes);
  if (is_complex(dtype)) t = complex(t, flatten(t).numel() ? reshape(roll(flatten(t), 1), sizes) : t);
  return t.to(dtype);
}

// The elements that go into each result, results and elements in row-major order.
std::vector<Values> groups(const Tensor& x, const Shape& dims) {
  auto all = x.to_vector<Complex>();
  Shape reduced = Shape::filled(x.sizes().size(), dims.empty() ? 1 : 0);
  for (int64_t d : dims) reduced[static_cast<size_t>(d < 0 ? d + x.dim() : d)] = 1;
  int64_t results = 1;
  for (size_t d = 0; d < x.sizes().size(); ++d) results *= reduced[d] ? 1 : x.sizes()[d];
  std::vector<Values> out(static_cast<size_t>(results));
  for (size_t i = 0; i < all.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), at = 0, scale = 1;
    for (size_t d = x.sizes().size(); d-- > 0;) {
      int64_t index = rest % x.sizes()[d];
      rest /= x.sizes()[d];
      if (reduced[d]) continue;
      at += index * scale;
      scale *= x.sizes()[d];
    }
    out[static_cast<size_t>(at)].push_back(all[i]);
  }
  return out;
}

testing::AssertionResult agrees(const Tensor& got, const Tensor& x, const Shape& dims, const Reference& f,
                                double tolerance) {
  auto values = got.to_vector<Complex>();
  auto wanted = groups(x, dims);
  if (values.size() != wanted.size())
    return testing::AssertionFailure() << values.size() << " results, not " << wanted.size();
  for (size_t i = 0; i < values.size(); ++i) {
    Complex w = f(wanted[i]);
    bool same_nan = std::isnan(w.real()) && std::isnan(values[i].real());
    if (same_nan || values[i] == w || std::abs(values[i] - w) <= tolerance * (1 + std::abs(w))) continue;
    return testing::AssertionFailure() << "result " << i << " is " << values[i] << ", not " << w << " for "
                                       << describe(x) << " over " << to_string(dims);
  }
  return testing::AssertionSuccess();
}

Complex plain_sum(const Values& v) { return std::accumulate(v.begin(), v.end(), Complex(0)); }
Complex plain_mean(const Values& v) { return plain_sum(v) / static_cast<double>(v.size()); }
Complex plain_prod(const Values& v) { return std::accumulate(v.begin(), v.end(), Complex(1), std::multiplies<>()); }
Complex plain_max(const Values& v) {
  double best = v[0].real();
  for (Complex x : v) best = std::isnan(best) || best > x.real() ? best : x.real();
  return best;
}
Complex plain_min(const Values& v) {
  double best = v[0].real();
  for (Complex x : v) best = std::isnan(best) || best < x.real() ? best : x.real();
  return best;
}
Reference plain_norm(double p) {
  return [p](const Values& v) -> Complex {
    double most = 0, least = kInf, count = 0, total = 0;
    for (Complex x : v) {
      most = std::max(most, std::abs(x));
      least = std::min(least, std::abs(x));
      count += x != 0.0;
      total += std::pow(std::abs(x), p);
    }
    return p == 0 ? count : p == kInf ? most : p == -kInf ? least : std::pow(total, 1 / p);
  };
}
Reference plain_var(double correction) {
  return [correction](const Values& v) -> Complex {
    Complex m = plain_mean(v);
    double total = 0;
    for (Complex x : v) total += std::norm(x - m);
    return total / (static_cast<double>(v.size()) - correction);
  };
}
Complex plain_logsumexp(const Values& v) {
  double total = 0, top = plain_max(v).real();
  for (Complex x : v) total += std::exp(x.real() - top);
  return top + std::log(total);
}

struct LayoutCase {
  const char* name;
  Tensor x;
};
std::vector<LayoutCase> layout_cases(DType dtype) {
  return {
      {"plain", reduce_numbers({3, 5, 7, 4}, dtype)},
      {"channels last", reduce_numbers({3, 5, 7, 4}, dtype).contiguous(MemoryFormat::channels_last)},
      {"permuted", permute(reduce_numbers({4, 3, 7, 5}, dtype), {1, 3, 2, 0})},
      {"stepped", slice(reduce_numbers({3, 5, 7, 9}, dtype), 3, 1, {}, 2)},
      {"stepped inside", slice(reduce_numbers({3, 10, 7, 4}, dtype), 1, 0, {}, 2)},
      {"expanded", expand(reduce_numbers({3, 1, 7, 1}, dtype), {3, 5, 7, 4})},
      {"windows", reshape(unfold(reduce_numbers({3, 5, 10}, dtype), 2, 4, 1), {3, 5, 7, 4})},
      {"overlapping", unfold(reduce_numbers({3, 5, 10}, dtype), 2, 4, 1)},
      {"large", reduce_numbers({2, 70, 3, 130}, dtype)},
      {"long rows", reduce_numbers({3, 20000}, dtype)},
      {"long columns", reduce_numbers({20000, 3}, dtype)},
      {"wide", reduce_numbers({5, 1500}, dtype)},
      {"one", reduce_numbers({1, 1, 1}, dtype)},
  };
}
std::vector<Shape> dims_of(const Tensor& x) {
  if (x.dim() == 2) return {{}, {0}, {1}, {-1}};
  if (x.dim() == 3) return {{}, {1}, {0, 2}};
  return {{}, {0}, {1}, {2}, {-1}, {0, 1}, {2, 3}, {0, 2}, {1, 3}, {0, 3}, {0, 2, 3}, {0, 1, 2}, {0, 1, 2, 3}};
}

TEST(Reduce, AgreesWithLoopsInEveryLayout) {
  for (const auto& [name, x] : layout_cases(f64))
    for (const Shape& dims : dims_of(x)) {
      SCOPED_TRACE(name);
      EXPECT_TRUE(agrees(sum(x, dims), x, dims, plain_sum, 1e-11));
      EXPECT_TRUE(agrees(mean(x, dims), x, dims, plain_mean, 1e-12));
      EXPECT_TRUE(agrees(amax(x, dims), x, dims, plain_max, 0));
      EXPECT_TRUE(agrees(amin(x, dims), x, dims, plain_min, 0));
      EXPECT_TRUE(agrees(prod(1 + 0.001 * x, dims), (1 + 0.001 * x).contiguous(), dims, plain_prod, 1e-10));
      EXPECT_TRUE(agrees(norm(x, 2, dims), x, dims, plain_norm(2), 1e-12));
      EXPECT_TRUE(agrees(var(x, dims, false, 0), x, dims, plain_var(0), 1e-12));
      EXPECT_TRUE(agrees(logsumexp(x, dims), x, dims, plain_logsumexp, 1e-12));
      EXPECT_TRUE(agrees(count_nonzero(x > 0, dims), x > 0, dims, plain_sum, 0));
    }
}

TEST(Reduce, AgreesWithLoopsInEveryDtype) {
  for (DType t : {f32, f64, bf16, f16, i8, u8, i16, i32, i64, boolean, c64, c128}) {
    double tolerance = t == bf16 ? 1e-2 : t == f16 ? 1e-3 : t == f64 || t == c128 ? 1e-12 : 1e-5;
    for (const Tensor& x : {reduce_numbers({3, 5, 6}, t, 0, 3), reduce_numbers({40, 9}, t, 0, 3),
                            permute(reduce_numbers({70, 6}, t, 0, 3), {1, 0})})
      for (const Shape& dims : {Shape{}, Shape{0}, Shape{-1}}) {
        SCOPED_TRACE(describe(x));
        EXPECT_TRUE(agrees(sum(x, dims), x, dims, plain_sum, tolerance));
        EXPECT_EQ(sum(x).dtype(), category(t) < Category::floating ? i64 : t);
        EXPECT_TRUE(agrees(sum(x, dims, false, c128), x, dims, plain_sum, 1e-12));
        auto nonzero = [](const Values& v) -> Complex {
          return std::count_if(v.begin(), v.end(), [](Complex c) { return c != 0.0; });
        };
        EXPECT_TRUE(agrees(count_nonzero(x, dims), x, dims, nonzero, 0));
        EXPECT_TRUE(agrees(all(x, dims), x, dims, [&](const Values& v) { return nonzero(v) == Complex(v.size()); }, 0));
        EXPECT_TRUE(agrees(any(x, dims), x, dims, [&](const Values& v) { return nonzero(v) != 0.0; }, 0));
        if (!is_complex(t)) {
          EXPECT_TRUE(agrees(amax(x, dims), x, dims, plain_max, 0));
          EXPECT_EQ(amin(x, dims).dtype(), t);
        }
        if (category(t) < Category::floating) continue;
        EXPECT_TRUE(agrees(mean(x, dims), x, dims, plain_mean, tolerance));
        EXPECT_TRUE(agrees(var(x, dims), x, dims, plain_var(1), tolerance));
        EXPECT_EQ(var(x).dtype(), to_real(t) == f32 && !is_complex(t) ? t : to_real(t));
        for (double p : {0.0, 1.0, 2.0, 3.0, t == f16 ? 1.5 : 0.5, kInf, -kInf})
          EXPECT_TRUE(agrees(norm(x, p, dims), x, dims, plain_norm(p), 4 * tolerance)) << "p = " << p;
      }
  }
}

TEST(Reduce, ProductsInEveryDtype) {
  for (DType t : {f32, f64, bf16, f16, i8, u8, i16, i32, i64, boolean, c64, c128}) {
    Tensor x = reduce_numbers({3, 4, 2}, t, 0, 3);
    double tolerance = t == bf16 ? 2e-2 : t == f16 ? 3e-3 : 1e-4;
    for (const Shape& dims : {Shape{1}, Shape{0, 2}, Shape{2}})
      EXPECT_TRUE(agrees(prod(x, dims), x, dims, plain_prod, tolerance)) << describe(x);
  }
  EXPECT_EQ(prod(tensor({3, 5}, {i8})).item<int64_t>(), 15);
  EXPECT_EQ(prod(full({40}, 3, {i8})).dtype(), i64);
}

TEST(Reduce, ShapesAndKeepdim) {
  Tensor x = reduce_numbers({2, 1, 3});
  EXPECT_EQ(sum(x, {0, 2}).sizes(), Shape({1}));
  EXPECT_EQ(sum(x, {-1, 0}, true).sizes(), Shape({1, 1, 1}));
  EXPECT_EQ(sum(x, 1).sizes(), Shape({2, 3}));
  EXPECT_EQ(sum(tensor(3.5), 0).item<double>(), 3.5);
  EXPECT_EQ(sum(tensor(3.5), -1, true).dim(), 0);
  EXPECT_EQ(argmax(x, {}, true).sizes(), Shape({1, 1, 1}));
  EXPECT_EQ(max(x, 2).values.sizes(), Shape({2, 1}));
  EXPECT_EQ(max(x, 2, true).indices.sizes(), Shape({2, 1, 1}));
  EXPECT_TRUE(sum(permute(x, {2, 0, 1}), 1).is_contiguous());
  Tensor meta = empty({4, 5}, {.dtype = bf16, .device = "meta"});
  EXPECT_EQ(sum(meta, 0).sizes(), Shape({5}));
  EXPECT_EQ(softmax(meta, 0).dtype(), bf16);
  EXPECT_EQ(max(meta, 1).indices.dtype(), i64);
}

TEST(Reduce, EmptyInputs) {
  Tensor none = zeros({0, 3});
  EXPECT_THAT(values(sum(none, 0)), ElementsAre(0, 0, 0));
  EXPECT_THAT(values(prod(none, 0)), ElementsAre(1, 1, 1));
  EXPECT_TRUE(std::isnan(mean(none).item<double>()));
  EXPECT_TRUE(all(none).item<bool>());
  EXPECT_FALSE(any(none).item<bool>());
  EXPECT_EQ(norm(none).item<double>(), 0);
  EXPECT_EQ(logsumexp(none).item<double>(), -kInf);
  EXPECT_TRUE(std::isnan(var(none).item<double>()));
  EXPECT_TRUE(std::isnan(var(ones({1})).item<double>()));
  EXPECT_EQ(var(ones({1}), {}, false, 0).item<double>(), 0);
  EXPECT_EQ(sum(none, 1).sizes(), Shape({0}));
  EXPECT_EQ(amax(none, 1).sizes(), Shape({0}));
  EXPECT_EQ(max(none, 1).indices.sizes(), Shape({0}));
  EXPECT_EQ(softmax(none, 0).sizes(), none.sizes());
  EXPECT_EQ(cumsum(none, 0).sizes(), none.sizes());
  EXPECT_EQ(sum(zeros({0}, {c64})).dtype(), c64);
}

TEST(Reduce, NaNIsTheLargestAndTheSmallest) {
  for (int64_t n : {3, 40, 500, 70000}) {
    Tensor x = reduce_numbers({n}, f32);
    x.data<float>()[n / 2] = static_cast<float>(kNaN);
    x.data<float>()[n - 1] = static_cast<float>(kNaN);
    EXPECT_TRUE(std::isnan(amax(x).item<double>()));
    EXPECT_TRUE(std::isnan(amin(x).item<double>()));
    EXPECT_EQ(argmax(x).item<int64_t>(), n / 2);
    EXPECT_EQ(argmin(x).item<int64_t>(), n / 2);
    Tensor columns = stack({x, flip(x, 0), ones({n})}, 1);
    EXPECT_THAT(values(argmax(columns, 0)), ElementsAre(static_cast<double>(n / 2), 0, 0));
    EXPECT_THAT(values(min(columns, 0).indices), ElementsAre(static_cast<double>(n / 2), 0, 0));
    EXPECT_TRUE(std::isnan(max(columns, 0).values[0].item<double>()));
    EXPECT_TRUE(std::isnan(sum(x).item<double>()));
  }
}

TEST(Reduce, IndicesAreThoseOfTheFirst) {
  Tensor x = tensor({{1, 3, 3}, {2, 2, 2}, {5, 0, 0}});
  EXPECT_THAT(values(argmax(x, 1)), ElementsAre(1, 0, 0));
  EXPECT_THAT(values(argmin(x, 1)), ElementsAre(0, 0, 1));
  EXPECT_THAT(values(argmax(x, 0)), ElementsAre(2, 0, 0));
  EXPECT_EQ(argmax(x.t()).item<int64_t>(), 2);
  for (DType t : {f32, f64, bf16, i32, u8, boolean})
    for (const Tensor& y : {reduce_numbers({70, 40}, t, 0, 9), reduce_numbers({40, 70}, t, 0, 9).t(),
                            slice(reduce_numbers({70, 80}, t, 0, 9), 1, 1, {}, 2),
                            reduce_numbers({3, 70000}, t, 0, 900), reduce_numbers({70000, 3}, t, 0, 900)})
      for (int64_t dim : {0, 1}) {
        auto [v, i] = max(y, dim);
        EXPECT_TRUE(identical(v, amax(y, dim)));
        EXPECT_TRUE(identical(i, argmax(y, dim)));
        auto first = [](const Values& list) {
          double top = plain_max(list).real();
          return Complex(std::find_if(list.begin(), list.end(), [&](Complex c) { return c.real() == top; }) -
                         list.begin());
        };
        EXPECT_TRUE(agrees(i, y, dim, first, 0));
        EXPECT_TRUE(identical(min(y, dim).values, amin(y, dim)));
      }
}

TEST(Reduce, SumsOfManyFloatsAreAccurate) {
  int64_t n = 3000001;
  Tensor x = full({n}, 0.1, {f32});
  double exact = static_cast<double>(n) * static_cast<double>(0.1f);
  EXPECT_NEAR(sum(x).item<double>(), exact, exact * 1e-6);
  EXPECT_NEAR(sum(expand(full({1}, 0.1, {f32}), {n})).item<double>(), exact, exact * 1e-6);
  Tensor columns = full({1000001, 3}, 0.1, {f32});
  for (double v : values(mean(columns, 0))) EXPECT_NEAR(v, 0.1f, 3e-8);
  // Far from zero, where squares alone would cancel.
  Tensor shifted = reduce_numbers({100000}, f64) + 1e6;
  EXPECT_TRUE(agrees(var(shifted), shifted, {}, plain_var(1), 1e-9));
  EXPECT_NEAR(var(tensor({1e8 + 1, 1e8 + 2, 1e8 + 3}, {f64})).item<double>(), 1, 1e-9);
  EXPECT_NEAR(norm(full({4}, 1e30, {f32})).item<double>(), 2e30, 1e24);
}

TEST(Reduce, ResultsDoNotDependOnThreads) {
  auto everything = [](const Tensor& x) {
    TensorList out = {sum(x),
                      sum(x, 0),
                      sum(x, 1),
                      mean(x, 0),
                      prod(x, 1),
                      norm(x),
                      norm(x, 3),
                      var(x, 0),
                      var(x),
                      amax(x),
                      max(x, 0).indices,
                      argmin(x),
                      softmax(x, 0),
                      softmax(x, 1),
                      log_softmax(x, 1),
                      logsumexp(x, 0),
                      cumsum(x, 0),
                      cumprod(x, 1),
                      sum(x.t(), 0),
                      sum(x.to(bf16), 1),
                      sum(x.to(c64)),
                      count_nonzero(x, 1)};
    return out;
  };
  for (const Shape& sizes : {Shape{700, 900}, Shape{3, 150001}, Shape{150001, 5}}) {
    Tensor x = reduce_numbers(sizes, f32);
    TensorList one;
    {
      ThreadsGuard guard(1);
      one = everything(x);
    }
    for (int threads : {2, 3, 5}) {
      ThreadsGuard guard(threads);
      TensorList many = everything(x);
      for (size_t i = 0; i < one.size(); ++i)
        EXPECT_TRUE(identical(many[i], one[i])) << i << " with " << threads << " threads";
    }
  }
}

TEST(Reduce, LinesAlongADim) {
  for (DType t : {f32, f64, bf16, i32, boolean, c64, c128})
    for (const Tensor& x :
         {reduce_numbers({3, 17, 5}, t, 0, 2), permute(reduce_numbers({5, 17, 3}, t, 0, 2), {2, 1, 0})})
      for (int64_t dim : {0, 1, 2}) {
        Tensor s = cumsum(x, dim), p = cumprod(x, dim);
        EXPECT_EQ(s.dtype(), category(t) < Category::floating ? i64 : t);
        double tolerance = t == bf16 ? 4e-2 : 1e-5;
        for (int64_t k = 0; k < x.size(dim); ++k) {
          Tensor part = narrow(x, dim, 0, k + 1);
          EXPECT_TRUE(agrees(select(s, dim, k), part, dim, plain_sum, tolerance));
          EXPECT_TRUE(agrees(select(p, dim, k), part, dim, plain_prod, tolerance));
        }
      }
  EXPECT_EQ(cumsum(tensor(2.5), 0).item<double>(), 2.5);
}

// ---- softmax

TEST(Softmax, AgreesWithLoops) {
  std::vector<Tensor> inputs = {reduce_numbers({3, 5, 7, 4}),
                                reduce_numbers({3, 5, 7, 4}).contiguous(MemoryFormat::channels_last),
                                permute(reduce_numbers({4, 3, 7, 5}), {1, 3, 2, 0}),
                                slice(reduce_numbers({3, 5, 7, 9}), 3, 1, {}, 2),
                                expand(reduce_numbers({3, 1, 7, 4}), {3, 5, 7, 4}),
                                reduce_numbers({2, 9000}),
                                reduce_numbers({9000, 20}),
                                reduce_numbers({300, 270})};
  for (DType t : {f32, f64, bf16, f16})
    for (const Tensor& input : inputs)
      for (int64_t dim = 0; dim < input.dim(); ++dim) {
        Tensor x = input.dtype() == t ? input : input.to(t);
        Tensor wide = x.to(f64), top = amax(wide, dim, true), e = exp(wide - top), total = sum(e, dim, true);
        double tolerance = t == bf16 ? 1e-2 : t == f16 ? 2e-3 : t == f32 ? 1e-5 : 1e-12;
        EXPECT_TRUE(close(softmax(x, dim), e / total, tolerance)) << describe(x) << " along " << dim;
        EXPECT_TRUE(close(log_softmax(x, dim), wide - top - log(total), tolerance)) << describe(x) << " along " << dim;
      }
}

TEST(Softmax, Infinities) {
  Tensor x = tensor({{-kInf, -kInf, -kInf}, {0.0, -kInf, 0.0}, {kInf, 0.0, 1.0}});
  Tensor y = softmax(x, 1), l = log_softmax(x, 1), s = logsumexp(x, 1);
  EXPECT_TRUE(all(isnan(y[0])).item<bool>());
  EXPECT_THAT(values(y[1]), ElementsAre(0.5, 0, 0.5));
  EXPECT_TRUE(std::isnan(y[2][0].item<double>()));
  EXPECT_EQ(l[1][1].item<double>(), -kInf);
  EXPECT_TRUE(all(isnan(l[0])).item<bool>());
  EXPECT_EQ(s[0].item<double>(), -kInf);
  EXPECT_NEAR(s[1].item<double>(), std::log(2.0), 1e-6);
  EXPECT_EQ(s[2].item<double>(), kInf);
  EXPECT_TRUE(identical(softmax(x.t(), 0).t().contiguous(), y));
  EXPECT_THAT(values(logsumexp(x.t().contiguous(), 0)), ElementsAre(-kInf, s[1].item<double>(), kInf));
  EXPECT_NEAR(logsumexp(tensor({1000.0, 1000.0})).item<double>(), 1000 + std::log(2.0), 1e-4);
  Tensor leaf = full({2, 2}, -kInf).requires_grad_();
  EXPECT_THAT(values(grad({logsumexp(leaf, 1)}, {leaf}, {}, {ones({2})})[0]), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(softmax(tensor(3.0), 0).item<double>(), 1);
}

TEST(Softmax, KeepsTheMemoryOrder) {
  Tensor x = reduce_numbers({2, 3, 4, 5}, f32).contiguous(MemoryFormat::channels_last);
  EXPECT_EQ(softmax(x, 1).strides(), x.strides());
  EXPECT_TRUE(softmax(slice(x, 2, 0, {}, 2), 1).is_contiguous());
}

// ---- Gradients

using DifferentiableFunction = std::function<Tensor(const Tensor&)>;
void expect_gradients(const DifferentiableFunction& f, const Tensor& x) {
  auto body = [&](const TensorList& in) { return TensorList{f(in[0])}; };
  Tensor leaf = x.detach().clone().requires_grad_();
  EXPECT_TRUE(gradcheck(body, {leaf}));
  EXPECT_TRUE(gradgradcheck(body, {leaf}));
}

TEST(ReduceGradient, OfEachOperator) {
  for (DType t : {f64, c128}) {
    Tensor x = reduce_numbers({2, 3, 2}, t);
    expect_gradients([](const Tensor& v) { return sum(v, {0, 2}); }, x);
    expect_gradients([](const Tensor& v) { return mean(v, 1, true); }, x);
    expect_gradients([](const Tensor& v) { return prod(v, {0, 2}); }, x);
    expect_gradients([](const Tensor& v) { return cumsum(v, 1); }, x);
    expect_gradients([](const Tensor& v) { return cumprod(v, 1); }, x);
    expect_gradients([](const Tensor& v) { return norm(v, 2, {0, 1}); }, x);
    expect_gradients([](const Tensor& v) { return norm(v, 1.5, 2, true); }, x);
    expect_gradients([](const Tensor& v) { return norm(v, 3); }, x);
    expect_gradients([](const Tensor& v) { return var(v, {0, 1}); }, x);
    expect_gradients([](const Tensor& v) { return stddev(v, 1, true, 0); }, x);
  }
  Tensor x = reduce_numbers({3, 4, 2});
  expect_gradients([](const Tensor& v) { return amax(v, {0, 2}); }, x);
  expect_gradients([](const Tensor& v) { return amin(v); }, x);
  expect_gradients([](const Tensor& v) { return max(v, 1).values; }, x);
  expect_gradients([](const Tensor& v) { return min(v, -1, true).values; }, x);
  expect_gradients([](const Tensor& v) { return norm(v, kInf, 0); }, x);
  expect_gradients([](const Tensor& v) { return logsumexp(v, {0, 2}); }, x);
  for (int64_t dim : {0, 1, 2}) {
    expect_gradients([&](const Tensor& v) { return softmax(v, dim); }, x);
    expect_gradients([&](const Tensor& v) { return log_softmax(v, dim); }, x);
  }
}

TEST(ReduceGradient, OfProductsWithZeros) {
  for (const Tensor& x :
       {tensor({{2.0, 0.0, 3.0}, {1.0, 2.0, 4.0}}, {f64}), tensor({{0.0, 5.0, 0.0}, {0.0, 0.0, 0.0}}, {f64})}) {
    expect_gradients([](const Tensor& v) { return prod(v, 1); }, x);
    expect_gradients([](const Tensor& v) { return prod(v); }, x);
    expect_gradients([](const Tensor& v) { return cumprod(v, 1); }, x);
    expect_gradients([](const Tensor& v) { return cumprod(v, 0); }, x);
    expect_gradients([](const Tensor& v) { return prod(complex(v, v * 2), 1); }, x);
  }
  Tensor leaf = tensor({2.0, 0.0, 3.0}).requires_grad_();
  prod(leaf).backward();
  EXPECT_THAT(values(leaf.grad()), ElementsAre(0, 6, 0));
}

TEST(ReduceGradient, OfTies) {
  auto gradient = [](const DifferentiableFunction& f, const Tensor& x) {
    Tensor leaf = x.clone().requires_grad_();
    f(leaf).backward();
    return values(leaf.grad());
  };
  Tensor x = tensor({3.0, 1.0, 3.0});
  EXPECT_THAT(gradient([](const Tensor& v) { return amax(v); }, x), ElementsAre(0.5, 0, 0.5));
  EXPECT_THAT(gradient([](const Tensor& v) { return max(v); }, x), ElementsAre(0.5, 0, 0.5));
  EXPECT_THAT(gradient([](const Tensor& v) { return max(v, 0).values; }, x), ElementsAre(1, 0, 0));
  EXPECT_THAT(gradient([](const Tensor& v) { return norm(v, kInf); }, x), ElementsAre(0.5, 0, 0.5));
  Tensor nothing = zeros({3});
  for (double p : {0.0, 1.0, 2.0, 3.0, 0.5})
    EXPECT_THAT(gradient([&](const Tensor& v) { return norm(v, p); }, nothing), ElementsAre(0, 0, 0));
  EXPECT_THAT(gradient([&](const Tensor& v) { return stddev(v); }, ones({3})), ElementsAre(0, 0, 0));
  EXPECT_THAT(gradient([&](const Tensor& v) { return max(v, 0).values; }, tensor(2.0)), ElementsAre(1));
}

// Where the first derivative is taken to be 0, the second is too.
TEST(ReduceGradient, SecondDerivativesOfNormsOfZero) {
  auto second = [](const DifferentiableFunction& f, const Tensor& x) {
    Tensor leaf = x.clone().requires_grad_();
    Tensor first = grad({f(leaf)}, {leaf}, {.create_graph = true})[0];
    return values(grad({first.sum()}, {leaf})[0]);
  };
  for (double p : {1.5, 2.0, 3.0})
    EXPECT_THAT(second([&](const Tensor& v) { return norm(v, p); }, zeros({3})), ElementsAre(0, 0, 0)) << "p = " << p;
  EXPECT_THAT(second([&](const Tensor& v) { return stddev(v); }, ones({3})), ElementsAre(0, 0, 0));
}

// ---- Errors

TEST(ReduceErrors, SayWhatIsWrongAndWhatToDo) {
  Tensor x = zeros({2, 3}), ints = zeros({2, 3}, {i32});
  EXPECT_THAT(message_of<ShapeError>([&] { sum(x, {1, -1}); }),
              testing::AllOf(HasSubstr("sum: dim -1"), HasSubstr("twice")));
  EXPECT_THAT(message_of<IndexError>([&] { mean(x, 2); }), HasSubstr("mean: dim 2 is out of range"));
  EXPECT_THAT(message_of<DTypeError>([&] { mean(ints); }),
              testing::AllOf(HasSubstr("mean"), HasSubstr("i32"), HasSubstr("x.to(f32)")));
  EXPECT_THAT(message_of<DTypeError>([&] { mean(x, 0, false, i64); }), HasSubstr("i64"));
  EXPECT_EQ(mean(ints, {}, false, f64).dtype(), f64);
  EXPECT_THAT(message_of<DTypeError>([&] { sum(zeros({2}, {c64}), 0, false, f32); }), HasSubstr("imaginary"));
  EXPECT_THAT(message_of<DTypeError>([&] { softmax(ints, 0); }), HasSubstr("softmax: needs floating-point"));
  EXPECT_THAT(message_of<DTypeError>([&] { var(ints); }), HasSubstr("var: needs floating-point"));
  EXPECT_THAT(message_of<DTypeError>([&] { norm(ints); }), HasSubstr("norm"));
  EXPECT_THAT(message_of<DTypeError>([&] { amax(zeros({2}, {c64})); }), HasSubstr("no order"));
  EXPECT_THAT(message_of<DTypeError>([&] { argmin(zeros({2}, {c128}), 0); }), HasSubstr("argmin"));
  EXPECT_THAT(message_of<ShapeError>([&] { amax(zeros({0, 3})); }),
              testing::AllOf(HasSubstr("amax"), HasSubstr("[0, 3]")));
  EXPECT_THAT(message_of<ShapeError>([&] { max(zeros({0, 3}), 0); }), HasSubstr("max"));
  EXPECT_THAT(message_of<ShapeError>([&] { argmax(zeros({0})); }), HasSubstr("argmax"));
  EXPECT_THAT(message_of<ShapeError>([&] { norm(zeros({0}), kInf); }), HasSubstr("norm"));
  EXPECT_THAT(message_of<ValueError>([&] { norm(x, kNaN); }), HasSubstr("order"));
  EXPECT_THAT(message_of<ValueError>([&] { sum(Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(message_of<IndexError>([&] { cumsum(x, -3); }), HasSubstr("cumsum"));
}

}  // namespace
}  // namespace tutti::test
