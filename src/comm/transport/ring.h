// Messages between processes of a host: a ring of bytes from each rank to each other, in shared memory. As between
// hosts (host_messages.h), short ones go at once, and are kept by their receiver until somebody asks for them. Of long
// ones only an offer goes; the bytes follow when the receiver says that it is ready, or its refusal comes back: so they
// are never kept, and their sender learns of a receive that they do not fit.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "comm/event.h"
#include "comm/group/facts.h"
#include "comm/group/work.h"

namespace tutti::comm {

/// Where writing and reading are in a ring of so many bytes; written by one process, read by another; all zeros is a
/// good beginning.
template <uint64_t Bytes>
struct RingEnds {
  static constexpr uint64_t kBytes = Bytes;
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};

  /// As many of the bytes as there is room for, or as have come. `data`: the ring's.
  size_t put(std::byte* data, const std::byte* from, size_t bytes) {
    uint64_t begin = written.load(std::memory_order_relaxed);
    size_t n = std::min<size_t>(bytes, kBytes - (begin - read.load()));
    size_t first = std::min<size_t>(n, kBytes - begin % kBytes);
    if (first) std::memcpy(data + begin % kBytes, from, first);
    if (n > first) std::memcpy(data, from + first, n - first);
    if (n) written.store(begin + n);
    return n;
  }
  size_t take(const std::byte* data, std::byte* to, size_t bytes) {
    uint64_t begin = read.load(std::memory_order_relaxed);
    size_t n = std::min<size_t>(bytes, written.load() - begin);
    size_t first = std::min<size_t>(n, kBytes - begin % kBytes);
    if (first) std::memcpy(to, data + begin % kBytes, first);
    if (n > first) std::memcpy(to + first, data, n - first);
    if (n) read.store(begin + n);
    return n;
  }
};

/// The same, with its bytes.
template <uint64_t Bytes>
struct Ring : RingEnds<Bytes> {
  alignas(64) std::byte data[Bytes];

  size_t put(const std::byte* from, size_t bytes) { return RingEnds<Bytes>::put(data, from, bytes); }
  size_t take(std::byte* to, size_t bytes) { return RingEnds<Bytes>::take(data, to, bytes); }
};

/// Of a group's messages. The bytes lie elsewhere: a rank looks at the heads of all rings, and most of them are never
/// used.
using RingHead = RingEnds<64 << 10>;

/// One rank's messages in a group.
class RingMessages {
 public:
  /// Sees to it that memory can be touched. False: it cannot, and there will be no messages.
  using Reserve = std::function<bool(const std::byte* begin, size_t bytes)>;
  /// rings[from * size + to], and RingHead::kBytes of data for each, in the same order.
  RingMessages(RingHead* rings, std::byte* data, const std::vector<int>& ranks, int rank, Reserve reserve = {})
      : rings_(rings),
        data_(data),
        ranks_(ranks),
        me_(rank),
        reserve_(std::move(reserve)),
        data_reserved_(ranks.size()),
        sends_(ranks.size()),
        arriving_(ranks.size()) {}

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
  /// Takes back what the other side has not come to; `always`: also what is on its way, after which no messages are
  /// possible.
  std::optional<Withdrawn> withdraw(const WorkState& work, bool always);
  std::vector<std::shared_ptr<WorkState>> withdraw_all();

 private:
  // The last byte of a message. Who cancels one that has begun to leave goes on with a copy of it, and its receiver is
  // told at the end that it is none.
  static constexpr std::byte kWhole{0}, kTakenBack{1};
  static constexpr uint64_t kShort = 64 << 10;  // bytes of messages that go at once
  enum class Type : uint32_t { message, offer, ready, refused, withdrawn, data };
  struct Header {
    Type type = Type::message;
    uint32_t reserved = 0;
    uint64_t id = 0;  // of an offer, its sender's, and of all that follows from it
    int64_t tag = 0, count = 0;
    uint64_t bytes = 0;
    CallHeader call = {};
    bool has_data() const { return type == Type::message || type == Type::data; }
    uint64_t data_end() const { return sizeof(Header) + bytes; }
    uint64_t end() const { return has_data() ? data_end() + 1 : sizeof(Header); }
  };
  struct Outgoing {
    Header header;
    Call call = {};
    std::shared_ptr<WorkState> work = nullptr;
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
    bool whole() const { return known() && done == header.end(); }
  };
  struct Offer {  // made to another
    int to;
    Call call;
    std::shared_ptr<WorkState> work;
  };
  struct Accepted {  // made by another: its data will come
    int from;
    uint64_t id;
    Receive receive;
  };
  static std::span<const std::byte> next_of(const Outgoing& message);
  static std::span<std::byte> next_of(Incoming& message);
  void post(int to, Header header) { sends_[static_cast<size_t>(to)].push_back({header}); }
  void want_again(Receive receive);
  void take(Incoming& message);
  void answered(int from, const Header& answer);
  void offer_withdrawn(int from, uint64_t id);
  void find_place(Incoming& message);
  void came(Incoming& message);
  bool push(int to);
  bool pull(int from);
  void match(Incoming& message);
  std::exception_ptr misfit(const Incoming& message, const Receive& receive) const;

  size_t index(int from, int to) const { return static_cast<size_t>(from) * ranks_.size() + static_cast<size_t>(to); }
  std::byte* data(int from, int to) const { return data_ + index(from, to) * RingHead::kBytes; }

  RingHead* const rings_;
  std::byte* const data_;
  const std::vector<int> ranks_;
  const int me_;
  const Reserve reserve_;
  std::vector<size_t> data_reserved_;  // bytes of the rings that this rank writes: as many as it has come to
  bool rings_reserved_ = false;
  bool reserve_rings();
  bool reserve_data(int to, size_t bytes);
  std::mutex mutex_;
  bool broken_ = false;  // part of a message is lost: what follows in the ring would be taken for a header
  std::atomic<uint64_t> moved_{0};
  std::vector<std::deque<Outgoing>> sends_;
  std::vector<std::optional<Incoming>> arriving_;
  std::list<Incoming> kept_;  // whole, in the order in which they came
  std::list<Receive> receives_;
  uint64_t next_id_ = 0;
  std::map<uint64_t, Offer> offers_;
  std::list<Accepted> accepted_;
  std::vector<std::pair<std::shared_ptr<WorkState>, std::exception_ptr>> completed_;
};

}  // namespace tutti::comm
