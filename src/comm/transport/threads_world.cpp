// The world of ranks that are threads of one process: its groups, and how it fails.
#include "base/check.h"
#include "base/cores.h"
#include "comm/transport/threads.h"
#include "tutti/context.h"

namespace tutti::comm {

World::World(int size, std::chrono::milliseconds timeout)
    : size_(size),
      timeout_(timeout),
      spin_(size <= static_cast<int>(process_cores().size())),
      sharers_(size - 1),
      ended_(static_cast<size_t>(size)),
      wait_memory_(static_cast<size_t>(size)),
      waits_(wait_memory_.data(), size, -1) {
  for (int r = 0; r < size; ++r) states_.push_back(std::make_shared<RankState>(r, size));
}

std::vector<std::shared_ptr<ThreadGroup>> World::groups() const {
  std::vector<std::shared_ptr<ThreadGroup>> alive;
  std::lock_guard lock(mutex_);
  for (auto& [key, entry] : groups_)
    if (auto group = entry.group.lock()) alive.push_back(std::move(group));
  return alive;
}

void World::fail(int rank, const std::string& text, bool deadlock) {
  {
    std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    failed_rank_ = rank;
    failure_ = text;
    deadlock_ = deadlock;
    failed_.store(true);
  }
  for (auto& group : groups()) group->abort();
}

std::exception_ptr World::failure(int rank) const {
  std::lock_guard lock(mutex_);
  if (deadlock_) return std::make_exception_ptr(DeadlockError(failure_, ""));
  return std::make_exception_ptr(RankFailure(failure_text(failed_rank_, rank, failure_), ""));
}

void World::check() const {
  if (failed_.load()) std::rethrow_exception(failure(context().rank));
}

void World::ended(int rank) {
  ended_[static_cast<size_t>(rank)].store(true);
  any_ended_.store(true);
  std::vector<std::shared_ptr<ThreadGroup>> dropped;
  if (ended_count_.fetch_add(1) + 1 == size_) {  // nobody is left who could ask; groups hold the world, so let go
    std::lock_guard lock(mutex_);
    for (auto& [key, entry] : groups_) dropped.push_back(std::move(entry.held));
  }
  for (auto& group : groups()) group->notify();
}

std::shared_ptr<ThreadGroup> World::group(const std::vector<int>& ranks, uint64_t parent, uint64_t count, bool member) {
  static std::atomic<uint64_t> ids{1};
  std::shared_ptr<ThreadGroup> group, dropped;  // freed after the lock
  std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& entry) { return entry.second.group.expired(); });
  auto entry = groups_.find({ranks, parent, count});
  if (entry != groups_.end()) group = entry->second.group.lock();
  auto make = [&] { return std::make_shared<ThreadGroup>(shared_from_this(), ranks, ids.fetch_add(1)); };
  // Who is no member needs no more than the names, and nobody needs to find what it has.
  if (!member) return group ? group : make();
  if (!group) {
    group = make();
    entry = groups_.insert_or_assign({ranks, parent, count}, Entry{group, group, 0}).first;
  }
  if (++entry->second.asked == ranks.size()) dropped = std::move(entry->second.held);
  return group;
}

}  // namespace tutti::comm
