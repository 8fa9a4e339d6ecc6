// Circular and hyperbolic functions and their inverses.
#include "pointwise/define.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

/// The sine of x (radians).
struct Sin : FloatingComplex {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return sin(x);
  }
};

/// The cosine of x (radians).
struct Cos : FloatingComplex {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return cos(x);
  }
};

/// The tangent of x (radians).
struct Tan : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return tan(x);
  }
};

/// The inverse of sin, in [-π/2, π/2].
struct Asin : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return asin(x);
  }
};

/// The inverse of cos, in [0, π].
struct Acos : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return acos(x);
  }
};

/// The inverse of tan, in [-π/2, π/2].
struct Atan : FloatingComplex {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return atan(x);
  }
};

/// The angle of the point (y, x), that is atan(x / y) in the right quadrant.
struct Atan2 : Floating {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return atan2(x, y);
  }
};

/// The hyperbolic sine of x.
struct Sinh : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return sinh(x);
  }
};

/// The hyperbolic cosine of x.
struct Cosh : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return cosh(x);
  }
};

/// The hyperbolic tangent of x.
struct Tanh : FloatingComplex {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return tanh(x);
  }
};

/// The inverse of sinh.
struct Asinh : FloatingComplex {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return asinh(x);
  }
};

/// The inverse of cosh, not negative.
struct Acosh : FloatingComplex {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return acosh(x);
  }
};

/// The inverse of tanh.
struct Atanh : FloatingComplex {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return atanh(x);
  }
};

namespace detail {

// sin(u) / u by its series to the term of w^8, w = u²: full accuracy for u below π/4.
template <int K, class W>
TUTTI_HD auto sine_series(W w) {
  constexpr double factor = -1.0 / (2 * K * (2 * K + 1));
  if constexpr (K < 8) {
    return w * sine_series<K + 1>(w) * factor + 1.0;
  } else {
    return w * factor + 1.0;
  }
}

}  // namespace detail

/// sin(πx) / (πx), and 1 at 0.
struct Sinc : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    constexpr double pi = 3.14159265358979323846;
    // Near 0 the series, so that the derivatives have no difference of nearly equal numbers.
    auto close = abs(x) < 0.25;
    auto near = detail::sine_series<1>(x * x * (pi * pi));
    // sin(πx) from the distance to the nearest whole number: exactly 0 at whole numbers. Not of 0, where derivatives
    // of any order would be infinite, and 0 times that is not 0.
    auto away = select(close, 0.5, x);
    auto whole = round(away);
    auto odd = whole - floor(whole * 0.5) * 2.0;
    auto far = sin((away - whole) * pi) * (1.0 - odd * 2.0) / (away * pi);
    return select(close, near, select(isinf(x), 0.0, far));
  }
};

/// Degrees as radians.
struct Deg2Rad : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return x * 0.017453292519943295769;
  }
};

/// Radians as degrees.
struct Rad2Deg : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return x * 57.295779513082320877;
  }
};

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise

TUTTI_POINTWISE(Sin, sin, x)
TUTTI_POINTWISE(Cos, cos, x)
TUTTI_POINTWISE(Tan, tan, x)
TUTTI_POINTWISE(Asin, asin, x)
TUTTI_POINTWISE(Acos, acos, x)
TUTTI_POINTWISE(Atan, atan, x)
TUTTI_POINTWISE(Atan2, atan2, x, y)
TUTTI_POINTWISE(Sinh, sinh, x)
TUTTI_POINTWISE(Cosh, cosh, x)
TUTTI_POINTWISE(Tanh, tanh, x)
TUTTI_POINTWISE(Asinh, asinh, x)
TUTTI_POINTWISE(Acosh, acosh, x)
TUTTI_POINTWISE(Atanh, atanh, x)
TUTTI_POINTWISE(Sinc, sinc, x)
TUTTI_POINTWISE(Deg2Rad, deg2rad, x)
TUTTI_POINTWISE(Rad2Deg, rad2deg, x)
