#include "comm/transport/call_queue.h"

#include <algorithm>

#include "base/check.h"
#include "comm/group/waits.h"
#include "comm/transport/progress.h"

namespace tutti::comm {

bool CallQueue::try_run(const Call& call, std::chrono::milliseconds timeout) {
  {
    std::lock_guard lock(mutex_);
    if (busy_ || cancelling_ > 0 || !queue_.empty()) return false;
  }
  std::unique_lock lock(executing_, std::try_to_lock);
  if (!lock) return false;  // another thread is in a call, for as long as that takes
  begun_.store(begun_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  execute_(call, TimeLimit(timeout));
  return true;
}

void CallQueue::start(Call call, const std::shared_ptr<WorkState>& work) {
  std::lock_guard lock(mutex_);
  queue_.push_back({std::move(call), work});
  if (!worker_.joinable()) worker_ = std::thread([this] { this->work(); });
  changed_.notify_all();
}

void CallQueue::work() {
  CarrierThread carrier;
  std::unique_lock lock(mutex_);
  while (true) {
    {
      LibraryThread idle(true);  // while it has a call it is one of the rank's own
      changed_.wait(lock, [&] { return cancelling_ == 0 && (stop_ || !queue_.empty()); });
    }
    if (queue_.empty()) return;
    // While a thread's own call is on its way the next one stays in the queue, from where it can be taken.
    lock.unlock();
    std::unique_lock executing(executing_);
    lock.lock();
    if (queue_.empty() || cancelling_ > 0) continue;
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    begun_.store(begun_.load() + 1);
    busy_ = true;
    running_ = next.work.get();
    waiting_.store(true);
    lock.unlock();
    std::exception_ptr error;
    try {
      execute_(next.call, next.work->limit);
    } catch (...) {
      error = std::current_exception();
    }
    executing.unlock();
    past();  // also of a call that ended before all had come
    next.work->complete(std::move(error));
    lock.lock();
    running_ = nullptr;
    lock.unlock();
    next = {};
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

// What the worker carries out ends by itself, well or not.
bool CallQueue::wait(const WorkState& work, std::optional<Clock::time_point> deadline) {
  std::unique_lock lock(mutex_);
  auto settled = [&] { return work.settled(); };
  if (deadline) return changed_.wait_until(lock, *deadline, settled);
  changed_.wait(lock, settled);
  return true;
}

bool CallQueue::take(const WorkState& work, const std::function<void(const Call&, size_t before)>& taken) {
  std::unique_lock lock(mutex_);
  auto mine = std::find_if(queue_.begin(), queue_.end(), [&](const Queued& q) { return q.work.get() == &work; });
  if (mine == queue_.end()) return false;
  auto before = static_cast<size_t>(mine - queue_.begin());
  Queued it = std::move(*mine);
  queue_.erase(mine);
  // The next would take this one's place among the calls of the group, and meet what others give to this one.
  ++cancelling_;
  struct Done {
    CallQueue& queue;
    std::unique_lock<std::mutex>& lock;
    ~Done() {
      lock.lock();
      --queue.cancelling_;
      queue.changed_.notify_all();
    }
  } done{*this, lock};
  lock.unlock();
  taken(it.call, before);
  return true;
}

bool CallQueue::cancel(const WorkState& work, const std::function<void()>& wake,
                       const std::function<void(const Call&)>& cancelled) {
  if (take(work, [&](const Call& call, size_t) { cancelled(call); })) return true;
  std::unique_lock lock(mutex_);
  if (running_ != &work || !waiting_.load()) return false;
  asked_.store(true);
  wake();
  // Soon: whoever waits for other ranks looks every few milliseconds.
  changed_.wait(lock, [&] { return running_ != &work || (!waiting_.load() && cancelled_ != &work); });
  return cancelled_ == &work;
}

void CallQueue::past() {
  if (!waiting_.load() || std::this_thread::get_id() != worker_.get_id()) return;
  std::lock_guard lock(mutex_);
  waiting_.store(false);
  asked_.store(false);
  changed_.notify_all();
}

uint64_t CallQueue::made() {
  std::lock_guard lock(mutex_);
  return begun_.load() + queue_.size();
}

bool CallQueue::open() {
  std::lock_guard lock(mutex_);
  return busy_ || !queue_.empty();
}

void CallQueue::leave() {
  {
    std::lock_guard lock(mutex_);
    cancelled_ = running_;
  }
  throw CancelledError("this work was cancelled", "Work::cancel");
}

void CallQueue::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
}

}  // namespace tutti::comm
