// asin, acos, atan and atan2.
#pragma once

#include "tutti/pointwise/prim_trig.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

// The multiples of pi/4 that angles are measured from, as hi + lo.
template <class T>
struct Angles {
  static constexpr double quarter_hi = Real<T>::is_float ? 0x1.921fb6p-1 : 0x1.921fb54442d18p-1;
  static constexpr double quarter_lo = Real<T>::is_float ? -0x1.777a5cp-26 : 0x1.1a62633145c07p-55;
  static constexpr double three_hi = Real<T>::is_float ? 0x1.2d97c8p+1 : 0x1.2d97c7f3321d2p+1;
  static constexpr double three_lo = Real<T>::is_float ? -0x1.99bc5cp-28 : 0x1.a79394c9e8a0ap-54;
};

// (atan(q) - q) / q^3 for |q| <= tan(pi/8), as a polynomial in z = q^2.
template <class T, int N>
TUTTI_HD Vec<T, N> atan_tail(Vec<T, N> z) {
  if constexpr (Real<T>::is_float) {
    return polynomial(z, -0x1.55554ap-2, 0x1.9991e8p-3, -0x1.23ba4p-3, 0x1.b22e8cp-4, -0x1.f31b82p-5);
  } else {
    return polynomial(z, -0x1.555555555553dp-2, 0x1.99999999958afp-3, -0x1.24924922afd86p-3, 0x1.c71c70e72e5b1p-4,
                      -0x1.745cf8ff01fd6p-4, 0x1.3b111b990f2e1p-4, -0x1.10ebd4f7670a7p-4, 0x1.df10edcf7e4f3p-5,
                      -0x1.9cda114b62cf2p-5, 0x1.37e8120eee1dcp-5, -0x1.259223d2e7337p-6);
  }
}

// The angle of the point (x, y), given |x|, |y| and whether x is negative. In [0, pi].
//
// The angle is measured from the nearest multiple of pi/4, which is at most pi/8 away: with y/x below tan(pi/8) from
// the x axis, above 1/tan(pi/8) from the y axis, and otherwise from the diagonal, atan(y/x) = pi/4 + atan((y-x)/(y+x)).
// The quotient is a pair, so the only rounding of note is the last addition.
template <class T, int N>
TUTTI_HD Vec<T, N> angle(Vec<T, N> y, Vec<T, N> x, Mask<T, N> left) {
  using V = Vec<T, N>;
  using A = Angles<T>;
  V tan_eighth = 0.41421356237309503;
  auto near_x = y <= x * tan_eighth;
  auto near_y = x < y * tan_eighth;
  Pair<V> difference = two_sum(y, -x), sum = two_sum(x, y);
  Pair<V> n = {select(near_x, y, select(near_y, -x, difference.hi)), select(near_x | near_y, 0, difference.lo)};
  Pair<V> d = {select(near_x, x, select(near_y, y, sum.hi)), select(near_x | near_y, 0, sum.lo)};
  Pair<V> q = divide(n, d);
  V z = q.hi * q.hi;
  V tail = fma(q.hi * z, atan_tail(z), fma(-z, q.lo, q.lo));
  V base_hi = select(near_x, 0, select(near_y, 2 * A::quarter_hi, A::quarter_hi));
  V base_lo = select(near_x, 0, select(near_y, 2 * A::quarter_lo, A::quarter_lo));
  // On the left the angle is pi minus this.
  V left_hi = select(near_x, 4 * A::quarter_hi, select(near_y, 2 * A::quarter_hi, A::three_hi));
  V left_lo = select(near_x, 4 * A::quarter_lo, select(near_y, 2 * A::quarter_lo, A::three_lo));
  base_hi = select(left, left_hi, base_hi);
  base_lo = select(left, left_lo, base_lo);
  V lead = select(left, -q.hi, q.hi);
  tail = select(left, -tail, tail);
  Pair<V> total = fast_two_sum(base_hi, lead);
  return total.hi + (total.lo + (tail + base_lo));
}

}  // namespace detail

template <class T, int N>
TUTTI_HD Vec<T, N> atan(Vec<T, N> x) {
  using V = Vec<T, N>;
  // Beyond this the angle is pi/2 to the last bit; infinity must not reach the subtractions.
  V a = lesser(V(detail::pick<T>(0x1p30, 0x1p60)), abs(x));
  return copysign(detail::angle(a, V(1), Mask<T, N>(false)), x);
}

// The angle of (x, y) in [-pi, pi], with the special cases of IEEE 754 for zeros and infinities.
template <class T, int N>
TUTTI_HD Vec<T, N> atan2(Vec<T, N> y, std::type_identity_t<Vec<T, N>> x) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  using U = UintOf<T>;
  V a = abs(y), b = abs(x);
  V inf = R::infinity;
  // Infinities of either kind: only which of the two is infinite counts, so 1 stands for infinity and 0 for the rest.
  auto infinite = (a == inf) | (b == inf);
  V ya = select(infinite, V::from_mask(a == inf), a), xa = select(infinite, V::from_mask(b == inf), b);
  // Scale by a power of two so that the larger is far from both ends of the range: its own exponent is brought to a
  // fixed value, and denormals are lifted as far as a single factor can.
  V large = greater(ya, xa);
  Vec<U, N> exponent = as_uint(large) >> R::mantissa_bits;
  constexpr U target = U(2 * R::bias + (R::is_float ? 60 : 500));
  constexpr U lowest = target - U(2 * R::bias);
  exponent = select(exponent < lowest, lowest, exponent);
  V factor = as_float((Vec<U, N>(target) - exponent) << R::mantissa_bits);
  ya = ya * factor;
  xa = xa * factor;
  V r = detail::angle(ya, xa, signbit(x));
  r = select(large == 0, select(signbit(x), V(4 * detail::Angles<T>::quarter_hi), 0), r);
  return select((x != x) | (y != y), x + y, copysign(r, y));
}
template <class A, class T, int N>
  requires std::is_arithmetic_v<A>
TUTTI_HD Vec<T, N> atan2(A y, Vec<T, N> x) {
  return atan2(Vec<T, N>(y), x);
}

namespace detail {

// (asin(x) - x) / x^3 for |x| <= 1/2, as a polynomial in z = x^2.
template <class T, int N>
TUTTI_HD Vec<T, N> asin_tail(Vec<T, N> z) {
  if constexpr (Real<T>::is_float) {
    return polynomial(z, 0x1.5555cap-3, 0x1.33016cp-4, 0x1.7489e6p-5, 0x1.8bb842p-6, 0x1.59c9d8p-5);
  } else {
    return polynomial(z, 0x1.5555555555387p-3, 0x1.333333336f87cp-4, 0x1.6db6db41d459ap-5, 0x1.f1c72c6d2536p-6,
                      0x1.6e89ef7dd8c59p-6, 0x1.1c6c278083131p-6, 0x1.c6f8829f6097bp-7, 0x1.8ee485e5f3277p-7,
                      0x1.aab4c9efb1596p-8, 0x1.40b11cbfed6cp-6, -0x1.0af3a02f9225dp-6, 0x1.05cdf04fb6092p-5);
  }
}

// asin of a <= 1/2, or of sqrt((1 - a) / 2) above that, which is half of acos(a): s.hi + s.lo + tail.
template <class V>
struct HalfArc {
  Pair<V> s;
  V tail;
};
template <class T, int N>
TUTTI_HD HalfArc<Vec<T, N>> half_arc(Vec<T, N> a, Mask<T, N> large) {
  using V = Vec<T, N>;
  V folded = fma(a, V(-0.5), V(0.5));  // exact
  V z = select(large, folded, a * a);
  V root = sqrt(folded);
  V root_lo = fma(-root, root, folded) / (root + root);
  V s = select(large, root, a);
  V s_lo = select(large & (folded > 0), root_lo, 0);
  return {{s, s_lo}, (s * z) * asin_tail(z)};
}

}  // namespace detail

// Above 1/2, asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2)).
template <class T, int N>
TUTTI_HD Vec<T, N> asin(Vec<T, N> x) {
  using V = Vec<T, N>;
  using A = detail::Angles<T>;
  V a = abs(x);
  auto large = a > T(0.5);
  detail::HalfArc<V> h = detail::half_arc(a, large);
  detail::Pair<V> lead = detail::fast_two_sum(V(2 * A::quarter_hi), -2 * h.s.hi);
  V y = lead.hi + (lead.lo + (2 * A::quarter_lo - 2 * (h.tail + h.s.lo)));
  y = select(large, y, h.s.hi + h.tail);
  return copysign(select(a <= 1, y, detail::Real<T>::nan), x);
}

template <class T, int N>
TUTTI_HD Vec<T, N> acos(Vec<T, N> x) {
  using V = Vec<T, N>;
  using A = detail::Angles<T>;
  V a = abs(x);
  auto large = a > T(0.5);
  auto negative = x < 0;
  detail::HalfArc<V> h = detail::half_arc(a, large);
  // large: 2 arc, or pi - 2 arc when x is negative; otherwise pi/2 - asin(x).
  V s = select(large, 2 * h.s.hi, h.s.hi), rest = select(large, 2 * (h.tail + h.s.lo), h.tail);
  auto subtract = !(large ^ negative);
  V base_hi = select(large, select(negative, 4 * A::quarter_hi, V(0)), 2 * A::quarter_hi);
  V base_lo = select(large, select(negative, 4 * A::quarter_lo, V(0)), 2 * A::quarter_lo);
  s = select(subtract, -s, s);
  rest = select(subtract, -rest, rest);
  detail::Pair<V> lead = detail::fast_two_sum(base_hi, s);
  V y = lead.hi + (lead.lo + (rest + base_lo));
  return select(a <= 1, y, detail::Real<T>::nan);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
