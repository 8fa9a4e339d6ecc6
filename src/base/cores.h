// Which cores belong to which logical device.
#pragma once

#include <atomic>
#include <vector>

#include "tutti/device.h"
#include "tutti/shape.h"

namespace tutti {

/// The cores this process may run on.
std::vector<int> process_cores();
/// How many there were when the library first asked: threads that it has bound to fewer get the same answer.
int core_count();
/// Ranks beside this one that compute on this process's cores, be they threads of it or processes: told by whoever
/// makes a world, for as long as that lives.
class CoreSharers {
 public:
  explicit CoreSharers(int count = 0) { set(count); }
  ~CoreSharers() { set(0); }
  CoreSharers(const CoreSharers&) = delete;
  CoreSharers& operator=(const CoreSharers&) = delete;
  void set(int count);
  /// Of all worlds.
  static int all();

 private:
  std::atomic<int> count_{0};
};

/// The cores of a logical device; never empty.
std::vector<int> cores_list(Device device);

/// Throws a DeviceError unless new tensors can be made there.
void check_device(Device device, const char* operation);
/// The same, and a ShapeError if a size is negative.
void check_new(const Shape& sizes, Device device, const char* operation);

}  // namespace tutti
