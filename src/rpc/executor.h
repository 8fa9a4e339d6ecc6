// The threads of a session: they run calls that came in, move messages, and help while they wait.
//
// Note [Threads of a session]
// Every call that comes in gets a thread, as long as there are fewer than the session may have; a thread with nothing
// to do waits for the next. When there are no more to have, a call that waits runs others on top of its stack; when the
// stack is short, a thread more is started after all.
//
// Where there are other processes, somebody must poll. Whoever waits for an answer does so itself, since handing a
// message from thread to thread costs more than the message; an idle thread does when nobody waits. It runs the call
// that it finds by itself, for the same reason, and another idle thread looks from time to time whether nobody polls
// any more. Who polls in vain for some microseconds sleeps in the link (one thread: the leader); others sleep here.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "rpc/link.h"
#include "tutti/context.h"
#include "tutti/rpc/future.h"

namespace tutti::rpc::detail {

/// Whether a call may be run on top of the calling thread's stack.
bool stack_is_deep();

/// How often to look before going to sleep.
class SpinLimit {
 public:
  static constexpr int kMost = 8000, kLeast = 8, kTry = 16;
  explicit SpinLimit(bool spin) : spin_(spin) {}
  int next();
  void enough(int used);
  void in_vain();

 private:
  const bool spin_;
  std::atomic<int> spins_{kMost};
  std::atomic<unsigned> tries_{1};
};

class Executor {
 public:
  using Task = std::function<void()>;
  Executor(int threads, bool spin);
  ~Executor() { stop(); }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Before anything is posted.
  void set_link(Links* link);
  /// Some thread runs it soon. Tasks do not throw. False: it has stopped.
  bool post(Task task);
  /// Until it is done, or then; says whether it is.
  bool wait(FutureCore& future, Clock::time_point until);
  /// All tasks that were posted end. Called by none of its own threads.
  void stop();
  size_t threads() const { return count_.load(); }
  /// Whether the calling thread is one of this executor's.
  bool is_mine() const;

 private:
  static constexpr size_t kMostThreads = 1024;  // even where stacks are short
  void run();
  void start_thread();  // wants the lock
  void take(std::unique_lock<std::mutex>& lock);
  void idle(std::unique_lock<std::mutex>& lock);
  bool look(FutureCore& future, Clock::time_point until);
  bool may_help() const;
  void linger(std::unique_lock<std::mutex>& lock, Clock::duration time);
  void led();
  void pass_lead();
  void let_another_lead();
  void wake_waiting();
  void rouse();
  void sleep_as_leader(std::unique_lock<std::mutex>& lock, Clock::time_point until);

  const size_t most_;
  const bool spin_;
  SpinLimit waits_, idles_;
  Links* link_ = nullptr;
  std::mutex mutex_;
  std::condition_variable work_, changed_;  // for idle threads, and for those that wait for something
  std::deque<Task> queue_;
  std::atomic<size_t> queued_{0};           // how many
  bool waking_ = false;                     // a thread is on its way to the queue
  std::optional<Clock::time_point> found_;  // when an idle thread last found calls
  std::vector<std::thread> threads_;
  std::atomic<size_t> count_{0};
  size_t idle_ = 0;
  size_t lingering_ = 0;                           // of those, looks from time to time who polls
  size_t resting_ = 0;                             // of those, leave that to it
  size_t waiting_ = 0;                             // asleep until something changes
  Clock::time_point moved_;                        // when a thread that slept in the link last had something to do
  std::atomic<int64_t> led_{0};                    // when somebody last polled
  std::atomic<const void*> last_leader_{nullptr};  // and who
  bool stop_ = false;
  bool leading_ = false;         // a thread sleeps in the link
  bool idle_leads_ = false;      // and it is an idle one
  std::atomic<int> looking_{0};  // waiting threads that poll, awake
};

}  // namespace tutti::rpc::detail
