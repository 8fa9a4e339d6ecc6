// The facts of a collective's calls between hosts, and what goes with them.
//
// Note [Facts of hosts]
// Ranks of a host show each other their facts in shared memory. The first of them, their leader, sends those of all to
// the leaders of the other hosts, and shows its host what comes: so a call takes one message between any two hosts,
// however many ranks they have. Where every rank is a host of its own, all are leaders. What a rank gives goes with its
// facts, if that is little.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/transport/exchange.h"

namespace tutti::comm {

class HostFacts {
 public:
  HostFacts(Wire& wire, const Layout& layout, const std::vector<int>& ranks, uint64_t group, ShmGroup* inner);

  /// How the group waits: on the wire, or in shared memory. has_come(k): rank k of the group has.
  using Ready = std::function<bool()>;
  using HasCome = std::function<bool(int)>;
  struct Waits {
    std::function<void(const Ready&, const HasCome&)> on_wire, in_memory;
  };
  /// Bytes that a rank may give with its facts. Numbers behind them are aligned.
  size_t most_inline() const;

  /// Tells this rank's facts to all. Returns those that are known already: of the ranks of this host.
  std::vector<std::optional<CallFacts>> tell(const Call& call, const CallFacts& mine, uint64_t number,
                                             const Waits& waits);
  /// Those of all ranks. Whoever waits on the wire is done when `also` says so too.
  std::vector<CallFacts> take(const Waits& waits, const std::function<bool(const std::vector<CallFacts>&)>& also);
  /// What came with a rank's facts.
  const std::byte* data(int rank) const { return block(rank) + CallFacts::room(size()); }

 private:
  int size() const { return static_cast<int>(ranks_.size()); }
  bool leads() const { return layout_.local()[0] == layout_.me; }
  int leader(int host) const { return layout_.members[static_cast<size_t>(host)][0]; }
  size_t block_bytes() const { return CallFacts::room(size()) + most_inline(); }
  std::byte* block(int rank) const { return blocks_.get() + static_cast<size_t>(rank) * block_bytes(); }
  std::vector<CallFacts> read_all() const;
  void share(std::span<const std::byte> mine, const Waits& waits, const std::function<void(uint64_t number)>& read);
  void send_to_hosts(uint64_t number);
  void unpack(int host, std::span<const std::byte> bundle);
  void hand_on(const Waits& waits);

  Wire& wire_;
  const Layout& layout_;
  const std::vector<int>& ranks_;
  const uint64_t group_;
  ShmGroup* const inner_;
  std::unique_ptr<std::byte[]> blocks_;          // of each rank: facts, and what goes with them
  std::vector<size_t> lengths_;                  // of what is in them
  std::vector<std::vector<std::byte>> bundles_;  // of each host, where this rank leads one
  std::vector<std::unique_ptr<Pending>> come_;   // of each host
  Pending sent_;
};

}  // namespace tutti::comm
