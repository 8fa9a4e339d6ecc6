// Complex<V> against the standard library's complex functions: random points of every size, both sides of every branch
// cut, and special values.
#include "tutti/pointwise/complex.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <random>
#include <vector>

#include "tutti/pointwise/dual.h"

namespace tutti::pointwise {
namespace {

using V = Vec<double, 1>;
using C = Complex<V>;
using Std = std::complex<double>;
using Long = std::complex<long double>;

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

C make(double re, double im) { return {V(re), V(im)}; }
C make(Std z) { return make(z.real(), z.imag()); }
Std get(C z) { return {z.re.v, z.im.v}; }

// Points over many magnitudes, with parts of equal and of very different size.
std::vector<Std> random_points(double smallest, double largest, int count = 2000) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> exponent(std::log(smallest), std::log(largest));
  std::bernoulli_distribution coin;
  std::vector<Std> points;
  for (int i = 0; i < count; ++i) {
    double re = std::exp(exponent(random)), im = std::exp(exponent(random));
    points.emplace_back(coin(random) ? re : -re, coin(random) ? im : -im);
  }
  return points;
}

// Points on the axes, where the branch cuts are: the sign of the zero says which side.
std::vector<Std> axis_points() {
  std::vector<Std> points;
  for (double x : {0.25, 0.5, 1.0, 1.5, 3.0, 1e3}) {
    for (double s : {1.0, -1.0}) {
      for (double zero : {0.0, -0.0}) {
        points.emplace_back(s * x, zero);
        points.emplace_back(zero, s * x);
      }
    }
  }
  return points;
}

// |y - expected| <= tolerance |expected|; where `parts`, for each part by itself.
void expect_close(Std z, Std y, Long expected, double tolerance, bool parts, const char* name) {
  SCOPED_TRACE(testing::Message() << name << " at " << z << ": " << y << ", expected "
                                  << Std(double(expected.real()), double(expected.imag())));
  double floor = std::numeric_limits<double>::min();
  if (std::isinf(expected.real()) || std::isinf(expected.imag())) {
    EXPECT_TRUE(std::isinf(y.real()) || std::isinf(y.imag()));
    return;
  }
  double size = static_cast<double>(std::abs(expected));
  double re_error = static_cast<double>(std::abs(static_cast<long double>(y.real()) - expected.real()));
  double im_error = static_cast<double>(std::abs(static_cast<long double>(y.imag()) - expected.imag()));
  double re_size = parts ? std::abs(static_cast<double>(expected.real())) : size;
  double im_size = parts ? std::abs(static_cast<double>(expected.imag())) : size;
  EXPECT_LE(re_error, tolerance * re_size + floor);
  EXPECT_LE(im_error, tolerance * im_size + floor);
}

template <class F, class G>
void check(const char* name, F mine, G reference, const std::vector<Std>& points, double tolerance,
           bool parts = false) {
  for (Std z : points) {
    Long wide(z.real(), z.imag());
    expect_close(z, get(mine(make(z))), reference(wide), tolerance, parts, name);
  }
}

#define CHECK_FUNCTION(f, points, tolerance, ...) \
  check(#f, [](C z) { return f(z); }, [](Long z) { return Long(std::f(z)); }, points, tolerance, ##__VA_ARGS__)

TEST(Complex, Operators) {
  auto left = random_points(1e-3, 1e3), right = random_points(1e-2, 1e2);
  for (size_t i = 0; i < left.size(); ++i) {
    Std a = left[i], b = right[(i * 7 + 3) % right.size()];
    Long la(a.real(), a.imag()), lb(b.real(), b.imag());
    expect_close(a, get(make(a) + make(b)), la + lb, 1e-15, true, "+");
    expect_close(a, get(make(a) - make(b)), la - lb, 1e-15, true, "-");
    expect_close(a, get(make(a) * make(b)), la * lb, 1e-15, false, "*");
    expect_close(a, get(make(a) / make(b)), la / lb, 2e-15, false, "/");
    expect_close(a, get(2.5 - make(a)), 2.5L - la, 1e-15, true, "constant -");
    expect_close(a, get(make(a) + 2.5), la + 2.5L, 1e-15, true, "+ constant");
    expect_close(a, get(3.0 / make(a)), 3.0L / la, 2e-15, false, "constant /");
    expect_close(a, get(make(a) * 0.5 / V(2.0)), la * 0.25L, 1e-15, true, "* constant / vector");
    expect_close(a, get(-conj(make(a))), -std::conj(la), 0, true, "- conj");
    EXPECT_DOUBLE_EQ(abs(make(a)).v, std::abs(a));
    EXPECT_DOUBLE_EQ(arg(make(a)).v, std::arg(a));
  }
  EXPECT_TRUE((make(1, 2) == make(1, 2)).m);
  EXPECT_FALSE((make(1, 2) == make(1, 3)).m);
  EXPECT_TRUE((make(1, 2) != 1.0).m);
  EXPECT_TRUE((1.0 == make(1, 0)).m);
  EXPECT_EQ(get(select(V(1) > 0.0, make(1, 2), 5.0)), Std(1, 2));
  EXPECT_EQ(get(select(V(-1) > 0.0, make(1, 2), 5.0)), Std(5, 0));
  EXPECT_EQ(get(select(V(-1) > 0.0, 5.0, make(1, 2))), Std(1, 2));
}

TEST(Complex, DivisionAtTheEdgesOfTheRange) {
  const double big = 1e308, small = 1e-308;
  EXPECT_NEAR(std::abs(get(make(big, big) / make(big, big)) - 1.0), 0, 1e-15);
  EXPECT_NEAR(std::abs(get(make(small, -small) / make(small, small)) - Std(0, -1)), 0, 1e-15);
  EXPECT_NEAR(std::abs(get(make(1e300, 0) / make(1e200, 1e200)) / 1e100 - Std(0.5, -0.5)), 0, 1e-15);
  EXPECT_EQ(get(make(1, 2) / make(inf, -inf)), Std(0, 0));
  Std pole = get(make(1, -2) / make(0, 0));
  EXPECT_EQ(pole, Std(inf, -inf));
  EXPECT_TRUE(std::isnan(get(make(0, 0) / make(0, 0)).real()));
  EXPECT_TRUE(std::isinf(get(make(inf, 1) / make(2, 1)).real()));
}

TEST(Complex, ExponentialsAndLogarithms) {
  auto near = random_points(1e-6, 30), wide = random_points(1e-300, 1e300), tiny = random_points(1e-300, 0.3);
  CHECK_FUNCTION(exp, near, 2e-15);
  CHECK_FUNCTION(log, wide, 1e-15);
  CHECK_FUNCTION(log, random_points(0.5, 2), 2e-15);
  CHECK_FUNCTION(log, axis_points(), 1e-15, true);
  CHECK_FUNCTION(log10, wide, 2e-15);
  CHECK_FUNCTION(sqrt, wide, 1e-15, true);
  CHECK_FUNCTION(sqrt, axis_points(), 1e-15, true);
  auto log2_reference = [](Long z) { return std::log(z) / 0.693147180559945309417232121458L; };
  check("log2", [](C z) { return log2(z); }, log2_reference, wide, 2e-15);
  check(
      "exp2", [](C z) { return exp2(z); }, [](Long z) { return std::exp(z * 0.693147180559945309417232121458L); }, near,
      5e-15);
  check("rsqrt", [](C z) { return rsqrt(z); }, [](Long z) { return 1.0L / std::sqrt(z); }, wide, 2e-15);
  check("sigmoid", [](C z) { return sigmoid(z); }, [](Long z) { return 1.0L / (1.0L + std::exp(-z)); }, near, 1e-13);
  // Small arguments, where 1 would swallow z: the series is the reference.
  auto expm1_reference = [](Long z) {
    Long sum = 0, term = 1;
    for (int i = 1; i < 30; ++i) sum += term *= z / static_cast<long double>(i);
    return sum;
  };
  check("expm1", [](C z) { return expm1(z); }, expm1_reference, tiny, 1e-15);
  check(
      "expm1", [](C z) { return expm1(z); }, [](Long z) { return std::exp(z) - 1.0L; }, random_points(0.3, 30), 5e-15);
  auto log1p_reference = [](Long z) { return 2.0L * std::atanh(z / (z + 2.0L)); };
  check("log1p", [](C z) { return log1p(z); }, log1p_reference, tiny, 2e-15);
  check(
      "log1p", [](C z) { return log1p(z); }, [](Long z) { return std::log(z + 1.0L); }, random_points(0.3, 1e30),
      2e-15);
}

TEST(Complex, Powers) {
  auto bases = random_points(1e-2, 1e2), exponents = random_points(1e-2, 5);
  for (size_t i = 0; i < bases.size(); ++i) {
    Std z = bases[i], w = exponents[(i * 7 + 3) % exponents.size()];
    Long expected = std::pow(Long(z.real(), z.imag()), Long(w.real(), w.imag()));
    expect_close(z, get(pow(make(z), make(w))), expected, 2e-14, false, "pow");
    expect_close(z, get(pow(make(z), w.real())), std::pow(Long(z.real(), z.imag()), static_cast<long double>(w.real())),
                 2e-14, false, "pow real");
  }
  EXPECT_EQ(get(pow(make(0, 0), make(2, 1))), Std(0, 0));
  EXPECT_EQ(get(pow(make(0, 0), make(0, 0))), Std(1, 0));
  EXPECT_EQ(get(pow(make(3, 4), make(0, 0))), Std(1, 0));
}

TEST(Complex, Trigonometric) {
  auto points = random_points(1e-8, 20), axes = axis_points();
  std::erase_if(axes, [](Std z) { return std::abs(z) > 100; });
  for (const auto& p : {points, axes}) {
    CHECK_FUNCTION(sin, p, 2e-15, true);
    CHECK_FUNCTION(cos, p, 2e-15, true);
    CHECK_FUNCTION(tan, p, 4e-15, true);
    CHECK_FUNCTION(sinh, p, 2e-15, true);
    CHECK_FUNCTION(cosh, p, 2e-15, true);
    CHECK_FUNCTION(tanh, p, 4e-15, true);
  }
}

TEST(Complex, InverseTrigonometric) {
  for (const auto& p : {random_points(1e-8, 10), random_points(0.5, 2), random_points(1e-290, 1e290)}) {
    CHECK_FUNCTION(asin, p, 4e-15);
    CHECK_FUNCTION(acos, p, 4e-15);
    CHECK_FUNCTION(atan, p, 4e-15);
    CHECK_FUNCTION(asinh, p, 4e-15);
    CHECK_FUNCTION(acosh, p, 4e-15);
    CHECK_FUNCTION(atanh, p, 4e-15);
  }
  auto axes = axis_points();
  CHECK_FUNCTION(asin, axes, 4e-15, true);
  CHECK_FUNCTION(acos, axes, 4e-15, true);
  CHECK_FUNCTION(atan, axes, 4e-15, true);
  CHECK_FUNCTION(asinh, axes, 4e-15, true);
  CHECK_FUNCTION(acosh, axes, 4e-15, true);
  CHECK_FUNCTION(atanh, axes, 4e-15, true);
}

// The side of a branch cut that the sign of a zero chooses.
TEST(Complex, SignedZeros) {
  for (double zero : {0.0, -0.0}) {
    for (double x : {-3.0, -0.5, 0.5, 3.0}) {
      for (Std z : {Std(x, zero), Std(zero, x)}) {
        SCOPED_TRACE(testing::Message() << z << " " << std::signbit(zero));
#define CHECK_SIGNS(f)                                                            \
  {                                                                               \
    Std y = get(f(make(z))), expected = std::f(z);                                \
    EXPECT_EQ(std::signbit(y.real()), std::signbit(expected.real())) << #f "re "; \
    EXPECT_EQ(std::signbit(y.imag()), std::signbit(expected.imag())) << #f "im "; \
  }
        CHECK_SIGNS(log)
        CHECK_SIGNS(sqrt)
        CHECK_SIGNS(asin)
        CHECK_SIGNS(acos)
        CHECK_SIGNS(atan)
        CHECK_SIGNS(asinh)
        CHECK_SIGNS(acosh)
        CHECK_SIGNS(atanh)
#undef CHECK_SIGNS
      }
    }
  }
}

TEST(Complex, Infinities) {
  for (double y : {0.0, 1.0, -2.0, inf, nan}) EXPECT_EQ(get(exp(make(-inf, y))), Std(0, 0));
  EXPECT_EQ(get(exp(make(inf, 0))), Std(inf, 0));
  EXPECT_EQ(get(exp(make(inf, 1))), Std(inf, inf));
  EXPECT_EQ(get(log(make(0, 0))), Std(-inf, 0));
  EXPECT_EQ(get(log(make(-inf, 0))), Std(inf, M_PI));
  EXPECT_EQ(get(sqrt(make(0, 0))), Std(0, 0));
  EXPECT_EQ(get(sqrt(make(inf, 3))), Std(inf, 0));
  EXPECT_EQ(get(sqrt(make(-inf, 3))), Std(0, inf));
  EXPECT_EQ(get(sqrt(make(2, -inf))), Std(inf, -inf));
  EXPECT_EQ(get(tanh(make(inf, 1))), Std(1, 0));
  EXPECT_EQ(get(tanh(make(-inf, 1))), Std(-1, 0));
  EXPECT_EQ(get(sinh(make(-inf, 0))), Std(-inf, 0));
  EXPECT_EQ(get(cosh(make(-inf, 0))), Std(inf, 0));
  EXPECT_EQ(get(sigmoid(make(-inf, 1))), Std(0, 0));
  EXPECT_EQ(get(sigmoid(make(inf, 1))), Std(1, 0));
  EXPECT_EQ(get(atanh(make(1, 0))), Std(inf, 0));
  for (Std z : {Std(inf, 1), Std(-inf, 1), Std(1, inf), Std(1, -inf), Std(inf, inf)}) {
    SCOPED_TRACE(testing::Message() << z);
    EXPECT_EQ(get(asin(make(z))), std::asin(z));
    EXPECT_EQ(get(acos(make(z))), std::acos(z));
    EXPECT_EQ(get(asinh(make(z))), std::asinh(z));
    EXPECT_EQ(get(acosh(make(z))), std::acosh(z));
    EXPECT_EQ(get(atan(make(z))), std::atan(z));
    EXPECT_EQ(get(atanh(make(z))), std::atanh(z));
  }
  // e^x overflows, its product with a small cosine does not.
  Long edge = std::exp(Long(711, 1.5707));
  EXPECT_NEAR(get(exp(make(711, 1.5707))).real() / static_cast<double>(edge.real()), 1, 1e-11);
  EXPECT_NEAR(get(sinh(make(-711, 1.5707))).real() / static_cast<double>(edge.real()), -0.5, 1e-11);
  EXPECT_NEAR(get(cosh(make(711, 1.5707))).real() / static_cast<double>(edge.real()), 0.5, 1e-11);
  EXPECT_TRUE(isnan(exp(make(nan, 1))).m);
  EXPECT_TRUE(isnan(log(make(1, nan))).m);
  EXPECT_TRUE((isinf(make(1, -inf)) & !isfinite(make(nan, 0)) & isfinite(make(1, 2))).m);
}

TEST(Complex, Sign) {
  EXPECT_EQ(get(sign(make(0, 0))), Std(0, 0));
  EXPECT_NEAR(std::abs(get(sign(make(3, -4))) - Std(0.6, -0.8)), 0, 1e-15);
}

// A vector of complex numbers gives each lane what the scalar gives.
TEST(Complex, LanesAreIndependent) {
  using W = Vec<double, 4>;
  auto points = random_points(1e-2, 1e2, 4);
  double re[4], im[4];
  for (int i = 0; i < 4; ++i) re[i] = points[i].real(), im[i] = points[i].imag();
  Complex<W> z{W::load(re), W::load(im)};
  Complex<W> y = asin(z) / (1.0 + exp(z * 0.01)) + tanh(z) * sqrt(z);
  y.re.store(re);
  y.im.store(im);
  for (int i = 0; i < 4; ++i) {
    C one = make(points[i]);
    EXPECT_EQ(Std(re[i], im[i]), get(asin(one) / (1.0 + exp(one * 0.01)) + tanh(one) * sqrt(one)));
  }
}

TEST(Complex, FloatParts) {
  using F = Complex<Vec<float, 1>>;
  for (Std p : random_points(1e-3, 1e1)) {
    std::complex<float> z(static_cast<float>(p.real()), static_cast<float>(p.imag()));
    Std wide(z.real(), z.imag());
    F one{Vec<float, 1>(z.real()), Vec<float, 1>(z.imag())};
    auto close = [&](F y, Std expected) {
      EXPECT_NEAR(std::abs(Std(y.re.v, y.im.v) - expected) / std::abs(expected), 0, 4e-6) << z;
    };
    close(exp(one), std::exp(wide));
    close(log(one), std::log(wide));
    close(sqrt(one), std::sqrt(wide));
    close(tanh(one), std::tanh(wide));
    close(asin(one), std::asin(wide));
    close(one / F{one.im, one.re}, wide / Std(wide.imag(), wide.real()));
  }
}

// Holomorphic derivatives: along the real and along the imaginary direction they are the same number.
struct Everything {
  template <class Z, class W>
  static auto value(Z z, W w) {
    auto y = exp(z * w) / (1.0 + z * z) + log(z) * sqrt(z) + tanh(z) - 2.0 * sinh(z) + asin(z * 0.1) * atan(z);
    return y + pow(z, w) * sigmoid(z) + cos(z) / (tan(w) + acosh(z + 2.0) + expm1(z) * log1p(w));
  }
};

TEST(Complex, Derivatives) {
  for (Std p : random_points(0.1, 1.5, 200)) {
    Std q(0.4 * p.imag() + 0.3, 0.7);
    if (p.real() < 0 && std::abs(p.imag()) < 0.1) continue;  // too near the cut for a difference across it
    auto value = [&](Std z, Std w) { return get(Everything::value(make(z), make(w))); };
    Std by_z = get(derivative<Everything, 0>(make(p), make(q))),
        by_w = get(derivative<Everything, 1>(make(p), make(q)));
    for (Std h : {Std(1e-5, 0), Std(0, 1e-5)}) {
      Std z_difference = (value(p + h, q) - value(p - h, q)) / (2.0 * h);
      Std w_difference = (value(p, q + h) - value(p, q - h)) / (2.0 * h);
      EXPECT_NEAR(std::abs(by_z - z_difference), 0, 1e-6 * (1 + std::abs(by_z))) << p;
      EXPECT_NEAR(std::abs(by_w - w_difference), 0, 1e-6 * (1 + std::abs(by_w))) << p;
    }
  }
}

}  // namespace
}  // namespace tutti::pointwise
