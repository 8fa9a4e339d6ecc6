#include "ops/sparse/product.h"

#include <complex>

#include "tutti/pointwise/vec.h"

namespace tutti {
namespace {

using pointwise::Vec;

// A complex number without the library's rules for infinities, which cost a call.
template <class T>
struct Pair {
  T re, im;
};

// Each element of the result is summed in the order of the entries, however wide the strips are.
template <class T, int N>
void product_row(const int64_t* columns, const T* values, int64_t entries, const T* dense, int64_t width, T* out) {
  using V = Vec<T, N>;
  constexpr int64_t strip = 4 * N;
  int64_t j = 0;
  for (; j + strip <= width; j += strip) {
    V s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (int64_t k = 0; k < entries; ++k) {
      const T* row = dense + columns[k] * width + j;
      V v = values[k];
      s0 = s0 + v * V::load(row);
      s1 = s1 + v * V::load(row + N);
      s2 = s2 + v * V::load(row + 2 * N);
      s3 = s3 + v * V::load(row + 3 * N);
    }
    s0.store(out + j);
    s1.store(out + j + N);
    s2.store(out + j + 2 * N);
    s3.store(out + j + 3 * N);
  }
  for (; j + N <= width; j += N) {
    V s = 0;
    for (int64_t k = 0; k < entries; ++k) s = s + V(values[k]) * V::load(dense + columns[k] * width + j);
    s.store(out + j);
  }
  for (; j < width; ++j) {
    T s = 0;
    for (int64_t k = 0; k < entries; ++k) s += values[k] * dense[columns[k] * width + j];
    out[j] = s;
  }
}

template <class T>
void complex_row(const int64_t* columns, const Pair<T>* values, int64_t entries, const Pair<T>* dense, int64_t width,
                 Pair<T>* out) {
  for (int64_t j = 0; j < width; ++j) out[j] = {0, 0};
  for (int64_t k = 0; k < entries; ++k) {
    Pair<T> v = values[k];
    const Pair<T>* row = dense + columns[k] * width;
    for (int64_t j = 0; j < width; ++j) {
      out[j].re += v.re * row[j].re - v.im * row[j].im;
      out[j].im += v.re * row[j].im + v.im * row[j].re;
    }
  }
}

// N partial sums, added by halves.
template <class T, int N>
T dot(const T* a, const T* b, int64_t n) {
  using V = Vec<T, N>;
  V sum = 0;
  int64_t j = 0;
  for (; j + N <= n; j += N) sum = sum + V::load(a + j) * V::load(b + j);
  if (j < n) sum = sum + V::load(a + j, static_cast<int>(n - j)) * V::load(b + j, static_cast<int>(n - j));
  T lanes[N];
  sum.store(lanes);
  for (int half = N / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

template <class T>
Pair<T> complex_dot(const Pair<T>* a, const Pair<T>* b, int64_t n) {
  Pair<T> sum{0, 0};
  for (int64_t j = 0; j < n; ++j) {
    sum.re += a[j].re * b[j].re + a[j].im * b[j].im;
    sum.im += a[j].im * b[j].re - a[j].re * b[j].im;
  }
  return sum;
}

// Calls f<T, N>() for real dtypes and f<Pair<T>, 1>() for complex ones.
template <class F>
void with_loop_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float, 16>();
    case DType::f64:
      return f.template operator()<double, 8>();
    case DType::i64:
      return f.template operator()<int64_t, 8>();
    case DType::c64:
      return f.template operator()<Pair<float>, 1>();
    default:
      return f.template operator()<Pair<double>, 1>();
  }
}

}  // namespace

TUTTI_ISA_DEFINE(sparse_rows_product, void,
                 (DType dtype, const int64_t* starts, const int64_t* columns, const void* values, const void* dense,
                  int64_t width, int64_t row_begin, int64_t row_end, void* out)) {
  with_loop_type(dtype, [&]<class T, int N>() {
    for (int64_t r = row_begin; r < row_end; ++r) {
      const int64_t* column = columns + starts[r];
      const T* value = static_cast<const T*>(values) + starts[r];
      int64_t entries = starts[r + 1] - starts[r];
      if constexpr (N == 1)
        complex_row(column, value, entries, static_cast<const T*>(dense), width, static_cast<T*>(out) + r * width);
      else
        product_row<T, N>(column, value, entries, static_cast<const T*>(dense), width,
                          static_cast<T*>(out) + r * width);
    }
  });
}

TUTTI_ISA_DEFINE(sampled_rows_product, void,
                 (DType dtype, const int64_t* rows, const int64_t* columns, const void* a, const void* b, int64_t width,
                  int64_t begin, int64_t end, void* out)) {
  with_loop_type(dtype, [&]<class T, int N>() {
    for (int64_t k = begin; k < end; ++k) {
      const T *x = static_cast<const T*>(a) + rows[k] * width, *y = static_cast<const T*>(b) + columns[k] * width;
      if constexpr (N == 1)
        static_cast<T*>(out)[k] = complex_dot(x, y, width);
      else
        static_cast<T*>(out)[k] = dot<T, N>(x, y, width);
    }
  });
}

}  // namespace tutti
