// Which cores belong to which logical device.
#pragma once

#include <vector>

#include "tutti/device.h"
#include "tutti/shape.h"

namespace tutti {

/// The cores this process may run on.
std::vector<int> process_cores();
/// How many there were when the library first asked: threads that it has bound to fewer get the same answer.
int core_count();
/// The cores of a logical device; never empty.
std::vector<int> cores_list(Device device);

/// Throws a DeviceError unless new tensors can be made there.
void check_device(Device device, const char* operation);
/// The same, and a ShapeError if a size is negative.
void check_new(const Shape& sizes, Device device, const char* operation);

}  // namespace tutti
