// Rounding to whole numbers. Integers are whole already.
#include "pointwise/define.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

/// The largest whole number not above x.
struct Floor : Real, Stepwise {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return floor(x);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x) {
    return x;
  }
};

/// The smallest whole number not below x.
struct Ceil : Real, Stepwise {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return ceil(x);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x) {
    return x;
  }
};

/// The nearest whole number to x; halfway, the even one.
struct Round : Real, Stepwise {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return round(x);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x) {
    return x;
  }
};

/// x without its fraction.
struct Trunc : Real, Stepwise {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return trunc(x);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x) {
    return x;
  }
};

/// The fraction of x, with its sign.
struct Frac : Floating {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return x - trunc(x);
  }
};

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise

TUTTI_POINTWISE(Floor, floor, x)
TUTTI_POINTWISE(Ceil, ceil, x)
TUTTI_POINTWISE(Round, round, x)
TUTTI_POINTWISE(Trunc, trunc, x)
TUTTI_POINTWISE(Frac, frac, x)
