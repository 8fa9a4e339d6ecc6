// Works that nobody waits for: they, too, end when their time is over or when a rank they need has ended.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/event.h"
#include "comm/transport/transport.h"

namespace tutti::comm {

/// One thread for the process, which runs while there are such works.
class Watch {
 public:
  static Watch& instance();
  Watch() = default;
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  /// From now on the work holds its group.
  void add(const std::shared_ptr<WorkState>& work, const std::shared_ptr<Transport>& group);
  /// The body of the rank that this process is has returned: waits for its collectives, and calls `over` where no more
  /// of them can come. Returns the error of one of them that nobody has seen.
  std::exception_ptr finish(const std::function<void()>& over);
  /// The rank that this process is ends: its works hold their groups no longer.
  void let_go();

 private:
  struct Watched {
    std::weak_ptr<WorkState> work;
    std::weak_ptr<Transport> group;
  };
  void run();
  static void look_after(const Watched& watched);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> works_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tutti::comm
