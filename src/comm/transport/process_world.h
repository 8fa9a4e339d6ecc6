// Ranks that are processes of one host: who they are, who of them has failed.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <tuple>
#include <vector>

#include "base/cores.h"
#include "comm/event.h"
#include "comm/group/facts.h"
#include "comm/group/rank.h"
#include "comm/group/waits.h"
#include "comm/transport/segment.h"

namespace tutti::comm {

class ShmGroup;

/// What a rank did last, for the others' error messages. Written by the rank, read while it may be written: a version
/// that is odd or has changed says so.
struct LastCall {
  std::atomic<uint64_t> version{0};
  std::atomic<uint64_t> ended{0};  // the version of the newest call that has ended
  uint64_t group = 0, number = 0;
  int64_t when = 0;  // in ticks
  bool known = false;
  CallHeader call = {};
};

/// In shared memory; all zeros is a good beginning.
struct alignas(64) SharedWorld {
  static constexpr size_t kText = 4096;
  struct Member {
    std::atomic<int32_t> pid{0};
    std::atomic<uint32_t> ended{0};
    std::atomic<uint32_t> over{0};  // see over()
    LastCall last;
  };
  static constexpr int kCores = 1024;                      // of higher numbers nothing is known
  std::array<std::atomic<uint64_t>, kCores / 64> cores{};  // those that some rank may run on, a bit each
  std::atomic<int32_t> came{0};                            // ranks that have said so
  std::atomic<uint32_t> failing{0}, failed{0};
  int32_t failed_rank = 0;
  char kind[32] = {};  // of the error: its class
  char text[kText] = {};

  static size_t bytes(int size) {
    return sizeof(SharedWorld) + static_cast<size_t>(size) * (sizeof(Member) + sizeof(RankWaits));
  }
  Member& member(int rank) { return reinterpret_cast<Member*>(this + 1)[rank]; }
  RankWaits* waits(int size) { return reinterpret_cast<RankWaits*>(&member(size)); }
  /// The first to say so is right.
  void fail(int rank, const std::string& kind, const std::string& text);
};

class ProcessWorld : public std::enable_shared_from_this<ProcessWorld> {
 public:
  /// `name` is the same for all ranks, and nobody else's. `here`: how many of them share this host, if not all.
  ProcessWorld(Segment segment, std::string name, int rank, int size, std::chrono::milliseconds timeout, int here = 0);
  ~ProcessWorld();
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const std::string& name() const { return name_; }
  /// Whether waiting ranks may keep their cores: there is one for each rank of this host.
  bool spin() const {
    int known = spin_.load(std::memory_order_relaxed);
    return known >= 0 ? known != 0 : find_spin();
  }
  SharedWorld& shared() const { return *reinterpret_cast<SharedWorld*>(segment_.data()); }

  /// `kind`: the class of the error that the rank itself gets.
  void fail(int rank, const std::string& text, const char* kind = "RankFailure") {
    shared().fail(rank, kind, text);
    failing_.request_stop();
  }
  /// Stops when this process says that the world has failed; of others' failures it knows nothing.
  std::stop_token failing() const { return failing_.get_token(); }
  bool failed() const { return shared().failed.load() != 0; }
  std::exception_ptr failure() const;
  void check() const;
  // Note [Ranks whose body is over]
  // What a rank has begun and not waited for is done before it ends, which may take its peers. So that ranks do not
  // wait for each other there, each in another group, for calls that will never come: whose body is over says how many
  // calls it has made in its groups, those that have not begun too, and no others come.
  void over();
  bool is_over(int rank) const { return shared().member(rank).over.load() != 0; }
  void ended();
  bool has_ended(int rank) const { return shared().member(rank).ended.load() != 0; }
  /// Finds out whether a process is no more, and fails the world if it ended without saying so. Called while waiting.
  void watch();
  /// It does nothing any more, as far as it has said, or watch() has found out.
  bool is_gone(int rank) const { return has_ended(rank) || gone_[static_cast<size_t>(rank)].load(); }

  const std::shared_ptr<RankState>& state(int) const { return state_; }  // of this rank: others' are elsewhere
  /// Called while waiting: ranks that wait for each other in a circle fail.
  template <class Wait>
  void look_for_cycle(LongWait& board, const Wait& wait) {
    if (auto cycle = board.tick(wait)) fail(rank_, *cycle, "DeadlockError");
  }
  WaitBoard& waits() { return waits_; }
  /// Where other ranks see it: the rank has begun a call. Returns what RankState::call_ended() wants to know.
  uint64_t note(uint64_t group, uint64_t number, const CallHeader& call);
  /// A call that ends when this does.
  struct Noted {
    RankState& rank;
    uint64_t number;
    ~Noted() { rank.tell_ended(number); }
  };
  /// "its last call was ..., 2.1 s ago, where it still is", of any rank of this host.
  std::string last_call(int rank, uint64_t group) const;

  std::shared_ptr<ShmGroup> group(const std::vector<int>& ranks, uint64_t parent, uint64_t count);

 private:
  bool find_spin() const;
  const Segment segment_;
  const std::string name_;
  const int rank_, size_, here_;
  const std::chrono::milliseconds timeout_;
  mutable std::atomic<int> spin_{-1};  // not known before all of this host have come
  mutable CoreSharers sharers_;
  const std::shared_ptr<RankState> state_;
  WaitBoard waits_;
  std::mutex watching_, noting_;
  Clock::time_point failing_since_{};
  std::stop_source failing_;
  std::vector<int> pidfds_;  // -1: not yet open
  std::vector<std::atomic<bool>> gone_;
  std::mutex mutex_;
  std::map<std::tuple<std::vector<int>, uint64_t, uint64_t>, std::weak_ptr<ShmGroup>> groups_;
};

}  // namespace tutti::comm
