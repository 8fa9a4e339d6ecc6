#include "comm/store/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/check.h"

namespace tutti::store {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList resolve(const std::string& host, uint16_t port, int flags, std::string& failure) {
  // This machine by its usual name, also where no /etc/hosts knows it (a bare container).
  bool loopback = host == "localhost";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = (loopback ? flags & ~AI_PASSIVE : flags) | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int error =
      ::getaddrinfo(host.empty() || loopback ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) failure = error == EAI_SYSTEM ? errno_text(errno) : ::gai_strerror(error);
  return {error == 0 ? found : nullptr, ::freeaddrinfo};
}

const sockaddr_in& v4(const Address& a) { return reinterpret_cast<const sockaddr_in&>(a.storage); }
const sockaddr_in6& v6(const Address& a) { return reinterpret_cast<const sockaddr_in6&>(a.storage); }

void set_option(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof value);  // where it is unknown, the default has to do
}

io::Descriptor bind_and_listen(const addrinfo& info, int& error) {
  io::Descriptor socket(::socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() >= 0) {
    set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (info.ai_family == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (::bind(socket.get(), info.ai_addr, info.ai_addrlen) == 0 && ::listen(socket.get(), 4096) == 0) return socket;
  }
  error = errno;
  return io::Descriptor();
}

// A client that tries the port of a server that is not there yet can meet itself, where that port is one that the
// system gives to clients.
bool is_itself(int socket) {
  Address own, peer;
  if (::getsockname(socket, own.get(), &own.size) != 0 || ::getpeername(socket, peer.get(), &peer.size) != 0)
    return false;
  return own.text() == peer.text();
}

}  // namespace

uint16_t Address::port() const {
  return ntohs(storage.ss_family == AF_INET6 ? v6(*this).sin6_port : v4(*this).sin_port);
}

bool Address::loopback() const {
  if (storage.ss_family == AF_INET) return ntohl(v4(*this).sin_addr.s_addr) >> 24 == 127;
  return storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6(*this).sin6_addr);
}

bool Address::any() const {
  if (storage.ss_family == AF_INET) return v4(*this).sin_addr.s_addr == INADDR_ANY;
  return storage.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6(*this).sin6_addr);
}

std::string Address::host() const {
  char text[NI_MAXHOST];
  int error = ::getnameinfo(get(), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text : "?";
}

std::string Address::text() const { return host_port(host(), port()); }

std::string errno_text(int error) { return std::generic_category().message(error); }

std::string host_port(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

io::Descriptor listen_on(const std::string& host, uint16_t port, bool everywhere, Address& bound) {
  // An IPv6 socket on "::" serves IPv4 too; it comes first, and IPv4 alone is for machines without IPv6.
  std::vector<std::string> hosts{host};
  if (host.empty())
    hosts = everywhere ? std::vector<std::string>{"::", "0.0.0.0"} : std::vector<std::string>{"127.0.0.1"};
  std::string failure;
  for (auto& name : hosts) {
    AddressList list = resolve(name, port, AI_PASSIVE, failure);
    for (auto* info = list.get(); info; info = info->ai_next) {
      int error = 0;
      io::Descriptor socket = bind_and_listen(*info, error);
      bound.size = sizeof bound.storage;
      if (socket.get() >= 0 && ::getsockname(socket.get(), bound.get(), &bound.size) == 0) return socket;
      failure = errno_text(error);
    }
  }
  fail<ConnectionError>("TcpStore", "cannot listen on {}: {}", host_port(hosts[0], port), failure);
}

io::Descriptor connect_once(const std::string& host, uint16_t port, const Waiting& waiting, Address& peer,
                            std::string& failure) {
  AddressList list = resolve(host, port, 0, failure);
  for (auto* info = list.get(); info && !waiting.stopped(); info = info->ai_next) {
    std::memcpy(&peer.storage, info->ai_addr, info->ai_addrlen);
    peer.size = info->ai_addrlen;
    io::Descriptor socket(::socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) {
      failure = errno_text(errno);
      continue;
    }
    // A host that swallows packets must not take all the time: its other addresses, or a later try, may do.
    Waiting attempt{std::min(waiting.deadline, Clock::now() + std::chrono::seconds(5)), waiting.stop, waiting.outer};
    int error = ::connect(socket.get(), info->ai_addr, info->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof error;
      if (!poll_until(socket.get(), POLLOUT, attempt))
        error = ETIMEDOUT;
      else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        error = errno;
    }
    if (error == 0 && !is_itself(socket.get())) {
      configure(socket.get());
      return socket;
    }
    failure = errno_text(error ? error : ECONNREFUSED);
  }
  return io::Descriptor();
}

std::string address_towards(const std::string& host, uint16_t port) {
  std::string failure;
  AddressList list = resolve(host, port, 0, failure);
  for (auto* info = list.get(); info; info = info->ai_next) {
    // A datagram socket finds its way when it is connected, and sends nothing.
    io::Descriptor socket(::socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    Address own;
    if (socket.get() >= 0 && ::connect(socket.get(), info->ai_addr, info->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), own.get(), &own.size) == 0)
      return own.host();
  }
  fail<ConnectionError>("world", "there is no way to {}: {}", host, failure.empty() ? errno_text(errno) : failure);
}

void configure(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 20000);
}

bool poll_until(int descriptor, short events, const Waiting& waiting) {
  // Only connecting waits here. Looking at the token now and then spares it a descriptor to be woken by.
  constexpr auto slice = std::chrono::milliseconds(20);
  while (!waiting.stopped()) {
    auto left = waiting.deadline - Clock::now();
    if (left <= left.zero()) return false;
    auto time = std::min<std::chrono::nanoseconds>(left, slice).count();
    timespec limit{0, static_cast<long>(time)};
    pollfd poll{descriptor, events, 0};
    if (::ppoll(&poll, 1, &limit, nullptr) > 0) return true;
  }
  return false;
}

bool read_all(int socket, char* bytes, size_t count, const Waiting& waiting, std::string& failure) {
  while (count > 0) {
    ssize_t got = ::recv(socket, bytes, count, 0);
    if (got > 0) {
      bytes += got;
      count -= static_cast<size_t>(got);
    } else if (got == 0) {
      failure = "it closed the connection";
      return false;
    } else if (errno != EAGAIN && errno != EINTR) {
      failure = errno_text(errno);
      return false;
    } else if (!poll_until(socket, POLLIN, waiting)) {
      failure = "it says nothing";
      return false;
    }
  }
  return true;
}

bool write_all(int socket, std::string_view bytes, const Waiting& waiting, std::string& failure) {
  while (!bytes.empty()) {
    ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      failure = errno_text(errno);
      return false;
    } else if (!poll_until(socket, POLLOUT, waiting)) {
      failure = "it does not read";
      return false;
    }
  }
  return true;
}

}  // namespace tutti::store
