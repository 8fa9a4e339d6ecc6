#include "comm/transport/process_world.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/cores.h"
#include "comm/transport/group_id.h"
#include "comm/transport/progress.h"
#include "comm/transport/shm.h"

namespace tutti::comm {
void SharedWorld::fail(int rank, const std::string& error_kind, const std::string& error_text) {
  uint32_t expected = 0;
  if (!failing.compare_exchange_strong(expected, 1)) return;
  failed_rank = rank;
  error_kind.copy(kind, sizeof kind - 1);
  error_text.copy(text, kText - 1);
  failed.store(1);
}

ProcessWorld::ProcessWorld(Segment segment, std::string name, int rank, int size, std::chrono::milliseconds timeout,
                           int here)
    : segment_(std::move(segment)),
      name_(std::move(name)),
      rank_(rank),
      size_(size),
      here_(here > 0 ? here : size),
      timeout_(timeout),
      state_(std::make_shared<RankState>(rank, size)),
      waits_(shared().waits(size), size, rank),
      pidfds_(static_cast<size_t>(size), -1),
      gone_(static_cast<size_t>(size)) {
  for (int core : process_cores())
    if (core < SharedWorld::kCores) shared().cores[static_cast<size_t>(core) / 64].fetch_or(uint64_t{1} << core % 64);
  shared().came.fetch_add(1);
  // Until all have come: a starter that binds ranks to cores has divided them.
  if (core_count() == ::sysconf(_SC_NPROCESSORS_ONLN)) sharers_.set(here_ - 1);
  state_->spins = [this] { return spin(); };
  shared().member(rank).pid.store(::getpid());
  waits_.enter(rank);
  state_->newest_ended.store(&shared().member(rank).last.ended);
}

// Who starts ranks may have bound each to cores of its own: what counts is what all of them have together.
bool ProcessWorld::find_spin() const {
  const SharedWorld& s = shared();
  if (s.came.load() < here_) return here_ <= static_cast<int>(process_cores().size());
  int cores = 0;
  for (const auto& word : s.cores) cores += std::popcount(word.load());
  if (cores > 0) sharers_.set((here_ * core_count() + cores - 1) / cores - 1);
  spin_.store(here_ <= cores ? 1 : 0, std::memory_order_relaxed);
  return here_ <= cores;
}

ProcessWorld::~ProcessWorld() {
  state_->spins = nullptr;
  state_->newest_ended.store(nullptr);
  for (int fd : pidfds_)
    if (fd >= 0) ::close(fd);
}

std::exception_ptr ProcessWorld::failure() const {
  SharedWorld& s = shared();
  if (std::string_view(s.kind) == "DeadlockError") return std::make_exception_ptr(DeadlockError(s.text, ""));
  return std::make_exception_ptr(RankFailure(failure_text(s.failed_rank, rank_, s.text), ""));
}

void ProcessWorld::check() const {
  if (failed()) std::rethrow_exception(failure());
}

void ProcessWorld::over() {
  std::vector<std::shared_ptr<ShmGroup>> groups;
  {
    std::lock_guard lock(mutex_);
    for (auto& [key, weak] : groups_)
      if (auto group = weak.lock()) groups.push_back(std::move(group));
  }
  for (auto& group : groups) group->over();
  shared().member(rank_).over.store(1);
}

void ProcessWorld::ended() {
  shared().member(rank_).ended.store(1);
  int ended = 0;
  for (int r = 0; r < size_; ++r) ended += has_ended(r) && shared().member(r).pid.load() != 0;  // of this host
  // Groups that not all of their ranks made still have names.
  if (ended == here_) Segment::remove_all(name_);
}

void ProcessWorld::watch() {
  std::unique_lock lock(watching_, std::try_to_lock);
  if (!lock) return;  // another thread is looking
  // A rank that was killed while it said what is wrong cannot finish that.
  if (shared().failing.load() && !failed()) {
    if (failing_since_ == Clock::time_point()) failing_since_ = Clock::now();
    if (Clock::now() - failing_since_ > std::chrono::seconds(1)) shared().failed.store(1);
  }
  auto killed = [&](int r) {
    gone_[static_cast<size_t>(r)].store(true);
    fail(r,
         fmt::format("its process {} was killed, or ended without leaving its world", shared().member(r).pid.load()));
  };
  std::vector<pollfd> polls;
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    int& fd = pidfds_[static_cast<size_t>(r)];
    SharedWorld::Member& member = shared().member(r);
    if (r == rank_ || member.pid.load() == 0) continue;
    if (fd < 0) {
      fd = static_cast<int>(::syscall(SYS_pidfd_open, member.pid.load(), 0));
      if (fd < 0 && errno == ESRCH && !member.ended.load()) killed(r);  // and is no more
    }
    if (fd < 0) continue;
    polls.push_back({fd, POLLIN, 0});
    ranks.push_back(r);
  }
  if (polls.empty() || ::poll(polls.data(), polls.size(), 0) <= 0) return;
  for (size_t k = 0; k < polls.size(); ++k)
    if (polls[k].revents && !has_ended(ranks[k])) killed(ranks[k]);
}

uint64_t ProcessWorld::note(uint64_t group, uint64_t number, const CallHeader& call) {
  std::lock_guard lock(noting_);  // several threads may use the rank's groups
  LastCall& last = shared().member(rank_).last;
  uint64_t version = last.version.load(std::memory_order_relaxed);
  last.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  last.group = group;
  last.number = number;
  last.when = ticks_now();
  last.known = true;
  last.call = call;
  last.version.store(version + 2, std::memory_order_release);
  return version + 2;
}

std::string ProcessWorld::last_call(int rank, uint64_t group) const {
  const LastCall& last = shared().member(rank).last;
  for (int attempt = 0; attempt < 100; ++attempt) {
    uint64_t version = last.version.load();
    if (version % 2) continue;
    CallFacts facts{last.call};
    facts.header.bound();
    uint64_t of_group = last.group, number = last.number;
    int64_t when = last.when;
    bool known = last.known, ended = last.ended.load(std::memory_order_acquire) >= version;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (last.version.load() != version) continue;
    if (!known) return "it has called nothing";
    bool message = facts.header.kind == Kind::send || facts.header.kind == Kind::recv;
    std::string which =
        message ? "" : fmt::format("collective {} of {} group, ", number, of_group == group ? "this" : "another");
    return fmt::format("its last call was {}{}, {:.3g} s ago, {}", which, describe(facts),
                       TickScale().seconds_since(when),
                       ended ? "which is done" : "where it still is" + advice(facts.header.purpose()));
  }
  return "it is busy calling";
}

std::shared_ptr<ShmGroup> ProcessWorld::group(const std::vector<int>& ranks, uint64_t parent, uint64_t count) {
  std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = groups_[{ranks, parent, count}];
  if (auto group = entry.lock()) return group;
  // The same on all members: they find each other's memory by it.
  uint64_t id = group_id(parent, count, ranks);
  auto group = freed_elsewhere(std::make_unique<ShmGroup>(shared_from_this(), ranks, id));
  entry = group;
  return group;
}

}  // namespace tutti::comm
