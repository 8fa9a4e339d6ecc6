// Tensors of more elements than 32 bits count, and whether there is memory for them.
#pragma once

#include <sys/mman.h>

#include <fstream>
#include <string>

#include "base/check.h"
#include "tutti/ops.h"

namespace tutti::test {

constexpr int64_t kBeyond = (int64_t{1} << 31) + 12;  // 5 and 4 divide it

/// Whether so many bytes can be had, and two GiB more.
inline bool has_room(int64_t bytes) {
  std::ifstream file("/proc/meminfo");
  for (std::string name, line; file >> name; std::getline(file, line))
    if (int64_t kibibytes; name == "MemAvailable:" && file >> kibibytes)
      return kibibytes > (bytes >> 10) + (int64_t{2} << 20);
  return true;
}

/// Float zeros that take no memory before they are written: what is only read may be larger than the machine.
inline Tensor untouched(const Shape& sizes) {
  auto bytes = static_cast<size_t>(sizes.product()) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check<MemoryError>(memory != MAP_FAILED, "untouched", "this system gives no address space of {} bytes", bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return from_blob(memory, sizes, {.dtype = f32}, [=] { munmap(memory, bytes); });
}

}  // namespace tutti::test
