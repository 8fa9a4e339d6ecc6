#include "ops/embedding/embedding.h"

#include "tutti/pointwise/vec.h"

namespace tutti {
namespace {

template <class T>
void add_scaled(T* sum, const T* row, T factor, int64_t count) {
  using V = pointwise::Vec<T, sizeof(T) == 4 ? 16 : 8>;
  V f(factor);
  int64_t i = 0;
  for (; i + V::lanes <= count; i += V::lanes) (V::load(sum + i) + V::load(row + i) * f).store(sum + i);
  for (; i < count; ++i) sum[i] += row[i] * factor;
}

}  // namespace

TUTTI_ISA_DEFINE(add_scaled_row, void, (DType dtype, void* sum, const void* row, double factor, int64_t count)) {
  if (dtype == DType::f32)
    add_scaled(static_cast<float*>(sum), static_cast<const float*>(row), static_cast<float>(factor), count);
  else
    add_scaled(static_cast<double*>(sum), static_cast<const double*>(row), factor, count);
}

}  // namespace tutti
