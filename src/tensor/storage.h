// Storage: the memory that a tensor and its views share, and the version that counts writes to it.
#pragma once

#include <functional>

#include "base/memory.h"
#include "base/ref.h"
#include "tutti/context.h"
#include "tutti/device.h"

namespace tutti {

struct alignas(64) Storage : RefCounted {
  void* data = nullptr;
  size_t bytes = 0;
  std::atomic<uint64_t> version{0};
  std::atomic<const char*> last_writer{nullptr};  // the operator that wrote last: named when a saved tensor has changed
  Device device;
  uint32_t header_bytes = 0;                 // size of the block that this header (and small data) lives in
  std::function<void()>* release = nullptr;  // of memory that belongs to somebody else
  // Small data lives in the header's own block, right behind it.
  bool is_inline() const { return data && data == static_cast<const void*>(this + 1); }

  void wrote(const char* who) {
    if (context().modes & kPreserveVersion) return;
    version.fetch_add(1, std::memory_order_relaxed);
    last_writer.store(who, std::memory_order_relaxed);
  }
};

Ref<Storage> make_storage(size_t bytes, Device device);
/// Memory of somebody else, returned by `release`.
Ref<Storage> make_storage(void* data, size_t bytes, Device device, std::function<void()> release);
void resize_storage(Storage& storage, size_t bytes);
void destroy(Storage* storage) noexcept;

}  // namespace tutti
