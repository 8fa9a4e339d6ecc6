// What carries messages to workers that are in other processes.
//
// Note [Links]
// Workers of one host have rings in shared memory, one for each ordered pair (shm_link.cpp), so that a worker that is
// killed, wherever it is at that moment, can harm nothing that two others share. UCX's own shared memory has one queue
// for each receiver, into which all senders write; a sender that is killed there at the wrong moment stops it for all.
// Between hosts messages go by UCX (ucx_link.cpp). A session that has both uses both: Links.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "io/descriptor.h"
#include "rpc/message.h"
#include "tutti/comm/work.h"

namespace tutti::rpc::detail {

using Clock = std::chrono::steady_clock;

inline constexpr const char* kSessionOperation = "rpc::Session";  // in errors

class Link {
 public:
  virtual ~Link() = default;
  /// Starts to send; what it needs it keeps. Never blocks.
  virtual void send(int to, Packed packed) = 0;
  /// Moves messages, and delivers what has come, on this thread; false: nothing moved. Several threads may call it.
  virtual bool poll() = 0;
  /// Before sleeping: descriptor() will be readable when there may be something to poll. False: there may be already.
  /// disarm() follows an arm() that was true. One thread at a time.
  virtual bool arm() = 0;
  virtual void disarm() = 0;
  virtual int descriptor() const = 0;
  /// Nothing more goes to or comes from that worker.
  virtual void close(int peer) = 0;
  /// Lets what was sent leave.
  virtual void flush(Clock::time_point until) = 0;
  /// Messages of those who did not prove that they belong here.
  virtual size_t strangers() const = 0;
};

struct LinkPeer {
  std::string address;  // as it said itself
  bool mine = false;    // whether this link leads there
  int64_t pid = 0;      // where it shares this host
};
struct LinkEvents {
  std::function<void(Message)> arrived;
  std::function<void(int peer, std::string why)> broken;
};
struct LinkPlan {
  int me = -1;
  std::vector<LinkPeer> peers = {};  // by their numbers in the session
  std::string key = {};              // the session's
  std::chrono::milliseconds timeout{};
  std::function<void()> check = [] {};            // called while they meet: throws when one of them is no more
  std::function<Work(const Tensor&)> agree = {};  // begins the smallest number of all workers; may be empty
  LinkEvents events = {};
};

/// A link in the making: all workers tell each other their addresses, and then connect.
class Opening {
 public:
  virtual ~Opening() = default;
  virtual std::string address() const = 0;
  /// ConnectionError says who was not to be found. The object is spent after that.
  virtual std::unique_ptr<Link> connect(LinkPlan plan) = 0;
};
/// `lends`: whether large data may be read from the sender's memory, where the system allows it.
std::unique_ptr<Opening> open_shm_link(bool lends = true);
std::unique_ptr<Opening> open_ucx_link();

/// Several links as one.
class Links {
 public:
  /// route[k]: which of them leads to worker k; -1: none.
  Links(std::vector<std::unique_ptr<Link>> links, std::vector<int> route);
  void send(int to, Packed packed);
  bool poll();
  /// Until there may be something to poll, wake(), or then. One thread at a time.
  void sleep(Clock::time_point until);
  void wake();
  void close(int peer);
  void flush(Clock::time_point until);
  size_t strangers() const;

 private:
  const std::vector<std::unique_ptr<Link>> links_;
  const std::vector<int> route_;
  io::Descriptor wake_;
};

// ---- What links are made of

/// What has come and is not yet delivered, and who may send. Guarded by the link's lock, but for deliver().
class Inbox {
 public:
  using Token = std::array<uint8_t, 16>;
  explicit Inbox(const LinkPlan& plan);
  /// What proves to that worker that a message is of this session, and of this worker.
  const Token& token_to(int peer) const { return out_[static_cast<size_t>(peer)]; }
  /// Whether it is of a worker of this session. The proof comes first: nothing else of a stranger's is looked at.
  bool proves(const Token& token, uint32_t from);
  /// Someone sent what is no message.
  void stranger(const char* what);
  /// A message that is whole; `owner` as for unpack().
  void add(const WireHeader& header, std::string_view bytes, const std::shared_ptr<void>& owner);
  /// One that cannot be.
  void add_defect(int from, std::string what);
  void broken(int peer, std::string why) { breaks_.emplace_back(peer, std::move(why)); }
  bool empty() const { return arrived_.empty() && breaks_.empty(); }
  const std::vector<std::pair<int, std::string>>& breaks() const { return breaks_; }
  size_t strangers() const { return strangers_.load(); }

  /// Takes all out under the lock, and hands it on without.
  void deliver(std::unique_lock<std::mutex> lock);

 private:
  struct Arrived {
    Message message;
    std::string defect;
    int from;
  };
  const LinkEvents events_;
  std::vector<Token> out_, in_;
  std::vector<Arrived> arrived_;
  std::vector<std::pair<int, std::string>> breaks_;
  std::atomic<size_t> strangers_{0};
};

}  // namespace tutti::rpc::detail
