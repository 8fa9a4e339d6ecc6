// The count of references that an object carries.
#pragma once

#include <atomic>
#include <cstdint>

namespace tutti::detail {

/// Whoever has the only reference has the object to itself: nobody else can make another. So the first is taken and the
/// last let go of without an atomic addition, of which an operator and its node would pay a dozen otherwise.
struct Counted {
  std::atomic<uint32_t> references{0};
  /// Somebody who has no reference may come for one (try_retain): then the last must be seen to go.
  bool watched = false;

  /// One more, by somebody who has one.
  void retain() { references.fetch_add(1, std::memory_order_relaxed); }
  /// One more, maybe the first.
  void retain_new() {
    if (references.load(std::memory_order_relaxed) == 0)
      references.store(1, std::memory_order_relaxed);
    else
      retain();
  }
  /// One less. True: it was the last, and the object is to go.
  bool drop() {
    if (references.load(std::memory_order_acquire) == 1 && !watched) return true;
    return references.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  /// One more by somebody who has none, of a watched object; false if it is already on its way out.
  bool try_retain() {
    uint32_t count = references.load(std::memory_order_relaxed);
    while (count != 0)
      if (references.compare_exchange_weak(count, count + 1, std::memory_order_acq_rel)) return true;
    return false;
  }
};

}  // namespace tutti::detail
