// How workers meet, watch each other, and part.
#include "tutti/rpc/session.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/check.h"
#include "base/sha256.h"
#include "comm/transport/transport.h"
#include "io/descriptor.h"
#include "rpc/agent.h"
#include "rpc/autograd/part.h"
#include "tutti/comm/objects.h"

namespace tutti::rpc {
namespace detail {
namespace {

constexpr int kLook = 20;  // milliseconds between looks at what takes too long

/// The agents of this process, by the numbers that they tell each other.
struct Here {
  std::mutex mutex;
  std::map<int64_t, std::weak_ptr<Agent>> agents;
  int64_t next = 0;
  static Here& instance() {
    static Here here;
    return here;
  }
};

/// What tells this process from all others: of a forked one too.
std::string process_name() {
  static const std::string random(bytes_of(random_digest()));
  return fmt::format("{}/{}/{}", host_id(), ::getpid(), random);
}

bool is_thread_world(const Group& group) { return group.transport() == "threads"; }

// Threads of one process share its cores; processes do if there are not enough.
bool may_spin(const Context& context) {
  const auto& spins = std::static_pointer_cast<comm::RankGroup>(context.world)->state->spins;
  return spins && spins();
}

}  // namespace

Agent::Agent(SessionOptions options, Group group, Context context)
    : options_(std::move(options)),
      group_(std::move(group)),
      context_(std::move(context)),
      me_(group_.rank()),
      executor_(options_.threads, may_spin(context_)),
      references_(*this, me_),
      monitor_wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

std::shared_ptr<Agent> Agent::start(const SessionOptions& given) {
  SessionOptions options = given;
  Group group = options.group.defined() ? options.group : world();
  check<ValueError>(group.rank() >= 0, kSessionOperation, "this rank is not in the group of the session");
  check<ValueError>(options.threads >= 1, kSessionOperation, "a session needs a thread at least, not {}",
                    options.threads);
  check<ValueError>(options.timeout.count() > 0, kSessionOperation, "the timeout is {} ms", options.timeout.count());
  check<ValueError>(options.max_bytes > 0, kSessionOperation, "max_bytes is 0: no call could be made");
  (void)tutti::world();
  auto state = std::static_pointer_cast<comm::RankGroup>(tutti::context().world)->state;
  // Before it waits for others, who need not be making one.
  if (auto other = std::static_pointer_cast<Agent>(state->guest()))
    fail<ValueError>(kSessionOperation, "this rank has a session already, as worker '{}': it is to end first",
                     other->worker(other->me()).name);
  check_functions();
  int rank = group.ranks()[static_cast<size_t>(group.rank())];
  if (options.name.empty()) options.name = fmt::format("worker{}", rank);
  // A group of its own: calls that are running may use the others meanwhile.
  options.group = group.split(0);
  Context context = tutti::context();
  context.modes = kGradMode;
  context.sink = nullptr;
  context.tracer = nullptr;
  context.distributed_autograd = nullptr;
  context.world = tutti::context().world;
  auto agent = std::make_shared<Agent>(options, options.group, std::move(context));
  Introduction mine;
  mine.name = options.name;
  mine.pid = ::getpid();
  mine.process = process_name();
  mine.host = host_id();
  mine.memory = fmt::format("{}/{}", mine.host, state->memory);
  std::unique_ptr<Opening> shm;
  if (!is_thread_world(group) && group.size() > 1) {
    shm = open_shm_link();
    mine.address = shm->address();
  }
  if (agent->me_ == 0) mine.key = std::string(bytes_of(random_digest()));
  {
    Here& here = Here::instance();
    std::lock_guard lock(here.mutex);
    std::erase_if(here.agents, [](const auto& entry) { return entry.second.expired(); });
    mine.id = agent->id_ = here.next++;
    here.agents[mine.id] = agent;
  }
  bool fresh = state->set_guest(agent);
  std::vector<Introduction> all;
  std::string defect = fresh ? "" : fmt::format("worker '{}' has a session already: it is to end first", options.name);
  try {
    if (!fresh) mine.name.clear();
    all = all_gather_object(mine, {.group = agent->group_});
    for (const Introduction& i : all)
      if (i.name.empty() && defect.empty()) defect = "a rank has a session already";
    check<ValueError>(defect.empty(), kSessionOperation, "{}", defect);
    agent->meet(all);
    if (shm) agent->make_links(std::move(shm), all);
  } catch (...) {
    if (fresh) state->set_guest(nullptr);
    throw;
  }
  dist_autograd::detail::attach(agent, rank, agent->context_);
  agent->monitor_ = std::jthread([a = agent.get()](const std::stop_token& stop) { a->run_monitor(stop); });
  // Nobody is called before it can answer.
  barrier({.group = agent->group_});
  return agent;
}

void Agent::meet(const std::vector<Introduction>& all) {
  Here& here = Here::instance();
  for (int k = 0; k < static_cast<int>(all.size()); ++k) {
    const Introduction& i = all[static_cast<size_t>(k)];
    Worker w{i.name, group_.ranks()[static_cast<size_t>(k)]};
    auto [it, fresh] = by_name_.emplace(w.name, k);
    if (!fresh)
      fail<MismatchError>(kSessionOperation, "ranks {} and {} both have the name '{}'", worker(it->second).rank, w.rank,
                          w.name);
    by_rank_[w.rank] = k;
    workers_.push_back(std::move(w));
    Peer peer;
    peer.pid = i.pid;
    peer.on_host = i.host == all[static_cast<size_t>(me_)].host;
    peer.local = i.process == all[static_cast<size_t>(me_)].process;
    if (peer.local) {
      std::lock_guard lock(here.mutex);
      peer.here = here.agents[i.id];
    }
    peers_.push_back(std::move(peer));
  }
}

// Workers that share memory use it; to all others UCX leads, which is only loaded where there are some.
void Agent::make_links(std::unique_ptr<Opening> shm, const std::vector<Introduction>& all) {
  const Introduction& mine = all[static_cast<size_t>(me_)];
  auto together = [](const Introduction& a, const Introduction& b) {
    return a.process == b.process || a.memory == b.memory;
  };
  bool apart = false;
  for (const Introduction& i : all)
    for (const Introduction& j : all) apart = apart || !together(i, j);
  std::vector<LinkPlan> plans;
  std::vector<std::unique_ptr<Opening>> openings;
  std::vector<int> route(all.size(), -1);
  auto plan = [&](std::unique_ptr<Opening> opening, const std::vector<std::string>& addresses, bool near) {
    LinkPlan p{.me = me_, .key = all[0].key, .timeout = options_.timeout};
    p.check = [this] { group_.handle()->group->look_after_ranks(); };
    // Twice the time: who cannot connect says so when its own is over.
    p.agree = [this](const Tensor& well) {
      return all_reduce_async(well, {.op = Reduce::min, .group = group_, .timeout = 2 * options_.timeout});
    };
    p.events.arrived = [this](Message message) { deliver(std::move(message)); };
    p.events.broken = [this](int peer, const std::string& why) {
      executor_.post([this, peer, why] { lost(peer, why); });
    };
    for (size_t k = 0; k < all.size(); ++k) {
      bool leads = !peers_[k].local && together(all[k], mine) == near;
      p.peers.push_back({addresses[k], leads, peers_[k].on_host ? all[k].pid : 0});
      if (leads) route[k] = static_cast<int>(plans.size());
    }
    plans.push_back(std::move(p));
    openings.push_back(std::move(opening));
  };
  std::vector<std::string> addresses;
  for (const Introduction& i : all) addresses.push_back(i.address);
  plan(std::move(shm), addresses, true);
  if (apart) {
    auto ucx = open_ucx_link();
    addresses = all_gather_object(ucx->address(), {.group = group_});
    plan(std::move(ucx), addresses, false);
  }
  std::vector<std::unique_ptr<Link>> links;
  for (size_t k = 0; k < plans.size(); ++k) links.push_back(openings[k]->connect(std::move(plans[k])));
  link_ = std::make_unique<Links>(std::move(links), std::move(route));
  executor_.set_link(link_.get());
}

// ---- Watching

void Agent::run_monitor(const std::stop_token& stop) {
  ContextGuard guard(context_);
  // A process that has ended makes this readable, however it ended.
  std::vector<io::Descriptor> processes;
  std::vector<pollfd> polls;
  std::vector<int> numbers;
  for (int k = 0; k < size(); ++k) {
    const Peer& peer = peers_[static_cast<size_t>(k)];
    if (peer.local || !peer.on_host) continue;
    processes.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
    if (processes.back().get() < 0 && errno == ESRCH) lost(k, fmt::format("its process {} is no more", peer.pid));
    polls.push_back({processes.back().get(), POLLIN, 0});
    numbers.push_back(k);
  }
  polls.push_back({monitor_wake_.get(), POLLIN, 0});
  numbers.push_back(me_);
  while (!stop.stop_requested()) {
    ::poll(polls.data(), polls.size(), shuffles() ? 1 : kLook);
    release_held(false);
    for (size_t k = 0; k + 1 < polls.size(); ++k)
      if (polls[k].fd >= 0 && polls[k].revents) {
        polls[k].fd = -1;
        int64_t pid = peers_[static_cast<size_t>(numbers[k])].pid;
        lost(numbers[k], fmt::format("its process {} was killed, or ended without leaving the session", pid));
      }
    expire_calls();
  }
}

// ---- The end

bool Agent::wait_for_idle(Clock::time_point until) {
  while (true) {
    std::shared_ptr<FutureCore> idle;
    {
      std::lock_guard lock(mutex_);
      if (pending_.empty() && running_.empty()) return true;
      if (!idle_) idle_ = std::make_shared<FutureCore>();
      idle = idle_;
    }
    if (!executor_.wait(*idle, until)) return false;
  }
}

// All workers have come to the end, and nothing is on its way: what all have sent, all have processed, twice the same.
bool Agent::wait_for_all(Clock::time_point until) {
  uint64_t before = ~uint64_t{0};
  while (true) {
    if (!wait_for_idle(until)) return false;
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) return false;
    std::vector<uint64_t> mine = {sent_.load(), processed_.load()};
    uint64_t sent = 0, processed = 0;
    for (auto& counts : all_gather_object(mine, {.group = group_, .timeout = left})) {
      sent += counts[0];
      processed += counts[1];
    }
    if (sent == processed && sent == before) return true;
    before = sent == processed ? sent : ~uint64_t{0};
  }
}

std::vector<Leak> Agent::shutdown(const ShutdownOptions& options) {
  if (stopped_.load()) return {};
  check<ValueError>(!executor_.is_mine(), "shutdown", "a call that is being served cannot end its own session");
  std::vector<Leak> leaks;
  std::exception_ptr error;
  std::string why = "it has left the session";
  if (options.graceful) try {
      auto until = Clock::now() + options.timeout;
      check<TimeoutError>(
          wait_for_all(until), "shutdown",
          "worker '{}' still has {} calls that others are to answer and {} that it is to answer itself, "
          "after {:.3g} s",
          worker(me_).name, statistics().calls, statistics().handlers,
          std::chrono::duration<double>(options.timeout).count());
      leaks = references_.leaks();
      barrier({.group = group_});
    } catch (...) {
      error = std::current_exception();
      why = "it has left the session, since others have failed";
      try {  // with those who are left
        wait_for_idle(Clock::now() + std::chrono::milliseconds(200));
      } catch (...) {
      }
    }
  if (!options.graceful || error) {
    for (int k = 0; k < size(); ++k) {
      if (k == me_) continue;
      Message goodbye;
      goodbye.kind = Kind::goodbye;
      goodbye.body = why;
      send(k, std::move(goodbye));
    }
    release_held(true);
    if (link_) link_->flush(Clock::now() + std::chrono::milliseconds(500));
  }
  stop();
  if (error) std::rethrow_exception(error);
  return leaks;
}

void Agent::stop() {
  if (stopped_.exchange(true)) return;
  std::vector<std::shared_ptr<FutureCore>> calls;
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, p] : pending_) calls.push_back(p.future);
  }
  for (auto& future : calls) {
    take_pending(future->number);
    future->try_fail(std::make_exception_ptr(
        CancelledError(fmt::format("rpc: worker '{}' has ended its session", worker(me_).name), "rpc")));
  }
  monitor_.request_stop();
  ::eventfd_write(monitor_wake_.get(), 1);
  if (monitor_.joinable()) monitor_.join();
  executor_.stop();
  references_.clear();
  std::shared_ptr<void> companion;
  {
    std::lock_guard lock(mutex_);
    companion.swap(companion_);
    on_lost_.clear();
  }
  // A circle: the rank knows its session, which knows its context, which knows the rank. The rest stays until nobody
  // can be using it.
  std::static_pointer_cast<comm::RankGroup>(context_.world)->state->set_guest(nullptr);
}

Agent::~Agent() { ::eventfd_write(monitor_wake_.get(), 1); }

}  // namespace detail

// ---- Session

Session::Session(SessionOptions options)
    : agent_(detail::Agent::start(options)), exceptions_(std::uncaught_exceptions()) {}

Session::~Session() {
  if (agent_->is_shut_down()) return;
  try {
    bool graceful = std::uncaught_exceptions() == exceptions_;
    for (const Leak& leak : agent_->shutdown({.graceful = graceful})) {
      std::string holders;
      for (const Worker& w : leak.held_by) holders += (holders.empty() ? "" : ", ") + w.name;
      std::fprintf(stderr, "tutti: at the end of its session, worker '%s' still had a %s, made at %s, held by %s\n",
                   name().c_str(), leak.type.c_str(), leak.made_at.c_str(), holders.c_str());
    }
  } catch (const std::exception&) {  // those who wait for the ranks that failed say so
  }
}

const std::string& Session::name() const { return agent_->worker(agent_->me()).name; }
const std::vector<Worker>& Session::workers() const { return agent_->workers(); }
std::vector<Leak> Session::shutdown(const ShutdownOptions& options) { return agent_->shutdown(options); }
Session::Statistics Session::statistics() const { return agent_->statistics(); }

const Worker& this_worker() {
  auto agent = detail::Agent::current("this_worker");
  return agent->worker(agent->me());
}
const Worker& caller() {
  const detail::Running* call = detail::running();
  check<ValueError>(call != nullptr, "caller", "this thread is not running a call");
  return call->agent->worker(call->from);
}
bool cancelled() {
  const detail::Running* call = detail::running();
  return call && call->agent->is_cancelled(call->from, call->number);
}

}  // namespace tutti::rpc
