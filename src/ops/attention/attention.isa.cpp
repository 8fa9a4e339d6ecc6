#include "ops/attention/attention.h"

#include <limits>

#include "ops/reduce/lanes.h"
#include "tutti/pointwise/primitives.h"

namespace tutti::attending {
namespace {

using pointwise::Vec;
using reduction::fold_lanes;
using reduction::load_filled;
using reduction::store_first;

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T>
using Lanes = Vec<T, reduction::lanes_of<T>>;

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
template <class T>
[[gnu::noinline]] T exp_one(T x) {
  return pointwise::exp(Vec<T, 1>(x)).v;
}
template <class T>
[[gnu::noinline]] T log_one(T x) {
  return pointwise::log(Vec<T, 1>(x)).v;
}

int64_t limit_of(const Block& b, int64_t row) {
  int64_t limit = b.first_limit + row;
  return limit < 0 ? 0 : limit < b.columns ? limit : b.columns;
}

// The scores of a row with its mask: -∞ where it may not attend.
template <class T>
void apply_mask(const Block& b, int64_t row, T* s, int64_t count) {
  using V = Lanes<T>;
  if (b.allowed) {
    const bool* allowed = b.allowed + row * b.mask_row;
    for (int64_t c = 0; c < count; ++c) s[c] = allowed[c] ? s[c] : -kInfinity<T>;
  } else if (b.added) {
    const T* added = static_cast<const T*>(b.added) + row * b.mask_row;
    for (int64_t c = 0; c < count; c += V::lanes) {
      auto n = static_cast<int>(count - c < V::lanes ? count - c : V::lanes);
      store_first(s + c, n, load_filled<V>(s + c, n, 0) + load_filled<V>(added + c, n, 0));
    }
  }
}

template <class T>
T row_top(const T* s, int64_t count) {
  using V = Lanes<T>;
  V top(-kInfinity<T>);
  for (int64_t c = 0; c < count; c += V::lanes) {
    auto n = static_cast<int>(count - c < V::lanes ? count - c : V::lanes);
    top = pointwise::max(top, load_filled<V>(s + c, n, -kInfinity<T>));
  }
  return fold_lanes(top, [](auto p, auto q) { return pointwise::max(p, q); });
}

template <class T>
void forward(const Block& b, T* scores, T* top, T* sum, T* correction) {
  using V = Lanes<T>;
  for (int64_t r = 0; r < b.rows; ++r, scores += b.row_stride) {
    int64_t limit = limit_of(b, r);
    apply_mask(b, r, scores, limit);
    T old = top[r], now = pointwise::max(Vec<T, 1>(old), Vec<T, 1>(row_top(scores, limit))).v;
    // Nothing to attend to yet: exp(-∞ - -∞) would be NaN.
    T shift = now == -kInfinity<T> ? T(0) : now;
    V vshift(shift), total(0);
    for (int64_t c = 0; c < limit; c += V::lanes) {
      auto n = static_cast<int>(limit - c < V::lanes ? limit - c : V::lanes);
      V e = exp_of(load_filled<V>(scores + c, n, -kInfinity<T>) - vshift);
      store_first(scores + c, n, e);
      total = total + e;
    }
    for (int64_t c = limit; c < b.columns; ++c) scores[c] = T(0);
    correction[r] = old == now ? T(1) : old == -kInfinity<T> ? T(0) : exp_one<T>(old - shift);
    sum[r] = sum[r] * correction[r] + fold_lanes(total, [](auto p, auto q) { return p + q; });
    top[r] = now;
  }
}

template <class T>
void backward(const Block& b, T* scores, T* grads, const T* log_sums, const T* delta, T scale) {
  using V = Lanes<T>;
  for (int64_t r = 0; r < b.rows; ++r, scores += b.row_stride, grads += b.row_stride) {
    int64_t limit = limit_of(b, r);
    if (log_sums[r] == -kInfinity<T>) limit = 0;  // attended to nothing
    apply_mask(b, r, scores, limit);
    V shift(log_sums[r]), d(delta[r]), f(scale);
    for (int64_t c = 0; c < limit; c += V::lanes) {
      auto n = static_cast<int>(limit - c < V::lanes ? limit - c : V::lanes);
      V p = exp_of(load_filled<V>(scores + c, n, 0) - shift);
      store_first(scores + c, n, p);
      // Where p is 0 nothing flows, even if the gradient is not finite there.
      V g = p * (load_filled<V>(grads + c, n, 0) - d) * f;
      store_first(grads + c, n, select(p == V(0), V(0), g));
    }
    for (int64_t c = limit; c < b.columns; ++c) scores[c] = grads[c] = T(0);
  }
}

template <class T>
void scale_all(T* x, int64_t row_stride, int64_t rows, int64_t width, const T* factor) {
  using V = Lanes<T>;
  for (int64_t r = 0; r < rows; ++r, x += row_stride) {
    V f(factor[r]);
    int64_t c = 0;
    for (; c + V::lanes <= width; c += V::lanes) (V::load(x + c) * f).store(x + c);
    for (; c < width; ++c) x[c] *= factor[r];
  }
}

template <class T>
void finish(const T* top, T* sum, T* log_sums, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    bool nothing = top[r] == -kInfinity<T>;
    log_sums[r] = nothing ? -kInfinity<T> : top[r] + log_one<T>(sum[r]);
    sum[r] = nothing ? T(0) : 1 / sum[r];
  }
}

template <class T>
void dots(const T* x, int64_t x_row, const T* y, int64_t y_row, int64_t rows, int64_t width, T* delta) {
  using V = Lanes<T>;
  for (int64_t r = 0; r < rows; ++r, x += x_row, y += y_row) {
    V total(0);
    for (int64_t c = 0; c < width; c += V::lanes) {
      auto n = static_cast<int>(width - c < V::lanes ? width - c : V::lanes);
      total = total + load_filled<V>(x + c, n, 0) * load_filled<V>(y + c, n, 0);
    }
    delta[r] = fold_lanes(total, [](auto p, auto q) { return p + q; });
  }
}

template <class F>
void with_float(DType dtype, F&& f) {
  dtype == DType::f64 ? f(double()) : f(float());
}

}  // namespace

TUTTI_ISA_DEFINE(attend_forward, void, (const Block& b, void* scores, void* top, void* sum, void* correction)) {
  with_float(b.dtype, [&]<class T>(T) {
    forward(b, static_cast<T*>(scores), static_cast<T*>(top), static_cast<T*>(sum), static_cast<T*>(correction));
  });
}

TUTTI_ISA_DEFINE(scale_rows, void,
                 (DType dtype, void* x, int64_t row_stride, int64_t rows, int64_t width, const void* factor)) {
  with_float(dtype, [&]<class T>(T) {
    scale_all(static_cast<T*>(x), row_stride, rows, width, static_cast<const T*>(factor));
  });
}

TUTTI_ISA_DEFINE(finish_rows, void, (DType dtype, const void* top, void* sum, void* log_sums, int64_t rows)) {
  with_float(dtype, [&]<class T>(T) {
    finish(static_cast<const T*>(top), static_cast<T*>(sum), static_cast<T*>(log_sums), rows);
  });
}

TUTTI_ISA_DEFINE(attend_backward, void,
                 (const Block& b, void* scores, void* grads, const void* log_sums, const void* delta, double scale)) {
  with_float(b.dtype, [&]<class T>(T) {
    backward(b, static_cast<T*>(scores), static_cast<T*>(grads), static_cast<const T*>(log_sums),
             static_cast<const T*>(delta), static_cast<T>(scale));
  });
}

TUTTI_ISA_DEFINE(dot_rows, void,
                 (DType dtype, const void* x, int64_t x_row, const void* y, int64_t y_row, int64_t rows, int64_t width,
                  void* delta)) {
  with_float(dtype, [&]<class T>(T) {
    dots(static_cast<const T*>(x), x_row, static_cast<const T*>(y), y_row, rows, width, static_cast<T*>(delta));
  });
}

}  // namespace tutti::attending
