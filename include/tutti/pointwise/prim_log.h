// log and the functions built from it: log2, log10, log1p, asinh, acosh, atanh.
//
// x = m 2^e with m in [sqrt(1/2), sqrt(2)), f = m - 1 (exact), and log(1 + f) = f - f^2 / 2 + f^3 p(f). The leading f
// is never rounded: it is added last, to a tail that is small beside it.
#pragma once

#include "tutti/pointwise/prim_exp.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

// A constant for either element type.
template <class T>
TUTTI_HD constexpr double pick(double for_float, double for_double) {
  return Real<T>::is_float ? for_float : for_double;
}

// (log(1 + f) - f) / f^2; the error of f^2 times this, relative to log(1 + f), is 2^-27.4 for float, 2^-56.5 for
// double.
template <class T, int N>
TUTTI_HD Vec<T, N> log_tail(Vec<T, N> f) {
  Vec<T, N> p;
  if constexpr (Real<T>::is_float) {
    p = polynomial(f, 0x1.55554ap-2, -0x1.00022p-2, 0x1.99a5aap-3, -0x1.54789p-3, 0x1.226dp-3, -0x1.0cdf28p-3,
                   0x1.07d7dp-3, -0x1.4203eep-4);
  } else {
    p = polynomial(f, 0x1.5555555555547p-2, -0x1.fffffffffee85p-3, 0x1.999999999bd51p-3, -0x1.555555567152fp-3,
                   0x1.249249245ffd6p-3, -0x1.ffffff2a4b4ccp-4, 0x1.c71c71154af3ep-4, -0x1.9999c215a21a2p-4,
                   0x1.745d58893d0ecp-4, -0x1.55510c0b64684p-4, 0x1.3b09b42415ae7p-4, -0x1.24d3f4b9493dbp-4,
                   0x1.11dfe0ae48a8fp-4, -0x1.fc01a9a0298b3p-5, 0x1.cfa280d1ed5ddp-5, -0x1.ce72b4e635bc5p-5,
                   0x1.0a9463da12a41p-4, -0x1.f1a6acd7d82b3p-5, 0x1.b9385d89f3801p-6);
  }
  return fma(f, p, Vec<T, N>(-0.5));
}

// log((1 + f) 2^e) + extra, extra being small.
template <class T, int N>
TUTTI_HD Vec<T, N> log_sum(Vec<T, N> f, Vec<T, N> e, Vec<T, N> extra) {
  using V = Vec<T, N>;
  V tail = fma(f * f, log_tail(f), fma(e, V(Ln2<T>::low), extra));
  Pair<V> lead = fast_two_sum(e * Ln2<T>::high, f);
  return lead.hi + (lead.lo + tail);
}

// y is the logarithm computed for x; put in what it must be where x is not a positive finite number.
template <class T, int N>
TUTTI_HD Vec<T, N> log_specials(Vec<T, N> x, Vec<T, N> y) {
  using R = Real<T>;
  y = select(x < R::infinity, y, x);
  return select(x > 0, y, select(x == 0, -R::infinity, R::nan));
}

// 2^-e for the exponent of a positive number, but no denormal and no infinity.
template <class T, int N>
TUTTI_HD Vec<T, N> reciprocal_power(Vec<T, N> e) {
  using V = Vec<T, N>;
  constexpr int limit = Real<T>::bias - 1;
  return power_of_two(greater(V(-limit), lesser(V(limit), -e)));
}

// log(2^extra_exponent (u.hi + u.lo)) for finite u.hi > 0; u.lo is zero or negligible where u.hi is extreme.
template <class T, int N>
TUTTI_HD Vec<T, N> log_pair(Pair<Vec<T, N>> u, Vec<T, N> extra_exponent) {
  using V = Vec<T, N>;
  Decomposed<V> d = decompose(u.hi);
  V f = d.mantissa - 1;
  V low = u.lo * reciprocal_power(d.exponent);
  // log(1 + f + low) = log(1 + f) + low / (1 + f), and 1 - f is near enough to 1 / (1 + f).
  return log_sum(f, d.exponent + extra_exponent, fma(-f, low, low));
}
// log(1 + z.hi + z.lo) for finite z.hi > -1.
template <class T, int N>
TUTTI_HD Vec<T, N> log1p_pair(Pair<Vec<T, N>> z) {
  Pair<Vec<T, N>> u = two_sum(Vec<T, N>(1), z.hi);
  u.lo = u.lo + z.lo;
  return log_pair(u, Vec<T, N>(0));
}

// e * base_of_two + log(1 + f) * scale: logarithms to another base. Both factors are hi + lo; e * base_of_two.hi is
// exact.
template <class T, int N>
TUTTI_HD Vec<T, N> log_to_base(Vec<T, N> x, double two_hi, double two_lo, double scale_hi, double scale_lo) {
  using V = Vec<T, N>;
  Decomposed<V> d = decompose(x);
  V f = d.mantissa - 1, e = d.exponent;
  V tail = (f * f) * log_tail(f);
  Pair<V> p = two_product(f, V(scale_hi));
  V rest = fma(tail, V(scale_hi), fma(f, V(scale_lo), fma(e, V(two_lo), p.lo)));
  Pair<V> lead = fast_two_sum(e * two_hi, p.hi);
  return log_specials(x, lead.hi + (lead.lo + rest));
}

}  // namespace detail

template <class T, int N>
TUTTI_HD Vec<T, N> log(Vec<T, N> x) {
  detail::Decomposed<Vec<T, N>> d = detail::decompose(x);
  return detail::log_specials(x, detail::log_sum(d.mantissa - 1, d.exponent, Vec<T, N>(0)));
}

template <class T, int N>
TUTTI_HD Vec<T, N> log2(Vec<T, N> x) {
  using detail::pick;
  return detail::log_to_base(x, 1, 0, pick<T>(0x1.715476p+0, 0x1.71547652b82fep+0),
                             pick<T>(0x1.4ae0cp-26, 0x1.777d0ffda0d24p-56));
}

template <class T, int N>
TUTTI_HD Vec<T, N> log10(Vec<T, N> x) {
  using detail::pick;
  return detail::log_to_base(x, pick<T>(0x1.344p-2, 0x1.34413509f78p-2), pick<T>(0x1.3509f8p-18, 0x1.fef311f12b358p-46),
                             pick<T>(0x1.bcb7b2p-2, 0x1.bcb7b1526e50ep-2),
                             pick<T>(-0x1.5b235ep-27, 0x1.95355baaafad3p-57));
}

template <class T, int N>
TUTTI_HD Vec<T, N> log1p(Vec<T, N> x) {
  using R = detail::Real<T>;
  Vec<T, N> y = detail::log1p_pair(detail::Pair<Vec<T, N>>{x, Vec<T, N>(0)});
  y = select((x < R::infinity) & (x != 0), y, x);
  return select(x > -1, y, select(x == -1, -R::infinity, R::nan));
}

// log(a + sqrt(a^2 + 1)) with a = |x|. The argument less 1, a + a^2 / (1 + sqrt(a^2 + 1)), is formed in pairs; for
// large a it is 2a to the last bit.
template <class T, int N>
TUTTI_HD Vec<T, N> asinh(Vec<T, N> x) {
  using V = Vec<T, N>;
  using P = detail::Pair<V>;
  V a = abs(x);
  auto large = a > T(detail::pick<T>(0x1p15, 0x1p30));
  P square = detail::two_product(a, a);
  P sum = detail::two_sum(V(1), square.hi);
  sum.lo = sum.lo + square.lo;
  P root = detail::square_root(sum);
  P denominator = detail::fast_two_sum(root.hi, V(1));
  denominator.lo = denominator.lo + root.lo;
  P w = detail::divide(square, denominator);
  P z = detail::fast_two_sum(a, w.hi);
  P u = detail::two_sum(V(1), z.hi);
  u.lo = u.lo + (z.lo + w.lo);
  u = {select(large, a, u.hi), select(large, 0, u.lo)};
  V y = detail::log_pair(u, select(large, V(1), V(0)));
  return copysign(select(a < detail::Real<T>::infinity, y, a), x);
}

// log(1 + t + sqrt(2t + t^2)) with t = x - 1.
template <class T, int N>
TUTTI_HD Vec<T, N> acosh(Vec<T, N> x) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  using P = detail::Pair<V>;
  auto large = x > T(detail::pick<T>(0x1p15, 0x1p30));
  P t = detail::fast_two_sum(x, V(-1));
  P t2 = detail::two_sum(V(2), t.hi);
  t2.lo = t2.lo + t.lo;
  P root = detail::square_root(detail::multiply(t, t2));
  P z = detail::two_sum(t.hi, root.hi);
  P u = detail::two_sum(V(1), z.hi);
  u.lo = u.lo + (z.lo + (t.lo + root.lo));
  u = {select(large, x, u.hi), select(large, 0, u.lo)};
  V y = detail::log_pair(u, select(large, V(1), V(0)));
  y = select(x < R::infinity, y, x);
  return select(x > 1, y, select(x == 1, 0, R::nan));
}

// log1p(2a / (1 - a)) / 2 with a = |x|.
template <class T, int N>
TUTTI_HD Vec<T, N> atanh(Vec<T, N> x) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  using P = detail::Pair<V>;
  V a = abs(x);
  V y = detail::log1p_pair(detail::divide(P{a + a, V(0)}, detail::fast_two_sum(V(1), -a))) * T(0.5);
  return copysign(select(a < 1, y, select(a == 1, R::infinity, R::nan)), x);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
