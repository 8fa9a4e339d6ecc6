// Copies runs of elements between any two dtypes.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "tutti/dtype.h"

namespace tutti {

/// Strides are in elements. Complex to real keeps the real part; anything to bool asks whether it is not zero.
using Convert = void (*)(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t count);

TUTTI_ISA_DECLARE(converter, Convert, (DType to, DType from))

inline Convert converter(DType to, DType from) { return converter_pointer()(to, from); }

}  // namespace tutti
