// A worker: what it calls, what it is called, who the others are.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <source_location>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "io/descriptor.h"
#include "rpc/executor.h"
#include "rpc/lease.h"
#include "rpc/link.h"
#include "rpc/message.h"
#include "rpc/references.h"
#include "rpc/shuffle.h"
#include "tutti/rpc/call.h"
#include "tutti/rpc/session.h"

namespace tutti::rpc::detail {

/// What a worker tells the others when they meet.
struct Introduction {
  std::string name, address, key;
  int64_t id = 0;  // of the agent in its process, see Agent::find_here
  int64_t pid = 0;
  std::string process, host, memory;  // what tells them from all others
  TUTTI_FIELDS(name, address, key, id, pid, process, host, memory)
};

/// A call that waits for its answer.
struct Pending {
  std::shared_ptr<FutureCore> future;
  int peer = -1;
  size_t bytes = 0;
  Clock::time_point deadline;
  std::chrono::nanoseconds timeout{};
  const char* key = nullptr;   // of the function
  const char* file = nullptr;  // of the call, where it is known
  unsigned line = 0;
  std::string made_at;  // of the object whose method it is
  std::shared_ptr<void> autograd;
  /// "called at file.cpp:12"
  std::string where() const { return where(file, line, made_at); }
  static std::string where(const char* file, unsigned line, const std::string& made_at);
};

/// How a call is to be made.
struct CallPlan {
  int to = -1;
  std::chrono::nanoseconds timeout{};  // zero: the session's
  bool waits = false;
  const char* key = nullptr;
  const char* file = nullptr;
  unsigned line = 0;
  std::string made_at;  // of the object whose method it is
};

class Agent final : public FutureOrigin, public std::enable_shared_from_this<Agent> {
 public:
  /// Meets the others.
  static std::shared_ptr<Agent> start(const SessionOptions& options);
  /// The calling rank's; null where it has none.
  static std::shared_ptr<Agent> find();
  /// The same; ValueError where it has none.
  static std::shared_ptr<Agent> current(const char* operation);
  Agent(SessionOptions options, Group group, Context context);
  ~Agent() override;

  int me() const { return me_; }
  int size() const { return static_cast<int>(workers_.size()); }
  const std::vector<Worker>& workers() const { return workers_; }
  const Worker& worker(int number) const { return workers_[static_cast<size_t>(number)]; }
  /// By name or rank; ValueError lists those that there are.
  int number_of(const To& to) const;
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  std::vector<Leak> shutdown(const ShutdownOptions& options);
  bool is_shut_down() const { return stopped_.load(); }
  Session::Statistics statistics() const;
  References& references() { return references_; }

  // ---- What it calls
  void call(const CallPlan& plan, Message message, const std::shared_ptr<FutureCore>& result);
  std::string name_of(const FutureCore& future) const override;
  void cancelled(const FutureCore& future) override;
  void expired(FutureCore& future) override;
  bool wait(FutureCore& future, Clock::time_point until) { return executor_.wait(future, until); }
  /// False: the session is over.
  bool post(std::function<void()> f);
  /// The same on another worker of this process; false also where it is none.
  bool post_to(int number, std::function<void()> f);
  /// Sends to a worker, by whatever leads there; one that is no more gets nothing.
  void send(int to, Message message);
  void send_lease(const LeaseMessage& message);

  // ---- For distributed autograd
  /// What it keeps for this worker: made by whoever asks first, gone when the session ends.
  std::shared_ptr<void> companion(const std::function<std::shared_ptr<void>()>& make);
  /// Calls f(rank in the world, why) for every worker that is lost from now on, on whatever thread notices.
  void on_lost(std::function<void(int rank, const std::string& why)> f);

  // ---- What others say
  void deliver(Message message);
  /// Nothing more will come from that worker: everything that waits for it fails.
  void lost(int peer, const std::string& why);
  bool is_lost(int peer) const;
  /// A call that came in has been answered.
  void answered(int from, uint64_t number);
  bool is_cancelled(int from, uint64_t number) const;

 private:
  struct Peer {
    std::weak_ptr<Agent> here;  // where it is in this process
    bool local = false;
    int64_t pid = 0;
    bool on_host = false;
    bool lost = false;
    std::string why;
    size_t in_flight = 0;                              // bytes of calls that are not answered
    std::vector<std::shared_ptr<FutureCore>> waiting;  // for less of them
  };
  void meet(const std::vector<Introduction>& all);
  void make_links(std::unique_ptr<Opening> shm, const std::vector<Introduction>& all);
  void await_credit(const CallPlan& plan, size_t bytes, Clock::time_point deadline);
  std::optional<Pending> take_pending(uint64_t number);
  void release_credit(int peer, size_t bytes);
  void dispatch(int to, Message message);
  void release_held(bool all);
  void complete(Message message);
  void handle(Message message);
  void take_lease(const Message& message);
  void note_processed() { processed_.fetch_add(1); }
  std::exception_ptr loss(int peer, const Pending& pending) const;
  void run_monitor(const std::stop_token& stop);
  void expire_calls();
  bool wait_for_idle(Clock::time_point until);
  bool wait_for_all(Clock::time_point until);
  void stop();

  const SessionOptions options_;
  Group group_;
  Context context_;  // in which calls are run
  int me_ = -1;
  std::vector<Worker> workers_;
  std::unordered_map<std::string, int> by_name_;
  std::unordered_map<int, int> by_rank_;
  int64_t id_ = 0;
  Executor executor_;
  References references_;
  std::unique_ptr<Links> link_;
  Shuffle shuffle_;

  mutable std::mutex mutex_;
  std::vector<Peer> peers_;
  std::unordered_map<uint64_t, Pending> pending_;
  uint64_t next_ = 1;
  std::map<std::pair<int, uint64_t>, bool> running_;  // calls of others: whether they have been cancelled
  std::shared_ptr<FutureCore> idle_;                  // finished when nothing is left to do
  std::shared_ptr<void> companion_;
  std::vector<std::function<void(int, const std::string&)>> on_lost_;

  // All that is sent is processed somewhere: when the sums are equal, nothing is on its way.
  std::atomic<uint64_t> sent_{0}, processed_{0};
  std::atomic<bool> stopped_{false};
  io::Descriptor monitor_wake_;
  std::jthread monitor_;
};

/// The functions that messages can name.
const Function* find_function(uint64_t id);
/// ValueError where two functions cannot be told apart.
void check_functions();
/// "forward(Tensor)", from a key.
std::string function_name(const char* key);

/// The call that the calling thread is running; null: none.
struct Running {
  Agent* agent = nullptr;
  int from = -1;
  uint64_t number = 0;
};
const Running* running();
/// Inside, it is running this one.
/// While it lives, calls of this thread do not wait until the callee has done some of those before: it may be this
/// thread that is to do them.
class NoWaitForCredit {
 public:
  NoWaitForCredit();
  ~NoWaitForCredit();
  NoWaitForCredit(const NoWaitForCredit&) = delete;
  NoWaitForCredit& operator=(const NoWaitForCredit&) = delete;

 private:
  const bool outer_;
};

class RunningGuard {
 public:
  explicit RunningGuard(const Running* call);
  ~RunningGuard();
  RunningGuard(const RunningGuard&) = delete;
  RunningGuard& operator=(const RunningGuard&) = delete;

 private:
  const Running* const outer_;
};

}  // namespace tutti::rpc::detail
