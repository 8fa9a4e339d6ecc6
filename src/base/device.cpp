#include "tutti/device.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>

#include "base/check.h"
#include "base/cores.h"

namespace tutti {
namespace {
std::atomic<int> device_count{1};
}

Device::Device(std::string_view text) {
  std::string_view head = text.substr(0, text.find(':'));
  std::string_view tail = head.size() < text.size() ? text.substr(head.size() + 1) : std::string_view("0");
  int number = -1;
  auto [end, error] = std::from_chars(tail.data(), tail.data() + tail.size(), number);
  bool known = head == "cpu" || head == "cuda" || head == "meta";
  check<DeviceError>(known && error == std::errc() && end == tail.data() + tail.size() && number >= 0 && number < 32768,
                     "device", "'{}' is not a device; use \"cpu\", \"cpu:1\", \"cuda:0\" or \"meta\"", text);
  kind = head == "cpu" ? DeviceKind::cpu : head == "cuda" ? DeviceKind::cuda : DeviceKind::meta;
  index = static_cast<int16_t>(number);
}

std::string Device::str() const {
  if (kind == DeviceKind::meta) return "meta";
  return fmt::format("{}:{}", kind == DeviceKind::cpu ? "cpu" : "cuda", index);
}

std::vector<int> process_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int c = 0; c < CPU_SETSIZE; ++c)
      if (CPU_ISSET(c, &set)) cores.push_back(c);
  if (cores.empty()) cores.push_back(0);
  return cores;
}

namespace {
// Read once: threads that the library binds to fewer cores must not change the answer.
const std::vector<int>& all_cores() {
  static const std::vector<int> cores = process_cores();
  return cores;
}
}  // namespace

int core_count() { return static_cast<int>(all_cores().size()); }

namespace {
std::atomic<int> sharers{0};
}
void CoreSharers::set(int count) {
  sharers.fetch_add(count - count_.exchange(count, std::memory_order_relaxed), std::memory_order_relaxed);
}
int CoreSharers::all() { return sharers.load(std::memory_order_relaxed); }

std::vector<int> cores_list(Device device) {
  const auto& cores = all_cores();
  int devices = device_count.load(std::memory_order_relaxed), total = static_cast<int>(cores.size());
  int i = device.is_cpu() ? device.index % devices : 0;
  if (total <= devices) return {cores[static_cast<size_t>(i % total)]};
  int begin = total * i / devices, end = total * (i + 1) / devices;
  return {cores.begin() + begin, cores.begin() + end};
}

int cores_of(Device device) {
  int devices = device_count.load(std::memory_order_relaxed);
  int total = static_cast<int>(all_cores().size());
  if (devices == 1) return total;
  int i = device.is_cpu() ? device.index % devices : 0;
  return std::max(1, total * (i + 1) / devices - total * i / devices);
}

void set_cpu_devices(int count) {
  check<ValueError>(count >= 1 && count <= 4096, "set_cpu_devices", "{} devices asked for; give 1 to 4096", count);
  device_count = count;
}
int cpu_devices() { return device_count; }

void check_device(Device device, const char* operation) {
  check<DeviceError>(device.kind != DeviceKind::cuda, operation, "{} was asked for, but Tutti was built without CUDA",
                     device);
  int count = device_count.load(std::memory_order_relaxed);
  check<DeviceError>(!device.is_cpu() || (device.index >= 0 && device.index < count), operation,
                     "there is no {}: this process has {} cpu device{}; set_cpu_devices(n) divides it into more",
                     device, count, count == 1 ? "" : "s");
}

void check_new(const Shape& sizes, Device device, const char* operation) {
  for (int64_t s : sizes) check<ShapeError>(s >= 0, operation, "sizes must not be negative: {}", sizes);
  check_device(device, operation);
}

}  // namespace tutti
