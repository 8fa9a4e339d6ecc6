#include "ops/embedding/embedding.h"

#include "tutti/pointwise/vec.h"

namespace tutti {
namespace {

template <class T>
using V = pointwise::Vec<T, sizeof(T) == 4 ? 16 : 8>;

// Rows of a large table are not in any cache: those that come next are asked for.
constexpr int64_t kAhead = 6;

template <class T>
TUTTI_HD void fetch_row(const T* row, int64_t width) {
  for (int64_t i = 0; i < width && i < 128; i += static_cast<int64_t>(64 / sizeof(T))) __builtin_prefetch(row + i);
}

// Columns [first, first + Vectors vectors) of the sum, which stays in registers.
template <class T, int Vectors>
void sum_columns(const Bag& b, const T* table, int64_t first, T* out, bool ahead) {
  constexpr int lanes = V<T>::lanes;
  V<T> sum[Vectors];
  for (int v = 0; v < Vectors; ++v) sum[v] = V<T>(T(0));
  const T* factors = static_cast<const T*>(b.factors);
  for (int64_t k = 0; k < b.count; ++k) {
    if (ahead && k + kAhead < b.count) fetch_row(table + b.at[k + kAhead] * b.row, b.width);
    if (b.at[k] == b.padding) continue;
    const T* row = table + b.at[k] * b.row + first;
    V<T> f(factors[k]);
    for (int v = 0; v < Vectors; ++v) sum[v] = sum[v] + V<T>::load(row + v * lanes) * f;
  }
  for (int v = 0; v < Vectors; ++v) sum[v].store(out + first + v * lanes);
}

template <class T>
void sum_of(const Bag& b, T* out) {
  constexpr int lanes = V<T>::lanes;
  const T *table = static_cast<const T*>(b.table), *factors = static_cast<const T*>(b.factors);
  int64_t i = 0;
  for (; i + 4 * lanes <= b.width; i += 4 * lanes) sum_columns<T, 4>(b, table, i, out, i == 0);
  for (; i + lanes <= b.width; i += lanes) sum_columns<T, 1>(b, table, i, out, i == 0);
  for (; i < b.width; ++i) {
    T sum = 0;
    for (int64_t k = 0; k < b.count; ++k)
      if (b.at[k] != b.padding) sum += table[b.at[k] * b.row + i] * factors[k];
    out[i] = sum;
  }
}

template <class T>
void scaled(const T* row, T factor, T* out, int64_t width) {
  V<T> f(factor);
  int64_t i = 0;
  for (; i + V<T>::lanes <= width; i += V<T>::lanes) (V<T>::load(row + i) * f).store(out + i);
  for (; i < width; ++i) out[i] = row[i] * factor;
}

}  // namespace

TUTTI_ISA_DEFINE(sum_bag, void, (const Bag& bag, void* out)) {
  if (bag.dtype == DType::f32)
    sum_of(bag, static_cast<float*>(out));
  else
    sum_of(bag, static_cast<double*>(out));
}

TUTTI_ISA_DEFINE(scale_row, void, (DType dtype, const void* row, const void* factor, void* out, int64_t width)) {
  if (dtype == DType::f32)
    scaled(static_cast<const float*>(row), *static_cast<const float*>(factor), static_cast<float*>(out), width);
  else
    scaled(static_cast<const double*>(row), *static_cast<const double*>(factor), static_cast<double*>(out), width);
}

}  // namespace tutti
