// The server of the TCP store: one thread, a table, and any number of peers that cannot disturb each other.
#pragma once

#include <array>
#include <chrono>
#include <list>
#include <memory>
#include <thread>
#include <unordered_map>

#include "comm/store/session.h"
#include "comm/store/socket.h"

namespace tutti::store {

/// Peers that have not proven the secret yet. Beyond these, the one that has taken longest gives way to a new one.
inline constexpr size_t kMaxUnproven = 1024;

class Server {
 public:
  Server(const std::string& host, uint16_t port, std::string secret, std::chrono::nanoseconds handshake_timeout);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const Address& address() const { return address_; }

 private:
  struct Peer;
  void loop();
  int wait_milliseconds() const;
  void accept_some();
  void add_peer(io::Descriptor socket);
  void pause_listening();
  void expire();
  void serve(Peer& peer, uint32_t events);
  bool receive(Peer& peer);
  bool flush(Peer& peer);
  void watch_for_more(Peer& peer);
  void flush_touched();
  void drop(Peer& peer, bool silent = false);
  void look(Clock::time_point now);
  void drop_silent(Clock::time_point now);

  std::string secret_;
  std::chrono::nanoseconds handshake_timeout_;
  Address address_;
  io::Descriptor listener_, epoll_, stop_;
  Board board_;
  std::unordered_map<uint64_t, std::unique_ptr<Peer>> peers_;  // by number; numbers are never used again
  std::list<Peer*> unproven_;                                  // oldest first
  std::vector<uint64_t> touched_;                              // peers that got output from others' doing
  uint64_t next_number_;
  Clock::time_point listen_again_ = Clock::time_point::max();
  Clock::time_point check_silence_ = Clock::time_point::max();
  // Note [Oversleeping]
  // A process that is stopped (by ^Z, a debugger, a host that sleeps) hears nobody, and those that speak to it may have
  // been stopped with it. So while peers are expected to speak the server looks at the clock several times in the
  // shortest silence that is allowed; where it missed some of these, all silences begin anew: always after a gap longer
  // than that silence, otherwise once in two of them, so that a machine that is always late still finds who is gone.
  Clock::duration least_silence_ = Clock::duration::max();
  Clock::time_point last_look_ = Clock::now(), awake_since_ = last_look_, forgave_ = {};
  std::array<char, 1 << 18> buffer_;
  std::thread thread_;
};

}  // namespace tutti::store
