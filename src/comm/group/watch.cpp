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
  work->hold(group);
  std::lock_guard lock(mutex_);
  works_.push_back({work, group});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  if (works_.size() == 1) changed_.notify_one();
}

std::exception_ptr Watch::finish(const std::function<void()>& over) {
  std::vector<std::shared_ptr<WorkState>> all;
  for (bool said = false;;) {
    std::vector<std::shared_ptr<WorkState>> open;
    std::vector<std::shared_ptr<Transport>> groups;
    {
      std::lock_guard lock(mutex_);
      for (const Watched& watched : works_) {
        auto work = watched.work.lock();
        auto group = watched.group.lock();
        if (!work || !group || work->settled() || work->alone.load() || work->is_message || work->chain) continue;
        open.push_back(std::move(work));
        groups.push_back(std::move(group));
      }
    }
    if (open.empty()) break;
    // What is called when they are done may make more calls.
    if (!said && std::none_of(open.begin(), open.end(), [](const auto& work) { return work->has_then(); })) {
      over();
      said = true;
    }
    // Their times are seen to by this object's thread.
    groups[0]->wait(*open[0], Clock::now() + kPeriod, true);
    all.insert(all.end(), open.begin(), open.end());
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
  }
  for (const auto& work : all)
    if (work->error() && !work->observed()) return work->error();
  return nullptr;
}

void Watch::let_go() {
  // Freed after the lock: what that ends may begin other works.
  std::vector<std::shared_ptr<WorkState>> works;
  std::vector<std::shared_ptr<Transport>> groups;
  std::lock_guard lock(mutex_);
  for (const Watched& watched : works_)
    if (auto work = watched.work.lock()) {
      groups.push_back(work->let_go());
      works.push_back(std::move(work));
    }
}

// Others wait for this thread to look after theirs, so that it waits for none.
void Watch::look_after(const Watched& watched) {
  auto work = watched.work.lock();
  auto group = watched.group.lock();
  if (!work || !group || work->done() || work->alone.load() || work->waiters.load() > 0) return;
  auto now = Clock::now();
  try {
    if (!group->wait(*work, now, true) && now >= work->limit.end()) group->expire(*work);
  } catch (...) {
    work->complete(std::current_exception());
  }
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
    std::vector<Watched> list = works_;
    std::vector<std::shared_ptr<WorkState>> works;  // freed without the lock, as above
    lock.unlock();
    for (const Watched& watched : list) look_after(watched);
    lock.lock();
    std::erase_if(works_, [&](const Watched& watched) {
      const auto& work = works.emplace_back(watched.work.lock());
      return !work || work->done() || work->alone.load() || watched.group.expired();
    });
    lock.unlock();
    works.clear();
    lock.lock();
  }
}

Watch::~Watch() {
  let_go();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

}  // namespace tutti::comm
