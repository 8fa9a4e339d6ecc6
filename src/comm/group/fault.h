// The faults that a rank is to meet.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "tutti/comm/fault.h"

namespace tutti::comm {

class FaultInjector {
 public:
  /// Whether there are any: all that a call without faults pays for them.
  bool active() const { return active_.load(std::memory_order_relaxed); }
  /// Those that are for this rank; an id for remove(). Checks them.
  uint64_t add(const std::vector<Fault>& faults, uint64_t seed, int rank);
  void remove(uint64_t id);
  /// What the next call meets: all delays together, and the first of the others.
  struct Meeting {
    std::chrono::nanoseconds delay{0};
    std::optional<Fault> fault;
    int64_t call = 0;  // the fault's count of calls
  };
  Meeting next(const char* collective);

 private:
  struct Armed {
    uint64_t id;
    Fault fault;
    std::mt19937_64 random;
    int64_t calls = 0;
  };
  std::atomic<bool> active_{false};
  std::mutex mutex_;
  uint64_t ids_ = 0;
  std::vector<Armed> armed_;
};

}  // namespace tutti::comm
