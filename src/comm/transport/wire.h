// Bytes between processes that need not share a host: what engines (UCX, Gloo) are wanted for, and no more.
//
// Note [Names of messages]
// Every message has a name that is used once: its group, sender, channel and number. Its receiver says where the bytes
// of a name belong, before or after they have come, so that nothing depends on the order of arrival, on engines'
// own matching, or on a group being there already. Mail is the exception: bytes that go to whoever looks after the
// mail, in the order of their numbers.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "comm/event.h"
#include "tutti/comm/store.h"

namespace tutti::comm {

enum class Channel : uint32_t { hello, facts, give, result, part, message, mail };

struct WireName {
  uint64_t group = 0, number = 0;
  int32_t from = 0;  // in the world
  Channel channel = Channel::mail;
  friend auto operator<=>(const WireName&, const WireName&) = default;
};

/// Messages on their way: how many. Lives until that is zero, or the wire has been cut.
struct Pending {
  std::atomic<int64_t> left{0};
  // Note [Tentative messages]
  // Data that leave before it is known whether the others make the same call. They are sent without asking the
  // receiver, who may never want them; one of another length than expected counts as come, since the facts of the call
  // will say what is wrong; and when they have, drop() clears away what nobody will ask for.
  bool tentative = false;
  std::atomic<bool> misfit{false};
  std::function<void()> when_done = {};  // called by whatever thread moves the last; must be quick
  bool done() const { return left.load(std::memory_order_acquire) == 0; }
};

struct Mail {
  WireName name;
  std::vector<std::byte> bytes;
};

class Wire {
 public:
  explicit Wire(int rank, int size)
      : rank_(rank), broken_(static_cast<size_t>(size)), sent_(static_cast<size_t>(size)) {}
  virtual ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// The bytes stay as they are until the message has left.
  virtual void send(int to, WireName name, const void* data, size_t bytes, Pending& pending) = 0;
  /// The wire keeps the bytes.
  virtual void send(int to, WireName name, std::vector<std::byte> bytes) = 0;
  virtual void receive(const WireName& name, void* to, size_t bytes, Pending& pending) = 0;
  /// Takes back a receive of bytes that will never be sent.
  virtual void unreceive(const WireName& name) = 0;
  /// Moves messages until ready() says yes, or that time; says whether it did. ready() is called without locks.
  virtual bool wait(Clock::time_point until, const std::function<bool()>& ready) = 0;
  /// Those who wait look again.
  virtual void wake() = 0;
  /// Whether somebody is in wait().
  virtual bool attended() const = 0;
  /// All have heard of each other by this wire.
  virtual void connected() {}
  /// Ends all that is on its way, since the world has failed: afterwards no memory is touched. Never called from
  /// `when_done`.
  virtual void cut() = 0;
  /// Lets what was sent leave, for some time at most.
  virtual void flush(std::chrono::milliseconds time) = 0;
  /// Drops what came for a group that is no more.
  virtual void forget(uint64_t group) = 0;
  /// Drops data (not facts) with these numbers, that came or will come, and those of all smaller numbers.
  virtual void drop(uint64_t group, uint64_t first, uint64_t last) = 0;
  /// Messages other than mail that were sent, by the rank they went to: for tests and benchmarks.
  uint64_t sent(int to) const { return sent_[static_cast<size_t>(to)].load(std::memory_order_relaxed); }

  /// What has come, in order; called by one thread at a time.
  std::vector<Mail> take_mail();
  bool has_mail() const { return mails_.load() > 0 || nudged_.load(); }
  /// As if mail had come.
  void nudge();
  /// What is called when mail has come that nobody attends to; must be quick.
  void set_on_mail(std::function<void()> f);

  struct Broken {
    Clock::time_point when;
    std::string text;
  };
  /// What the engine says of a rank that it cannot reach.
  std::optional<Broken> broken(int rank) const;

 protected:
  void put_mail(Mail mail);
  /// Nobody attends any more.
  void unattended();
  void set_broken(int rank, std::string text);
  /// Facts may bring less than there is room for; everybody knows how long the others are.
  static bool fits(const WireName& name, size_t length, size_t room) {
    return name.channel == Channel::facts ? length <= room : length == room;
  }
  static bool is_data(Channel c) { return c == Channel::give || c == Channel::result || c == Channel::part; }
  /// A message of a length that was not expected; what is to be said of it has been.
  bool misfits(const WireName& name, size_t length, size_t room, Pending* pending);
  void count_sent(int to) { sent_[static_cast<size_t>(to)].fetch_add(1, std::memory_order_relaxed); }
  static void finish(Pending* pending) {
    if (!pending) return;
    // Who waits may free it as soon as the count is zero.
    if (!pending->when_done) {
      pending->left.fetch_sub(1, std::memory_order_acq_rel);
      return;
    }
    auto then = pending->when_done;
    if (pending->left.fetch_sub(1, std::memory_order_acq_rel) == 1) then();
  }
  const int rank_;

 private:
  struct Box {
    uint64_t next = 0;
    std::map<uint64_t, Mail> early;
  };
  mutable std::mutex mutex_;
  std::vector<std::optional<Broken>> broken_;
  std::vector<std::atomic<uint64_t>> sent_;
  std::map<int, Box> boxes_;
  std::vector<Mail> mail_;
  std::function<void()> on_mail_;
  std::atomic<size_t> mails_{0};
  std::atomic<bool> nudged_{false};
};

/// Which of a group's data nobody wants any more: by drop(). Used under an engine's own mutex.
class Dropped {
 public:
  void add(uint64_t group, uint64_t last) { last_[group] = last; }
  void forget(uint64_t group) { last_.erase(group); }
  bool has(const WireName& name) const {
    auto it = last_.find(name.group);
    return it != last_.end() && name.number <= it->second;
  }

 private:
  std::map<uint64_t, uint64_t> last_;
};

/// The engines. Each rank publishes what others need to find it in the store, which is a view for this world alone.
/// DeviceError where this build does not have the engine.
/// Ranks connect to each other here: CancelledError where that is stopped.
std::unique_ptr<Wire> make_ucx_wire(int rank, int size, const StorePtr& store, bool spin,
                                    std::chrono::milliseconds timeout = std::chrono::minutes(1),
                                    const std::stop_token& stop = {});
std::unique_ptr<Wire> make_gloo_wire(int rank, int size, const StorePtr& store, const std::string& address,
                                     const std::stop_token& stop = {});
bool has_ucx();
bool has_gloo();

}  // namespace tutti::comm
