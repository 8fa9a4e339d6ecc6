// The thread that moves asynchronous collectives of threads when nobody waits for them: one for the process.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace tutti::comm {

/// While it lives, this thread carries out works of groups, and runs what was given to then().
class CarrierThread {
 public:
  CarrierThread();
  ~CarrierThread();
  CarrierThread(const CarrierThread&) = delete;
  CarrierThread& operator=(const CarrierThread&) = delete;
};
/// Whether the calling thread is one. A group that is dropped there must not wait for its own threads.
bool is_carrier_thread();

class Progress {
 public:
  static Progress& instance();
  Progress() = default;
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void submit(std::function<void()> job);

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

/// A group that is freed by the thread of the process where the last to hold it is one of its own threads.
template <class T>
std::shared_ptr<T> freed_elsewhere(std::unique_ptr<T> group) {
  return std::shared_ptr<T>(group.release(), [](T* last) {
    std::unique_ptr<T> owned(last);
    if (is_carrier_thread()) Progress::instance().submit([held = std::shared_ptr<T>(std::move(owned))] {});
  });
}

}  // namespace tutti::comm
