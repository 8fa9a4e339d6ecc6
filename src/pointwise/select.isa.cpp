// Choices between values.
#include "pointwise/define.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

namespace detail {

template <class T, int N>
TUTTI_HD Mask<T, N> truth(Mask<T, N> condition) {
  return condition;
}
template <class C>
TUTTI_HD auto truth(C condition) {
  return condition != 0.0;
}

}  // namespace detail

/// x where the condition holds, y elsewhere.
struct Where : Select {
  static constexpr uint32_t saves = 1;
  template <class C, class X, class Y>
  TUTTI_HD static auto value(C condition, X x, Y y) {
    return select(detail::truth(plain_value(condition)), x, y);
  }
  static void gradient(GradientCall& c);
};

/// x with given numbers in the place of NaN, ∞ and -∞, where the gradient is 0.
struct NanToNum : Real {
  template <class X, class N, class P, class M>
  TUTTI_HD static auto value(X x, N nan, P posinf, M neginf) {
    return select(x != x, nan, select(isinf(x), select(x > 0.0, posinf, neginf), x));
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x, X, X, X) {
    return x;
  }
};

#if defined(TUTTI_ISA_BASE)
void Where::gradient(GradientCall& c) {
  Tensor condition = c.input(0);
  if (c.needs(1)) c.set(1, tutti::where(condition, c.grad(), 0));
  if (c.needs(2)) c.set(2, tutti::where(condition, 0, c.grad()));
}
#endif

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise

TUTTI_POINTWISE_PURE(Where, where, condition, x, y)
TUTTI_POINTWISE(NanToNum, nan_to_num, x, nan, posinf, neginf)
