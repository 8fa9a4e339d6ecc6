// Messages between processes of a host: a ring of bytes from each rank to each other, in shared memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "comm/event.h"
#include "comm/group/facts.h"
#include "comm/group/work.h"

namespace tutti::comm {

/// Written by one process, read by another; all zeros is a good beginning.
struct Ring {
  static constexpr uint64_t kBytes = 64 << 10;
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
  alignas(64) std::byte data[kBytes];

  /// As many of the bytes as there is room for, or as have come.
  size_t put(const std::byte* from, size_t bytes);
  size_t take(std::byte* to, size_t bytes);
};

/// One rank's messages in a group. A message that nobody has asked for yet is kept by its receiver as soon as that one
/// looks; one that is longer than the ring ends for its sender when the receiver has begun to take it.
class RingMessages {
 public:
  /// rings[from * size + to]
  RingMessages(Ring* rings, const std::vector<int>& ranks, int rank)
      : rings_(rings), ranks_(ranks), me_(rank), sends_(ranks.size()), arriving_(ranks.size()) {}

  void send(int to, int64_t tag, Call call, const std::shared_ptr<WorkState>& work);
  void receive(int from, int64_t tag, Call call, const std::shared_ptr<WorkState>& work);
  /// Moves what can be moved now; says whether anything did. Does nothing while another thread is at it, unless it is
  /// told to wait for that.
  bool progress(bool wait = false);
  /// Grows when anything has moved.
  uint64_t moved() const { return moved_.load(); }
  /// Whether something waits for others.
  bool pending();
  struct Withdrawn {
    bool sends;
    std::string call;
  };
  /// Takes back what nobody has begun to move; `always`: also what is on its way, after which no messages are possible.
  std::optional<Withdrawn> withdraw(const WorkState& work, bool always);
  std::vector<std::shared_ptr<WorkState>> withdraw_all();

 private:
  // The last byte of a message. Who cancels one that has begun to leave goes on with a copy of it, and its receiver is
  // told at the end that it is none.
  static constexpr std::byte kWhole{0}, kTakenBack{1};
  struct Header {
    int64_t tag = 0, count = 0;
    uint64_t bytes = 0;
    CallHeader call = {};
  };
  struct Outgoing {
    Header header;
    Call call;
    std::shared_ptr<WorkState> work;
    uint64_t done = 0;                 // bytes of header, data and the last byte
    std::vector<std::byte> rest = {};  // of one that was taken back: what of its data has to go all the same
    std::byte last{kWhole};
  };
  struct Receive {
    int from;
    int64_t tag;
    Call call;
    std::shared_ptr<WorkState> work;
  };
  struct Incoming {
    int from;
    Header header;
    uint64_t done = 0;  // bytes of header, data and the last byte
    std::vector<std::byte> kept;
    std::byte last{kWhole};
    std::optional<Receive> receive;
    bool known() const { return done >= sizeof(Header); }
    bool whole() const { return known() && done == sizeof(Header) + header.bytes + 1; }
  };
  static std::span<const std::byte> next_of(const Outgoing& message);
  static std::span<std::byte> next_of(Incoming& message);
  void taken_back(Incoming& message);
  bool push(int to);
  bool pull(int from);
  void match(Incoming& message);
  std::exception_ptr misfit(const Incoming& message, const Receive& receive) const;
  void deliver(Incoming& message);

  Ring* const rings_;
  const std::vector<int> ranks_;
  const int me_;
  std::mutex mutex_;
  bool broken_ = false;  // part of a message is lost: what follows in the ring would be taken for a header
  std::atomic<uint64_t> moved_{0};
  std::vector<std::deque<Outgoing>> sends_;
  std::vector<std::optional<Incoming>> arriving_;
  std::list<Incoming> kept_;  // whole, in the order in which they came
  std::list<Receive> receives_;
  std::vector<std::pair<std::shared_ptr<WorkState>, std::exception_ptr>> completed_;
};

}  // namespace tutti::comm
