// Ranks that are threads of one process: their memory is simply readable.
//
// Note [Collectives of threads]
// Every rank posts its part of a collective into the operation of that number; who comes last sees to it that all parts
// fit and makes the jobs. Jobs are cut into chunks, and every rank that waits takes chunks until none is left: there is
// one pass over the data, whoever is late delays only the beginning, and a rank without a core costs nothing. Which
// rank computes a chunk does not show in the result. An operation begins when the one before it in its group has ended.
// If nobody waits (all parts are asynchronous), small ones are done by whoever came last, others by a thread that the
// process keeps for that. Small ones that are waited for take the short way of Note [Small collectives].
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/cores.h"
#include "comm/group/facts.h"
#include "comm/group/waits.h"
#include "comm/transport/mailbox.h"
#include "comm/transport/small.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

class ThreadGroup;

/// All ranks that were started together.
class World : public std::enable_shared_from_this<World> {
 public:
  World(int size, std::chrono::milliseconds timeout);
  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// Whether waiting threads should spin: there is a core for each.
  bool spin() const { return spin_; }

  /// The first failure ends all that waits, now and later.
  void fail(int rank, const std::string& text, bool deadlock = false);
  bool failed() const { return failed_.load(); }
  /// As it is told to a rank.
  std::exception_ptr failure(int rank) const;
  /// Throws RankFailure when a rank failed.
  void check() const;
  /// A rank's body has returned.
  void ended(int rank);
  bool has_ended(int rank) const { return ended_[static_cast<size_t>(rank)].load(); }
  bool any_ended() const { return any_ended_.load(std::memory_order_relaxed); }
  WaitBoard& waits() { return waits_; }
  const std::shared_ptr<RankState>& state(int rank) const { return states_[static_cast<size_t>(rank)]; }

  /// The group of these ranks, the count-th with this name; made by whoever asks first. It lives at least until all
  /// members have asked, since one may have sent something to another and be gone.
  std::shared_ptr<ThreadGroup> group(const std::vector<int>& ranks, uint64_t parent, uint64_t count,
                                     bool member = true);

 private:
  std::vector<std::shared_ptr<ThreadGroup>> groups() const;
  const int size_;
  const std::chrono::milliseconds timeout_;
  const bool spin_;
  const CoreSharers sharers_;
  std::atomic<bool> failed_{false};
  std::vector<std::atomic<bool>> ended_;
  std::atomic<bool> any_ended_{false};
  std::atomic<int> ended_count_{0};
  std::vector<std::shared_ptr<RankState>> states_;
  std::vector<RankWaits> wait_memory_;
  WaitBoard waits_;
  mutable std::mutex mutex_;
  int failed_rank_ = -1;
  std::string failure_;
  bool deadlock_ = false;
  struct Entry {
    std::weak_ptr<ThreadGroup> group;
    std::shared_ptr<ThreadGroup> held;
    size_t asked = 0;  // members
  };
  std::map<std::tuple<std::vector<int>, uint64_t, uint64_t>, Entry> groups_;
};

class ThreadGroup : public Transport {
 public:
  ThreadGroup(std::shared_ptr<World> world, std::vector<int> ranks, uint64_t id);
  const char* name() const override { return "threads"; }
  uint64_t id() const override { return id_; }
  void fail(int rank, const std::string& /*kind*/, const std::string& text) override { kill(rank, text); }
  void kill(int rank, const std::string& why) override;
  std::chrono::milliseconds timeout() const override { return world_->timeout(); }

  void run(int rank, Call&& call, std::chrono::milliseconds timeout) override;
  void start(int rank, Call call, const std::shared_ptr<WorkState>& work) override;
  bool wait(WorkState& work, Clock::time_point deadline, bool give_up) override;
  bool expire(WorkState& work) override;
  bool cancel(WorkState& work) override;
  void start_send(int rank, int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) override;
  void start_receive(int rank, int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work) override;
  std::shared_ptr<Transport> subgroup(int rank, const std::vector<int>& members) override;

  void notify() { event_.notify(); }
  /// The world has failed: ends all work that has not begun.
  std::exception_ptr failure_of(const WorkState& work) const {
    return world_->failure(ranks()[static_cast<size_t>(work.rank)]);
  }
  void abort();

 private:
  enum Phase : uint64_t { open, started, complete, abandoned };
  /// A phase of one operation, not of a later one that uses the same entry.
  static constexpr uint64_t word(uint64_t sequence, Phase phase) { return sequence << 2 | phase; }
  struct Operation {
    std::atomic<uint64_t> turn{0};    // which of the sequences that share this entry may post
    std::atomic<uint64_t> number{0};  // of the call in the group, those that went the short way included
    std::vector<Call> calls;
    std::vector<CallFacts> facts;
    std::vector<std::shared_ptr<WorkState>> works;  // of asynchronous parts
    std::atomic<int> arrived{0}, departed{0};
    std::atomic<bool> ready{false};
    std::atomic<uint64_t> phase{open};    // with the sequence: see word()
    std::atomic<bool> waited_for{false};  // by a rank whose part is not asynchronous
    std::atomic<bool> small{false};       // whoever starts it carries it out
    std::optional<std::string> mismatch;
    Plan plan;
    std::vector<int64_t> first_chunk;  // of each job, and the number of all
    int64_t chunk_elements = 0;
    std::atomic<int64_t> chunks{0};
    std::atomic<uint64_t> ticket{0};  // sequence << 32 | next chunk: see claim()
    std::atomic<int64_t> chunks_done{0};
  };
  struct alignas(64) RankState {
    std::timed_mutex posting;       // held from taking a number until the call is known to the others
    std::atomic<uint64_t> next{0};  // number of the rank's next call
    uint64_t next_long = 0;         // the same, of calls that go the long way
    SpinLock works_lock;
    std::vector<std::shared_ptr<WorkState>> works;  // asynchronous ones that may not be done
  };

  static constexpr uint64_t kOperations = 16;
  Operation& operation(uint64_t sequence) { return operations_[sequence % kOperations]; }
  enum class Small { done, goes_long };
  Small run_small(int rank, uint64_t number, const Call& call, const SmallShape& shape, const TimeLimit& limit);
  std::unique_lock<std::timed_mutex> take_turn(int rank, const Call& call, const TimeLimit& limit);
  /// Lets go of `posting` when the others know of the call.
  uint64_t post(int rank, uint64_t number, Call call, std::shared_ptr<WorkState> work, Clock::time_point deadline,
                std::unique_lock<std::timed_mutex> posting);
  void prepare(Operation& op, uint64_t sequence);
  void cut(Operation& op);
  void try_start(uint64_t sequence);
  bool help();
  std::optional<int64_t> claim(Operation& op, uint64_t sequence);
  void run_chunks(Operation& op, uint64_t sequence);
  void run_chunk(Operation& op, int64_t chunk);
  void finish(Operation& op, uint64_t sequence);
  void depart(Operation& op, uint64_t sequence, int count);
  bool leave_early(Operation& op, uint64_t sequence);
  bool wait_message(WorkState& work, Clock::time_point deadline, bool give_up);
  void wait_long(int rank, uint64_t sequence, uint64_t number, const TimeLimit& limit);
  /// Like event_.wait; ranks that wait long look whether they do so in a circle (Note [Cycles of waiting ranks]).
  template <class Ready, class Wait>
  bool wait_long_time(int rank, Clock::time_point deadline, bool spin, const Ready& ready, const Wait& wait);
  /// For whom a call of this rank waits.
  WaitFor missing(WaitFor wait) const;
  /// Fails the world if a rank that has not come to this call has ended.
  bool find_ended(uint64_t number, const Call& call);
  bool find_ended(uint64_t number, const std::function<Brief()>& find_call);
  std::string late_text(int rank, uint64_t number, const Call& call, std::chrono::milliseconds timeout);
  [[noreturn]] void time_out(int rank, uint64_t number, const Call& call, std::chrono::milliseconds timeout);
  bool has_ended(const WorkState& work) const;
  /// Of ranks other than this one.
  std::string missing_text(int rank, uint64_t number);
  std::string last_calls(int rank, bool message) const;

  const std::shared_ptr<World> world_;
  const uint64_t id_;
  std::array<Operation, kOperations> operations_;
  std::vector<RankState> states_;
  std::unique_ptr<RankSlots[]> slot_memory_;
  Slots slots_;
  std::atomic<uint64_t> completed_{0};
  Event event_;
  Mailboxes mailboxes_;
  std::mutex subgroups_mutex_;
  std::map<std::pair<int, std::vector<int>>, uint64_t> subgroups_;  // how often a rank has made each
};

}  // namespace tutti::comm
