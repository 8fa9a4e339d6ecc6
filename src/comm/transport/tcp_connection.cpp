#include "comm/transport/tcp_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "comm/store/handshake.h"
#include "comm/store/request.h"
#include "comm/store/socket.h"

namespace tutti::comm {
namespace {

constexpr size_t kStaging = 16 << 10;  // headers and small messages come together, and are copied
constexpr size_t kAtOnce = 256 << 10;  // bytes of one system call, after which the other way has its turn
constexpr size_t kClaim = store::kClaimBytes + sizeof(uint32_t);

}  // namespace

TcpConnection::TcpConnection(io::Descriptor socket, const std::string& secret, int rank, int epoll)
    : socket_(std::move(socket)),
      secret_(secret),
      rank_(rank),
      epoll_(epoll),
      state_(State::claim),
      staging_(kStaging) {
  watch(EPOLL_CTL_ADD, false);
  store::configure(socket_.get());
  greeting_ = store::make_greeting(random_digest());
  say(greeting_);
}

TcpConnection::TcpConnection(io::Descriptor socket, const std::string& secret, int rank, int epoll, int peer)
    : socket_(std::move(socket)),
      secret_(secret),
      rank_(rank),
      epoll_(epoll),
      peer_(peer),
      state_(State::greeting),
      staging_(kStaging) {
  watch(EPOLL_CTL_ADD, false);
}

TcpConnection::~TcpConnection() { let_go(); }

void TcpConnection::watch(int operation, bool out) const {
  epoll_event event{.events = static_cast<uint32_t>(out ? EPOLLIN | EPOLLOUT : EPOLLIN),
                    .data = {.ptr = const_cast<TcpConnection*>(this)}};
  ::epoll_ctl(epoll_, operation, socket_.get(), &event);
}

void TcpConnection::arm() {
  if (!open() || watches_out_ == wants_out()) return;
  watches_out_ = wants_out();
  watch(EPOLL_CTL_MOD, watches_out_);
}

// Closing alone would not do where a forked process has the socket too.
void TcpConnection::let_go() {
  if (!open()) return;
  watch(EPOLL_CTL_DEL, false);
  socket_ = io::Descriptor();
}

void TcpConnection::close(std::string failure) {
  if (!open()) return;
  let_go();
  failure_ = std::move(failure);
  has_incoming_ = false;
  // What cannot be sent any more has at least left its memory.
  for (Outgoing& out : std::exchange(out_, {})) comm::finish(out.pending);
}

// ---- Meeting

// So little goes into any socket that is new.
bool TcpConnection::say(const std::string& text) {
  bool said =
      ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(text.size());
  if (!said) close("it does not take part in the handshake");
  return said;
}

bool TcpConnection::take(size_t bytes, std::string& text) {
  char buffer[256];
  size_t wanted = std::min(bytes - heard_.size(), sizeof buffer);
  ssize_t got = ::recv(socket_.get(), buffer, wanted, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    close(got == 0 ? "it closed the connection in the handshake" : store::errno_text(errno));
    return false;
  }
  if (got > 0) heard_.append(buffer, static_cast<size_t>(got));
  if (heard_.size() < bytes) return false;
  text = std::exchange(heard_, {});
  return true;
}

bool TcpConnection::shake_hands(Receiver& receiver) {
  std::string text;
  if (state_ == State::greeting) {
    if (!take(store::kGreetingBytes, greeting_)) return !open();
    if (auto defect = store::greeting_defect(greeting_); !defect.empty()) {
      close(defect);
      return true;
    }
    claim_ = store::make_claim(secret_, greeting_, random_digest());
    text = claim_;
    store::put_u32(text, static_cast<uint32_t>(rank_));
    if (say(text)) state_ = State::answer;
    return true;
  }
  if (state_ == State::claim) {
    if (!take(kClaim, text)) return !open();
    std::string_view claim = std::string_view(text).substr(0, store::kClaimBytes);
    std::string answer = store::make_answer(secret_, greeting_, claim);
    auto rank = static_cast<int>(store::get_u32(text.data() + store::kClaimBytes));
    if (answer.empty() || !say(answer) || !receiver.met(rank, *this)) {
      close("it does not know the world's secret");
      return true;
    }
    peer_ = rank;
    state_ = State::established;
    return true;
  }
  if (!take(store::kAnswerBytes, text)) return !open();
  if (store::answer_proves(secret_, greeting_, claim_, text))
    state_ = State::established;
  else
    close("it does not know the world's secret");
  return true;
}

// ---- Receiving

// Where the next bytes of the message belong. What nobody wants goes where headers come, and is written over.
std::span<std::byte> TcpConnection::place() {
  Incoming& in = incoming_;
  size_t count = std::min(in.left(), in.kind == Incoming::unwanted ? staging_.size() : kAtOnce);
  if (in.kind == Incoming::unwanted) return {staging_.data(), count};
  if (in.kind == Incoming::posted) return {in.to + in.come, count};
  in.bytes.resize(in.come + count);
  return {in.bytes.data() + in.come, count};
}

void TcpConnection::came(Receiver& receiver, size_t bytes) {
  incoming_.come += bytes;
  if (incoming_.left() > 0) return;
  has_incoming_ = false;
  if (incoming_.kind == Incoming::kept) incoming_.bytes.resize(incoming_.come);
  receiver.end(std::exchange(incoming_, {}));
}

void TcpConnection::parse(Receiver& receiver, std::span<const std::byte> bytes) {
  while (open() && !bytes.empty()) {
    if (has_incoming_) {
      auto to = place();
      size_t count = std::min(to.size(), bytes.size());
      if (incoming_.kind != Incoming::unwanted) std::memcpy(to.data(), bytes.data(), count);
      bytes = bytes.subspan(count);
      came(receiver, count);
      continue;
    }
    Frame frame;
    if (bytes.size() < sizeof frame) break;
    std::memcpy(static_cast<void*>(&frame), bytes.data(), sizeof frame);
    bytes = bytes.subspan(sizeof frame);
    if (frame.name.from != peer_) return close("it sent what is no message of its own");
    incoming_ = receiver.begin(frame);
    has_incoming_ = true;
    if (frame.bytes == 0) came(receiver, 0);
  }
  staged_ = bytes.size();
  if (staged_) std::memmove(staging_.data(), bytes.data(), staged_);
}

bool TcpConnection::read(Receiver& receiver, bool all) {
  bool any = false;
  while (open()) {
    if (!established()) {
      if (!shake_hands(receiver)) return any;
      any = true;
      continue;
    }
    // The rest of a message goes to its place, and what follows it comes with it.
    iovec parts[2];
    size_t direct = 0;
    int count = 0;
    if (has_incoming_) {
      auto to = place();
      direct = to.size();
      parts[count++] = {to.data(), to.size()};
    }
    bool whole = !has_incoming_ || (direct == incoming_.left() && incoming_.kind != Incoming::unwanted);
    if (whole) parts[count++] = {staging_.data() + staged_, staging_.size() - staged_};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(count);
    ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return any;
    if (got <= 0) {
      close(got == 0 ? "it closed its connection" : store::errno_text(errno));
      return true;
    }
    any = true;
    auto come = static_cast<size_t>(got);
    size_t room = direct + (whole ? staging_.size() - staged_ : 0);
    if (direct) came(receiver, std::min(direct, come));
    if (come > direct) parse(receiver, {staging_.data(), staged_ + come - direct});
    if (!all || come < room) return any;
  }
  return any;
}

// ---- Sending

void TcpConnection::send(const Frame& frame, const void* data, Pending* pending, std::vector<std::byte> kept) {
  if (!open()) return;  // never done: who waits learns why from the world
  bool first = out_.empty();
  out_.push_back({frame, static_cast<const std::byte*>(data), 0, pending, std::move(kept)});
  if (!data) out_.back().data = out_.back().kept.data();
  if (first && established()) write(false);
}

bool TcpConnection::write(bool all) {
  bool any = false;
  while (wants_out()) {
    Outgoing& out = out_.front();
    iovec parts[2];
    int count = 0;
    size_t head = sizeof(Frame), asked = 0;
    if (out.done < head) parts[count++] = {reinterpret_cast<char*>(&out.frame) + out.done, head - out.done};
    size_t sent = out.done > head ? out.done - head : 0;
    if (size_t rest = std::min<size_t>(out.frame.bytes - sent, kAtOnce))
      parts[count++] = {const_cast<std::byte*>(out.data) + sent, rest};
    for (int i = 0; i < count; ++i) asked += parts[i].iov_len;
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(count);
    ssize_t gone = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (gone < 0 && (errno == EAGAIN || errno == EINTR)) return any;
    if (gone < 0) {
      // What it sent before it ended may still be there to be read, which says more.
      if (errno == EPIPE || errno == ECONNRESET) {
        for (Outgoing& o : std::exchange(out_, {})) comm::finish(o.pending);
        return true;
      }
      close(store::errno_text(errno));
      return true;
    }
    any = true;
    out.done += static_cast<size_t>(gone);
    if (out.done == head + out.frame.bytes) {
      Pending* pending = out.pending;
      out_.pop_front();
      comm::finish(pending);
    }
    if (!all || static_cast<size_t>(gone) < asked) return any;
  }
  return any;
}

void TcpConnection::finish() {
  if (open()) ::shutdown(socket_.get(), SHUT_WR);
}

bool TcpConnection::drained() {
  char buffer[4096];
  while (open()) {
    ssize_t got = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) let_go();
  }
  return true;
}

}  // namespace tutti::comm
