// The flight record: what a rank called lately, in fixed memory, always on.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <vector>

#include "comm/group/call.h"

namespace tutti::comm {

/// A lock for a few instructions.
class SpinLock {
 public:
  void lock() {
    while (flag_.exchange(true, std::memory_order_acquire)) pause();
  }
  void unlock() { flag_.store(false, std::memory_order_release); }

 private:
  static void pause();
  std::atomic<bool> flag_{false};
};

struct Recorded {
  uint64_t group = 0, sequence = 0;  // of messages: the peer, and the tag
  std::optional<Brief> call;
  std::chrono::steady_clock::time_point begin{}, end{};  // end before begin: it has not ended
  bool ended() const { return end >= begin; }
};

/// Written by the threads of one rank, read by any.
class FlightRecord {
 public:
  static constexpr size_t kEntries = 128;
  /// Returns what end() wants to know.
  uint64_t begin(uint64_t group, uint64_t sequence, const Call& call);
  void end(uint64_t entry);
  /// The newest of a group, or of all.
  std::optional<Recorded> last(std::optional<uint64_t> group = {}) const;
  /// All that are still there, oldest first.
  std::vector<Recorded> all() const;

 private:
  mutable SpinLock lock_;
  std::array<Recorded, kEntries> entries_;
  uint64_t count_ = 0;
};

}  // namespace tutti::comm
