#include "rpc/agent.h"

#include <cxxabi.h>

#include <algorithm>

#include "base/check.h"
#include "base/names.h"
#include "comm/group/rank.h"
#include "comm/launch/errors.h"
#include "comm/launch/launch.h"
#include "comm/transport/transport.h"

namespace tutti::rpc::detail {
namespace {

thread_local const Running* current_call = nullptr;
thread_local bool waits_for_credit = true;

/// What an error is on its way: class, text.
Message failure_message(const std::exception_ptr& error) {
  Message m;
  m.kind = Kind::failure;
  Writer out(m);
  std::string kind = comm::class_of(error), text = comm::text_of(error), type;
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& e) {  // of a third worker, or thrown by the function itself
    kind = "RemoteError";
    type = e.type();
  } catch (const Error&) {
  } catch (const std::exception& e) {
    type = demangle(typeid(e).name());
    text = fmt::format("{}: {}", type, text);
  } catch (...) {
    if (const std::type_info* t = abi::__cxa_current_exception_type()) type = demangle(t->name());
    text = fmt::format("{}: {}", type, text);
  }
  out.string(kind);
  out.string(text);
  out.string(type);
  return m;
}

std::exception_ptr error_of(const std::string& kind, int rank, const std::string& text, const std::string& type) {
  try {
    if (kind.empty() || kind == "RemoteError") {
      Context mine = context();
      mine.rank = rank;
      ContextGuard guard(std::move(mine));
      throw RemoteError(text, kRpcOperation, type);
    }
    if (kind == "RankFailure") throw RankFailure(text, kRpcOperation);
    comm::rethrow_as(kind, rank, text);
  } catch (...) {
    return std::current_exception();
  }
}

// Threads of one process must not see each other's tensors: the same as if it had gone over a wire.
void copy_tensors(TensorList& tensors) {
  for (Tensor& t : tensors) t = copy_of(t);
}

}  // namespace

std::string Pending::where(const char* file, unsigned line, const std::string& made_at) {
  std::string of = made_at.empty() ? "" : fmt::format("an object made at {}", made_at);
  if (line > 0) return fmt::format("called at {}:{}{}{}", file, line, of.empty() ? "" : ", of ", of);
  return of.empty() ? "called by the library itself" : "called of " + of;
}

const Running* running() { return current_call; }
RunningGuard::RunningGuard(const Running* call) : outer_(std::exchange(current_call, call)) {}
RunningGuard::~RunningGuard() { current_call = outer_; }
NoWaitForCredit::NoWaitForCredit() : outer_(std::exchange(waits_for_credit, false)) {}
NoWaitForCredit::~NoWaitForCredit() { waits_for_credit = outer_; }

std::shared_ptr<Agent> Agent::find() {
  auto world = std::static_pointer_cast<comm::RankGroup>(context().world);
  return world ? std::static_pointer_cast<Agent>(world->state->guest()) : nullptr;
}

std::shared_ptr<Agent> Agent::current(const char* operation) {
  auto agent = find();
  check<ValueError>(agent != nullptr, operation,
                    "this rank has no session: make an rpc::Session first, on all ranks, and keep it");
  return agent;
}

int Agent::number_of(const To& to) const {
  if (to.name.empty()) {
    auto it = by_rank_.find(to.rank);
    if (it != by_rank_.end()) return it->second;
  } else {
    auto it = by_name_.find(std::string(to.name));
    if (it != by_name_.end()) return it->second;
  }
  std::string names, wanted = to.name.empty() ? fmt::format("of rank {}", to.rank) : fmt::format("'{}'", to.name);
  for (const Worker& w : workers_) names += fmt::format("{}{} (rank {})", names.empty() ? "" : ", ", w.name, w.rank);
  fail<ValueError>(kRpcOperation, "there is no worker {}, called at {}:{}; there are: {}", wanted, to.where.file_name(),
                   to.where.line(), names);
}

bool Agent::post(std::function<void()> f) { return executor_.post(std::move(f)); }

bool Agent::post_to(int number, std::function<void()> f) {
  std::shared_ptr<Agent> here;
  {
    std::lock_guard lock(mutex_);
    const Peer& peer = peers_[static_cast<size_t>(number)];
    if (peer.local && !peer.lost) here = peer.here.lock();
  }
  return here && here->post(std::move(f));
}

// ---- What it calls

bool Agent::is_lost(int peer) const {
  std::lock_guard lock(mutex_);
  return peers_[static_cast<size_t>(peer)].lost;
}

std::exception_ptr Agent::loss(int peer, const Pending& p) const {
  const Worker& w = worker(peer);
  return std::make_exception_ptr(RankFailure(fmt::format("rpc: worker '{}' (rank {}) is lost: {}; it was {}", w.name,
                                                         w.rank, peers_[static_cast<size_t>(peer)].why, p.where()),
                                             kRpcOperation));
}

// Whoever is itself being called does not wait: the calls that it would wait for may wait for it.
void Agent::await_credit(const CallPlan& plan, size_t bytes, Clock::time_point deadline) {
  if (current_call || !waits_for_credit) return;
  while (true) {
    auto less = std::make_shared<FutureCore>();
    {
      std::lock_guard lock(mutex_);
      Peer& peer = peers_[static_cast<size_t>(plan.to)];
      if (peer.lost || peer.in_flight == 0 || peer.in_flight + bytes <= options_.max_bytes) return;
      peer.waiting.push_back(less);
    }
    check<TimeoutError>(
        executor_.wait(*less, deadline), kRpcOperation,
        "worker '{}' is slow: {} could not be sent in its time, {}, since calls to it that it has not answered take "
        "more than {} bytes (SessionOptions::max_bytes)",
        worker(plan.to).name, function_name(plan.key), Pending::where(plan.file, plan.line, plan.made_at),
        options_.max_bytes);
  }
}

void Agent::release_credit(int to, size_t bytes) {
  std::vector<std::shared_ptr<FutureCore>> waiting;
  {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    peer.in_flight -= bytes;
    waiting.swap(peer.waiting);
  }
  for (auto& future : waiting)
    if (future->claim()) future->finish();
}

std::optional<Pending> Agent::take_pending(uint64_t number) {
  std::optional<Pending> pending;
  std::shared_ptr<FutureCore> idle;
  {
    std::lock_guard lock(mutex_);
    auto it = pending_.find(number);
    if (it == pending_.end()) return pending;
    pending = std::move(it->second);
    pending_.erase(it);
    if (pending_.empty() && running_.empty()) idle = std::move(idle_);
  }
  release_credit(pending->peer, pending->bytes);
  if (idle && idle->claim()) idle->finish();
  return pending;
}

void Agent::call(const CallPlan& plan, Message message, const std::shared_ptr<FutureCore>& result) {
  check<ValueError>(!stopped_.load(), kRpcOperation, "the session of worker '{}' is over", worker(me_).name);
  auto timeout = plan.timeout.count() > 0 ? plan.timeout : std::chrono::nanoseconds(options_.timeout);
  auto deadline = Clock::now() + timeout;
  size_t bytes = message.bytes();
  await_credit(plan, bytes, deadline);
  if (const MessageHooks* h = hooks())
    message.extension = h->outgoing(worker(plan.to).rank, Kind::call, message.tensors);
  Pending pending{result,   plan.to,   bytes,     deadline,     timeout,
                  plan.key, plan.file, plan.line, plan.made_at, context().distributed_autograd};
  std::exception_ptr lost;
  {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(plan.to)];
    message.number = result->number = next_++;
    result->origin = weak_from_this();
    result->deadline = deadline;
    if (peer.lost) {
      lost = loss(plan.to, pending);
    } else {
      peer.in_flight += bytes;
      pending_.emplace(message.number, std::move(pending));
    }
  }
  if (lost) return (void)result->try_fail(lost);
  message.from = me_;
  message.kind = Kind::call;
  std::shared_ptr<Agent> here;
  {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(plan.to)];
    if (peer.local) here = peer.here.lock();
  }
  // In the same process, whoever waits runs it itself: no thread has to be woken.
  if (here && plan.waits && plan.timeout.count() == 0 && !stack_is_deep() && !shuffles()) {
    references_.leave(message, plan.to);
    copy_tensors(message.tensors);
    sent_.fetch_add(1);
    return here->handle(std::move(message));
  }
  send(plan.to, std::move(message));
}

void Agent::send(int to, Message message) {
  {
    std::lock_guard lock(mutex_);
    if (peers_[static_cast<size_t>(to)].lost) return;
  }
  references_.leave(message, to);
  message.from = me_;
  sent_.fetch_add(1);
  if (!shuffles()) return dispatch(to, std::move(message));
  copy_tensors(message.tensors);  // they may change until it leaves
  for (auto& [peer, m] : shuffle_.add(to, std::move(message))) dispatch(peer, std::move(m));
}

void Agent::release_held(bool all) {
  for (auto& [peer, m] : shuffle_.some(all)) dispatch(peer, std::move(m));
}

void Agent::dispatch(int to, Message message) {
  if (stopped_.load()) return;  // those who wait for it have been told
  std::shared_ptr<Agent> here;
  bool local = false;
  {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    local = peer.local;
    if (local) here = peer.here.lock();
  }
  if (here) {
    copy_tensors(message.tensors);
    here->deliver(std::move(message));
  } else if (!local && link_) {
    link_->send(to, pack(std::move(message)));
  }
}

void Agent::send_lease(const LeaseMessage& m) {
  Message message;
  message.kind = Kind::lease;
  Writer out(message);
  out.number(m.kind);
  out.number(m.id.maker);
  out.number(m.id.owner);
  out.number(m.id.number);
  out.number(m.fork);
  send(m.to, std::move(message));
}

void Agent::cancelled(const FutureCore& future) {
  auto pending = take_pending(future.number);
  if (!pending) return;
  Message m;
  m.kind = Kind::cancel;
  m.number = future.number;
  send(pending->peer, std::move(m));
}

std::string Agent::name_of(const FutureCore& future) const {
  std::lock_guard lock(mutex_);
  auto it = pending_.find(future.number);
  if (it == pending_.end()) return "";
  const Pending& p = it->second;
  return fmt::format("{} of worker '{}', {}", function_name(p.key), worker(p.peer).name, p.where());
}

void Agent::expired(FutureCore& future) {
  std::string text = "rpc: the call took too long";
  {
    std::lock_guard lock(mutex_);
    auto it = pending_.find(future.number);
    if (it != pending_.end()) {
      const Pending& p = it->second;
      text = fmt::format(
          "rpc: worker '{}' (rank {}) has not answered {}, {}, for {:.3g} s (a call has the session's "
          "timeout, or one of its own: {{\"{}\", 5min}})",
          worker(p.peer).name, worker(p.peer).rank, function_name(p.key), p.where(),
          std::chrono::duration<double>(p.timeout).count(), worker(p.peer).name);
    }
  }
  if (future.try_fail(std::make_exception_ptr(TimeoutError(text, kRpcOperation)))) cancelled(future);
}

void Agent::expire_calls() {
  std::vector<std::shared_ptr<FutureCore>> late;
  auto now = Clock::now();
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, p] : pending_)
      if (now >= p.deadline) late.push_back(p.future);
  }
  for (auto& future : late) expired(*future);
}

// ---- What others say

void Agent::deliver(Message message) {
  switch (message.kind) {
    case Kind::call: {
      {
        std::lock_guard lock(mutex_);
        running_[{message.from, message.number}] = false;
      }
      auto shared = std::make_shared<Message>(std::move(message));
      if (!executor_.post([this, shared] { handle(std::move(*shared)); })) note_processed();
      return;
    }
    case Kind::answer:
    case Kind::failure:
      complete(std::move(message));
      break;
    case Kind::cancel: {
      std::lock_guard lock(mutex_);
      auto it = running_.find({message.from, message.number});
      if (it != running_.end()) it->second = true;
      break;
    }
    case Kind::lease:
      take_lease(message);
      break;
    case Kind::goodbye:
      lost(message.from, message.body);
      break;
    case Kind::hello:  // the link's own
      break;
  }
  note_processed();
}

void Agent::take_lease(const Message& message) {
  Message copy = message;
  Reader in(copy);
  LeaseMessage m;
  m.kind = in.number<LeaseMessage::Kind>();
  m.id.maker = in.number<int32_t>();
  m.id.owner = in.number<int32_t>();
  m.id.number = in.number<uint64_t>();
  m.fork = in.number<uint64_t>();
  in.end();
  auto exists = [&](int worker) { return worker >= 0 && worker < size(); };
  check<ValueError>(
      m.kind >= LeaseMessage::take && m.kind <= LeaseMessage::give_back && exists(m.id.maker) && exists(m.id.owner),
      kRpcOperation, "a message about a lease that cannot be");
  references_.take(message.from, m);
}

void Agent::complete(Message message) {
  auto pending = take_pending(message.number);
  if (!pending) {  // it was cancelled, or took too long: what it brings is let go
    references_.arrive(message);
    return;
  }
  FutureCore& future = *pending->future;
  std::exception_ptr error;
  bool mine = false;
  try {
    references_.arrive(message);
    mine = future.claim();
    if (!mine) return;
    if (message.kind == Kind::failure) {
      Reader in(message);
      std::string kind = in.string(), text = in.string(), type = in.string();
      const Worker& w = worker(message.from);
      error = error_of(
          kind, w.rank,
          fmt::format("{} (worker '{}', {}, {})", text, w.name, function_name(pending->key), pending->where()), type);
    } else {
      if (!message.extension.empty()) {
        Context inside = context_;
        inside.distributed_autograd = pending->autograd;
        ContextGuard guard(inside);
        if (const MessageHooks* h = hooks())
          h->incoming(worker(message.from).rank, message.kind, message.extension, message.tensors, inside);
      }
      Reader in(message);
      future.take(in);
      in.end();
    }
  } catch (...) {
    error = std::current_exception();
    if (!mine && !future.claim()) return;
  }
  error ? future.fail(error) : future.finish();
}

bool Agent::is_cancelled(int from, uint64_t number) const {
  std::lock_guard lock(mutex_);
  auto it = running_.find({from, number});
  // One that is not there has been answered: what its handler has left behind goes on.
  return (it != running_.end() && it->second) || peers_[static_cast<size_t>(from)].lost;
}

// ---- Calls of others

/// Of a call that came in.
struct Answer::State {
  std::shared_ptr<Agent> agent;
  Running call;
  std::optional<RefRecord> making;
  Message out;
  std::atomic<bool> sent{false};
  Context context;

  ~State() {
    if (sent.exchange(true)) return;
    auto error = std::make_exception_ptr(InternalError("rpc: the function ended without an answer", kRpcOperation));
    finish(failure_message(error), error);
  }
  void finish(Message message, const std::exception_ptr& error) {
    if (making && error) agent->references().put(*making, nullptr, nullptr, error);
    message.number = call.number;
    try {
      agent->send(call.from, std::move(message));
    } catch (...) {  // a result that cannot travel
      Message failure = failure_message(std::current_exception());
      failure.number = call.number;
      agent->send(call.from, std::move(failure));
    }
    agent->answered(call.from, call.number);
  }
};

Writer Answer::writer() const { return Writer(state_->out); }

void Answer::send() const {
  if (state_->sent.exchange(true)) return;
  Message& out = state_->out;
  out.kind = Kind::answer;
  if (const MessageHooks* h = hooks(); h && state_->context.distributed_autograd) {
    ContextGuard guard(state_->context);
    out.extension = h->outgoing(state_->agent->worker(state_->call.from).rank, Kind::answer, out.tensors);
  }
  state_->finish(std::move(out), nullptr);
}

void Answer::fail(const std::exception_ptr& error) const {
  if (state_->sent.exchange(true)) return;
  state_->finish(failure_message(error), error);
}

void Answer::keep(std::shared_ptr<void> object, const std::type_info& type) const {
  check<ValueError>(state_->making.has_value(), kRpcOperation, "a call that makes an object does not say which");
  state_->agent->references().put(*state_->making, std::move(object), &type, nullptr);
  state_->making.reset();
}

std::shared_ptr<void> Answer::object(Reader& in, const std::type_info& type) const {
  auto handle = in.reference();
  check<ValueError>(handle != nullptr, kRpcOperation, "an undefined reference was called");
  return state_->agent->references().get(handle->id, type == typeid(void) ? nullptr : &type);
}

void Agent::handle(Message message) {
  auto state = std::make_shared<Answer::State>();
  state->agent = shared_from_this();
  state->call = {this, message.from, message.number};
  bool cancelled = false;
  {
    std::lock_guard lock(mutex_);
    cancelled =
        !running_.try_emplace({message.from, message.number}, false).second && running_[{message.from, message.number}];
  }
  Answer answer(state);
  Running mine = state->call;
  RunningGuard runs(&mine);
  try {
    Context inside = context_;
    state->making = references_.arrive(message);
    if (!message.extension.empty())
      if (const MessageHooks* h = hooks()) {
        ContextGuard guard(inside);
        h->incoming(worker(message.from).rank, message.kind, message.extension, message.tensors, inside);
      }
    if (inside.distributed_autograd) state->context = inside;
    ContextGuard guard(std::move(inside));
    check<CancelledError>(!stopped_.load() && !cancelled, kRpcOperation,
                          "the call was cancelled, or worker '{}' has ended its session", worker(me_).name);
    const Function* function = find_function(message.function);
    check<ValueError>(function != nullptr, kRpcOperation,
                      "worker '{}' does not know the function: do all workers run the same program? Functions that it "
                      "does not call itself it must expose()",
                      worker(me_).name);
    Reader in(message);
    function->run(in, answer);
  } catch (...) {
    answer.fail(std::current_exception());
  }
}

void Agent::answered(int from, uint64_t number) {
  std::shared_ptr<FutureCore> idle;
  {
    std::lock_guard lock(mutex_);
    running_.erase({from, number});
    if (pending_.empty() && running_.empty()) idle = std::move(idle_);
  }
  note_processed();
  if (idle && idle->claim()) idle->finish();
}

std::shared_ptr<void> Agent::companion(const std::function<std::shared_ptr<void>()>& make) {
  std::lock_guard lock(mutex_);
  if (!companion_ && !stopped_.load()) companion_ = make();
  return companion_;
}

// ---- Losses

void Agent::on_lost(std::function<void(int, const std::string&)> f) {
  std::lock_guard lock(mutex_);
  on_lost_.push_back(std::move(f));
}

void Agent::lost(int number, const std::string& why) {
  std::vector<std::pair<std::shared_ptr<FutureCore>, std::exception_ptr>> failed;
  std::vector<std::function<void(int, const std::string&)>> listeners;
  {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(number)];
    if (peer.lost || number == me_) return;
    peer.lost = true;
    peer.why = why;
    for (auto& [call, p] : pending_)
      if (p.peer == number) failed.emplace_back(p.future, loss(number, p));
    listeners = on_lost_;
  }
  for (auto& [future, error] : failed) {
    take_pending(future->number);
    future->try_fail(error);
  }
  release_credit(number, 0);
  references_.died(number);
  if (link_) link_->close(number);
  for (auto& f : listeners) f(worker(number).rank, why);
}

Session::Statistics Agent::statistics() const {
  Session::Statistics s;
  {
    std::lock_guard lock(mutex_);
    s.calls = pending_.size();
    s.handlers = running_.size();
  }
  s.objects = references_.objects();
  s.references = references_.held();
  s.threads = executor_.threads();
  s.strangers = link_ ? link_->strangers() : 0;
  return s;
}

}  // namespace tutti::rpc::detail
