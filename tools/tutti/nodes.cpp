#include "tools/tutti/nodes.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <random>

#include "tools/tutti/command.h"

namespace tutti::tool {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kSlice = 200ms;         // how long a wait may keep us from signals, and between looks at the table
constexpr const char* kLost = "lost";  // what all say of it

std::string of_node(const char* what, int node) { return fmt::format("{}/{}", what, node); }

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

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

std::string to_text(const Nodes::Verdict& v) { return fmt::format("{} {} {}", v.code, v.final ? 1 : 0, v.text); }

Nodes::Verdict from_text(const std::string& text) {
  Nodes::Verdict v;
  int final = 0, used = 0;
  if (std::sscanf(text.c_str(), "%d %d %n", &v.code, &final, &used) < 2) return {1, false, text};
  v.final = final != 0;
  v.text = text.substr(static_cast<size_t>(used));
  return v;
}

// Whether a socket can have the address.
bool is_of_this_host(const std::string& address) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(address.c_str(), nullptr, &hints, &list) != 0) return false;
  bool found = false;
  for (addrinfo* info = list; info && !found; info = info->ai_next) {
    Descriptor socket(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    found = socket.get() >= 0 && ::bind(socket.get(), info->ai_addr, info->ai_addrlen) == 0;
  }
  ::freeaddrinfo(list);
  return found;
}

// "process 123 on host a", and a number that no other process has.
std::string own_identity() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) name[0] = 0;
  std::random_device random;
  return fmt::format("process {} on host {}\n{:08x}{:08x}", ::getpid(), name, random(), random());
}
std::string without_number(const std::string& identity) { return identity.substr(0, identity.find('\n')); }

}  // namespace

// Tries again and again, for a slice of time each, so that signals are heard.
template <class Try>
void Nodes::until(Clock::time_point deadline, const std::string& what, const Try& attempt) {
  while (true) {
    try {
      if (attempt()) return;
    } catch (const TimeoutError&) {
    }
    while (int signal = signals_.take()) {
      if (ends_programs(signal)) throw Interrupted{signal};
      if (signal == SIGTSTP && signals_.input() < 0) ::raise(SIGSTOP);
    }
    if (Clock::now() >= deadline) throw std::runtime_error(what);
  }
}

Nodes::Nodes(NodeOptions options, Signals& signals)
    : options_(std::move(options)), node_(options_.node), identity_(own_identity()), signals_(signals) {
  if (options_.nodes == 1) {
    node_ = std::max(node_, 0);
    return;
  }
  TcpStoreOptions store{
      .port = options_.port, .secret = options_.secret, .timeout = kSlice, .grace = options_.node_timeout};
  auto begin_listening = [this] { listener_ = std::jthread([this](const std::stop_token& stop) { listen(stop); }); };
  if (serve(store)) {
    begin_listening();
    return;
  }
  store.host = options_.address;
  store.timeout = 1s;
  until(Clock::now() + options_.join_timeout,
        fmt::format("node 0 cannot be reached at {}:{}", options_.address, options_.port), [&] {
          try {
            // What an earlier try has said of this node is not true any more.
            if (store_ && node_ > 0) store_->leave_will(of_node("lost", node_), "", "", {});
          } catch (const Error&) {
          }
          try {
            store_ = std::make_unique<TcpStore>(store);
            node_ < 0 ? claim_any_place() : claim_place();
            std::string is_lost = fmt::format("node {} is lost: its tutti ", node_);
            store_->leave_will(of_node("lost", node_), is_lost + "ended before the job did",
                               fmt::format("{}said nothing for {:g} s", is_lost, seconds(options_.node_timeout)),
                               options_.node_timeout);
          } catch (const ConnectionError&) {
            return false;
          }
          return true;
        });
  store_->set_timeout(kSlice);
  begin_listening();
}

// Whether this is node 0, which serves the table: it was told so, or nobody was told anything, the address is this
// host's, and no other node of this host serves there.
bool Nodes::serve(TcpStoreOptions store) {
  if (node_ > 0 || (node_ < 0 && !is_of_this_host(options_.address))) return false;
  store.serve = true;
  store.timeout = 10s;  // until its own server has answered, which on a busy machine may take a while
  try {
    store_ = std::make_unique<TcpStore>(store);
    store_->set_timeout(kSlice);
  } catch (const ConnectionError&) {
    if (node_ == 0) throw;
    return false;
  }
  node_ = 0;
  return true;
}

// The first number that no other node has.
void Nodes::claim_any_place() {
  for (int k = 1; k < options_.nodes; ++k)
    if (store_->compare_and_set(of_node("here", k), "", identity_) == identity_) {
      node_ = k;
      return;
    }
  throw std::runtime_error(
      fmt::format("all {} nodes of the job at {}:{} have come already, and {} wants to be one more: start one command "
                  "for each node, with the same --nnodes",
                  options_.nodes, options_.address, options_.port, without_number(identity_)));
}

// Throws if another command has this node's number. The others hear of it if they still wait for a node: most likely
// the one with the wrong number.
void Nodes::claim_place() {
  std::string there = store_->compare_and_set(of_node("here", node_), "", identity_);
  if (there == identity_) return;  // by an earlier try, maybe
  for (const std::string& key : {std::string(kLost), of_node("lost", node_)})
    if (auto why = store_->try_get(key)) throw std::runtime_error(*why);
  std::string text = fmt::format("node {} is {}, and {} wants to be it too: --node-rank must be another one for each",
                                 node_, without_number(there), without_number(identity_));
  Store::Keys all;
  for (int k = 1; k < options_.nodes; ++k) all.push_back(of_node("here", k));
  if (!store_->has(all)) store_->compare_and_set(kLost, "", text);
  throw std::runtime_error(text);
}

Nodes::~Nodes() {
  if (!store_) return;
  listener_ = {};
  try {
    if (awaited_ && !lost_) return;  // the others wait for this one, and hear by its will that it does not come
    leave_table();
    store_->leave_will(of_node("lost", node_), "", "", {});
    // Who serves leaves last: who finds no table takes this node for the one that is lost. A node that cannot say that
    // it needs it no more is lost itself by then.
    if (node_ == 0) until(Clock::now() + options_.node_timeout + 5s, "", [&] { return needed_by_none(); });
  } catch (...) {  // NOLINT: the others have gone in another way
  }
}

void Nodes::leave_table() { store_->set(of_node("gone", node_), "1"); }

bool Nodes::needed_by_none() {
  for (const std::string& here : store_->list("here/")) {
    std::string node = here.substr(here.find('/'));
    if (!store_->has({"lost" + node})) store_->wait({"gone" + node});  // for a slice of time
  }
  return true;
}

// Which node is lost, if one is; of several the one that all have heard of. Node 0 tells the others.
std::optional<std::string> Nodes::ask_for_lost(const Wait& wait) {
  auto known = store_->try_get(kLost, wait);
  if (known || node_ != 0) return known;
  auto keys = store_->list("lost/", wait);
  if (keys.empty()) return {};
  return store_->compare_and_set(kLost, "", store_->get(keys[0], wait), wait);
}

// Asks the table now and then what has happened, which also tells it that this node lives.
void Nodes::listen(const std::stop_token& stop) {
  const Wait wait{.timeout = kSlice, .stop = stop};  // and the store's grace
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested() && !lost_) {
    int epoch = epoch_;
    lock.unlock();
    std::optional<std::string> lost, failed;
    try {
      lost = ask_for_lost(wait);
      if (!lost) failed = first_failure(epoch, wait);
    } catch (const TimeoutError&) {  // it is slow: the store says when it is too slow
    } catch (const CancelledError&) {
    } catch (const Error& e) {
      lost = fmt::format("node 0 is lost: {}", e.what());
    }
    lock.lock();
    if (!lost_) lost_ = lost;
    if (epoch == epoch_) failed_ = failed;
    if (!lost_) changed_.wait_for(lock, stop, kSlice, [] { return false; });
  }
  if (!lost_) return;
  lock.unlock();
  try {
    leave_table();          // only now: when the table goes, this node knows that it is not node 0 who is lost
  } catch (const Error&) {  // NOLINT: it is
  }
}

std::optional<std::string> Nodes::lost() {
  std::lock_guard lock(mutex_);
  return lost_;
}

std::string Nodes::key(int epoch, const std::string& name) const { return fmt::format("epoch/{}/{}", epoch, name); }

// Ends the job on all nodes: they say the same, whoever gives up first.
void Nodes::give_up(const std::string& why) {
  std::string text = store_->compare_and_set(kLost, "", why, {.timeout = options_.node_timeout});
  std::lock_guard lock(mutex_);
  lost_ = text;
  throw std::runtime_error(text);
}

// Nodes that count restarts differently would wait for one that has ended.
void Nodes::compare_options() {
  auto mine = fmt::format("--nnodes {} --max-restarts {}{} on node ", options_.nodes, options_.max_restarts,
                          options_.job.empty() ? "" : " --rdzv-id " + options_.job);
  std::string first =
      store_->compare_and_set("options", "", mine + std::to_string(node_), {.timeout = options_.node_timeout});
  if (!first.starts_with(mine)) give_up(fmt::format("nodes disagree: {}, {}{}; give all the same", first, mine, node_));
}

Nodes::Place Nodes::meet(int epoch, int ranks) {
  std::string address = options_.address.empty() ? "127.0.0.1" : options_.address;
  auto [socket, port] = reserve_port();
  if (node_ == 0) reserved_ = std::move(socket);
  if (!store_) return {0, ranks, address, port};
  awaited_ = true;
  {
    std::lock_guard lock(mutex_);
    epoch_ = epoch;
    failed_.reset();
  }
  std::vector<std::string> keys;
  for (int k = 0; k < options_.nodes; ++k) keys.push_back(key(epoch, fmt::format("node/{}", k)));
  keys.push_back(key(epoch, "port"));
  std::vector<std::string> values;
  const Wait wait{.timeout = options_.node_timeout};
  auto missing = [&] {
    std::string list;
    for (int k = 0; k < options_.nodes; ++k)
      if (!store_->has({keys[static_cast<size_t>(k)]}, wait)) list += fmt::format(" {}", k);
    return list;
  };
  try {
    if (epoch == 0) compare_options();
    if (node_ == 0) store_->set(key(epoch, "port"), std::to_string(port), wait);
    store_->set(key(epoch, fmt::format("node/{}", node_)), std::to_string(ranks), wait);
    until(Clock::now() + options_.join_timeout, "late", [&] {
      if (auto why = lost()) throw std::runtime_error(*why);
      values = store_->multi_get(keys);
      return true;
    });
  } catch (const Error& e) {
    throw std::runtime_error(lost().value_or(fmt::format("node 0 is lost: {}", e.what())));
  } catch (const std::runtime_error& e) {
    if (std::string(e.what()) != "late") throw;
    give_up(fmt::format("of {} nodes these did not come within {:g} s:{}", options_.nodes,
                        seconds(options_.join_timeout), missing()));
  }
  Place place{0, 0, address, static_cast<uint16_t>(std::stoi(values.back()))};
  for (int k = 0; k < options_.nodes; ++k) {
    int count = std::stoi(values[static_cast<size_t>(k)]);
    if (k < node_) place.first_rank += count;
    place.world_size += count;
  }
  return place;
}

std::optional<std::string> Nodes::first_failure(int epoch, const Wait& wait) {
  auto text = store_->try_get(key(epoch, "failed"), wait);
  return text ? text : store_->try_get(key(epoch, "failed too"), wait);
}

void Nodes::fail(int epoch, const Verdict& mine, bool secondary) {
  if (!store_) return;
  try {
    store_->compare_and_set(key(epoch, secondary ? "failed too" : "failed"), "", to_text(mine), {.timeout = 5s});
  } catch (const Error&) {  // NOLINT: node 0 is lost, which failed() and end() say
  }
}

std::optional<std::string> Nodes::failed(int epoch) {
  std::lock_guard lock(mutex_);
  if (lost_) return lost_;
  if (!failed_ || epoch != epoch_) return {};
  return from_text(*failed_).text;
}

Nodes::Verdict Nodes::end(int epoch, const Verdict& mine) {
  if (!store_) return mine;
  const Wait wait{.timeout = 5s};
  auto without = [&](const std::string& node) { return Verdict{mine.code ? mine.code : 1, true, node, true}; };
  std::optional<std::string> failed, gone;
  try {
    // If all that is known is that something went wrong elsewhere, that is known there.
    if (mine.code && !first_failure(epoch, wait)) fail(epoch, mine, false);
    if (mine.final) store_->set(key(epoch, "final"), "1", wait);
    store_->set(key(epoch, fmt::format("end/{}", node_)), "1", wait);
    awaited_ = false;
    std::vector<std::string> keys;
    for (int k = 0; k < options_.nodes; ++k) keys.push_back(key(epoch, fmt::format("end/{}", k)));
    std::optional<Clock::time_point> deadline;  // when one has failed, the others end soon
    until(Clock::time_point::max(), "", [&] {
      gone = lost();
      failed = first_failure(epoch, wait);
      if (failed && !deadline) deadline = Clock::now() + 60s;
      if (gone || (deadline && Clock::now() >= *deadline)) return true;
      store_->wait(keys);
      return true;
    });
    if (gone) return without(*gone);
    failed = first_failure(epoch, wait);
    Verdict verdict = failed ? from_text(*failed) : Verdict{};
    verdict.final = verdict.final || store_->has({key(epoch, "final")}, wait);
    return verdict;
  } catch (const Error& e) {
    return without(lost().value_or(fmt::format("node 0 is lost: {}", e.what())));
  }
}

}  // namespace tutti::tool
