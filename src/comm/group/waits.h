// Who waits for whom, so that ranks which wait for each other in a circle are told so.
//
// Note [Cycles of waiting ranks]
// A rank that has waited for a while writes on the board, which all ranks of the world can read, in which call it waits
// and for whom; every now and then it looks at the whole board. A rank is blocked if its own thread is in such a wait,
// nothing of it has changed since the last look, and no other thread of the process has run meanwhile (it could be
// about to do what is waited for). A blocked rank gets on if somebody it waits for (all of them, in a collective) is
// not blocked or gets on; those for whom that is not so wait for each other, and would until their timeout. Silence is
// not enough for that, though: a process that is stopped, or a thread that gets no core, may have what it waits for and
// not know it. So each wait beats: it has looked whether it is over, and it is not. When all in a circle have beaten
// twice more, the second of these looks began after all had been seen there, and saw what the others had done before.
// Waits that give up by themselves (Work::wait_for) are not written down. A process may have other threads, of its own
// or of OpenMP, which sleep and might yet do what is waited for: there, all must have been asleep for kPatience. What
// cannot be seen, and is taken for nothing, is a helper that sleeps longer than that and makes the awaited call then.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/event.h"
#include "comm/group/facts.h"
#include "comm/group/record.h"
#include "comm/group/work.h"

namespace tutti::comm {

/// What one thread waits for.
struct WaitFor {
  static constexpr size_t kPeers = 8;
  uint64_t group = 0, number = 0;  // of a collective
  bool any = false;                // one of the peers is enough
  bool indirect = false;           // for what another thread of this rank does
  uint32_t count = 0;              // of peers
  int32_t peers[kPeers] = {};      // in the world; the first of them
  uint64_t progress = 0;           // changes when the wait has got nearer to its end
  CallHeader call = {};

  static WaitFor collective(uint64_t group, uint64_t number, const Call& call);
  /// What a work is for stands in its rank's flight record: its transport may be using its memory for another.
  static WaitFor collective(uint64_t group, const WorkState& work);
  static WaitFor message(const WorkState& work, const std::vector<int>& ranks, uint64_t progress = 0);
  void add(int peer) {
    if (count < kPeers) peers[count] = peer;
    ++count;
  }
  std::span<const int32_t> known() const { return {peers, std::min<size_t>(count, kPeers)}; }
};

/// One rank's part of the board, in memory that all ranks see; all zeros is a good beginning.
struct RankWaits {
  static constexpr size_t kSlots = 4;
  struct Slot {
    int32_t thread = 0;  // 0: free
    uint64_t stamp = 0;  // changes with every change of what is waited for; no other wait of the rank has the same
    uint64_t beats = 0;  // how often it was found not to be over
    WaitFor wait;
  };
  std::atomic<bool> locked{false};
  std::atomic<int32_t> thread{0};    // the rank's own
  std::atomic<uint32_t> quiet{0};    // how many looks nothing else has run for
  std::atomic<uint32_t> unknown{0};  // waits that had no room here
  uint64_t stamps = 0;
  Slot slots[kSlots];
};

class WaitBoard {
 public:
  /// `own` is this process's rank; -1: all ranks are threads of it.
  WaitBoard(RankWaits* ranks, int size, int own) : ranks_(ranks), size_(size), own_(own) {}
  /// The calling thread is this rank.
  void enter(int rank);
  /// How long a rank waits before it writes that down, and between looks.
  std::chrono::milliseconds period() const { return std::chrono::milliseconds(100 + size_); }
  /// Called by ranks that wait. The cycle, if one was found.
  std::optional<std::string> look();

  /// A wait that is on the board while this lives.
  class Entry {
   public:
    Entry(WaitBoard& board, int rank);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    void set(const WaitFor& wait);

   private:
    RankWaits& rank_;
    RankWaits::Slot* slot_ = nullptr;
  };

 private:
  using Slots = std::vector<RankWaits::Slot>;  // that are in use
  static std::optional<Slots> read(RankWaits& rank);
  bool sample();
  bool blocked(int rank, const Slots& now, const Slots& before) const;
  bool still_beat(const std::vector<Slots>& now, const std::vector<char>& free);
  std::string describe_cycle(const std::vector<Slots>& slots, const std::vector<char>& free) const;

  RankWaits* const ranks_;
  const int size_, own_;
  std::mutex looking_;
  Clock::time_point last_{};
  std::vector<Slots> before_;
  std::map<std::pair<size_t, uint64_t>, uint64_t> suspects_;  // rank and stamp of waits in a circle, their beats then
  std::map<int, uint64_t> switches_;                          // of the threads of this process that are no ranks
  static constexpr auto kPatience = std::chrono::seconds(10);
  bool helpers_ = false;  // there are such threads
  bool moving_ = false;   // a thread of the library is about to do something for this rank
  Clock::time_point quiet_since_ = Clock::time_point::max();
  uint32_t quiet_ = 0;
};

/// While it lives, the calling thread is one that the library started, and does nothing of its own accord. `works`: it
/// sleeps unless there is something to do for ranks, which others may be waiting for.
class LibraryThread {
 public:
  explicit LibraryThread(bool works = false);
  ~LibraryThread();
  LibraryThread(const LibraryThread&) = delete;
  LibraryThread& operator=(const LibraryThread&) = delete;
};

/// A wait that goes on the board when it takes long.
class LongWait {
 public:
  LongWait(WaitBoard& board, int rank) : board_(board), rank_(rank) {}
  /// Called now and then; `wait` says for whom it waits. The cycle that was found, if there is one.
  template <class Wait>
  std::optional<std::string> tick(const Wait& wait) {
    if (Clock::now() < begin_ + board_.period()) return {};
    if (!entry_) entry_.emplace(board_, rank_);
    entry_->set(wait());
    return board_.look();
  }

 private:
  WaitBoard& board_;
  const int rank_;
  const Clock::time_point begin_ = Clock::now();
  std::optional<WaitBoard::Entry> entry_;
};

}  // namespace tutti::comm
