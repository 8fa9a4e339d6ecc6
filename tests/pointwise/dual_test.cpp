// Derivatives by dual numbers: of every primitive and every formula against differences, to second order, at kinks, and
// far out where a careless formula gives ∞ · 0.
#define TUTTI_POINTWISE(...)
#define TUTTI_POINTWISE_PURE(...)
#define TUTTI_POINTWISE_HIDDEN(...)
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "pointwise/activation.isa.cpp"
#include "pointwise/arithmetic.isa.cpp"
#include "pointwise/comparison.isa.cpp"
#include "pointwise/exponential.isa.cpp"
#include "pointwise/logic.isa.cpp"
#include "pointwise/rounding.isa.cpp"
#include "pointwise/select.isa.cpp"
#include "pointwise/trigonometric.isa.cpp"

namespace tutti::pointwise {
namespace {

using V = Vec<double, 1>;
using I = Vec<int64_t, 1>;

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

template <size_t N>
using Point = std::array<double, N>;

// F::value at a point, in vectors of W. Not inlined: the formulas are long, and compiled once for each W that way.
template <class F, class W = V, size_t N>
[[gnu::noinline]] double value(const Point<N>& p) {
  return std::apply([](auto... x) { return static_cast<double>(F::value(W(x)...).v); }, p);
}
template <class F, int K, class W = V, size_t N>
[[gnu::noinline]] double slope(const Point<N>& p) {
  return std::apply([](auto... x) { return static_cast<double>(derivative<F, K>(W(x)...).v); }, p);
}
template <class F>
double value(double x) {
  return value<F>(Point<1>{x});
}
template <class F>
double slope(double x) {
  return slope<F, 0>(Point<1>{x});
}

// The derivative by argument K as a formula of its own, to be differentiated again.
template <class F, int K>
struct Partial {
  template <class... X>
  TUTTI_HD static auto value(X... x) {
    return derivative<F, K>(x...);
  }
};

// The difference quotient by argument k, of fourth order.
template <class F, size_t N>
double difference(Point<N> p, size_t k) {
  double h = 1e-3 * std::max(0.1, std::abs(p[k]));
  auto at = [&](double step) {
    Point<N> q = p;
    q[k] += step * h;
    return value<F>(q);
  };
  return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h);
}

template <class F, int K, size_t N>
void check_argument(const Point<N>& p, const char* name, double tolerance) {
  double expected = difference<F>(p, K);
  EXPECT_NEAR((slope<F, K>(p)), expected, tolerance * (1 + std::abs(expected)))
      << name << " by argument " << K << " at " << testing::PrintToString(p);
}

template <class F, int K, size_t N, int... J>
void check_second(const Point<N>& p, const char* name, double tolerance, std::integer_sequence<int, J...>) {
  (check_argument<Partial<F, K>, J>(p, name, tolerance), ...);
}

// First and second derivatives by all arguments. Points are away from kinks.
template <class F, size_t N, int... K>
void check(const char* name, const std::vector<Point<N>>& points, double tolerance,
           std::integer_sequence<int, K...> all) {
  for (const Point<N>& p : points) {
    (check_argument<F, K>(p, name, tolerance), ...);
    (check_second<F, K>(p, name, tolerance * 10, all), ...);
  }
}
template <class F, size_t N>
void check(const char* name, const std::vector<Point<N>>& points, double tolerance = 1e-8) {
  check<F, N>(name, points, tolerance, std::make_integer_sequence<int, N>{});
}
template <class F>
void check_unary(const char* name, const std::vector<double>& points, double tolerance = 1e-8) {
  std::vector<Point<1>> wrapped;
  for (double x : points) wrapped.push_back({x});
  check<F, 1>(name, wrapped, tolerance);
}

const std::vector<double> everywhere = {-3.7, -1.2, -0.4, 0.3, 0.9, 2.6};
const std::vector<double> positive = {0.2, 0.7, 1.3, 4.1};
const std::vector<double> inside_one = {-0.8, -0.3, 0.2, 0.7};
const std::vector<Point<2>> plane = {{-3.7, 1.3}, {1.2, -0.7}, {0.4, 0.9}, {-0.6, -2.2}};
const std::vector<Point<2>> quadrant = {{0.3, 1.7}, {1.2, 0.7}, {2.4, 3.9}};

TEST(Dual, Arithmetic) {
  check<Add>("add", plane);
  check<Sub>("sub", plane);
  check<Mul>("mul", plane);
  check<Div>("div", plane);
  check<Remainder>("remainder", plane);
  check<Fmod>("fmod", plane);
  check_unary<Neg>("neg", everywhere);
  check_unary<Reciprocal>("reciprocal", everywhere);
  check_unary<Square>("square", everywhere);
  check_unary<Abs>("abs", everywhere);
  check<Pow>("pow", quadrant);
  check<Maximum>("maximum", plane);
  check<Minimum>("minimum", plane);
  check<Fmax>("fmax", plane);
  check<Fmin>("fmin", plane);
  check<Clamp>("clamp", std::vector<Point<3>>{{0.5, 0.0, 1.0}, {-0.5, 0.0, 1.0}, {1.5, 0.0, 1.0}});
  check<Lerp>("lerp", std::vector<Point<3>>{{0.5, 2.0, 0.3}, {-0.5, 0.1, 0.8}, {1.5, -3.0, 1.7}});
  check<Addcmul>("addcmul", std::vector<Point<4>>{{0.5, 2.0, 0.3, -1.4}});
  check<Addcdiv>("addcdiv", std::vector<Point<4>>{{0.5, 2.0, 0.3, -1.4}});
  check<Hypot>("hypot", plane);
  check<Copysign>("copysign", plane);
  check<FusedMultiplyAdd>("fused_multiply_add", std::vector<Point<3>>{{0.5, 2.0, 0.3}, {-0.5, 0.1, 0.8}});
  check_unary<Frac>("frac", everywhere);
}

TEST(Dual, Exponential) {
  check_unary<Exp>("exp", everywhere);
  check_unary<Exp2>("exp2", everywhere);
  check_unary<Expm1>("expm1", everywhere);
  check_unary<Log>("log", positive);
  check_unary<Log2>("log2", positive);
  check_unary<Log10>("log10", positive);
  check_unary<Log1p>("log1p", positive);
  check_unary<Sqrt>("sqrt", positive);
  check_unary<Rsqrt>("rsqrt", positive);
  check<LogAddExp>("logaddexp", plane);
  check<LogAddExp>("logaddexp", std::vector<Point<2>>{{1.5, 1.5}});
  check<LogAddExp2>("logaddexp2", plane);
  check<Xlogy>("xlogy", quadrant);
  check<Xlogy>("xlogy", std::vector<Point<2>>{{0.0, 1.5}});
  check<Xlog1py>("xlog1py", quadrant);
  check_unary<Logit>("logit", {0.2, 0.5, 0.7});
  check_unary<Erf>("erf", everywhere);
  check_unary<Erfc>("erfc", everywhere);
  check_unary<Erfinv>("erfinv", inside_one, 1e-7);
  check_unary<Lgamma>("lgamma", {-1.4, 0.3, 0.8, 2.6, 11.0}, 1e-7);
  check_unary<Digamma>("digamma", {-1.4, 0.3, 0.8, 2.6, 11.0}, 1e-7);
  check_unary<Trigamma>("trigamma", {-1.4, 0.3, 0.8, 2.6, 11.0}, 1e-6);
  check_unary<Sigmoid>("sigmoid", everywhere);
  check_unary<LogSigmoid>("log_sigmoid", everywhere);
  check_unary<LogSigmoid>("log_sigmoid", {0.0});
}

TEST(Dual, Trigonometric) {
  check_unary<Sin>("sin", everywhere);
  check_unary<Cos>("cos", everywhere);
  check_unary<Tan>("tan", inside_one);
  check_unary<Asin>("asin", inside_one);
  check_unary<Acos>("acos", inside_one);
  check_unary<Atan>("atan", everywhere);
  check<Atan2>("atan2", plane);
  check_unary<Sinh>("sinh", everywhere);
  check_unary<Cosh>("cosh", everywhere);
  check_unary<Tanh>("tanh", everywhere);
  check_unary<Asinh>("asinh", everywhere);
  check_unary<Acosh>("acosh", {1.2, 2.6, 7.0});
  check_unary<Atanh>("atanh", inside_one);
  check_unary<Sinc>("sinc", {-3.7, -1.0, -0.1, 0.0, 0.2, 0.3, 0.9, 2.0});
  check_unary<Deg2Rad>("deg2rad", everywhere);
  check_unary<Rad2Deg>("rad2deg", everywhere);
}

TEST(Dual, Activation) {
  const std::vector<Point<2>> with_parameter = {{-2.3, 0.7}, {-0.4, 1.6}, {0.3, 0.2}, {2.9, 1.1}};
  check_unary<Relu>("relu", everywhere);
  check_unary<Relu6>("relu6", {-1.0, 2.0, 7.0});
  check<LeakyRelu>("leaky_relu", with_parameter);
  check<Elu>("elu", with_parameter);
  check_unary<Selu>("selu", everywhere);
  check<Celu>("celu", with_parameter);
  check_unary<Gelu>("gelu", everywhere);
  check_unary<GeluTanh>("gelu_tanh", everywhere);
  check_unary<Silu>("silu", everywhere);
  check_unary<Silu>("silu", {0.0});
  check_unary<Mish>("mish", everywhere);
  check<Softplus>("softplus", with_parameter);
  check<Softplus>("softplus", std::vector<Point<2>>{{0.0, 1.0}});
  check_unary<Softsign>("softsign", everywhere);
  check<Hardtanh>("hardtanh", std::vector<Point<3>>{{0.5, 0.0, 1.0}, {-0.5, 0.0, 1.0}, {1.5, 0.0, 1.0}});
  check_unary<Hardsigmoid>("hardsigmoid", {-4.0, -1.0, 2.0, 5.0});
  check_unary<Hardswish>("hardswish", {-4.0, -1.0, 2.0, 5.0});
  check<Hardshrink>("hardshrink", with_parameter);
  check<Softshrink>("softshrink", with_parameter);
  check<Threshold>("threshold", std::vector<Point<3>>{{0.5, 0.0, -7.0}, {-0.5, 0.0, -7.0}});
  check_unary<Tanhshrink>("tanhshrink", everywhere);
}

template <class F, int K, size_t N>
void check_lanes(const Point<N>& p, const char* name) {
  double lanes[4], expected = slope<F, K>(p);
  std::apply([&](auto... x) { derivative<F, K>(Vec<double, 4>(x)...).store(lanes); }, p);
  for (double lane : lanes) EXPECT_NEAR(lane, expected, 1e-14 * (1 + std::abs(expected))) << name;
  EXPECT_NEAR((slope<F, K, Vec<float, 1>>(p)), expected, 1e-5 * (1 + std::abs(expected))) << name;
}

// Vectors and narrower elements give the same derivatives.
TEST(Dual, Lanes) {
  check_lanes<Gelu, 0>(Point<1>{0.7}, "gelu");
  check_lanes<Mish, 0>(Point<1>{-0.7}, "mish");
  check_lanes<Sinc, 0>(Point<1>{1.2}, "sinc");
  check_lanes<Pow, 1>(Point<2>{1.2, 2.5}, "pow");
  check_lanes<Atan2, 0>(Point<2>{1.2, 2.5}, "atan2");
  check_lanes<Maximum, 1>(Point<2>{2.5, 2.5}, "maximum");
  check_lanes<Clamp, 2>(Point<3>{2.5, 0.0, 1.0}, "clamp");
  check_lanes<Digamma, 0>(Point<1>{-0.7}, "digamma");
  check_lanes<Partial<Softplus, 0>, 1>(Point<2>{-0.7, 1.1}, "softplus");
}

TEST(Dual, Select) {
  check<NanToNum>("nan_to_num", std::vector<Point<4>>{{0.5, 1.0, 2.0, 3.0}});
  EXPECT_EQ((slope<NanToNum, 0>(Point<4>{inf, 1, 2, 3})), 0);
  EXPECT_EQ((slope<NanToNum, 2>(Point<4>{inf, 1, 2, 3})), 1);
  EXPECT_EQ((slope<NanToNum, 3>(Point<4>{-inf, 1, 2, 3})), 1);
  EXPECT_EQ((slope<NanToNum, 1>(Point<4>{nan, 1, 2, 3})), 1);
  for (double c : {0.0, 1.0}) {
    EXPECT_EQ((derivative<Where, 1>(V(c) != 0.0, V(3.0), V(4.0)).v), c);
    EXPECT_EQ((derivative<Where, 2>(V(c), V(3.0), V(4.0)).v), 1 - c);
    EXPECT_EQ((derivative<Where, 0>(V(c) != 0.0, V(3.0), V(4.0)).v), 0);
  }
}

// What does not vary has the derivative 0, exactly and everywhere.
TEST(Dual, Steps) {
  for (double x : {-inf, -2.5, 0.0, 0.7, inf, nan}) {
    EXPECT_EQ(slope<Floor>(x), 0);
    EXPECT_EQ(slope<Ceil>(x), 0);
    EXPECT_EQ(slope<Round>(x), 0);
    EXPECT_EQ(slope<Trunc>(x), 0);
    EXPECT_EQ(slope<Sign>(x), 0);
    EXPECT_EQ((slope<FloorDivide, 0>(Point<2>{x, 2.0})), 0);
    EXPECT_EQ((slope<TruncDivide, 1>(Point<2>{x, 2.0})), 0);
    EXPECT_EQ((slope<Heaviside, 0>(Point<2>{x, 2.0})), 0);
    EXPECT_EQ((slope<Heaviside, 1>(Point<2>{x, 2.0})), x == 0 ? 1 : 0);
    EXPECT_EQ((slope<Copysign, 1>(Point<2>{x, 2.0})), 0);
  }
  // The derivative of a derivative that is constant, or does not depend on the argument.
  EXPECT_EQ((slope<Partial<Mul, 0>, 0>(Point<2>{inf, nan})), 0);
  EXPECT_EQ((slope<Partial<Mul, 0>, 1>(Point<2>{inf, nan})), 1);
  EXPECT_EQ((slope<Partial<Add, 0>, 1>(Point<2>{inf, nan})), 0);
}

TEST(Dual, Kinks) {
  EXPECT_EQ(slope<Abs>(0.0), 0);
  EXPECT_EQ(slope<Abs>(-0.0), 0);
  EXPECT_EQ(slope<Sqrt>(0.0), inf);
  EXPECT_EQ(slope<Relu>(0.0), 0);
  EXPECT_EQ(slope<Relu6>(0.0), 0);
  EXPECT_EQ(slope<Relu6>(6.0), 0);
  EXPECT_EQ((slope<LeakyRelu, 0>(Point<2>{0.0, 0.25})), 0.25);
  EXPECT_EQ((slope<Elu, 0>(Point<2>{0.0, 1.5})), 1.5);
  EXPECT_EQ(slope<Sinc>(0.0), 0);
  const Point<2> tie = {2.0, 2.0};
  EXPECT_EQ((slope<Maximum, 0>(tie)), 0.5);
  EXPECT_EQ((slope<Maximum, 1>(tie)), 0.5);
  EXPECT_EQ((slope<Minimum, 0>(tie)), 0.5);
  EXPECT_EQ((slope<Minimum, 1>(tie)), 0.5);
  for (double x : {0.0, 0.5, 1.0}) EXPECT_EQ((slope<Clamp, 0>(Point<3>{x, 0.0, 1.0})), 1);
  for (double x : {0.0, 1.0}) EXPECT_EQ((slope<Hardtanh, 0>(Point<3>{x, 0.0, 1.0})), 0);
  EXPECT_EQ((slope<Clamp, 0>(Point<3>{0.5, 2.0, 1.0})), 0);
  EXPECT_EQ((slope<Clamp, 2>(Point<3>{0.5, 2.0, 1.0})), 1);
  EXPECT_EQ((slope<Hypot, 0>(Point<2>{0.0, 0.0})), 0);
  EXPECT_EQ((slope<Hypot, 0>(Point<2>{inf, 1.0})), 1);
  EXPECT_EQ((slope<Hypot, 1>(Point<2>{inf, 1.0})), 0);
  EXPECT_EQ((slope<Atan2, 0>(Point<2>{0.0, 0.0})), 0);
  EXPECT_NEAR((slope<Atan2, 0>(Point<2>{1e-200, 1e-200})) * 1e-200, 0.5, 1e-15);
  EXPECT_EQ((slope<Fmod, 1>(Point<2>{-7.0, 2.0})), 3);
  EXPECT_EQ((slope<Remainder, 1>(Point<2>{-7.0, 2.0})), 4);
  EXPECT_EQ((slope<Fmod, 0>(Point<2>{-7.0, 2.0})), 1);
}

struct Cube {
  template <class X>
  static auto value(X x) {
    return pow(x, 3.0);
  }
};

TEST(Dual, PowersAtZero) {
  // By the base: y · x^(y-1), and 0 where y is.
  EXPECT_EQ((slope<Pow, 0>(Point<2>{0.0, 0.0})), 0);
  EXPECT_EQ((slope<Pow, 0>(Point<2>{nan, 0.0})), 0);
  EXPECT_EQ((slope<Pow, 0>(Point<2>{3.0, 0.0})), 0);
  EXPECT_EQ((slope<Pow, 0>(Point<2>{0.0, 1.0})), 1);
  EXPECT_EQ((slope<Pow, 0>(Point<2>{0.0, 2.0})), 0);
  EXPECT_EQ((slope<Pow, 0>(Point<2>{0.0, 0.5})), inf);
  EXPECT_EQ((slope<Pow, 0>(Point<2>{-2.0, 3.0})), 12);
  // By the exponent: x^y log x, and 0 where x is 0 and y is not negative.
  EXPECT_EQ((slope<Pow, 1>(Point<2>{0.0, 0.0})), 0);
  EXPECT_EQ((slope<Pow, 1>(Point<2>{0.0, 2.0})), 0);
  EXPECT_EQ((slope<Pow, 1>(Point<2>{0.0, -1.0})), -inf);
  EXPECT_TRUE(std::isnan(slope<Pow, 1>(Point<2>{-2.0, 2.0})));
  // The exponent as a constant.
  EXPECT_NEAR((slope<Cube, 0>(Point<1>{2.0})), 12, 1e-13);
  EXPECT_NEAR((slope<Partial<Cube, 0>, 0>(Point<1>{2.0})), 12, 1e-13);
  // d²/dx² of x² and d²/dx dy of x^y at y = 0.
  EXPECT_NEAR((slope<Partial<Pow, 0>, 0>(Point<2>{0.0, 2.0})), 2, 0);
  EXPECT_NEAR((slope<Partial<Pow, 0>, 1>(Point<2>{4.0, 0.0})), 0.25, 1e-15);
}

TEST(Dual, XlogyAtZero) {
  EXPECT_EQ(value<Xlogy>(Point<2>{0.0, 0.0}), 0);
  EXPECT_EQ(value<Xlogy>(Point<2>{0.0, -1.0}), 0);
  EXPECT_EQ(value<Xlogy>(Point<2>{0.0, inf}), 0);
  EXPECT_TRUE(std::isnan(value<Xlogy>(Point<2>{0.0, nan})));
  EXPECT_EQ((slope<Xlogy, 0>(Point<2>{0.0, 0.0})), 0);
  EXPECT_EQ((slope<Xlogy, 1>(Point<2>{0.0, 0.0})), 0);
  EXPECT_NEAR((slope<Xlogy, 0>(Point<2>{0.0, 2.0})), std::log(2.0), 1e-15);
}

// A variable that is not differentiated stays plain: its value may be infinite without harm to the others' derivatives.
TEST(Dual, ConstantsFormNoProducts) {
  EXPECT_EQ((slope<Sub, 0>(Point<2>{1.0, inf})), 1);
  EXPECT_EQ((slope<Maximum, 0>(Point<2>{1.0, inf})), 0);
  EXPECT_EQ((slope<Div, 0>(Point<2>{1.0, inf})), 0);
  EXPECT_EQ((slope<Partial<Mul, 0>, 1>(Point<2>{1.0, inf})), 1);
  EXPECT_EQ((slope<Addcmul, 0>(Point<4>{1.0, inf, inf, -inf})), 1);
  // Forward mode with tangents that are values.
  Dual<V> x{V(2.0), V(3.0)};
  auto y = Mul::value(x, V(5.0));
  static_assert(std::is_same_v<decltype(y), Dual<V>>);
  EXPECT_EQ(y.value.v, 10);
  EXPECT_EQ(y.tangent.v, 15);
  // Dual of Dual by hand: d²(x³) with seeds 1 in both levels.
  Dual<Dual<V>> z{{V(2.0), V(1.0)}, {V(1.0), V(0.0)}};
  auto cube = z * z * z;
  EXPECT_EQ(cube.tangent.tangent.v, 12);
  // select with plain, constant and dual operands.
  auto taken = select(x > 0.0, x, 7.0), other = select(x > 0.0, V(7.0), x);
  EXPECT_EQ(taken.tangent.v, 3);
  EXPECT_EQ(other.tangent.v, 0);
  EXPECT_EQ(other.value.v, 7);
}

// f'(x) for x = -∞, -1000, -50, -1, -1e-30, 1e-30, 1, 50, 1000, ∞, given by a function for the finite ones.
struct FarOut {
  const char* name;
  double at_minus_infinity, at_infinity;
  long double (*expected)(long double);
};

template <class F, class W, class... Parameters>
void check_far_out(const FarOut& f, Parameters... parameters) {
  const double tolerance = sizeof(typename W::Element) == 8 ? 1e-14 : 2e-6;
  for (double x : {-inf, -1000.0, -50.0, -1.0, -1e-30, 1e-30, 1.0, 50.0, 1000.0, inf}) {
    double expected = x == inf ? f.at_infinity : x == -inf ? f.at_minus_infinity : static_cast<double>(f.expected(x));
    double result = slope<F, 0, W>(Point<1 + sizeof...(Parameters)>{x, parameters...});
    if (expected != result) {  // not for infinities
      EXPECT_NEAR(result, expected, tolerance * (1 + std::abs(expected))) << f.name << " at " << x;
    }
    // The same with a gradient from outside as the tangent, as backward passes do it.
    if (std::isinf(expected)) continue;
    for (double g : {0.0, -2.0}) {
      double scaled = static_cast<double>(F::value(Dual<W>{W(x), W(g)}, W(parameters)...).tangent.v);
      EXPECT_NEAR(scaled, g * expected, 2 * tolerance * (1 + std::abs(expected))) << f.name << " at " << x;
    }
  }
}
template <class F, class... Parameters>
void far_out(const FarOut& f, Parameters... parameters) {
  check_far_out<F, V>(f, parameters...);
  check_far_out<F, Vec<float, 1>>(f, parameters...);
}

long double logistic(long double x) { return 1 / (1 + std::exp(-x)); }

TEST(Dual, FarOut) {
  far_out<Sigmoid>({"sigmoid", 0, 0, [](long double x) { return logistic(x) * logistic(-x); }});
  far_out<LogSigmoid>({"log_sigmoid", 1, 0, [](long double x) { return logistic(-x); }});
  far_out<Softplus>({"softplus", 0, 1, [](long double x) { return logistic(2 * x); }}, 2.0);
  far_out<Tanh>({"tanh", 0, 0, [](long double x) { return 1 - std::tanh(x) * std::tanh(x); }});
  far_out<Tanhshrink>({"tanhshrink", 1, 1, [](long double x) { return std::tanh(x) * std::tanh(x); }});
  far_out<Erf>({"erf", 0, 0, [](long double x) { return 2 / std::sqrt(M_PIl) * std::exp(-x * x); }});
  far_out<Erfc>({"erfc", 0, 0, [](long double x) { return -2 / std::sqrt(M_PIl) * std::exp(-x * x); }});
  far_out<Atan>({"atan", 0, 0, [](long double x) { return 1 / (1 + x * x); }});
  far_out<Asinh>({"asinh", 0, 0, [](long double x) { return 1 / std::sqrt(1 + x * x); }});
  far_out<Expm1>(
      {"expm1", 0, inf, [](long double x) { return x > 600 ? static_cast<long double>(inf) : std::exp(x); }});
  far_out<Relu>({"relu", 0, 1, [](long double x) { return x > 0 ? 1.0L : 0.0L; }});
  far_out<Relu6>({"relu6", 0, 0, [](long double x) { return x > 0 && x < 6 ? 1.0L : 0.0L; }});
  far_out<LeakyRelu>({"leaky_relu", 0.25, 1, [](long double x) { return x > 0 ? 1.0L : 0.25L; }}, 0.25);
  far_out<Elu>({"elu", 0, 1, [](long double x) { return x > 0 ? 1.0L : 1.5L * std::exp(x); }}, 1.5);
  far_out<Celu>({"celu", 0, 1, [](long double x) { return x > 0 ? 1.0L : std::exp(x / 1.5L); }}, 1.5);
  far_out<Selu>({"selu", 0, 1.0507009873554804934L, [](long double x) {
                   return 1.0507009873554804934L * (x > 0 ? 1 : 1.6732632423543772848L * std::exp(x));
                 }});
  far_out<Gelu>({"gelu", 0, 1, [](long double x) {
                   return std::erfc(-x / std::sqrt(2.0L)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PIl);
                 }});
  far_out<GeluTanh>({"gelu_tanh", 0, 1, [](long double x) {
                       long double c = std::sqrt(2 / M_PIl), t = std::tanh(c * (x + 0.044715L * x * x * x));
                       return (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715L * x * x);
                     }});
  far_out<Silu>({"silu", 0, 1, [](long double x) { return logistic(x) * (1 + x * logistic(-x)); }});
  far_out<Mish>({"mish", 0, 1, [](long double x) {
                   long double t = std::tanh(x > 100 ? x : std::log1p(std::exp(x)));
                   return t + x * (1 - t * t) * logistic(x);
                 }});
  far_out<Softsign>({"softsign", 0, 0, [](long double x) { return 1 / ((1 + std::abs(x)) * (1 + std::abs(x))); }});
  far_out<Hardtanh>({"hardtanh", 0, 0, [](long double x) { return std::abs(x) < 1 ? 1.0L : 0.0L; }}, -1.0, 1.0);
  far_out<Hardsigmoid>({"hardsigmoid", 0, 0, [](long double x) { return std::abs(x) < 3 ? 1 / 6.0L : 0.0L; }});
  far_out<Hardswish>({"hardswish", 0, 1, [](long double x) { return x < -3 ? 0 : x > 3 ? 1 : x / 3 + 0.5L; }});
  far_out<Hardshrink>({"hardshrink", 1, 1, [](long double x) { return std::abs(x) > 0.5L ? 1.0L : 0.0L; }}, 0.5);
  far_out<Softshrink>({"softshrink", 1, 1, [](long double x) { return std::abs(x) > 0.5L ? 1.0L : 0.0L; }}, 0.5);
  far_out<Clamp>({"clamp", 0, 0, [](long double x) { return std::abs(x) <= 1 ? 1.0L : 0.0L; }}, -1.0, 1.0);
  far_out<Abs>({"abs", -1, 1, [](long double x) { return x > 0 ? 1.0L : -1.0L; }});
  far_out<LogAddExp>({"logaddexp", 0, 1, [](long double x) { return logistic(x - 1); }}, 1.0);
  far_out<LogAddExp>({"logaddexp with -inf", 0.5, 1, [](long double) { return 1.0L; }}, -inf);
  far_out<LogAddExp>({"logaddexp with inf", 0, 0.5, [](long double) { return 0.0L; }}, inf);
  far_out<Maximum>({"maximum", 0, 1, [](long double x) { return x > 2 ? 1.0L : 0.0L; }}, 2.0);
  far_out<Atan2>({"atan2", 0, 0, [](long double x) { return 2 / (x * x + 4); }}, 2.0);
  far_out<Hypot>({"hypot", -1, 1, [](long double x) { return x / std::sqrt(x * x + 4); }}, 2.0);
  far_out<Sinc>({"sinc", 0, 0, [](long double x) {
                   if (std::abs(x) < 1e-6L) return -M_PIl * M_PIl / 3 * x;
                   // At whole x the sine is 0.
                   return (std::fmod(std::abs(x), 2.0L) == 1 ? -1 : 1) / x;
                 }});
}

template <class F, class... X>
bool propagates_nan(X... x) {
  Point<1 + sizeof...(X)> p = {nan, x...};
  return std::isnan(value<F>(p)) && std::isnan(value<F, Vec<float, 1>>(p));
}

TEST(Formula, NanPropagates) {
  EXPECT_TRUE(propagates_nan<Relu>());
  EXPECT_TRUE(propagates_nan<Relu6>());
  EXPECT_TRUE(propagates_nan<LeakyRelu>(0.1));
  EXPECT_TRUE(propagates_nan<Elu>(1.0));
  EXPECT_TRUE(propagates_nan<Selu>());
  EXPECT_TRUE(propagates_nan<Celu>(1.0));
  EXPECT_TRUE(propagates_nan<Gelu>());
  EXPECT_TRUE(propagates_nan<GeluTanh>());
  EXPECT_TRUE(propagates_nan<Silu>());
  EXPECT_TRUE(propagates_nan<Mish>());
  EXPECT_TRUE(propagates_nan<Softplus>(1.0));
  EXPECT_TRUE(propagates_nan<Softsign>());
  EXPECT_TRUE(propagates_nan<Hardtanh>(-1.0, 1.0));
  EXPECT_TRUE(propagates_nan<Hardsigmoid>());
  EXPECT_TRUE(propagates_nan<Hardswish>());
  EXPECT_TRUE(propagates_nan<Hardshrink>(0.5));
  EXPECT_TRUE(propagates_nan<Softshrink>(0.5));
  EXPECT_TRUE(propagates_nan<Threshold>(0.5, 0.0));
  EXPECT_TRUE(propagates_nan<Tanhshrink>());
  EXPECT_TRUE(propagates_nan<Clamp>(-1.0, 1.0));
  EXPECT_TRUE(propagates_nan<Maximum>(1.0));
  EXPECT_TRUE(propagates_nan<Minimum>(1.0));
  EXPECT_TRUE(propagates_nan<Sign>());
  EXPECT_TRUE(propagates_nan<Abs>());
  EXPECT_TRUE(propagates_nan<Heaviside>(0.5));
  EXPECT_TRUE(propagates_nan<LogAddExp>(1.0));
  EXPECT_TRUE(propagates_nan<LogSigmoid>());
  EXPECT_TRUE(propagates_nan<Xlogy>(0.0));
  EXPECT_TRUE(propagates_nan<Sinc>());
  EXPECT_TRUE(propagates_nan<FloorDivide>(2.0));
  EXPECT_TRUE(std::isnan(value<Maximum>(Point<2>{1.0, nan})));
  EXPECT_TRUE(std::isnan(value<Minimum>(Point<2>{1.0, nan})));
  EXPECT_TRUE(std::isnan(value<Clamp>(Point<3>{1.0, nan, 2.0})));
  EXPECT_TRUE(std::isnan(value<Clamp>(Point<3>{1.0, 0.0, nan})));
  EXPECT_EQ(value<Fmax>(Point<2>{nan, 1.0}), 1);
  EXPECT_EQ(value<Fmax>(Point<2>{1.0, nan}), 1);
  EXPECT_EQ(value<Fmin>(Point<2>{nan, 1.0}), 1);
  EXPECT_EQ(value<Fmin>(Point<2>{2.0, 1.0}), 1);
}

TEST(Formula, ValuesFarOut) {
  EXPECT_EQ(value<Gelu>(-inf), 0);
  EXPECT_EQ(value<Gelu>(inf), inf);
  EXPECT_EQ(value<GeluTanh>(-1e200), 0);
  EXPECT_EQ(value<GeluTanh>(1e200), 1e200);
  EXPECT_EQ(value<Silu>(-inf), 0);
  EXPECT_EQ(value<Mish>(-inf), 0);
  EXPECT_EQ(value<Mish>(1e5), 1e5);
  EXPECT_EQ(value<Softsign>(-inf), -1);
  EXPECT_EQ(value<Softplus>(Point<2>{1000.0, 1.0}), 1000);
  EXPECT_EQ(value<Softplus>(Point<2>{-inf, 1.0}), 0);
  EXPECT_NEAR(value<Softplus>(Point<2>{-50.0, 1.0}), std::exp(-50.0), 1e-35);
  EXPECT_EQ(value<LogSigmoid>(-1000.0), -1000);
  EXPECT_EQ(value<LogAddExp>(Point<2>{-inf, -inf}), -inf);
  EXPECT_EQ(value<LogAddExp>(Point<2>{inf, inf}), inf);
  EXPECT_EQ(value<LogAddExp>(Point<2>{-inf, inf}), inf);
  EXPECT_EQ(value<LogAddExp>(Point<2>{-inf, 3.0}), 3);
  EXPECT_EQ(value<LogAddExp>(Point<2>{-1e30, 3.0}), 3);
  EXPECT_EQ(value<Hardswish>(-inf), 0);
  EXPECT_EQ(value<Sinc>(0.0), 1);
  EXPECT_EQ(value<Sinc>(3.0), 0);
  EXPECT_EQ(value<Sinc>(inf), 0);
  EXPECT_NEAR(value<Mish>(0.7), 0.7 * std::tanh(std::log1p(std::exp(0.7))), 1e-15);
  EXPECT_NEAR(value<Trigamma>(1.0), M_PI * M_PI / 6, 1e-15);
  EXPECT_NEAR(value<Trigamma>(0.5), M_PI * M_PI / 2, 2e-15);
  EXPECT_NEAR(value<Trigamma>(-0.5), M_PI * M_PI / 2 + 4, 4e-15);
  EXPECT_EQ(value<Trigamma>(-2.0), inf);
  EXPECT_EQ(value<Trigamma>(inf), 0);
}

TEST(Formula, Quotients) {
  for (double x : {-7.5, -6.0, -0.3, 0.0, 0.3, 6.0, 7.5}) {
    for (double y : {-2.0, -0.1, 0.1, 2.0, 3.0}) {
      double whole = value<FloorDivide>(Point<2>{x, y}), rest = value<Remainder>(Point<2>{x, y});
      EXPECT_EQ(whole, std::floor(whole));
      EXPECT_NEAR(whole * y + rest, x, 1e-14) << x << " " << y;
      EXPECT_EQ(value<TruncDivide>(Point<2>{x, y}), std::trunc(x / y));
      EXPECT_EQ(value<Fmod>(Point<2>{x, y}), std::fmod(x, y));
    }
  }
  EXPECT_EQ(value<FloorDivide>(Point<2>{1.0, 0.1}), 9);  // 0.1 is a little more than a tenth
  EXPECT_EQ(value<FloorDivide>(Point<2>{-5.0, inf}), -1);
  EXPECT_EQ(value<FloorDivide>(Point<2>{1.0, 0.0}), inf);
  EXPECT_EQ(value<Clamp>(Point<3>{0.5, 2.0, 1.0}), 1);
  EXPECT_EQ(value<Lerp>(Point<3>{0.1, 0.7, 1.0}), 0.7);
  EXPECT_EQ(value<Lerp>(Point<3>{0.1, 0.7, 0.0}), 0.1);
}

template <class F, class... X>
int64_t integers(X... x) {
  // As lanes, too: some code for vectors is other than for scalars.
  int64_t lanes[4];
  F::value(Vec<int64_t, 4>(x)...).store(lanes);
  int64_t scalar = F::value(I(x)...).v;
  EXPECT_EQ(lanes[2], scalar);
  return scalar;
}
template <class F, class... X>
bool truth(X... x) {
  return F::value(I(x)...).m;
}

TEST(Formula, Integers) {
  constexpr int64_t least = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(integers<FloorDivide>(-7, 2), -4);
  EXPECT_EQ(integers<FloorDivide>(7, -2), -4);
  EXPECT_EQ(integers<FloorDivide>(-8, 2), -4);
  EXPECT_EQ(integers<FloorDivide>(7, 0), 0);
  EXPECT_EQ(integers<FloorDivide>(int64_t{1} << 62, 3), (int64_t{1} << 62) / 3);
  EXPECT_EQ(integers<TruncDivide>(-7, 2), -3);
  EXPECT_EQ(integers<TruncDivide>(least, -1), least);
  EXPECT_EQ(integers<Remainder>(-7, 2), 1);
  EXPECT_EQ(integers<Remainder>(7, -2), -1);
  EXPECT_EQ(integers<Remainder>(7, 0), 0);
  EXPECT_EQ(integers<Fmod>(-7, 2), -1);
  EXPECT_EQ(integers<Fmod>(7, -2), 1);
  EXPECT_EQ(integers<Fmod>(least, -1), 0);
  EXPECT_EQ(integers<Pow>(3, 13), 1594323);
  EXPECT_EQ(integers<Pow>(-3, 3), -27);
  EXPECT_EQ(integers<Pow>(5, 0), 1);
  EXPECT_EQ(integers<Pow>(2, -1), 0);
  EXPECT_EQ(integers<Pow>(-1, -3), -1);
  EXPECT_EQ(integers<Abs>(-3), 3);
  EXPECT_EQ(integers<Sign>(-3), -1);
  EXPECT_EQ(integers<Sign>(0), 0);
  EXPECT_EQ(integers<Maximum>(-3, 2), 2);
  EXPECT_EQ(integers<Minimum>(-3, 2), -3);
  EXPECT_EQ(integers<Fmax>(-3, 2), 2);
  EXPECT_EQ(integers<Fmin>(-3, 2), -3);
  EXPECT_EQ(integers<Clamp>(-3, 0, 2), 0);
  EXPECT_EQ(integers<Heaviside>(5, 7), 1);
  EXPECT_EQ(integers<Relu>(-3), 0);
  EXPECT_EQ(integers<Relu6>(9), 6);
  EXPECT_EQ(integers<Hardtanh>(9, -2, 2), 2);
  EXPECT_EQ(integers<Threshold>(1, 2, 20), 20);
  EXPECT_EQ(integers<Add>(2, 3) + integers<Sub>(2, 3) + integers<Mul>(2, 3) + integers<Neg>(2), 8);
  EXPECT_EQ(integers<Square>(-4), 16);
  EXPECT_EQ(integers<Addcmul>(1, 2, 3, 4), 25);
  EXPECT_EQ(integers<Floor>(4) + integers<Ceil>(4) + integers<Round>(4) + integers<Trunc>(4), 16);
  EXPECT_EQ(integers<NanToNum>(4, 0, 0, 0), 4);
  EXPECT_EQ(integers<BitwiseAnd>(12, 10), 8);
  EXPECT_EQ(integers<BitwiseOr>(12, 10), 14);
  EXPECT_EQ(integers<BitwiseXor>(12, 10), 6);
  EXPECT_EQ(integers<BitwiseNot>(12), -13);
  EXPECT_EQ(integers<ShiftLeft>(3, 4), 48);
  EXPECT_EQ(integers<ShiftLeft>(3, 64), 0);
  EXPECT_EQ(integers<ShiftLeft>(3, -1), 0);
  EXPECT_EQ(integers<ShiftRight>(-9, 1), -5);
  EXPECT_EQ(integers<ShiftRight>(-9, 80), -1);
  EXPECT_TRUE(truth<Equal>(2, 2) && truth<NotEqual>(2, 3) && truth<Less>(2, 3) && truth<LessEqual>(2, 2));
  EXPECT_TRUE(truth<Greater>(3, 2) && truth<GreaterEqual>(2, 2) && truth<Signbit>(-1) && truth<IsFinite>(5));
  EXPECT_FALSE(truth<IsNan>(2) || truth<IsInf>(2) || truth<Signbit>(0) || truth<IsClose>(2, 4, 0, 1));
  EXPECT_TRUE(truth<LogicalAnd>(2, 3) && truth<LogicalOr>(0, 3) && truth<LogicalXor>(0, 3) && truth<LogicalNot>(0));
  EXPECT_EQ(Where::value(I(1) == 1, I(5), I(6)).v, 5);
}

TEST(Formula, Predicates) {
  EXPECT_TRUE(IsNan::value(V(nan)).m);
  EXPECT_FALSE(IsNan::value(V(inf)).m);
  EXPECT_TRUE(IsInf::value(V(-inf)).m);
  EXPECT_TRUE(IsFinite::value(V(1e300)).m);
  EXPECT_TRUE(Signbit::value(V(-0.0)).m);
  auto close = [](double x, double y) { return IsClose::value(V(x), V(y), V(1e-5), V(1e-8)).m; };
  EXPECT_TRUE(close(1.0, 1.000009));
  EXPECT_FALSE(close(1.0, 1.00002));
  EXPECT_TRUE(close(inf, inf));
  EXPECT_FALSE(close(inf, -inf));
  EXPECT_FALSE(close(1.0, inf));
  EXPECT_FALSE(close(nan, nan));
  EXPECT_TRUE(LogicalNot::value(V(0.0)).m);
  EXPECT_FALSE(LogicalNot::value(V(nan)).m);
  EXPECT_FALSE(LogicalXor::value(V(2.0), V(nan)).m);
}

template <class F, class... X>
void complex_like_real(X... x) {
  auto y = F::value(Complex<V>{V(x), V(0.0)}...);
  EXPECT_NEAR(y.re.v, F::value(V(x)...).v, 1e-14);
  EXPECT_NEAR(y.im.v, 0, 1e-14);
  auto t = derivative<F, 0>(Complex<V>{V(x), V(0.0)}...);
  EXPECT_NEAR(t.re.v, (derivative<F, 0>(V(x)...).v), 1e-13);
}

// Every formula that takes complex numbers, on the real axis.
TEST(Formula, Complex) {
  complex_like_real<Add>(0.3, 0.7);
  complex_like_real<Sub>(0.3, 0.7);
  complex_like_real<Mul>(0.3, 0.7);
  complex_like_real<Div>(0.3, 0.7);
  complex_like_real<Neg>(0.3);
  complex_like_real<Reciprocal>(0.3);
  complex_like_real<Square>(0.3);
  complex_like_real<Pow>(0.3, 0.7);
  complex_like_real<Addcmul>(0.3, 0.7, 0.2, 0.9);
  complex_like_real<Addcdiv>(0.3, 0.7, 0.2, 0.9);
  complex_like_real<Exp>(0.3);
  complex_like_real<Exp2>(0.3);
  complex_like_real<Expm1>(0.3);
  complex_like_real<Log>(0.3);
  complex_like_real<Log2>(0.3);
  complex_like_real<Log10>(0.3);
  complex_like_real<Log1p>(0.3);
  complex_like_real<Sqrt>(0.3);
  complex_like_real<Rsqrt>(0.3);
  complex_like_real<Sigmoid>(0.3);
  complex_like_real<Sin>(0.3);
  complex_like_real<Cos>(0.3);
  complex_like_real<Tan>(0.3);
  complex_like_real<Asin>(0.3);
  complex_like_real<Acos>(0.3);
  complex_like_real<Atan>(0.3);
  complex_like_real<Sinh>(0.3);
  complex_like_real<Cosh>(0.3);
  complex_like_real<Tanh>(0.3);
  complex_like_real<Asinh>(0.3);
  complex_like_real<Acosh>(1.3);
  complex_like_real<Atanh>(0.3);
  Complex<V> z{V(1.0), V(2.0)};
  EXPECT_EQ(Where::value(V(0.0), z, z + 1.0).re.v, 2);
  EXPECT_TRUE(Equal::value(z, z).m && !NotEqual::value(z, z).m && LogicalOr::value(z, z).m && IsFinite::value(z).m);
  EXPECT_FALSE(IsNan::value(z).m || IsInf::value(z).m || LogicalNot::value(z).m);
  EXPECT_EQ((derivative<Pow, 1>(Complex<V>{V(0.0), V(0.0)}, z).re.v), 0);
}

}  // namespace
}  // namespace tutti::pointwise
