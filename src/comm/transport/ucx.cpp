// The wire by UCX.
#include "base/check.h"
#include "comm/transport/wire.h"

#ifndef TUTTI_HAVE_UCX

namespace tutti::comm {
bool has_ucx() { return false; }

std::unique_ptr<Wire> make_ucx_wire(int, int, const StorePtr&, bool, std::chrono::milliseconds,
                                    const std::stop_token&) {
  fail<DeviceError>("world",
                    "this build of Tutti has no UCX: build it where UCX's headers are (on Debian: libucx-dev), "
                    "or use TUTTI_TRANSPORT=gloo");
}
}  // namespace tutti::comm

#else

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

#include "comm/transport/ucx_library.h"
#include "io/descriptor.h"

namespace tutti::comm {
namespace {

constexpr unsigned kMessage = 1;  // the number of our active message
constexpr int kSpins = 2000;
constexpr auto kLinger = std::chrono::milliseconds(2);  // how long the wire's own thread leaves the work to waiters
constexpr auto kConnecting = std::chrono::milliseconds(5);
constexpr int kGlance = 50;  // milliseconds after which it looks in any case

/// What could not be closed, and goes with the process. A child that it forks cannot begin anew: the thread by which
/// UCX connects is the parent's, and UCX does not know that.
struct LeftBehind {
  std::mutex mutex;
  std::vector<void*> all;
  pid_t process = 0;
};
LeftBehind& left_behind() {
  static auto* left = new LeftBehind;
  return *left;
}

class UcxWire final : public Wire {
 public:
  UcxWire(int rank, int size, const StorePtr& store, bool spin);
  ~UcxWire() override;
  void send(int to, WireName name, const void* data, size_t bytes, Pending& pending) override;
  void send(int to, WireName name, std::vector<std::byte> bytes) override;
  void receive(const WireName& name, void* to, size_t bytes, Pending& pending) override;
  void unreceive(const WireName& name) override;
  bool wait(Clock::time_point until, const std::function<bool()>& ready) override;
  void wake() override;
  bool attended() const override { return waiters_.load() > 0; }
  void connected() override { connected_ = true; }
  void cut() override;
  void flush(std::chrono::milliseconds time) override;
  void forget(uint64_t group) override;
  void drop(uint64_t group, uint64_t first, uint64_t last) override;
  /// All ranks connect to each other.
  void meet(Store& store, std::chrono::milliseconds timeout, const std::stop_token& stop);

 private:
  struct Posted {
    std::byte* to;
    size_t bytes;
    Pending* pending;
  };
  /// What came before it was asked for: bytes, or what UCX fetches them by.
  struct Kept {
    std::vector<std::byte> bytes;
    void* descriptor = nullptr;
    size_t length = 0;
  };
  /// A request on its way; UCX reads the name until it has left.
  struct Request {
    UcxWire* wire;
    WireName name;
    Pending* pending;
    std::vector<std::byte> kept;
    bool receives;
  };

  // All of these want the mutex.
  bool progress();
  ucp_ep_h endpoint(int to);
  void connect(int to);
  void start_send(int to, std::unique_ptr<Request> request, const void* data, size_t bytes);
  void fetch(const WireName& name, const Posted& posted, void* descriptor, size_t length);
  void ended(Request* request, ucs_status_t status);
  ucs_status_t arrived(const WireName& name, void* data, size_t length, bool rendezvous);
  void close(bool force, Clock::time_point until);
  bool sleep(std::unique_lock<std::mutex>& lock, Clock::time_point until);
  void run();

  static ucs_status_t on_message(void* self, const void* header, size_t header_length, void* data, size_t length,
                                 const ucp_am_recv_param_t* param);
  static void on_broken(void* self, ucp_ep_h ep, ucs_status_t status);
  static void on_connected(void* request, ucs_status_t status, void* stands);
  static void on_sent(void* request, ucs_status_t status, void* data);
  static void on_fetched(void* request, ucs_status_t status, size_t length, void* data);

  const Ucx& ucx_ = Ucx::instance();
  const bool spin_, eager_;
  Store::Values addresses_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int efd_ = -1;
  io::Descriptor stop_event_;

  std::mutex mutex_;
  std::vector<ucp_ep_h> endpoints_;
  std::vector<std::atomic<bool>> stands_;  // of each rank: the connection to it
  std::map<WireName, Posted> posted_;
  std::map<WireName, Kept> kept_;
  Dropped dropped_;
  std::set<Request*> requests_;
  bool cut_ = false, stop_ = false, leading_ = false;
  bool still_ = false;  // nothing moves any more
  uint64_t moved_ = 0;  // how often something did
  std::condition_variable changed_, linger_;
  std::atomic<int> waiters_{0};
  std::atomic<bool> connected_{false};
  std::thread thread_;
};

UcxWire::UcxWire(int rank, int size, const StorePtr& store, bool spin)
    : Wire(rank, size),
      spin_(spin),
      eager_(!has_fast_network()),
      stop_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      endpoints_(static_cast<size_t>(size), nullptr),
      stands_(static_cast<size_t>(size)) {
  check<ConnectionError>(left_behind().process == 0 || left_behind().process == ::getpid(), "world",
                         "this process was forked from one in which a world by UCX has failed, and UCX cannot begin "
                         "anew here: start a program instead (exec), or use TUTTI_TRANSPORT=gloo");
  ucp_config_t* config = nullptr;
  check_status(ucx_.config_read(nullptr, nullptr, &config), "its configuration cannot be read");
  // Ranks of a host have shared memory of our own; UCX's would not notice that a peer has died.
  if (!std::getenv("UCX_TLS")) ucx_.config_modify(config, "TLS", "^sm");
  // Note [Meeting by UCX]. (Names of a transport's settings are without that of the transport here.)
  if (!std::getenv("UCX_TCP_CONN_NB")) ucx_.config_modify(config, "CONN_NB", "y");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "tutti";
  ucs_status_t status = ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_.config_release(config);
  check_status(status, "it cannot be started");
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  worker.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  check_status(ucx_.worker_create(context_, &worker, &worker_), "no worker");
  check_status(ucx_.worker_get_efd(worker_, &efd_), "its worker cannot be waited for");
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.id = kMessage;
  handler.cb = on_message;
  handler.arg = this;
  check_status(ucx_.worker_set_am_recv_handler(worker_, &handler), "no handler");
  ucp_address_t* address = nullptr;
  size_t length = 0;
  check_status(ucx_.worker_get_address(worker_, &address, &length), "no address");
  store->set(fmt::format("ucx/{}", rank), {reinterpret_cast<const char*>(address), length});
  ucx_.worker_release_address(worker_, address);
  Store::Keys keys;
  for (int r = 0; r < size; ++r) keys.push_back(fmt::format("ucx/{}", r));
  addresses_ = store->multi_get(keys);
  thread_ = std::thread([this] { run(); });
}

UcxWire::~UcxWire() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ::eventfd_write(stop_event_.get(), 1);
  linger_.notify_all();
  if (thread_.joinable()) thread_.join();
  // UCX 1.13 aborts the process if an endpoint is closed while it is still being connected. That is only so where
  // ranks have not met, and the process is about to end. For cuts by TCP see cut().
  bool alone = std::all_of(endpoints_.begin(), endpoints_.end(), [](ucp_ep_h ep) { return ep == nullptr; });
  if (!alone && (!connected_ || (cut_ && eager_))) {
    std::lock_guard lock(left_behind().mutex);
    left_behind().all.insert(left_behind().all.end(), {worker_, context_});
    left_behind().process = ::getpid();
    return;
  }
  if (!cut_) {
    std::lock_guard lock(mutex_);
    close(false, Clock::now() + std::chrono::milliseconds(500));
  }
  ucx_.worker_destroy(worker_);
  ucx_.cleanup(context_);
}

// ---- Meeting

// As Note [Meeting by UCX] in rpc/ucx_link.cpp says: nobody sends before the connections of all stand. Meanwhile the
// wire's own thread moves what others need to connect to this rank.
void UcxWire::meet(Store& store, std::chrono::milliseconds timeout, const std::stop_token& stop) {
  auto until = Clock::now() + timeout;
  int size = static_cast<int>(endpoints_.size());
  for (int k = 1; k < size; ++k) {
    std::lock_guard lock(mutex_);
    connect((rank_ + k) % size);
  }
  std::stop_callback stopped(stop, [this] { wake(); });
  for (int k = 1; k < size; ++k) {
    int peer = (rank_ + k) % size;
    const auto& stands = stands_[static_cast<size_t>(peer)];
    auto ready = [&] { return stands || broken(peer) || stop.stop_requested(); };
    // UCX does not tell of all that happens to connections that are being made: it is asked again and again.
    while (!wait(std::min(until, Clock::now() + kConnecting), ready) && Clock::now() < until) continue;
    if (stop.stop_requested()) fail<CancelledError>("world", "the meeting by UCX was ended");
    if (stands) continue;
    auto why = broken(peer);
    fail<ConnectionError>(
        "world", "rank {} does not reach rank {} by ucx: {}", rank_, peer,
        why ? why->text : fmt::format("no connection in {:.3g} s", std::chrono::duration<double>(timeout).count()));
  }
  if (store.add("ucx/connected", 1) == size) store.set("ucx/all", "yes");
  store.get("ucx/all",
            {.timeout = std::max<Clock::duration>(until - Clock::now(), std::chrono::seconds(1)), .stop = stop});
}

void UcxWire::connect(int to) {
  ucp_ep_h ep = endpoint(to);
  if (!ep) return;
  auto& stands = stands_[static_cast<size_t>(to)];
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = on_connected;
  params.user_data = &stands;
  ucs_status_ptr_t status = ucx_.ep_flush_nbx(ep, &params);
  if (status == nullptr) stands = true;
  if (UCS_PTR_IS_ERR(status))
    set_broken(to, fmt::format("UCX cannot connect to it: {}", ucx_.status_string(UCS_PTR_STATUS(status))));
}

// Where it failed, UCX says so: on_broken.
void UcxWire::on_connected(void* request, ucs_status_t status, void* stands) {
  *static_cast<std::atomic<bool>*>(stands) = status == UCS_OK;
  Ucx::instance().request_free(request);
}

// ---- Sending and receiving

ucp_ep_h UcxWire::endpoint(int to) {
  ucp_ep_h& ep = endpoints_[static_cast<size_t>(to)];
  if (ep) return ep;
  const std::string& address = addresses_[static_cast<size_t>(to)];
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {on_broken, this};
  ucs_status_t status = ucx_.ep_create(worker_, &params, &ep);
  if (status != UCS_OK) {
    ep = nullptr;
    set_broken(to, fmt::format("UCX finds no way to it: {}", ucx_.status_string(status)));
  }
  return ep;
}

void UcxWire::start_send(int to, std::unique_ptr<Request> request, const void* data, size_t bytes) {
  ucp_ep_h ep = cut_ ? nullptr : endpoint(to);
  if (!ep) return;  // never done: who waits learns why from the world
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = on_sent;
  params.user_data = request.get();
  // Mail is read from within the handler, and of tentative data nobody need ask. Where only TCP is, asking the receiver
  // first costs more than it saves.
  if (eager_ || request->name.channel == Channel::mail || (request->pending && request->pending->tentative)) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
  }
  ucs_status_ptr_t status = ucx_.am_send_nbx(ep, kMessage, &request->name, sizeof request->name, data, bytes, &params);
  if (status == nullptr)
    finish(request->pending);
  else if (UCS_PTR_IS_ERR(status))
    set_broken(to, fmt::format("UCX cannot send to it: {}", ucx_.status_string(UCS_PTR_STATUS(status))));
  else
    requests_.insert(request.release());
}

void UcxWire::send(int to, WireName name, const void* data, size_t bytes, Pending& pending) {
  pending.left.fetch_add(1);
  count_sent(to);
  std::lock_guard lock(mutex_);
  start_send(to, std::make_unique<Request>(Request{this, name, &pending, {}, false}), data, bytes);
}

void UcxWire::send(int to, WireName name, std::vector<std::byte> bytes) {
  std::lock_guard lock(mutex_);
  auto request = std::make_unique<Request>(Request{this, name, nullptr, std::move(bytes), false});
  const auto& kept = request->kept;
  const void* data = kept.data();
  size_t size = kept.size();
  start_send(to, std::move(request), data, size);
}

void UcxWire::on_sent(void* request, ucs_status_t status, void* data) {
  auto* r = static_cast<Request*>(data);
  r->wire->ended(r, status);
  Ucx::instance().request_free(request);
}
void UcxWire::on_fetched(void* request, ucs_status_t status, size_t, void* data) { on_sent(request, status, data); }

// What could not be sent has at least left its memory; what could not be received never comes. Where the wire has been
// cut, nobody waits any more.
void UcxWire::ended(Request* request, ucs_status_t status) {
  std::unique_ptr<Request> own(request);
  requests_.erase(request);
  if (!cut_ && (status == UCS_OK || !own->receives)) finish(own->pending);
}

void UcxWire::fetch(const WireName& name, const Posted& posted, void* descriptor, size_t length) {
  auto request = std::make_unique<Request>(Request{this, name, posted.pending, {}, true});
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = on_fetched;
  params.user_data = request.get();
  ucs_status_ptr_t status = ucx_.am_recv_data_nbx(worker_, descriptor, posted.to, length, &params);
  if (status == nullptr)
    finish(posted.pending);
  else if (UCS_PTR_IS_ERR(status))
    set_broken(name.from, fmt::format("UCX cannot receive from it: {}", ucx_.status_string(UCS_PTR_STATUS(status))));
  else
    requests_.insert(request.release());
}

void UcxWire::receive(const WireName& name, void* to, size_t bytes, Pending& pending) {
  pending.left.fetch_add(1);
  std::lock_guard lock(mutex_);
  if (cut_) return;
  Posted posted{static_cast<std::byte*>(to), bytes, &pending};
  auto it = kept_.find(name);
  if (it == kept_.end()) {
    posted_.emplace(name, posted);
    return;
  }
  Kept kept = std::move(kept_.extract(it).mapped());
  if (misfits(name, kept.length, bytes, &pending)) return;
  if (kept.descriptor) return fetch(name, posted, kept.descriptor, kept.length);
  if (kept.length) std::memcpy(to, kept.bytes.data(), kept.length);
  finish(&pending);
}

ucs_status_t UcxWire::on_message(void* self, const void* header, size_t header_length, void* data, size_t length,
                                 const ucp_am_recv_param_t* param) {
  auto* wire = static_cast<UcxWire*>(self);
  WireName name;
  if (header_length != sizeof name) return UCS_OK;
  std::memcpy(&name, header, sizeof name);
  // Anybody who finds the port can speak to UCX; ranks that do not exist are not listened to.
  if (name.from < 0 || name.from >= static_cast<int>(wire->endpoints_.size())) return UCS_OK;
  return wire->arrived(name, data, length, param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
}

ucs_status_t UcxWire::arrived(const WireName& name, void* data, size_t length, bool rendezvous) {
  if (cut_) return UCS_OK;
  const auto* bytes = static_cast<const std::byte*>(data);
  if (name.channel == Channel::mail) {
    if (!rendezvous) put_mail({name, std::vector<std::byte>(bytes, bytes + length)});
    return UCS_OK;
  }
  auto it = posted_.find(name);
  if (it == posted_.end()) {
    if (is_data(name.channel) && dropped_.has(name)) return UCS_OK;
    Kept kept{{}, rendezvous ? data : nullptr, length};
    if (!rendezvous && length) kept.bytes.assign(bytes, bytes + length);
    kept_.emplace(name, std::move(kept));
    return rendezvous ? UCS_INPROGRESS : UCS_OK;
  }
  Posted posted = it->second;
  posted_.erase(it);
  if (misfits(name, length, posted.bytes, posted.pending)) return UCS_OK;
  if (rendezvous) {
    fetch(name, posted, data, length);
    return UCS_INPROGRESS;
  }
  if (length) std::memcpy(posted.to, data, length);
  finish(posted.pending);
  return UCS_OK;
}

void UcxWire::unreceive(const WireName& name) {
  std::lock_guard lock(mutex_);
  posted_.erase(name);
}

void UcxWire::forget(uint64_t group) {
  std::lock_guard lock(mutex_);
  WireName first{group, 0, -1, Channel::facts};
  for (auto it = kept_.lower_bound(first); it != kept_.end() && it->first.group == group;) it = kept_.erase(it);
  dropped_.forget(group);
}

void UcxWire::drop(uint64_t group, uint64_t first, uint64_t last) {
  std::lock_guard lock(mutex_);
  dropped_.add(group, last);
  auto it = kept_.lower_bound({group, first, -1, Channel::hello});
  while (it != kept_.end() && it->first.group == group && it->first.number <= last)
    it = is_data(it->first.channel) ? kept_.erase(it) : std::next(it);
}

void UcxWire::on_broken(void* self, ucp_ep_h ep, ucs_status_t status) {
  auto* wire = static_cast<UcxWire*>(self);
  for (size_t r = 0; r < wire->endpoints_.size(); ++r)
    if (wire->endpoints_[r] == ep)
      wire->set_broken(static_cast<int>(r),
                       fmt::format("its connection is broken: {}", wire->ucx_.status_string(status)));
  ++wire->moved_;
  wire->changed_.notify_all();
}

// ---- Waiting

bool UcxWire::progress() {
  bool any = false;
  if (still_) return any;
  while (ucx_.worker_progress(worker_) > 0) any = true;
  if (any) {
    ++moved_;
    changed_.notify_all();
  }
  return any;
}

// Sleeps until something may have come. Others' messages count too: `moved_` says whether to look.
bool UcxWire::sleep(std::unique_lock<std::mutex>& lock, Clock::time_point until) {
  if (still_) return changed_.wait_until(lock, until), false;
  if (ucx_.worker_arm(worker_) != UCS_OK) return true;
  auto left = std::max<Clock::duration>(until - Clock::now(), Clock::duration::zero());
  auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  timespec time{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  pollfd polls[2] = {{efd_, POLLIN, 0}, {stop_event_.get(), POLLIN, 0}};
  lock.unlock();
  int ready = ::ppoll(polls, 2, &time, nullptr);
  lock.lock();
  return ready > 0;
}

bool UcxWire::wait(Clock::time_point until, const std::function<bool()>& ready) {
  waiters_.fetch_add(1);
  struct Leave {
    UcxWire& wire;
    ~Leave() {
      if (wire.waiters_.fetch_sub(1) == 1) wire.unattended();
    }
  } leave{*this};
  while (true) {
    uint64_t seen = 0;
    for (int i = spin_ ? kSpins : 2; i > 0; --i) {
      {
        std::lock_guard lock(mutex_);
        if (progress() && leading_) ucx_.worker_signal(worker_);
        seen = moved_;
      }
      if (ready()) return true;
      if (spin_) __builtin_ia32_pause();
    }
    if (Clock::now() >= until) return false;
    std::unique_lock lock(mutex_);
    if (moved_ != seen) continue;
    if (leading_) {
      changed_.wait_until(lock, until, [&] { return moved_ != seen || !leading_; });
      continue;
    }
    leading_ = true;
    sleep(lock, until);
    leading_ = false;
    changed_.notify_all();
  }
}

void UcxWire::wake() {
  std::lock_guard lock(mutex_);
  ++moved_;
  changed_.notify_all();
  if (leading_) ucx_.worker_signal(worker_);
}

// Moves messages when nobody waits: what was sent must leave, and peers must be answered, while the rank computes.
void UcxWire::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (still_) {
      linger_.wait(lock, [&] { return stop_; });
      return;
    }
    if (waiters_.load() > 0) {
      linger_.wait_for(lock, kLinger);
      continue;
    }
    progress();
    if (sleep(lock, Clock::now() + std::chrono::milliseconds(kGlance)) && waiters_.load() == 0 && !stop_) progress();
  }
}

// ---- Ends

void UcxWire::flush(std::chrono::milliseconds time) {
  auto until = Clock::now() + time;
  std::unique_lock lock(mutex_);
  if (cut_) return;
  ucp_request_param_t params{};
  ucs_status_ptr_t request = ucx_.worker_flush_nbx(worker_, &params);
  if (!UCS_PTR_IS_PTR(request)) return;
  while (ucx_.request_check_status(request) == UCS_INPROGRESS && Clock::now() < until)
    if (!progress()) sleep(lock, std::min(until, Clock::now() + std::chrono::milliseconds(1)));
  ucx_.request_free(request);
}

void UcxWire::close(bool force, Clock::time_point until) {
  std::vector<void*> closing;
  for (size_t r = 0; r < endpoints_.size(); ++r) {
    ucp_ep_h& ep = endpoints_[r];
    if (!ep) continue;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    // What waits for an answer of a rank that is no more would be found by UCX when its worker goes, and ends the
    // process (ucp_ep.c, proto_reqs).
    params.flags = force || broken(static_cast<int>(r)) ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    ucs_status_ptr_t request = ucx_.ep_close_nbx(ep, &params);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
    ep = nullptr;
  }
  auto open = [&] {
    for (void* request : closing)
      if (ucx_.request_check_status(request) == UCS_INPROGRESS) return true;
    return force && !requests_.empty();
  };
  while (open() && Clock::now() < until) progress();
  for (void* request : closing) ucx_.request_free(request);
}

// By TCP UCX touches memory only where it is asked to move messages: it is not asked any more. To close the endpoints
// by force would end some processes, since UCX 1.13 does not bear that the other end of a connection is closed while
// what was to be sent by it is being given up: the connection is freed for what can be read, and then used for what can
// be written (tcp_iface.c, uct_tcp_iface_handle_events). The system closes them when the process ends. Other networks
// write by themselves, and have to be told.
void UcxWire::cut() {
  std::lock_guard lock(mutex_);
  if (cut_) return;
  cut_ = true;
  posted_.clear();
  kept_.clear();
  if (connected_ && !eager_) close(true, Clock::now() + std::chrono::seconds(2));
  still_ = true;
  ++moved_;
  changed_.notify_all();
}

}  // namespace

bool has_ucx() { return true; }

std::unique_ptr<Wire> make_ucx_wire(int rank, int size, const StorePtr& store, bool spin,
                                    std::chrono::milliseconds timeout, const std::stop_token& stop) {
  auto wire = std::make_unique<UcxWire>(rank, size, store, spin);
  wire->meet(*store, timeout, stop);
  return wire;
}

}  // namespace tutti::comm

#endif
