// Ports for programs that tests start.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace tutti::test {

/// A port that the system gives to nobody else for as long as this process lives: whoever is told may listen there, as
/// may many, one after the other. A port that was merely free a moment ago may become that of an engine of another
/// test, and then clients that wait for their own server meet a stranger.
inline uint16_t reserved_port() {
  // Bound, and never listening; what asks for any port does not get this one. It stays until the process ends.
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  bool ok = ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
            ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  EXPECT_TRUE(ok);
  return ntohs(address.sin_port);
}

}  // namespace tutti::test
