// The thread that moves asynchronous collectives of threads when nobody waits for them: one for the process.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace tutti::comm {

class Progress {
 public:
  static Progress& instance();
  void submit(std::function<void()> job);

 private:
  Progress() = default;
  ~Progress();
  void run();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tutti::comm
