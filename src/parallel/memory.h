// Memory that a group's collectives use, and how parameters and gradients lie in it.
#pragma once

#include "tutti/comm/collectives.h"
#include "tutti/tensor.h"

namespace tutti::parallel {

/// Bytes. Parameters, gradients, and ranks' parts of them begin where vectors like to.
inline constexpr int64_t kAlign = 64;
/// Bytes. Smaller gradients are copied faster than their home is found.
inline constexpr int64_t kWorthAHome = 4096;
/// Its elements follow each other in memory, in an order that a view of a flat buffer can have.
inline bool lies_dense(const Tensor& t) { return t.is_contiguous() || t.is_contiguous(MemoryFormat::channels_last); }

/// A flat tensor of zeros in which collectives of the group are to be made. All of its ranks must call it.
Tensor group_zeros(int64_t elements, const Options& options, const GroupMemoryOptions& memory);

}  // namespace tutti::parallel
