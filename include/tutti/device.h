// Where a tensor lives. A CPU can be divided into logical devices (cpu:0, cpu:1, ...), each with its own share of the
// cores, so that code for many devices runs and is tested on any machine. `meta` tensors have a shape but no data.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

namespace tutti {

enum class DeviceKind : uint8_t { cpu, cuda, meta };
inline constexpr int kDeviceKinds = 3;

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int16_t index = 0;

  Device() = default;
  Device(DeviceKind kind, int index = 0) : kind(kind), index(static_cast<int16_t>(index)) {}  // NOLINT
  /// "cpu", "cpu:3", "cuda:0", "meta".
  Device(std::string_view text);                                // NOLINT
  Device(const char* text) : Device(std::string_view(text)) {}  // NOLINT

  bool is_cpu() const { return kind == DeviceKind::cpu; }
  bool is_meta() const { return kind == DeviceKind::meta; }
  friend bool operator==(Device a, Device b) { return a.kind == b.kind && a.index == b.index; }
  std::string str() const;
};

inline std::string to_string(Device device) { return device.str(); }
std::ostream& operator<<(std::ostream& out, Device device);

/// Divides this process's cores into `count` logical devices cpu:0 ... cpu:count-1. Each gets cores/count of them, and
/// at least one; there is one device until this is called. A new tensor on a device beyond them is a DeviceError; those
/// on devices that no longer exist keep their data and can still be copied away.
void set_cpu_devices(int count);
int cpu_devices();
/// How many threads an operator on this logical device may use.
int cores_of(Device device);

}  // namespace tutti
