#include "rpc/link.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/check.h"
#include "base/sha256.h"

namespace tutti::rpc::detail {
namespace {

constexpr size_t kLogged = 5;  // strangers that are mentioned on standard error

Inbox::Token token(const std::string& key, size_t from, size_t to) {
  Digest digest = hmac_sha256(key, fmt::format("tutti rpc {} {}>{}", WireHeader::kVersion, from, to));
  Inbox::Token half;
  std::memcpy(half.data(), digest.data(), half.size());
  return half;
}

std::string_view view(const Inbox::Token& t) { return {reinterpret_cast<const char*>(t.data()), t.size()}; }

}  // namespace

// ---- Links

Links::Links(std::vector<std::unique_ptr<Link>> links, std::vector<int> route)
    : links_(std::move(links)), route_(std::move(route)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Links::send(int to, Packed packed) {
  int link = route_[static_cast<size_t>(to)];
  if (link >= 0) links_[static_cast<size_t>(link)]->send(to, std::move(packed));
}

bool Links::poll() {
  bool any = false;
  for (auto& link : links_) any = link->poll() || any;
  return any;
}

void Links::sleep(Clock::time_point until) {
  std::vector<pollfd> polls = {{wake_.get(), POLLIN, 0}};
  for (auto& link : links_)
    if (link->arm())
      polls.push_back({link->descriptor(), POLLIN, 0});
    else
      break;
  if (polls.size() == links_.size() + 1) {
    auto left = std::max<Clock::duration>(until - Clock::now(), Clock::duration::zero());
    auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    timespec time{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    ::ppoll(polls.data(), polls.size(), &time, nullptr);
    eventfd_t count = 0;
    if (polls[0].revents) ::eventfd_read(wake_.get(), &count);
  }
  for (size_t k = 0; k + 1 < polls.size(); ++k) links_[k]->disarm();
}

void Links::wake() { ::eventfd_write(wake_.get(), 1); }

void Links::close(int peer) {
  int link = route_[static_cast<size_t>(peer)];
  if (link >= 0) links_[static_cast<size_t>(link)]->close(peer);
}

void Links::flush(Clock::time_point until) {
  for (auto& link : links_) link->flush(until);
}

size_t Links::strangers() const {
  size_t sum = 0;
  for (auto& link : links_) sum += link->strangers();
  return sum;
}

// ---- Inbox

Inbox::Inbox(const LinkPlan& plan) : events_(plan.events) {
  for (size_t k = 0, me = static_cast<size_t>(plan.me); k < plan.peers.size(); ++k) {
    out_.push_back(token(plan.key, me, k));
    in_.push_back(token(plan.key, k, me));
  }
}

bool Inbox::proves(const Token& token, uint32_t from) {
  if (from < in_.size() && equal_in_constant_time(view(token), view(in_[from]))) return true;
  stranger("it does not prove that it is of this session");
  return false;
}

void Inbox::stranger(const char* what) {
  size_t count = strangers_.fetch_add(1);
  if (count < kLogged)
    std::fprintf(stderr, "tutti: rpc: a message was thrown away: %s%s\n", what,
                 count + 1 == kLogged ? " (more of them will not be mentioned)" : "");
}

void Inbox::add(const WireHeader& header, std::string_view bytes, const std::shared_ptr<void>& owner) {
  Arrived a{{}, {}, static_cast<int>(header.from)};
  try {
    a.message = unpack(header, bytes, owner);
  } catch (const std::exception& e) {
    a.defect = e.what();
  }
  arrived_.push_back(std::move(a));
}

void Inbox::add_defect(int from, std::string what) { arrived_.push_back({{}, std::move(what), from}); }

void Inbox::deliver(std::unique_lock<std::mutex> lock) {
  if (empty()) return;
  std::vector<Arrived> arrived = std::move(arrived_);
  std::vector<std::pair<int, std::string>> breaks = std::move(breaks_);
  arrived_.clear();
  breaks_.clear();
  lock.unlock();
  for (auto& [peer, why] : breaks) events_.broken(peer, why);
  for (Arrived& a : arrived) {
    try {
      check<ValueError>(a.defect.empty(), "rpc", "{}", a.defect);
      events_.arrived(std::move(a.message));
    } catch (const std::exception& e) {
      std::fprintf(stderr, "tutti: rpc: a message of worker number %d was thrown away: %s\n", a.from, e.what());
    }
  }
}

}  // namespace tutti::rpc::detail
