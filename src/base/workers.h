// Threads that the library starts on a user's behalf: kept for reuse, joined at exit.
//
// Note [Threads of devices]
// There is one set of them for the process, as there is one of cores. It is a cache of threads that do nothing: nobody
// waits for another's, since who finds none of its device's idle gets a new one, and nothing of a caller stays in a
// thread (its context comes with the work). What stays is what belongs to the cores: where the thread is bound, and the
// OpenMP threads it has started. The forward pass of a DataParallel, its backward in the engine and the next
// DataParallel's forward on one device should find the same: teams of their own would spin against each other. So they
// belong neither to a DataParallel, which the engine does not know, nor to a context, which is copied. Threads do not
// follow a fork: a forked process begins with none.
//
// Note [Waits between devices]
// In a step on several devices, threads wait for each other a few times, mostly for some tens of microseconds, and to
// be woken up takes as long again. Where each of them has a core to itself they look for a while before they sleep.
// Cores that several ranks share count as divided among them; of other programs on them nothing is known.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tutti/context.h"
#include "tutti/device.h"

namespace tutti {

class Workers {
 public:
  static Workers& instance();
  /// Whether there are cores for all that work, and for one who waits for them: Note [Waits between devices].
  bool may_spin() const;
  ~Workers();

 private:
  friend class Jobs;
  struct Worker;
  struct Job {
    std::mutex mutex;
    std::condition_variable changed;
    std::atomic<bool> done = false;
    void wait(bool spin);
  };
  std::shared_ptr<Job> start(Device device, std::function<void()> body);
  void serve(Worker& worker);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> all_;
  std::vector<Worker*> idle_;
  std::atomic<int> busy_ = 0;
  bool stopping_ = false;
};

/// What was started and must have ended before its owner goes on, since it uses what is the owner's. The destructor
/// waits too: where an error comes between, as it does when there are no more threads to be had, what has been started
/// ends first. Work that would not end by itself has to be told before, by a catch or a destructor.
class Jobs {
 public:
  Jobs() = default;
  ~Jobs() { wait(); }
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;
  /// Runs `body` (which must not throw) on a thread of its own, on the cores of `device`.
  void start(Device device, std::function<void()> body);
  /// For all of them. `spin`: see Note [Waits between devices].
  void wait(bool spin = false);
  bool empty() const { return list_.empty(); }

 private:
  std::vector<std::shared_ptr<Workers::Job>> list_;
};

/// Whether a thread does better to serve its own device than to hand that over and wait, which costs two wake-ups. Not
/// where it computes with several threads: the OpenMP threads that it has started are bound to no cores, and would take
/// those of other devices' threads.
bool serves_itself(const Context& caller);

/// Runs `body` on the calling thread, meanwhile bound to the cores of `device`.
void serve_here(Device device, const std::function<void()>& body);

}  // namespace tutti
