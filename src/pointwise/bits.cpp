#include "pointwise/bits.h"

namespace tutti::pointwise {
namespace {

template <class U, Bits what>
void run_tile(void* out, const void* const* in, int64_t count) {
  auto* to = static_cast<U*>(out);
  const auto* x = static_cast<const U*>(in[0]);
  // The second operand, where there is one; the loop never reads it otherwise.
  const auto* y = what == Bits::complement ? x : static_cast<const U*>(in[1]);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (what == Bits::both)
      to[i] = static_cast<U>(x[i] & y[i]);
    else if constexpr (what == Bits::either)
      to[i] = static_cast<U>(x[i] | y[i]);
    else if constexpr (what == Bits::differ)
      to[i] = static_cast<U>(x[i] ^ y[i]);
    else if constexpr (what == Bits::same)
      to[i] = static_cast<U>(x[i] ^ y[i] ^ 1);
    else
      to[i] = static_cast<U>(~x[i]);
  }
}

// The complement of a truth value is not that of its bits.
void negate_truth(void* out, const void* const* in, int64_t count) {
  auto* to = static_cast<uint8_t*>(out);
  const auto* x = static_cast<const uint8_t*>(in[0]);
  for (int64_t i = 0; i < count; ++i) to[i] = x[i] ^ 1;
}

template <class U>
Tile tile_of(Bits what) {
  switch (what) {
    case Bits::both:
      return &run_tile<U, Bits::both>;
    case Bits::either:
      return &run_tile<U, Bits::either>;
    case Bits::differ:
      return &run_tile<U, Bits::differ>;
    case Bits::same:
      return &run_tile<U, Bits::same>;
    default:
      return &run_tile<U, Bits::complement>;
  }
}

}  // namespace

Tile truth_tile(Bits what, DType dtype) {
  if (dtype != DType::boolean) return nullptr;
  return what == Bits::complement ? &negate_truth : tile_of<uint8_t>(what);
}

Tile bits_tile(Bits what, DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return truth_tile(what, dtype);
    case DType::u8:
    case DType::i8:
      return tile_of<uint8_t>(what);
    case DType::i16:
      return tile_of<uint16_t>(what);
    case DType::i32:
      return tile_of<uint32_t>(what);
    default:
      return nullptr;
  }
}

}  // namespace tutti::pointwise
