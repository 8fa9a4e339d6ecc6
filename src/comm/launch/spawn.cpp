// Ranks as processes, forked from one that waits for them.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>

#include "base/check.h"
#include "comm/group/watch.h"
#include "comm/launch/errors.h"
#include "comm/launch/launch.h"
#include "comm/transport/hosts_world.h"
#include "comm/transport/process_world.h"
#include "comm/transport/shm.h"
#include "tutti/comm/group.h"
#include "tutti/context.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using comm::ProcessWorld;
using comm::Segment;
using comm::SharedWorld;

/// What the ranks of a world have in common before they are started.
struct Plan {
  std::string name;
  comm::TransportChoice choice;
  std::vector<int> host_of;         // of each rank: the host that it pretends to be on
  std::vector<Segment> segments;    // of each host
  std::shared_ptr<TcpStore> store;  // where ranks that do not share memory meet
  std::string secret;

  Plan(int n, const SpawnOptions& options);
  int host(int rank) const { return host_of[static_cast<size_t>(rank)]; }
  SharedWorld& shared(int rank) const {
    return *reinterpret_cast<SharedWorld*>(segments[static_cast<size_t>(host(rank))].data());
  }
};

Plan::Plan(int n, const SpawnOptions& options)
    : name(fmt::format("tutti-{}-{:08x}", ::getpid(), std::random_device{}())),
      choice(comm::parse_transport(options.transport)),
      host_of(options.hosts) {
  if (host_of.empty()) host_of.assign(static_cast<size_t>(n), 0);
  check<ValueError>(static_cast<int>(host_of.size()) == n, "spawn_processes", "hosts has {} entries for {} ranks",
                    host_of.size(), n);
  for (int h : host_of) {
    check<ValueError>(h >= 0 && h < n, "spawn_processes", "a host's number is {}: from 0 to {} are allowed", h, n - 1);
    check<ValueError>(h == host_of[0] || !choice.engine.empty(), "spawn_processes",
                      "ranks on several hosts need a transport between them: {} is not one", options.transport);
  }
  for (int h = 0; h <= *std::max_element(host_of.begin(), host_of.end()); ++h)
    segments.push_back(Segment::anonymous(SharedWorld::bytes(n)));
  if (choice.engine.empty()) return;
  std::random_device random;
  secret = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  store = std::make_shared<TcpStore>(TcpStoreOptions{.host = "127.0.0.1", .serve = true, .secret = secret});
}

std::shared_ptr<comm::HostsWorld> meet(const Plan& plan, const std::shared_ptr<ProcessWorld>& local,
                                       const SpawnOptions& options) {
  auto store = std::make_shared<TcpStore>(TcpStoreOptions{.host = "127.0.0.1",
                                                          .port = plan.store->port(),
                                                          .secret = plan.secret,
                                                          .timeout = options.timeout,
                                                          .grace = options.silence});
  return std::make_shared<comm::HostsWorld>(local, store, "world/",
                                            comm::HostsOptions{.host_of = plan.host_of,
                                                               .engine = plan.choice.engine,
                                                               .share_memory = plan.choice.share_memory,
                                                               .silence = options.silence,
                                                               .address = "127.0.0.1"});
}

// The rank that this process is, for threads that its body starts. Never destroyed: they may outlive it.
struct Spawned {
  std::mutex mutex;
  std::shared_ptr<comm::RankGroup> world;
  int rank = -1, size = 0;
};
Spawned& spawned() {
  static auto* known = new Spawned;
  return *known;
}
void set_spawned(std::shared_ptr<comm::RankGroup> world, int rank, int size) {
  std::lock_guard lock(spawned().mutex);
  spawned().world.swap(world);
  spawned().rank = rank;
  spawned().size = size;
}

// What C and C++ streams have kept back. A program may have taken the two apart (std::ios::sync_with_stdio(false)).
void flush_streams() {
  for (std::ostream* stream : {&std::cout, &std::cerr, &std::clog}) stream->flush();
  std::fflush(nullptr);
}

[[noreturn]] void be_rank(int rank, int n, Plan& plan, const std::function<void()>& body, const SpawnOptions& options) {
  int code = 0;
  std::exception_ptr error;
  std::setvbuf(stdout, nullptr, _IOLBF,
               0);  // where it is a pipe or a file, lines of a rank that is killed would be lost
  // host_id() is of the host that it pretends to be on, too.
  if (!options.hosts.empty())
    ::setenv("TUTTI_HOST", fmt::format("{}/{}", host_id(), plan.host(rank)).c_str(), /*overwrite=*/1);
  auto here = static_cast<int>(std::count(plan.host_of.begin(), plan.host_of.end(), plan.host(rank)));
  auto world =
      std::make_shared<ProcessWorld>(std::move(plan.segments[static_cast<size_t>(plan.host(rank))]),
                                     fmt::format("{}-{}", plan.name, plan.host(rank)), rank, n, options.timeout, here);
  std::shared_ptr<comm::HostsWorld> hosts;
  try {
    world->state(rank)->apply(options);
    if (plan.store) hosts = meet(plan, world, options);
    Context mine = context();
    mine.rank = rank;
    mine.world_size = n;
    mine.threads = 1;
    mine.generator =
        std::make_shared<Generator>(options.seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(rank), rank);
    mine.world = hosts ? comm::make_handle(hosts, rank) : comm::make_handle(world, rank);
    ContextGuard guard(mine);
    set_spawned(std::static_pointer_cast<comm::RankGroup>(mine.world), rank, n);
    mine = {};
    body();
  } catch (...) {
    error = std::current_exception();
    world->shared().fail(rank, comm::class_of(error), comm::text_of(error));
    code = 1;
  }
  set_spawned(nullptr, -1, 0);
  auto over = [&] {
    if (hosts) hosts->over();
    world->over();
  };
  bool knew = world->failed();  // and went on, or meant to
  if (auto unseen = comm::Watch::instance().finish(over); unseen && !error && !knew) {
    error = unseen;
    world->shared().fail(rank, comm::class_of(error), comm::text_of(error));
    code = 1;
  }
  comm::Watch::instance().let_go();  // what is left of its groups ends here
  world->state(rank)->leave(error);
  if (hosts) hosts->leave();
  world->ended();
  flush_streams();
  ::_exit(code);
}

struct Child {
  pid_t pid = -1;
  int pidfd = -1;
  bool alive = true, ended_well = false;
};

void reap(Child& child, int rank, SharedWorld& shared) {
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  ::close(child.pidfd);
  child.alive = false;
  child.ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0 && shared.member(rank).ended.load();
  if (WIFSIGNALED(status))
    shared.fail(rank, "RankFailure",
                fmt::format("its process {} was killed by signal {} ({})", child.pid, WTERMSIG(status),
                            ::strsignal(WTERMSIG(status))));
  else if (!shared.member(rank).ended.load())
    shared.fail(rank, "RankFailure",
                fmt::format("its process {} ended with code {} before its body did", child.pid, WEXITSTATUS(status)));
}

bool has_exited(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

}  // namespace

void spawn_processes(int n, const std::function<void()>& body, const SpawnOptions& options) {
  check<ValueError>(n >= 1, "spawn_processes", "needs at least one rank, not {}", n);
  Plan plan(n, options);
  std::vector<Child> children;
  flush_streams();  // or each child would write it again
  pid_t parent = ::getpid();
  for (int r = 0; r < n; ++r) {
    pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      be_rank(r, n, plan, body, options);
    }
    if (pid < 0) {
      int error = errno;
      std::string text = fmt::format("its process could not be started: {}", std::strerror(error));
      for (auto& segment : plan.segments) reinterpret_cast<SharedWorld*>(segment.data())->fail(r, "RankFailure", text);
      break;
    }
    children.push_back({pid, static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))});
  }
  size_t left = children.size();
  while (left > 0) {
    std::vector<pollfd> polls;
    bool blind = false;  // where descriptors ran out, children are looked at one by one
    for (const Child& c : children) {
      polls.push_back({c.alive ? c.pidfd : -1, POLLIN, 0});
      blind = blind || (c.alive && c.pidfd < 0);
    }
    ::poll(polls.data(), polls.size(), blind ? 20 : -1);
    for (size_t r = 0; r < children.size(); ++r)
      if (polls[r].revents || (children[r].alive && children[r].pidfd < 0 && has_exited(children[r].pid))) {
        reap(children[r], static_cast<int>(r), plan.shared(static_cast<int>(r)));
        --left;
      }
  }
  Segment::remove_all(plan.name);
  // What bodies have caught, and went on without, is theirs.
  if (static_cast<int>(children.size()) == n &&
      std::all_of(children.begin(), children.end(), [](const Child& c) { return c.ended_well; }))
    return;
  // The store knows which of several hosts' failures was the first.
  if (plan.store)
    if (auto failure = plan.store->try_get("world/failed")) {
      auto [rank, kind, text] = comm::decode_failure(*failure);
      comm::rethrow_as(kind, rank, text);
    }
  for (int r = 0; r < n; ++r) {
    SharedWorld& shared = plan.shared(r);
    if (shared.failed.load()) comm::rethrow_as(shared.kind, shared.failed_rank, shared.text);
  }
}

std::shared_ptr<comm::RankGroup> comm::spawned_world() {
  Spawned& known = spawned();
  std::lock_guard lock(known.mutex);
  if (known.world) {
    context().rank = known.rank;
    context().world_size = known.size;
    context().threads = 1;
  }
  return known.world;
}

}  // namespace tutti
