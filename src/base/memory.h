// Memory. Small blocks (tensor headers, nodes, small data) come from lists that each thread keeps, large ones from a
// cache shared by all, because fresh pages cost more than the work most operators do on them. What users may know of it
// is in tutti/memory.h.
#pragma once

#include <cstddef>

#include "tutti/memory.h"  // IWYU pragma: export

namespace tutti::memory {

/// 64-byte aligned. The same size must be given back to release().
void* allocate(size_t bytes);
void release(void* block, size_t bytes) noexcept;

/// Base for classes whose objects live in the small-block lists.
struct Pooled {
  static void* operator new(size_t bytes) { return allocate(bytes); }
  static void operator delete(void* block, size_t bytes) noexcept { release(block, bytes); }
};

}  // namespace tutti::memory
