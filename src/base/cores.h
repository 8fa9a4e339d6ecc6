// Which cores belong to which logical device.
#pragma once

#include <vector>

#include "tutti/device.h"

namespace tutti {

/// The cores this process may run on.
std::vector<int> process_cores();
/// The cores of a logical device; never empty.
std::vector<int> cores_list(Device device);

}  // namespace tutti
