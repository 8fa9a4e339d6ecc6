// Numbers on their way into a dtype: what it cannot hold is an error, as it is for item<T>(), and not another number.
// Casts, which are asked for by name, still wrap.
#pragma once

#include <cstdint>

#include "tutti/tensor.h"

namespace tutti {

/// Whether `dtype` can hold the number; all tensors that are not made from a C++ number pass. Fractions are cut off for
/// integers; floats may be rounded, but not to infinity.
bool fits(const Tensor& number, DType dtype);
/// Throws a ValueError that names `operation` unless it does.
void check_fits(const Tensor& number, DType dtype, const char* operation);
/// The same of `count` values of the dtype `from`.
void check_fits(const void* values, int64_t count, DType from, DType dtype, const char* operation);

}  // namespace tutti
