// Normalisation of rows: layer_norm and rms_norm.
#include <cmath>

#include "ops/norm/kernels.h"
#include "ops/norm/sums.h"

namespace tutti::normalization {
namespace {

// The vector at p + i, or `missing` where there is no such table.
template <class V>
TUTTI_HD V load_or(const typename V::Element* p, int64_t i, int n, V missing) {
  if (!p) return missing;
  return n == V::lanes ? V::load(p + i) : V::load(p + i, n);
}

template <class T>
void normalize_row(bool centered, const T* x, const T* w, const T* b, T* y, T& mean, T& rstd, int64_t length,
                   double eps) {
  using V = Lanes<T>;
  double m = 0, squares;
  if (centered)
    row_moments(x, length, m, squares);
  else
    squares = sum_row<T>(length, [&](int64_t i, int n) __attribute__((always_inline)) {
      V v = load_filled<V>(x + i, n, 0);
      return v * v;
    });
  mean = static_cast<T>(m);
  rstd = static_cast<T>(1 / std::sqrt(squares / static_cast<double>(length) + eps));
  // What the mean lost when it was rounded matters where it is much larger than the deviation.
  V shift(mean), scale(rstd), rest(static_cast<T>((static_cast<double>(mean) - m) * static_cast<double>(rstd)));
  for_each_vector<T>(length, [&](int64_t i, int n) __attribute__((always_inline)) {
    V v = (load_filled<V>(x + i, n, 0) - shift) * scale + rest;
    if (w) v = v * load_or<V>(w, i, n, V(1));
    if (b) v = v + load_or<V>(b, i, n, V(0));
    store_first(y + i, n, v);
  });
}

template <class T>
void gradient_row(bool centered, const T* g, const T* x, const T* w, T mean, T rstd, T* dx, T* dw, T* db,
                  int64_t length) {
  using V = Lanes<T>;
  V shift(mean), scale(rstd);
  double sum, product;
  sum_row<T>(length, sum, product, [&](int64_t i, int n, V& p, V& q) __attribute__((always_inline)) {
    V gradient = load_filled<V>(g + i, n, 0), normal = (load_filled<V>(x + i, n, mean) - shift) * scale;
    store_first(dw + i, n, load_filled<V>(dw + i, n, 0) + gradient * normal);
    store_first(db + i, n, load_filled<V>(db + i, n, 0) + gradient);
    p = gradient * load_or<V>(w, i, n, V(1));
    q = p * normal;
  });
  auto count = static_cast<double>(length);
  V mean_sum(centered ? static_cast<T>(sum / count) : T(0)), mean_product(static_cast<T>(product / count));
  for_each_vector<T>(length, [&](int64_t i, int n) __attribute__((always_inline)) {
    V gradient = load_filled<V>(g + i, n, 0) * load_or<V>(w, i, n, V(1));
    V normal = (load_filled<V>(x + i, n, 0) - shift) * scale;
    store_first(dx + i, n, scale * ((gradient - mean_sum) - normal * mean_product));
  });
}

template <class T>
void normalize(bool centered, const T* x, const T* w, const T* b, T* y, T* mean, T* rstd, int64_t rows, int64_t length,
               double eps) {
  for (int64_t r = 0; r < rows; ++r)
    normalize_row(centered, x + r * length, w, b, y + r * length, mean[r], rstd[r], length, eps);
}

template <class T>
void gradient(bool centered, const T* g, const T* x, const T* w, const T* mean, const T* rstd, T* dx, T* dw, T* db,
              int64_t rows, int64_t length) {
  for (int64_t r = 0; r < rows; ++r)
    gradient_row(centered, g + r * length, x + r * length, w, mean[r], rstd[r], dx + r * length, dw, db, length);
}

template <class T>
const T* in(const void* p) {
  return static_cast<const T*>(p);
}
template <class T>
T* to(void* p) {
  return static_cast<T*>(p);
}

}  // namespace
}  // namespace tutti::normalization

namespace tutti {

using namespace normalization;

TUTTI_ISA_DEFINE(normalize_rows, void,
                 (DType dtype, bool centered, const void* x, const void* w, const void* b, void* y, void* mean,
                  void* rstd, int64_t rows, int64_t length, double eps)) {
  auto run = [&]<class T>(T) {
    normalize(centered, in<T>(x), in<T>(w), in<T>(b), to<T>(y), to<T>(mean), to<T>(rstd), rows, length, eps);
  };
  dtype == DType::f64 ? run(double()) : run(float());
}

TUTTI_ISA_DEFINE(normalize_rows_gradient, void,
                 (DType dtype, bool centered, const void* g, const void* x, const void* w, const void* mean,
                  const void* rstd, void* dx, void* dw, void* db, int64_t rows, int64_t length)) {
  auto run = [&]<class T>(T) {
    gradient(centered, in<T>(g), in<T>(x), in<T>(w), in<T>(mean), in<T>(rstd), to<T>(dx), to<T>(dw), to<T>(db), rows,
             length);
  };
  dtype == DType::f64 ? run(double()) : run(float());
}

}  // namespace tutti
