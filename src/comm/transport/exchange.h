// How large collectives go between hosts: see Note [Collectives of hosts].
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/group/facts.h"
#include "comm/transport/shm.h"
#include "comm/transport/wire.h"

namespace tutti::comm {

/// Who of a group is where.
struct Layout {
  std::vector<int> host_of;               // of each rank of the group
  std::vector<std::vector<int>> members;  // of each host
  int me = 0;

  int hosts() const { return static_cast<int>(members.size()); }
  int here() const { return host_of[static_cast<size_t>(me)]; }
  const std::vector<int>& local() const { return members[static_cast<size_t>(here())]; }
  /// Who handles slice k for a host.
  int carrier(int host, int k) const {
    const auto& m = members[static_cast<size_t>(host)];
    return host_of[static_cast<size_t>(k)] == host ? k : m[static_cast<size_t>(k) % m.size()];
  }
};

/// What an exchange needs of its group.
struct ExchangeContext {
  const Layout& layout;
  const std::vector<int>& ranks;  // in the world
  Wire& wire;
  uint64_t group;
  uint64_t first_part;  // the number of the exchange's first messages
  ShmGroup* inner;      // the members on this host; null: only this one
  std::function<void(const Pending&)> await;
  std::function<std::chrono::milliseconds()> time_left;
};

/// Carries out a call whose facts are known and fit. Returns how many numbers of messages it has used, the same on all
/// ranks.
uint64_t exchange(const ExchangeContext& context, const Call& call, const std::vector<CallFacts>& calls);

}  // namespace tutti::comm
