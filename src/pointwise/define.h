// Defines pointwise operators from their formulas. A formula file (src/pointwise/*.isa.cpp) includes this, writes one
// struct an operator and one TUTTI_POINTWISE line for it; this header makes the kernels of that compilation's
// instruction set from it and, in the baseline compilation, the descriptor and the public functions as well.
#pragma once

#include <array>
#include <utility>

#include "base/isa.h"
#include "tutti/pointwise/complex.h"
#include "tutti/pointwise/dual.h"
#include "tutti/pointwise/primitives.h"
#include "tutti/pointwise/vec.h"

#if !defined(__CUDACC__)
#include "pointwise/signature.h"
#endif
#if defined(TUTTI_ISA_BASE)
#include "pointwise/composed.h"
#include "tutti/ops.h"
#endif

namespace tutti {
class GradientCall;
}

namespace tutti::pointwise {
inline namespace TUTTI_ISA {

// ---- Signatures: what a formula derives from.

#if !defined(__CUDACC__)
/// Any number; the result has the common dtype.
struct Arithmetic {
  static constexpr Signature signature{};
};
/// The same without bool, where a difference of truths has no meaning.
struct Numeric {
  static constexpr Signature signature{.accepts = kInt | kFloat | kComplex};
};
/// Any number; bools and integers become floats.
struct FloatingComplex {
  static constexpr Signature signature{.integers_to_float = true};
};
struct Floating {
  static constexpr Signature signature{.accepts = kReal, .integers_to_float = true};
};
struct Real {
  static constexpr Signature signature{.accepts = kReal};
};
/// As Real, for operators that divide integers by integers: a zero divisor is an error.
struct Division {
  static constexpr Signature signature{.accepts = kReal, .divides_integers = true};
};
struct Integral {
  static constexpr Signature signature{.accepts = kBool | kInt};
};
struct Equality {
  static constexpr Signature signature{.result = Result::boolean};
};
struct Comparison {
  static constexpr Signature signature{.accepts = kReal, .result = Result::boolean};
};
struct Predicate : Equality {};
struct Logical : Equality {};
/// Complex inputs give a real result.
struct Magnitude {
  static constexpr Signature signature{.result = Result::real};
};
/// The first input chooses between the others.
struct Select {
  static constexpr Signature signature{.condition = true};
};
#else
struct Arithmetic {};
struct Numeric {};
struct FloatingComplex {};
struct Floating {};
struct Real {};
struct Division {};
struct Integral {};
struct Equality {};
struct Comparison {};
struct Predicate {};
struct Logical {};
struct Magnitude {};
struct Select {};
inline constexpr uint32_t kAll = ~uint32_t{0};
#endif
/// Added to a signature: sparse tensors are taken too.
#if !defined(__CUDACC__)
template <SparseForm Form>
struct TakesSparse {
  static constexpr SparseForm sparse_form = Form;
};
using SparseSum = TakesSparse<SparseForm::sum>;
using SparseDifference = TakesSparse<SparseForm::difference>;
using SparseProduct = TakesSparse<SparseForm::product>;
using SparseQuotient = TakesSparse<SparseForm::quotient>;
using SparseSumOfProducts = TakesSparse<SparseForm::sum_of_products>;
using SparseLinear = TakesSparse<SparseForm::linear>;
using KeepsZero = TakesSparse<SparseForm::keeps_zero>;
#else
struct SparseSum {};
struct SparseDifference {};
struct SparseProduct {};
struct SparseQuotient {};
struct SparseSumOfProducts {};
struct SparseLinear {};
struct KeepsZero {};
#endif
/// Added to a signature: the derivative is zero almost everywhere.
struct Stepwise {};
/// Added to a signature: results need more range or precision than bf16 and f16 have, so autocast computes in f32.
struct FullPrecision {};

/// The complex conjugate of complex lanes, others as they are.
template <class V>
TUTTI_HD V conjugate(V v) {
  if constexpr (requires { v.im; })
    return conj(v);
  else
    return v;
}

#if !defined(__CUDACC__)

// ---- Kernels: loops over tiles.

template <class V>
struct Lanes {
  using Element = typename V::Element;
  static constexpr int count = V::lanes;
  static TUTTI_HD V load(const void* p, int64_t i) { return V::load(static_cast<const Element*>(p) + i); }
  static TUTTI_HD V load(const void* p, int64_t i, int n) { return V::load(static_cast<const Element*>(p) + i, n); }
  static TUTTI_HD void store(void* p, int64_t i, V v) { v.store(static_cast<Element*>(p) + i); }
  static TUTTI_HD void store(void* p, int64_t i, V v, int n) { v.store(static_cast<Element*>(p) + i, n); }
};
template <class T>
struct Lanes<Complex<Vec<T, 1>>> {
  using V = Complex<Vec<T, 1>>;
  static constexpr int count = 1;
  static TUTTI_HD V load(const void* p, int64_t i) {
    const T* q = static_cast<const T*>(p) + 2 * i;
    return V{Vec<T, 1>(q[0]), Vec<T, 1>(q[1])};
  }
  static TUTTI_HD V load(const void* p, int64_t i, int) { return load(p, i); }
  static TUTTI_HD void store(void* p, int64_t i, V v) {
    v.re.store(static_cast<T*>(p) + 2 * i);
    v.im.store(static_cast<T*>(p) + 2 * i + 1);
  }
  static TUTTI_HD void store(void* p, int64_t i, V v, int) { store(p, i, v); }
};

// What a formula gave, in the form in which it is stored.
template <class V, class R>
TUTTI_HD auto storable(R r) {
  if constexpr (std::is_arithmetic_v<R>)
    return V(r);
  else
    return r;
}
template <class V, class T, int N>
TUTTI_HD void put(void* out, int64_t i, Mask<T, N> m) {
  store_mask(static_cast<uint8_t*>(out) + i, m);
}
template <class V, class T, int N>
TUTTI_HD void put(void* out, int64_t i, Mask<T, N> m, int n) {
  store_mask(static_cast<uint8_t*>(out) + i, m, n);
}
template <class V, class R>
TUTTI_HD void put(void* out, int64_t i, R r) {
  Lanes<R>::store(out, i, r);
}
template <class V, class R>
TUTTI_HD void put(void* out, int64_t i, R r, int n) {
  Lanes<R>::store(out, i, r, n);
}

template <class F, class V, size_t... I>
void forward_tile(void* out, const void* const* in, int64_t count, std::index_sequence<I...>) {
  constexpr int lanes = Lanes<V>::count;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) put<V>(out, i, storable<V>(F::value(Lanes<V>::load(in[I], i)...)));
  if (int rest = static_cast<int>(count - i); rest > 0)
    put<V>(out, i, storable<V>(F::value(Lanes<V>::load(in[I], i, rest)...)), rest);
}

// The gradient g of the output is the tangent with which input K enters, so that a formula's selects choose between g
// and exact zeros. For complex inputs the gradient is g·conj(f'), by the field's convention.
template <size_t K, size_t I, class V>
TUTTI_HD auto vary(V x, V tangent) {
  if constexpr (K == I)
    return Dual<V, V, 1>{x, tangent};
  else
    return x;
}
template <class V, class R>
TUTTI_HD V tangent_of(R r) {
  if constexpr (LevelOf<R>::value == 0) {
    return constant_like(V{}, 0.0);
  } else {
    using T = decltype(r.tangent);
    if constexpr (std::is_same_v<T, V>)
      return r.tangent;
    else
      return constant_like(V{}, detail::Tangent::operand(r.tangent));
  }
}

template <class F, class V, size_t K, size_t... I>
void gradient_tile(void* out, const void* const* in, int64_t count, std::index_sequence<I...>) {
  constexpr int lanes = Lanes<V>::count;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    V g = conjugate(Lanes<V>::load(in[0], i));
    put<V>(out, i, conjugate(tangent_of<V>(F::value(vary<K, I>(Lanes<V>::load(in[I + 1], i), g)...))));
  }
  if (int rest = static_cast<int>(count - i); rest > 0) {
    V g = conjugate(Lanes<V>::load(in[0], i, rest));
    put<V>(out, i, conjugate(tangent_of<V>(F::value(vary<K, I>(Lanes<V>::load(in[I + 1], i, rest), g)...))), rest);
  }
}

template <class F, class V, int Arity>
constexpr Tile forward_of() {
  return [](void* out, const void* const* in, int64_t n) {
    forward_tile<F, V>(out, in, n, std::make_index_sequence<Arity>());
  };
}
template <class F, class V, int Arity, size_t K>
constexpr Tile gradient_of() {
  return [](void* out, const void* const* in, int64_t n) {
    gradient_tile<F, V, K>(out, in, n, std::make_index_sequence<Arity>());
  };
}

template <class F>
inline constexpr bool is_derived =  // its gradient kernels come from the formula
    F::signature.result != Result::boolean && (F::signature.accepts & (kFloat | kComplex)) &&
    !std::is_base_of_v<Stepwise, F> && !requires { &F::gradient; };

// Bytes a step: two registers on AVX2, one on AVX-512. The baseline has no fused multiply-add and takes it lane by
// lane; there one register keeps the code, and its compile time, small. The bits do not depend on this.
#if defined(TUTTI_ISA_BASE)
inline constexpr int kBytes = 16;
inline constexpr bool kComplexKernels = true;  // of complex numbers one at a time: the same for every instruction set
#else
inline constexpr int kBytes = 64;
inline constexpr bool kComplexKernels = false;
#endif
using V32 = Vec<float, kBytes / 4>;
using V64 = Vec<double, kBytes / 8>;
using VInt = Vec<int64_t, kBytes / 8>;
using VC32 = Complex<Vec<float, 1>>;
using VC64 = Complex<Vec<double, 1>>;

template <class F, int Arity, size_t... K>
constexpr Kernels make_kernels(std::index_sequence<K...>) {
  Kernels k;
  constexpr Signature s = F::signature;
  if constexpr (s.accepts & kFloat) {
    k.forward[0] = forward_of<F, V32, Arity>();
    k.forward[1] = forward_of<F, V64, Arity>();
  }
  if constexpr ((s.accepts & kInt) && !s.integers_to_float) k.forward[2] = forward_of<F, VInt, Arity>();
  if constexpr (kComplexKernels && (s.accepts & kComplex)) {
    k.forward[3] = forward_of<F, VC32, Arity>();
    k.forward[4] = forward_of<F, VC64, Arity>();
  }
  if constexpr (is_derived<F>) {
    if constexpr (s.accepts & kFloat) {
      ((k.gradient[K][0] = s.condition && K == 0 ? nullptr : gradient_of<F, V32, Arity, K>()), ...);
      ((k.gradient[K][1] = s.condition && K == 0 ? nullptr : gradient_of<F, V64, Arity, K>()), ...);
    }
    if constexpr (kComplexKernels && (s.accepts & kComplex)) {
      ((k.gradient[K][3] = s.condition && K == 0 ? nullptr : gradient_of<F, VC32, Arity, K>()), ...);
      ((k.gradient[K][4] = s.condition && K == 0 ? nullptr : gradient_of<F, VC64, Arity, K>()), ...);
    }
  }
  return k;
}

template <class F, int Arity>
inline constexpr Kernels kernels = make_kernels<F, Arity>(std::make_index_sequence<Arity>());

#endif  // !__CUDACC__

#if defined(TUTTI_ISA_BASE)

// ---- Descriptors: the baseline compilation only.

template <size_t K, size_t J, size_t I>
auto vary_twice(const Composed& x) {
  if constexpr (I == K && I == J)
    return detail::seed<2, true>(detail::seed<1, true>(x));
  else if constexpr (I == K)
    return detail::seed<1, true>(x);
  else if constexpr (I == J)
    return detail::seed<2, true>(x);
  else
    return x;
}
template <class T>
Composed as_composed(const T& t) {
  if constexpr (std::is_same_v<T, Composed>)
    return t;
  else
    return Composed(detail::Tangent::operand(t));
}

template <class F, size_t K, size_t J, size_t... I>
Composed second_derivative(const Composed* x, std::index_sequence<I...>) {
  auto result = F::value(vary_twice<K, J, I>(x[I])...);
  return as_composed(detail::At<1>::tangent(detail::At<2>::tangent(result)));
}

template <class F, int Arity>
Composed second_of(int k, int j, const Composed* x) {
  Composed result = 0.0;
  [&]<size_t... KJ>(std::index_sequence<KJ...>) {
    ((KJ == static_cast<size_t>(k * Arity + j)
          ? void(result = second_derivative<F, KJ / Arity, KJ % Arity>(x, std::make_index_sequence<Arity>()))
          : void()),
     ...);
  }(std::make_index_sequence<Arity * Arity>());
  return result;
}

template <class F, int Arity>
PointwiseOperator describe_operator(const char* name, const Kernels& kernels,
                                    const std::array<GradientOperator, Arity>& gradients) {
  PointwiseOperator op{};
  op.name = name;
  op.infer = &infer;
  op.cpu = &run;
  op.pointwise = true;
  op.autocast = std::is_base_of_v<FullPrecision, F> ? AutocastPolicy::full_precision : AutocastPolicy::widest;
  op.signature = F::signature;
  op.signature.stepwise = std::is_base_of_v<Stepwise, F>;
  if constexpr (requires { F::sparse_form; }) op.signature.sparse = F::sparse_form;
  op.arity = Arity;
  op.kernels = kernels;
  if constexpr (requires { &F::gradient; }) {
    op.gradient = &F::gradient;
    op.saves_inputs = F::saves;
  } else if constexpr (std::is_base_of_v<Stepwise, F>) {
    op.gradient = &gradient;
  } else if constexpr (is_derived<F>) {
    op.gradient = &gradient;
    op.saves_inputs = kAll;
    op.gradients = gradients.data();
  }
  if constexpr (requires { &F::infer; }) op.infer = &F::infer;
  if constexpr (requires { &F::narrow; }) op.narrow = &F::narrow;
  if constexpr (requires { &F::sooner; }) op.sooner = &F::sooner;
  if constexpr (is_derived<F>) op.second = &second_of<F, Arity>;
  return op;
}

template <int Arity>
std::array<GradientOperator, Arity> describe_gradients(const char* const* names, const PointwiseOperator& of) {
  std::array<GradientOperator, Arity> list{};
  for (int k = 0; k < Arity; ++k) {
    GradientOperator& op = list[static_cast<size_t>(k)];
    op.name = names[k];
    op.infer = &infer_gradient;
    op.cpu = &run_gradient;
    op.gradient = &second_gradient;
    op.saves_inputs = kAll;
    op.pointwise = true;
    op.of = &of;
    op.which = k;
  }
  return list;
}

#endif  // TUTTI_ISA_BASE

}  // namespace TUTTI_ISA
}  // namespace tutti::pointwise

// Default values of arguments, TUTTI_DEFAULTS(elu, alpha = 1): scripts/declare-pointwise.cmake puts them into the
// declarations.
#define TUTTI_DEFAULTS(function, ...)

#ifndef TUTTI_POINTWISE

#define TUTTI_COUNT_(a, b, c, d, count, ...) count
#define TUTTI_COUNT(...) TUTTI_COUNT_(__VA_ARGS__, 4, 3, 2, 1)

#if defined(TUTTI_ISA_BASE)

#define TUTTI_PARAMS1(a) const Tensor& a
#define TUTTI_PARAMS2(a, b) const Tensor &a, const Tensor &b
#define TUTTI_PARAMS3(a, b, c) const Tensor &a, const Tensor &b, const Tensor &c
#define TUTTI_PARAMS4(a, b, c, d) const Tensor &a, const Tensor &b, const Tensor &c, const Tensor &d
#define TUTTI_REST1(a)
#define TUTTI_REST2(a, b) , const Tensor& b
#define TUTTI_REST3(a, b, c) , const Tensor &b, const Tensor &c
#define TUTTI_REST4(a, b, c, d) , const Tensor &b, const Tensor &c, const Tensor &d
#define TUTTI_METHOD1(a)
#define TUTTI_METHOD2(a, b) const Tensor& b
#define TUTTI_METHOD3(a, b, c) const Tensor &b, const Tensor &c
#define TUTTI_METHOD4(a, b, c, d) const Tensor &b, const Tensor &c, const Tensor &d
#define TUTTI_POINTERS1(a) &a
#define TUTTI_POINTERS2(a, b) &a, &b
#define TUTTI_POINTERS3(a, b, c) &a, &b, &c
#define TUTTI_POINTERS4(a, b, c, d) &a, &b, &c, &d
#define TUTTI_SELF1(a) *this
#define TUTTI_SELF2(a, b) *this, b
#define TUTTI_SELF3(a, b, c) *this, b, c
#define TUTTI_SELF4(a, b, c, d) *this, b, c, d
#define TUTTI_PASTE_(a, b) a##b
#define TUTTI_PASTE(a, b) TUTTI_PASTE_(a, b)
#define TUTTI_EACH(prefix, ...) TUTTI_PASTE(prefix, TUTTI_COUNT(__VA_ARGS__))(__VA_ARGS__)

// A descriptor, which has no functions of its own: other operators use it. The kernels of other instruction sets are in
// the other compilations of the same file.
#define TUTTI_POINTWISE_HIDDEN(Struct, function, ...)                                                               \
  namespace tutti::pointwise {                                                                                      \
  TUTTI_IF_V3(extern const Kernels function##_v3;)                                                                  \
  TUTTI_IF_V4(extern const Kernels function##_v4;)                                                                  \
  const PointwiseOperator& function##_operator() {                                                                  \
    constexpr int arity = TUTTI_COUNT(__VA_ARGS__);                                                                 \
    static constexpr const char* names[] = {#function "_gradient0", #function "_gradient1", #function "_gradient2", \
                                            #function "_gradient3"};                                                \
    static PointwiseOperator op;                                                                                    \
    static const bool ready = [] {                                                                                  \
      static const auto gradients = describe_gradients<arity>(names, op);                                           \
      op = describe_operator<Struct, arity>(                                                                        \
          #function, best(kernels<Struct, arity>, {TUTTI_IF_V3(&function##_v3)}, {TUTTI_IF_V4(&function##_v4)}),    \
          gradients);                                                                                               \
      return true;                                                                                                  \
    }();                                                                                                            \
    (void)ready;                                                                                                    \
    return op;                                                                                                      \
  }                                                                                                                 \
  }

// Descriptor and functions.
#define TUTTI_POINTWISE_PURE(Struct, function, ...)                                                                \
  TUTTI_POINTWISE_HIDDEN(Struct, function, __VA_ARGS__)                                                            \
  namespace tutti {                                                                                                \
  Tensor function(TUTTI_EACH(TUTTI_PARAMS, __VA_ARGS__)) {                                                         \
    return pointwise::apply(pointwise::function##_operator(), {TUTTI_EACH(TUTTI_POINTERS, __VA_ARGS__)});          \
  }                                                                                                                \
  Tensor& function##_out(Tensor& out, TUTTI_EACH(TUTTI_PARAMS, __VA_ARGS__)) {                                     \
    return pointwise::apply_out(pointwise::function##_operator(), {TUTTI_EACH(TUTTI_POINTERS, __VA_ARGS__)}, out); \
  }                                                                                                                \
  }                                                                                                                \
  TUTTI_PASTE(TUTTI_METHODS_, TUTTI_FIRST(__VA_ARGS__))(function, __VA_ARGS__)

#define TUTTI_POINTWISE(Struct, function, ...)                                                               \
  TUTTI_POINTWISE_PURE(Struct, function, __VA_ARGS__)                                                        \
  namespace tutti {                                                                                          \
  Tensor& function##_(Tensor& TUTTI_FIRST(__VA_ARGS__) TUTTI_EACH(TUTTI_REST, __VA_ARGS__)) {                \
    return pointwise::apply_out(pointwise::function##_operator(), {TUTTI_EACH(TUTTI_POINTERS, __VA_ARGS__)}, \
                                TUTTI_FIRST(__VA_ARGS__));                                                   \
  }                                                                                                          \
  }                                                                                                          \
  TUTTI_PASTE(TUTTI_INPLACE_METHODS_, TUTTI_FIRST(__VA_ARGS__))(function, __VA_ARGS__)

#define TUTTI_FIRST_(a, ...) a
#define TUTTI_FIRST(...) TUTTI_FIRST_(__VA_ARGS__, )
// Methods exist where the first argument is named x.
#define TUTTI_METHODS_x(function, ...)                                                 \
  tutti::Tensor tutti::Tensor::function(TUTTI_EACH(TUTTI_METHOD, __VA_ARGS__)) const { \
    return tutti::function(TUTTI_EACH(TUTTI_SELF, __VA_ARGS__));                       \
  }
#define TUTTI_INPLACE_METHODS_x(function, ...)                                       \
  tutti::Tensor& tutti::Tensor::function##_(TUTTI_EACH(TUTTI_METHOD, __VA_ARGS__)) { \
    return tutti::function##_(TUTTI_EACH(TUTTI_SELF, __VA_ARGS__));                  \
  }
#define TUTTI_METHODS_condition(function, ...)
#define TUTTI_INPLACE_METHODS_condition(function, ...)

#elif !defined(__CUDACC__)

#define TUTTI_POINTWISE(Struct, function, ...)                                              \
  namespace tutti::pointwise {                                                              \
  extern const Kernels TUTTI_ISA_SUFFIX(function);                                          \
  constexpr Kernels TUTTI_ISA_SUFFIX(function) = kernels<Struct, TUTTI_COUNT(__VA_ARGS__)>; \
  }
#define TUTTI_POINTWISE_PURE TUTTI_POINTWISE
#define TUTTI_POINTWISE_HIDDEN TUTTI_POINTWISE

#endif
#endif  // TUTTI_POINTWISE
