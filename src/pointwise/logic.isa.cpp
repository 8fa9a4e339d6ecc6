// Logic on truth values (what is not 0 is true) and on the bits of integers.
#include "pointwise/define.h"

namespace tutti::pointwise {
struct PointwiseOperator;
}

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

/// Whether x and y are both true.
struct LogicalAnd : Logical {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return (x != 0.0) & (y != 0.0);
  }
};

/// Whether x or y is true.
struct LogicalOr : Logical {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return (x != 0.0) | (y != 0.0);
  }
};

/// Whether just one of x and y is true.
struct LogicalXor : Logical {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return (x != 0.0) ^ (y != 0.0);
  }
};

/// Whether x is false.
struct LogicalNot : Logical {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return x == 0.0;
  }
};

/// The bits that x and y both have.
struct BitwiseAnd : Integral {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x & y;
  }
};

/// The bits that x or y has.
struct BitwiseOr : Integral {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x | y;
  }
};

/// The bits that just one of x and y has.
struct BitwiseXor : Integral {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x ^ y;
  }
};

/// The bits that x has not.
struct BitwiseNot : Integral {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return ~x;
  }
  static const PointwiseOperator& for_bool();
};

/// x · 2ʸ. Counts that are negative or beyond the width give 0.
struct ShiftLeft : Integral {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    auto possible = (y >= 0) & (y < 64);
    return select(possible, x << select(possible, y, 0), 0);
  }
};

/// ⌊x / 2ʸ⌋. Counts that are negative or beyond the width leave only the sign.
struct ShiftRight : Integral {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x >> select((y >= 0) & (y < 64), y, 63);
  }
};

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise

TUTTI_POINTWISE_PURE(LogicalAnd, logical_and, x, y)
TUTTI_POINTWISE_PURE(LogicalOr, logical_or, x, y)
TUTTI_POINTWISE_PURE(LogicalXor, logical_xor, x, y)
TUTTI_POINTWISE_PURE(LogicalNot, logical_not, x)
TUTTI_POINTWISE(BitwiseAnd, bitwise_and, x, y)
TUTTI_POINTWISE(BitwiseOr, bitwise_or, x, y)
TUTTI_POINTWISE(BitwiseXor, bitwise_xor, x, y)
TUTTI_POINTWISE(BitwiseNot, bitwise_not, x)
TUTTI_POINTWISE(ShiftLeft, shift_left, x, y)
TUTTI_POINTWISE(ShiftRight, shift_right, x, y)

#if defined(TUTTI_ISA_BASE)
// The complement of a truth value is not that of its bits.
const tutti::pointwise::PointwiseOperator& tutti::pointwise::BitwiseNot::for_bool() { return logical_not_operator(); }
#endif
