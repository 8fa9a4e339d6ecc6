#include "comm/group/record.h"

#include <sched.h>

#include <mutex>

namespace tutti::comm {

void SpinLock::pause() { sched_yield(); }

uint64_t FlightRecord::begin(uint64_t group, uint64_t sequence, const Call& call) {
  auto now = std::chrono::steady_clock::now();
  std::lock_guard guard(lock_);
  Recorded& r = entries_[count_ % kEntries];
  r.group = group;
  r.sequence = sequence;
  r.call = brief(call);
  r.begin = now;
  r.end = {};
  return count_++;
}

void FlightRecord::end(uint64_t entry) {
  auto now = std::chrono::steady_clock::now();
  std::lock_guard guard(lock_);
  if (entry + kEntries >= count_) entries_[entry % kEntries].end = now;
}

std::optional<Recorded> FlightRecord::last(std::optional<uint64_t> group) const {
  std::lock_guard guard(lock_);
  for (uint64_t k = count_; k > 0 && k + kEntries > count_; --k) {
    const Recorded& r = entries_[(k - 1) % kEntries];
    if (!group || r.group == *group) return r;
  }
  return {};
}

std::vector<Recorded> FlightRecord::all() const {
  std::lock_guard guard(lock_);
  std::vector<Recorded> list;
  for (uint64_t k = count_ > kEntries ? count_ - kEntries : 0; k < count_; ++k) list.push_back(entries_[k % kEntries]);
  return list;
}

}  // namespace tutti::comm
