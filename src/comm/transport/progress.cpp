#include "comm/transport/progress.h"

#include "base/per_process.h"
#include "comm/group/waits.h"

namespace tutti::comm {

namespace {
thread_local int carrying = 0;
}  // namespace

CarrierThread::CarrierThread() { ++carrying; }
CarrierThread::~CarrierThread() { --carrying; }
bool is_carrier_thread() { return carrying > 0; }

Progress& Progress::instance() { return per_process<Progress>(); }

void Progress::submit(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  wake_.notify_one();
}

void Progress::run() {
  LibraryThread self;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

Progress::~Progress() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

}  // namespace tutti::comm
