// Complex<V>: complex numbers whose parts are vectors, with the operators and the elementary functions that formulas
// use.
//
// Branch cuts and signed zeros are those of std::complex. Everything is straight-line: where parts of the plane need
// different formulas, all are calculated and select() takes one.
#pragma once

#include <limits>
#include <type_traits>

#include "tutti/pointwise/isa.h"
#include "tutti/pointwise/primitives.h"
#include "tutti/pointwise/vec.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

template <class V>
struct Complex {
  V re, im;
};

namespace detail {

template <class V>
using Same = std::type_identity_t<V>;

inline constexpr double infinity = std::numeric_limits<double>::infinity();

// Where the functions of a complex number change from one formula to another, by the element type of its parts.
template <class V>
struct ComplexLimits {
  static constexpr bool wide = sizeof(typename V::Element) == 8;
  static constexpr double largest_log = wide ? 709.0 : 88.0;     // exp of it is finite
  static constexpr double huge = wide ? 0x1p1020 : 0x1p124;      // a few times it overflows
  static constexpr double tiny = wide ? 0x1p-960 : 0x1p-100;     // products of such parts lose digits
  static constexpr double asymptotic = wide ? 0x1p300 : 0x1p40;  // 1 ± z is z, and z² is finite only just
};

}  // namespace detail

/// The constant c as a complex value.
template <class V>
TUTTI_HD Complex<V> constant_like(const Complex<V>&, double c) {
  return {V(c), V(0.0)};
}

// ---- Operators. The other operand may be complex, a vector or a constant.

template <class V>
TUTTI_HD Complex<V> operator-(Complex<V> a) {
  return {-a.re, -a.im};
}

template <class V>
TUTTI_HD Complex<V> operator+(Complex<V> a, Complex<V> b) {
  return {a.re + b.re, a.im + b.im};
}
template <class V>
TUTTI_HD Complex<V> operator+(Complex<V> a, detail::Same<V> b) {
  return {a.re + b, a.im};
}
template <class V>
TUTTI_HD Complex<V> operator+(detail::Same<V> a, Complex<V> b) {
  return {a + b.re, b.im};
}

template <class V>
TUTTI_HD Complex<V> operator-(Complex<V> a, Complex<V> b) {
  return {a.re - b.re, a.im - b.im};
}
template <class V>
TUTTI_HD Complex<V> operator-(Complex<V> a, detail::Same<V> b) {
  return {a.re - b, a.im};
}
template <class V>
TUTTI_HD Complex<V> operator-(detail::Same<V> a, Complex<V> b) {
  return {a - b.re, -b.im};  // not 0 - im, which would lose the sign of a zero that chooses the side of a branch cut
}

template <class V>
TUTTI_HD Complex<V> operator*(Complex<V> a, Complex<V> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class V>
TUTTI_HD Complex<V> operator*(Complex<V> a, detail::Same<V> b) {
  return {a.re * b, a.im * b};
}
template <class V>
TUTTI_HD Complex<V> operator*(detail::Same<V> a, Complex<V> b) {
  return {a * b.re, a * b.im};
}

template <class V>
TUTTI_HD Complex<V> operator/(Complex<V> a, Complex<V> b) {
  using Limits = detail::ComplexLimits<V>;
  // Scaled so that the larger part of the divisor, doubled or squared against the ratio, stays in range.
  V size = max(abs(b.re), abs(b.im));
  V scale = select(size > Limits::huge, 0.125, select(size < Limits::tiny, Limits::wide ? 0x1p200 : 0x1p40, V(1.0)));
  V are = a.re * scale, aim = a.im * scale, bre = b.re * scale, bim = b.im * scale;
  // Divide by the larger part first: r <= 1, and no square is formed.
  auto real_larger = abs(bre) >= abs(bim);
  V p = select(real_larger, bre, bim), q = select(real_larger, bim, bre);
  V s = select(real_larger, are, aim), t = select(real_larger, aim, are);
  V r = q / p;
  V divisor = p + q * r;
  V re = (s + t * r) / divisor, im = (t - s * r) / divisor;
  im = select(real_larger, im, -im);
  // What that makes NaN although the quotient has a limit: division by 0 and by ∞.
  auto by_zero = size == 0.0;
  auto by_infinity = (size == detail::infinity) & isfinite(a.re) & isfinite(a.im);
  V pole = copysign(V(detail::infinity), b.re);
  re = select(by_zero, pole * a.re, select(by_infinity, 0.0, re));
  im = select(by_zero, pole * a.im, select(by_infinity, 0.0, im));
  return {re, im};
}
template <class V>
TUTTI_HD Complex<V> operator/(Complex<V> a, detail::Same<V> b) {
  return {a.re / b, a.im / b};
}
template <class V>
TUTTI_HD Complex<V> operator/(detail::Same<V> a, Complex<V> b) {
  return Complex<V>{a, V(0.0)} / b;
}

template <class V>
TUTTI_HD auto operator==(Complex<V> a, Complex<V> b) {
  return (a.re == b.re) & (a.im == b.im);
}
template <class V>
TUTTI_HD auto operator==(Complex<V> a, detail::Same<V> b) {
  return (a.re == b) & (a.im == 0.0);
}
template <class V>
TUTTI_HD auto operator==(detail::Same<V> a, Complex<V> b) {
  return (a == b.re) & (b.im == 0.0);
}
template <class V>
TUTTI_HD auto operator!=(Complex<V> a, Complex<V> b) {
  return (a.re != b.re) | (a.im != b.im);
}
template <class V>
TUTTI_HD auto operator!=(Complex<V> a, detail::Same<V> b) {
  return (a.re != b) | (a.im != 0.0);
}
template <class V>
TUTTI_HD auto operator!=(detail::Same<V> a, Complex<V> b) {
  return (a != b.re) | (b.im != 0.0);
}

template <class M, class V>
TUTTI_HD Complex<V> select(M mask, Complex<V> a, Complex<V> b) {
  return {select(mask, a.re, b.re), select(mask, a.im, b.im)};
}
template <class M, class V>
TUTTI_HD Complex<V> select(M mask, Complex<V> a, detail::Same<V> b) {
  return {select(mask, a.re, b), select(mask, a.im, 0.0)};
}
template <class M, class V>
TUTTI_HD Complex<V> select(M mask, detail::Same<V> a, Complex<V> b) {
  return {select(mask, a, b.re), select(mask, 0.0, b.im)};
}

template <class V>
TUTTI_HD auto isnan(Complex<V> z) {
  return isnan(z.re) | isnan(z.im);
}
template <class V>
TUTTI_HD auto isinf(Complex<V> z) {
  return isinf(z.re) | isinf(z.im);
}
template <class V>
TUTTI_HD auto isfinite(Complex<V> z) {
  return isfinite(z.re) & isfinite(z.im);
}

template <class V>
TUTTI_HD Complex<V> conj(Complex<V> z) {
  return {z.re, -z.im};
}
template <class V>
TUTTI_HD V abs(Complex<V> z) {
  return hypot(z.re, z.im);
}
template <class V>
TUTTI_HD V arg(Complex<V> z) {
  return atan2(z.im, z.re);
}
/// z / |z|, and 0 for 0.
template <class V>
TUTTI_HD Complex<V> sign(Complex<V> z) {
  V length = abs(z);
  return z / select(length == 0.0, 1.0, length);
}

namespace detail {

// i z and -i z, which turn the circular functions into the hyperbolic ones and back.
template <class V>
TUTTI_HD Complex<V> times_i(Complex<V> z) {
  return {-z.im, z.re};
}
template <class V>
TUTTI_HD Complex<V> times_minus_i(Complex<V> z) {
  return {z.im, -z.re};
}

// x brought into the range where exp(x) is finite, and the factor that exp of it lacks; e^x times a sine can be finite
// where e^x is not.
template <class V>
struct SafeExponent {
  V x, factor;
};
template <class V>
TUTTI_HD SafeExponent<V> safe_exponent(V x) {
  constexpr double shift = 27.725887222397812377;  // 40 log 2
  auto over = abs(x) > ComplexLimits<V>::largest_log;
  return {select(over & (x > 0.0), x - shift, select(over, x + shift, x)), select(over, 0x1p40, V(1.0))};
}

}  // namespace detail

// ---- Exponentials and logarithms

template <class V>
TUTTI_HD Complex<V> exp(Complex<V> z) {
  // Only towards +∞: exp(-∞) is 0 and nothing is to be saved.
  auto over = z.re > detail::ComplexLimits<V>::largest_log;
  auto safe = detail::safe_exponent(z.re);
  V length = exp(select(over, safe.x, z.re)), factor = select(over, safe.factor, 1.0);
  V re = length * cos(z.im) * factor, im = length * sin(z.im) * factor;
  // The real axis stays real at +∞, and -∞ is 0 from every direction.
  auto vanishes = z.re == -detail::infinity;
  return {select(vanishes, 0.0, re), select(vanishes | (z.im == 0.0), select(vanishes, 0.0, z.im), im)};
}

template <class V>
TUTTI_HD Complex<V> exp2(Complex<V> z) {
  return exp(z * 0.69314718055994530942);
}

template <class V>
TUTTI_HD Complex<V> expm1(Complex<V> z) {
  Complex<V> e = exp(z);
  V half = sin(z.im * 0.5);
  V re = expm1(z.re) * cos(z.im) - half * half * 2.0;
  return {select(z.re > 40.0, e.re, select(z.re == -detail::infinity, -1.0, re)), e.im};
}

template <class V>
TUTTI_HD Complex<V> log(Complex<V> z) {
  V x = max(abs(z.re), abs(z.im)), y = min(abs(z.re), abs(z.im));
  auto large = x > detail::ComplexLimits<V>::huge;
  V scale = select(large, 0.125, V(1.0));
  V length = hypot(x * scale, y * scale);
  V far = log(length) + select(large, 2.0794415416798359283, V(0.0));
  // |z| near 1: log(1 + d) with d = |z|² - 1 calculated without rounding |z|.
  V near = log1p((x - 1.0) * (x + 1.0) + y * y) * 0.5;
  V re = select((length > 0.5) & (length < 2.0), near, far);
  return {re, arg(z)};
}
template <class V>
TUTTI_HD Complex<V> log2(Complex<V> z) {
  return log(z) * 1.4426950408889634074;
}
template <class V>
TUTTI_HD Complex<V> log10(Complex<V> z) {
  return log(z) * 0.43429448190325182765;
}
template <class V>
TUTTI_HD Complex<V> log1p(Complex<V> z) {
  Complex<V> far = log(z + 1.0);
  V near = log1p(z.re * (z.re + 2.0) + z.im * z.im) * 0.5;
  return {select(max(abs(z.re), abs(z.im)) < 0.5, near, far.re), far.im};
}

template <class V>
TUTTI_HD Complex<V> sqrt(Complex<V> z) {
  using Limits = detail::ComplexLimits<V>;
  V x = abs(z.re), y = abs(z.im);
  V size = max(x, y);
  auto large = size > Limits::huge, small = size < Limits::tiny;
  V scale = select(large, 0x1p-4, select(small, Limits::wide ? 0x1p200 : 0x1p40, V(1.0)));
  V back = select(large, 0x1p2, select(small, Limits::wide ? 0x1p-100 : 0x1p-20, V(1.0)));
  // The larger part of the root has no cancellation; the smaller one follows from 2 · re · im = z.im.
  V larger = sqrt((hypot(x * scale, y * scale) + x * scale) * 0.5) * back;
  V smaller = y / (select(larger == 0.0, 1.0, larger) * 2.0);
  auto right = z.re >= 0.0;
  V re = select(right, larger, smaller), im = select(right, smaller, larger);
  auto infinite = y == detail::infinity;
  return {select(infinite, y, re), copysign(select(infinite, y, im), z.im)};
}
template <class V>
TUTTI_HD Complex<V> rsqrt(Complex<V> z) {
  return 1.0 / sqrt(z);
}

template <class V>
TUTTI_HD Complex<V> pow(Complex<V> z, Complex<V> w) {
  Complex<V> y = exp(w * log(z));
  // 0^w by the real part of w: 1 for w = 0, 0 to the right, ∞ to the left.
  V at_zero = select(w == 0.0, 1.0, select(w.re > 0.0, 0.0, V(detail::infinity)));
  return select(z == 0.0, at_zero, select(w == 0.0, 1.0, y));
}
template <class V>
TUTTI_HD Complex<V> pow(Complex<V> z, detail::Same<V> w) {
  return pow(z, Complex<V>{w, V(0.0)});
}
template <class V>
TUTTI_HD Complex<V> pow(detail::Same<V> z, Complex<V> w) {
  return pow(Complex<V>{z, V(0.0)}, w);
}

template <class V>
TUTTI_HD Complex<V> sigmoid(Complex<V> z) {
  return 1.0 / (exp(-z) + 1.0);
}

// ---- Hyperbolic functions, and the circular ones by them

template <class V>
TUTTI_HD Complex<V> sinh(Complex<V> z) {
  auto safe = detail::safe_exponent(z.re);
  V re = sinh(safe.x) * cos(z.im) * safe.factor, im = cosh(safe.x) * sin(z.im) * safe.factor;
  return {select((z.re == 0.0) & !isfinite(z.im), z.re, re), select(z.im == 0.0, z.im, im)};
}
template <class V>
TUTTI_HD Complex<V> cosh(Complex<V> z) {
  auto safe = detail::safe_exponent(z.re);
  V re = cosh(safe.x) * cos(z.im) * safe.factor, im = sinh(safe.x) * sin(z.im) * safe.factor;
  // ∞ · 0 on the real axis and 0 · NaN on the imaginary one are zeros.
  auto zero = (isinf(z.re) & (z.im == 0.0)) | ((z.re == 0.0) & !isfinite(z.im));
  return {re, select(zero, 0.0, im)};
}
template <class V>
TUTTI_HD Complex<V> tanh(Complex<V> z) {
  V x = abs(z.re);
  auto far = x > 20.0;
  V inner = select(far, 0.0, x);
  V sh = sinh(inner), ch = cosh(inner), s = sin(z.im), c = cos(z.im);
  // sinh x cosh x + i sin y cos y over sinh² x + cos² y: a sum of squares, where cosh 2x + cos 2y would cancel.
  V divisor = sh * sh + c * c;
  V re = select(far, 1.0, sh * ch / divisor);
  V im = s * c * select(far, exp(x * -2.0) * 4.0, 1.0 / divisor);
  return {copysign(re, z.re), select((x == detail::infinity) & !isfinite(z.im), 0.0, im)};
}

template <class V>
TUTTI_HD Complex<V> sin(Complex<V> z) {
  return detail::times_minus_i(sinh(detail::times_i(z)));
}
template <class V>
TUTTI_HD Complex<V> cos(Complex<V> z) {
  return cosh(detail::times_i(z));
}
template <class V>
TUTTI_HD Complex<V> tan(Complex<V> z) {
  return detail::times_minus_i(tanh(detail::times_i(z)));
}

// ---- Inverse functions. asin, acos and acosh are Kahan's: products of √(1 - z) and √(1 + z) keep the digits that
// √(1 - z²) would lose near ±1, and the signs of zeros put each point on its side of the branch cuts.

namespace detail {

// log |2 z|, the size of asin, acos and acosh far from the origin.
template <class V>
TUTTI_HD V log_twice_length(Complex<V> z) {
  return log(z).re + 0.69314718055994530942;
}

template <class V>
TUTTI_HD auto is_far(Complex<V> z) {
  return max(abs(z.re), abs(z.im)) > ComplexLimits<V>::asymptotic;
}

}  // namespace detail

template <class V>
TUTTI_HD Complex<V> asin(Complex<V> z) {
  Complex<V> a = sqrt(1.0 - z), b = sqrt(1.0 + z);
  auto far = detail::is_far(z);
  V re = atan2(z.re, select(far, abs(z.im), a.re * b.re - a.im * b.im));
  V im = select(far, copysign(detail::log_twice_length(z), z.im), asinh(a.re * b.im - a.im * b.re));
  return {re, im};
}
template <class V>
TUTTI_HD Complex<V> acos(Complex<V> z) {
  Complex<V> a = sqrt(1.0 - z), b = sqrt(1.0 + z);
  auto far = detail::is_far(z);
  V re = select(far, atan2(abs(z.im), z.re), atan2(a.re, b.re) * 2.0);
  V im = select(far, copysign(detail::log_twice_length(z), -z.im), asinh(b.re * a.im - b.im * a.re));
  return {re, im};
}
template <class V>
TUTTI_HD Complex<V> acosh(Complex<V> z) {
  Complex<V> a = sqrt(z - 1.0), b = sqrt(z + 1.0);
  auto far = detail::is_far(z);
  V re = select(far, detail::log_twice_length(z), asinh(a.re * b.re + a.im * b.im));
  V im = select(far, arg(z), atan2(a.im, b.re) * 2.0);
  return {re, im};
}
template <class V>
TUTTI_HD Complex<V> asinh(Complex<V> z) {
  return detail::times_minus_i(asin(detail::times_i(z)));
}

template <class V>
TUTTI_HD Complex<V> atanh(Complex<V> z) {
  auto far = detail::is_far(z);
  V x = abs(z.re), length = abs(z);
  V distance = 1.0 - x;
  V near_re = log1p(x * 4.0 / (distance * distance + z.im * z.im)) * 0.25;
  V near_im = atan2(z.im * 2.0, distance * (x + 1.0) - z.im * z.im) * 0.5;
  V far_re = select(length == detail::infinity, 0.0, x / length / length);
  return {copysign(select(far, far_re, near_re), z.re),
          select(far, copysign(V(1.57079632679489661923), z.im), near_im)};
}
template <class V>
TUTTI_HD Complex<V> atan(Complex<V> z) {
  return detail::times_minus_i(atanh(detail::times_i(z)));
}

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise
