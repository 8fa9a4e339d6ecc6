// pow and hypot, and the logarithm to about twice the working precision that pow and lgamma need.
#pragma once

#include "tutti/pointwise/prim_log.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

// log(x.hi + x.lo) as a pair, for finite x.hi > 0; the relative error is about 2^-65 for double, 2^-36 for float.
//
// With f = m - 1 and s = f / (2 + f), log m = 2 atanh(s) = 2s + s^3 (2/3 + z q(z)), z = s^2 <= 0.0295. The cubic term
// is at most 1% of the whole and z q(z) at most 2% of 2/3, so that q alone can be in single working precision; s, z and
// the products are pairs.
template <class T, int N>
TUTTI_HD Pair<Vec<T, N>> log_to_pair(Pair<Vec<T, N>> x) {
  using V = Vec<T, N>;
  using P = Pair<V>;
  Decomposed<V> d = decompose(x.hi);
  V e = d.exponent;
  V low = x.lo * reciprocal_power(e);
  V f = d.mantissa - 1;
  P denominator = fast_two_sum(V(2), f);
  denominator.lo = denominator.lo + low;
  P s = divide(P{f, low}, denominator);
  s = fast_two_sum(s.hi, s.lo);
  P z = multiply(s, s);
  V q;
  if constexpr (Real<T>::is_float) {
    q = polynomial(z.hi, 0x1.999998p-2, 0x1.2493acp-2, 0x1.c644a6p-3, 0x1.8fedc6p-3);
  } else {
    q = polynomial(z.hi, 0x1.9999999999996p-2, 0x1.2492492492f4cp-2, 0x1.c71c71c597696p-3, 0x1.745d1828e0b5cp-3,
                   0x1.3b1364e9f20e1p-3, 0x1.11206a4195caap-3, 0x1.de3e357c1b003p-4, 0x1.eabf7e99e42ecp-4);
  }
  P c = fast_two_sum(V(pick<T>(0x1.555556p-1, 0x1.5555555555555p-1)),
                     fma(z.hi, q, V(pick<T>(-0x1.555556p-26, 0x1.5555555555555p-55))));
  P cubic = multiply(multiply(s, z), c);
  P sum = fast_two_sum(s.hi + s.hi, cubic.hi);
  sum.lo = sum.lo + (fma(V(2), s.lo, cubic.lo));
  P total = fast_two_sum(e * Ln2<T>::high, sum.hi);
  return fast_two_sum(total.hi, total.lo + fma(e, V(Ln2<T>::low), sum.lo));
}

}  // namespace detail

// x^y with the special cases of IEEE 754: x^0 and 1^y are 1 even for NaN, a negative x needs an integral y.
template <class T, int N>
TUTTI_HD Vec<T, N> pow(Vec<T, N> x, std::type_identity_t<Vec<T, N>> y) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  using P = detail::Pair<V>;
  V a = abs(x);
  P l = detail::log_to_pair(P{a, V(0)});
  P p = detail::two_product(y, l.hi);
  p.lo = fma(y, l.lo, p.lo);
  V r = detail::exp_pair(p);

  // |x| of 0 or infinity, and infinite y: the result is 0, 1 or infinity according to the sign of y log |x|.
  V inf = R::infinity;
  auto grows = (a > 1) ^ (y < 0);
  V limit = select(grows, inf, 0);
  auto extreme = (a == 0) | (a == inf) | (abs(y) == inf);
  r = select(extreme, select(a == 1, 1, limit), r);

  V half = y * T(0.5);
  auto integral = round(y) == y;
  auto odd = integral & (round(half) != half);
  r = select(odd, copysign(r, x), r);
  r = select((x < 0) & !integral & (a != inf) & (abs(y) != inf), R::nan, r);
  r = select((x != x) | (y != y), x + y, r);
  return select((x == 1) | (y == 0), 1, r);
}

// sqrt(x^2 + y^2) without overflow or underflow on the way. Both are scaled by a power of two that brings the larger
// near 1; the sum of the squares is a pair.
template <class T, int N>
TUTTI_HD Vec<T, N> hypot(Vec<T, N> x, std::type_identity_t<Vec<T, N>> y) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  using P = detail::Pair<V>;
  V a = abs(x), b = abs(y);
  V large = greater(a, b), small = lesser(a, b);
  auto is_huge = large > T(detail::pick<T>(0x1p60, 0x1p500)), is_tiny = large < T(detail::pick<T>(0x1p-40, 0x1p-450));
  V down = detail::pick<T>(0x1p-68, 0x1p-550), up = detail::pick<T>(0x1p80, 0x1p700);
  V factor = select(is_huge, down, select(is_tiny, up, 1));
  V back = select(is_huge, detail::pick<T>(0x1p68, 0x1p550), select(is_tiny, detail::pick<T>(0x1p-80, 0x1p-700), V(1)));
  large = large * factor;
  small = small * factor;
  P square = detail::two_product(large, large), other = detail::two_product(small, small);
  P sum = detail::fast_two_sum(square.hi, other.hi);
  sum.lo = sum.lo + (square.lo + other.lo);
  P root = detail::square_root(sum);
  V r = select(large == 0, 0, root.hi + root.lo) * back;
  r = select((a != a) | (b != b), a + b, r);
  return select((a == R::infinity) | (b == R::infinity), R::infinity, r);
}

template <class A, class T, int N>
  requires std::is_arithmetic_v<A>
TUTTI_HD Vec<T, N> pow(A x, Vec<T, N> y) {
  return pow(Vec<T, N>(x), y);
}
template <class A, class T, int N>
  requires std::is_arithmetic_v<A>
TUTTI_HD Vec<T, N> hypot(A x, Vec<T, N> y) {
  return hypot(Vec<T, N>(x), y);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
