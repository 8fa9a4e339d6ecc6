// What carries messages to workers that are in other processes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/message.h"

namespace tutti::rpc::detail {

using Clock = std::chrono::steady_clock;

class Link {
 public:
  virtual ~Link() = default;
  /// Starts to send; what it needs it keeps. Never blocks.
  virtual void send(int to, Packed packed) = 0;
  /// Moves messages, and delivers what has come, on this thread; false: nothing moved. Several threads may call it.
  virtual bool poll() = 0;
  /// Until there may be something to poll, wake(), or then. One thread at a time.
  virtual void sleep(Clock::time_point until) = 0;
  virtual void wake() = 0;
  /// Nothing more goes to or comes from that worker.
  virtual void close(int peer) = 0;
  /// Lets what was sent leave.
  virtual void flush(Clock::time_point until) = 0;
  /// Messages of those who did not prove that they belong here.
  virtual size_t strangers() const = 0;
};

struct LinkPeer {
  std::string address;
  bool here = false;     // in this process: not by this link
  bool on_host = false;  // shares this host
};
struct LinkEvents {
  std::function<void(Message)> arrived;
  std::function<void(int peer, std::string why)> broken;
};

/// By UCX: active messages, through shared memory on a host and the network between. Made in two steps: all workers
/// tell each other their addresses between them.
class UcxLink;
struct LinkStart {
  std::shared_ptr<UcxLink> link;
  std::string address;
};
LinkStart open_ucx_link();
std::unique_ptr<Link> connect_ucx_link(LinkStart start, int me, std::vector<LinkPeer> peers, const std::string& key,
                                       std::chrono::milliseconds timeout, LinkEvents events);

}  // namespace tutti::rpc::detail
