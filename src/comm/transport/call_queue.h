// Asynchronous collectives of one group, one after the other, on a thread that is started with the first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/event.h"
#include "comm/group/call.h"
#include "comm/group/work.h"

namespace tutti::comm {

class CallQueue {
 public:
  /// Carries out a call, and waits for it.
  using Execute = std::function<void(const Call&, const TimeLimit& limit)>;
  explicit CallQueue(Execute execute) : execute_(std::move(execute)) {}
  ~CallQueue() { stop(); }
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  /// At once, by the calling thread; false: others came before it, and it has to wait for its turn in the queue, from
  /// where it can be taken when its time is over.
  bool try_run(const Call& call, std::chrono::milliseconds timeout);
  void start(Call call, const std::shared_ptr<WorkState>& work);
  /// Until the work is settled, or that time where there is one.
  bool wait(const WorkState& work, std::optional<Clock::time_point> deadline);
  /// Takes a call that has not begun out of the queue, and does this before the next one may begin; `before`: how many
  /// of the queue were to go before it. False: it has begun.
  bool take(const WorkState& work, const std::function<void(const Call&, size_t before)>& taken);
  // Note [Cancelling]
  // A collective can be cancelled while some rank has not come to it. One that has not begun here is taken out of the
  // queue. One that waits for other ranks is asked to end: the transport looks at cancel_asked() while it waits, and
  // says by past() that all have come, or by leave() that it gives up. Nothing touches the call's memory after either.
  /// Says whether it was cancelled; then nobody completes the work but this, by `cancelled` with the call where it was
  /// still queued. `wake`: what waits looks again.
  bool cancel(const WorkState& work, const std::function<void()>& wake,
              const std::function<void(const Call&)>& cancelled);
  /// The calling thread's own call is: others may be before it, made by threads that wait.
  bool cancel_asked() const { return asked_.load() && std::this_thread::get_id() == worker_.get_id(); }
  /// The calling thread's own call may still be asked to end.
  bool may_be_cancelled() const { return waiting_.load() && std::this_thread::get_id() == worker_.get_id(); }
  void past();
  /// How many calls there were, with those that have not begun. Final where nobody makes another.
  uint64_t made();
  /// Whether some of them are not over.
  bool open();
  [[noreturn]] void leave();
  void stop();

 private:
  struct Queued {
    Call call;
    std::shared_ptr<WorkState> work;
  };
  void work();

  const Execute execute_;
  std::mutex executing_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queued> queue_;
  std::atomic<uint64_t> begun_{0};  // written by who has executing_
  bool busy_ = false, stop_ = false;
  int cancelling_ = 0;  // calls that were taken out, and of which the others are not told yet
  const WorkState *running_ = nullptr, *cancelled_ = nullptr;
  std::atomic<bool> waiting_{false}, asked_{false};  // of running_: it may be asked, and was
  std::thread worker_;
};

}  // namespace tutti::comm
