// Event: threads, or processes that share its memory, wait until something has happened: first spinning, then asleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti::comm {

using Clock = std::chrono::steady_clock;

class Event {
 public:
  /// Something happened: all who wait look again. What they look at must have been changed by a sequentially consistent
  /// store: either they see it before they sleep, or this sees that they sleep.
  void notify() {
    if (sleepers_.load() > 0) wake();
  }
  /// The same, of what was changed by any store.
  void notify_after_fence() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    notify();
  }
  /// Waits until ready() says yes, or the deadline; says whether it did. ready() is called many times and must be
  /// cheap. `spin`: look again and again for some microseconds before sleeping, which pays where cores are free.
  template <class Ready>
  bool wait(Clock::time_point deadline, bool spin, Ready&& ready) {
    while (true) {
      if (look(spin, ready)) return true;
      uint32_t seen = value_.load();
      sleepers_.fetch_add(1);
      bool yes = ready(), in_time = yes || sleep(seen, deadline);
      sleepers_.fetch_sub(1);
      if (yes || ready()) return true;
      if (!in_time) return false;
    }
  }
  /// Only the first part: looks for as long as that is cheaper than to sleep.
  template <class Ready>
  static bool look(bool spin, Ready&& ready) {
    for (int i = spin ? kSpins : kYields; i > 0; --i) {
      if (ready()) return true;
      spin ? pause() : yield();
    }
    return false;
  }

 private:
  static constexpr int kSpins = 2000, kYields = 3;
  static void pause() { __builtin_ia32_pause(); }
  static void yield();
  void wake();
  /// Until notify() or the deadline; false after the deadline.
  bool sleep(uint32_t seen, Clock::time_point deadline);

  std::atomic<uint32_t> value_{0}, sleepers_{0};
};

}  // namespace tutti::comm
