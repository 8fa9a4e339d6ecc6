// Wires whose messages are moved by whoever waits for them, and by a thread of the wire's own when nobody does.
#pragma once

#include <condition_variable>
#include <thread>

#include "comm/transport/wire.h"
#include "io/descriptor.h"

namespace tutti::comm {

class PolledWire : public Wire {
 public:
  PolledWire(int rank, int size, bool spin);
  bool wait(Clock::time_point until, const std::function<bool()>& ready) override;
  void wake() override;
  bool attended() const override { return waiters_.load() > 0; }

 protected:
  // These are called with the mutex.
  /// Moves what can be moved now: a little, or all; says whether anything was.
  virtual bool move(bool all) = 0;
  /// Before a sleep: false if something has come meanwhile.
  virtual bool arm() = 0;

  bool progress(bool all = true);
  /// Those who wait look again.
  void changed();
  /// Sleeps until something may have come.
  bool sleep(std::unique_lock<std::mutex>& lock, Clock::time_point until);

  /// The descriptor is readable when something may have come.
  void start_thread(int descriptor);
  void stop_thread();

  std::mutex mutex_;

 private:
  bool sleep_on(std::unique_lock<std::mutex>& lock, Clock::time_point until, int event);
  void run();

  const bool spin_;
  int descriptor_ = -1;
  io::Descriptor stop_event_, wake_event_;
  bool stop_ = false, leading_ = false;
  uint64_t moved_ = 0;  // how often something did
  std::condition_variable changed_, linger_;
  std::atomic<int> waiters_{0};
  std::thread thread_;
};

}  // namespace tutti::comm
