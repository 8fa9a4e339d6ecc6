// What generated code calls: every pointwise formula as plain functions from registers to a register, compiled by clang
// to LLVM bitcode (cmake/TuttiNative.cmake includes this before all src/pointwise/*.isa.cpp). They are inlined into
// the loops that are generated, so formulas are written once for eager and compiled code.
//
//   <4, 8 or 16 x float> tutti_mul_f32(x, y)               the value; of comparisons: 1 for true, 0 for false
//   <4, 8 or 16 x float> tutti_mul_gradient0_f32(g, x, y)  the gradient of input 0
#pragma once

#define TUTTI_POINTWISE(Struct, function, ...) TUTTI_NATIVE_EACH(__VA_ARGS__)(Struct, function)
#define TUTTI_POINTWISE_PURE TUTTI_POINTWISE
#define TUTTI_POINTWISE_HIDDEN TUTTI_POINTWISE

#include "pointwise/define.h"

namespace tutti::pointwise::native {

template <class T>
using Lanes = Vec<T, detail::register_bytes / static_cast<int>(sizeof(T))>;
template <class T>
using Lane = typename Lanes<T>::Register;

template <class F, class T>
inline constexpr bool takes = std::is_integral_v<T> ? (F::signature.accepts & kInt) && !F::signature.integers_to_float
                                                    : bool(F::signature.accepts & kFloat);

template <class V, class T, int N>
TUTTI_HD V lanes_of(Mask<T, N> m) {
  return V::from_mask(mask_cast<typename V::Element>(m));
}
template <class V, class R>
TUTTI_HD V lanes_of(R r) {
  return r;
}

// Those that a formula has no kernel for are never called: see Kernels.
template <class F, class T, class... R>
TUTTI_HD Lane<T> forward(R... x) {
  using V = Lanes<T>;
  if constexpr (takes<F, T>)
    return lanes_of<V>(storable<V>(F::value(V::from_register(x)...))).v;
  else
    return {};
}

template <class F, class T, size_t K, class... R>
TUTTI_HD Lane<T> gradient(Lane<T> g, R... x) {
  using V = Lanes<T>;
  if constexpr (takes<F, T> && is_derived<F> && !(F::signature.condition && K == 0)) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return tangent_of<V>(F::value(vary<K, I>(V::from_register(x), V::from_register(g))...)).v;
    }(std::index_sequence_for<R...>());
  } else {
    return {};
  }
}

}  // namespace tutti::pointwise::native

#define TUTTI_NATIVE_COUNT_(a, b, c, d, which, ...) which
#define TUTTI_NATIVE_EACH(...) \
  TUTTI_NATIVE_COUNT_(__VA_ARGS__, TUTTI_NATIVE_4, TUTTI_NATIVE_3, TUTTI_NATIVE_2, TUTTI_NATIVE_1, unused)

#define TUTTI_NATIVE_FUNCTION extern "C" __attribute__((always_inline))

#define TUTTI_NATIVE_FORWARD(Struct, function, params, args)                                             \
  TUTTI_NATIVE_FUNCTION tutti::pointwise::native::Lane<float> tutti_##function##_f32 params(float) {     \
    return tutti::pointwise::native::forward<tutti::pointwise::Struct, float> args;                      \
  }                                                                                                      \
  TUTTI_NATIVE_FUNCTION tutti::pointwise::native::Lane<double> tutti_##function##_f64 params(double) {   \
    return tutti::pointwise::native::forward<tutti::pointwise::Struct, double> args;                     \
  }                                                                                                      \
  TUTTI_NATIVE_FUNCTION tutti::pointwise::native::Lane<int64_t> tutti_##function##_i64 params(int64_t) { \
    return tutti::pointwise::native::forward<tutti::pointwise::Struct, int64_t> args;                    \
  }
#define TUTTI_NATIVE_GRADIENT(Struct, function, k, params, args)                                                     \
  TUTTI_NATIVE_FUNCTION tutti::pointwise::native::Lane<float> tutti_##function##_gradient##k##_f32 params(float) {   \
    return tutti::pointwise::native::gradient<tutti::pointwise::Struct, float, k> args;                              \
  }                                                                                                                  \
  TUTTI_NATIVE_FUNCTION tutti::pointwise::native::Lane<double> tutti_##function##_gradient##k##_f64 params(double) { \
    return tutti::pointwise::native::gradient<tutti::pointwise::Struct, double, k> args;                             \
  }

#define TUTTI_NATIVE_T(T) tutti::pointwise::native::Lane<T>
#define TUTTI_NATIVE_P1(T) (TUTTI_NATIVE_T(T) a)
#define TUTTI_NATIVE_P2(T) (TUTTI_NATIVE_T(T) a, TUTTI_NATIVE_T(T) b)
#define TUTTI_NATIVE_P3(T) (TUTTI_NATIVE_T(T) a, TUTTI_NATIVE_T(T) b, TUTTI_NATIVE_T(T) c)
#define TUTTI_NATIVE_P4(T) (TUTTI_NATIVE_T(T) a, TUTTI_NATIVE_T(T) b, TUTTI_NATIVE_T(T) c, TUTTI_NATIVE_T(T) d)
#define TUTTI_NATIVE_P5(T) \
  (TUTTI_NATIVE_T(T) g, TUTTI_NATIVE_T(T) a, TUTTI_NATIVE_T(T) b, TUTTI_NATIVE_T(T) c, TUTTI_NATIVE_T(T) d)

#define TUTTI_NATIVE_1(Struct, function)                       \
  TUTTI_NATIVE_FORWARD(Struct, function, TUTTI_NATIVE_P1, (a)) \
  TUTTI_NATIVE_GRADIENT(Struct, function, 0, TUTTI_NATIVE_P2, (a, b))
#define TUTTI_NATIVE_2(Struct, function)                                 \
  TUTTI_NATIVE_FORWARD(Struct, function, TUTTI_NATIVE_P2, (a, b))        \
  TUTTI_NATIVE_GRADIENT(Struct, function, 0, TUTTI_NATIVE_P3, (a, b, c)) \
  TUTTI_NATIVE_GRADIENT(Struct, function, 1, TUTTI_NATIVE_P3, (a, b, c))
#define TUTTI_NATIVE_3(Struct, function)                                    \
  TUTTI_NATIVE_FORWARD(Struct, function, TUTTI_NATIVE_P3, (a, b, c))        \
  TUTTI_NATIVE_GRADIENT(Struct, function, 0, TUTTI_NATIVE_P4, (a, b, c, d)) \
  TUTTI_NATIVE_GRADIENT(Struct, function, 1, TUTTI_NATIVE_P4, (a, b, c, d)) \
  TUTTI_NATIVE_GRADIENT(Struct, function, 2, TUTTI_NATIVE_P4, (a, b, c, d))
#define TUTTI_NATIVE_4(Struct, function)                                       \
  TUTTI_NATIVE_FORWARD(Struct, function, TUTTI_NATIVE_P4, (a, b, c, d))        \
  TUTTI_NATIVE_GRADIENT(Struct, function, 0, TUTTI_NATIVE_P5, (g, a, b, c, d)) \
  TUTTI_NATIVE_GRADIENT(Struct, function, 1, TUTTI_NATIVE_P5, (g, a, b, c, d)) \
  TUTTI_NATIVE_GRADIENT(Struct, function, 2, TUTTI_NATIVE_P5, (g, a, b, c, d)) \
  TUTTI_NATIVE_GRADIENT(Struct, function, 3, TUTTI_NATIVE_P5, (g, a, b, c, d))
