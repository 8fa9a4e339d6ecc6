// Exponentials, logarithms, roots, error and gamma functions.
#include "pointwise/define.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

/// e to the power x.
struct Exp : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return exp(x);
  }
};

/// 2 to the power x.
struct Exp2 : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return exp2(x);
  }
};

/// eˣ - 1, accurate near 0.
struct Expm1 : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return expm1(x);
  }
};

/// The natural logarithm of x.
struct Log : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return log(x);
  }
};

/// The logarithm of x to base 2.
struct Log2 : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return log2(x);
  }
};

/// The logarithm of x to base 10.
struct Log10 : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return log10(x);
  }
};

/// log(1 + x), accurate near 0.
struct Log1p : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return log1p(x);
  }
};

/// The square root of x.
struct Sqrt : FloatingComplex, KeepsZero {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return sqrt(x);
  }
};

/// 1 / √x.
struct Rsqrt : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return rsqrt(x);
  }
};

namespace detail {

// log(eˣ + eʸ). The derivatives of the formula would be right, but not theirs: it has a kink at x = y, which the
// function has not.
struct LogAddExpRule {
  // x - y, and 0 for infinities of one sign.
  template <class U, class V>
  TUTTI_HD static auto lead(U u, V v) {
    return select((u == v) & isinf(u), 0.0, u - v);
  }
  template <class U, class V>
  TUTTI_HD static auto value(U u, V v) {
    return select(u > v, u, v) + log1p(exp(-abs(lead(u, v))));
  }
  template <class U, class V, class Y>
  TUTTI_HD static auto first(U u, V v, Y) {
    return sigmoid(lead(u, v));
  }
  template <class U, class V, class Y>
  TUTTI_HD static auto second(U u, V v, Y) {
    return sigmoid(lead(v, u));
  }
};

// log(1 / (1 + e⁻ˣ)), likewise.
struct LogSigmoidRule {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return select(x < 0.0, x, 0.0) - log1p(exp(-abs(x)));
  }
  template <class X, class Y>
  TUTTI_HD static auto slope(X x, Y) {
    return sigmoid(-x);
  }
};

// x · logarithm(y) where that is 0 · ∞ or 0 · NaN, although 0 to any power is meant.
template <class X, class Y, class L>
TUTTI_HD auto zero_or_product(X x, Y y, L logarithm) {
  return select((x == 0.0) & ((y <= 0.0) | isinf(y)), 0.0, x * logarithm);
}

}  // namespace detail

/// log(eˣ + eʸ) without overflow.
struct LogAddExp : Floating, FullPrecision {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return with_slopes<detail::LogAddExpRule>(x, y);
  }
};

/// log2(2ˣ + 2ʸ) without overflow.
struct LogAddExp2 : Floating, FullPrecision {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return with_slopes<detail::LogAddExpRule>(x * 0.69314718055994530942, y * 0.69314718055994530942) *
           1.4426950408889634074;
  }
};

/// x · log(y), and 0 where x is 0, whatever y but NaN.
struct Xlogy : Floating, FullPrecision {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return detail::zero_or_product(x, y, log(y));
  }
};

/// x · log(1 + y), and 0 where x is 0, whatever y but NaN.
struct Xlog1py : Floating, FullPrecision {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return detail::zero_or_product(x, y + 1.0, log1p(y));
  }
};

/// log(x / (1 - x)), the inverse of sigmoid.
struct Logit : Floating, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return log(x) - log1p(-x);
  }
};

/// The error function, 2/√π ∫ exp(-t²) from 0 to x.
struct Erf : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return erf(x);
  }
};

/// 1 - erf(x), accurate for large x.
struct Erfc : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return erfc(x);
  }
};

/// The inverse of erf.
struct Erfinv : Floating, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return erfinv(x);
  }
};

/// log |Γ(x)|.
struct Lgamma : Floating, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return lgamma(x);
  }
};

/// The derivative of log Γ(x).
struct Digamma : Floating, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return digamma(x);
  }
};

/// The derivative of digamma.
struct Trigamma : Floating, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return trigamma(x);
  }
};

/// 1 / (1 + e⁻ˣ).
struct Sigmoid : FloatingComplex {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return sigmoid(x);
  }
};

/// log(1 / (1 + e⁻ˣ)) without overflow.
struct LogSigmoid : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return with_slope<detail::LogSigmoidRule>(x);
  }
};

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise

TUTTI_POINTWISE(Exp, exp, x)
TUTTI_POINTWISE(Exp2, exp2, x)
TUTTI_POINTWISE(Expm1, expm1, x)
TUTTI_POINTWISE(Log, log, x)
TUTTI_POINTWISE(Log2, log2, x)
TUTTI_POINTWISE(Log10, log10, x)
TUTTI_POINTWISE(Log1p, log1p, x)
TUTTI_POINTWISE(Sqrt, sqrt, x)
TUTTI_POINTWISE(Rsqrt, rsqrt, x)
TUTTI_POINTWISE(LogAddExp, logaddexp, x, y)
TUTTI_POINTWISE(LogAddExp2, logaddexp2, x, y)
TUTTI_POINTWISE(Xlogy, xlogy, x, y)
TUTTI_POINTWISE(Xlog1py, xlog1py, x, y)
TUTTI_POINTWISE(Logit, logit, x)
TUTTI_POINTWISE(Erf, erf, x)
TUTTI_POINTWISE(Erfc, erfc, x)
TUTTI_POINTWISE(Erfinv, erfinv, x)
TUTTI_POINTWISE(Lgamma, lgamma, x)
TUTTI_POINTWISE(Digamma, digamma, x)
TUTTI_POINTWISE(Trigamma, trigamma, x)
TUTTI_POINTWISE(Sigmoid, sigmoid, x)
TUTTI_POINTWISE(LogSigmoid, log_sigmoid, x)
