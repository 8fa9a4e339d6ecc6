// The loop that feeds tile kernels: whatever the shapes, strides and dtypes of the operands, a kernel sees contiguous
// tiles of one kind.
#pragma once

#include <span>

#include "pointwise/signature.h"

namespace tutti::pointwise {

/// Calls tile(out, in, count) over all elements of `out`, with inputs broadcast to its shape and converted to dtype
/// `native`. The tile writes elements of dtype `result`, which are converted to out's own.
void for_each_tile(Tile tile, DType native, DType result, const Tensor& out, std::span<const Tensor* const> inputs);

Kind kind_of(DType common);
DType dtype_of_kind(Kind kind);

}  // namespace tutti::pointwise
