// The wire by Gloo, for those who run it already. Gloo's own matching needs to know sender and length beforehand, so
// all messages come by one slot, from any rank, in frames of a header and some bytes; a thread takes them in.
#include "base/check.h"
#include "comm/transport/kept.h"
#include "comm/transport/wire.h"

#ifndef TUTTI_HAVE_GLOO

namespace tutti::comm {
bool has_gloo() { return false; }

std::unique_ptr<Wire> make_gloo_wire(int, int, const StorePtr&, const std::string&, const std::stop_token&) {
  fail<DeviceError>("world",
                    "this build of Tutti has no Gloo: build it where Gloo is (on Debian: libgloo-dev), or use "
                    "TUTTI_TRANSPORT=ucx");
}
}  // namespace tutti::comm

#else

#include <gloo/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netinet/in.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <thread>

namespace tutti::comm {
namespace {

constexpr uint64_t kSlot = 0x7475747469;
constexpr size_t kFrame = 256 << 10;  // bytes of a message that go at once
constexpr const char* kOutOfOrder = "it sent a part of a message that cannot be";
// Gloo closes a connection for good when something takes longer, so nothing does: times are kept by the world.
constexpr auto kForever = std::chrono::hours(24 * 365);

// Gloo's rule for who of two connects, and who waits for that. Its addresses begin with those of the system.
bool other_connects(const char* mine, const char* theirs, size_t length) {
  sockaddr_storage a{}, b{};
  std::memcpy(&a, mine, std::min(length, sizeof a));
  std::memcpy(&b, theirs, std::min(length, sizeof b));
  auto order = [](const auto& host_a, const auto& host_b, int port_a, int port_b) {
    int hosts = std::memcmp(&host_a, &host_b, sizeof host_a);
    return hosts != 0 ? hosts : port_a - port_b;
  };
  if (a.ss_family == AF_INET) {
    const auto &x = reinterpret_cast<const sockaddr_in&>(a), &y = reinterpret_cast<const sockaddr_in&>(b);
    return order(x.sin_addr, y.sin_addr, x.sin_port, y.sin_port) < 0;
  }
  const auto &x = reinterpret_cast<const sockaddr_in6&>(a), &y = reinterpret_cast<const sockaddr_in6&>(b);
  return order(x.sin6_addr, y.sin6_addr, x.sin6_port, y.sin6_port) < 0;
}

/// As gloo::rendezvous::Context, which has no way to be told that another rank will never come: one that finds no port
/// any more, for example.
class Mesh final : public gloo::Context {
 public:
  Mesh(int rank, int size, std::chrono::milliseconds timeout) : gloo::Context(rank, size) { setTimeout(timeout); }
  void connect(Store& store, const std::shared_ptr<gloo::transport::Device>& device, const std::stop_token& stop) {
    device_ = device;
    transportContext_ = device->createContext(rank, size);
    transportContext_->setTimeout(getTimeout());
    auto key = [](int r) { return fmt::format("gloo/{}", r); };
    std::string mine;  // where each of the others finds this rank
    size_t length = 0;
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      std::vector<char> address = transportContext_->createPair(r)->address().bytes();
      length = address.size();
      mine.append(address.data(), length);
    }
    store.set(key(rank), mine);
    // Who waits for another to connect is ended by that, as if they had. Only who waits: Gloo closes with a reset, and
    // one that a rank meets while it accepts the connection ends that rank's process.
    std::atomic<int> waits_for{-1};
    std::stop_callback on_stop(stop, [&] {
      if (int r = waits_for.load(); r >= 0) transportContext_->getPair(r)->close();
    });
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      std::string theirs = store.get(key(r));
      auto at = static_cast<size_t>(rank > r ? rank - 1 : rank) * length;
      check<ConnectionError>(theirs.size() == mine.size(), "world", "rank {} says nonsense of where Gloo finds it", r);
      auto own = static_cast<size_t>(r > rank ? r - 1 : r) * length;
      if (other_connects(mine.data() + own, theirs.data() + at, length)) waits_for.store(r);
      if (!stop.stop_requested())
        transportContext_->getPair(r)->connect({theirs.data() + at, theirs.data() + at + length});
      waits_for.store(-1);
      check<CancelledError>(!stop.stop_requested(), "world", "another rank has failed while the ranks met");
    }
  }
};

/// While it lives, a peer that has closed its connection is an error and no signal, for this thread and those that it
/// starts: Gloo writes to sockets without saying so.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    timespec none{};
    if (!::sigismember(&before_, SIGPIPE)) ::sigtimedwait(&pipe_, nullptr, &none);  // one that came
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_, before_;
};

struct FrameHeader {
  WireName name;
  uint64_t bytes = 0, offset = 0;  // of the whole message; of this frame's in it
};

class GlooWire final : public Wire {
 public:
  GlooWire(int rank, int size, const StorePtr& store, const std::string& address, const std::stop_token& stop);
  ~GlooWire() override;
  void send(int to, WireName name, const void* data, size_t bytes, Pending& pending) override;
  void send(int to, WireName name, std::vector<std::byte> bytes) override;
  void receive(const WireName& name, void* to, size_t bytes, Pending& pending) override;
  void unreceive(const WireName& name) override;
  bool wait(Clock::time_point until, const std::function<bool()>& ready) override;
  void wake() override;
  bool attended() const override { return waiters_.load() > 0; }
  void cut() override;
  void flush(std::chrono::milliseconds time) override;
  void forget(uint64_t group) override;
  void drop(uint64_t group, uint64_t first, uint64_t last) override;

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;
  struct Posted {
    std::byte* to;
    size_t bytes;
    Pending* pending;
    size_t come = 0;
  };
  struct Sending {
    int to;
    WireName name;
    const std::byte* data;
    size_t bytes;
    Pending* pending;
    std::vector<std::byte> kept;
  };
  void start_send(Sending sending);
  void take_in();
  bool is_closed(int rank);
  void give_out();
  void arrived(const FrameHeader& header, const std::byte* data, size_t bytes);
  void changed();

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<Mesh> context_;
  std::vector<std::byte> in_, out_;
  Buffer in_buffer_, out_buffer_;

  std::mutex mutex_;
  std::condition_variable changed_, to_send_;
  std::map<WireName, Posted> posted_;
  std::map<WireName, KeptMessage> kept_;
  Dropped dropped_;
  std::deque<Sending> sends_;
  bool sending_ = false;  // one of them is on its way
  bool cut_ = false, stop_ = false;
  uint64_t moved_ = 0, probes_ = 0;
  std::atomic<int> waiters_{0};
  std::thread receiver_, sender_;
};

GlooWire::GlooWire(int rank, int size, const StorePtr& store, const std::string& address, const std::stop_token& stop)
    : Wire(rank, size), in_(sizeof(FrameHeader) + kFrame), out_(sizeof(FrameHeader) + kFrame) {
  if (size == 1) return;
  NoPipeSignal guard;  // the device's thread, and ours, keep it
  gloo::transport::tcp::attr attr(address.c_str());
  try {
    device_ = gloo::transport::tcp::CreateDevice(attr);
    context_ =
        std::make_shared<Mesh>(rank, size, std::chrono::duration_cast<std::chrono::milliseconds>(store->timeout()));
    context_->connect(*store, device_, stop);
    context_->setTimeout(kForever);
    in_buffer_ = context_->createUnboundBuffer(in_.data(), in_.size());
    out_buffer_ = context_->createUnboundBuffer(out_.data(), out_.size());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    check<CancelledError>(!stop.stop_requested(), "world", "another rank has failed while the ranks met");
    fail<ConnectionError>("world", "Gloo cannot connect the ranks, with {} as the address of this one: {}", address,
                          e.what());
  }
  receiver_ = std::thread([this] { take_in(); });
  sender_ = std::thread([this] { give_out(); });
}

GlooWire::~GlooWire() {
  cut();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    if (in_buffer_) in_buffer_->abortWaitRecv();
    if (out_buffer_) out_buffer_->abortWaitSend();
  }
  to_send_.notify_all();
  if (receiver_.joinable()) receiver_.join();
  if (sender_.joinable()) sender_.join();
  in_buffer_.reset();
  out_buffer_.reset();
}

// ---- Sending

void GlooWire::start_send(Sending sending) {
  std::lock_guard lock(mutex_);
  if (cut_) return;
  sends_.push_back(std::move(sending));
  to_send_.notify_one();
}

void GlooWire::send(int to, WireName name, const void* data, size_t bytes, Pending& pending) {
  pending.left.fetch_add(1);
  count_sent(to);
  start_send({to, name, static_cast<const std::byte*>(data), bytes, &pending, {}});
}

void GlooWire::send(int to, WireName name, std::vector<std::byte> bytes) {
  start_send({to, name, nullptr, bytes.size(), nullptr, std::move(bytes)});
}

void GlooWire::give_out() {
  std::unique_lock lock(mutex_);
  while (true) {
    to_send_.wait(lock, [&] { return stop_ || !sends_.empty(); });
    if (stop_) return;
    Sending next = std::move(sends_.front());
    sends_.pop_front();
    sending_ = true;
    const std::byte* data = next.kept.empty() ? next.data : next.kept.data();
    size_t offset = 0;
    do {
      FrameHeader header{next.name, next.bytes, offset};
      size_t bytes = std::min(kFrame, next.bytes - offset);
      if (cut_) break;  // the memory may be gone
      std::memcpy(out_.data(), &header, sizeof header);
      if (bytes) std::memcpy(out_.data() + sizeof header, data + offset, bytes);
      lock.unlock();
      try {
        out_buffer_->send(next.to, kSlot, 0, sizeof header + bytes);
        out_buffer_->waitSend(kForever);
      } catch (const std::exception& e) {
        set_broken(next.to, fmt::format("Gloo cannot send to it: {}", e.what()));
        std::lock_guard again(mutex_);
        out_buffer_ = context_->createUnboundBuffer(out_.data(), out_.size());  // this one is of no more use
      }
      lock.lock();
      offset += bytes;
    } while (offset < next.bytes);
    sending_ = false;
    if (!cut_) finish(next.pending);
    changed();
  }
}

// ---- Receiving

void GlooWire::take_in() {
  std::vector<int> others;
  for (int r = 0; r < context_->size; ++r)
    if (r != context_->rank) others.push_back(r);
  while (!others.empty()) {
    int from = -1;
    try {
      in_buffer_->recv(others, kSlot, 0, in_.size());
      if (!in_buffer_->waitRecv(&from, kForever)) return;
    } catch (const std::exception& e) {
      // One of the connections is closed; which one, Gloo says in words only. The others go on.
      std::lock_guard lock(mutex_);
      if (stop_) return;
      std::erase_if(others, [&](int r) {
        bool closed = is_closed(r);
        if (closed) set_broken(r, fmt::format("its connection is broken: {}", e.what()));
        return closed;
      });
      changed();
      in_buffer_ = context_->createUnboundBuffer(in_.data(), in_.size());
      continue;
    }
    FrameHeader header;
    std::memcpy(&header, in_.data(), sizeof header);
    std::lock_guard lock(mutex_);
    if (header.name.from != from || header.offset > header.bytes) continue;
    arrived(header, in_.data() + sizeof header, std::min(kFrame, header.bytes - header.offset));
  }
}

// Asking for something that never comes is the way to find out.
bool GlooWire::is_closed(int rank) {
  char none = 0;
  try {
    auto probe = context_->createUnboundBuffer(&none, 1);
    probe->recv(rank, kSlot + ++probes_, 0, 1);
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

void GlooWire::arrived(const FrameHeader& h, const std::byte* data, size_t bytes) {
  if (cut_) return;
  auto it = posted_.find(h.name);
  if (it != posted_.end() && fits(h.name, h.bytes, it->second.bytes)) {
    if (h.offset != it->second.come) return set_broken(h.name.from, kOutOfOrder);
    if (bytes) std::memcpy(it->second.to + h.offset, data, bytes);
    it->second.come += bytes;
    if (it->second.come == h.bytes) {
      Pending* pending = it->second.pending;
      posted_.erase(it);
      finish(pending);
    }
    return changed();
  }
  if (it != posted_.end()) {
    Posted posted = it->second;
    // What follows of it is dropped with the call that it belongs to.
    if (posted.pending->tentative) posted_.erase(it);
    misfits(h.name, h.bytes, posted.bytes, posted.pending);
    return changed();
  }
  if (is_data(h.name.channel) && dropped_.has(h.name)) return;
  auto found = kept_.find(h.name);
  // Of tentative data that did not fit, the rest comes too.
  if (found == kept_.end() && h.offset > 0 && is_data(h.name.channel)) return;
  KeptMessage& kept = found == kept_.end() ? kept_[h.name] : found->second;
  if (!kept.add(h.bytes, h.offset, {data, bytes})) return set_broken(h.name.from, kOutOfOrder);
  if (h.name.channel == Channel::mail && kept.whole()) {
    put_mail({h.name, std::move(kept.bytes())});
    kept_.erase(h.name);
    changed();
  }
}

void GlooWire::receive(const WireName& name, void* to, size_t bytes, Pending& pending) {
  pending.left.fetch_add(1);
  std::lock_guard lock(mutex_);
  if (cut_) return;
  Posted posted{static_cast<std::byte*>(to), bytes, &pending};
  auto it = kept_.find(name);
  if (it != kept_.end()) {
    KeptMessage kept = std::move(kept_.extract(it).mapped());
    if (misfits(name, kept.length(), bytes, &pending)) return;
    if (!kept.bytes().empty()) std::memcpy(to, kept.bytes().data(), kept.bytes().size());
    if (kept.whole()) return finish(&pending);
    posted.come = kept.bytes().size();  // the rest goes to its place
  }
  posted_.emplace(name, posted);
}

void GlooWire::unreceive(const WireName& name) {
  std::lock_guard lock(mutex_);
  posted_.erase(name);
}

void GlooWire::forget(uint64_t group) {
  std::lock_guard lock(mutex_);
  WireName first{group, 0, -1, Channel::hello};
  for (auto it = kept_.lower_bound(first); it != kept_.end() && it->first.group == group;) it = kept_.erase(it);
  dropped_.forget(group);
}

void GlooWire::drop(uint64_t group, uint64_t first, uint64_t last) {
  std::lock_guard lock(mutex_);
  dropped_.add(group, last);
  auto it = kept_.lower_bound({group, first, -1, Channel::hello});
  while (it != kept_.end() && it->first.group == group && it->first.number <= last)
    it = is_data(it->first.channel) ? kept_.erase(it) : std::next(it);
}

// ---- Waiting

void GlooWire::changed() {
  ++moved_;
  changed_.notify_all();
}

bool GlooWire::wait(Clock::time_point until, const std::function<bool()>& ready) {
  waiters_.fetch_add(1);
  struct Leave {
    GlooWire& wire;
    ~Leave() {
      if (wire.waiters_.fetch_sub(1) == 1) wire.unattended();
    }
  } leave{*this};
  while (true) {
    uint64_t seen = 0;
    {
      std::lock_guard lock(mutex_);
      seen = moved_;
    }
    if (ready()) return true;
    if (Clock::now() >= until) return false;
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [&] { return moved_ != seen; });
  }
}

void GlooWire::wake() {
  std::lock_guard lock(mutex_);
  changed();
}

void GlooWire::flush(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return cut_ || (sends_.empty() && !sending_); });
}

void GlooWire::cut() {
  std::lock_guard lock(mutex_);
  if (cut_) return;
  cut_ = true;
  posted_.clear();
  kept_.clear();
  sends_.clear();
  // What is in Gloo's hands lies in our own buffers; closing ends those who wait for it.
  if (context_) context_->closeConnections();
  changed();
}

}  // namespace

bool has_gloo() { return true; }

std::unique_ptr<Wire> make_gloo_wire(int rank, int size, const StorePtr& store, const std::string& address,
                                     const std::stop_token& stop) {
  return std::make_unique<GlooWire>(rank, size, store, address, stop);
}

}  // namespace tutti::comm

#endif
