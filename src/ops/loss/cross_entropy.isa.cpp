#include "ops/loss/loss.h"
#include "tutti/pointwise/primitives.h"

namespace tutti {
namespace {

using pointwise::Vec;

template <class T>
constexpr int kLanes = sizeof(T) == 4 ? 16 : 8;

// The baseline puts fused multiply-add together from many instructions: once is enough.
template <class V>
[[gnu::noinline]] V exp_of(V x) {
  return pointwise::exp(x);
}

template <class T>
void row(const T* x, T shift, T scale, T* y, int64_t count) {
  using V = Vec<T, kLanes<T>>;
  V s(shift), f(scale);
  int64_t i = 0;
  for (; i + V::lanes <= count; i += V::lanes) (pointwise::exp(V::load(x + i) - s) * f).store(y + i);
  if (i < count) {
    auto n = static_cast<int>(count - i);
    (exp_of(V::load(x + i, n) - s) * f).store(y + i, n);
  }
}

template <class T>
void columns(const T* x, const T* shift, const T* scale, T* y, int64_t count) {
  using V = Vec<T, kLanes<T>>;
  for (int64_t i = 0; i < count; i += V::lanes) {
    auto n = static_cast<int>(count - i < V::lanes ? count - i : V::lanes);
    (exp_of(V::load(x + i, n) - V::load(shift + i, n)) * V::load(scale + i, n)).store(y + i, n);
  }
}

}  // namespace

TUTTI_ISA_DEFINE(shifted_exp_row, void,
                 (DType dtype, const void* x, double shift, double scale, void* y, int64_t count)) {
  if (dtype == DType::f32)
    row(static_cast<const float*>(x), static_cast<float>(shift), static_cast<float>(scale), static_cast<float*>(y),
        count);
  else
    row(static_cast<const double*>(x), shift, scale, static_cast<double*>(y), count);
}

TUTTI_ISA_DEFINE(shifted_exp_columns, void,
                 (DType dtype, const void* x, const void* shift, const void* scale, void* y, int64_t count)) {
  if (dtype == DType::f32)
    columns(static_cast<const float*>(x), static_cast<const float*>(shift), static_cast<const float*>(scale),
            static_cast<float*>(y), count);
  else
    columns(static_cast<const double*>(x), static_cast<const double*>(shift), static_cast<const double*>(scale),
            static_cast<double*>(y), count);
}

}  // namespace tutti
