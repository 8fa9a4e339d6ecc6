// How large collectives go between hosts: see Note [Collectives of hosts].
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/group/facts.h"
#include "comm/transport/shm.h"
#include "comm/transport/wire.h"

namespace tutti::comm {

/// Of a rank or host, where vectors want theirs unsigned.
inline size_t index(int64_t k) { return static_cast<size_t>(k); }
inline std::byte* bytes_at(const Piece& piece) { return static_cast<std::byte*>(piece.data); }

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
  std::function<void()> count_round;  // this rank cannot go on without what others send now
  std::function<std::chrono::milliseconds()> time_left;
};

/// A call that is carried out between hosts. It may begin before the others' facts are known (Note [Tentative
/// messages]): with what the call itself says of what the others give and take.
class Exchange {
 public:
  /// How many numbers of messages one may use.
  static constexpr uint64_t kNumbers = uint64_t{1} << 24;

  virtual ~Exchange() = default;
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  /// Sends the first data. All ranks of a host do, or none.
  virtual void begin() = 0;
  /// Whether the others' first data have come.
  virtual bool has_first() const = 0;
  /// The facts are known, and fit.
  virtual void confirm(const std::vector<CallFacts>& calls) = 0;
  /// The rest, when they are confirmed. A wait for the first data was the caller's, if that began.
  virtual void run() = 0;
  /// The facts are known, and do not fit: afterwards nothing is on its way to or from the call's memory.
  virtual void abandon() = 0;
};
/// `calls`: what is known of them, see assume().
std::unique_ptr<Exchange> make_exchange(const ExchangeContext& context, const Call& call,
                                        const std::vector<CallFacts>& calls);

/// The same for scatter and all_to_all, which need no facts.
std::unique_ptr<Exchange> make_parts_exchange(const ExchangeContext& context, const Call& call);

/// The calls of all ranks of a group, of which only some are known, if all others' are what the known ones say of them.
/// None: the known ones do not fit.
std::optional<std::vector<CallFacts>> assume(const std::vector<std::optional<CallFacts>>& known);

}  // namespace tutti::comm
