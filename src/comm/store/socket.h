// The few things about sockets that the TCP store's server and client share.
#pragma once

#include <sys/socket.h>

#include <string>

#include "comm/store/waiting.h"
#include "io/descriptor.h"

namespace tutti::store {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  uint16_t port() const;
  bool loopback() const;
  /// Stands for all addresses of the machine.
  bool any() const;
  /// "127.0.0.1" or "::1".
  std::string host() const;
  /// "127.0.0.1:80" or "[::1]:80".
  std::string text() const;
};

std::string errno_text(int error);
std::string host_port(const std::string& host, uint16_t port);

/// Listens. An empty host is every address of the machine, or the loopback device's.
io::Descriptor listen_on(const std::string& host, uint16_t port, bool everywhere, Address& bound);

/// Tries the addresses of a host once each; without a descriptor if none answers, with the reason in `failure`.
io::Descriptor connect_once(const std::string& host, uint16_t port, const Waiting& waiting, Address& peer,
                            std::string& failure);

/// This machine's address on the way to a host.
std::string address_towards(const std::string& host, uint16_t port);

/// No delays for small messages; a peer whose host is gone is noticed in about 20 s.
void configure(int socket);

/// Waits for events of poll(2) on a descriptor (-1: on nothing). False: the time is over or it was stopped.
bool poll_until(int descriptor, short events, const Waiting& waiting);

/// Reads or writes all bytes of a non-blocking socket; false with the reason in `failure`.
bool read_all(int socket, char* bytes, size_t count, const Waiting& waiting, std::string& failure);
bool write_all(int socket, std::string_view bytes, const Waiting& waiting, std::string& failure);

}  // namespace tutti::store
