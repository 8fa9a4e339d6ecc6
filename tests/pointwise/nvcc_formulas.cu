// Compiled, not run: every formula and its derivatives as CUDA device code.
#include <cstdint>

#define TUTTI_POINTWISE(Struct, function, ...)
#define TUTTI_POINTWISE_PURE TUTTI_POINTWISE

#include "pointwise/activation.isa.cpp"
#include "pointwise/arithmetic.isa.cpp"
#include "pointwise/comparison.isa.cpp"
#include "pointwise/complex.isa.cpp"
#include "pointwise/exponential.isa.cpp"
#include "pointwise/logic.isa.cpp"
#include "pointwise/rounding.isa.cpp"
#include "pointwise/select.isa.cpp"
#include "pointwise/trigonometric.isa.cpp"

namespace tutti::pointwise {

template <class F, class V, size_t... I>
__global__ void forward(float* out, const float* in, int n, std::index_sequence<I...>) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  V r = F::value(((void)I, V(in[i]))...);
  out[i] = static_cast<float>(r.v);
}

template <class F, class V>
__global__ void slope(float* out, const float* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = static_cast<float>(derivative<F, 0>(V(in[i])).v);
}

using F32 = Vec<float, 1>;
using F64 = Vec<double, 1>;

template <class... F>
void unary(float* p, int n) {
  ((forward<F, F32><<<1, 1>>>(p, p, n, std::index_sequence<0>()),
    forward<F, F64><<<1, 1>>>(p, p, n, std::index_sequence<0>()), slope<F, F32><<<1, 1>>>(p, p, n)),
   ...);
}
template <class... F>
void binary(float* p, int n) {
  (forward<F, F32><<<1, 1>>>(p, p, n, std::index_sequence<0, 1>()), ...);
}

void all(float* p, int n) {
  unary<Gelu, GeluTanh, Silu, Mish, Relu, Exp, Log, Tanh, Erf, Sin, Sigmoid, Lgamma, Sqrt>(p, n);
  binary<Add, Mul, Div, Pow, Atan2, Maximum, Remainder, LogAddExp, LeakyRelu>(p, n);
}

}  // namespace tutti::pointwise
