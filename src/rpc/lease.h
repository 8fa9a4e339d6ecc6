// Who holds references to which objects.
//
// Note [Leases]
// The owner of an object counts, for every worker, how often it has taken a lease and how often it gave one back; the
// object goes when all of these counts are zero. A worker takes one lease however many references it has. Whoever
// passes a reference on (a fork) keeps its own lease until the receiver has one:
//
//   forker → receiver   the reference, inside of some call or answer
//   receiver → owner    take        unless it has a lease already
//   owner → receiver    confirm
//   receiver → forker   accept
//   holder → owner      give back   when it has no reference any more and all its forks are accepted
//
// Messages may arrive in any order. Counts commute: making an object is the maker's first take, and one that it gives
// back before the owner has made it is a count of -1 for a while, which holds the object as any other does; what others
// want of it waits until it is made. When a worker dies its counts are struck out at all owners, and
// forks to it are let go.
//
// This file knows neither time nor threads nor messages: it is given what happens and says what to send.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace tutti::rpc::detail {

/// The maker gives it, so that it can use a reference before the object exists. Numbers count per maker and owner.
struct RefId {
  int32_t maker = -1, owner = -1;
  uint64_t number = 0;
  friend auto operator<=>(const RefId&, const RefId&) = default;
};

struct LeaseMessage {
  enum Kind : uint8_t { take = 1, confirm, gone, accept, give_back };
  Kind kind = take;
  int to = -1;
  RefId id;
  uint64_t fork = 0;  // of accept
  friend bool operator==(const LeaseMessage&, const LeaseMessage&) = default;
};

/// The leases on objects of one worker.
class LeaseOwner {
 public:
  enum class Taken { yes, gone };
  /// The object is there (or its making has failed, and the error is). The maker's first lease.
  void made(const RefId& id);
  /// Gone: there was such an object, and it is no more.
  Taken take(const RefId& id, int worker);
  void give_back(const RefId& id, int worker);
  void died(int worker);

  bool known(const RefId& id) const { return leases_.count(id) > 0; }
  bool is_made(const RefId& id) const;
  /// Objects that nobody holds any more, since this was asked the last time.
  std::vector<RefId> take_free();
  std::vector<int> holders(const RefId& id) const;
  std::vector<RefId> all() const;

 private:
  void add(const RefId& id, int worker, int amount);
  std::map<RefId, std::map<int, int>> leases_;
  /// Of one maker: all numbers below `next`, and these.
  struct Made {
    uint64_t next = 0;
    std::set<uint64_t> early;
    bool has(uint64_t number) const { return number < next || early.count(number) > 0; }
  };
  std::map<int, Made> made_;  // by maker
  std::set<int> dead_;
  std::vector<RefId> free_;
};

/// The leases that one worker has, on objects of any.
class LeaseHolder {
 public:
  explicit LeaseHolder(int me) : me_(me) {}
  RefId make(int owner);
  /// A reference came, which `forker` keeps alive for it: one more handle here.
  void receive(const RefId& id, int forker, uint64_t fork);
  /// A handle is gone.
  void drop(const RefId& id);
  /// A reference is about to go to another worker: the number of the fork, which travels along.
  uint64_t fork(const RefId& id, int to);
  void confirmed(const RefId& id, bool gone);
  void accepted(uint64_t fork);
  void died(int worker);

  /// What to send, since this was asked the last time. Messages to oneself are to be delivered too.
  std::vector<LeaseMessage> take_messages();
  size_t size() const { return held_.size(); }
  bool empty() const { return held_.empty() && forks_.empty(); }

 private:
  struct Held {
    int handles = 0, forks = 0;
    bool confirmed = false, gone = false;
    std::vector<std::pair<int, uint64_t>> to_accept;
  };
  void settle(std::map<RefId, Held>::iterator it);
  void accept(int forker, const RefId& id, uint64_t fork);

  const int me_;
  std::map<RefId, Held> held_;
  struct Fork {
    RefId id;
    int to;
  };
  std::map<uint64_t, Fork> forks_;
  uint64_t next_fork_ = 0;
  std::map<int, uint64_t> next_number_;  // by owner
  std::set<int> dead_;
  std::vector<LeaseMessage> messages_;
};

}  // namespace tutti::rpc::detail
