// Compiled, not run: every formula that an operator is made of, and its derivatives, as CUDA device code. The lines
// that define operators (TUTTI_POINTWISE) instantiate the kernels here.
#include <cstdint>

#define TUTTI_POINTWISE(Struct, function, ...) \
  template struct tutti::pointwise::OnDevice<tutti::pointwise::Struct, TUTTI_COUNT(__VA_ARGS__)>;
#define TUTTI_POINTWISE_PURE TUTTI_POINTWISE
#define TUTTI_POINTWISE_HIDDEN TUTTI_POINTWISE
#define TUTTI_COUNT_(a, b, c, d, count, ...) count
#define TUTTI_COUNT(...) TUTTI_COUNT_(__VA_ARGS__, 4, 3, 2, 1, 0)

#include "pointwise/define.h"

namespace tutti::pointwise {

using F32 = Vec<float, 1>;
using F64 = Vec<double, 1>;
using I64 = Vec<int64_t, 1>;
using C32 = Complex<F32>;

// Whatever a formula gives goes to memory, so that nothing of it is left out.
template <class R>
__device__ double stored(R r) {
  if constexpr (std::is_arithmetic_v<R>)
    return static_cast<double>(r);
  else if constexpr (requires { r.tangent; })
    return stored(r.value) + stored(detail::Tangent::operand(r.tangent));
  else if constexpr (requires { r.im; })
    return stored(r.re) + stored(r.im);
  else if constexpr (requires { static_cast<double>(r.v); })
    return static_cast<double>(r.v);
  else
    return static_cast<double>(select(r, F64(1.0), F64(0.0)).v);
}

template <class F, class V, size_t... I>
__global__ void forward(double* out, const double* in, std::index_sequence<I...>) {
  out[0] = stored(F::value(((void)I, V(in[I]))...));
}

// The derivative by input K, as gradient kernels take it: K enters with a tangent.
template <class F, class V, size_t K, size_t... I>
__global__ void backward(double* out, const double* in, std::index_sequence<I...>) {
  auto enter = [&]<size_t J>(std::integral_constant<size_t, J>) {
    if constexpr (J == K)
      return Dual<V, V, 1>{V(in[J]), V(1.0)};
    else
      return V(in[J]);
  };
  out[0] = stored(F::value(enter(std::integral_constant<size_t, I>())...));
}

template <class F>
inline constexpr bool of_integers_only = std::is_base_of_v<Integral, F>;
template <class F>
inline constexpr bool of_no_derivative =
    std::is_base_of_v<Stepwise, F> || std::is_base_of_v<Equality, F> || std::is_base_of_v<Comparison, F> ||
    std::is_base_of_v<Predicate, F> || std::is_base_of_v<Logical, F> || std::is_base_of_v<Select, F> ||
    requires { &F::gradient; };

template <class F>
inline constexpr bool of_integers_too = std::is_base_of_v<Arithmetic, F> || std::is_base_of_v<Real, F> ||
                                        std::is_base_of_v<Comparison, F> || std::is_base_of_v<Equality, F>;
template <class F>
inline constexpr bool of_complex = std::is_base_of_v<FloatingComplex, F> || std::is_base_of_v<Arithmetic, F>;

template <class F, int Arity>
struct OnDevice {
  static void compile(double* p) {
    constexpr auto all = std::make_index_sequence<Arity>();
    if constexpr (of_integers_only<F>) {
      forward<F, I64><<<1, 1>>>(p, p, all);
    } else {
      forward<F, F32><<<1, 1>>>(p, p, all);
      forward<F, F64><<<1, 1>>>(p, p, all);
      if constexpr (of_integers_too<F>) forward<F, I64><<<1, 1>>>(p, p, all);
      if constexpr (of_complex<F>) forward<F, C32><<<1, 1>>>(p, p, all);
      if constexpr (!of_no_derivative<F>) slopes(p, all);
    }
  }
  template <size_t... K>
  static void slopes(double* p, std::index_sequence<K...> all) {
    (backward<F, F32, K><<<1, 1>>>(p, p, all), ...);
    (backward<F, F64, K><<<1, 1>>>(p, p, all), ...);
  }
};

}  // namespace tutti::pointwise

#include "pointwise/activation.isa.cpp"
#include "pointwise/arithmetic.isa.cpp"
#include "pointwise/comparison.isa.cpp"
#include "pointwise/complex.isa.cpp"
#include "pointwise/exponential.isa.cpp"
#include "pointwise/logic.isa.cpp"
#include "pointwise/rounding.isa.cpp"
#include "pointwise/select.isa.cpp"
#include "pointwise/trigonometric.isa.cpp"
