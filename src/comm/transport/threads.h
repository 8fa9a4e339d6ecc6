// Ranks that are threads of one process: their memory is simply readable.
//
// Note [Collectives of threads]
// Every rank posts its part of a collective into the operation of that number; who comes last sees to it that all parts
// fit and makes the jobs. Jobs are cut into chunks, and every rank that waits takes chunks until none is left: there is
// one pass over the data, whoever is late delays only the beginning, and a rank without a core costs nothing. Which
// rank computes a chunk does not show in the result. An operation begins when the one before it in its group has ended.
// If nobody waits (all parts are asynchronous), small ones are done by whoever came last, others by a thread that the
// process keeps for that.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/event.h"
#include "comm/group/call.h"
#include "tutti/comm/group.h"

namespace tutti::comm {

class ThreadGroup;

/// The state of an asynchronous call.
class WorkState {
 public:
  std::function<void()> finish;  // what the rank does with the result: copies back what was not contiguous
  std::chrono::milliseconds timeout{};
  int rank = 0;
  uint64_t sequence = 0;

  bool done() const { return done_.load(); }
  /// Done, and what was to be called then has returned: what wait() waits for.
  bool settled() const { return settled_.load(); }
  void complete(std::exception_ptr error);
  std::exception_ptr error() const { return error_; }
  void then(std::function<void()> f);

 private:
  std::atomic<bool> done_{false}, settled_{false};
  std::exception_ptr error_;
  std::mutex mutex_;
  std::vector<std::function<void()>> then_;
};

/// All ranks that were started together.
class World : public std::enable_shared_from_this<World> {
 public:
  World(int size, std::chrono::milliseconds timeout);
  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// Whether waiting threads should spin: there is a core for each.
  bool spin() const { return spin_; }

  /// The first failure ends all that waits, now and later.
  void fail(int rank, const std::string& text);
  bool failed() const { return failed_.load(); }
  /// Throws RankFailure when a rank failed.
  void check() const;
  /// A rank's body has returned.
  void ended(int rank);
  bool has_ended(int rank) const { return ended_[static_cast<size_t>(rank)].load(); }

  /// The group of these ranks, the count-th with this name; made by whoever asks first.
  std::shared_ptr<ThreadGroup> group(const std::vector<int>& ranks, uint64_t parent, uint64_t count);

 private:
  void notify_all();
  const int size_;
  const std::chrono::milliseconds timeout_;
  const bool spin_;
  std::atomic<bool> failed_{false};
  std::vector<std::atomic<bool>> ended_;
  mutable std::mutex mutex_;
  int failed_rank_ = -1;
  std::string failure_;
  std::map<std::tuple<std::vector<int>, uint64_t, uint64_t>, std::weak_ptr<ThreadGroup>> groups_;
};

class ThreadGroup : public std::enable_shared_from_this<ThreadGroup> {
 public:
  ThreadGroup(std::shared_ptr<World> world, std::vector<int> ranks, uint64_t id);
  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  uint64_t id() const { return id_; }
  World& world() const { return *world_; }

  /// This rank's part of the next collective; returns when it is done.
  void run(int rank, Call call, std::chrono::milliseconds timeout);
  /// The same, without waiting: `work` is completed later.
  void start(int rank, Call call, const std::shared_ptr<WorkState>& work);
  /// Helps until the work is done, or the time is over; says whether it is.
  bool wait(WorkState& work, Clock::time_point deadline, bool give_up);

  void send(int rank, int to, int64_t tag, const Call& call, Clock::time_point deadline);
  int receive(int rank, int from, int64_t tag, const Call& call, Clock::time_point deadline);

  void notify() { event_.notify(); }
  /// How often this rank has made a subgroup of these ranks.
  uint64_t count_subgroup(int rank, const std::vector<int>& ranks);

 private:
  enum Phase : uint32_t { open, started, complete, abandoned };
  struct Operation {
    std::atomic<uint64_t> turn{0};  // which of the sequences that share this entry may post
    std::vector<Call> calls;
    std::vector<std::shared_ptr<WorkState>> works;  // of asynchronous parts
    std::vector<std::atomic<uint8_t>> posted;
    std::atomic<int> arrived{0}, departed{0};
    std::atomic<bool> ready{false};
    std::atomic<uint32_t> phase{open};
    std::optional<std::string> mismatch;
    Plan plan;
    std::vector<int64_t> first_chunk;  // of each job, and the number of all
    int64_t chunk_elements = 0;
    std::atomic<int64_t> chunks{0};
    std::atomic<uint64_t> ticket{0};  // sequence << 32 | next chunk: see claim()
    std::atomic<int64_t> chunks_done{0};
  };
  struct LastCall {
    std::mutex mutex;
    std::optional<Brief> call;
    uint64_t sequence = 0;
    Clock::time_point when;
  };
  struct Message {
    int from;
    int64_t tag;
    const Call* call;        // of a sender that waits
    std::vector<char> copy;  // of a small message
    DType dtype;
    int64_t count;
    std::atomic<bool>* taken;  // set when a waiting sender may go on
  };
  struct Mailbox {
    std::mutex mutex;
    std::vector<std::unique_ptr<Message>> messages;
  };

  static constexpr uint64_t kOperations = 16;
  Operation& operation(uint64_t sequence) { return operations_[sequence % kOperations]; }
  uint64_t post(int rank, Call call, std::shared_ptr<WorkState> work, Clock::time_point deadline);
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
  [[noreturn]] void time_out(int rank, uint64_t sequence, std::chrono::milliseconds timeout);
  std::string missing_text(uint64_t sequence);

  const std::shared_ptr<World> world_;
  const std::vector<int> ranks_;
  const uint64_t id_;
  std::array<Operation, kOperations> operations_;
  std::vector<std::atomic<uint64_t>> next_;  // sequence of each rank's next call
  std::atomic<uint64_t> completed_{0};
  Event event_;
  std::vector<LastCall> last_;
  std::vector<Mailbox> mailboxes_;
  std::mutex subgroups_mutex_;
  std::map<std::pair<int, std::vector<int>>, uint64_t> subgroups_;
};

/// A rank's own handle on a group.
class RankGroup {
 public:
  RankGroup(std::shared_ptr<ThreadGroup> group, int rank) : group(std::move(group)), rank(rank) {}
  const std::shared_ptr<ThreadGroup> group;
  const int rank;  // in the group; -1: not a member
};

}  // namespace tutti::comm
