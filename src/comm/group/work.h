// The inside of a Work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace tutti::comm {

class RankState;
class Transport;
class WorkState;

/// Work that is made of others.
class Chain {
 public:
  virtual ~Chain() = default;
  /// Until `result`, which it is of, is settled, or the deadline; says whether it is.
  virtual bool wait(const WorkState& result, std::optional<std::chrono::steady_clock::time_point> deadline) = 0;
  virtual bool cancel() = 0;
};

/// How long a call may take, and when that is over: fixed by whoever asks first. A call that need not wait need not
/// look at the clock; one that has to wait for its turn asks when it is made.
class TimeLimit {
 public:
  using Point = std::chrono::steady_clock::time_point;
  explicit TimeLimit(std::chrono::milliseconds timeout = {}) : timeout_(timeout) {}
  std::chrono::milliseconds timeout() const { return timeout_; }
  Point end() const {
    if (end_ == Point()) end_ = std::chrono::steady_clock::now() + timeout_;
    return end_;
  }

 private:
  std::chrono::milliseconds timeout_;
  mutable Point end_{};
};

/// Throws where this thread runs a function given to then().
void check_may_wait(const char* operation);

/// The state of an asynchronous call.
class WorkState {
 public:
  WorkState() = default;
  ~WorkState();
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;
  std::function<void()> finish;  // what the rank does with the result: copies back what was not contiguous
  /// Its time begins now.
  void set_timeout(std::chrono::milliseconds timeout) {
    limit = TimeLimit(timeout);
    limit.end();
  }
  TimeLimit limit;
  int rank = 0;                      // in the group
  uint64_t sequence = 0;             // of a collective: its place in the transport
  std::atomic<bool> posted{false};   // the sequence is known
  std::shared_ptr<RankState> owner;  // the rank, whose flight record is told the end
  uint64_t record = 0;               // in it
  static constexpr uint64_t kNoRecord = ~uint64_t{0};
  std::shared_ptr<Chain> chain;  // null: it is a call of its transport
  uint64_t noted = 0;            // of a message between processes: see RankState::call_ended
  bool is_message = false;
  int peer = -1;    // of a message: the other's rank in the group, -1 for any
  int source = -1;  // of a message that was received: the sender's rank in the group

  bool done() const { return done_.load(); }
  /// Done, and what was to be called then has returned: what wait() waits for.
  bool settled() const { return settled_.load(); }
  /// The first to say so is right: what comes later is nothing.
  void complete(std::exception_ptr error);
  std::exception_ptr error() const;
  /// Somebody has seen how it ended. What nobody has seen is thrown by the rank's next call.
  void observe() { observed_.store(true); }
  bool observed() const { return observed_.load(); }
  /// Whether functions are to be called when it is done.
  bool has_then() const {
    std::lock_guard lock(mutex_);
    return !then_.empty();
  }
  /// f runs in the context of who calls this, and what it throws becomes the work's error, if it has none.
  void then(std::function<void()> f);
  /// Its group lives until it is done, though its rank may hold neither: what was begun is not lost.
  void hold(const std::shared_ptr<Transport>& group);
  /// Not any longer; the group, for the caller to free.
  std::shared_ptr<Transport> let_go();
  std::atomic<bool> alone{false};  // see Work::leave_alone()
  std::atomic<int> waiters{0};     // threads in Work::wait(), which sees to timeouts itself

 private:
  std::atomic<bool> claimed_{false}, done_{false}, settled_{false}, observed_{false};
  std::exception_ptr error_;
  std::shared_ptr<Transport> group_;
  mutable std::mutex mutex_;
  std::vector<std::function<void()>> then_;
};

}  // namespace tutti::comm
