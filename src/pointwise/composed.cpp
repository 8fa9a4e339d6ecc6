#include "pointwise/composed.h"

#include "tutti/ops.h"

namespace tutti::pointwise {

Composed operator+(const Composed& a, const Composed& b) {
  if (a.is_constant() && b.is_constant()) return a.constant() + b.constant();
  if (a.is(0)) return b;
  if (b.is(0)) return a;
  return Composed(tutti::add(a.tensor(), b.tensor()));
}
Composed operator-(const Composed& a, const Composed& b) {
  if (a.is_constant() && b.is_constant()) return a.constant() - b.constant();
  if (a.is(0)) return -b;
  if (b.is(0)) return a;
  return Composed(tutti::sub(a.tensor(), b.tensor()));
}
Composed operator*(const Composed& a, const Composed& b) {
  if (a.is_constant() && b.is_constant()) return a.constant() * b.constant();
  if (a.is(0) || b.is(0)) return 0.0;
  if (a.is(1)) return b;
  if (b.is(1)) return a;
  return Composed(tutti::mul(a.tensor(), b.tensor()));
}
Composed operator/(const Composed& a, const Composed& b) {
  if (a.is_constant() && b.is_constant()) return a.constant() / b.constant();
  if (a.is(0)) return 0.0;
  if (b.is(1)) return a;
  return Composed(tutti::div(a.tensor(), b.tensor()));
}
Composed operator-(const Composed& a) {
  return a.is_constant() ? Composed(-a.constant()) : Composed(tutti::neg(a.tensor()));
}

Composed operator==(const Composed& a, const Composed& b) { return Composed(tutti::eq(a.tensor(), b.tensor())); }
Composed operator!=(const Composed& a, const Composed& b) { return Composed(tutti::ne(a.tensor(), b.tensor())); }
Composed operator<(const Composed& a, const Composed& b) { return Composed(tutti::lt(a.tensor(), b.tensor())); }
Composed operator<=(const Composed& a, const Composed& b) { return Composed(tutti::le(a.tensor(), b.tensor())); }
Composed operator>(const Composed& a, const Composed& b) { return Composed(tutti::gt(a.tensor(), b.tensor())); }
Composed operator>=(const Composed& a, const Composed& b) { return Composed(tutti::ge(a.tensor(), b.tensor())); }
Composed operator&(const Composed& a, const Composed& b) {
  return Composed(tutti::logical_and(a.tensor(), b.tensor()));
}
Composed operator|(const Composed& a, const Composed& b) { return Composed(tutti::logical_or(a.tensor(), b.tensor())); }
Composed operator^(const Composed& a, const Composed& b) {
  return Composed(tutti::logical_xor(a.tensor(), b.tensor()));
}
Composed operator!(const Composed& a) { return Composed(tutti::logical_not(a.tensor())); }
Composed select(const Composed& condition, const Composed& a, const Composed& b) {
  if (a.is_constant() && b.is(a.constant())) return a;
  return Composed(tutti::where(condition.tensor(), a.tensor(), b.tensor()));
}
Composed fma(const Composed& a, const Composed& b, const Composed& c) {
  return Composed(tutti::fused_multiply_add(a.tensor(), b.tensor(), c.tensor()));
}

// A primitive on tensors is the public operator of the same name.
#define TUTTI_COMPOSED_UNARY(name) \
  Composed name(const Composed& a) { return Composed(tutti::name(a.tensor())); }
#define TUTTI_COMPOSED_BINARY(name, function) \
  Composed name(const Composed& a, const Composed& b) { return Composed(tutti::function(a.tensor(), b.tensor())); }

TUTTI_COMPOSED_UNARY(abs)
TUTTI_COMPOSED_UNARY(sqrt)
TUTTI_COMPOSED_UNARY(rsqrt)
TUTTI_COMPOSED_UNARY(exp)
TUTTI_COMPOSED_UNARY(exp2)
TUTTI_COMPOSED_UNARY(expm1)
TUTTI_COMPOSED_UNARY(log)
TUTTI_COMPOSED_UNARY(log2)
TUTTI_COMPOSED_UNARY(log10)
TUTTI_COMPOSED_UNARY(log1p)
TUTTI_COMPOSED_UNARY(sin)
TUTTI_COMPOSED_UNARY(cos)
TUTTI_COMPOSED_UNARY(tan)
TUTTI_COMPOSED_UNARY(asin)
TUTTI_COMPOSED_UNARY(acos)
TUTTI_COMPOSED_UNARY(atan)
TUTTI_COMPOSED_UNARY(sinh)
TUTTI_COMPOSED_UNARY(cosh)
TUTTI_COMPOSED_UNARY(tanh)
TUTTI_COMPOSED_UNARY(asinh)
TUTTI_COMPOSED_UNARY(acosh)
TUTTI_COMPOSED_UNARY(atanh)
TUTTI_COMPOSED_UNARY(erf)
TUTTI_COMPOSED_UNARY(erfc)
TUTTI_COMPOSED_UNARY(erfinv)
// No operator of its own: it is only met in second derivatives.
Composed normal_cdf(const Composed& a) { return erfc(a * -0.70710678118654752440) * 0.5; }
TUTTI_COMPOSED_UNARY(lgamma)
TUTTI_COMPOSED_UNARY(digamma)
TUTTI_COMPOSED_UNARY(trigamma)
TUTTI_COMPOSED_UNARY(sigmoid)
TUTTI_COMPOSED_UNARY(floor)
TUTTI_COMPOSED_UNARY(ceil)
TUTTI_COMPOSED_UNARY(trunc)
TUTTI_COMPOSED_UNARY(round)
TUTTI_COMPOSED_UNARY(sign)
TUTTI_COMPOSED_UNARY(conj)
TUTTI_COMPOSED_UNARY(isnan)
TUTTI_COMPOSED_UNARY(isinf)
TUTTI_COMPOSED_UNARY(isfinite)
TUTTI_COMPOSED_UNARY(signbit)
TUTTI_COMPOSED_BINARY(pow, pow)
TUTTI_COMPOSED_BINARY(atan2, atan2)
TUTTI_COMPOSED_BINARY(fmod, fmod)
TUTTI_COMPOSED_BINARY(remainder, remainder)
TUTTI_COMPOSED_BINARY(min, minimum)
TUTTI_COMPOSED_BINARY(max, maximum)
TUTTI_COMPOSED_BINARY(copysign, copysign)
TUTTI_COMPOSED_BINARY(hypot, hypot)

}  // namespace tutti::pointwise
