// The twelve element types, and the C++ types that hold them.
#pragma once

#include <bit>
#include <complex>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include "tutti/shape.h"

namespace tutti {

enum class DType : uint8_t { f32, f64, bf16, f16, i8, u8, i16, i32, i64, boolean, c64, c128 };
inline constexpr int kDTypes = 12;

inline constexpr DType f32 = DType::f32, f64 = DType::f64, bf16 = DType::bf16, f16 = DType::f16, i8 = DType::i8,
                       u8 = DType::u8, i16 = DType::i16, i32 = DType::i32, i64 = DType::i64, boolean = DType::boolean,
                       c64 = DType::c64, c128 = DType::c128;

/// A category decides type promotion: a tensor of a higher category pulls the others up.
enum class Category : uint8_t { boolean, integer, floating, complex };

constexpr Category category(DType t) {
  if (t == DType::boolean) return Category::boolean;
  if (t >= DType::c64) return Category::complex;
  return t >= DType::i8 ? Category::integer : Category::floating;
}
constexpr bool is_floating(DType t) { return category(t) == Category::floating; }
constexpr bool is_complex(DType t) { return category(t) == Category::complex; }
constexpr bool is_integer(DType t) { return category(t) == Category::integer; }
/// Only these can carry gradients.
constexpr bool is_differentiable(DType t) { return is_floating(t) || is_complex(t); }

namespace detail {
inline constexpr uint8_t dtype_sizes[] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 1, 8, 16};
}
constexpr size_t size_of(DType t) { return detail::dtype_sizes[static_cast<int>(t)]; }
std::string_view name(DType t);
inline std::string to_string(DType t) { return std::string(name(t)); }
std::ostream& operator<<(std::ostream& out, DType t);

/// The common type of two by the field's category rules: f32+i64 → f32, i8+u8 → i16, bf16+f16 → f32, f64+c64 → c128.
DType promote(DType a, DType b);
/// f32 ↔ c64, f64 ↔ c128 (half types pair with c64).
DType to_complex(DType t);
DType to_real(DType t);

struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  BFloat16(float value) {  // NOLINT: numbers convert as the built-in ones do; round to nearest even
    auto u = std::bit_cast<uint32_t>(value);
    bits = (u & 0x7fffffff) > 0x7f800000 ? static_cast<uint16_t>((u >> 16) | 0x40)
                                         : static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }  // NOLINT
};

struct Half {
  uint16_t bits = 0;
  Half() = default;
  Half(float value) {  // NOLINT: round to nearest even, denormals kept
    auto u = std::bit_cast<uint32_t>(value);
    auto sign = static_cast<uint16_t>((u >> 16) & 0x8000);
    u &= 0x7fffffff;
    if (u >= 0x47800000) {  // infinity, NaN, or too large
      bits = static_cast<uint16_t>(sign | (u > 0x7f800000 ? 0x7e00 | ((u >> 13) & 0x3ff) : 0x7c00));
    } else if (u < 0x38800000) {  // denormal: let the float unit round at the right place
      float shifted = std::bit_cast<float>(u) + 0.5f;
      bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
    } else {
      bits = static_cast<uint16_t>(sign | ((u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13));
    }
  }
  operator float() const {  // NOLINT
    uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | ((rest & 0x3ff) << 13));
    if (rest >= 0x400) return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000));
    float small = static_cast<float>(rest) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(small));
  }
};

template <class T>
struct DTypeOf;
#define TUTTI_DTYPE_OF(type, value)       \
  template <>                             \
  struct DTypeOf<type> {                  \
    static constexpr DType dtype = value; \
  };
TUTTI_DTYPE_OF(float, DType::f32)
TUTTI_DTYPE_OF(double, DType::f64)
TUTTI_DTYPE_OF(BFloat16, DType::bf16)
TUTTI_DTYPE_OF(Half, DType::f16)
TUTTI_DTYPE_OF(int8_t, DType::i8)
TUTTI_DTYPE_OF(uint8_t, DType::u8)
TUTTI_DTYPE_OF(int16_t, DType::i16)
TUTTI_DTYPE_OF(int32_t, DType::i32)
TUTTI_DTYPE_OF(int64_t, DType::i64)
TUTTI_DTYPE_OF(long long, DType::i64)
TUTTI_DTYPE_OF(bool, DType::boolean)
TUTTI_DTYPE_OF(std::complex<float>, DType::c64)
TUTTI_DTYPE_OF(std::complex<double>, DType::c128)
#undef TUTTI_DTYPE_OF
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::dtype;
/// A C++ type that some dtype holds as it is.
template <class T>
concept Element = requires { DTypeOf<T>::dtype; };

/// Calls `f.template operator()<T>()` with the C++ type of `t`.
template <class F>
decltype(auto) with_type(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::bf16:
      return f.template operator()<BFloat16>();
    case DType::f16:
      return f.template operator()<Half>();
    case DType::i8:
      return f.template operator()<int8_t>();
    case DType::u8:
      return f.template operator()<uint8_t>();
    case DType::i16:
      return f.template operator()<int16_t>();
    case DType::i32:
      return f.template operator()<int32_t>();
    case DType::i64:
      return f.template operator()<int64_t>();
    case DType::boolean:
      return f.template operator()<bool>();
    case DType::c64:
      return f.template operator()<std::complex<float>>();
    case DType::c128:
      return f.template operator()<std::complex<double>>();
  }
  __builtin_unreachable();
}

}  // namespace tutti
