// Dual numbers: forward-mode derivatives of every pointwise formula, and the derivative rule of every primitive. See
// Note [Levels of duals] in dual_core.h.
#pragma once

#include "tutti/pointwise/dual_core.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

// ---- Steps: their result does not vary, so it is no Dual

TUTTI_HD auto floor(AnyDual auto x) { return floor(plain_value(x)); }
TUTTI_HD auto ceil(AnyDual auto x) { return ceil(plain_value(x)); }
TUTTI_HD auto trunc(AnyDual auto x) { return trunc(plain_value(x)); }
TUTTI_HD auto round(AnyDual auto x) { return round(plain_value(x)); }
TUTTI_HD auto sign(AnyDual auto x) {
  detail::require_real(x);
  return sign(plain_value(x));
}

// ---- Roots, exponentials and logarithms

TUTTI_HD auto abs(AnyDual auto x) {
  detail::require_real(x);
  return detail::chain(x, abs(x.value), sign(x.value));
}
TUTTI_HD auto sqrt(AnyDual auto x) {
  auto y = sqrt(x.value);
  return detail::chain(x, y, 0.5 / y);
}
TUTTI_HD auto rsqrt(AnyDual auto x) {
  auto y = rsqrt(x.value);
  return detail::chain(x, y, -0.5 * y * y * y);
}
TUTTI_HD auto exp(AnyDual auto x) {
  auto y = exp(x.value);
  return detail::chain(x, y, y);
}
TUTTI_HD auto exp2(AnyDual auto x) {
  auto y = exp2(x.value);
  return detail::chain(x, y, y * 0.69314718055994530942);
}
TUTTI_HD auto expm1(AnyDual auto x) {
  auto y = expm1(x.value);
  return detail::chain(x, y, y + 1.0);
}
TUTTI_HD auto log(AnyDual auto x) { return detail::chain(x, log(x.value), 1.0 / x.value); }
TUTTI_HD auto log2(AnyDual auto x) { return detail::chain(x, log2(x.value), 1.4426950408889634074 / x.value); }
TUTTI_HD auto log10(AnyDual auto x) { return detail::chain(x, log10(x.value), 0.43429448190325182765 / x.value); }
TUTTI_HD auto log1p(AnyDual auto x) { return detail::chain(x, log1p(x.value), 1.0 / (x.value + 1.0)); }
TUTTI_HD auto sigmoid(AnyDual auto x) {
  auto y = sigmoid(x.value);
  return detail::chain(x, y, y * (1.0 - y));
}

// ---- Trigonometric and hyperbolic functions

TUTTI_HD auto sin(AnyDual auto x) { return detail::chain(x, sin(x.value), cos(x.value)); }
TUTTI_HD auto cos(AnyDual auto x) { return detail::chain(x, cos(x.value), -sin(x.value)); }
TUTTI_HD auto tan(AnyDual auto x) {
  auto y = tan(x.value);
  return detail::chain(x, y, y * y + 1.0);
}
TUTTI_HD auto asin(AnyDual auto x) {
  return detail::chain(x, asin(x.value), 1.0 / sqrt((1.0 - x.value) * (x.value + 1.0)));
}
TUTTI_HD auto acos(AnyDual auto x) {
  return detail::chain(x, acos(x.value), -1.0 / sqrt((1.0 - x.value) * (x.value + 1.0)));
}
TUTTI_HD auto atan(AnyDual auto x) { return detail::chain(x, atan(x.value), 1.0 / (x.value * x.value + 1.0)); }
TUTTI_HD auto sinh(AnyDual auto x) { return detail::chain(x, sinh(x.value), cosh(x.value)); }
TUTTI_HD auto cosh(AnyDual auto x) { return detail::chain(x, cosh(x.value), sinh(x.value)); }
TUTTI_HD auto tanh(AnyDual auto x) {
  auto y = tanh(x.value);
  return detail::chain(x, y, 1.0 - y * y);
}
TUTTI_HD auto asinh(AnyDual auto x) { return detail::chain(x, asinh(x.value), 1.0 / sqrt(x.value * x.value + 1.0)); }
TUTTI_HD auto acosh(AnyDual auto x) {
  // Two roots, not one of the product: that is the right branch for complex x, and NaN for real x < -1 as the value is.
  return detail::chain(x, acosh(x.value), 1.0 / (sqrt(x.value - 1.0) * sqrt(x.value + 1.0)));
}
TUTTI_HD auto atanh(AnyDual auto x) {
  return detail::chain(x, atanh(x.value), 1.0 / ((1.0 - x.value) * (x.value + 1.0)));
}

// ---- Error and gamma functions

TUTTI_HD auto erf(AnyDual auto x) {
  return detail::chain(x, erf(x.value), 1.1283791670955125739 * exp(-(x.value * x.value)));
}
TUTTI_HD auto erfc(AnyDual auto x) {
  return detail::chain(x, erfc(x.value), -1.1283791670955125739 * exp(-(x.value * x.value)));
}
TUTTI_HD auto normal_cdf(AnyDual auto x) {
  return detail::chain(x, normal_cdf(x.value), 0.39894228040143267794 * exp(x.value * x.value * -0.5));
}
TUTTI_HD auto normal_ramp(AnyDual auto x) { return detail::normal_ramp_formula(x); }
TUTTI_HD auto erfinv(AnyDual auto x) {
  auto y = erfinv(x.value);
  return detail::chain(x, y, 0.88622692545275801365 * exp(y * y));
}
TUTTI_HD auto lgamma(AnyDual auto x) { return detail::chain(x, lgamma(x.value), digamma(x.value)); }

namespace detail {

// B_2k / (2k)! · (2k + n - 1)! / (n - 1)!, the coefficients of the asymptotic series of polygamma.
constexpr double polygamma_coefficient(int n, int k) {
  constexpr double bernoulli[] = {1.0 / 6,       -1.0 / 30, 1.0 / 42,      -1.0 / 30,     5.0 / 66,
                                  -691.0 / 2730, 7.0 / 6,   -3617.0 / 510, 43867.0 / 798, -174611.0 / 330};
  double c = bernoulli[k - 1];
  for (int i = 1; i <= 2 * k; ++i) c *= static_cast<double>(n - 1 + i) / i;
  return c;
}

constexpr double factorial(int n) { return n <= 1 ? 1.0 : n * factorial(n - 1); }

// The n-th derivative of cot is a polynomial in c = cot: P_0 = c, P_(n+1) = -(1 + c²) P_n'. The coefficient of c^i.
constexpr double cotangent_coefficient(int n, int i) {
  if (i < 0 || i > n + 1) return 0.0;
  if (n == 0) return i == 1 ? 1.0 : 0.0;
  return -(i + 1) * cotangent_coefficient(n - 1, i + 1) - (i - 1) * cotangent_coefficient(n - 1, i - 1);
}

template <int Exponent, class X>
TUTTI_HD auto whole_power(X x) {
  if constexpr (Exponent == 1) {
    return x;
  } else {
    auto half = whole_power<Exponent / 2>(x);
    if constexpr (Exponent % 2 == 0) {
      return half * half;
    } else {
      return half * half * x;
    }
  }
}

}  // namespace detail

/// The Order-th derivative of digamma, Order >= 1.
template <int Order, class X>
TUTTI_HD auto polygamma(X x);

namespace detail {

template <int Order>
struct PolygammaRule {
  static constexpr int steps = 8 + 2 * Order;
  static constexpr int terms = 10;
  static constexpr double parity = Order % 2 == 0 ? -1.0 : 1.0;  // the sign of the function for x > 0
  static constexpr double lead = parity * factorial(Order - 1);
  template <int K>
  static constexpr double series_coefficient = polygamma_coefficient(Order, K);
  template <int I>
  static constexpr double wave_coefficient = cotangent_coefficient(Order, I);

  // Σ (x + k)^-(Order + 1) for k < steps: what the recurrence collects on the way to where the series is accurate.
  template <int K, class X>
  TUTTI_HD static auto recurrence(X x) {
    auto term = whole_power<Order + 1>(1.0 / (x + static_cast<double>(K)));
    if constexpr (K + 1 < steps) {
      return term + recurrence<K + 1>(x);
    } else {
      return term;
    }
  }
  template <int K, class W>
  TUTTI_HD static auto series(W w) {
    if constexpr (K < terms) {
      return w * (series<K + 1>(w) + series_coefficient<K>);
    } else {
      return w * series_coefficient<K>;
    }
  }
  template <int I, class C>
  TUTTI_HD static auto cotangent_derivative(C c) {
    if constexpr (I < Order) {
      return c * cotangent_derivative<I + 1>(c) + wave_coefficient<I>;
    } else {
      return c * wave_coefficient<Order + 1> + wave_coefficient<Order>;
    }
  }

  template <class X>
  TUTTI_HD static auto value(X x) {
    constexpr double pi = 3.14159265358979323846;
    auto reflected = x < 0.0;
    auto z = select(reflected, 1.0 - x, x);
    auto far = 1.0 / (z + static_cast<double>(steps));
    auto tail = whole_power<Order>(far) * (series<1>(far * far) + (far * (0.5 * Order) + 1.0));
    auto right = (tail + recurrence<0>(z) * static_cast<double>(Order)) * lead;
    // cot has period 1 in units of π; the distance to the next integer is exact, so poles are poles. On the right,
    // where they matter to nobody, there are none: 0 times their derivatives would not be 0.
    auto distance = select(reflected, x - round(x), 0.5) * pi;
    auto wave = cotangent_derivative<0>(cos(distance) / sin(distance)) * whole_power<Order + 1>(pi);
    return select(reflected, -parity * right - wave, right);
  }
  template <class X, class Y>
  TUTTI_HD static auto slope(X x, Y) {
    return polygamma<Order + 1>(x);
  }
};

}  // namespace detail

template <class X>
TUTTI_HD auto trigamma(X x) {
  return with_slope<detail::PolygammaRule<1>>(x);
}

template <int Order, class X>
TUTTI_HD auto polygamma(X x) {
  if constexpr (Order == 1) {
    return trigamma(x);  // unqualified: a value type may have its own
  } else {
    return with_slope<detail::PolygammaRule<Order>>(x);
  }
}

TUTTI_HD auto digamma(AnyDual auto x) { return detail::chain(x, digamma(x.value), polygamma<1>(x.value)); }

// ---- Functions of two arguments

namespace detail {

struct PowRule {
  template <class U, class V>
  TUTTI_HD static auto value(U u, V v) {
    return pow(u, v);
  }
  template <class U, class V, class Y>
  TUTTI_HD static auto first(U u, V v, Y) {
    // 0 at v == 0, where the product would be 0 · ∞ if u is 0. For other u it is 0 by itself, and stays a function of
    // v.
    auto none = (v == 0.0) & ((u == 0.0) | (u != u));
    return select(none, 0.0, v * pow(select(none, 1.0, u), v - 1.0));  // whose own derivative is finite there, too
  }
  template <class U, class V, class Y>
  TUTTI_HD static auto second(U u, V, Y y) {
    // 0 to a power is finite just where the power is 0 or to the right of it: there the product would be 0 · ∞.
    auto none = (u == 0.0) & isfinite(y);
    return select(none, 0.0, y * log(select(none, 1.0, u)));
  }
};

struct Atan2Rule {
  template <class U, class V>
  TUTTI_HD static auto value(U u, V v) {
    return atan2(u, v);
  }
  // Through the length rather than its square, which would overflow and underflow early.
  template <class U, class V>
  TUTTI_HD static auto length(U u, V v) {
    auto r = hypot(u, v);
    return select(r == 0.0, 1.0, r);
  }
  template <class U, class V, class Y>
  TUTTI_HD static auto first(U u, V v, Y) {
    auto r = length(u, v);
    return direction(v, r) / r;
  }
  template <class U, class V, class Y>
  TUTTI_HD static auto second(U u, V v, Y) {
    auto r = length(u, v);
    return -direction(u, r) / r;
  }
};

struct HypotRule {
  template <class U, class V>
  TUTTI_HD static auto value(U u, V v) {
    return hypot(u, v);
  }
  template <class U, class V, class Y>
  TUTTI_HD static auto first(U u, V, Y y) {
    return direction(u, y);
  }
  template <class U, class V, class Y>
  TUTTI_HD static auto second(U, V v, Y y) {
    return direction(v, y);
  }
};

struct FmodRule {
  template <class U, class V>
  TUTTI_HD static auto value(U u, V v) {
    return fmod(u, v);
  }
  template <class U, class V, class Y>
  TUTTI_HD static Unit first(U, V, Y) {
    return {};
  }
  template <class U, class V, class Y>
  TUTTI_HD static auto second(U u, V v, Y) {
    return -trunc(u / v);
  }
};

struct RemainderRule {
  template <class U, class V>
  TUTTI_HD static auto value(U u, V v) {
    return remainder(u, v);
  }
  template <class U, class V, class Y>
  TUTTI_HD static Unit first(U, V, Y) {
    return {};
  }
  template <class U, class V, class Y>
  TUTTI_HD static auto second(U u, V v, Y) {
    return -floor(u / v);
  }
};

// The larger (smaller) of a and b, with the tangent of it: where they are equal, half of each.
template <class At, class M, class E, class A, class B, class Y>
TUTTI_HD auto extremum(M first_wins, E equal, A a, B b, Y y) {
  auto s = At::tangent(a);
  auto t = At::tangent(b);
  auto half = Tangent::times(Tangent::plus(s, t), 0.5);
  return At::dual(y, Tangent::choose(equal, half, Tangent::choose(first_wins, s, t, y), y));
}

}  // namespace detail

template <class A, AnyDual<A> B>
TUTTI_HD auto pow(A a, B b) {
  return with_slopes<detail::PowRule>(a, b);
}
template <class A, AnyDual<A> B>
TUTTI_HD auto atan2(A a, B b) {
  return with_slopes<detail::Atan2Rule>(a, b);
}
template <class A, AnyDual<A> B>
TUTTI_HD auto hypot(A a, B b) {
  return with_slopes<detail::HypotRule>(a, b);
}
template <class A, AnyDual<A> B>
TUTTI_HD auto fmod(A a, B b) {
  return with_slopes<detail::FmodRule>(a, b);
}
template <class A, AnyDual<A> B>
TUTTI_HD auto remainder(A a, B b) {
  return with_slopes<detail::RemainderRule>(a, b);
}

template <class A, AnyDual<A> B>
TUTTI_HD auto max(A a, B b) {
  using At = detail::At<highest_level<A, B>()>;
  auto u = detail::as_value(At::value(a), b);
  auto v = detail::as_value(At::value(b), a);
  return detail::extremum<At>(u > v, u == v, a, b, max(u, v));
}
template <class A, AnyDual<A> B>
TUTTI_HD auto min(A a, B b) {
  using At = detail::At<highest_level<A, B>()>;
  auto u = detail::as_value(At::value(a), b);
  auto v = detail::as_value(At::value(b), a);
  return detail::extremum<At>(u < v, u == v, a, b, min(u, v));
}

/// |a| with the sign of b, which makes it independent of b.
template <class A, AnyDual<A> B>
TUTTI_HD auto copysign(A a, B b) {
  auto u = detail::as_value(a, b);
  auto v = detail::as_value(plain_value(b), a);
  if constexpr (AnyDual<A>) {
    auto slope = sign(u) * copysign(constant_like(v, 1.0), v);
    return detail::chain(u, copysign(u.value, v), slope);
  } else {
    return copysign(u, v);
  }
}

// ---- Derivatives of formulas

namespace detail {

template <int Level, bool IsVariable, class X>
TUTTI_HD auto seed(X x) {
  if constexpr (IsVariable) {
    return At<Level>::dual(x, Unit{});
  } else {
    return x;
  }
}

template <class F, int K, size_t... I, class... Args>
TUTTI_HD auto derivative(std::index_sequence<I...>, Args... args) {
  constexpr int level = highest_level<Args...>() + 1;
  auto y = F::value(seed < level, I == K > (args)...);
  auto tangent = Tangent::operand(At<level>::tangent(y));
  if constexpr (std::is_arithmetic_v<decltype(tangent)>) {
    return constant_like(plain_value(y), tangent);
  } else {
    return tangent;
  }
}

}  // namespace detail

/// How fast F::value(args...) changes with argument K, the others held fixed. Where it does not depend on that
/// argument, the result is the constant 0. Arguments may be Duals: derivatives nest.
template <class F, int K, class... Args>
TUTTI_HD auto derivative(Args... args) {
  static_assert(K >= 0 && K < static_cast<int>(sizeof...(Args)), "no such argument");
  return detail::derivative<F, K>(std::index_sequence_for<Args...>{}, args...);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
