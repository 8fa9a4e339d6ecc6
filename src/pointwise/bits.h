// Logic on bools and small integers as they lie in memory, where widening them to i64 would cost eight times the bytes.
#pragma once

#if !defined(__CUDACC__)
#include "pointwise/signature.h"

namespace tutti::pointwise {

/// What is done with the bits of two elements, or with those of one.
enum class Bits : uint8_t { both, either, differ, same, complement };

/// Of elements of this dtype: bool and integers of up to 32 bits; null for the others. Bools stay 0 and 1.
Tile bits_tile(Bits what, DType dtype);
/// Of truth values: bools only.
Tile truth_tile(Bits what, DType dtype);

}  // namespace tutti::pointwise
#else
namespace tutti {
enum class DType : uint8_t;
namespace pointwise {
using Tile = void (*)(void* out, const void* const* in, int64_t count);
}
}  // namespace tutti
#endif
