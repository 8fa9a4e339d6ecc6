// Compiled, not run: every primitive in device code.
//   nvcc -std=c++20 --fmad=false -Iinclude -c tests/pointwise/nvcc_primitives.cu -o /dev/null
#include "tutti/pointwise/primitives.h"

namespace pw = tutti::pointwise;

template <class T>
__global__ void all_primitives(const T* in, T* out, uint8_t* flags) {
  using V = pw::Vec<T, 1>;
  V x = V::load(in), y = V::load(in + 1, 1);
  V unary[] = {pw::abs(x),    pw::sqrt(x),   pw::rsqrt(x),   pw::exp(x),        pw::exp2(x),       pw::expm1(x),
               pw::log(x),    pw::log2(x),   pw::log10(x),   pw::log1p(x),      pw::sin(x),        pw::cos(x),
               pw::tan(x),    pw::asin(x),   pw::acos(x),    pw::atan(x),       pw::sinh(x),       pw::cosh(x),
               pw::tanh(x),   pw::asinh(x),  pw::acosh(x),   pw::atanh(x),      pw::erf(x),        pw::erfc(x),
               pw::erfinv(x), pw::lgamma(x), pw::digamma(x), pw::sigmoid(x),    pw::floor(x),      pw::ceil(x),
               pw::trunc(x),  pw::round(x),  pw::sign(x),    pw::normal_cdf(x), pw::normal_ramp(x)};
  V binary[] = {pw::pow(x, y), pw::atan2(x, y),    pw::fmod(x, y),  pw::remainder(x, y), pw::min(x, y),
                pw::max(x, y), pw::copysign(x, y), pw::hypot(x, y), pw::pow(2, y),       pw::max(x, 0)};
  for (V v : unary) (v).store(out++);
  for (V v : binary) (v).store(out++);
  pw::store_mask(flags++, pw::isnan(x));
  pw::store_mask(flags++, pw::isinf(x));
  pw::store_mask(flags++, pw::isfinite(x));
  pw::store_mask(flags++, pw::signbit(x) & (x != 0));
}

__global__ void integers(const int64_t* in, int64_t* out) {
  using V = pw::Vec<int64_t, 1>;
  V x = V::load(in), y = V::load(in + 1);
  V all[] = {pw::abs(x), pw::sign(x), pw::min(x, y), pw::max(x, y), x / y, x % y, x << 3, x >> y, pw::remainder(x, y)};
  for (V v : all) v.store(out++);
}

template __global__ void all_primitives<float>(const float*, float*, uint8_t*);
template __global__ void all_primitives<double>(const double*, double*, uint8_t*);
