// Operators that look at the parts of complex numbers.
#include "pointwise/define.h"

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

/// The complex conjugate; real numbers as they are.
struct Conj : Arithmetic, SparseLinear {
  static constexpr uint32_t saves = 0;
  template <class X>
  TUTTI_HD static auto value(X x) {
    return conjugate(x);
  }
  static void gradient(GradientCall& c);
};

#if defined(TUTTI_ISA_BASE)
void Conj::gradient(GradientCall& c) { c.set(0, tutti::conj(c.grad())); }
#endif

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise

TUTTI_POINTWISE(Conj, conj, x)
