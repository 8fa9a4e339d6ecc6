// Sums, products, quotients, powers, extrema.
#include "pointwise/define.h"
#if defined(TUTTI_ISA_BASE)
#include "base/check.h"
#include "tensor/number.h"
#endif

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

namespace detail {

// x / y rounded towards zero for integers. The processor traps where the quotient does not exist: x / 0 is 0 here, and
// the one overflow wraps.
template <IntegerValue V>
TUTTI_HD V integer_quotient(V x, V y) {
  auto unsafe = (y == 0) | (y == -1);
  V quotient = x / select(unsafe, 1, y);
  return select(unsafe, select(y == 0, V(0), -x), quotient);
}

// x^y for integers by squaring. Like an integer quotient, a negative power is rounded towards zero: 0 unless x is ±1.
template <IntegerValue V>
TUTTI_HD V integer_power(V x, V y) {
  auto negative = y < 0;
  auto odd = (y & V(1)) != 0;
  V exponent = select(negative, 0, y);
  typename V::Element lanes[V::lanes], bits = 0;
  exponent.store(lanes);
  for (int i = 0; i < V::lanes; ++i) bits |= lanes[i];
  V power = 1, base = x;
  for (; bits != 0; bits >>= 1) {
    power = select((exponent & V(1)) != 0, power * base, power);
    base = base * base;
    exponent = exponent >> 1;
  }
  V inverse = select(x == 1, 1, select(x == -1, select(odd, -1, V(1)), V(0)));
  return select(negative, inverse, power);
}

}  // namespace detail

/// x + y.
struct Add : Arithmetic, SparseSum {
  static constexpr uint32_t saves = 0;
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x + y;
  }
  static void gradient(GradientCall& c);
};

/// x - y.
struct Sub : Numeric, SparseDifference {
  static constexpr uint32_t saves = 0;
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x - y;
  }
  static void gradient(GradientCall& c);
};

/// x · y, element by element.
struct Mul : Arithmetic, SparseProduct {
  static constexpr uint32_t saves = kAll;
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x * y;
  }
  static void gradient(GradientCall& c);
};

/// x / y. Integers are divided as floating-point numbers.
struct Div : FloatingComplex, SparseQuotient {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return x / y;
  }
};

/// ⌊x / y⌋, rounded down from the exact quotient. An integer zero as y is an error.
struct FloorDivide : Division, Stepwise {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    auto a = plain_value(x);
    auto b = plain_value(y);
    // The rounded a / b can be a whole number where the exact one is just below it: divide what fmod leaves instead.
    auto rest = fmod(a, b);
    auto quotient = (a - rest) / b;
    quotient = select((rest != 0.0) & ((rest < 0.0) ^ (b < 0.0)), quotient - 1.0, quotient);
    auto whole = floor(quotient);
    whole = select(quotient - whole > 0.5, whole + 1.0, whole);
    auto ratio = a / b;
    return select(b == 0.0, ratio, select(quotient == 0.0, copysign(constant_like(ratio, 0.0), ratio), whole));
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x, X y) {
    auto quotient = detail::integer_quotient(x, y);
    auto rest = x - quotient * y;
    return select((y != 0) & (rest != 0) & ((rest < 0) ^ (y < 0)), quotient - 1, quotient);
  }
};

/// x / y rounded towards zero. An integer zero as y is an error.
struct TruncDivide : Division, Stepwise {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return trunc(x / y);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x, X y) {
    return detail::integer_quotient(x, y);
  }
};

/// What ⌊x / y⌋ · y leaves of x: it has the sign of y. An integer zero as y is an error.
struct Remainder : Division {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return remainder(x, y);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x, X y) {
    auto rest = x - detail::integer_quotient(x, y) * y;
    return select(y == 0, 0, select((rest != 0) & ((rest < 0) ^ (y < 0)), rest + y, rest));
  }
};

/// What trunc(x / y) · y leaves of x: it has the sign of x. An integer zero as y is an error.
struct Fmod : Division {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return fmod(x, y);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x, X y) {
    return select(y == 0, 0, x - detail::integer_quotient(x, y) * y);
  }
};

/// -x.
struct Neg : Numeric, SparseLinear {
  static constexpr uint32_t saves = 0;
  template <class X>
  TUTTI_HD static auto value(X x) {
    return -x;
  }
  static void gradient(GradientCall& c);
};

/// 1 / x.
struct Reciprocal : FloatingComplex, FullPrecision {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return 1.0 / x;
  }
};

/// x².
struct Square : Arithmetic, KeepsZero {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return x * x;
  }
};

/// |x|. Its derivative at 0 is 0.
struct Abs : Magnitude, KeepsZero {
  static constexpr uint32_t saves = kAll;
  template <class X>
  TUTTI_HD static auto value(X x) {
    return abs(x);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x) {
    return select(x < 0, -x, x);
  }
  static void gradient(GradientCall& c);
};

/// -1, 0 or 1, as x is negative, zero or positive.
struct Sign : Real, Stepwise, KeepsZero {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return sign(x);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x) {
    return select(x < 0, -1, select(x > 0, 1, X(0)));
  }
};

// Note [Sooner]
// Where an operator is asked for something that a much cheaper formula gives too, its `sooner` names the operator whose
// kernels are to be used; its name, its checks and its history stay its own.

/// x to the power y. An integer to a negative power is 0, unless it is 1 or -1. A number (or a tensor without dims) y
/// of 1, 2, 3, 0.5 or -1 gives the bits of x, x·x, x·x·x, sqrt(x) or 1/x.
struct Pow : Arithmetic, FullPrecision {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return pow(x, y);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x, X y) {
    return detail::integer_power(x, y);
  }
#if !defined(__CUDACC__)
  static const PointwiseOperator* sooner(std::span<const Tensor* const> inputs);
#endif
};

// The powers 1 and 3, which no operator is named after.
struct Identity : Arithmetic {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return x;
  }
};
struct Cube : Arithmetic {
  template <class X>
  TUTTI_HD static auto value(X x) {
    return x * x * x;
  }
};

/// The larger of x and y; NaN if either is. Where they are equal, each has half of the gradient.
struct Maximum : Real {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return max(x, y);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x, X y) {
    return select(x > y, x, y);
  }
};

/// The smaller of x and y; NaN if either is. Where they are equal, each has half of the gradient.
struct Minimum : Real {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return min(x, y);
  }
  template <IntegerValue X>
  TUTTI_HD static auto value(X x, X y) {
    return select(x < y, x, y);
  }
};

/// The larger of x and y; if one is NaN, the other.
struct Fmax : Real {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return select(x != x, y, select(y != y, x, Maximum::value(x, y)));
  }
};

/// The smaller of x and y; if one is NaN, the other.
struct Fmin : Real {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return select(x != x, y, select(y != y, x, Minimum::value(x, y)));
  }
};

/// x, or the bound that it exceeds; `high` where the bounds cross. The gradient passes inside and at the bounds.
struct Clamp : Real {
  template <class X, class L, class H>
  TUTTI_HD static auto value(X x, L low, H high) {
    auto raised = select((x < low) | (low != low), low, x);
    return select((raised > high) | (high != high), high, raised);
  }
#if !defined(__CUDACC__)
  static void infer(const Call& call, std::span<TensorSpec> outputs);
#endif
};

/// x, or `low` where it is less. The gradient passes above and at the bound.
struct ClampMin : Real {
  template <class X, class L>
  TUTTI_HD static auto value(X x, L low) {
    return select((x < low) | (low != low), low, x);
  }
#if !defined(__CUDACC__)
  static void infer(const Call& call, std::span<TensorSpec> outputs);
#endif
};

/// x, or `high` where it is more. The gradient passes below and at the bound.
struct ClampMax : Real {
  template <class X, class H>
  TUTTI_HD static auto value(X x, H high) {
    return select((x > high) | (high != high), high, x);
  }
#if !defined(__CUDACC__)
  static void infer(const Call& call, std::span<TensorSpec> outputs);
#endif
};

/// Between x (weight 0) and y (weight 1), and exactly these at the ends.
struct Lerp : FloatingComplex {
  template <class X, class Y, class W>
  TUTTI_HD static auto value(X x, Y y, W weight) {
    auto way = y - x;
    return select(near(plain_value(weight)), x + weight * way, y - way * (1.0 - weight));
  }

 private:
  // Whether x is the end that the way is better begun at. Complex weights have no order.
  template <class W>
  TUTTI_HD static auto near(W weight) {
    if constexpr (requires { typename W::Element; })
      return weight < 0.5;
    else
      return abs(weight) < 0.5;
  }
};

/// x + value · y · z.
struct Addcmul : Arithmetic, SparseSumOfProducts {
  template <class X, class Y, class Z, class A>
  TUTTI_HD static auto value(X x, Y y, Z z, A value) {
    return x + value * (y * z);
  }
};

/// x + value · y / z.
struct Addcdiv : FloatingComplex {
  template <class X, class Y, class Z, class A>
  TUTTI_HD static auto value(X x, Y y, Z z, A value) {
    return x + value * (y / z);
  }
};

/// √(x² + y²) without undue overflow.
struct Hypot : Floating {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return hypot(x, y);
  }
};

/// |x| with the sign of y.
struct Copysign : Floating {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    return copysign(x, y);
  }
};

/// 0 for negative x, 1 for positive x, and y for x = 0.
struct Heaviside : Real {
  template <class X, class Y>
  TUTTI_HD static auto value(X x, Y y) {
    auto a = plain_value(x);
    return select(a == 0.0, y, select(a > 0.0, 1.0, select(a < 0.0, 0.0, a)));
  }
};

/// x · y + z, rounded once.
struct FusedMultiplyAdd : Floating {
  template <class X, class Y, class Z>
  TUTTI_HD static auto value(X x, Y y, Z z) {
    return fma(x, y, z);
  }
};

#if defined(TUTTI_ISA_BASE)
namespace {
Tensor conjugated(const Tensor& x) { return x.is_complex() ? tutti::conj(x) : x; }
}  // namespace

// Written by hand: these read less than the kernels that would come from the formulas.
void Add::gradient(GradientCall& c) {
  c.set(0, c.grad());
  c.set(1, c.grad());
}
void Sub::gradient(GradientCall& c) {
  c.set(0, c.grad());
  if (c.needs(1)) c.set(1, tutti::neg(c.grad()));
}
void Mul::gradient(GradientCall& c) {
  if (c.needs(0)) c.set(0, tutti::mul(c.grad(), conjugated(c.input(1))));
  if (c.needs(1)) c.set(1, tutti::mul(c.grad(), conjugated(c.input(0))));
}
void Neg::gradient(GradientCall& c) { c.set(0, tutti::neg(c.grad())); }
// The absolute value is not holomorphic: its gradient points along x.
void Abs::gradient(GradientCall& c) {
  Tensor x = c.input(0);
  if (!x.is_complex()) {
    c.set(0, tutti::mul(c.grad(), tutti::sign(x)));
    return;
  }
  Tensor length = tutti::abs(x);
  c.set(0, tutti::where(tutti::eq(length, 0), 0, tutti::mul(tutti::div(x, length), c.grad())));
}
#endif

}  // namespace TUTTI_ISA

#if defined(TUTTI_ISA_BASE)
const PointwiseOperator& identity_operator();
const PointwiseOperator& square_operator();
const PointwiseOperator& cube_operator();
const PointwiseOperator& sqrt_operator();
const PointwiseOperator& reciprocal_operator();

const PointwiseOperator* Pow::sooner(std::span<const Tensor* const> inputs) {
  const Tensor& y = *inputs[1];
  if (y.dim() != 0 || y.is_complex()) return nullptr;
  NoGrad guard;
  auto power = y.item<double>();
  return power == 2     ? &square_operator()
         : power == 3   ? &cube_operator()
         : power == 1   ? &identity_operator()
         : power == 0.5 ? &sqrt_operator()
         : power == -1  ? &reciprocal_operator()
                        : nullptr;
}

namespace {
// Integers are clamped as i64, so a bound beyond the dtype does no harm, unless all of its numbers lie on the wrong
// side: then the result would wrap. Floats would become infinite.
void check_bound(const char* name, const Tensor& bound, DType dtype, int wrong_side) {
  if (fits(bound, dtype)) return;
  auto value = bound.item<double>();
  check<ValueError>(wrong_side > 0 ? value < 0 : value > 0, name, "no number of {} is as {} as {}", dtype,
                    wrong_side > 0 ? "large" : "small", value);
}
}  // namespace

void Clamp::infer(const Call& call, std::span<TensorSpec> outputs) {
  pointwise::infer(call, outputs);
  check_bound(call.op.name, call.input(1), outputs[0].dtype, 1);
  check_bound(call.op.name, call.input(2), outputs[0].dtype, -1);
}
void ClampMin::infer(const Call& call, std::span<TensorSpec> outputs) {
  pointwise::infer(call, outputs);
  check_bound(call.op.name, call.input(1), outputs[0].dtype, 1);
}
void ClampMax::infer(const Call& call, std::span<TensorSpec> outputs) {
  pointwise::infer(call, outputs);
  check_bound(call.op.name, call.input(1), outputs[0].dtype, -1);
}
#endif
}  // namespace tutti::pointwise

TUTTI_POINTWISE(Add, add, x, y)
TUTTI_POINTWISE(Sub, sub, x, y)
TUTTI_POINTWISE(Mul, mul, x, y)
TUTTI_POINTWISE(Div, div, x, y)
TUTTI_POINTWISE(FloorDivide, floor_divide, x, y)
TUTTI_POINTWISE(TruncDivide, trunc_divide, x, y)
TUTTI_POINTWISE(Remainder, remainder, x, y)
TUTTI_POINTWISE(Fmod, fmod, x, y)
TUTTI_POINTWISE(Neg, neg, x)
TUTTI_POINTWISE(Reciprocal, reciprocal, x)
TUTTI_POINTWISE(Square, square, x)
TUTTI_POINTWISE(Abs, abs, x)
TUTTI_POINTWISE(Sign, sign, x)
TUTTI_POINTWISE_HIDDEN(Identity, identity, x)
TUTTI_POINTWISE_HIDDEN(Cube, cube, x)
TUTTI_POINTWISE(Pow, pow, x, y)
TUTTI_POINTWISE(Maximum, maximum, x, y)
TUTTI_POINTWISE(Minimum, minimum, x, y)
TUTTI_POINTWISE(Fmax, fmax, x, y)
TUTTI_POINTWISE(Fmin, fmin, x, y)
TUTTI_POINTWISE(Clamp, clamp, x, low, high)
TUTTI_POINTWISE(ClampMin, clamp_min, x, low)
TUTTI_POINTWISE(ClampMax, clamp_max, x, high)
TUTTI_POINTWISE(Lerp, lerp, x, y, weight)
TUTTI_DEFAULTS(addcmul, value = 1)
TUTTI_POINTWISE(Addcmul, addcmul, x, y, z, value)
TUTTI_DEFAULTS(addcdiv, value = 1)
TUTTI_POINTWISE(Addcdiv, addcdiv, x, y, z, value)
TUTTI_POINTWISE(Hypot, hypot, x, y)
TUTTI_POINTWISE(Copysign, copysign, x, y)
TUTTI_POINTWISE(Heaviside, heaviside, x, y)
TUTTI_POINTWISE(FusedMultiplyAdd, fused_multiply_add, x, y, z)
