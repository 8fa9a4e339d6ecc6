#include "ops/reduce/softmax.h"

#include <limits>

#include "ops/reduce/lanes.h"
#include "tutti/pointwise/primitives.h"

namespace tutti::reduction {
namespace {

using pointwise::Vec;

template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();

// Elements that are added up in the lanes of T before they go on in f64: errors stay those of short sums.
constexpr int64_t kBlock = 4096;

// The baseline puts fused multiply-add together from many instructions: too many to have them at each use.
#if defined(TUTTI_ISA_BASE)
template <class V>
[[gnu::noinline]] V exp_of(V x) {
  return pointwise::exp(x);
}
#else
template <class V>
TUTTI_HD V exp_of(V x) {
  return pointwise::exp(x);
}
#endif
template <class V>
[[gnu::noinline]] V log_of(V x) {
  return pointwise::log(x);
}

// Calls body(i, n) for vectors of elements [0, count); n is below the number of lanes in the last only.
// The four accumulators of a loop over a row take turns: body(i, n, k) uses the k-th.
template <int N, class Body>
TUTTI_HD void for_each_vector(int64_t count, Body&& body) {
  int64_t i = 0;
  for (; i + 4 * N <= count; i += 4 * N) {
    body(i, N, 0);
    body(i + N, N, 1);
    body(i + 2 * N, N, 2);
    body(i + 3 * N, N, 3);
  }
  for (; i < count; i += N) body(i, static_cast<int>(count - i < N ? count - i : N), 0);
}

template <class T>
T row_max(const T* x, int64_t count) {
  using V = Vec<T, lanes_of<T>>;
  V top[4] = {V(-kInfinity<T>), V(-kInfinity<T>), V(-kInfinity<T>), V(-kInfinity<T>)};
  for_each_vector<V::lanes>(count, [&](int64_t i, int n, int k) __attribute__((always_inline)) {
    top[k] = pointwise::max(top[k], load_filled<V>(x + i, n, -kInfinity<T>));
  });
  return fold_lanes(pointwise::max(pointwise::max(top[0], top[1]), pointwise::max(top[2], top[3])),
                    [](auto p, auto q) { return pointwise::max(p, q); });
}

// Adds up value(i, n) over a row: the lanes that value() fills beyond n must be 0.
template <class T, class Value>
TUTTI_HD T row_sum(int64_t count, Value&& value) {
  using V = Vec<T, lanes_of<T>>;
  double total = 0;
  for (int64_t start = 0; start < count; start += kBlock) {
    V sum[4] = {V(0), V(0), V(0), V(0)};
    for_each_vector<V::lanes>(count - start < kBlock ? count - start : kBlock,
                              [&](int64_t i, int n, int k)
                                  __attribute__((always_inline)) { sum[k] = sum[k] + value(start + i, n); });
    total +=
        static_cast<double>(fold_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]), [](auto p, auto q) { return p + q; }));
  }
  return static_cast<T>(total);
}

// What is subtracted before exp: the largest element, or nothing if all are -∞ and the sum is to be 0 (not NaN).
template <class T>
T shift_of(Exponential what, T top) {
  return what == Exponential::logsumexp && (top == kInfinity<T> || top == -kInfinity<T>) ? T(0) : top;
}

template <class T>
void softmax_row(Exponential what, const T* x, T* y, int64_t count) {
  using V = Vec<T, lanes_of<T>>;
  constexpr int N = V::lanes;
  T top = shift_of(what, row_max(x, count));
  V shift(top);
  if (what == Exponential::softmax) {
    T sum = row_sum<T>(count, [&](int64_t i, int n) __attribute__((always_inline)) {
      V e = exp_of(load_filled<V>(x + i, n, -kInfinity<T>) - shift);
      store_first(y + i, n, e);
      return e;
    });
    V scale(1 / sum);
    for_each_vector<N>(count, [&](int64_t i, int n, int) __attribute__((always_inline)) {
      store_first(y + i, n, load_filled<V>(y + i, n, 0) * scale);
    });
    return;
  }
  T sum = row_sum<T>(count, [&](int64_t i, int n) __attribute__((always_inline)) {
    return exp_of(load_filled<V>(x + i, n, -kInfinity<T>) - shift);
  });
  if (what == Exponential::logsumexp) {
    *y = log_of(Vec<T, 1>(sum)).v + top;
    return;
  }
  V log_sum(log_of(Vec<T, 1>(sum)).v);
  for_each_vector<N>(count, [&](int64_t i, int n, int) __attribute__((always_inline)) {
    store_first(y + i, n, (load_filled<V>(x + i, n, 0) - shift) - log_sum);
  });
}

template <class T>
void gradient_row(Exponential what, const T* g, const T* y, T* out, int64_t count) {
  using V = Vec<T, lanes_of<T>>;
  constexpr int N = V::lanes;
  if (what == Exponential::softmax) {
    V dot(row_sum<T>(count, [&](int64_t i, int n) __attribute__((always_inline)) {
      return load_filled<V>(g + i, n, 0) * load_filled<V>(y + i, n, 0);
    }));
    for_each_vector<N>(count, [&](int64_t i, int n, int) __attribute__((always_inline)) {
      store_first(out + i, n, (load_filled<V>(g + i, n, 0) - dot) * load_filled<V>(y + i, n, 0));
    });
  } else {
    V sum(row_sum<T>(count,
                     [&](int64_t i, int n) __attribute__((always_inline)) { return load_filled<V>(g + i, n, 0); }));
    for_each_vector<N>(count, [&](int64_t i, int n, int) __attribute__((always_inline)) {
      store_first(out + i, n, load_filled<V>(g + i, n, 0) - exp_of(load_filled<V>(y + i, n, 0)) * sum);
    });
  }
}

// ---- Columns: rows of many columns, one after the other.

constexpr int64_t kColumnBlock = 64;  // rows that are added up before they go on

// Calls body(lanes, c) for columns [0, columns): vectors, then one by one.
template <class T, class Body>
TUTTI_HD void for_each_column(int64_t columns, Body&& body) {
  constexpr int N = lanes_of<T>;
  int64_t c = 0;
  for (; c + N <= columns; c += N) body(Vec<T, N>(), c);
  for (; c < columns; ++c) body(Vec<T, 1>(), c);
}

template <class T>
struct Columns {
  alignas(64) T top[kSoftmaxColumns];
  alignas(64) T sum[kSoftmaxColumns];
  alignas(64) T part[kSoftmaxColumns];

  void find_top(const T* x, int64_t length, int64_t columns, int64_t stride) {
    for (int64_t c = 0; c < columns; ++c) top[c] = -kInfinity<T>;
    for (int64_t r = 0; r < length; ++r)
      for_each_column<T>(columns, [&]<class V>(V, int64_t c) __attribute__((always_inline)) {
        pointwise::max(V::load(top + c), V::load(x + r * stride + c)).store(top + c);
      });
  }
  // Adds up value(lanes, row, column) over all rows, in blocks.
  template <class Value>
  TUTTI_HD void add_up(int64_t length, int64_t columns, Value&& value) {
    for (int64_t c = 0; c < columns; ++c) sum[c] = 0;
    for (int64_t start = 0; start < length; start += kColumnBlock) {
      int64_t stop = length - start < kColumnBlock ? length : start + kColumnBlock;
      for (int64_t c = 0; c < columns; ++c) part[c] = 0;
      for (int64_t r = start; r < stop; ++r)
        for_each_column<T>(columns, [&]<class V>(V lanes, int64_t c) __attribute__((always_inline)) {
          (V::load(part + c) + value(lanes, r, c)).store(part + c);
        });
      for (int64_t c = 0; c < columns; ++c) sum[c] += part[c];
    }
  }
};

template <class T>
void softmax_columns(Exponential what, const T* x, T* y, int64_t length, int64_t columns, int64_t stride) {
  Columns<T> s;
  s.find_top(x, length, columns, stride);
  for (int64_t c = 0; c < columns; ++c) s.top[c] = shift_of(what, s.top[c]);
  bool plain = what == Exponential::softmax;
  s.add_up(length, columns, [&]<class V>(V, int64_t r, int64_t c) __attribute__((always_inline)) {
    // The next columns are asked for while this pass computes: they lie in pieces too short to be foreseen.
    if constexpr (V::lanes > 1) __builtin_prefetch(x + r * stride + c + columns);
    V e = exp_of(V::load(x + r * stride + c) - V::load(s.top + c));
    if (plain) e.store(y + r * stride + c);
    return e;
  });
  for_each_column<T>(columns, [&]<class V>(V, int64_t c) __attribute__((always_inline)) {
    V sum = V::load(s.sum + c);
    (plain ? 1 / sum : log_of(sum)).store(s.sum + c);
  });
  if (what == Exponential::logsumexp) {
    for (int64_t c = 0; c < columns; ++c) y[c] = s.sum[c] + s.top[c];
    return;
  }
  for (int64_t r = 0; r < length; ++r)
    for_each_column<T>(columns, [&]<class V>(V, int64_t c) __attribute__((always_inline)) {
      T* to = y + r * stride + c;
      V last = V::load(s.sum + c);
      (plain ? V::load(to) * last : (V::load(x + r * stride + c) - V::load(s.top + c)) - last).store(to);
    });
}

template <class T>
void gradient_columns(Exponential what, const T* g, const T* y, T* out, int64_t length, int64_t columns,
                      int64_t stride) {
  Columns<T> s;
  bool plain = what == Exponential::softmax;
  s.add_up(length, columns, [&]<class V>(V, int64_t r, int64_t c) __attribute__((always_inline)) {
    V v = V::load(g + r * stride + c);
    return plain ? v * V::load(y + r * stride + c) : v;
  });
  for (int64_t r = 0; r < length; ++r)
    for_each_column<T>(columns, [&]<class V>(V, int64_t c) __attribute__((always_inline)) {
      V v = V::load(g + r * stride + c), w = V::load(y + r * stride + c), sum = V::load(s.sum + c);
      (plain ? (v - sum) * w : v - exp_of(w) * sum).store(out + r * stride + c);
    });
}

template <class T>
void softmax_of(Exponential what, const T* x, T* y, int64_t length, int64_t columns, int64_t stride) {
  if (columns == 1 && stride == 1) return softmax_row(what, x, y, length);
  softmax_columns(what, x, y, length, columns, stride);
}
template <class T>
void gradient_of(Exponential what, const T* g, const T* y, T* out, int64_t length, int64_t columns, int64_t stride) {
  if (columns == 1 && stride == 1) return gradient_row(what, g, y, out, length);
  gradient_columns(what, g, y, out, length, columns, stride);
}

}  // namespace

TUTTI_ISA_DEFINE(run_softmax, void,
                 (Exponential what, DType dtype, const void* x, void* y, int64_t length, int64_t columns,
                  int64_t stride)) {
  if (dtype == DType::f32)
    softmax_of(what, static_cast<const float*>(x), static_cast<float*>(y), length, columns, stride);
  else
    softmax_of(what, static_cast<const double*>(x), static_cast<double*>(y), length, columns, stride);
}

TUTTI_ISA_DEFINE(run_softmax_gradient, void,
                 (Exponential what, DType dtype, const void* g, const void* y, void* out, int64_t length,
                  int64_t columns, int64_t stride)) {
  if (dtype == DType::f32)
    gradient_of(what, static_cast<const float*>(g), static_cast<const float*>(y), static_cast<float*>(out), length,
                columns, stride);
  else
    gradient_of(what, static_cast<const double*>(g), static_cast<const double*>(y), static_cast<double*>(out), length,
                columns, stride);
}

}  // namespace tutti::reduction
