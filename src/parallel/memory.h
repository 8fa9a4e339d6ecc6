// Memory that a group's collectives use.
#pragma once

#include "tutti/comm/group.h"
#include "tutti/tensor.h"

namespace tutti::parallel {

/// A flat tensor of zeros in which collectives of the group are to be made.
Tensor group_zeros(int64_t elements, const Options& options, const Group& group);

}  // namespace tutti::parallel
