// Primitives that are exact or nearly so (signs, rounding, remainders, selection), and the tools the others are built
// from: polynomial evaluation, unevaluated sums of two numbers, and taking a float apart into exponent and mantissa.
#pragma once

#include <limits>

#include "tutti/pointwise/vec.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {
namespace detail {

template <class T>
struct Real {
  static constexpr bool is_float = sizeof(T) == 4;
  static constexpr int mantissa_bits = is_float ? 23 : 52;
  static constexpr int bias = is_float ? 127 : 1023;
  // Adding this to |x| < 2^(mantissa_bits - 1) leaves rint(x) in the low bits of the sum.
  static constexpr T magic = is_float ? T(0x1.8p23) : T(0x1.8p52);
  static constexpr UintOf<T> magic_bits = is_float ? UintOf<T>(0x4b400000) : UintOf<T>(0x4338000000000000);
  static constexpr UintOf<T> sign_bit = UintOf<T>(1) << (8 * sizeof(T) - 1);
  static constexpr UintOf<T> mantissa_mask = (UintOf<T>(1) << mantissa_bits) - 1;
  static constexpr T infinity = std::numeric_limits<T>::infinity();
  static constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  static constexpr T min_normal = std::numeric_limits<T>::min();
};

// c0 + x * (c1 + x * (c2 + ...)), one fma per coefficient.
template <class V>
TUTTI_HD V polynomial(V, double c0) {
  return V(c0);
}
template <class V, class... C>
TUTTI_HD V polynomial(V x, double c0, C... c) {
  return fma(polynomial(x, c...), x, V(c0));
}

// hi + lo, |lo| much smaller than |hi|: about twice the precision of V.
template <class V>
struct Pair {
  V hi, lo;
};

template <class V>
TUTTI_HD Pair<V> two_sum(V a, V b) {
  V s = a + b;
  V part = s - a;
  return {s, (a - (s - part)) + (b - part)};
}
// Needs |a| >= |b|, or a == 0.
template <class V>
TUTTI_HD Pair<V> fast_two_sum(V a, V b) {
  V s = a + b;
  return {s, b - (s - a)};
}
template <class V>
TUTTI_HD Pair<V> two_product(V a, V b) {
  V p = a * b;
  return {p, fma(a, b, -p)};
}
template <class V>
TUTTI_HD Pair<V> multiply(Pair<V> a, Pair<V> b) {
  Pair<V> p = two_product(a.hi, b.hi);
  return {p.hi, fma(a.hi, b.lo, fma(a.lo, b.hi, p.lo))};
}
// a / b, from the reciprocal of b.hi and one correction. Not normalised; the sum is good to a few units of lo.
template <class V>
TUTTI_HD Pair<V> divide(Pair<V> a, Pair<V> b) {
  V inverse = 1 / b.hi;
  V q = a.hi * inverse;
  V rest = fma(-q, b.lo, fma(-q, b.hi, a.hi) + a.lo);
  return {q, rest * inverse};
}
// sqrt(a) for a.hi > 0, by one Newton step from the rounded root.
template <class V>
TUTTI_HD Pair<V> square_root(Pair<V> a) {
  V r = sqrt(a.hi);
  V rest = fma(-r, r, a.hi) + a.lo;
  return {r, rest / (r + r)};
}

// 2^k for integral-valued k such that 2^k is a normal number.
template <class T, int N>
TUTTI_HD Vec<T, N> power_of_two(Vec<T, N> k) {
  using R = Real<T>;
  Vec<UintOf<T>, N> bits = as_uint(k + R::magic);
  return as_float((bits << R::mantissa_bits) + (UintOf<T>(R::bias) << R::mantissa_bits));
}

// x = mantissa * 2^exponent with mantissa in [sqrt(1/2), sqrt(2)), for finite x > 0.
template <class V>
struct Decomposed {
  V mantissa, exponent;
};
template <class T, int N>
TUTTI_HD Decomposed<Vec<T, N>> decompose(Vec<T, N> x) {
  using R = Real<T>;
  using U = UintOf<T>;
  // The bits of sqrt(1/2), rounded up a little. Subtracting them moves the place where the exponent field steps from
  // powers of two to sqrt(1/2) times powers of two.
  constexpr U offset = R::is_float ? U(0x3f3504f4) : U(0x3fe6a09e667f3bcd);
  constexpr int rescale = R::mantissa_bits + 1;
  auto is_small = x < R::min_normal;
  x = select(is_small, x * T(R::is_float ? 0x1p24 : 0x1p53), x);
  Vec<U, N> shifted = as_uint(x) + ((U(R::bias) << R::mantissa_bits) - offset);
  // The biased exponent, made a number by planting it in the low bits of the magic constant.
  Vec<T, N> e = as_float((shifted >> R::mantissa_bits) | R::magic_bits) -
                select(is_small, R::magic + T(R::bias + rescale), R::magic + T(R::bias));
  return {as_float((shifted & R::mantissa_mask) + offset), e};
}

}  // namespace detail

// ---- classification and sign

template <class T, int N>
TUTTI_HD Vec<T, N> abs(Vec<T, N> x) {
  if constexpr (std::is_floating_point_v<T>) {
    return as_float(as_uint(x) & UintOf<T>(~detail::Real<T>::sign_bit));
  } else if constexpr (std::is_signed_v<T>) {
    return select(x < 0, -x, x);
  } else {
    return x;
  }
}

template <class T, int N>
TUTTI_HD Mask<T, N> isnan(Vec<T, N> x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x != x;
  } else {
    return Mask<T, N>(false);
  }
}
template <class T, int N>
TUTTI_HD Mask<T, N> isinf(Vec<T, N> x) {
  if constexpr (std::is_floating_point_v<T>) {
    return abs(x) == detail::Real<T>::infinity;
  } else {
    return Mask<T, N>(false);
  }
}
template <class T, int N>
TUTTI_HD Mask<T, N> isfinite(Vec<T, N> x) {
  if constexpr (std::is_floating_point_v<T>) {
    return abs(x) < detail::Real<T>::infinity;
  } else {
    return Mask<T, N>(true);
  }
}
// True for -0 and for NaNs with the sign bit set.
template <class T, int N>
TUTTI_HD Mask<T, N> signbit(Vec<T, N> x) {
  if constexpr (std::is_floating_point_v<T>) {
    return mask_cast<T>(as_int(x) < 0);
  } else {
    return x < 0;
  }
}

template <class T, int N>
TUTTI_HD Vec<T, N> copysign(Vec<T, N> x, std::type_identity_t<Vec<T, N>> sign_of) {
  using R = detail::Real<T>;
  return as_float((as_uint(x) & UintOf<T>(~R::sign_bit)) | (as_uint(sign_of) & R::sign_bit));
}
// -1, 0 or 1; NaN stays NaN and a zero stays as it is.
template <class T, int N>
TUTTI_HD Vec<T, N> sign(Vec<T, N> x) {
  return select(x > 0, 1, select(x < 0, -1, x));
}

// ---- minimum and maximum: NaN when either operand is NaN; of equal operands (zeros of either sign), the second

template <class T, int N>
TUTTI_HD Vec<T, N> min(Vec<T, N> a, std::type_identity_t<Vec<T, N>> b) {
  if constexpr (std::is_floating_point_v<T>) {
    return select(a != a, a, lesser(a, b));
  } else {
    return select(a < b, a, b);
  }
}
template <class T, int N>
TUTTI_HD Vec<T, N> max(Vec<T, N> a, std::type_identity_t<Vec<T, N>> b) {
  if constexpr (std::is_floating_point_v<T>) {
    return select(a != a, a, greater(a, b));
  } else {
    return select(a > b, a, b);
  }
}

template <class T, int N>
TUTTI_HD Vec<T, N> rsqrt(Vec<T, N> x) {
  return 1 / sqrt(x);
}

// ---- rounding to an integral value

// Half to even. Adding 2^mantissa_bits leaves no room for a fraction; larger numbers have none. (The sign is copied
// last: clang 19 compiles a masked choice between copysign(...) and x wrongly for AVX-512.)
template <class T, int N>
TUTTI_HD Vec<T, N> round(Vec<T, N> x) {
  constexpr T big = detail::Real<T>::is_float ? T(0x1p23) : T(0x1p52);
  Vec<T, N> a = abs(x);
  return copysign(select(a < big, (a + big) - big, a), x);
}
template <class T, int N>
TUTTI_HD Vec<T, N> floor(Vec<T, N> x) {
  Vec<T, N> r = round(x);
  return copysign(select(r > x, r - 1, r), x);
}
template <class T, int N>
TUTTI_HD Vec<T, N> ceil(Vec<T, N> x) {
  Vec<T, N> r = round(x);
  return copysign(select(r < x, r + 1, r), x);
}
template <class T, int N>
TUTTI_HD Vec<T, N> trunc(Vec<T, N> x) {
  Vec<T, N> a = abs(x);
  Vec<T, N> r = round(a);
  return copysign(select(r > a, r - 1, r), x);
}

namespace detail {

// |x| mod |y| as an exact remainder in [0, |y|), for finite x and finite y != 0.
//
// With x = mx * 2^ex and y = my * 2^ey (mantissas in [1, 2)), the remainder is that of mx * 2^(ex - ey) by my, scaled
// by 2^ey. The power of two is multiplied in a few bits at a time, reducing after each: r -> r * 2^step - q * my is
// exact because q, the rounded quotient, has fewer bits than the mantissa and the result is at most about my / 2. The
// number of steps is fixed by the exponent range, so that the code has no branches; lanes that are done multiply by 1.
template <class T, int N>
TUTTI_HD Vec<T, N> exact_remainder(Vec<T, N> x, Vec<T, N> y) {
  using R = Real<T>;
  using V = Vec<T, N>;
  constexpr int step = R::is_float ? 21 : 50;
  constexpr int steps = R::is_float ? (277 + 20) / 21 : (2098 + 49) / 50;
  x = abs(x);
  y = abs(y);
  Decomposed<V> dx = decompose(select(x == 0, 1, x)), dy = decompose(y);
  V my = dy.mantissa, gap = dx.exponent - dy.exponent;
  V inverse = 1 / my;
  V r = dx.mantissa;
  // gap = rest + step * count, 0 <= rest < step, for the lanes with gap >= 0.
  V count = floor(gap * T(1.0 / step) + T(1.0 / 128));
  V rest = gap - count * step;
  r = r * power_of_two(select(gap >= 0, rest, 0));
  constexpr T big = R::is_float ? T(0x1p21) : T(0x1p50);
  V q = fma(r, inverse, V(R::magic)) - R::magic;
  r = fma(-q, my, r);
  for (int i = 0; i < steps; ++i) {
    auto more = count > i;
    q = fma(r, select(more, inverse * big, inverse), V(R::magic)) - R::magic;
    r = fma(-q, my, r * select(more, V(big), 1));
  }
  r = select(r < 0, r + my, r);
  return select((x < y) | (x == 0), x, scale(r, dy.exponent));
}

}  // namespace detail

// The remainder of x / y rounded towards zero, exactly: the sign is that of x. NaN for y == 0 and infinite x.
template <class T, int N>
TUTTI_HD Vec<T, N> fmod(Vec<T, N> x, std::type_identity_t<Vec<T, N>> y) {
  if constexpr (std::is_floating_point_v<T>) {
    using R = detail::Real<T>;
    // The sign comes last, as in round().
    Vec<T, N> r = copysign(select(isinf(y), abs(x), detail::exact_remainder(x, y)), x);
    return select((abs(x) < R::infinity) & (abs(y) > 0), r, (x * y) / (x * y));
  } else {
    return x % y;
  }
}
// The remainder of x / y rounded down: the sign is that of y, except that a zero has the sign of x.
template <class T, int N>
TUTTI_HD Vec<T, N> remainder(Vec<T, N> x, std::type_identity_t<Vec<T, N>> y) {
  Vec<T, N> r = fmod(x, y);
  return select((r != 0) & ((r < 0) ^ (y < 0)), r + y, r);
}
// The same functions with a constant on the left.
template <class A, class T, int N>
  requires std::is_arithmetic_v<A>
TUTTI_HD Vec<T, N> copysign(A x, Vec<T, N> y) {
  return copysign(Vec<T, N>(x), y);
}
template <class A, class T, int N>
  requires std::is_arithmetic_v<A>
TUTTI_HD Vec<T, N> min(A x, Vec<T, N> y) {
  return min(Vec<T, N>(x), y);
}
template <class A, class T, int N>
  requires std::is_arithmetic_v<A>
TUTTI_HD Vec<T, N> max(A x, Vec<T, N> y) {
  return max(Vec<T, N>(x), y);
}
template <class A, class T, int N>
  requires std::is_arithmetic_v<A>
TUTTI_HD Vec<T, N> fmod(A x, Vec<T, N> y) {
  return fmod(Vec<T, N>(x), y);
}
template <class A, class T, int N>
  requires std::is_arithmetic_v<A>
TUTTI_HD Vec<T, N> remainder(A x, Vec<T, N> y) {
  return remainder(Vec<T, N>(x), y);
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
