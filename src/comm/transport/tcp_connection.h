// One connection of the wire by sockets: proving the world's secret, then frames of a header and some bytes.
#pragma once

#include <deque>
#include <span>
#include <string>

#include "comm/transport/wire.h"
#include "io/descriptor.h"

namespace tutti::comm {

class TcpConnection {
 public:
  struct Frame {
    WireName name;
    uint64_t bytes = 0;
  };
  /// A message on its way in.
  struct Incoming {
    Frame frame;
    enum { posted, kept, unwanted } kind = unwanted;
    std::byte* to = nullptr;  // posted
    Pending* pending = nullptr;
    std::vector<std::byte> bytes = {};  // kept; grows with what comes, whatever was promised
    size_t come = 0;
    size_t left() const { return frame.bytes - come; }
  };
  /// What a connection does with what comes.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    virtual Incoming begin(const Frame& frame) = 0;
    virtual void end(Incoming incoming) = 0;
    /// A rank has proved itself; says whether it is one that was awaited.
    virtual bool met(int rank, TcpConnection& connection) = 0;
  };

  /// One that was accepted; `peer` is known later. The epoll descriptor watches it while it is open.
  TcpConnection(io::Descriptor socket, const std::string& secret, int rank, int epoll);
  /// One to the rank `peer`.
  TcpConnection(io::Descriptor socket, const std::string& secret, int rank, int epoll, int peer);
  ~TcpConnection();
  TcpConnection(const TcpConnection&) = delete;
  TcpConnection& operator=(const TcpConnection&) = delete;

  int descriptor() const { return socket_.get(); }
  int peer() const { return peer_; }
  bool open() const { return socket_.get() >= 0; }
  bool established() const { return state_ == State::established; }
  bool wants_out() const { return established() && !out_.empty(); }
  const std::string& failure() const { return failure_; }
  Clock::time_point since() const { return since_; }

  /// Reads what there is: once, or all; says whether there was anything. Where the connection is broken, it is closed.
  bool read(Receiver& receiver, bool all);
  bool write(bool all);
  /// Bytes stay where they are, or are kept, until they have left; pending is finished then.
  void send(const Frame& frame, const void* data, Pending* pending, std::vector<std::byte> kept);
  Incoming* incoming() { return has_incoming_ ? &incoming_ : nullptr; }
  bool idle() const { return out_.empty(); }
  void close(std::string failure);
  /// Says that nothing follows.
  void finish();
  /// Reads and forgets; says whether the other has closed its end.
  bool drained();

  /// The epoll descriptor is readable also when there is room to send, if something is to be.
  void arm();

  bool reported = false;  // for whoever looks after it

 private:
  enum class State { greeting, claim, answer, established };
  struct Outgoing {
    Frame frame;
    const std::byte* data;
    size_t done;  // of frame and data
    Pending* pending;
    std::vector<std::byte> kept;
  };
  void watch(int operation, bool out) const;
  void let_go();
  bool shake_hands(Receiver& receiver);
  bool take(size_t bytes, std::string& text);
  bool say(const std::string& text);
  void parse(Receiver& receiver, std::span<const std::byte> bytes);
  std::span<std::byte> place();
  void came(Receiver& receiver, size_t bytes);

  io::Descriptor socket_;
  const std::string& secret_;
  const int rank_, epoll_;
  int peer_ = -1;
  bool watches_out_ = false;
  State state_;
  const Clock::time_point since_ = Clock::now();
  std::string heard_, greeting_, claim_, failure_;
  std::deque<Outgoing> out_;
  std::vector<std::byte> staging_;
  size_t staged_ = 0;  // bytes of a header that has not come whole
  Incoming incoming_;
  bool has_incoming_ = false;
};

}  // namespace tutti::comm
