// Event: threads wait until something has happened, first spinning, then asleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti::comm {

using Clock = std::chrono::steady_clock;

class Event {
 public:
  /// Something happened: all who wait look again.
  void notify();
  /// Waits until ready() says yes, or the deadline; says whether it did. ready() is called many times and must be
  /// cheap. `spin`: look again and again for some microseconds before sleeping, which pays where cores are free.
  template <class Ready>
  bool wait(Clock::time_point deadline, bool spin, Ready&& ready) {
    while (true) {
      for (int i = spin ? kSpins : kYields; i > 0; --i) {
        if (ready()) return true;
        spin ? pause() : yield();
      }
      uint32_t seen = value_.load();
      sleepers_.fetch_add(1);
      bool yes = ready(), in_time = yes || sleep(seen, deadline);
      sleepers_.fetch_sub(1);
      if (yes || ready()) return true;
      if (!in_time) return false;
    }
  }

 private:
  static constexpr int kSpins = 2000, kYields = 3;
  static void pause() { __builtin_ia32_pause(); }
  static void yield();
  /// Until notify() or the deadline; false after the deadline.
  bool sleep(uint32_t seen, Clock::time_point deadline);

  std::atomic<uint32_t> value_{0}, sleepers_{0};
};

}  // namespace tutti::comm
