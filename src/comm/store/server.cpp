#include "comm/store/server.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace tutti::store {
namespace {

enum : uint64_t { kStop = 0, kListener = 1, kFirstPeer = 2 };

void watch(int epoll, int action, int descriptor, uint32_t events, uint64_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  check<StoreError>(::epoll_ctl(epoll, action, descriptor, &event) == 0, "TcpStore", "epoll_ctl: {}",
                    errno_text(errno));
}

// Signals are for the program's own threads.
template <class Body>
std::thread thread_without_signals(Body body) {
  sigset_t all, old;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &old);
  std::thread thread(body);
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return thread;
}

}  // namespace

struct Server::Peer {
  Peer(Server& server, uint64_t number, io::Descriptor&& socket)
      : number(number),
        socket(std::move(socket)),
        deadline(deadline_after(server.handshake_timeout_)),
        session(server.board_, server.secret_, random_digest(), [this, &server] {
          if (!touched) server.touched_.push_back(this->number);
          touched = true;
        }) {}

  uint64_t number;
  io::Descriptor socket;
  Clock::time_point deadline;  // for the proof
  bool unproven = true;
  std::list<Peer*>::iterator place;  // among the unproven
  uint32_t watched = 0;
  bool touched = false;
  Session session;
};

Server::Server(const std::string& host, uint16_t port, std::string secret, std::chrono::nanoseconds handshake_timeout)
    : secret_(std::move(secret)),
      handshake_timeout_(handshake_timeout),
      listener_(listen_on(host, port, !secret_.empty(), address_)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      next_number_(kFirstPeer) {
  check<StoreError>(epoll_.get() >= 0 && stop_.get() >= 0, "TcpStore", "no descriptor: {}", errno_text(errno));
  check<ValueError>(!secret_.empty() || address_.loopback(), "TcpStore",
                    "a server on {}, where others can reach it, needs a secret", address_.text());
  watch(epoll_.get(), EPOLL_CTL_ADD, stop_.get(), EPOLLIN, kStop);
  watch(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListener);
  thread_ = thread_without_signals([this] { loop(); });
}

Server::~Server() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void Server::loop() {
  std::array<epoll_event, 256> events;
  while (true) {
    int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), wait_milliseconds());
    look(Clock::now());
    for (int i = 0; i < count; ++i) {
      uint64_t number = events[static_cast<size_t>(i)].data.u64;
      if (number == kStop) return;
      if (number == kListener) {
        accept_some();
        continue;
      }
      auto it = peers_.find(number);  // it may have gone by an earlier event of this round
      if (it != peers_.end()) serve(*it->second, events[static_cast<size_t>(i)].events);
    }
    expire();
    flush_touched();
  }
}

int Server::wait_milliseconds() const {
  auto next = std::min(listen_again_, check_silence_);
  if (check_silence_ != Clock::time_point::max()) next = std::min(next, last_look_ + least_silence_ / 8);
  if (!unproven_.empty()) next = std::min(next, unproven_.front()->deadline);
  if (next == Clock::time_point::max()) return -1;
  auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60000));
}

void Server::accept_some() {
  for (int i = 0; i < 64; ++i) {  // not without end: those who are in have their turn
    io::Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) pause_listening();
      return;
    }
    try {
      add_peer(std::move(socket));
    } catch (const std::exception&) {  // no memory, no randomness: this peer cannot be served now
    }
  }
}

void Server::add_peer(io::Descriptor socket) {
  if (unproven_.size() >= kMaxUnproven) drop(*unproven_.front());
  configure(socket.get());
  uint64_t number = next_number_++;
  auto peer = std::make_unique<Peer>(*this, number, std::move(socket));
  watch(epoll_.get(), EPOLL_CTL_ADD, peer->socket.get(), EPOLLIN, number);
  peer->watched = EPOLLIN;
  peer->place = unproven_.insert(unproven_.end(), peer.get());
  Peer& added = *peers_.emplace(number, std::move(peer)).first->second;
  serve(added, 0);
}

// Out of descriptors. A waiting connection would wake us again and again: look away for a moment.
void Server::pause_listening() {
  if (!unproven_.empty()) drop(*unproven_.front());
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  listen_again_ = Clock::now() + std::chrono::milliseconds(20);
}

void Server::expire() {
  auto now = last_look_;  // not later: this process may have been stopped since
  while (!unproven_.empty() && unproven_.front()->deadline <= now) drop(*unproven_.front());
  if (listen_again_ <= now) {
    listen_again_ = Clock::time_point::max();
    watch(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListener);
  }
  if (check_silence_ <= now) drop_silent(now);
}

// See Note [Oversleeping].
void Server::look(Clock::time_point now) {
  bool expects = check_silence_ != Clock::time_point::max();
  // Not at every breath of a busy machine: on one that is always late, nobody would ever count as silent.
  auto missed = std::max<Clock::duration>(least_silence_ / 3, std::chrono::milliseconds(100));
  auto gap = now - last_look_;
  if (expects && gap > missed && (gap > least_silence_ || now - forgave_ > 2 * least_silence_))
    awake_since_ = forgave_ = now;
  last_look_ = now;
}

// Wills of peers whose host is gone without a word.
void Server::drop_silent(Clock::time_point now) {
  check_silence_ = Clock::time_point::max();
  least_silence_ = Clock::duration::max();
  std::vector<Peer*> silent;
  for (auto& [number, peer] : peers_) {
    auto limit = peer->session.silence();
    if (limit.count() == 0) continue;
    least_silence_ = std::min<Clock::duration>(least_silence_, limit);
    auto until = std::max(peer->session.last_heard(), awake_since_) + limit;
    if (until <= now)
      silent.push_back(peer.get());
    else
      check_silence_ = std::min(check_silence_, until);
  }
  for (Peer* peer : silent) drop(*peer, true);
}

void Server::serve(Peer& peer, uint32_t events) {
  bool alive = true;
  try {
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) alive = receive(peer);
    if (peer.session.wanted() == 0 && (events & (EPOLLHUP | EPOLLERR))) alive = false;
    alive = flush(peer) && alive && peer.session.proceed();
    if (alive) watch_for_more(peer);
  } catch (const std::exception&) {
    alive = false;  // one peer too many, or too greedy: the others go on
  }
  if (!alive) drop(peer);
}

bool Server::receive(Peer& peer) {
  size_t wanted = std::min(peer.session.wanted(), buffer_.size());
  if (wanted == 0) return true;
  ssize_t count = ::recv(peer.socket.get(), buffer_.data(), wanted, 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0 || !peer.session.receive({buffer_.data(), static_cast<size_t>(count)})) return false;
  if (peer.unproven && peer.session.proven()) {
    peer.unproven = false;
    unproven_.erase(peer.place);
  }
  if (auto limit = peer.session.silence(); limit.count() > 0) {
    least_silence_ = std::min<Clock::duration>(least_silence_, limit);
    check_silence_ = std::min(check_silence_, peer.session.last_heard() + limit);
  }
  return true;
}

// Sends what there is; false if the peer is lost.
bool Server::flush(Peer& peer) {
  Session& session = peer.session;
  size_t turn = 4 * kPauseOutput;  // then others have their turn
  while (!session.output().empty() && turn > 0) {
    auto piece = session.output().substr(0, turn);
    ssize_t count = ::send(peer.socket.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) return false;
    if (count < 0) break;
    session.sent(static_cast<size_t>(count));
    turn -= static_cast<size_t>(count);
  }
  return !session.overrun();
}

// Output, or requests that came already: then we go on when the socket takes more, which is at once if it is idle.
void Server::watch_for_more(Peer& peer) {
  bool more = !peer.session.output().empty() || (peer.session.proven() && peer.session.wanted() == 0);
  uint32_t watched = (peer.session.wanted() ? EPOLLIN : 0u) | (more ? EPOLLOUT : 0u);
  if (watched != peer.watched) {
    watch(epoll_.get(), EPOLL_CTL_MOD, peer.socket.get(), watched, peer.number);
    peer.watched = watched;
  }
}

void Server::flush_touched() {
  // Serving one may touch others, and so may its will.
  while (!touched_.empty())
    for (uint64_t number : std::exchange(touched_, {})) {
      auto it = peers_.find(number);
      if (it == peers_.end()) continue;
      it->second->touched = false;
      serve(*it->second, 0);
    }
}

void Server::drop(Peer& peer, bool silent) {
  if (peer.unproven) unproven_.erase(peer.place);
  peer.session.pass_away(silent);
  peers_.erase(peer.number);  // closing the descriptor takes it out of the epoll set
}

}  // namespace tutti::store
