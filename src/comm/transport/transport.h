// What carries a group's calls from rank to rank: one class for each way (threads of a process, processes of a host,
// ...).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/event.h"
#include "comm/group/call.h"
#include "comm/group/rank.h"
#include "comm/group/work.h"

namespace tutti::comm {

class SparseQueue;

/// "1.5 s"
std::string seconds(std::chrono::nanoseconds time);

/// A group, as its transport sees it. Ranks are those of the group; `ranks()` says who they are in the world. The
/// memory of a call belongs to the transport until the call has ended; a call that cannot end throws, and leaves the
/// memory.
class Transport : public std::enable_shared_from_this<Transport> {
 public:
  explicit Transport(std::vector<int> ranks) : ranks_(std::move(ranks)) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  virtual const char* name() const = 0;
  /// The same on all of its ranks, and no other group's of this world.
  virtual uint64_t id() const = 0;
  /// Of calls that name none.
  virtual std::chrono::milliseconds timeout() const = 0;
  /// How often this rank has waited for others in collectives, where it could not go on without them. Of what it costs
  /// to find mismatches, a count says more than a time.
  uint64_t rounds() const { return rounds_.load(std::memory_order_relaxed); }

  /// This rank's part of the next collective; returns when it is done.
  virtual void run(int rank, Call&& call, std::chrono::milliseconds timeout) = 0;
  /// The same, without waiting: `work` is completed later.
  virtual void start(int rank, Call call, const std::shared_ptr<WorkState>& work) = 0;
  /// Helps until the work is settled, or the deadline; says whether it is. Without `give_up` the deadline is the end of
  /// the work's time: the world fails, and this throws.
  virtual bool wait(WorkState& work, Clock::time_point deadline, bool give_up) = 0;
  /// The work's time is over: if nobody carries it out yet, it ends with TimeoutError, and the world fails. False: it
  /// is being carried out, and will end by itself. Waits for nobody (but asks other hosts what they do, for half a
  /// second).
  virtual bool expire(WorkState& work) = 0;
  /// Ends work that still needs a rank which has not come with CancelledError; false: all have. A collective that one
  /// rank has cancelled can never be, so the others fail.
  virtual bool cancel(WorkState& work) = 0;

  /// Messages. Those between two ranks with the same tag arrive in order; `from` -1 takes from any.
  virtual void start_send(int rank, int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) = 0;
  virtual void start_receive(int rank, int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) = 0;

  /// This rank's part of memory that collectives of the group use in place: all ranks ask for the same number of bytes,
  /// in the same order, and agree afterwards whether all got it. Null: the transport has no better memory than others,
  /// or there is none left.
  virtual std::shared_ptr<std::byte> memory([[maybe_unused]] int rank, [[maybe_unused]] size_t bytes) { return {}; }
  /// All ranks have asked: what was needed to find each other's parts can go.
  virtual void memory_found() {}

  /// The group of these ranks of this group, in this order. `rank` calls it: -1 where it is none of them.
  virtual std::shared_ptr<Transport> subgroup(int rank, const std::vector<int>& members) = 0;

  /// This rank cannot go on because of an error, and will not be met again: the others are told, and the world has
  /// failed. `kind` is the error's class.
  virtual void fail([[maybe_unused]] int rank, [[maybe_unused]] const std::string& kind,
                    [[maybe_unused]] const std::string& text) {}
  /// For those who wait for ranks in ways of their own: throws RankFailure if one is known to have ended.
  virtual void look_after_ranks() {}
  /// Ends this rank as a fault on purpose: its process, unless a rank is less than that.
  virtual void kill(int rank, const std::string& why);

 protected:
  /// Who should do something for a message, in the world: those that its errors tell of, which are not many.
  std::vector<int> peers_of(const WorkState& message) const;
  void count_round() { rounds_.fetch_add(1, std::memory_order_relaxed); }

 private:
  const std::vector<int> ranks_;
  std::atomic<uint64_t> rounds_{0};
};

/// A rank's own handle on a group: the one way by which calls reach the transport. Here they meet injected faults and
/// are written into the flight record.
class RankGroup {
 public:
  RankGroup(std::shared_ptr<Transport> group, int rank, std::shared_ptr<RankState> state);
  const std::shared_ptr<Transport> group;
  const int rank;  // in the group; -1: not a member
  const std::shared_ptr<RankState> state;

  std::mutex sparse_mutex;
  std::shared_ptr<SparseQueue> sparse;  // see Note [Sparse all_reduce in steps]

  void run(Call&& call, std::chrono::milliseconds timeout);
  void start(Call call, const std::shared_ptr<WorkState>& work);
  void send(int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work);
  void receive(int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work);

 private:
  bool meet_faults(const Call& call);
  template <class Begin>
  void carry_out(uint64_t entry, const Begin& begin);
  int world_rank(int rank) const { return rank < 0 ? -1 : group->ranks()[static_cast<size_t>(rank)]; }
  const uint64_t id_;
  uint64_t next_ = 0;  // collective's number; guarded by the flight record
};

}  // namespace tutti::comm
