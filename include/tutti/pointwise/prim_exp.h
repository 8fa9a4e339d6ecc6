// exp and the functions built from it: exp2, expm1, sigmoid, sinh, cosh, tanh.
//
// All of them write x = k ln 2 + r with k integral and |r| <= ln(2) / 2, so that e^x = 2^k e^r, and e^r - 1 is
// r + r^2 q(r) with a polynomial q. Where more than an ordinary rounding is at stake (a following subtraction, a
// division), r keeps a low part and the sum stays unevaluated.
#pragma once

#include "tutti/pointwise/prim_basic.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

// ln 2 = high + low; high is short enough for k * high to be exact for every k that occurs.
template <class T>
struct Ln2 {
  static constexpr T high = Real<T>::is_float ? T(0x1.62e4p-1) : T(0x1.62e42fefa38p-1);
  static constexpr T low = Real<T>::is_float ? T(0x1.7f7d1cp-20) : T(0x1.ef35793c7673p-45);
};

// (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2; the error, relative to e^r, is 2^-27.6 for float and 2^-58 for double.
template <class T, int N>
TUTTI_HD Vec<T, N> exp_tail(Vec<T, N> r) {
  if constexpr (Real<T>::is_float) {
    return polynomial(r, 0x1.fffff8p-2, 0x1.55548ep-3, 0x1.555adcp-5, 0x1.123becp-7, 0x1.692b6ep-10);
  } else {
    return polynomial(r, 0x1.000000000000cp-1, 0x1.5555555555561p-3, 0x1.555555554fdf1p-5, 0x1.111111110d63ap-7,
                      0x1.6c16c1860e367p-10, 0x1.a01a01bae3c6fp-13, 0x1.a01995a2b6e5fp-16, 0x1.71dddfc5e571p-19,
                      0x1.28b1101728da6p-22, 0x1.af85943fde789p-26);
  }
}

// e^x = 2^k (1 + r + tail), for |x| small enough that 2^k can be scaled by.
template <class V>
struct ExpParts {
  V k, r, tail;
};
template <class T, int N>
TUTTI_HD ExpParts<Vec<T, N>> exp_parts(Vec<T, N> x) {
  using V = Vec<T, N>;
  V k = fma(x, V(1.4426950408889634), V(Real<T>::magic)) - Real<T>::magic;
  V exact = fma(k, V(-Ln2<T>::high), x);
  V r = fma(k, V(-Ln2<T>::low), exact);
  V r_low = fma(k, V(-Ln2<T>::low), exact - r);
  // e^(r + r_low) = e^r + r_low e^r, and for so small an r_low, 1 + r is near enough to that last e^r.
  return {k, r, fma(r * r, exp_tail(r), fma(r, r_low, r_low))};
}
// The same for e^(x + x_low).
template <class T, int N>
TUTTI_HD ExpParts<Vec<T, N>> exp_parts(Vec<T, N> x, Vec<T, N> x_low) {
  using V = Vec<T, N>;
  V k = fma(x, V(1.4426950408889634), V(Real<T>::magic)) - Real<T>::magic;
  V exact = fma(k, V(-Ln2<T>::high), x);
  V r = fma(k, V(-Ln2<T>::low), exact);
  V r_low = fma(k, V(-Ln2<T>::low), exact - r) + x_low;
  V tail = (r * r) * exp_tail(r);
  return {k, r, fma(r_low, 1 + (r + tail), tail)};
}

// The range outside which e^x is 0 or infinity anyway; NaN passes.
template <class T, int N>
TUTTI_HD Vec<T, N> clamp_exp_argument(Vec<T, N> x) {
  using V = Vec<T, N>;
  return greater(V(Real<T>::is_float ? -104 : -746), lesser(V(Real<T>::is_float ? 89 : 710), x));
}

// e^(x + x_low), rounded once more than its parts. |x_low| is small against |x|, and ignored where x overflows.
template <class T, int N>
TUTTI_HD Vec<T, N> exp_pair(Pair<Vec<T, N>> x) {
  using V = Vec<T, N>;
  V hi = clamp_exp_argument(x.hi);
  ExpParts<V> e = exp_parts(hi, select(hi == x.hi, x.lo, 0));
  return scale(1 + (e.r + e.tail), e.k);
}

// e^x - 1 = hi + lo for |x| up to where e^x overflows, less half a binade.
template <class T, int N>
TUTTI_HD Pair<Vec<T, N>> expm1_pair(Vec<T, N> x) {
  using V = Vec<T, N>;
  ExpParts<V> e = exp_parts(x);
  V s = power_of_two(e.k);
  // 2^k (1 + r + tail) - 1 = (2^k - 1) + 2^k r + 2^k tail. The first two add without loss: either |2^k - 1| >= |2^k r|
  // or k == 0 and the first is zero.
  Pair<V> sum = fast_two_sum(s - 1, s * e.r);
  return fast_two_sum(sum.hi, fma(s, e.tail, sum.lo));
}

}  // namespace detail

template <class T, int N>
TUTTI_HD Vec<T, N> exp(Vec<T, N> x) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  x = detail::clamp_exp_argument(x);
  V k = fma(x, V(1.4426950408889634), V(R::magic)) - R::magic;
  V r = fma(k, V(-detail::Ln2<T>::low), fma(k, V(-detail::Ln2<T>::high), x));
  V p = 1 + fma(r * r, detail::exp_tail(r), r);
  return scale(p, k);
}

template <class T, int N>
TUTTI_HD Vec<T, N> exp2(Vec<T, N> x) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  x = greater(V(R::is_float ? -151 : -1076), lesser(V(R::is_float ? 129 : 1025), x));
  V k = (x + R::magic) - R::magic;
  V f = x - k;
  // f ln 2 as r + r_low.
  constexpr double ln2 = R::is_float ? double(float(0.6931471805599453)) : 0.6931471805599453;
  constexpr double ln2_low = R::is_float ? 0.6931471805599453 - ln2 : 0x1.abc9e3b39803fp-56;
  V r = f * ln2;
  V r_low = fma(f, V(ln2_low), fma(f, V(ln2), -r));
  return scale(1 + (r + fma(r * r, detail::exp_tail(r), r_low)), k);
}

template <class T, int N>
TUTTI_HD Vec<T, N> expm1(Vec<T, N> x) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  V c = greater(V(R::is_float ? -20 : -40), detail::clamp_exp_argument(x));
  detail::ExpParts<V> e = detail::exp_parts(c);
  // Everything is halved, because 2^k alone may overflow when the result does not.
  V s = detail::power_of_two(e.k - 1);
  detail::Pair<V> sum = detail::fast_two_sum(s - T(0.5), s * e.r);
  V y = sum.hi + fma(s, e.tail, sum.lo);
  return select(abs(x) < T(R::is_float ? 0x1p-26 : 0x1p-55), x, y + y);
}

// 1 / (1 + e^-x). With z = e^-|x| it is 1 / (1 + z) or z / (1 + z); z keeps its low part through the division.
template <class T, int N>
TUTTI_HD Vec<T, N> sigmoid(Vec<T, N> x) {
  using V = Vec<T, N>;
  using P = detail::Pair<V>;
  V c = detail::clamp_exp_argument(-abs(x));
  detail::ExpParts<V> e = detail::exp_parts(c);
  P p = detail::fast_two_sum(V(1), e.r);
  p = detail::fast_two_sum(p.hi, p.lo + e.tail);
  P z = {scale(p.hi, e.k), scale(p.lo, e.k)};
  P denominator = detail::fast_two_sum(V(1), z.hi);
  denominator.lo = denominator.lo + z.lo;
  auto positive = x >= 0;
  P q = detail::divide(P{select(positive, 1, z.hi), select(positive, 0, z.lo)}, denominator);
  return q.hi + q.lo;
}

// t / (t + 2) with t = e^(2|x|) - 1, all in pairs.
template <class T, int N>
TUTTI_HD Vec<T, N> tanh(Vec<T, N> x) {
  using V = Vec<T, N>;
  using P = detail::Pair<V>;
  V a = lesser(V(detail::Real<T>::is_float ? 10 : 20), abs(x));
  P t = detail::expm1_pair(a + a);
  P denominator = detail::two_sum(V(2), t.hi);
  denominator.lo = denominator.lo + t.lo;
  P q = detail::divide(t, denominator);
  return copysign(q.hi + q.lo, x);
}

namespace detail {

// e^|x| / 2 and e^-|x| / 2. The first is a pair; the second is small beside it, or not needed.
template <class V>
struct HyperbolicHalves {
  Pair<V> grow;
  V decay;
};
template <class T, int N>
TUTTI_HD HyperbolicHalves<Vec<T, N>> hyperbolic_halves(Vec<T, N> a) {
  using V = Vec<T, N>;
  a = lesser(V(Real<T>::is_float ? 90 : 711), a);
  ExpParts<V> e = exp_parts(a);
  Pair<V> p = fast_two_sum(V(1), e.r);
  p = fast_two_sum(p.hi, p.lo + e.tail);
  V k = e.k - 1;
  return {{scale(p.hi, k), scale(p.lo, k)}, scale(1 / p.hi, -1 - e.k)};
}

}  // namespace detail

template <class T, int N>
TUTTI_HD Vec<T, N> cosh(Vec<T, N> x) {
  detail::HyperbolicHalves<Vec<T, N>> h = detail::hyperbolic_halves(abs(x));
  return h.grow.hi + (h.decay + h.grow.lo);
}

template <class T, int N>
TUTTI_HD Vec<T, N> sinh(Vec<T, N> x) {
  using V = Vec<T, N>;
  V a = abs(x);
  // Below 1 the difference of the exponentials would cancel; there sinh is x + x^3 p(x^2).
  V z = a * a;
  V p;
  if constexpr (detail::Real<T>::is_float) {
    p = detail::polynomial(z, 0x1.555556p-3, 0x1.1110ecp-7, 0x1.a01adp-13, 0x1.76ac86p-19);
  } else {
    p = detail::polynomial(z, 0x1.5555555555556p-3, 0x1.1111111111041p-7, 0x1.a01a01a03167ep-13, 0x1.71de3a4077167p-19,
                           0x1.ae646b3299e51p-26, 0x1.6118e9df66163p-33, 0x1.b52b9e5774ebfp-41);
  }
  V small = fma(a * z, p, a);
  detail::HyperbolicHalves<V> h = detail::hyperbolic_halves(a);
  V large = h.grow.hi - (h.decay - h.grow.lo);
  return copysign(select(a < 1, small, large), x);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
