#include "ops/reduce/extreme.h"

#include <limits>

#include "ops/reduce/lanes.h"

namespace tutti::reduction {
namespace {

using pointwise::Vec;

// Whether b, which comes later, is to replace a.
template <bool largest, class V>
TUTTI_HD auto replaces(V b, V a) {
  auto beyond = largest ? b > a : b < a;
  if constexpr (std::is_floating_point_v<typename V::Element>)
    return (beyond | (b != b)) & (a == a);
  else
    return beyond;
}

template <bool largest, class V>
TUTTI_HD V more_extreme(V a, V b) {
  if constexpr (largest)
    return pointwise::max(a, b);
  else
    return pointwise::min(a, b);
}

template <bool largest, class T>
T extreme_value(const T* x, int64_t count) {
  constexpr int N = lanes_of<T>;
  using V = Vec<T, N>;
  T best = x[0];
  int64_t i = 0;
  if (count >= 4 * N) {
    V a = V::load(x), b = V::load(x + N), c = V::load(x + 2 * N), d = V::load(x + 3 * N);
    for (i = 4 * N; i + 4 * N <= count; i += 4 * N) {
      a = more_extreme<largest>(a, V::load(x + i));
      b = more_extreme<largest>(b, V::load(x + i + N));
      c = more_extreme<largest>(c, V::load(x + i + 2 * N));
      d = more_extreme<largest>(d, V::load(x + i + 3 * N));
    }
    V all = more_extreme<largest>(more_extreme<largest>(a, b), more_extreme<largest>(c, d));
    best = fold_lanes(all, [](auto p, auto q) { return more_extreme<largest>(p, q); });
  }
  for (; i < count; ++i) best = more_extreme<largest>(Vec<T, 1>(best), Vec<T, 1>(x[i])).v;
  return best;
}

// The first element that equals `value`, or the first NaN if it is one.
template <class T>
int64_t find(const T* x, int64_t count, T value) {
  constexpr int64_t kStep = 64;
  int64_t i = 0;
  bool nan = value != value;
  // Whole blocks without a hit are passed over by a loop that the compiler can vectorise.
  for (; i + kStep <= count; i += kStep) {
    int hits = 0;
    for (int64_t k = 0; k < kStep; ++k) hits |= nan ? x[i + k] != x[i + k] : x[i + k] == value;
    if (hits) break;
  }
  for (; i + 1 < count; ++i)
    if (nan ? x[i] != x[i] : x[i] == value) break;
  return i;
}

template <bool largest, class T>
void of_row(const void* data, int64_t count, void* value, int64_t* index) {
  const T* x = static_cast<const T*>(data);
  T best = x[0];
  int64_t at = 0;
  if (count <= 32) {
    for (int64_t i = 1; i < count; ++i) {
      bool beyond = largest ? x[i] > best : x[i] < best, is_nan = x[i] != x[i];
      if ((beyond || is_nan) && best == best) {
        best = x[i];
        at = i;
      }
    }
  } else {
    best = extreme_value<largest>(x, count);
    at = find(x, count, best);
    best = x[at];  // zeros of either sign are equal
  }
  *static_cast<T*>(value) = best;
  *index = at;
}

// Columns [c, end) of `rows` rows, in steps of N; the first row has the number `number`, which is what its index is
// written as.
template <bool largest, class T, int N, class I = pointwise::IntOf<T>>
TUTTI_HD void scan_rows(const T* x, int64_t stride, int rows, int64_t c, int64_t end, I number, T* best, I* at) {
  for (; c + N <= end; c += N) {
    Vec<T, N> most = Vec<T, N>::load(best + c);
    Vec<I, N> where = Vec<I, N>::load(at + c);
    for (int r = 0; r < rows; ++r) {
      Vec<T, N> v = Vec<T, N>::load(x + r * stride + c);
      auto takes = replaces<largest>(v, most);
      most = select(takes, v, most);
      where = select(takes, Vec<I, N>(number + static_cast<I>(r)), where);
    }
    most.store(best + c);
    where.store(at + c);
  }
}

template <bool largest, class T>
void of_columns(const void* data, int64_t stride, int64_t rows, int64_t columns, int64_t first, void* best,
                int64_t* indices) {
  constexpr int N = lanes_of<T>;
  using I = pointwise::IntOf<T>;
  const T* x = static_cast<const T*>(data);
  T* values = static_cast<T*>(best);
  alignas(64) I at[kSearchColumns];  // counts rows from 1; 0: what was there before
  for (int64_t c = 0; c < columns; ++c) at[c] = first == 0;
  if (first == 0)
    for (int64_t c = 0; c < columns; ++c) values[c] = x[c];
  for (int64_t r = 0; r < rows; r += 8) {
    int count = rows - r < 8 ? static_cast<int>(rows - r) : 8;
    scan_rows<largest, T, N>(x + r * stride, stride, count, 0, columns, static_cast<I>(r + 1), values, at);
    scan_rows<largest, T, 1>(x + r * stride, stride, count, columns / N * N, columns, static_cast<I>(r + 1), values,
                             at);
  }
  for (int64_t c = 0; c < columns; ++c)
    if (at[c]) indices[c] = first + at[c] - 1;
}

template <bool largest, class T>
void merge(const void* from, const int64_t* indices, int64_t count, void* into, int64_t* into_indices) {
  const T* later = static_cast<const T*>(from);
  T* best = static_cast<T*>(into);
  for (int64_t i = 0; i < count; ++i) {
    bool beyond = largest ? later[i] > best[i] : later[i] < best[i], is_nan = later[i] != later[i];
    if ((beyond || is_nan) && best[i] == best[i]) {
      best[i] = later[i];
      into_indices[i] = indices[i];
    }
  }
}

template <bool largest, class T>
constexpr Extremes extremes_of{&of_row<largest, T>, &of_columns<largest, T>, &merge<largest, T>};

template <bool largest>
const Extremes* of_dtype(DType element) {
  switch (element) {
    case DType::f32:
      return &extremes_of<largest, float>;
    case DType::f64:
      return &extremes_of<largest, double>;
    default:
      return &extremes_of<largest, int64_t>;
  }
}

}  // namespace

TUTTI_ISA_DEFINE(find_extremes, const Extremes*, (DType element, bool largest)) {
  return largest ? of_dtype<true>(element) : of_dtype<false>(element);
}

}  // namespace tutti::reduction
