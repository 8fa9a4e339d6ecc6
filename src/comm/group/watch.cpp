#include "comm/group/watch.h"

#include <algorithm>

#include "base/per_process.h"
#include "comm/group/waits.h"

namespace tutti::comm {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(50);

}  // namespace

Watch& Watch::instance() { return per_process<Watch>(); }

void Watch::add(const std::shared_ptr<WorkState>& work, const std::shared_ptr<Transport>& group) {
  if (work->done()) return;
  std::lock_guard lock(mutex_);
  works_.push_back({work, group});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  if (works_.size() == 1) changed_.notify_one();
}

// False: there is nothing left to look after. Others wait for this thread to look after theirs, so that it waits for
// none.
bool Watch::look_after(const Watched& watched) {
  auto work = watched.work.lock();
  auto group = watched.group.lock();
  if (!work || !group || work->done() || work->alone.load()) return false;
  if (work->waiters.load() > 0) return true;
  auto now = Clock::now();
  try {
    if (!group->wait(*work, now, true) && now >= work->limit.end()) group->expire(*work);
  } catch (...) {
    work->complete(std::current_exception());
  }
  return !work->done();
}

void Watch::run() {
  LibraryThread self;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (works_.empty()) {
      changed_.wait(lock, [&] { return stop_ || !works_.empty(); });
      continue;
    }
    changed_.wait_for(lock, kPeriod, [&] { return stop_; });
    std::vector<Watched> list = std::move(works_);
    works_.clear();
    lock.unlock();
    std::erase_if(list, [](const Watched& w) { return !look_after(w); });
    lock.lock();
    works_.insert(works_.end(), list.begin(), list.end());
  }
}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

}  // namespace tutti::comm
