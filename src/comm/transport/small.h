// Collectives of a few kilobytes, between threads or processes that share memory.
//
// Note [Small collectives]
// Every rank writes its header, and what it gives, into a slot of its own, stamps it with the number of the call, waits
// for the stamps of all others, and makes its result from what lies in the slots: one line of memory from each rank to
// each other, nobody in the middle, nothing to take back. A rank that has stamped call k has read all of call k-1, so
// two buffers are enough. Calls that are not small, or not made to wait for, stamp their header as such: who sees one
// goes the long way with all others, and so does everybody when the signatures differ, since there the calls are
// compared in full. Whether a call was small is thus known to all ranks alike. (Where ranks that agree may differ in
// this, they tell what the long way wants before they stamp, and do not wait twice.)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/group/call.h"

namespace tutti::comm {

inline constexpr int kSmallRanks = 8;           // more would read too much from too many
inline constexpr size_t kSmallBytes = 8 << 10;  // that a rank gives
inline constexpr uint64_t kHeaders = 32;        // more than the calls that a rank can be ahead of another

/// What of a call must be equal on all ranks for it to be carried out from the slots.
struct SmallShape {
  uint64_t signature;
  size_t bytes;  // that this rank gives
};
/// Collectives of which a rank cannot know whether others give, or take, as much as it does: there a call may be small
/// for one rank and not for another.
bool may_be_uneven(Kind kind);
/// None: the call is too large, or uneven.
std::optional<SmallShape> small_shape(const Call& call, int rank, int size);

struct alignas(64) SlotHeader {
  static constexpr size_t kInline = 32;
  std::atomic<uint64_t> stamp{0};  // the call's number + 1, when all else is written
  uint64_t signature = 0;
  double factor = 1;
  uint32_t bytes = 0;
  bool small = false;
  uint8_t buffer = 0;
  bool may_be_cancelled = false;
  alignas(32) std::byte data[kInline];  // numbers of any dtype
};
static_assert(sizeof(SlotHeader) == 64 && std::atomic<uint64_t>::is_always_lock_free);

/// One rank's part of the shared memory; all zeros is a good beginning.
struct RankSlots {
  SlotHeader headers[kHeaders];
  alignas(64) std::byte buffers[2][kSmallBytes];
  uint64_t published = 0;  // how often a buffer was used; the rank's own
};

/// The slots of all ranks of a group.
class Slots {
 public:
  Slots() = default;
  Slots(RankSlots* slots, int size) : slots_(slots), size_(size) {}
  explicit operator bool() const { return slots_ != nullptr; }

  /// Where publish_small() writes what is too long for a header.
  template <class Reserve>
  void reserve(int rank, const Reserve& f) const {
    f(slots_[rank].buffers[0], sizeof(RankSlots) - sizeof(RankSlots::headers));
  }
  /// This rank's part of call number `sequence`: as a small one, or as one that goes the long way. After the former,
  /// the caller looks whether the others are there, has a fence, and wakes those who sleep: in this order the stamp
  /// need not have arrived everywhere before anything else is done.
  void publish_small(int rank, uint64_t sequence, const Call& call, const SmallShape& shape,
                     bool may_be_cancelled = false);
  void publish_long(int rank, uint64_t sequence);
  /// The first rank from `first` on that has not stamped this call yet; size() when all have.
  int missing(uint64_t sequence, int first) const {
    while (first < size_ && header(first, sequence).stamp.load(std::memory_order_acquire) == sequence + 1) ++first;
    return first;
  }
  /// When nobody is missing: whether some rank said so.
  bool may_be_cancelled(uint64_t sequence) const {
    for (int k = 0; k < size_; ++k)
      if (header(k, sequence).may_be_cancelled) return true;
    return false;
  }
  /// When nobody is missing: makes this rank's result. False: the call goes the long way.
  bool finish(int rank, uint64_t sequence, const Call& call, const SmallShape& shape) const;

 private:
  SlotHeader& header(int rank, uint64_t sequence) const { return slots_[rank].headers[sequence % kHeaders]; }
  RankSlots* slots_ = nullptr;
  int size_ = 0;
};

}  // namespace tutti::comm
