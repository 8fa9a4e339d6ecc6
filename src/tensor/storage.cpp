#include "tensor/storage.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tutti {
namespace {

static_assert(sizeof(Storage) == 64, "small data must start on a cache line");
constexpr size_t kInlineBytes = 512;

void free_data(Storage& s) noexcept {
  if (s.release) {
    (*s.release)();
    delete s.release;
    s.release = nullptr;
  } else if (!s.is_inline() && s.device.is_cpu()) {
    memory::release(s.data, s.bytes);
  }
  s.data = nullptr;
}

Storage* make_header(size_t extra, Device device) {
  size_t block = sizeof(Storage) + extra;
  auto* s = new (memory::allocate(block)) Storage;
  s->header_bytes = static_cast<uint32_t>(block);
  s->device = device;
  return s;
}

void allocate_data(Storage& s, size_t bytes) {
  check<DeviceError>(s.device.kind != DeviceKind::cuda, "allocate", "this build has no memory on {}", s.device);
  s.data = s.device.is_cpu() && bytes ? memory::allocate(bytes) : nullptr;
  s.bytes = bytes;
}

}  // namespace

Ref<Storage> make_storage(size_t bytes, Device device) {
  bool small = bytes <= kInlineBytes && device.is_cpu();
  Ref<Storage> s(make_header(small ? bytes : 0, device));
  if (small) {
    s->data = bytes ? static_cast<void*>(s.get() + 1) : nullptr;
    s->bytes = bytes;
  } else {
    allocate_data(*s, bytes);
  }
  return s;
}

Ref<Storage> make_storage(void* data, size_t bytes, Device device, std::function<void()> release) {
  Ref<Storage> s(make_header(0, device));
  s->release = new std::function<void()>(release ? std::move(release) : [] {});
  s->data = data;
  s->bytes = bytes;
  return s;
}

void resize_storage(Storage& s, size_t bytes) {
  if (bytes == s.bytes) return;
  if (s.device.is_meta()) {
    s.bytes = bytes;
    return;
  }
  check<ValueError>(
      !s.release || bytes == 0, "resize_storage",
      "memory that another library owns ({} bytes) cannot be resized to {} bytes; clone() the tensor first", s.bytes,
      bytes);
  Storage old;
  old.data = s.is_inline() ? nullptr : s.data;
  std::byte kept[kInlineBytes];
  const void* source = s.data;
  if (s.is_inline()) {
    std::memcpy(kept, s.data, s.bytes);
    source = kept;
  }
  size_t old_bytes = s.bytes;
  old.bytes = old_bytes;
  old.device = s.device;
  std::swap(old.release, s.release);
  allocate_data(s, bytes);
  if (size_t common = std::min(bytes, old_bytes)) std::memcpy(s.data, source, common);
  if (old.data || old.release) free_data(old);
}

void destroy(Storage* s) noexcept {
  if (s->data || s->release) free_data(*s);
  size_t block = s->header_bytes;
  s->~Storage();
  memory::release(s, block);
}

}  // namespace tutti
