// Memory that a group's collectives use.
#pragma once

#include "tutti/comm/collectives.h"
#include "tutti/tensor.h"

namespace tutti::parallel {

/// A flat tensor of zeros in which collectives of the group are to be made. All of its ranks must call it.
Tensor group_zeros(int64_t elements, const Options& options, const GroupMemoryOptions& memory);

}  // namespace tutti::parallel
