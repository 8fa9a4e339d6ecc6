#include "comm/transport/region.h"

namespace tutti::comm {

void Regions::add(std::shared_ptr<Region> region, int rank) {
  std::lock_guard lock(mutex_);
  const std::byte* part = region->part(rank);
  regions_.emplace(part, std::move(region));
}

void Regions::remove(const std::byte* part) {
  std::shared_ptr<Region> region;  // unmapped after the lock
  std::lock_guard lock(mutex_);
  if (auto found = regions_.find(part); found != regions_.end()) {
    region = std::move(found->second);
    regions_.erase(found);
  }
}

Regions::Place Regions::find(const Call& call) const {
  const Pieces& pieces = call.kind == Kind::broadcast || call.in.empty() ? call.out : call.in;
  if (pieces.empty()) return {};
  if (call.kind == Kind::all_reduce)
    for (size_t t = 0; t < call.in.size(); ++t)
      if (call.in[t].data != call.out[t].data) return {};
  auto element = static_cast<int64_t>(size_of(call.dtype));
  auto at = [](const Piece& p) { return static_cast<const std::byte*>(p.data); };
  const std::byte *begin = nullptr, *end = nullptr;
  for (const Piece& p : pieces) {
    if (p.count == 0) continue;
    if (!begin) begin = end = at(p);
    if (at(p) != end) return {};
    end += p.count * element;
  }
  std::lock_guard lock(mutex_);
  auto next = regions_.upper_bound(begin);
  if (!begin || next == regions_.begin()) return {};
  auto& [part, region] = *std::prev(next);
  if (end > part + region->bytes) return {};
  return {region->number, begin - part};
}

std::shared_ptr<Regions::Region> Regions::get(uint64_t number) const {
  std::lock_guard lock(mutex_);
  for (auto& [part, region] : regions_)
    if (region->number == number) return region;
  return nullptr;
}

}  // namespace tutti::comm
