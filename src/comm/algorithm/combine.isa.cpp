#include "comm/algorithm/reduce.h"
#include "tutti/pointwise/vec.h"

namespace tutti {
namespace {

using namespace pointwise;

template <class T, class F>
TUTTI_HD void each(const T* a, const T* b, T* c, int64_t n, F f) {
  constexpr int kLanes = 64 / sizeof(T);
  using V = Vec<T, kLanes>;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(V::load(a + i), V::load(b + i)).store(c + i);
  auto rest = static_cast<int>(n - i);
  if (rest) f(V::load(a + i, rest), V::load(b + i, rest)).store(c + i, rest);
}

// NaN wins against anything, whichever side it is on.
template <class T>
TUTTI_HD void combine(Reduce op, const T* a, const T* b, T* c, int64_t n) {
  switch (op) {
    case Reduce::product:
      return each(a, b, c, n, [](auto x, auto y) { return x * y; });
    case Reduce::min:
      return each(a, b, c, n, [](auto x, auto y) { return select((x < y) | (x != x), x, y); });
    case Reduce::max:
      return each(a, b, c, n, [](auto x, auto y) { return select((x > y) | (x != x), x, y); });
    default:
      return each(a, b, c, n, [](auto x, auto y) { return x + y; });
  }
}

template <class T>
TUTTI_HD void scale(const T* a, T factor, T* c, int64_t n) {
  each(a, a, c, n, [factor](auto x, auto) { return x * decltype(x)(factor); });
}

}  // namespace

TUTTI_ISA_DEFINE(combine_f32, void, (Reduce op, const float* a, const float* b, float* c, int64_t n)) {
  combine(op, a, b, c, n);
}
TUTTI_ISA_DEFINE(combine_f64, void, (Reduce op, const double* a, const double* b, double* c, int64_t n)) {
  combine(op, a, b, c, n);
}
TUTTI_ISA_DEFINE(scale_f32, void, (const float* a, float factor, float* c, int64_t n)) { scale(a, factor, c, n); }
TUTTI_ISA_DEFINE(scale_f64, void, (const double* a, double factor, double* c, int64_t n)) { scale(a, factor, c, n); }

}  // namespace tutti
