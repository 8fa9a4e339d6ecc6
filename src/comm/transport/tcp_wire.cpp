// The wire by plain sockets: one connection between any two ranks, made by the one with the larger number.
#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <cstring>
#include <list>

#include "base/check.h"
#include "base/sha256.h"
#include "comm/store/socket.h"
#include "comm/transport/polled_wire.h"
#include "comm/transport/tcp_connection.h"

namespace tutti::comm {
namespace {

constexpr int kFew = 4;            // so many connections are read without asking first which of them has something
constexpr size_t kStrangers = 64;  // that may be in the handshake at once
constexpr auto kHandshake = std::chrono::seconds(10);

class TcpWire final : public PolledWire, TcpConnection::Receiver {
 public:
  TcpWire(int rank, int size, const StorePtr& store, bool spin, const std::string& address);
  ~TcpWire() override;
  void send(int to, WireName name, const void* data, size_t bytes, Pending& pending) override;
  void send(int to, WireName name, std::vector<std::byte> bytes) override;
  void receive(const WireName& name, void* to, size_t bytes, Pending& pending) override;
  void unreceive(const WireName& name) override;
  void cut() override;
  void flush(std::chrono::milliseconds time) override;
  void forget(uint64_t group) override;
  void drop(uint64_t group, uint64_t first, uint64_t last) override;

 private:
  using Incoming = TcpConnection::Incoming;
  struct Posted {
    std::byte* to;
    size_t bytes;
    Pending* pending;
  };
  struct Waiting {  // to be sent to a rank that has not connected yet
    TcpConnection::Frame frame;
    const void* data;
    Pending* pending;
    std::vector<std::byte> kept;
  };

  // All of these want the mutex.
  bool move(bool all) override;
  bool arm() override;
  Incoming begin(const TcpConnection::Frame& frame) override;
  void end(Incoming incoming) override;
  bool met(int rank, TcpConnection& connection) override;
  void connect(int to, const std::string& address);
  bool accept();
  bool serve_strangers(bool all);
  bool serve(TcpConnection& connection, bool all);
  void start_send(int to, Waiting message);
  TcpConnection* at(int rank) { return peers_[static_cast<size_t>(rank)].get(); }

  std::string secret_;
  io::Descriptor listener_, epoll_;
  std::vector<std::unique_ptr<TcpConnection>> peers_;  // by rank
  std::list<std::unique_ptr<TcpConnection>> strangers_;
  std::vector<std::vector<Waiting>> waiting_;  // by rank
  int awaited_;                                // ranks that have not connected yet
  std::map<WireName, Posted> posted_;
  std::map<WireName, std::vector<std::byte>> kept_;
  Dropped dropped_;
  bool cut_ = false;
};

// ---- Meeting

TcpWire::TcpWire(int rank, int size, const StorePtr& store, bool spin, const std::string& address)
    : PolledWire(rank, size, spin),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      peers_(static_cast<size_t>(size)),
      waiting_(static_cast<size_t>(size)),
      awaited_(size - 1 - rank) {
  bool here = address == "localhost" || address == "::1" || address.starts_with("127.");
  store::Address bound;
  listener_ = store::listen_on(here ? address : "", 0, true, bound);
  // By the store, whose clients have proved that they belong to the job.
  if (rank == 0) store->set("tcp/secret", std::string(bytes_of(random_digest())));
  store->set(fmt::format("tcp/{}", rank), fmt::format("{} {}", bound.port(), address));
  Store::Keys keys{"tcp/secret"};
  for (int r = 0; r < size; ++r) keys.push_back(fmt::format("tcp/{}", r));
  Store::Values values = store->multi_get(keys);
  secret_ = values[0];
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event);
  for (int r = 0; r < rank; ++r) connect(r, values[static_cast<size_t>(r) + 1]);
  start_thread(epoll_.get());
}

void TcpWire::connect(int to, const std::string& where) {
  size_t space = where.find(' ');
  auto port = static_cast<uint16_t>(std::atoi(where.c_str()));
  std::string host = space == std::string::npos ? "" : where.substr(space + 1), failure = "it has no address";
  store::Address peer;
  std::stop_token never;
  auto socket = store::connect_once(host, port, {Clock::now() + std::chrono::seconds(5), &never}, peer, failure);
  if (socket.get() < 0)
    return set_broken(to, fmt::format("there is no way to {}: {}", store::host_port(host, port), failure));
  peers_[static_cast<size_t>(to)] =
      std::make_unique<TcpConnection>(std::move(socket), secret_, rank_, epoll_.get(), to);
}

bool TcpWire::accept() {
  bool any = false;
  while (true) {
    io::Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) return any;
    any = true;
    if (strangers_.size() >= kStrangers) strangers_.pop_front();  // a rank proves itself sooner
    strangers_.push_back(std::make_unique<TcpConnection>(std::move(socket), secret_, rank_, epoll_.get()));
  }
}

bool TcpWire::serve_strangers(bool all) {
  bool any = accept();
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    auto& stranger = *it;
    any = stranger->read(*this, all) || any;
    if (stranger && stranger->open() && Clock::now() - stranger->since() < kHandshake)
      ++it;
    else
      it = strangers_.erase(it);
  }
  if (awaited_ == 0) {  // nobody else need find this rank
    strangers_.clear();
    listener_ = io::Descriptor();
  }
  return any;
}

bool TcpWire::met(int rank, TcpConnection& connection) {
  if (rank <= rank_ || rank >= static_cast<int>(peers_.size()) || at(rank)) return false;
  for (auto& stranger : strangers_)
    if (stranger.get() == &connection) peers_[static_cast<size_t>(rank)] = std::move(stranger);
  --awaited_;
  return true;
}

// ---- Sending and receiving

void TcpWire::start_send(int to, Waiting message) {
  if (cut_) return;
  if (TcpConnection* peer = at(to))
    peer->send(message.frame, message.data, message.pending, std::move(message.kept));
  else
    waiting_[static_cast<size_t>(to)].push_back(std::move(message));
}

void TcpWire::send(int to, WireName name, const void* data, size_t bytes, Pending& pending) {
  pending.left.fetch_add(1);
  count_sent(to);
  std::lock_guard lock(mutex_);
  start_send(to, {{name, bytes}, data, &pending, {}});
}

void TcpWire::send(int to, WireName name, std::vector<std::byte> bytes) {
  std::lock_guard lock(mutex_);
  size_t count = bytes.size();
  start_send(to, {{name, count}, nullptr, nullptr, std::move(bytes)});
}

void TcpWire::receive(const WireName& name, void* to, size_t bytes, Pending& pending) {
  pending.left.fetch_add(1);
  std::lock_guard lock(mutex_);
  if (cut_) return;
  if (auto it = kept_.find(name); it != kept_.end()) {
    std::vector<std::byte> kept = std::move(kept_.extract(it).mapped());
    if (misfits(name, kept.size(), bytes, &pending)) return;
    if (!kept.empty()) std::memcpy(to, kept.data(), kept.size());
    return finish(&pending);
  }
  TcpConnection* peer = at(name.from);
  Incoming* incoming = peer ? peer->incoming() : nullptr;
  if (!incoming || incoming->frame.name != name || incoming->kind != Incoming::kept) {
    posted_.emplace(name, Posted{static_cast<std::byte*>(to), bytes, &pending});
    return;
  }
  // It is on its way: what has come is moved, the rest goes to its place.
  std::vector<std::byte> come = std::move(incoming->bytes);
  if (misfits(name, incoming->frame.bytes, bytes, &pending)) {
    incoming->kind = Incoming::unwanted;
    return;
  }
  if (incoming->come) std::memcpy(to, come.data(), incoming->come);
  incoming->kind = Incoming::posted;
  incoming->to = static_cast<std::byte*>(to);
  incoming->pending = &pending;
}

TcpWire::Incoming TcpWire::begin(const TcpConnection::Frame& frame) {
  Incoming incoming{.frame = frame, .kind = Incoming::kept};
  auto it = posted_.find(frame.name);
  if (it == posted_.end() || frame.name.channel == Channel::mail) {
    if (is_data(frame.name.channel) && dropped_.has(frame.name)) incoming.kind = Incoming::unwanted;
    return incoming;
  }
  Posted posted = it->second;
  posted_.erase(it);
  if (misfits(frame.name, frame.bytes, posted.bytes, posted.pending)) {
    incoming.kind = Incoming::unwanted;
    return incoming;
  }
  incoming.kind = Incoming::posted;
  incoming.to = posted.to;
  incoming.pending = posted.pending;
  return incoming;
}

void TcpWire::end(Incoming incoming) {
  const WireName& name = incoming.frame.name;
  if (incoming.kind == Incoming::posted)
    finish(incoming.pending);
  else if (incoming.kind == Incoming::kept && name.channel == Channel::mail)
    put_mail({name, std::move(incoming.bytes)});
  else if (incoming.kind == Incoming::kept)
    kept_.emplace(name, std::move(incoming.bytes));
}

void TcpWire::unreceive(const WireName& name) {
  std::lock_guard lock(mutex_);
  posted_.erase(name);
  TcpConnection* peer = at(name.from);
  Incoming* incoming = peer ? peer->incoming() : nullptr;
  if (incoming && incoming->frame.name == name) incoming->kind = Incoming::unwanted;
}

void TcpWire::forget(uint64_t group) {
  std::lock_guard lock(mutex_);
  auto it = kept_.lower_bound({group, 0, -1, Channel::hello});
  while (it != kept_.end() && it->first.group == group) it = kept_.erase(it);
  dropped_.forget(group);
}

void TcpWire::drop(uint64_t group, uint64_t first, uint64_t last) {
  std::lock_guard lock(mutex_);
  dropped_.add(group, last);
  auto it = kept_.lower_bound({group, first, -1, Channel::hello});
  while (it != kept_.end() && it->first.group == group && it->first.number <= last)
    it = is_data(it->first.channel) ? kept_.erase(it) : std::next(it);
  for (auto& peer : peers_)
    if (Incoming* in = peer ? peer->incoming() : nullptr;
        in && in->kind == Incoming::kept && is_data(in->frame.name.channel) && dropped_.has(in->frame.name))
      in->kind = Incoming::unwanted;
}

// ---- Moving

bool TcpWire::serve(TcpConnection& connection, bool all) {
  bool any = connection.open() && connection.write(all);
  any = (connection.open() && connection.read(*this, all)) || any;
  if (connection.open() || std::exchange(connection.reported, true)) return any;
  set_broken(connection.peer(), "its connection is broken: " + connection.failure());
  return true;
}

bool TcpWire::move(bool all) {
  if (cut_) return false;
  bool any = false;
  if (listener_.get() >= 0) {
    any = serve_strangers(all);
    for (size_t r = 0; r < peers_.size(); ++r)
      if (peers_[r])
        for (Waiting& w : std::exchange(waiting_[r], {}))
          peers_[r]->send(w.frame, w.data, w.pending, std::move(w.kept));
  }
  if (listener_.get() >= 0 || peers_.size() <= kFew + 1) {
    for (auto& peer : peers_)
      if (peer) any = serve(*peer, all) || any;
    return any;
  }
  std::array<epoll_event, 64> events;
  int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i)
    any = serve(*static_cast<TcpConnection*>(events[static_cast<size_t>(i)].data.ptr), all) || any;
  for (auto& peer : peers_)
    if (peer && peer->wants_out()) any = peer->write(all) || any;
  return any;
}

// What has come makes the descriptor readable by itself; room to send has to be asked for.
bool TcpWire::arm() {
  for (auto& peer : peers_)
    if (peer) peer->arm();
  return true;
}

// ---- Ends

void TcpWire::flush(std::chrono::milliseconds time) {
  auto until = Clock::now() + time;
  std::unique_lock lock(mutex_);
  auto busy = [&] {
    for (size_t r = 0; r < peers_.size(); ++r)
      if (!waiting_[r].empty() || (peers_[r] && !peers_[r]->idle())) return true;
    return false;
  };
  while (!cut_ && busy() && Clock::now() < until)
    if (!progress()) sleep(lock, std::min(until, Clock::now() + std::chrono::milliseconds(1)));
}

void TcpWire::cut() {
  std::lock_guard lock(mutex_);
  if (cut_) return;
  cut_ = true;
  posted_.clear();
  kept_.clear();
  waiting_.assign(waiting_.size(), {});
  strangers_.clear();
  listener_ = io::Descriptor();
  // Where the wire has been cut nobody waits any more, and what pends may be gone.
  for (auto& peer : peers_) peer.reset();
  changed();
}

// What others have not read yet would be lost if connections were closed with something unread in them.
TcpWire::~TcpWire() {
  stop_thread();
  std::lock_guard lock(mutex_);
  for (auto& peer : peers_)
    if (peer) peer->finish();
  auto until = Clock::now() + std::chrono::milliseconds(500);
  for (auto& peer : peers_)
    while (peer && !peer->drained() && Clock::now() < until) {
      pollfd poll{peer->descriptor(), POLLIN, 0};
      ::poll(&poll, 1, 10);
    }
}

}  // namespace

std::unique_ptr<Wire> make_tcp_wire(int rank, int size, const StorePtr& store, bool spin, const std::string& address) {
  return std::make_unique<TcpWire>(rank, size, store, spin, address);
}

}  // namespace tutti::comm
