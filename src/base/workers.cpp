#include "base/workers.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/cores.h"
#include "base/per_process.h"
#include "base/spin.h"

namespace tutti {

struct Workers::Worker {
  std::condition_variable wake;
  std::function<void()> body;
  std::atomic<bool> called = false;  // there is a body
  std::shared_ptr<Job> job;
  std::vector<int> cores;  // bound to these; empty: to none
  std::thread thread;
};

namespace {
void bind_to(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(core, &set);
  // Only a preference: where the system refuses, the thread runs anywhere.
  (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}
}  // namespace

Workers& Workers::instance() { return per_process<Workers>(); }

bool Workers::may_spin() const {
  int cores = core_count() / (1 + CoreSharers::all());
  return busy_.load(std::memory_order_relaxed) < cores && cpu_devices() <= cores;
}

void Workers::Job::wait(bool spin) {
  if (spin && instance().may_spin()) look_for_a_while([&] { return done.load(std::memory_order_relaxed); });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done.load(std::memory_order_relaxed); });
}

void Jobs::start(Device device, std::function<void()> body) {
  auto& job = list_.emplace_back();  // what can fail comes before the start
  job = Workers::instance().start(device, std::move(body));
}

void Jobs::wait(bool spin) {
  for (auto& job : list_)
    if (job) job->wait(spin);
  list_.clear();
}

std::shared_ptr<Workers::Job> Workers::start(Device device, std::function<void()> body) {
  auto job = std::make_shared<Job>();
  std::lock_guard lock(mutex_);
  // A thread stays with its cores: the OpenMP threads it has started would not follow it to others.
  std::vector<int> cores = device.is_cpu() ? cores_list(device) : std::vector<int>();
  auto found = std::find_if(idle_.rbegin(), idle_.rend(), [&](Worker* w) { return w->cores == cores; });
  bool fresh = found == idle_.rend();
  Worker* worker;
  if (fresh) {
    worker = all_.emplace_back(std::make_unique<Worker>()).get();
    worker->cores = std::move(cores);
    idle_.reserve(all_.capacity());  // it will come there without fail
  } else {
    worker = *found;
    idle_.erase(std::next(found).base());
  }
  worker->body = std::move(body);
  worker->job = job;
  worker->called.store(true, std::memory_order_relaxed);
  ++busy_;
  if (!fresh) {
    worker->wake.notify_one();
    return job;
  }
  try {
    worker->thread = std::thread([this, worker] { serve(*worker); });
  } catch (...) {
    --busy_;
    all_.pop_back();
    throw;
  }
  return job;
}

void Workers::serve(Worker& worker) {
  if (!worker.cores.empty()) bind_to(worker.cores);
  std::unique_lock lock(mutex_);
  while (true) {
    if (!worker.body && worker.cores.size() == 1 && may_spin()) {
      lock.unlock();
      look_for_a_while([&] { return worker.called.load(std::memory_order_relaxed); });
      lock.lock();
    }
    worker.wake.wait(lock, [&] { return stopping_ || worker.body; });
    if (!worker.body) return;
    worker.called.store(false, std::memory_order_relaxed);
    auto body = std::exchange(worker.body, nullptr);
    auto job = std::exchange(worker.job, nullptr);
    lock.unlock();
    body();
    body = nullptr;
    lock.lock();
    idle_.push_back(&worker);
    --busy_;
    {
      std::lock_guard done(job->mutex);
      job->done = true;
    }
    job->changed.notify_all();
  }
}

bool serves_itself(const Context& caller) { return caller.threads == 1 || cores_of(caller.device) == 1; }

void serve_here(Device device, const std::function<void()>& body) {
  cpu_set_t before;
  bool known = pthread_getaffinity_np(pthread_self(), sizeof before, &before) == 0;
  if (known && device.is_cpu()) bind_to(cores_list(device));
  auto restore = [&] {
    if (known) (void)pthread_setaffinity_np(pthread_self(), sizeof before, &before);
  };
  try {
    body();
  } catch (...) {
    restore();
    throw;
  }
  restore();
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
