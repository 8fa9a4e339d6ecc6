#include "comm/group/record.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "base/check.h"

namespace tutti::comm {
namespace {

constexpr size_t kEntries = 512, kMostEntries = size_t{1} << 24;

size_t entries_wanted() {
  const char* text = std::getenv("TUTTI_RECORD");
  if (!text || !*text) return kEntries;
  std::string_view view = text;
  size_t value = 0;
  auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  check<ValueError>(error == std::errc() && end == view.data() + view.size() && value >= 1 && value <= kMostEntries,
                    "world",
                    "the environment variable TUTTI_RECORD is '{}': it is the number of calls to remember, at most {}",
                    text, kMostEntries);
  return value;
}

}  // namespace

void SpinLock::pause() { sched_yield(); }

const char* name(CallStatus status) {
  constexpr const char* names[] = {"waiting", "done", "failed"};
  return names[static_cast<size_t>(status)];
}

FlightRecord::FlightRecord(size_t entries)
    : mask_(std::bit_ceil(entries ? entries : entries_wanted()) - 1),
      entries_(std::make_unique_for_overwrite<Entry[]>(mask_ + 1)) {}

uint64_t FlightRecord::add(uint64_t group, uint64_t* next, int peer, int64_t tag, const Call& call, bool blocking) {
  int64_t count = 0;
  for (const Piece& p : call.in.empty() ? call.out : call.in) count += p.count;
  size_t dims = std::min(call.shape.size(), kDims);
  int64_t now = ticks_now();
  std::lock_guard guard(lock_);
  Entry& e = entries_[count_ & mask_];
  e.group = group;
  e.sequence = next ? (*next)++ : 0;
  e.begin = now;
  e.wait_begin = blocking ? now : 0;
  e.bytes = count * static_cast<int64_t>(size_of(call.dtype));
  e.tag = tag;
  e.file = call.place.file_name();
  e.purpose = call.purpose;
  e.line = call.place.line();
  e.tensors = static_cast<uint32_t>(std::max(call.in.size(), call.out.size()));
  e.root = call.root;
  e.peer = peer;
  e.kind = call.kind;
  e.dtype = call.dtype;
  e.op = call.op;
  e.status = CallStatus::waiting;
  e.dims = static_cast<uint8_t>(dims);
  for (size_t d = 0; d < dims; ++d) e.shape[d] = call.shape[d];
  return count_++;
}

uint64_t FlightRecord::begin(uint64_t group, uint64_t& next, const Call& call, bool blocking) {
  return add(group, &next, -1, 0, call, blocking);
}
uint64_t FlightRecord::begin_message(uint64_t group, int peer, int64_t tag, const Call& call) {
  return add(group, nullptr, peer, tag, call, false);
}

void FlightRecord::begin_wait(uint64_t entry) {
  int64_t now = ticks_now();
  std::lock_guard guard(lock_);
  if (entry + mask_ + 1 < count_) return;  // forgotten meanwhile
  Entry& e = entries_[entry & mask_];
  if (e.status == CallStatus::waiting && e.wait_begin == 0) e.wait_begin = now;
}

void FlightRecord::cancel_wait(uint64_t entry) {
  std::lock_guard guard(lock_);
  if (entry + mask_ + 1 < count_) return;
  Entry& e = entries_[entry & mask_];
  if (e.status == CallStatus::waiting) e.wait_begin = 0;
}

void FlightRecord::end(uint64_t entry, CallStatus status) {
  int64_t now = ticks_now();
  std::lock_guard guard(lock_);
  if (entry + mask_ + 1 < count_) return;  // forgotten meanwhile
  entries_[entry & mask_].end = now;
  entries_[entry & mask_].status = status;
}

Recorded FlightRecord::read(uint64_t index, const TickScale& scale) const {
  const Entry& e = entries_[index & mask_];
  Brief call{e.kind, e.dtype, e.op,     e.root, e.tensors, Shape(std::span<const int64_t>(e.shape, e.dims)),
             e.file, e.line,  e.purpose};
  return {.group = e.group,
          .sequence = e.sequence,
          .call = std::move(call),
          .bytes = e.bytes,
          .peer = e.peer,
          .tag = e.tag,
          .begin = scale.time(e.begin),
          .end = e.status == CallStatus::waiting ? std::chrono::steady_clock::time_point() : scale.time(e.end),
          .wait_begin = e.wait_begin == 0 ? std::nullopt : std::optional(scale.time(e.wait_begin)),
          .status = e.status};
}

std::optional<Recorded> FlightRecord::find(uint64_t entry) const {
  TickScale scale;
  std::lock_guard guard(lock_);
  if (entry >= count_ || entry + mask_ + 1 < count_) return {};
  return read(entry, scale);
}

std::optional<Recorded> FlightRecord::last(std::optional<uint64_t> group) const {
  TickScale scale;
  std::lock_guard guard(lock_);
  for (uint64_t k = count_; k > 0 && k + mask_ >= count_; --k) {
    const Entry& e = entries_[(k - 1) & mask_];
    if (!group || (e.group == *group && e.kind != Kind::send && e.kind != Kind::recv)) return read(k - 1, scale);
  }
  return {};
}

std::vector<Recorded> FlightRecord::all() const {
  TickScale scale;
  std::lock_guard guard(lock_);
  std::vector<Recorded> list;
  for (uint64_t k = count_ > mask_ ? count_ - mask_ - 1 : 0; k < count_; ++k) list.push_back(read(k, scale));
  return list;
}

uint64_t FlightRecord::count() const {
  std::lock_guard guard(lock_);
  return count_;
}

}  // namespace tutti::comm
