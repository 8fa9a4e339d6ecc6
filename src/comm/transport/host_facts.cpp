#include "comm/transport/host_facts.h"

#include <algorithm>
#include <cstring>

#include "comm/transport/streams.h"

namespace tutti::comm {

HostFacts::HostFacts(Wire& wire, const Layout& layout, const std::vector<int>& ranks, uint64_t group, ShmGroup* inner)
    : wire_(wire),
      layout_(layout),
      ranks_(ranks),
      group_(group),
      inner_(inner),
      blocks_(std::make_unique<std::byte[]>(ranks.size() * block_bytes())),
      lengths_(ranks.size()),
      bundles_(index(layout.hosts())) {
  for (int h = 0; h < layout.hosts(); ++h) come_.push_back(std::make_unique<Pending>());
}

size_t HostFacts::most_inline() const {
  size_t share = (64 << 10) / static_cast<size_t>(std::max(1, size() - 1));
  return std::clamp<size_t>(share / 64 * 64, 8 << 10, 64 << 10);
}

std::vector<std::optional<CallFacts>> HostFacts::tell(const Call& call, const CallFacts& mine, uint64_t number,
                                                      const Waits& waits) {
  if (leads())
    for (int h = 0; h < layout_.hosts(); ++h) {
      if (h == layout_.here()) continue;
      auto& bundle = bundles_[index(h)];
      bundle.resize(layout_.members[index(h)].size() * (sizeof(uint64_t) + block_bytes()));
      wire_.receive({group_, number, ranks_[index(leader(h))], Channel::facts}, bundle.data(), bundle.size(),
                    *come_[index(h)]);
    }
  std::byte* to = block(layout_.me);
  mine.write(to, size());
  size_t bytes = CallFacts::room(size());
  if (mine.header.bytes <= static_cast<int64_t>(most_inline()) && mine.header.bytes > 0)
    for (const Piece& p : given_by(call, layout_.me)) {
      size_t count = static_cast<size_t>(p.count) * size_of(call.dtype);
      if (count) std::memcpy(to + bytes, p.data, count);
      bytes += count;
    }
  lengths_[index(layout_.me)] = bytes;
  const auto& local = layout_.local();
  if (inner_)
    share({to, bytes}, waits, [&](uint64_t shown) {
      for (size_t j = 0; j < local.size(); ++j) {
        if (local[j] == layout_.me) continue;
        auto from = inner_->shared(static_cast<int>(j), shown);
        std::memcpy(block(local[j]), from.data(), from.size());
        lengths_[index(local[j])] = from.size();
      }
    });
  if (leads()) send_to_hosts(number);
  std::vector<std::optional<CallFacts>> known(ranks_.size());
  for (int k : local) known[index(k)] = CallFacts::read(block(k), size());
  return known;
}

// All ranks of this host show something, and read it.
void HostFacts::share(std::span<const std::byte> mine, const Waits& waits, const std::function<void(uint64_t)>& read) {
  uint64_t number = inner_->share(mine);
  const auto& local = layout_.local();
  auto shown = [&](size_t j) { return inner_->has_shared(static_cast<int>(j), number); };
  size_t first = 0;
  auto all = [&] {
    while (first < local.size() && shown(first)) ++first;
    return first == local.size();
  };
  auto has_come = [&](int k) {
    auto at = std::find(local.begin(), local.end(), k);
    return at != local.end() && shown(static_cast<size_t>(at - local.begin()));
  };
  waits.in_memory(all, has_come);
  read(number);
}

void HostFacts::send_to_hosts(uint64_t number) {
  auto& mine = bundles_[index(layout_.here())];
  mine.clear();
  for (int k : layout_.local()) {
    uint64_t length = lengths_[index(k)];
    const auto* head = reinterpret_cast<const std::byte*>(&length);
    mine.insert(mine.end(), head, head + sizeof length);
    mine.insert(mine.end(), block(k), block(k) + length);
  }
  // Beginning with the next, so that not all send to the same at once.
  for (int step = 1; step < layout_.hosts(); ++step) {
    int to = leader((layout_.here() + step) % layout_.hosts());
    wire_.send(ranks_[index(to)], {group_, number, ranks_[index(layout_.me)], Channel::facts}, mine.data(), mine.size(),
               sent_);
  }
}

// Bundles come from ranks, which are trusted with numbers and not with memory.
void HostFacts::unpack(int host, std::span<const std::byte> bundle) {
  for (int k : layout_.members[index(host)]) {
    uint64_t length = 0;
    if (bundle.size() < sizeof length) break;
    std::memcpy(&length, bundle.data(), sizeof length);
    bundle = bundle.subspan(sizeof length);
    length = std::min<uint64_t>({length, bundle.size(), block_bytes()});
    std::memcpy(block(k), bundle.data(), length);
    lengths_[index(k)] = length;
    bundle = bundle.subspan(length);
  }
}

std::vector<CallFacts> HostFacts::read_all() const {
  std::vector<CallFacts> calls;
  for (int k = 0; k < size(); ++k) calls.push_back(CallFacts::read(block(k), size()));
  return calls;
}

std::vector<CallFacts> HostFacts::take(const Waits& waits,
                                       const std::function<bool(const std::vector<CallFacts>&)>& also) {
  std::vector<CallFacts> calls;
  if (leads()) {
    size_t first = 0;
    auto ready = [&] {
      while (first < come_.size() && come_[first]->done()) ++first;
      if (first < come_.size() || !sent_.done()) return false;
      if (calls.empty()) {
        for (int h = 0; h < layout_.hosts(); ++h)
          if (h != layout_.here()) unpack(h, bundles_[index(h)]);
        calls = read_all();
      }
      return inner_ || also(calls);
    };
    auto has_come = [&](int k) { return come_[index(layout_.host_of[index(k)])]->done(); };
    waits.on_wire(ready, has_come);
  }
  if (inner_) hand_on(waits);
  return leads() ? calls : read_all();
}

// The leader shows its host what came from the others.
void HostFacts::hand_on(const Waits& waits) {
  std::vector<std::byte> all;
  if (leads())
    for (int k = 0; k < size(); ++k) {
      if (layout_.host_of[index(k)] == layout_.here()) continue;
      uint64_t length = lengths_[index(k)];
      const auto* head = reinterpret_cast<const std::byte*>(&length);
      all.insert(all.end(), head, head + sizeof length);
      all.insert(all.end(), block(k), block(k) + length);
    }
  // The first says how many bytes there are.
  uint64_t total = all.size(), done = 0;
  std::vector<std::byte> come, chunk;
  do {
    chunk.clear();
    if (leads()) {
      size_t bytes = std::min<size_t>(ShmGroup::kShare - sizeof total, all.size() - done);
      const auto* head = reinterpret_cast<const std::byte*>(&total);
      chunk.insert(chunk.end(), head, head + sizeof total);
      chunk.insert(chunk.end(), all.begin() + static_cast<int64_t>(done),
                   all.begin() + static_cast<int64_t>(done + bytes));
    }
    share(chunk, waits, [&](uint64_t number) {
      auto from = inner_->shared(0, number);
      std::memcpy(&total, from.data(), sizeof total);
      from = from.subspan(sizeof total);
      done += from.size();
      if (!leads()) come.insert(come.end(), from.begin(), from.end());
    });
  } while (done < total);
  if (leads()) return;
  const std::byte* from = come.data();
  for (int k = 0; k < size(); ++k) {
    if (layout_.host_of[index(k)] == layout_.here()) continue;
    uint64_t length = 0;
    std::memcpy(&length, from, sizeof length);
    std::memcpy(block(k), from + sizeof length, length);
    lengths_[index(k)] = length;
    from += sizeof length + length;
  }
}

}  // namespace tutti::comm
