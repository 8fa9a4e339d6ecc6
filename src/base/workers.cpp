#include "base/workers.h"

#include <pthread.h>
#include <sched.h>

#include <utility>

#include "base/cores.h"

namespace tutti {

struct Workers::Worker {
  std::condition_variable wake;
  std::function<void()> body;
  std::shared_ptr<State> state;
  Device device;
  std::thread thread;
};

namespace {
void bind_to(Device device) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores_list(device)) CPU_SET(core, &set);
  // Only a preference: where the system refuses, the thread runs anywhere.
  (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}
}  // namespace

Workers& Workers::instance() {
  static Workers workers;
  return workers;
}

Workers::Job Workers::start(Device device, std::function<void()> body) {
  Job job;
  std::lock_guard lock(mutex_);
  Worker* worker;
  bool fresh = idle_.empty();
  if (fresh) {
    worker = all_.emplace_back(std::make_unique<Worker>()).get();
  } else {
    worker = idle_.back();
    idle_.pop_back();
  }
  worker->body = std::move(body);
  worker->state = job.state_;
  worker->device = device;
  if (fresh)
    worker->thread = std::thread([this, worker] { serve(*worker); });
  else
    worker->wake.notify_one();
  return job;
}

void Workers::serve(Worker& worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    worker.wake.wait(lock, [&] { return stopping_ || worker.body; });
    if (!worker.body) return;
    auto body = std::exchange(worker.body, nullptr);
    auto state = std::exchange(worker.state, nullptr);
    Device device = worker.device;
    lock.unlock();
    if (device.is_cpu()) bind_to(device);
    body();
    body = nullptr;
    lock.lock();
    idle_.push_back(&worker);
    {
      std::lock_guard done(state->mutex);
      state->done = true;
    }
    state->changed.notify_all();
  }
}

Workers::~Workers() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& worker : all_) worker->wake.notify_all();
  }
  for (auto& worker : all_)
    if (worker->thread.joinable()) worker->thread.join();
}

}  // namespace tutti
