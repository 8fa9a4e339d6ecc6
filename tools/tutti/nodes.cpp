#include "tools/tutti/nodes.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>

#include "tools/tutti/command.h"

namespace tutti::tool {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kSlice = 200ms;  // how long a wait may keep us from signals

// A free port. The socket is bound and never listens, which keeps the system from giving the port to anybody else and
// lets a rank listen there.
std::pair<Descriptor, uint16_t> reserve_port() {
  Descriptor socket = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "no socket can be made");
  int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error(fmt::format("no port can be had: {}", std::strerror(errno)));
  return {std::move(socket), ntohs(address.sin_port)};
}

std::string to_text(const Nodes::Verdict& v) { return fmt::format("{} {} {}", v.code, v.final ? 1 : 0, v.text); }

Nodes::Verdict from_text(const std::string& text) {
  Nodes::Verdict v;
  int final = 0, used = 0;
  if (std::sscanf(text.c_str(), "%d %d %n", &v.code, &final, &used) < 2) return {1, false, text};
  v.final = final != 0;
  v.text = text.substr(static_cast<size_t>(used));
  return v;
}

}  // namespace

// Tries again and again, for a slice of time each, so that signals are heard.
template <class Try>
void Nodes::until(Clock::time_point deadline, const std::string& what, const Try& attempt) {
  while (true) {
    try {
      if (attempt()) return;
    } catch (const TimeoutError&) {
    }
    while (int signal = signals_.take())
      if (ends_programs(signal)) throw Interrupted{signal};
    if (Clock::now() >= deadline) throw std::runtime_error(what);
  }
}

Nodes::Nodes(NodeOptions options, Signals& signals) : options_(std::move(options)), signals_(signals) {
  if (options_.nodes == 1) return;
  TcpStoreOptions store{.port = options_.port, .secret = options_.secret, .timeout = kSlice};
  if (options_.node == 0) {
    store.serve = true;
    store_ = std::make_unique<TcpStore>(store);
    return;
  }
  store.host = options_.address;
  store.timeout = 1s;
  until(Clock::now() + options_.join_timeout,
        fmt::format("node 0 cannot be reached at {}:{}", options_.address, options_.port), [&] {
          try {
            store_ = std::make_unique<TcpStore>(store);
          } catch (const ConnectionError&) {
            return false;
          }
          return true;
        });
  store_->set_timeout(kSlice);
}

Nodes::~Nodes() {
  if (!store_) return;
  try {  // who serves leaves last
    store_->add("gone", 1);
    if (options_.node == 0) until(Clock::now() + 5s, "", [&] { return store_->add("gone", 0) == options_.nodes; });
  } catch (...) {  // NOLINT: the others have gone in another way
  }
}

std::string Nodes::key(int epoch, const std::string& name) const { return fmt::format("epoch/{}/{}", epoch, name); }

Nodes::Place Nodes::meet(int epoch, int ranks) {
  std::string address = options_.address.empty() ? "127.0.0.1" : options_.address;
  auto [socket, port] = reserve_port();
  if (options_.node == 0) reserved_ = std::move(socket);
  if (!store_) return {0, ranks, address, port};
  if (options_.node == 0) store_->set(key(epoch, "port"), std::to_string(port));
  store_->set(key(epoch, fmt::format("node/{}", options_.node)), std::to_string(ranks));
  std::vector<std::string> keys;
  for (int k = 0; k < options_.nodes; ++k) keys.push_back(key(epoch, fmt::format("node/{}", k)));
  keys.push_back(key(epoch, "port"));
  std::vector<std::string> values;
  auto missing = [&] {
    std::string list;
    for (int k = 0; k < options_.nodes; ++k)
      if (!store_->has({keys[static_cast<size_t>(k)]})) list += fmt::format(" {}", k);
    return list;
  };
  try {
    until(Clock::now() + options_.join_timeout, "late", [&] {
      values = store_->multi_get(keys);
      return true;
    });
  } catch (const std::runtime_error& e) {
    if (std::string(e.what()) != "late") throw;
    throw std::runtime_error(fmt::format("of {} nodes these did not come within {} s:{}", options_.nodes,
                                         options_.join_timeout.count(), missing()));
  }
  Place place{0, 0, address, static_cast<uint16_t>(std::stoi(values.back()))};
  for (int k = 0; k < options_.nodes; ++k) {
    int count = std::stoi(values[static_cast<size_t>(k)]);
    if (k < options_.node) place.first_rank += count;
    place.world_size += count;
  }
  return place;
}

std::optional<std::string> Nodes::first_failure(int epoch) {
  auto text = store_->try_get(key(epoch, "failed"), {.timeout = 5s});
  return text ? text : store_->try_get(key(epoch, "failed too"), {.timeout = 5s});
}

void Nodes::fail(int epoch, const Verdict& mine, bool secondary) {
  if (!store_) return;
  try {
    store_->compare_and_set(key(epoch, secondary ? "failed too" : "failed"), "", to_text(mine), {.timeout = 5s});
  } catch (const Error&) {  // NOLINT: node 0 is lost, which failed() and end() say
  }
}

std::optional<std::string> Nodes::failed(int epoch) {
  if (!store_) return {};
  try {
    auto text = first_failure(epoch);
    if (!text) return {};
    return from_text(*text).text;
  } catch (const Error& e) {
    return fmt::format("node 0 is lost: {}", e.what());
  }
}

Nodes::Verdict Nodes::end(int epoch, const Verdict& mine) {
  if (!store_) return mine;
  try {
    // If all that is known is that something went wrong elsewhere, that is known there.
    if (mine.code && !first_failure(epoch)) fail(epoch, mine, false);
    store_->set(key(epoch, fmt::format("end/{}", options_.node)), "1", {.timeout = 5s});
    std::optional<Clock::time_point> deadline;  // when one has failed, the others end soon, or are no more
    std::optional<std::string> failed;
    until(Clock::time_point::max(), "", [&] {
      failed = first_failure(epoch);
      if (failed && !deadline) deadline = Clock::now() + 60s;
      if (deadline && Clock::now() >= *deadline) return true;
      std::vector<std::string> keys;
      for (int k = 0; k < options_.nodes; ++k) keys.push_back(key(epoch, fmt::format("end/{}", k)));
      store_->wait(keys);
      return true;
    });
    failed = first_failure(epoch);
    return failed ? from_text(*failed) : Verdict{};
  } catch (const Error& e) {
    if (mine.code) return {mine.code, true, mine.text};
    return {1, true, fmt::format("node 0 is lost: {}", e.what())};
  }
}

}  // namespace tutti::tool
