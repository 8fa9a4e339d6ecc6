#include "ops/reduce/cumulative.h"

#include <complex>

#include "ops/reduce/lanes.h"

namespace tutti::reduction {
namespace {

// What running results are kept in.
template <class T>
struct WideOf {
  using type = double;
};
template <>
struct WideOf<int64_t> {
  using type = int64_t;
};
template <class T>
struct WideOf<std::complex<T>> {
  using type = std::complex<double>;
};

inline double multiply(double a, double b) { return a * b; }
inline int64_t multiply(int64_t a, int64_t b) { return a * b; }
inline std::complex<double> multiply(std::complex<double> a, std::complex<double> b) { return complex_product(a, b); }

// Calls step(offset, sequence) for every element: all the sequences' first elements, then their second ones, ...
template <class Step>
TUTTI_HD void walk(const Sequences& s, Step&& step) {
  int64_t at = s.reverse ? (s.length - 1) * s.stride : 0, by = s.reverse ? -s.stride : s.stride;
  if (s.pitch == 1) {
    for (int64_t k = 0; k < s.length; ++k, at += by)
      for (int64_t i = 0; i < s.count; ++i) step(at + i, i);
  } else if (s.count == kRowSequences) {
    // Each waits for its last sum; four that take turns do not wait for each other.
    for (int64_t k = 0; k < s.length; ++k, at += by) {
      step(at, 0);
      step(at + s.pitch, 1);
      step(at + 2 * s.pitch, 2);
      step(at + 3 * s.pitch, 3);
    }
  } else {
    for (int64_t i = 0; i < s.count; ++i)
      for (int64_t k = 0; k < s.length; ++k) step(at + k * by + i * s.pitch, i);
  }
}

template <class T>
void cumulative(Running running, const T* x, T* y, const Sequences& s) {
  using Wide = typename WideOf<T>::type;
  Wide total[kMaxSequences];
  for (int64_t i = 0; i < s.count; ++i) total[i] = running == Running::sum ? Wide(0) : Wide(1);
  if (running == Running::sum)
    walk(s, [&](int64_t at, int64_t i) {
      total[i] += Wide(x[at]);
      y[at] = static_cast<T>(total[i]);
    });
  else
    walk(s, [&](int64_t at, int64_t i) {
      total[i] = multiply(total[i], Wide(x[at]));
      y[at] = static_cast<T>(total[i]);
    });
}

template <class T>
void recurrence(const T* a, const T* b, T* y, const Sequences& s, bool source) {
  using Wide = typename WideOf<T>::type;
  Wide last[kMaxSequences] = {};  // with its own factor already, if source
  if (source)
    walk(s, [&](int64_t at, int64_t i) {
      Wide value = Wide(b[at]) + last[i];
      y[at] = static_cast<T>(value);
      last[i] = multiply(Wide(a[at]), value);
    });
  else
    walk(s, [&](int64_t at, int64_t i) {
      last[i] = Wide(b[at]) + multiply(Wide(a[at]), last[i]);
      y[at] = static_cast<T>(last[i]);
    });
}

template <class F>
void with_wide_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::i64:
      return f.template operator()<int64_t>();
    case DType::c64:
      return f.template operator()<std::complex<float>>();
    case DType::c128:
      return f.template operator()<std::complex<double>>();
    default:
      return;
  }
}

}  // namespace

TUTTI_ISA_DEFINE(run_cumulative, void, (Running running, DType dtype, const void* x, void* y, const Sequences& s)) {
  with_wide_type(dtype, [&]<class T>() { cumulative<T>(running, static_cast<const T*>(x), static_cast<T*>(y), s); });
}

TUTTI_ISA_DEFINE(run_recurrence, void,
                 (DType dtype, const void* a, const void* b, void* y, const Sequences& s, bool source)) {
  with_wide_type(dtype, [&]<class T>() {
    recurrence<T>(static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), s, source);
  });
}

}  // namespace tutti::reduction
