#include "ops/pool/pool.h"

#include <limits>

#include "tutti/pointwise/vec.h"

namespace tutti::pooling {
namespace {

using pointwise::IntOf;
using pointwise::Vec;

// One window: calls body(offset in the plane) for each of its positions.
struct Window {
  int64_t first[3], count[3], step[3], height, width;

  template <class Body>
  TUTTI_HD void for_each(Body&& body) const {
    for (int64_t d = 0; d < count[0]; ++d)
      for (int64_t h = 0; h < count[1]; ++h) {
        int64_t at = ((first[0] + d * step[0]) * height + first[1] + h * step[1]) * width + first[2];
        for (int64_t k = 0; k < count[2]; ++k, at += step[2]) body(at);
      }
  }
};

Window window_at(const Windows& w, int64_t d, int64_t h, int64_t k) {
  const Axis* a = w.axis;
  return {{a[0].first[d], a[1].first[h], a[2].first[k]},
          {a[0].count[d], a[1].count[h], a[2].count[k]},
          {a[0].step, a[1].step, a[2].step},
          a[1].in,
          a[2].in};
}

double divisor_at(const Windows& w, int64_t d, int64_t h, int64_t k) {
  if (w.divisor) return static_cast<double>(w.divisor);
  return static_cast<double>(w.axis[0].divisor[d] * w.axis[1].divisor[h] * w.axis[2].divisor[k]);
}

// Calls body(window, d, h, k, plane of x, number of the position in the result) for rows begin..end.
template <class Body>
TUTTI_HD void for_each_position(const Windows& w, int64_t begin, int64_t end, Body&& body) {
  for (int64_t row = begin; row < end; ++row) {
    int64_t h = row % w.axis[1].out, d = row / w.axis[1].out % w.axis[0].out;
    int64_t outer = row / w.axis[1].out / w.axis[0].out;
    for (int64_t k = 0; k < w.axis[2].out; ++k) body(d, h, k, outer * w.in(), row * w.axis[2].out + k);
  }
}

// The first n lanes of a vector at p; all of them where the vector is full.
template <class V>
TUTTI_HD V load_lanes(const typename V::Element* p, int n) {
  return n == V::lanes ? V::load(p) : V::load(p, n);
}
template <class V>
TUTTI_HD void store_lanes(typename V::Element* p, int n, V v) {
  if (n == V::lanes)
    v.store(p);
  else
    v.store(p, n);
}

// x and y point to the first of n ≤ N inner elements. Offsets within a plane fit I.
template <class T, class I, int N>
TUTTI_HD void max_window(const Window& window, const T* x, int64_t inner, T* y, int64_t* indices, int n) {
  using V = Vec<T, N>;
  V best(-std::numeric_limits<T>::infinity());
  Vec<I, N> place(static_cast<I>((window.first[0] * window.height + window.first[1]) * window.width + window.first[2]));
  window.for_each([&](int64_t at) __attribute__((always_inline)) {
    V v = load_lanes<V>(x + at * inner, n);
    auto better = (v > best) | (v != v);
    best = select(better, v, best);
    place = select(better, Vec<I, N>(static_cast<I>(at)), place);
  });
  store_lanes(y, n, best);
  I lane[N];
  place.store(lane);
  for (int i = 0; i < n; ++i) indices[i] = lane[i];
}

template <class T>
void max_rows(const Windows& w, const T* x, T* y, int64_t* indices, int64_t begin, int64_t end) {
  constexpr int N = 64 / sizeof(T);
  bool wide = w.inner > 1 && w.in() <= std::numeric_limits<IntOf<T>>::max();
  for_each_position(w, begin, end, [&](int64_t d, int64_t h, int64_t k, int64_t plane, int64_t position) {
    Window window = window_at(w, d, h, k);
    const T* from = x + plane * w.inner;
    T* to = y + position * w.inner;
    int64_t* index = indices + position * w.inner;
    if (!wide) {
      for (int64_t i = 0; i < w.inner; ++i) max_window<T, int64_t, 1>(window, from + i, w.inner, to + i, index + i, 1);
      return;
    }
    for (int64_t i = 0; i < w.inner; i += N)
      max_window<T, IntOf<T>, N>(window, from + i, w.inner, to + i, index + i,
                                 static_cast<int>(w.inner - i < N ? w.inner - i : N));
  });
}

template <class T, int N>
TUTTI_HD void avg_window(const Window& window, const T* x, int64_t inner, T* y, T divisor, int n) {
  using V = Vec<T, N>;
  V sum(0);
  window.for_each([&](int64_t at) __attribute__((always_inline)) { sum = sum + load_lanes<V>(x + at * inner, n); });
  store_lanes(y, n, sum / V(divisor));
}

template <class T>
void avg_rows(const Windows& w, const T* x, T* y, int64_t begin, int64_t end) {
  constexpr int N = 64 / sizeof(T);
  for_each_position(w, begin, end, [&](int64_t d, int64_t h, int64_t k, int64_t plane, int64_t position) {
    Window window = window_at(w, d, h, k);
    auto divisor = static_cast<T>(divisor_at(w, d, h, k));
    const T* from = x + plane * w.inner;
    T* to = y + position * w.inner;
    if (w.inner == 1) return avg_window<T, 1>(window, from, 1, to, divisor, 1);
    for (int64_t i = 0; i < w.inner; i += N)
      avg_window<T, N>(window, from + i, w.inner, to + i, divisor, static_cast<int>(w.inner - i < N ? w.inner - i : N));
  });
}

template <class T, int N>
TUTTI_HD void spread_window(const Window& window, const T* g, T* x, int64_t inner, T divisor, int n) {
  using V = Vec<T, N>;
  V share = load_lanes<V>(g, n) / V(divisor);
  window.for_each([&](int64_t at) __attribute__((always_inline)) {
    store_lanes(x + at * inner, n, load_lanes<V>(x + at * inner, n) + share);
  });
}

template <class T>
void spread(const Windows& w, const T* g, T* x, int64_t outer, int64_t first, int64_t count) {
  constexpr int N = 64 / sizeof(T);
  int64_t rows = w.axis[0].out * w.axis[1].out;
  for_each_position(w, outer * rows, (outer + 1) * rows,
                    [&](int64_t d, int64_t h, int64_t k, int64_t plane, int64_t position) {
                      Window window = window_at(w, d, h, k);
                      auto divisor = static_cast<T>(divisor_at(w, d, h, k));
                      const T* from = g + position * w.inner + first;
                      T* to = x + plane * w.inner + first;
                      if (w.inner == 1) return spread_window<T, 1>(window, from, to, 1, divisor, 1);
                      for (int64_t i = 0; i < count; i += N)
                        spread_window<T, N>(window, from + i, to + i, w.inner, divisor,
                                            static_cast<int>(count - i < N ? count - i : N));
                    });
}

}  // namespace
}  // namespace tutti::pooling

namespace tutti {

TUTTI_ISA_DEFINE(max_pool_rows, void,
                 (DType dtype, const pooling::Windows& w, const void* x, void* y, int64_t* indices, int64_t begin,
                  int64_t end)) {
  if (dtype == DType::f64)
    pooling::max_rows(w, static_cast<const double*>(x), static_cast<double*>(y), indices, begin, end);
  else
    pooling::max_rows(w, static_cast<const float*>(x), static_cast<float*>(y), indices, begin, end);
}

TUTTI_ISA_DEFINE(avg_pool_rows, void,
                 (DType dtype, const pooling::Windows& w, const void* x, void* y, int64_t begin, int64_t end)) {
  if (dtype == DType::f64)
    pooling::avg_rows(w, static_cast<const double*>(x), static_cast<double*>(y), begin, end);
  else
    pooling::avg_rows(w, static_cast<const float*>(x), static_cast<float*>(y), begin, end);
}

TUTTI_ISA_DEFINE(avg_pool_spread, void,
                 (DType dtype, const pooling::Windows& w, const void* g, void* x, int64_t outer, int64_t first,
                  int64_t count)) {
  if (dtype == DType::f64)
    pooling::spread(w, static_cast<const double*>(g), static_cast<double*>(x), outer, first, count);
  else
    pooling::spread(w, static_cast<const float*>(g), static_cast<float*>(x), outer, first, count);
}

}  // namespace tutti
