#include "tensor/convert.h"

#include <cstring>

namespace tutti {
namespace {

template <class T>
inline constexpr bool is_complex_type =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

template <class To, class From>
inline To convert_one(From v) {
  if constexpr (std::is_same_v<To, From>)
    return v;
  else if constexpr (is_complex_type<From>) {
    if constexpr (is_complex_type<To>)
      return To(static_cast<typename To::value_type>(v.real()), static_cast<typename To::value_type>(v.imag()));
    else if constexpr (std::is_same_v<To, bool>)
      return v.real() != 0 || v.imag() != 0;
    else
      return convert_one<To>(v.real());
  } else if constexpr (is_complex_type<To>) {
    return To(convert_one<typename To::value_type>(v), 0);
  } else if constexpr (std::is_same_v<To, bool>) {
    return static_cast<float>(v) != 0;
  } else if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
    // Through i64, so that values beyond the narrow type wrap in the same way on every machine.
    if constexpr (std::is_same_v<From, double>)
      return static_cast<To>(static_cast<int64_t>(v));
    else
      return static_cast<To>(static_cast<int64_t>(static_cast<float>(v)));
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    return To(static_cast<float>(v));
  } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return static_cast<To>(static_cast<float>(v));
  } else {
    return static_cast<To>(v);
  }
}
template <>
inline bool convert_one<bool, double>(double v) {
  return v != 0;
}
template <>
inline bool convert_one<bool, int64_t>(int64_t v) {
  return v != 0;
}
template <>
inline bool convert_one<bool, int32_t>(int32_t v) {
  return v != 0;
}

template <class To, class From>
void convert_run(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t count) {
  auto* out = static_cast<To*>(to);
  const auto* in = static_cast<const From*>(from);
  if (to_stride == 1 && from_stride == 1) {
    if constexpr (std::is_same_v<To, From>)
      std::memcpy(out, in, static_cast<size_t>(count) * sizeof(To));
    else
      for (int64_t i = 0; i < count; ++i) out[i] = convert_one<To, From>(in[i]);
  } else if (to_stride == 1 && from_stride == 0) {
    To v = convert_one<To, From>(*in);
    for (int64_t i = 0; i < count; ++i) out[i] = v;
  } else {
    for (int64_t i = 0; i < count; ++i) out[i * to_stride] = convert_one<To, From>(in[i * from_stride]);
  }
}

}  // namespace

TUTTI_ISA_DEFINE(converter, Convert, (DType to, DType from)) {
  return with_type(
      to, [&]<class To>() { return with_type(from, [&]<class From>() -> Convert { return &convert_run<To, From>; }); });
}

}  // namespace tutti
