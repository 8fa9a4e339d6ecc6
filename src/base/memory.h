// Memory. Small blocks (tensor headers, nodes, small data) come from lists that each thread keeps, large ones from a
// cache shared by all, because fresh pages cost more than the work most operators do on them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::memory {

/// 64-byte aligned. The same size must be given back to release().
void* allocate(size_t bytes);
void release(void* block, size_t bytes) noexcept;

struct Statistics {
  int64_t bytes_in_use;  // given out and not yet returned
  int64_t bytes_cached;  // large blocks kept for reuse
};
Statistics statistics();
/// Returns cached large blocks, and the calling thread's small ones, to the system.
void empty_cache();

/// Base for classes whose objects live in the small-block lists.
struct Pooled {
  static void* operator new(size_t bytes) { return allocate(bytes); }
  static void operator delete(void* block, size_t bytes) noexcept { release(block, bytes); }
};

}  // namespace tutti::memory
