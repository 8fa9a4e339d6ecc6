// Comparisons and predicates: their results are masks.
#include "pointwise/bits.h"
#include "pointwise/define.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

/// Whether x equals y.
struct Equal : Equality {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x == y;
  }
  static Tile narrow(DType common);
};

/// Whether x differs from y.
struct NotEqual : Equality {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x != y;
  }
  static Tile narrow(DType common);
};

/// Whether x is below y.
struct Less : Comparison {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x < y;
  }
};

/// Whether x is not above y.
struct LessEqual : Comparison {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x <= y;
  }
};

/// Whether x is above y.
struct Greater : Comparison {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x > y;
  }
};

/// Whether x is not below y.
struct GreaterEqual : Comparison {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x >= y;
  }
};

/// Whether x is not a number.
struct IsNan : Predicate {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return x != x;
  }
};

/// Whether x is infinite.
struct IsInf : Predicate {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return isinf(x);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x) {
    return x != x;
  }
};

/// Whether x is neither infinite nor NaN.
struct IsFinite : Predicate {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return isfinite(x);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x) {
    return x == x;
  }
};

/// Whether x is negative, -0 included.
struct Signbit : Comparison {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return signbit(x);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x) {
    return x < 0;
  }
};

/// Whether |x - y| <= atol + rtol · |y|. Infinities are close only to themselves.
struct IsClose : Equality {
  template <class X, class Y, class R, class A>
  TUTTI_HD static auto value(X x, Y y, R rtol, A atol) {
    auto distance = abs(x - y);
    return (x == y) | ((distance <= atol + rtol * abs(y)) & isfinite(distance));
  }
  template <class V>
  TUTTI_HD static auto value(Complex<V> x, Complex<V> y, Complex<V> rtol, Complex<V> atol) {
    auto distance = abs(x - y);
    return (x == y) | ((distance <= atol.re + rtol.re * abs(y)) & isfinite(distance));
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x, X y, X rtol, X atol) {
    auto distance = select(x > y, x - y, y - x);
    return distance <= atol + rtol * select(y < 0, -y, y);
  }
};

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise

#if defined(TUTTI_ISA_BASE)
namespace tutti::pointwise {
Tile Equal::narrow(DType common) { return truth_tile(Bits::same, common); }
Tile NotEqual::narrow(DType common) { return truth_tile(Bits::differ, common); }
}  // namespace tutti::pointwise
#endif

TUTTI_POINTWISE(Equal, eq, x, y)
TUTTI_POINTWISE(NotEqual, ne, x, y)
TUTTI_POINTWISE(Less, lt, x, y)
TUTTI_POINTWISE(LessEqual, le, x, y)
TUTTI_POINTWISE(Greater, gt, x, y)
TUTTI_POINTWISE(GreaterEqual, ge, x, y)
TUTTI_POINTWISE_PURE(IsNan, isnan, x)
TUTTI_POINTWISE_PURE(IsInf, isinf, x)
TUTTI_POINTWISE_PURE(IsFinite, isfinite, x)
TUTTI_POINTWISE_PURE(Signbit, signbit, x)
TUTTI_DEFAULTS(isclose, rtol = 1e-5, atol = 1e-8)
TUTTI_POINTWISE_PURE(IsClose, isclose, x, y, rtol, atol)
