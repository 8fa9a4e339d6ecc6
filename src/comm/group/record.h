// The flight record: what a rank called lately, in fixed memory, always on.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "base/ticks.h"
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

enum class CallStatus : uint8_t { waiting, done, failed };
const char* name(CallStatus status);

struct Recorded {
  uint64_t group = 0, sequence = 0;
  Brief call;
  int64_t bytes = 0;  // that the rank gives, or takes where it gives nothing
  int peer = -1;      // of a message, which has no sequence: the other's rank in the world, -1 for any
  int64_t tag = 0;
  std::chrono::steady_clock::time_point begin{}, end{};
  std::optional<std::chrono::steady_clock::time_point> wait_begin{};  // none: the rank has not waited for it
  CallStatus status = CallStatus::waiting;
  bool is_message() const { return call.kind == Kind::send || call.kind == Kind::recv; }
  bool ended() const { return status != CallStatus::waiting; }
};

/// Written by the threads of one rank, read by any.
class FlightRecord {
 public:
  /// Room for this many calls (rounded up to a power of two); 0: as TUTTI_RECORD says.
  explicit FlightRecord(size_t entries = 0);
  /// Records a collective and returns the entry to pass to end(). `next` is its sequence, which this counts.
  /// `blocking`: the caller waits for it from now on.
  uint64_t begin(uint64_t group, uint64_t& next, const Call& call, bool blocking = false);
  /// The same for a message.
  uint64_t begin_message(uint64_t group, int peer, int64_t tag, const Call& call);
  /// The rank waits for a call from now on (unless it has before), or has given up waiting.
  void begin_wait(uint64_t entry);
  void cancel_wait(uint64_t entry);
  void end(uint64_t entry, CallStatus status = CallStatus::done);
  std::optional<Recorded> find(uint64_t entry) const;
  /// The newest collective of a group, or the newest call of all.
  std::optional<Recorded> last(std::optional<uint64_t> group = {}) const;
  /// All that are still there, oldest first.
  std::vector<Recorded> all() const;
  /// How many calls there were.
  uint64_t count() const;

 private:
  static constexpr size_t kDims = 8;
  struct Entry {
    uint64_t group, sequence;
    int64_t begin, end, wait_begin;  // in ticks; 0: the rank has not waited
    int64_t bytes, tag;
    const char *file, *purpose;  // both live as long as the program
    uint32_t line, tensors;
    int32_t root, peer;
    Kind kind;
    DType dtype;
    Reduce op;
    CallStatus status;
    uint8_t dims;
    int64_t shape[kDims];
  };
  uint64_t add(uint64_t group, uint64_t* next, int peer, int64_t tag, const Call& call, bool blocking);
  Recorded read(uint64_t index, const TickScale& scale) const;
  const uint64_t mask_;
  const std::unique_ptr<Entry[]> entries_;  // not touched until used, so that idle ranks cost nothing
  mutable SpinLock lock_;
  uint64_t count_ = 0;
};

}  // namespace tutti::comm
