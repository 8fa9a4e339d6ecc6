#include "tensor/number.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "tensor/impl.h"

namespace tutti {
namespace {

// The whole numbers between which elements of an integer dtype lie.
std::pair<int64_t, int64_t> bounds(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return {0, UINT8_MAX};
    case DType::i8:
      return {INT8_MIN, INT8_MAX};
    case DType::i16:
      return {INT16_MIN, INT16_MAX};
    case DType::i32:
      return {INT32_MIN, INT32_MAX};
    default:
      return {INT64_MIN, INT64_MAX};
  }
}

double rounded(double v, DType dtype) {
  switch (to_real(dtype)) {
    case DType::f64:
      return v;
    case DType::f16:
      return static_cast<double>(static_cast<float>(Half(static_cast<float>(v))));
    case DType::bf16:
      return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(v))));
    default:
      return static_cast<double>(static_cast<float>(v));
  }
}

bool holds(DType dtype, double v) {
  if (dtype == DType::boolean) return true;  // whether it is zero
  if (!is_integer(dtype)) return !std::isfinite(v) || std::isfinite(rounded(v, dtype));
  auto [low, high] = bounds(dtype);
  double whole = std::trunc(v);  // as doubles, the largest i64 and its successor are one number, which is too large
  return whole >= static_cast<double>(low) && whole < static_cast<double>(high) + 1;
}
bool holds(DType dtype, int64_t v) {
  if (!is_integer(dtype)) return holds(dtype, static_cast<double>(v));
  auto [low, high] = bounds(dtype);
  return v >= low && v <= high;
}
bool holds(DType dtype, std::complex<double> v) {
  if (is_complex(dtype)) return holds(dtype, v.real()) && holds(dtype, v.imag());
  return dtype == DType::boolean || (v.imag() == 0 && holds(dtype, v.real()));
}

// The value as the widest of its kind.
template <class T>
auto wide(T v) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<int64_t>(v);
  else if constexpr (requires { v.imag(); })
    return std::complex<double>(v);
  else
    return static_cast<double>(v);
}

[[noreturn]] void does_not_fit(std::complex<double> v, DType dtype, const char* operation) {
  check<ValueError>(is_complex(dtype) || v.imag() == 0, operation,
                    "{}{:+}i has an imaginary part, which {} cannot hold", v.real(), v.imag(), dtype);
  if (is_complex(dtype)) fail<ValueError>(operation, "{}{:+}i is too large for {}", v.real(), v.imag(), dtype);
  if (!is_integer(dtype)) fail<ValueError>(operation, "{} is too large for {}", v.real(), dtype);
  auto [low, high] = bounds(dtype);
  fail<ValueError>(operation, "{} does not lie in {} to {}, which {} can hold", v.real(), low, high, dtype);
}

// What can be looked at: a copy of a number on the device meta has no value.
bool is_known_number(const TensorImpl* t) { return t->number && t->device.is_cpu() && t->storage && t->storage->data; }

template <class F>
auto with_value(const Tensor& number, F&& f) {
  return with_type(number.dtype(),
                   [&]<class T>() { return f(wide(*reinterpret_cast<const T*>(impl(number)->data()))); });
}

}  // namespace

bool fits(const Tensor& number, DType dtype) {
  if (!is_known_number(impl(number)) || number.dtype() == dtype) return true;
  return with_value(number, [&](auto v) { return holds(dtype, v); });
}

void check_fits(const Tensor& number, DType dtype, const char* operation) {
  if (fits(number, dtype)) return;
  with_value(number, [&](auto v) { does_not_fit(static_cast<std::complex<double>>(v), dtype, operation); });
}

void check_fits(const void* values, int64_t count, DType from, DType dtype, const char* operation) {
  if (from == dtype) return;
  with_type(from, [&]<class T>() {
    const auto* p = static_cast<const T*>(values);
    for (int64_t i = 0; i < count; ++i)
      if (auto v = wide(p[i]); !holds(dtype, v)) does_not_fit(static_cast<std::complex<double>>(v), dtype, operation);
  });
}

}  // namespace tutti
