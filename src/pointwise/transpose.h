// Copies between tensors whose memory runs along different dims.
#pragma once

#include "tutti/tensor.h"

namespace tutti::pointwise {

/// Copies elements of one dtype where neighbours in `to` are not neighbours in `from`, by square blocks: every line of
/// memory is read and written once, whole. False: it is not such a copy, and nothing was done.
bool copy_transposed(const Tensor& to, const Tensor& from);

}  // namespace tutti::pointwise
