// Logic on truth values (what is not 0 is true) and on the bits of integers.
#include "pointwise/bits.h"
#include "pointwise/define.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

/// Whether x and y are both true.
struct LogicalAnd : Logical {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return (x != 0.0) & (y != 0.0);
  }
  static Tile narrow(DType common);
};

/// Whether x or y is true.
struct LogicalOr : Logical {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return (x != 0.0) | (y != 0.0);
  }
  static Tile narrow(DType common);
};

/// Whether just one of x and y is true.
struct LogicalXor : Logical {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return (x != 0.0) ^ (y != 0.0);
  }
  static Tile narrow(DType common);
};

/// Whether x is false.
struct LogicalNot : Logical {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return x == 0.0;
  }
  static Tile narrow(DType common);
};

/// The bits that x and y both have.
struct BitwiseAnd : Integral {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x & y;
  }
  static Tile narrow(DType common);
};

/// The bits that x or y has.
struct BitwiseOr : Integral {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x | y;
  }
  static Tile narrow(DType common);
};

/// The bits that just one of x and y has.
struct BitwiseXor : Integral {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x ^ y;
  }
  static Tile narrow(DType common);
};

/// The bits that x has not.
struct BitwiseNot : Integral {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return ~x;
  }
  static Tile narrow(DType common);
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

#if defined(TUTTI_ISA_BASE)
namespace tutti::pointwise {
Tile LogicalAnd::narrow(DType common) { return truth_tile(Bits::both, common); }
Tile LogicalOr::narrow(DType common) { return truth_tile(Bits::either, common); }
Tile LogicalXor::narrow(DType common) { return truth_tile(Bits::differ, common); }
Tile LogicalNot::narrow(DType common) { return truth_tile(Bits::complement, common); }
Tile BitwiseAnd::narrow(DType common) { return bits_tile(Bits::both, common); }
Tile BitwiseOr::narrow(DType common) { return bits_tile(Bits::either, common); }
Tile BitwiseXor::narrow(DType common) { return bits_tile(Bits::differ, common); }
Tile BitwiseNot::narrow(DType common) { return bits_tile(Bits::complement, common); }
}  // namespace tutti::pointwise
#endif

TUTTI_POINTWISE(LogicalAnd, logical_and, x, y)
TUTTI_POINTWISE(LogicalOr, logical_or, x, y)
TUTTI_POINTWISE(LogicalXor, logical_xor, x, y)
TUTTI_POINTWISE(LogicalNot, logical_not, x)
TUTTI_POINTWISE(BitwiseAnd, bitwise_and, x, y)
TUTTI_POINTWISE(BitwiseOr, bitwise_or, x, y)
TUTTI_POINTWISE(BitwiseXor, bitwise_xor, x, y)
TUTTI_POINTWISE(BitwiseNot, bitwise_not, x)
TUTTI_POINTWISE(ShiftLeft, shift_left, x, y)
TUTTI_POINTWISE(ShiftRight, shift_right, x, y)
