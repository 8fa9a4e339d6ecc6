#include "comm/group/waits.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/check.h"
#include "base/per_process.h"
#include "comm/group/rank.h"

namespace tutti::comm {
namespace {

int32_t this_thread() { return static_cast<int32_t>(::syscall(SYS_gettid)); }

// A process can be killed while it holds the lock, so nobody waits for it for long.
class BoundedLock {
 public:
  explicit BoundedLock(std::atomic<bool>& flag) : flag_(flag) {
    for (int i = 0; i < 1000 && !held_; ++i) {
      held_ = !flag_.exchange(true, std::memory_order_acquire);
      if (!held_) ::sched_yield();
    }
  }
  ~BoundedLock() {
    if (held_) flag_.store(false, std::memory_order_release);
  }
  BoundedLock(const BoundedLock&) = delete;
  BoundedLock& operator=(const BoundedLock&) = delete;
  explicit operator bool() const { return held_; }

 private:
  std::atomic<bool>& flag_;
  bool held_ = false;
};

constexpr uint64_t kTurns = 5;  // more than a turn of ShmGroup's carrier: a wait looks a few times before it sleeps

struct LibraryThreads {
  std::mutex mutex;
  std::multimap<int, bool> threads;  // whether they work for ranks
  static LibraryThreads& instance() { return per_process<LibraryThreads, true>(); }
};

// How often a thread has been put to sleep so far, and whether it is asleep now.
struct Sleep {
  bool asleep = true;
  uint64_t count = 0;
};
Sleep sleep_of(int thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/status", thread));
  Sleep sleep;
  for (std::string word; file >> word;) {
    if (word == "State:" && file >> word) sleep.asleep = word == "S";
    if (word == "voluntary_ctxt_switches:" || word == "nonvoluntary_ctxt_switches:") {
      uint64_t count = 0;
      file >> count;
      sleep.count += count;
    }
  }
  return sleep;
}

}  // namespace

LibraryThread::LibraryThread(bool works) {
  auto& list = LibraryThreads::instance();
  std::lock_guard lock(list.mutex);
  list.threads.emplace(this_thread(), works);
}
LibraryThread::~LibraryThread() {
  auto& list = LibraryThreads::instance();
  std::lock_guard lock(list.mutex);
  auto mine = list.threads.find(this_thread());
  if (mine != list.threads.end()) list.threads.erase(mine);
}

WaitFor WaitFor::collective(uint64_t group, uint64_t number, const Call& call) {
  return {.group = group, .number = number, .call = header_of(brief(call))};
}

WaitFor WaitFor::collective(uint64_t group, const WorkState& work) {
  WaitFor wait{.group = group};
  if (auto recorded = work.owner ? work.owner->record.find(work.record) : std::nullopt) {
    wait.number = recorded->sequence;
    wait.call = header_of(recorded->call);
  }
  return wait;
}

WaitFor WaitFor::message(const WorkState& work, const std::vector<int>& ranks, uint64_t progress) {
  WaitFor wait{.any = work.peer < 0, .progress = progress};
  if (auto recorded = work.owner ? work.owner->record.find(work.record) : std::nullopt)
    wait.call = header_of(recorded->call);
  for (size_t k = 0; k < ranks.size(); ++k)
    if (work.peer < 0 ? static_cast<int>(k) != work.rank : static_cast<int>(k) == work.peer) wait.add(ranks[k]);
  return wait;
}

WaitBoard::Entry::Entry(WaitBoard& board, int rank) : rank_(board.ranks_[rank]) {
  BoundedLock lock(rank_.locked);
  rank_.quiet.store(0);  // until the next look
  if (lock)
    for (auto& slot : rank_.slots)
      if (slot.thread == 0) {
        slot_ = &slot;
        slot.thread = this_thread();
        slot.stamp = ++rank_.stamps;
        slot.beats = 0;
        slot.wait = {.indirect = true};  // until set() says more
        return;
      }
  rank_.unknown.fetch_add(1);
}

WaitBoard::Entry::~Entry() {
  if (!slot_) {
    rank_.unknown.fetch_sub(1);
    return;
  }
  // The slot is this thread's: should the lock not be had, only a reader would see half of the change.
  BoundedLock lock(rank_.locked);
  slot_->stamp = ++rank_.stamps;
  slot_->thread = 0;
}

void WaitBoard::Entry::set(const WaitFor& wait) {
  if (!slot_) return;
  BoundedLock lock(rank_.locked);
  const WaitFor& old = slot_->wait;
  bool same = old.group == wait.group && old.number == wait.number && old.any == wait.any &&
              old.indirect == wait.indirect && old.count == wait.count && old.progress == wait.progress &&
              std::equal(old.peers, old.peers + WaitFor::kPeers, wait.peers);
  if (!same) {
    slot_->wait = wait;
    slot_->stamp = ++rank_.stamps;
  }
  if (lock) ++slot_->beats;
}

void WaitBoard::enter(int rank) { ranks_[rank].thread.store(this_thread()); }

std::optional<WaitBoard::Slots> WaitBoard::read(RankWaits& rank) {
  BoundedLock lock(rank.locked);
  if (!lock || rank.unknown.load() > 0) return {};
  Slots slots;
  for (const auto& slot : rank.slots)
    if (slot.thread != 0) slots.push_back(slot);
  return slots;
}

// Whether threads of this process that are neither ranks nor the library's have been asleep since the last time.
bool WaitBoard::sample() {
#if defined(TUTTI_SANITIZE_THREAD) || defined(__SANITIZE_THREAD__)
  return true;  // it has a thread of its own that runs all the time
#else
  std::set<int> known;
  moving_ = false;
  for (int r = own_ < 0 ? 0 : own_; r < (own_ < 0 ? size_ : own_ + 1); ++r) {
    known.insert(ranks_[r].thread.load());
    if (auto slots = read(ranks_[r]))
      for (const auto& slot : *slots) known.insert(slot.thread);
  }
  std::map<int, uint64_t> now;
  {
    auto& list = LibraryThreads::instance();
    std::lock_guard lock(list.mutex);
    for (auto [thread, works] : list.threads)
      if (known.insert(thread).second && works) {
        Sleep sleep = sleep_of(thread);
        now[thread] = sleep.count;
        // One that looks for work now and then may be doing that now; what it had to do at the last look is done.
        moving_ = moving_ || (!sleep.asleep && sleep.count < switches_[thread] + kTurns);
      }
  }
  bool quiet = true;
  helpers_ = false;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    int thread = std::atoi(entry.path().filename().c_str());
    if (known.contains(thread)) continue;
    helpers_ = true;
    Sleep sleep = sleep_of(thread);
    auto before = switches_.find(thread);
    quiet = quiet && sleep.asleep && before != switches_.end() && before->second == sleep.count;
    if (sleep.asleep) now[thread] = sleep.count;
  }
  switches_ = std::move(now);
  return quiet && !error;
#endif
}

bool WaitBoard::blocked(int rank, const Slots& now, const Slots& before) const {
  if (own_ >= 0 && ranks_[rank].quiet.load() < 2) return false;
  if (now.size() != before.size()) return false;
  bool in_wait = false;
  for (size_t k = 0; k < now.size(); ++k) {
    if (now[k].stamp != before[k].stamp) return false;
    in_wait = in_wait || now[k].thread == ranks_[rank].thread.load();
  }
  return in_wait;
}

// Whether all waits of the ranks that seem stuck have beaten twice since they were first seen to be stuck together.
bool WaitBoard::still_beat(const std::vector<Slots>& now, const std::vector<char>& free) {
  decltype(suspects_) beats;
  bool same = true, enough = true;
  for (size_t r = 0; r < now.size(); ++r)
    for (const auto& slot : now[r]) {
      if (free[r]) continue;
      beats[{r, slot.stamp}] = slot.beats;
      auto seen = suspects_.find({r, slot.stamp});
      same = same && seen != suspects_.end();
      enough = enough && same && slot.beats >= seen->second + 2;
    }
  same = same && beats.size() == suspects_.size();
  if (!same) suspects_ = std::move(beats);
  return same && enough;
}

std::optional<std::string> WaitBoard::look() {
  std::unique_lock lock(looking_, std::try_to_lock);
  if (!lock || Clock::now() < last_ + period()) return {};
  last_ = Clock::now();
  if (!sample()) quiet_since_ = Clock::time_point::max();
  if (quiet_since_ == Clock::time_point::max()) {
    quiet_since_ = Clock::now();
    quiet_ = 0;
  } else if (!helpers_ || Clock::now() >= quiet_since_ + kPatience) {
    ++quiet_;
  }
  if (own_ >= 0) ranks_[own_].quiet.store(moving_ ? 0 : quiet_);
  std::vector<Slots> now(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) now[static_cast<size_t>(r)] = read(ranks_[r]).value_or(Slots{});
  std::vector<Slots> before = std::exchange(before_, now);
  if (before.empty() || (own_ < 0 && (quiet_ < 1 || moving_))) return {};
  std::vector<char> free(now.size());
  for (size_t r = 0; r < now.size(); ++r) free[r] = !blocked(static_cast<int>(r), now[r], before[r]);
  auto gets_on = [&](const WaitFor& w) {
    if (w.indirect) return false;
    auto is_free = [&](int32_t peer) { return free[static_cast<size_t>(peer)] != 0; };
    if (w.any) return w.count > WaitFor::kPeers || std::any_of(w.known().begin(), w.known().end(), is_free);
    return std::all_of(w.known().begin(), w.known().end(), is_free);
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 0; r < now.size(); ++r)
      if (!free[r] && std::any_of(now[r].begin(), now[r].end(), [&](const auto& s) { return gets_on(s.wait); }))
        free[r] = changed = true;
  }
  bool stuck = std::find(free.begin(), free.end(), 0) != free.end();
  if (!still_beat(now, free) || !stuck) return {};
  return describe_cycle(now, free);
}

std::string WaitBoard::describe_cycle(const std::vector<Slots>& slots, const std::vector<char>& free) const {
  struct Step {
    int rank, peer;
    const WaitFor* wait;
  };
  std::vector<Step> way;
  auto at = static_cast<int>(std::find(free.begin(), free.end(), 0) - free.begin());
  auto been = [&](int rank) {
    return std::find_if(way.begin(), way.end(), [&](const Step& s) { return s.rank == rank; });
  };
  while (been(at) == way.end()) {
    Step step{at, -1, nullptr};
    for (const auto& slot : slots[static_cast<size_t>(at)])
      for (int32_t peer : slot.wait.known())
        if (step.peer < 0 && !free[static_cast<size_t>(peer)]) step = {at, peer, &slot.wait};
    // Only indirect waits: another rank of those that are stuck has a direct one. (A rank whose worker is between two
    // calls has changed since the last look, and would not be here.)
    if (step.peer < 0) return fmt::format("rank {} waits for work of its own that cannot go on", at);
    way.push_back(step);
    at = step.peer;
  }
  std::string text = "ranks wait for each other in a circle:", hint;
  for (auto step = been(at); step != way.end(); ++step) {
    const WaitFor& w = *step->wait;
    bool message = w.call.kind == Kind::send || w.call.kind == Kind::recv;
    text += fmt::format(
        "\n  rank {} waits for rank {}{} in {}{}", step->rank, step->peer, w.any && w.count > 1 ? " (or another)" : "",
        message ? "" : fmt::format("collective {} of a group, ", w.number), describe(CallFacts{w.call}));
    if (hint.empty()) hint = advice(w.call.purpose());
  }
  return text + hint;
}

}  // namespace tutti::comm
