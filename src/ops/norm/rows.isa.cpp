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

// Short rows go through each step together: a step of one row depends on the step before, and the processor has to
// wait for it unless there are other rows.
constexpr int64_t kTogether = 8;
int64_t rows_together(int64_t length) { return length <= 512 ? kTogether : 1; }

template <class T>
TUTTI_HD double squares_of(const T* x, int64_t length) {
  using V = Lanes<T>;
  return sum_row<T>(length, [&](int64_t i, int n) __attribute__((always_inline)) {
    V v = load_filled<V>(x + i, n, 0);
    return v * v;
  });
}

// `rest` is what the mean lost when it was rounded, in deviations: it matters where the mean is much larger.
template <class T>
TUTTI_HD void scale_row(const T* x, const T* w, const T* b, T* y, T mean, T rstd, double rest, int64_t length) {
  using V = Lanes<T>;
  V shift(mean), scale(rstd), lost(static_cast<T>(rest));
  for_each_vector<T>(length, [&](int64_t i, int n) __attribute__((always_inline)) {
    V v = (load_filled<V>(x + i, n, 0) - shift) * scale + lost;
    if (w) v = v * load_or<V>(w, i, n, V(1));
    if (b) v = v + load_or<V>(b, i, n, V(0));
    store_first(y + i, n, v);
  });
}

template <class T>
void normalize(bool centered, const T* x, const T* w, const T* b, T* y, T* mean, T* rstd, int64_t rows, int64_t length,
               double eps) {
  for (int64_t start = 0; start < rows; start += rows_together(length)) {
    int64_t end = start + rows_together(length) < rows ? start + rows_together(length) : rows;
    double exact[kTogether] = {}, squares[kTogether];
    if (centered) {
      for (int64_t r = start; r < end; ++r) mean[r] = first_mean(x + r * length, length);
      for (int64_t r = start; r < end; ++r)
        deviations(x + r * length, length, mean[r], exact[r - start], squares[r - start]);
    } else {
      for (int64_t r = start; r < end; ++r) squares[r - start] = squares_of(x + r * length, length);
    }
    for (int64_t r = start; r < end; ++r) {
      mean[r] = static_cast<T>(exact[r - start]);
      rstd[r] = static_cast<T>(1 / std::sqrt(squares[r - start] / static_cast<double>(length) + eps));
    }
    for (int64_t r = start; r < end; ++r)
      scale_row(x + r * length, w, b, y + r * length, mean[r], rstd[r],
                (static_cast<double>(mean[r]) - exact[r - start]) * static_cast<double>(rstd[r]), length);
  }
}

// Σ a and Σ a·x̂ of a row, a = g·w; adds to the gradients of the weights.
template <class T>
TUTTI_HD void gradient_sums(const T* g, const T* x, const T* w, T mean, T rstd, T* dw, T* db, int64_t length,
                            double& sum, double& product) {
  using V = Lanes<T>;
  V shift(mean), scale(rstd);
  sum_row<T>(length, sum, product, [&](int64_t i, int n, V& p, V& q) __attribute__((always_inline)) {
    V gradient = load_filled<V>(g + i, n, 0), normal = (load_filled<V>(x + i, n, mean) - shift) * scale;
    store_first(dw + i, n, load_filled<V>(dw + i, n, 0) + gradient * normal);
    store_first(db + i, n, load_filled<V>(db + i, n, 0) + gradient);
    p = gradient * load_or<V>(w, i, n, V(1));
    q = p * normal;
  });
}

template <class T>
TUTTI_HD void gradient_row(const T* g, const T* x, const T* w, T mean, T rstd, double sum, double product, T* dx,
                           int64_t length) {
  using V = Lanes<T>;
  auto count = static_cast<double>(length);
  V shift(mean), scale(rstd), mean_sum(static_cast<T>(sum / count)), mean_product(static_cast<T>(product / count));
  for_each_vector<T>(length, [&](int64_t i, int n) __attribute__((always_inline)) {
    V gradient = load_filled<V>(g + i, n, 0) * load_or<V>(w, i, n, V(1));
    V normal = (load_filled<V>(x + i, n, 0) - shift) * scale;
    store_first(dx + i, n, scale * ((gradient - mean_sum) - normal * mean_product));
  });
}

template <class T>
void gradient(bool centered, const T* g, const T* x, const T* w, const T* mean, const T* rstd, T* dx, T* dw, T* db,
              int64_t rows, int64_t length) {
  for (int64_t start = 0; start < rows; start += rows_together(length)) {
    int64_t end = start + rows_together(length) < rows ? start + rows_together(length) : rows;
    double sum[kTogether], product[kTogether];
    for (int64_t r = start; r < end; ++r)
      gradient_sums(g + r * length, x + r * length, w, mean[r], rstd[r], dw, db, length, sum[r - start],
                    product[r - start]);
    for (int64_t r = start; r < end; ++r)
      gradient_row(g + r * length, x + r * length, w, mean[r], rstd[r], centered ? sum[r - start] : 0,
                   product[r - start], dx + r * length, length);
  }
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
