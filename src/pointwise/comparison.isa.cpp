// Comparisons and predicates: their results are masks.
#include "pointwise/define.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

/// Whether x equals y.
struct Equal : Equality {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x == y;
  }
};

/// Whether x differs from y.
struct NotEqual : Equality {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x != y;
  }
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
struct IsClose : Comparison {
  template <class X, class Y, class R, class A>
  TUTTI_HD static auto value(X x, Y y, R rtol, A atol) {
    auto distance = abs(x - y);
    return (x == y) | ((distance <= atol + rtol * abs(y)) & isfinite(distance));
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x, X y, X rtol, X atol) {
    auto distance = select(x > y, x - y, y - x);
    return distance <= atol + rtol * select(y < 0, -y, y);
  }
};

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise

TUTTI_POINTWISE_PURE(Equal, eq, x, y)
TUTTI_POINTWISE_PURE(NotEqual, ne, x, y)
TUTTI_POINTWISE_PURE(Less, lt, x, y)
TUTTI_POINTWISE_PURE(LessEqual, le, x, y)
TUTTI_POINTWISE_PURE(Greater, gt, x, y)
TUTTI_POINTWISE_PURE(GreaterEqual, ge, x, y)
TUTTI_POINTWISE_PURE(IsNan, isnan, x)
TUTTI_POINTWISE_PURE(IsInf, isinf, x)
TUTTI_POINTWISE_PURE(IsFinite, isfinite, x)
TUTTI_POINTWISE_PURE(Signbit, signbit, x)
TUTTI_DEFAULTS(isclose, rtol = 1e-5, atol = 1e-8)
TUTTI_POINTWISE_PURE(IsClose, isclose, x, y, rtol, atol)
