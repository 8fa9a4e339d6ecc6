#include "ops/pool/pool.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "tutti/pointwise/vec.h"

namespace tutti::pooling {
namespace {

using pointwise::convert;
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

// Calls body(d, h, k, offset of the plane, number of the position in the result) for rows begin..end.
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

// ---- One element at a place (inner is 1). The rows of a window are combined first, as whole rows of x, and then the
// columns of what that gave: the first is done by vectors, and the second has little left to do.

// The rows that windows of one row of the result reach: calls body(row of x, its number among them).
template <class Body>
TUTTI_HD void for_each_row(const Windows& w, int64_t d, int64_t h, Body&& body) {
  const Axis *depth = &w.axis[0], *height = &w.axis[1];
  int64_t number = 0;
  for (int64_t i = 0; i < depth->count[d]; ++i)
    for (int64_t j = 0; j < height->count[h]; ++j, ++number)
      body((depth->first[d] + i * depth->step) * height->in + height->first[h] + j * height->step, number);
}

// Calls body(row, outer, d, h) for rows begin..end of the result.
template <class Body>
TUTTI_HD void for_each_result_row(const Windows& w, int64_t begin, int64_t end, Body&& body) {
  for (int64_t row = begin; row < end; ++row)
    body(row, row / w.axis[1].out / w.axis[0].out, row / w.axis[1].out % w.axis[0].out, row % w.axis[1].out);
}

template <class T, class Body>
TUTTI_HD void for_each_vector(int64_t count, Body&& body) {
  constexpr int N = 64 / sizeof(T);
  for (int64_t i = 0; i < count; i += N) body(i, static_cast<int>(count - i < N ? count - i : N));
}

// Maxima of the contiguous planes of a tensor. A place in a window is known by its key, which orders places as x has
// them: the number of its row among those of the window, and behind it the column.
template <class T>
class NarrowMax {
 public:
  explicit NarrowMax(const Windows& w) : w_(w), width_(w.axis[2]) {
    int64_t reach = (width_.out - 1) * width_.stride + (width_.kernel - 1) * width_.step + 1;
    auto span = static_cast<size_t>(std::max(width_.in + width_.padding, width_.kernel ? reach : 0));
    shift_ = std::bit_width(span);
    best_.resize(span);
    keys_.resize(span);
    int64_t rows = 1;
    for (int d = 0; d < 2; ++d) rows *= *std::max_element(w.axis[d].count, w.axis[d].count + w.axis[d].out);
    offsets_.resize(static_cast<size_t>(std::max<int64_t>(rows, 1)));
    fits_ = rows < std::numeric_limits<Key>::max() >> shift_;
  }
  /// Whether all places have a key.
  bool fits() const { return fits_; }

  void run(const T* x, T* y, int64_t* indices, int64_t begin, int64_t end) {
    for_each_result_row(w_, begin, end, [&](int64_t row, int64_t outer, int64_t d, int64_t h) {
      combine_rows(x + outer * w_.in(), d, h);
      if (width_.kernel)
        combine_columns(y + row * width_.out, indices + row * width_.out);
      else
        combine_varying(y + row * width_.out, indices + row * width_.out);
    });
  }

 private:
  using Key = IntOf<T>;
  using V = Vec<T, 64 / sizeof(T)>;
  using K = Vec<Key, 64 / sizeof(T)>;
  static constexpr Key kNowhere = std::numeric_limits<Key>::max();

  // The largest of each column of the rows that the windows reach. The padding is never chosen.
  void combine_rows(const T* plane, int64_t d, int64_t h) {
    std::fill(best_.begin(), best_.end(), -std::numeric_limits<T>::infinity());
    std::fill(keys_.begin(), keys_.end(), kNowhere);
    T* best = best_.data() + width_.padding;
    Key* keys = keys_.data() + width_.padding;
    for (int64_t i = 0; i < width_.in; ++i) keys[i] = static_cast<Key>(i + width_.padding);
    offsets_[0] = 0;
    for_each_row(w_, d, h, [&](int64_t from, int64_t number) {
      const T* row = plane + from * width_.in;
      offsets_[static_cast<size_t>(number)] = from * width_.in - width_.padding;
      K step(static_cast<Key>(number << shift_)), column(static_cast<Key>((1 << shift_) - 1));
      for_each_vector<T>(width_.in, [&](int64_t i, int n) __attribute__((always_inline)) {
        V v = load_lanes<V>(row + i, n), top = load_lanes<V>(best + i, n);
        K key = load_lanes<K>(keys + i, n);
        auto better = (v > top) | (v != v);
        store_lanes(best + i, n, select(better, v, top));
        store_lanes(keys + i, n, select(better, (key & column) | step, key));
      });
    });
  }

  // Of equal values the first in x counts, of several NaN the last, as if a window were gone through in order.
  template <class Value, class Place>
  static TUTTI_HD void take(Value v, Place key, Value& top, Place& place) {
    auto before = mask_cast<T>(key < place), after = mask_cast<T>(key > place);
    auto better = ((v != v) & ((top == top) | after)) | (v > top) | ((v == top) & before);
    top = select(better, v, top);
    place = select(better, key, place);
  }

  void put(Key key, int64_t& index) const {
    index = key == kNowhere ? 0 : offsets_[static_cast<size_t>(key >> shift_)] + (key & ((Key{1} << shift_) - 1));
  }

  template <class Vector>
  static TUTTI_HD Vector load_every(const typename Vector::Element* p, int64_t stride, int n) {
    if (stride == 1) return load_lanes<Vector>(p, n);
    typename Vector::Element lanes[Vector::lanes] = {};
    if (stride == 2 && n == Vector::lanes)
      for (int i = 0; i < Vector::lanes; ++i) lanes[i] = p[2 * i];
    else
      for (int i = 0; i < n; ++i) lanes[i] = p[i * stride];
    return Vector::load(lanes);
  }

  void combine_columns(T* y, int64_t* indices) const {
    for_each_vector<T>(width_.out, [&](int64_t o, int n) {
      V top(-std::numeric_limits<T>::infinity());
      K place(kNowhere);
      for (int64_t k = 0; k < width_.kernel; ++k) {
        int64_t at = o * width_.stride + k * width_.step;
        take(load_every<V>(best_.data() + at, width_.stride, n), load_every<K>(keys_.data() + at, width_.stride, n),
             top, place);
      }
      store_lanes(y + o, n, top);
      Key key[K::lanes];
      place.store(key);
      for (int i = 0; i < n; ++i) put(key[i], indices[o + i]);
    });
  }

  void combine_varying(T* y, int64_t* indices) const {
    for (int64_t o = 0; o < width_.out; ++o) {
      Vec<T, 1> top(-std::numeric_limits<T>::infinity());
      Vec<Key, 1> place(kNowhere);
      for (int64_t at = width_.first[o]; at < width_.first[o] + width_.count[o]; ++at)
        take(Vec<T, 1>(best_[static_cast<size_t>(at)]), Vec<Key, 1>(keys_[static_cast<size_t>(at)]), top, place);
      y[o] = top.v;
      put(place.v, indices[o]);
    }
  }

  const Windows& w_;
  const Axis& width_;
  int shift_;
  bool fits_;
  std::vector<T> best_;
  std::vector<Key> keys_;
  std::vector<int64_t> offsets_;
};

template <class T>
void narrow_avg_rows(const Windows& w, const T* x, T* y, int64_t begin, int64_t end) {
  using V = Vec<T, 64 / sizeof(T)>;
  const Axis& width = w.axis[2];
  std::vector<T> total(static_cast<size_t>(width.in));
  for_each_result_row(w, begin, end, [&](int64_t row, int64_t outer, int64_t d, int64_t h) {
    const T* plane = x + outer * w.in();
    std::fill(total.begin(), total.end(), T(0));
    for_each_row(w, d, h, [&](int64_t from, int64_t) {
      for_each_vector<T>(width.in, [&](int64_t i, int n) __attribute__((always_inline)) {
        store_lanes(total.data() + i, n,
                    load_lanes<V>(total.data() + i, n) + load_lanes<V>(plane + from * width.in + i, n));
      });
    });
    for (int64_t o = 0; o < width.out; ++o) {
      const T* from = total.data() + width.first[o];
      T sum = 0;
      for (int64_t k = 0; k < width.count[o]; ++k) sum += from[k * width.step];
      y[row * width.out + o] = sum / static_cast<T>(divisor_at(w, d, h, o));
    }
  });
}

template <class T>
void narrow_spread(const Windows& w, const T* g, T* x, int64_t outer) {
  using V = Vec<T, 64 / sizeof(T)>;
  const Axis& width = w.axis[2];
  std::vector<T> total(static_cast<size_t>(width.in));
  T* plane = x + outer * w.in();
  int64_t rows = w.axis[0].out * w.axis[1].out;
  for_each_result_row(w, outer * rows, (outer + 1) * rows, [&](int64_t row, int64_t, int64_t d, int64_t h) {
    std::fill(total.begin(), total.end(), T(0));
    for (int64_t o = 0; o < width.out; ++o) {
      T share = g[row * width.out + o] / static_cast<T>(divisor_at(w, d, h, o));
      T* to = total.data() + width.first[o];
      for (int64_t k = 0; k < width.count[o]; ++k) to[k * width.step] += share;
    }
    for_each_row(w, d, h, [&](int64_t to, int64_t) {
      for_each_vector<T>(width.in, [&](int64_t i, int n) __attribute__((always_inline)) {
        T* at = plane + to * width.in + i;
        store_lanes(at, n, load_lanes<V>(at, n) + load_lanes<V>(total.data() + i, n));
      });
    });
  });
}

// ---- Many elements at a place, side by side: the channels of a channels-last tensor.

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
  if (n == N)
    for (int i = 0; i < N; ++i) indices[i] = lane[i];
  else
    for (int i = 0; i < n; ++i) indices[i] = lane[i];
}

template <class T>
void max_rows(const Windows& w, const T* x, T* y, int64_t* indices, int64_t begin, int64_t end) {
  if (w.inner == 1)
    if (NarrowMax<T> narrow(w); narrow.fits()) return narrow.run(x, y, indices, begin, end);
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

// The transpose, of windows that are whole and have no place in common: each of their places is written once. They hold
// zeros before, which cost little and bring them into the cache.
template <class T>
void max_spread(const Windows& w, const T* g, const int64_t* indices, T* x, int64_t outer, int64_t first,
                int64_t count) {
  using I = IntOf<T>;
  constexpr int N = 64 / sizeof(T);
  using V = Vec<T, N>;
  int64_t rows = w.axis[0].out * w.axis[1].out;
  for_each_position(w, outer * rows, (outer + 1) * rows,
                    [&](int64_t d, int64_t h, int64_t k, int64_t plane, int64_t position) {
                      Window window = window_at(w, d, h, k);
                      for (int64_t i = first; i < first + count; i += N) {
                        int n = static_cast<int>(first + count - i < N ? first + count - i : N);
                        const int64_t* index = indices + position * w.inner + i;
                        auto place = convert<I>(load_lanes<Vec<int64_t, N>>(index, n));
                        V share = V(0) + load_lanes<V>(g + position * w.inner + i, n);
                        T* to = x + plane * w.inner + i;
                        window.for_each([&](int64_t at) __attribute__((always_inline)) {
                          auto here = mask_cast<T>(place == Vec<I, N>(static_cast<I>(at)));
                          store_lanes(to + at * w.inner, n, select(here, share, V(0)));
                        });
                      }
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
  if (w.inner == 1) return narrow_avg_rows(w, x, y, begin, end);
  constexpr int N = 64 / sizeof(T);
  for_each_position(w, begin, end, [&](int64_t d, int64_t h, int64_t k, int64_t plane, int64_t position) {
    Window window = window_at(w, d, h, k);
    auto divisor = static_cast<T>(divisor_at(w, d, h, k));
    const T* from = x + plane * w.inner;
    T* to = y + position * w.inner;
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
  if (w.inner == 1) return narrow_spread(w, g, x, outer);
  constexpr int N = 64 / sizeof(T);
  int64_t rows = w.axis[0].out * w.axis[1].out;
  for_each_position(w, outer * rows, (outer + 1) * rows,
                    [&](int64_t d, int64_t h, int64_t k, int64_t plane, int64_t position) {
                      Window window = window_at(w, d, h, k);
                      auto divisor = static_cast<T>(divisor_at(w, d, h, k));
                      const T* from = g + position * w.inner + first;
                      T* to = x + plane * w.inner + first;
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

TUTTI_ISA_DEFINE(max_pool_spread, void,
                 (DType dtype, const pooling::Windows& w, const void* g, const int64_t* indices, void* x, int64_t outer,
                  int64_t first, int64_t count)) {
  if (dtype == DType::f64)
    pooling::max_spread(w, static_cast<const double*>(g), indices, static_cast<double*>(x), outer, first, count);
  else
    pooling::max_spread(w, static_cast<const float*>(g), indices, static_cast<float*>(x), outer, first, count);
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
