// lgamma and digamma.
//
// For a = |x| >= 3.5 both use Stirling's series, as a minimax polynomial in 1 / a^2. Below, the recurrence moves the
// argument by at most two steps into [1.5, 2.5], where a polynomial in t = (argument - 2) serves. Negative arguments
// are reflected. The reflection and the recurrence cancel near the roots, so all large terms are pairs: the absolute
// error stays at the level of one rounding of max(1, |result|).
#pragma once

#include "tutti/pointwise/prim_pow.h"
#include "tutti/pointwise/prim_trig.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

// Where a lies: below 3.5, a = 2 + t + n with n in {-2, ..., 1}.
template <class T, int N>
struct GammaRange {
  Mask<T, N> stirling, plus, minus, minus_two;  // n == 1, n < 0, n == -2
  Vec<T, N> t;
};
template <class T, int N>
TUTTI_HD GammaRange<T, N> gamma_range(Vec<T, N> a) {
  using V = Vec<T, N>;
  GammaRange<T, N> g;
  g.stirling = !(a < T(3.5));
  g.plus = (a >= T(2.5)) & (a < T(3.5));
  g.minus = a < T(1.5);
  g.minus_two = a < T(0.5);
  g.t = a - select(g.minus_two, 0, select(g.minus, 1, select(g.plus, V(3), 2)));
  g.t = select(g.stirling, 0, g.t);
  return g;
}

// sin(pi r) and cos(pi r) for 0 <= r <= 1/2, as pairs.
template <class T, int N>
TUTTI_HD SinCos<Vec<T, N>> sin_cos_pi(Vec<T, N> r) {
  using V = Vec<T, N>;
  using P = Pair<V>;
  auto swap = r > T(0.25);
  r = select(swap, T(0.5) - r, r);  // exact
  V pi_hi = pick<T>(0x1.921fb6p+1, 0x1.921fb54442d18p+1), pi_lo = pick<T>(-0x1.777a5cp-24, 0x1.1a62633145c07p-53);
  P angle = two_product(r, pi_hi);
  angle.lo = fma(r, pi_lo, angle.lo);
  SinCos<V> v = sin_cos(angle);
  P s = fast_two_sum(v.sin.hi, v.sin.lo), c = fast_two_sum(v.cos.hi, v.cos.lo);
  return {{select(swap, c.hi, s.hi), select(swap, c.lo, s.lo)}, {select(swap, s.hi, c.hi), select(swap, s.lo, c.lo)}};
}

// lgamma(a) for finite a > 0.
template <class T, int N>
TUTTI_HD Pair<Vec<T, N>> lgamma_positive(Vec<T, N> a) {
  using V = Vec<T, N>;
  using P = Pair<V>;
  GammaRange<T, N> g = gamma_range(a);
  // The logarithm that is needed: of a (n == -1, Stirling), a (a + 1), a - 1, or none.
  P square = two_product(a, a);
  P rising = fast_two_sum(a, square.hi);
  rising.lo = rising.lo + square.lo;
  V argument = select(g.minus | g.stirling, a, select(g.plus, a - 1, V(1)));
  P l = log_to_pair(P{select(g.minus_two, rising.hi, argument), select(g.minus_two, rising.lo, 0)});

  // lgamma(2 + t) = t p(t), plus or minus the logarithm.
  V p;
  if constexpr (Real<T>::is_float) {
    p = polynomial(g.t, 0x1.b0ee6p-2, 0x1.4a34ccp-2, -0x1.13ep-4, 0x1.513598p-6, -0x1.e40b3p-8, 0x1.7956cep-9,
                   -0x1.374ac2p-10, 0x1.2af9d4p-11, -0x1.06bbbcp-12);
  } else {
    p = polynomial(g.t, 0x1.b0ee6072093cep-2, 0x1.4a34cc4a60fa6p-2, -0x1.13e001a557555p-4, 0x1.51322ac7d8333p-6,
                   -0x1.e404fc21d8fe7p-8, 0x1.7add6eadfcc7bp-9, -0x1.38ac5bfce42c1p-10, 0x1.0b36af5972ed1p-11,
                   -0x1.d3fd6a9087d23p-13, 0x1.a127cd91ac95bp-14, -0x1.78d8f868f383fp-15, 0x1.5808af19fa483p-16,
                   -0x1.3d4ce65b1d70bp-17, 0x1.2620de1c78d97p-18, -0x1.08fccc794a9c7p-19, 0x1.f038cb2f6a913p-21,
                   -0x1.37fd97eeee99dp-21, 0x1.2703c6effc4ebp-22);
  }
  P small = two_sum(select(g.minus, -l.hi, l.hi), g.t * p);
  small.lo = small.lo + select(g.minus, -l.lo, l.lo);

  // a (log a - 1) - log(a) / 2 + log(2 pi) / 2 + s(1 / a^2) / a.
  V inverse = 1 / a;
  V u = inverse * inverse;
  V s;
  if constexpr (Real<T>::is_float) {
    s = polynomial(u, 0x1.555554p-4, -0x1.6bd654p-9, 0x1.7e1934p-11);
  } else {
    s = polynomial(u, 0x1.5555555555554p-4, -0x1.6c16c16bfe8b3p-9, 0x1.a01a0104c95fap-11, -0x1.38131f3f85a44p-11,
                   0x1.b931ee43f0566p-11, -0x1.f3985a7f89588p-10, 0x1.8c121edab628cp-8, -0x1.669679e08497p-6,
                   0x1.11f2a0a1b6378p-4, -0x1.c6d92b7d4abfp-4);
  }
  P less_one = two_sum(l.hi, V(-1));
  P m = two_product(a, less_one.hi);
  m.lo = fma(a, less_one.lo + l.lo, m.lo);
  P constant = two_sum(V(pick<T>(0x1.d67f1cp-1, 0x1.d67f1c864beb5p-1)), l.hi * T(-0.5));
  P large = two_sum(m.hi, constant.hi);
  V rest = fma(l.lo, V(-0.5), V(pick<T>(0x1.0c97d6p-26, -0x1.65b5a1b7ff5dfp-55)));
  large.lo = large.lo + (m.lo + (constant.lo + fma(inverse, s, rest)));
  // Where a log(a) overflows, the low part is not a number.
  large.lo = select(large.hi < Real<T>::infinity, large.lo, 0);
  return {select(g.stirling, large.hi, small.hi), select(g.stirling, large.lo, small.lo)};
}

// Below this, lgamma(x) is -log |x| and digamma(x) is -1 / x, to the last bit.
template <class T>
inline constexpr T gamma_tiny = Real<T>::is_float ? T(0x1p-30) : T(0x1p-60);

}  // namespace detail

// log |gamma(x)|: infinite at the poles. Close to a root, the error is that of a result of size 1.
template <class T, int N>
TUTTI_HD Vec<T, N> lgamma(Vec<T, N> x) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  using P = detail::Pair<V>;
  V a = abs(x);
  P y = detail::lgamma_positive(a);
  // lgamma(-a) = -log(a |sin(pi a)| / pi) - lgamma(a).
  V r = abs(a - round(a));
  P s = detail::sin_cos_pi(r).sin;
  P over_pi = {V(detail::pick<T>(0x1.45f306p-2, 0x1.45f306dc9c883p-2)),
               V(detail::pick<T>(0x1.b9391p-27, -0x1.6b01ec5417056p-56))};
  P product = detail::multiply(detail::multiply(s, over_pi), P{a, V(0)});
  P l = detail::log_to_pair(detail::fast_two_sum(product.hi, product.lo));
  P sum = detail::two_sum(l.hi, y.hi);
  V reflected = -(sum.hi + (sum.lo + (l.lo + y.lo)));
  V result = select((x < 0) & (a > detail::gamma_tiny<T>), reflected, y.hi + y.lo);
  auto pole = (x <= 0) & (r == 0);
  result = select(pole | (a == R::infinity), R::infinity, result);
  return select(x != x, x, result);
}

// The derivative of log gamma(x). At the poles: -infinity for +0, infinity for -0, NaN for the negative integers.
template <class T, int N>
TUTTI_HD Vec<T, N> digamma(Vec<T, N> x) {
  using V = Vec<T, N>;
  using R = detail::Real<T>;
  using P = detail::Pair<V>;
  using detail::pick;
  using detail::polynomial;
  V a = abs(x);
  detail::GammaRange<T, N> g = detail::gamma_range(a);
  auto reflect = x < 0;

  // digamma(2 + t), or log(a) - s(1 / a^2) / a^2; the multiples of 1 / a follow.
  P inverse = detail::divide(P{V(1), V(0)}, P{a, V(0)});
  V u = inverse.hi * inverse.hi;
  V p, s;
  if constexpr (R::is_float) {
    p = polynomial(g.t, 0x1.4a34c8p-1, -0x1.9dcff8p-3, 0x1.513afp-4, -0x1.2e8bd6p-5, 0x1.1a335cp-6, -0x1.0fa6fcp-7,
                   0x1.339156p-8, -0x1.2f5c3ap-9);
    s = polynomial(u, 0x1.555546p-4, -0x1.10a4b6p-7, 0x1.ce6bf8p-9);
  } else {
    p = polynomial(g.t, 0x1.4a34cc4a60fa9p-1, -0x1.9dd002780311p-3, 0x1.51322ac7d6c64p-4, -0x1.2e831d94f8198p-5,
                   0x1.1c261303f095bp-6, -0x1.1196d0a8213ebp-7, 0x1.0b36aeb35e323p-8, -0x1.073e7a30000b9p-9,
                   0x1.04b907522a97ap-10, -0x1.031917de57b74p-11, 0x1.02016bd7d759dp-12, -0x1.01504aeedce6dp-13,
                   0x1.01bd23fcab288p-14, -0x1.01702cc121f15p-15, 0x1.e8b831837b412p-17, -0x1.e8752f1c0fe9cp-18,
                   0x1.5b2d67af77973p-18, -0x1.5b1c60a73a3cep-19);
    s = polynomial(u, 0x1.555555555554p-4, -0x1.11111110aade2p-7, 0x1.04103fbbd22f3p-8, -0x1.11104179d9756p-8,
                   0x1.f0381f8383347p-8, -0x1.564ae19abdd37p-6, 0x1.3b4e596fe7cf8p-4, -0x1.3b59668f7e0b5p-2,
                   0x1.fe633ade95194p-1, -0x1.b566a5303bf2fp+0);
  }
  P l = detail::log_to_pair(P{a, V(0)});
  P base = {select(g.stirling, l.hi, pick<T>(0x1.b0ee6p-2, 0x1.b0ee6072093cep-2)),
            select(g.stirling, fma(-u, s, l.lo), fma(g.t, p, V(pick<T>(0x1.c824f4p-28, 0x1.6cb90701fbfabp-58))))};
  // The recurrence gives -1 / a for n < 0, Stirling's series -1 / (2a), the reflection 1 / a more.
  V k = select(g.minus, -1, select(g.stirling, V(-0.5), 0)) + select(reflect, V(1), 0);
  // 1 / (a - 1) for n == 1, -1 / (a + 1) for n == -2.
  V other = select(g.plus, 1 / (a - 1), select(g.minus_two, -1 / (a + 1), 0));
  P first = detail::two_sum(k * inverse.hi, base.hi);
  P second = detail::two_sum(first.hi, other);
  P sum = {second.hi, second.lo + (first.lo + fma(k, inverse.lo, base.lo))};

  // digamma(-a) = digamma(a) + 1 / a + pi cot(pi a).
  V whole = round(a);
  V r = abs(a - whole);
  detail::SinCos<V> v = detail::sin_cos_pi(r);
  P cot = detail::multiply(detail::divide(v.cos, v.sin), P{V(pick<T>(0x1.921fb6p+1, 0x1.921fb54442d18p+1)),
                                                           V(pick<T>(-0x1.777a5cp-24, 0x1.1a62633145c07p-53))});
  auto below = a < whole;
  P total = detail::two_sum(select(below, -cot.hi, cot.hi), sum.hi);
  V reflected = total.hi + (total.lo + (select(below, -cot.lo, cot.lo) + sum.lo));

  V result = select(reflect, reflected, sum.hi + sum.lo);
  result = select(reflect & (r == 0), R::nan, result);
  result = select(a < detail::gamma_tiny<T>, -1 / x, result);
  return select((x == R::infinity) | (x != x), x, result);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
