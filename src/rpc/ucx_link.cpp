// The link by UCX. One worker (UCX's) for each agent, used under a lock.
#include "base/check.h"
#include "rpc/link.h"

#ifndef TUTTI_HAVE_UCX

namespace tutti::rpc::detail {
std::unique_ptr<Opening> open_ucx_link() {
  fail<DeviceError>("rpc::Session",
                    "this build of Tutti has no UCX, which carries calls between hosts: build it where UCX's headers "
                    "are (on Debian: libucx-dev)");
}
}  // namespace tutti::rpc::detail

#else

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "comm/transport/ucx_library.h"
#include "tutti/ops.h"

namespace tutti::rpc::detail {

using comm::Ucx;

namespace {

constexpr unsigned kMessage = 2;        // the number of our active message
constexpr size_t kMostInHeader = 1024;  // of what precedes a tensor
constexpr size_t kShort = 4096;         // what is copied when it is unpacked
constexpr auto kClosing = std::chrono::milliseconds(500);
constexpr auto kNaming = std::chrono::seconds(2);

}  // namespace

/// UCX's own things, in the order of their making.
class UcxLink {
 public:
  UcxLink() {
    ucp_config_t* config = nullptr;
    comm::check_status(ucx.config_read(nullptr, nullptr, &config), "its configuration cannot be read");
    // Note [Links]. And a process that is killed would leave its files in /dev/shm.
    if (!std::getenv("UCX_TLS")) ucx.config_modify(config, "TLS", "^sm");
    // Note [Meeting by UCX]. (Names of a transport's settings are without that of the transport here.)
    if (!std::getenv("UCX_TCP_CONN_NB")) ucx.config_modify(config, "CONN_NB", "y");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.name = "tutti-rpc";
    ucs_status_t status = ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
    ucx.config_release(config);
    comm::check_status(status, "it cannot be started");
    ucp_worker_params_t options{};
    options.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
    options.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    options.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX;
    comm::check_status(ucx.worker_create(context, &options, &worker), "no worker");
    comm::check_status(ucx.worker_get_efd(worker, &efd), "its worker cannot be waited for");
  }
  ~UcxLink() {
    if (worker) ucx.worker_destroy(worker);
    if (context) ucx.cleanup(context);
  }
  UcxLink(const UcxLink&) = delete;
  UcxLink& operator=(const UcxLink&) = delete;
  std::string address() const {
    ucp_address_t* bytes = nullptr;
    size_t length = 0;
    comm::check_status(ucx.worker_get_address(worker, &bytes, &length), "no address");
    std::string text(reinterpret_cast<const char*>(bytes), length);
    ucx.worker_release_address(worker, bytes);
    return text;
  }

  const Ucx& ucx = Ucx::instance();
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  int efd = -1;
};

namespace {

class UcxLinkUse final : public Link {
 public:
  UcxLinkUse(std::shared_ptr<UcxLink> link, const LinkPlan& plan);
  ~UcxLinkUse() override;
  void send(int to, Packed packed) override;
  bool poll() override;
  bool arm() override;
  void disarm() override {}
  int descriptor() const override { return link_->efd; }
  void close(int peer) override;
  void flush(Clock::time_point until) override;
  size_t strangers() const override { return inbox_.strangers(); }
  void meet(const LinkPlan& plan);

 private:
  struct Peer {
    LinkPeer given;
    ucp_ep_h endpoint = nullptr;
    bool closed = false, connected = false, met = false;
  };
  /// On its way; UCX reads it until it has left.
  struct Sending {
    UcxLinkUse* link;
    int to;
    Packed packed;
    std::string head;
  };
  /// Being fetched.
  struct Fetching {
    UcxLinkUse* link;
    WireHeader header;
    std::shared_ptr<Tensor> memory;
  };

  // All of these want the mutex.
  ucp_ep_h endpoint(int to);
  void connect(Peer& peer);
  void broken(int peer, std::string why);
  ucs_status_t arrived(const WireHeader& header, std::string_view front, void* data, size_t length, bool rendezvous);
  void unpacked(const WireHeader& header, std::string_view bytes, const std::shared_ptr<void>& owner);
  bool progress();
  // These do not.
  bool agree(const LinkPlan& plan, bool well);
  void await(const LinkPlan& plan, Clock::time_point until, const std::function<int()>& missing);
  /// More has to move than whoever sleeps knows of.
  void wake() { ucx_.worker_signal(link_->worker); }

  static ucs_status_t on_message(void* self, const void* header, size_t header_length, void* data, size_t length,
                                 const ucp_am_recv_param_t* param);
  static void on_broken(void* self, ucp_ep_h ep, ucs_status_t status);
  static void on_connected(void* request, ucs_status_t status, void* peer);
  static void on_sent(void* request, ucs_status_t status, void* data);
  static void on_fetched(void* request, ucs_status_t status, size_t length, void* data);

  std::shared_ptr<UcxLink> link_;
  const Ucx& ucx_ = Ucx::instance();
  const int me_;
  const bool eager_ = !comm::has_fast_network();
  std::mutex mutex_;
  Inbox inbox_;
  std::vector<Peer> peers_;
  std::set<Sending*> sending_;
  std::set<Fetching*> fetching_;
};

UcxLinkUse::UcxLinkUse(std::shared_ptr<UcxLink> link, const LinkPlan& plan)
    : link_(std::move(link)), me_(plan.me), inbox_(plan) {
  for (const LinkPeer& peer : plan.peers) peers_.push_back({peer});
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.id = kMessage;
  handler.cb = on_message;
  handler.arg = this;
  comm::check_status(ucx_.worker_set_am_recv_handler(link_->worker, &handler), "no handler");
}

// Note [Meeting by UCX]
// Connections are made here, and a message goes each way: what is wrong with the network is found now, and UCX 1.13
// aborts the process if an endpoint is closed while it is still being connected. It also does so, by assertions of its
// own, when a peer dies at one of two moments:
// - A first message waits for the TCP connection, with another before it by which UCX sets the endpoint up. When the
//   connection stands, but the peer is no more, that one is taken out of the queue out of which it is being sent
//   (wireup_ep.c, pending_count). So nobody sends before the connections of all stand: a flush waits for that and needs
//   no such message, and then all agree by the group.
// - connect() succeeds, what follows it cannot be sent, and neither succeeds a second connect(), all inside of
//   ucp_ep_create() (tcp_ep.c, CTX_TYPE_TX). With CONN_NB the connection is made later, where UCX can cope with that.
void UcxLinkUse::meet(const LinkPlan& plan) {
  auto until = Clock::now() + plan.timeout;
  auto first = [&](bool Peer::* is) {
    auto it = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.given.mine && !(p.*is); });
    return it == peers_.end() ? -1 : static_cast<int>(it - peers_.begin());
  };
  {
    std::lock_guard lock(mutex_);
    for (Peer& p : peers_)
      if (p.given.mine) connect(p);
  }
  std::exception_ptr wrong;
  try {
    await(plan, until, [&] { return first(&Peer::connected); });
  } catch (const Error&) {
    wrong = std::current_exception();
  }
  bool others_well = agree(plan, !wrong);
  if (wrong) std::rethrow_exception(wrong);
  check<ConnectionError>(others_well, "rpc::Session", "not all workers could connect by UCX: their own errors say why");
  for (int k = 0; k < static_cast<int>(peers_.size()); ++k) {
    if (!peers_[static_cast<size_t>(k)].given.mine) continue;
    Message hello;
    hello.kind = Kind::hello;
    hello.from = me_;
    send(k, pack(std::move(hello)));
  }
  await(plan, until, [&] { return first(&Peer::met); });
}

/// Whether all are well. Also who is not takes part: a collective that was begun and left would fail the world later.
bool UcxLinkUse::agree(const LinkPlan& plan, bool well) {
  if (!plan.agree) return true;
  Tensor all = full({1}, well, {.dtype = DType::i64});
  try {
    Work work = plan.agree(all);
    while (!work.wait_for(std::chrono::microseconds(200))) {  // others may yet be connecting to this one
      std::lock_guard lock(mutex_);
      progress();
    }
  } catch (const Error&) {
    if (well) throw;
    return false;
  }
  return all.item<int64_t>() == 1;
}

void UcxLinkUse::connect(Peer& peer) {
  ucp_ep_h ep = endpoint(static_cast<int>(&peer - peers_.data()));
  if (!ep) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = on_connected;
  params.user_data = &peer;
  ucs_status_ptr_t status = ucx_.ep_flush_nbx(ep, &params);
  if (status == nullptr) peer.connected = true;
  if (UCS_PTR_IS_ERR(status))
    broken(static_cast<int>(&peer - peers_.data()),
           fmt::format("UCX cannot connect to it: {}", ucx_.status_string(UCS_PTR_STATUS(status))));
}

// Where it failed, UCX says so: on_broken.
void UcxLinkUse::on_connected(void* request, ucs_status_t status, void* peer) {
  static_cast<Peer*>(peer)->connected = status == UCS_OK;
  Ucx::instance().request_free(request);
}

/// Until missing() is -1; otherwise it is the number of one that is waited for.
void UcxLinkUse::await(const LinkPlan& plan, Clock::time_point until, const std::function<int()>& missing) {
  auto broken = [&] { return !inbox_.breaks().empty(); };
  for (int k = missing(); k >= 0; k = missing()) {
    if (broken()) {  // the group knows whose end that was, if it was one: soon
      for (auto soon = Clock::now() + kNaming; Clock::now() < soon;) {
        plan.check();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const auto& [peer, why] = inbox_.breaks()[0];
      fail<ConnectionError>("rpc::Session", "worker number {} cannot be reached by UCX: {}", peer, why);
    }
    check<ConnectionError>(Clock::now() < until, "rpc::Session",
                           "nothing was heard of worker number {} by UCX in {:.3g} s", k,
                           std::chrono::duration<double>(plan.timeout).count());
    std::unique_lock lock(mutex_);
    if (progress() || broken()) continue;
    lock.unlock();
    pollfd readable{link_->efd, POLLIN, 0};
    if (arm() && ::poll(&readable, 1, 10) == 0) plan.check();
  }
}

UcxLinkUse::~UcxLinkUse() {
  std::lock_guard lock(mutex_);
  std::vector<void*> closing;
  for (Peer& p : peers_) {
    if (!p.endpoint || !p.met) continue;
    // What waits for an answer of a peer that is no more would be found by UCX when its worker goes, which is one more
    // assertion (ucp_ep.c, proto_reqs): by force, it is given up before.
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = p.closed ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    ucs_status_ptr_t request = ucx_.ep_close_nbx(p.endpoint, &params);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  auto until = Clock::now() + kClosing;
  auto open = [&] {
    for (void* request : closing)
      if (ucx_.request_check_status(request) == UCS_INPROGRESS) return true;
    return false;
  };
  while (open() && Clock::now() < until) progress();
  for (void* request : closing) ucx_.request_free(request);
  link_.reset();  // which tells of what was still on its way: on_sent, on_fetched
  for (Sending* s : sending_) delete s;
  for (Fetching* f : fetching_) delete f;
}

// ---- Sending

ucp_ep_h UcxLinkUse::endpoint(int to) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (peer.endpoint || peer.closed) return peer.closed ? nullptr : peer.endpoint;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.given.address.data());
  // With it, UCX uses no shared memory of its own: Note [Links].
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {on_broken, this};
  ucs_status_t status = ucx_.ep_create(link_->worker, &params, &peer.endpoint);
  if (status == UCS_OK) return peer.endpoint;
  peer.endpoint = nullptr;
  broken(to, fmt::format("UCX finds no way to it: {}", ucx_.status_string(status)));
  return nullptr;
}

void UcxLinkUse::send(int to, Packed packed) {
  auto sending = std::make_unique<Sending>(Sending{this, to, std::move(packed), {}});
  std::lock_guard lock(mutex_);
  ucp_ep_h ep = endpoint(to);
  if (!ep) return;
  WireHeader& header = sending->packed.header;
  header.token = inbox_.token_to(to);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = on_sent;
  params.user_data = sending.get();
  // By TCP UCX 1.13 does not bear that a peer dies while it fetches, or is fetched from (tcp_ep.c, PUT_TX_WAITING_ACK;
  // ucp_ep.c, proto_reqs): all goes at once, which takes one more copy.
  if (eager_) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
  }
  // What precedes the tensors goes with the header, so that UCX finds their memory in one piece, and moves it without a
  // copy of its own.
  std::string& front = sending->packed.front;
  const void* data = sending->packed.data;
  size_t count = header.data_bytes, head_bytes = sizeof header;
  const void* head = &header;
  if (!data) {
    data = front.data();
    count = front.size();
  } else if (front.size() <= kMostInHeader) {
    sending->head.assign(reinterpret_cast<const char*>(&header), sizeof header);
    sending->head += front;
    head = sending->head.data();
    head_bytes = sending->head.size();
  } else {
    front.append(static_cast<const char*>(data), count);
    data = front.data();
    count = front.size();
  }
  ucs_status_ptr_t status = ucx_.am_send_nbx(ep, kMessage, head, head_bytes, data, count, &params);
  if (status == nullptr) return;
  if (UCS_PTR_IS_ERR(status))
    return broken(to, fmt::format("UCX cannot send to it: {}", ucx_.status_string(UCS_PTR_STATUS(status))));
  sending_.insert(sending.release());
  wake();  // whoever sleeps did not know that there is something to move
}

void UcxLinkUse::on_sent(void* request, ucs_status_t, void* data) {
  auto* sending = static_cast<Sending*>(data);
  sending->link->sending_.erase(sending);
  delete sending;
  Ucx::instance().request_free(request);
}

void UcxLinkUse::broken(int peer, std::string why) {
  peers_[static_cast<size_t>(peer)].closed = true;
  inbox_.broken(peer, std::move(why));
}

void UcxLinkUse::on_broken(void* self, ucp_ep_h ep, ucs_status_t status) {
  auto* link = static_cast<UcxLinkUse*>(self);
  for (size_t k = 0; k < link->peers_.size(); ++k)
    if (link->peers_[k].endpoint == ep)
      link->broken(static_cast<int>(k), fmt::format("its connection is broken: {}", link->ucx_.status_string(status)));
}

void UcxLinkUse::close(int peer) {
  std::lock_guard lock(mutex_);
  peers_[static_cast<size_t>(peer)].closed = true;
}

// ---- Receiving

ucs_status_t UcxLinkUse::on_message(void* self, const void* bytes, size_t header_length, void* data, size_t length,
                                    const ucp_am_recv_param_t* param) {
  auto* link = static_cast<UcxLinkUse*>(self);
  WireHeader header;
  if (header_length < sizeof header || header_length > sizeof header + kMostInHeader) {
    link->inbox_.stranger("its header is not that of a message");
    return UCS_OK;
  }
  std::memcpy(&header, bytes, sizeof header);
  std::string_view front(static_cast<const char*>(bytes) + sizeof header, header_length - sizeof header);
  return link->arrived(header, front, data, length, param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
}

ucs_status_t UcxLinkUse::arrived(const WireHeader& header, std::string_view front, void* data, size_t length,
                                 bool rendezvous) {
  if (!inbox_.proves(header.token, header.from)) return UCS_OK;
  std::string wrong = defect(header, front.size() + length);
  if (!wrong.empty()) {
    inbox_.add_defect(static_cast<int>(header.from), wrong);
    return UCS_OK;
  }
  if (!rendezvous && front.empty() && length <= kShort) {
    unpacked(header, {static_cast<const char*>(data), length}, nullptr);
    return UCS_OK;
  }
  auto fetching = std::make_unique<Fetching>(Fetching{this, header, nullptr});
  try {
    fetching->memory =
        std::make_shared<Tensor>(empty({front.size() + length}, {.dtype = DType::u8, .device = Device()}));
  } catch (const std::exception& e) {
    inbox_.add_defect(static_cast<int>(header.from), e.what());
    return UCS_OK;
  }
  if (!rendezvous) {
    auto* memory = static_cast<char*>(fetching->memory->raw_data());
    if (!front.empty()) std::memcpy(memory, front.data(), front.size());
    if (length > 0) std::memcpy(memory + front.size(), data, length);
    unpacked(header, {memory, front.size() + length}, fetching->memory);
    return UCS_OK;
  }
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = on_fetched;
  params.user_data = fetching.get();
  auto* memory = static_cast<char*>(fetching->memory->raw_data());
  if (!front.empty()) std::memcpy(memory, front.data(), front.size());
  ucs_status_ptr_t status = ucx_.am_recv_data_nbx(link_->worker, data, memory + front.size(), length, &params);
  if (status == nullptr)
    unpacked(header, {memory, front.size() + length}, fetching->memory);
  else if (UCS_PTR_IS_ERR(status))
    broken(static_cast<int>(header.from),
           fmt::format("UCX cannot receive from it: {}", ucx_.status_string(UCS_PTR_STATUS(status))));
  else
    fetching_.insert(fetching.release());
  return UCS_INPROGRESS;
}

void UcxLinkUse::on_fetched(void* request, ucs_status_t status, size_t, void* data) {
  std::unique_ptr<Fetching> f(static_cast<Fetching*>(data));
  f->link->fetching_.erase(f.get());
  if (status == UCS_OK)
    f->link->unpacked(f->header,
                      {static_cast<const char*>(f->memory->raw_data()), static_cast<size_t>(f->memory->numel())},
                      f->memory);
  Ucx::instance().request_free(request);
}

void UcxLinkUse::unpacked(const WireHeader& header, std::string_view bytes, const std::shared_ptr<void>& owner) {
  if (header.kind == static_cast<uint8_t>(Kind::hello)) {
    peers_[header.from].met = true;
    return;
  }
  inbox_.add(header, bytes, owner);
}

bool UcxLinkUse::progress() {
  bool any = false;
  while (ucx_.worker_progress(link_->worker) > 0) any = true;
  return any;
}

bool UcxLinkUse::poll() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  bool any = progress();
  inbox_.deliver(std::move(lock));
  return any;
}

bool UcxLinkUse::arm() {
  std::lock_guard lock(mutex_);
  return inbox_.empty() && ucx_.worker_arm(link_->worker) == UCS_OK;
}

void UcxLinkUse::flush(Clock::time_point until) {
  std::lock_guard lock(mutex_);
  for (const Peer& p : peers_)
    if (p.closed) until = std::min(until, Clock::now() + std::chrono::milliseconds(50));  // it may wait for that one
  ucp_request_param_t params{};
  ucs_status_ptr_t request = ucx_.worker_flush_nbx(link_->worker, &params);
  if (!UCS_PTR_IS_PTR(request)) return;
  while (ucx_.request_check_status(request) == UCS_INPROGRESS && Clock::now() < until) progress();
  ucx_.request_free(request);
}

class UcxOpening final : public Opening {
 public:
  std::string address() const override { return link_->address(); }
  std::unique_ptr<Link> connect(LinkPlan plan) override {
    auto link = std::make_unique<UcxLinkUse>(std::move(link_), plan);
    link->meet(plan);
    return link;
  }

 private:
  std::shared_ptr<UcxLink> link_ = std::make_shared<UcxLink>();
};

}  // namespace

std::unique_ptr<Opening> open_ucx_link() { return std::make_unique<UcxOpening>(); }

}  // namespace tutti::rpc::detail

#endif
