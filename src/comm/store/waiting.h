// How long a call of a store may wait, and what ends it earlier.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <stop_token>

namespace tutti::store {

using Clock = std::chrono::steady_clock;

/// A chain on the stack: the caller's token, the handle's, and those of the handles that it is a view of.
struct Waiting {
  Clock::time_point deadline;
  const std::stop_token* stop;
  const Waiting* outer = nullptr;

  bool stopped() const {
    for (auto* w = this; w; w = w->outer)
      if (w->stop->stop_requested()) return true;
    return false;
  }
};

/// Calls `wake` when one of the tokens is asked to stop. Make and destroy it without holding a mutex that `wake` takes:
/// making it may call `wake`, and destroying it waits for a call in progress.
class Wakers {
 public:
  Wakers(const Waiting& waiting, const std::function<void()>& wake) {
    for (auto* w = &waiting; w; w = w->outer)
      if (w->stop->stop_possible()) callbacks_.emplace_back(*w->stop, wake);
  }

 private:
  std::list<std::stop_callback<std::function<void()>>> callbacks_;
};

/// `timeout` from now; far in the future where that cannot be told.
inline Clock::time_point deadline_after(std::chrono::nanoseconds timeout) {
  auto now = Clock::now();
  return timeout < Clock::time_point::max() - now ? now + timeout : Clock::time_point::max();
}

}  // namespace tutti::store
