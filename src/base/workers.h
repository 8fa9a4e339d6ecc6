// Threads that the library starts on a user's behalf: kept for reuse, joined at exit.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tutti/device.h"

namespace tutti {

class Workers {
  struct Worker;
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };

 public:
  class Job {
   public:
    void wait() {
      std::unique_lock lock(state_->mutex);
      state_->changed.wait(lock, [&] { return state_->done; });
    }

   private:
    friend class Workers;
    std::shared_ptr<State> state_ = std::make_shared<State>();
  };

  static Workers& instance();
  /// Runs `body` (which must not throw) on a thread of its own, on the cores of `device`.
  Job start(Device device, std::function<void()> body);
  ~Workers();

 private:
  void serve(Worker& worker);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> all_;
  std::vector<Worker*> idle_;
  bool stopping_ = false;
};

}  // namespace tutti
