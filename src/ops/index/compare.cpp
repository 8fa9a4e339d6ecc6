// equal and allclose: whole tensors compared, with a yes or no for an answer.
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/named.h"
#include "base/parallel.h"
#include "ops/index/indices.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

// Values where they can be read one after the other.
Tensor readable(const Tensor& x, const char* name) {
  check<DeviceError>(!x.device().is_meta(), name, "{} has a shape but no values", x);
  Tensor t = x.is_sparse() ? to_dense(x) : x;
  if (!t.device().is_cpu()) t = copy_to(t, Device());
  return t.detach().contiguous();
}

// Whether agree(begin, end) holds for all pieces; the rest is skipped once one does not.
template <class Agree>
bool all_pieces(int64_t count, Agree&& agree) {
  std::atomic<bool> yes{true};
  parallel_for(count, kReadGrain, [&](int64_t begin, int64_t end) {
    if (yes.load(std::memory_order_relaxed) && !agree(begin, end)) yes.store(false, std::memory_order_relaxed);
  });
  return yes.load();
}

// What tolerances are computed in. Integers that agree do so exactly, before any rounding.
double wide(float v) { return v; }
double wide(double v) { return v; }
std::complex<double> wide(std::complex<float> v) { return v; }
std::complex<double> wide(std::complex<double> v) { return v; }
double wide(int64_t v) { return static_cast<double>(v); }

bool is_nan(double v) { return std::isnan(v); }
bool is_nan(std::complex<double> v) { return std::isnan(v.real()) || std::isnan(v.imag()); }
bool is_finite(double v) { return std::isfinite(v); }
bool is_finite(std::complex<double> v) { return std::isfinite(v.real()) && std::isfinite(v.imag()); }

template <class T>
bool close(T a, T b, double rtol, double atol, bool equal_nan) {
  if (a == b) return true;
  auto x = wide(a), y = wide(b);
  if (is_nan(x) || is_nan(y)) return equal_nan && is_nan(x) && is_nan(y);
  // An infinity is close to itself only.
  return is_finite(x) && is_finite(y) && std::abs(x - y) <= atol + rtol * std::abs(y);
}

DType comparing_dtype(DType t) {
  return category(t) < Category::floating ? DType::i64 : t == DType::bf16 || t == DType::f16 ? DType::f32 : t;
}

}  // namespace

bool equal(const Tensor& a, const Tensor& b) {
  check_defined(a, "equal");
  check_defined(b, "equal");
  if (!(a.sizes() == b.sizes()) || a.dtype() != b.dtype()) return false;
  NoGrad guard;
  Tensor x = readable(a, "equal"), y = readable(b, "equal");
  return with_type(x.dtype(), [&]<class T>() {
    const T *p = x.data<T>(), *q = y.data<T>();
    return all_pieces(x.numel(), [&](int64_t begin, int64_t end) {
      if constexpr (std::is_integral_v<T>)
        return std::memcmp(p + begin, q + begin, static_cast<size_t>(end - begin) * sizeof(T)) == 0;
      for (int64_t i = begin; i < end; ++i)
        if (!(p[i] == q[i])) return false;
      return true;
    });
  });
}

Tensor isclose(const Tensor& x, const Tensor& y, const Tensor& rtol, const Tensor& atol, bool equal_nan) {
  Tensor close = isclose(x, y, rtol, atol);
  return equal_nan ? close | (isnan(x) & isnan(y)) : close;
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  check<ValueError>(rtol >= 0 && atol >= 0, "allclose", "tolerances must not be negative: rtol {}, atol {}", rtol,
                    atol);
  check_defined(a, "allclose");
  check_defined(b, "allclose");
  NoGrad guard;
  Shape sizes = named("allclose", [&] { return broadcast_shapes(a.sizes(), b.sizes()); });
  DType dtype = comparing_dtype(promote(a.dtype(), b.dtype()));
  Tensor x = cast(readable(a, "allclose"), dtype), y = cast(readable(b, "allclose"), dtype);
  x = expand(x, sizes).contiguous();
  y = expand(y, sizes).contiguous();
  auto compare = [&]<class T>() {
    const T *p = x.data<T>(), *q = y.data<T>();
    return all_pieces(x.numel(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        if (!close(p[i], q[i], rtol, atol, equal_nan)) return false;
      return true;
    });
  };
  switch (dtype) {
    case DType::f32:
      return compare.operator()<float>();
    case DType::f64:
      return compare.operator()<double>();
    case DType::c64:
      return compare.operator()<std::complex<float>>();
    case DType::c128:
      return compare.operator()<std::complex<double>>();
    default:
      return compare.operator()<int64_t>();
  }
}

}  // namespace tutti
