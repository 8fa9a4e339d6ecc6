#include "rpc/executor.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tutti::rpc::detail {

// Where the other side runs on the same core, spinning keeps it from answering, and what takes long is not worth it:
// what was in vain is done less, and only tried in full from time to time. What was not says how much is enough.
int SpinLimit::next() {
  if (!spin_) return 2;
  int spins = spins_.load(std::memory_order_relaxed);
  return spins < kMost && tries_.fetch_add(1, std::memory_order_relaxed) % kTry == 0 ? kMost : spins;
}
void SpinLimit::enough(int used) {
  int spins = spins_.load(std::memory_order_relaxed);
  if (spins < 2 * used) spins_.store(std::min(kMost, 2 * used), std::memory_order_relaxed);
}
void SpinLimit::in_vain() {
  spins_.store(std::max(kLeast, spins_.load(std::memory_order_relaxed) * 3 / 4), std::memory_order_relaxed);
}

namespace {

constexpr std::chrono::nanoseconds kLinger =
    std::chrono::microseconds(500);  // after which an idle thread looks who polls
constexpr auto kActive = std::chrono::milliseconds(20);
constexpr auto kPatience = std::chrono::microseconds(200);
constexpr std::chrono::nanoseconds kGlance = std::chrono::milliseconds(50);  // the longest sleep in the link

thread_local Executor* own_executor = nullptr;
thread_local bool leads = false;  // this thread is the one that sleeps in the link, but does not sleep now
thread_local bool takes = false;  // this thread will look at the queue when it has polled

struct Stack {
  char* low = nullptr;
  size_t size = 0;
  Stack() {
    pthread_attr_t attributes;
    if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) return;
    void* base = nullptr;
    ::pthread_attr_getstack(&attributes, &base, &size);
    ::pthread_attr_destroy(&attributes);
    low = static_cast<char*>(base);
  }
};

}  // namespace

bool stack_is_deep() {
  thread_local const Stack stack;
  const char here = 0;
  return stack.low && static_cast<size_t>(&here - stack.low) < std::min<size_t>(stack.size / 2, size_t{3} << 20);
}

Executor::Executor(int threads, bool spin)
    : most_(static_cast<size_t>(std::max(threads, 1))), spin_(spin), waits_(spin), idles_(spin) {}

void Executor::set_link(Links* link) {
  std::lock_guard lock(mutex_);
  link_ = link;
  start_thread();
  start_thread();
}

bool Executor::is_mine() const { return own_executor == this; }

void Executor::start_thread() {
  if (stop_) return;
  threads_.emplace_back([this] { run(); });
  count_.store(threads_.size());
  ++idle_;  // from now on, so that several posts do not each count on it: see run()
}

bool Executor::post(Task task) {
  std::lock_guard lock(mutex_);
  if (stop_) return false;
  queue_.push_back(std::move(task));
  queued_.store(queue_.size(), std::memory_order_relaxed);
  if (!(takes && own_executor == this)) rouse();
  return true;
}

// Somebody is to look at the queue. One at a time is woken: whoever takes a task wakes the next if there are more.
void Executor::rouse() {
  if (waking_ || queue_.empty()) return;
  if (idle_ > (idle_leads_ ? 1 : 0)) {
    waking_ = true;
    work_.notify_one();
  } else if (threads_.size() < most_ && !stop_) {
    waking_ = true;
    start_thread();
  } else {
    wake_waiting();
  }
}

// Those who wait may have to help.
void Executor::wake_waiting() {
  changed_.notify_all();
  if (leading_ && !leads) link_->wake();
}

// Takes the oldest task, and runs it without the lock.
void Executor::take(std::unique_lock<std::mutex>& lock) {
  Task task = std::move(queue_.front());
  queue_.pop_front();
  queued_.store(queue_.size(), std::memory_order_relaxed);
  // What one thread has found it can often do faster than wake others for it; if not, they come.
  if (!queue_.empty() && (idle_ == 0 || !found_ || Clock::now() - *found_ > kPatience)) rouse();
  // Nor may all that are idle sleep long when nobody polls.
  bool unpolled = link_ && !leading_ && idle_ > 0 && looking_.load() == 0;
  if (lingering_ == 0 && (resting_ > 0 || unpolled)) work_.notify_one();
  // Somebody must be there to poll while it runs.
  if (link_ && idle_ == 0 && threads_.size() < most_) start_thread();
  lock.unlock();
  task();
  task = nullptr;
  lock.lock();
}

void Executor::run() {
  own_executor = this;
  std::unique_lock lock(mutex_);
  while (true) {
    if (queue_.empty()) {
      if (stop_) break;
      idle(lock);
      continue;
    }
    waking_ = false;
    --idle_;
    take(lock);
    ++idle_;
  }
  --idle_;
}

void Executor::idle(std::unique_lock<std::mutex>& lock) {
  auto needed = [&] { return stop_ || !queue_.empty(); };
  if (!link_) return work_.wait(lock, needed);
  // Who polls may find a call that takes long: see Note [Threads of a session].
  if (leading_) {
    if (Clock::now() - moved_ < kActive) return linger(lock, kLinger);
    work_.wait_for(lock, kGlance, [&] { return needed() || !leading_; });
    return;
  }
  if (looking_.load() > 0) return linger(lock, kLinger);
  // Who polled last is likely to be back soon, and to be on a core that has what it needs.
  auto left = kLinger - (Clock::now().time_since_epoch() - Clock::duration(led_.load()));
  if (last_leader_.load() != &leads && left > left.zero()) return linger(lock, left);
  leading_ = idle_leads_ = leads = takes = true;
  lock.unlock();
  bool found = false;
  int given = idles_.next(), spins = given;
  for (; spins > 0 && !found && looking_.load(std::memory_order_relaxed) == 0; --spins) {
    found = link_->poll();
    if (!found) __builtin_ia32_pause();
  }
  if (found) idles_.enough(given - spins);
  if (!found && spins == 0) idles_.in_vain();
  if (!found && looking_.load() == 0) {
    link_->sleep(Clock::now() + kGlance);
    link_->poll();
  }
  lock.lock();
  leading_ = idle_leads_ = leads = takes = false;
  led();
  if (queue_.empty()) return;
  moved_ = Clock::now();
  found_ = moved_;
  pass_lead();  // it may take long until this thread is back
}

// Looks again soon. One thread that does is enough: the others would only take time from those that work.
void Executor::linger(std::unique_lock<std::mutex>& lock, Clock::duration time) {
  if (lingering_ > 0) {
    ++resting_;
    work_.wait_for(lock, kGlance, [&] { return stop_ || !queue_.empty() || lingering_ == 0; });
    --resting_;
    return;
  }
  ++lingering_;
  work_.wait_for(lock, time, [&] { return stop_ || !queue_.empty(); });
  --lingering_;
}

void Executor::led() {
  led_.store(Clock::now().time_since_epoch().count());
  last_leader_.store(&leads);
}

// Nobody sleeps in the link any more. Of those who wait for something, one should at once; of the idle ones it is
// enough if one looks soon.
void Executor::pass_lead() {
  if (waiting_ > 0) changed_.notify_one();
  if (lingering_ == 0) work_.notify_one();
}

// ---- Waiting

bool Executor::may_help() const { return own_executor == this && !queue_.empty(); }

// Awake, for as long as that is cheaper than to sleep.
bool Executor::look(FutureCore& future, Clock::time_point until) {
  if (!link_) {
    for (int i = spin_ ? 200 : 1; i > 0 && !future.done(); --i) __builtin_ia32_pause();
    return future.done();
  }
  looking_.fetch_add(1);
  int limit = waits_.next(), spins = 0;
  for (; spins < limit && !future.done(); ++spins)
    if (link_->poll())
      limit = std::min(limit + 100, SpinLimit::kMost);
    else if (spins % 256 == 255 && Clock::now() >= until)
      break;
    else
      __builtin_ia32_pause();
  if (future.done())
    waits_.enough(spins);
  else
    waits_.in_vain();
  led();
  looking_.fetch_sub(1);
  return future.done();
}

void Executor::sleep_as_leader(std::unique_lock<std::mutex>& lock, Clock::time_point until) {
  leading_ = leads = true;
  lock.unlock();
  link_->sleep(until);
  link_->poll();
  lock.lock();
  leading_ = leads = false;
  moved_ = Clock::now();
  led();
  pass_lead();
}

// Who was woken to lead and has something else to do passes that on.
void Executor::let_another_lead() {
  if (link_ && !leading_ && waiting_ > 0) changed_.notify_one();
}

bool Executor::wait(FutureCore& future, Clock::time_point until) {
  if (future.done()) return true;
  if (own_executor == this && queued_.load(std::memory_order_relaxed) > 0) {
    std::lock_guard lock(mutex_);
    rouse();
  }
  if (look(future, until)) return true;
  // From here on whoever settles it wakes all that sleep here.
  auto waiting = std::make_shared<std::atomic<Executor*>>(this);
  auto gate = std::make_shared<std::mutex>();
  future.on_done([waiting, gate] {
    std::lock_guard still(*gate);
    Executor* executor = waiting->load();
    if (!executor) return;
    std::lock_guard lock(executor->mutex_);
    executor->wake_waiting();
  });
  std::unique_lock lock(mutex_);
  while (!future.done() && Clock::now() < until) {
    if (may_help() && idle_ == 0 && threads_.size() >= most_) {
      if (!stack_is_deep()) {
        let_another_lead();
        take(lock);
        continue;
      }
      if (threads_.size() < kMostThreads) start_thread();
    }
    if (link_ && !leading_)
      sleep_as_leader(lock, until);
    else {
      ++waiting_;
      changed_.wait_until(lock, until, [&] {
        return future.done() || (link_ && !leading_) || (may_help() && idle_ == 0 && threads_.size() >= most_);
      });
      --waiting_;
    }
  }
  let_another_lead();
  lock.unlock();
  std::lock_guard closing(*gate);
  waiting->store(nullptr);
  return future.done();
}

void Executor::stop() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(stop_, true)) return;
    threads.swap(threads_);
    if (link_) link_->wake();
  }
  work_.notify_all();
  changed_.notify_all();
  for (auto& thread : threads) thread.join();
  count_.store(0);
}

}  // namespace tutti::rpc::detail
