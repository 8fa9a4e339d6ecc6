#include "comm/transport/polled_wire.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

namespace tutti::comm {
namespace {

constexpr int kSpins = 2000;
constexpr auto kLinger = std::chrono::milliseconds(2);   // how long the wire's own thread leaves the work to waiters
constexpr auto kGlance = std::chrono::milliseconds(50);  // after which it looks in any case

}  // namespace

PolledWire::PolledWire(int rank, int size, bool spin)
    : Wire(rank, size),
      spin_(spin),
      stop_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wake_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void PolledWire::start_thread(int descriptor) {
  descriptor_ = descriptor;
  thread_ = std::thread([this] { run(); });
}

void PolledWire::stop_thread() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ::eventfd_write(stop_event_.get(), 1);
  linger_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void PolledWire::changed() {
  ++moved_;
  changed_.notify_all();
}

// Looking once more when something has come costs a system call, which who waits for just that does not want.
bool PolledWire::progress(bool all) {
  bool any = move(all);
  if (any) changed();
  return any;
}

bool PolledWire::sleep(std::unique_lock<std::mutex>& lock, Clock::time_point until) {
  return sleep_on(lock, until, stop_event_.get());
}

bool PolledWire::sleep_on(std::unique_lock<std::mutex>& lock, Clock::time_point until, int event) {
  if (!arm()) return true;
  auto left = std::max<Clock::duration>(until - Clock::now(), Clock::duration::zero());
  auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  timespec time{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  pollfd polls[2] = {{descriptor_, POLLIN, 0}, {event, POLLIN, 0}};
  lock.unlock();
  int ready = ::ppoll(polls, 2, &time, nullptr);
  lock.lock();
  return ready > 0;
}

// One of those who wait sleeps on the descriptor, and leads; the others wait for what it moves. `moved_` says whether
// to look again.
bool PolledWire::wait(Clock::time_point until, const std::function<bool()>& ready) {
  waiters_.fetch_add(1);
  struct Leave {
    PolledWire& wire;
    ~Leave() {
      if (wire.waiters_.fetch_sub(1) == 1) wire.unattended();
    }
  } leave{*this};
  while (true) {
    uint64_t seen = 0;
    for (int i = spin_ ? kSpins : 2; i > 0; --i) {
      {
        std::lock_guard lock(mutex_);
        if (progress(false) && leading_) ::eventfd_write(wake_event_.get(), 1);
        seen = moved_;
      }
      if (ready()) return true;
      if (spin_) __builtin_ia32_pause();
    }
    if (Clock::now() >= until) return false;
    std::unique_lock lock(mutex_);
    if (moved_ != seen) continue;
    if (leading_) {
      changed_.wait_until(lock, until, [&] { return moved_ != seen || !leading_; });
      continue;
    }
    leading_ = true;
    sleep_on(lock, until, wake_event_.get());
    eventfd_t none = 0;
    ::eventfd_read(wake_event_.get(), &none);
    leading_ = false;
    changed_.notify_all();
  }
}

void PolledWire::wake() {
  std::lock_guard lock(mutex_);
  changed();
  if (leading_) ::eventfd_write(wake_event_.get(), 1);
}

// Moves messages when nobody waits: what was sent must leave, and peers must be answered, while the rank computes.
void PolledWire::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (waiters_.load() > 0) {
      linger_.wait_for(lock, kLinger);
      continue;
    }
    progress();
    if (sleep(lock, Clock::now() + kGlance) && waiters_.load() == 0 && !stop_) progress();
  }
}

}  // namespace tutti::comm
