// Parameters that are cut over ranks, as far as optim needs to know of them.
#pragma once

#include "tutti/tensor.h"

namespace tutti::optim {

/// Whether a parameter is one rank's part of something larger. Who cuts parameters says how to find out; before that
/// nobody asks.
using PartFinder = bool (*)(const Tensor& parameter);
void set_part_finder(PartFinder finder);

}  // namespace tutti::optim
