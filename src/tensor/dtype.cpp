#include "tutti/dtype.h"

#include <algorithm>

namespace tutti {

std::string_view name(DType t) {
  constexpr std::string_view names[] = {"f32", "f64", "bf16", "f16",  "i8",  "u8",
                                        "i16", "i32", "i64",  "bool", "c64", "c128"};
  return names[static_cast<int>(t)];
}

DType to_complex(DType t) {
  if (is_complex(t)) return t;
  return t == DType::f64 ? DType::c128 : DType::c64;
}

DType to_real(DType t) {
  if (!is_complex(t)) return t;
  return t == DType::c128 ? DType::f64 : DType::f32;
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  Category ca = category(a), cb = category(b);
  if (ca < cb) {
    std::swap(a, b);
    std::swap(ca, cb);
  }
  // From here a is of the higher category, or of the same one.
  if (ca == Category::complex)
    return a == DType::c128 || b == DType::c128 || b == DType::f64 ? DType::c128 : DType::c64;
  if (ca != cb) return a;
  if (ca == Category::floating) {
    if (a == DType::f64 || b == DType::f64) return DType::f64;
    return DType::f32;  // f32 with a half type, or bf16 with f16
  }
  // Two different integers: the wider; u8 with i8 needs a wider signed one to hold both.
  if (size_of(a) != size_of(b)) return size_of(a) > size_of(b) ? a : b;
  return DType::i16;
}

}  // namespace tutti
