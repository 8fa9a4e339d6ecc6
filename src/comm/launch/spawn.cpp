// Ranks as processes, forked from one that waits for them.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>

#include "base/check.h"
#include "comm/launch/errors.h"
#include "comm/launch/launch.h"
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

[[noreturn]] void be_rank(int rank, int n, Segment segment, const std::string& name, const std::function<void()>& body,
                          const SpawnOptions& options) {
  int code = 0;
  std::exception_ptr error;
  auto world = std::make_shared<ProcessWorld>(std::move(segment), name, rank, n, options.timeout);
  try {
    world->state(rank)->apply(options);
    Context mine = context();
    mine.rank = rank;
    mine.world_size = n;
    mine.threads = 1;
    mine.generator = std::make_shared<Generator>(options.seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(rank));
    mine.world = comm::make_handle(world, rank);
    ContextGuard guard(mine);
    mine = {};
    body();
  } catch (...) {
    error = std::current_exception();
    world->shared().fail(rank, comm::class_of(error), comm::text_of(error));
    code = 1;
  }
  world->state(rank)->leave(error);
  world->ended();
  std::fflush(nullptr);
  ::_exit(code);
}

struct Child {
  pid_t pid = -1;
  int pidfd = -1;
  bool alive = true;
};

void reap(Child& child, int rank, SharedWorld& shared) {
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  ::close(child.pidfd);
  child.alive = false;
  if (WIFSIGNALED(status))
    shared.fail(rank, "RankFailure",
                fmt::format("its process {} was killed by signal {} ({})", child.pid, WTERMSIG(status),
                            ::strsignal(WTERMSIG(status))));
  else if (!shared.member(rank).ended.load())
    shared.fail(rank, "RankFailure",
                fmt::format("its process {} ended with code {} before its body did", child.pid, WEXITSTATUS(status)));
}

}  // namespace

void spawn_processes(int n, const std::function<void()>& body, const SpawnOptions& options) {
  check<ValueError>(n >= 1, "spawn_processes", "needs at least one rank, not {}", n);
  Segment segment = Segment::anonymous(SharedWorld::bytes(n));
  auto& shared = *reinterpret_cast<SharedWorld*>(segment.data());
  std::string name = fmt::format("tutti-{}-{:08x}", ::getpid(), std::random_device{}());
  std::vector<Child> children;
  std::fflush(nullptr);  // or each child would write it again
  pid_t parent = ::getpid();
  for (int r = 0; r < n; ++r) {
    pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      be_rank(r, n, std::move(segment), name, body, options);
    }
    if (pid < 0) {
      int error = errno;
      shared.fail(r, "RankFailure", fmt::format("its process could not be started: {}", std::strerror(error)));
      break;
    }
    children.push_back({pid, static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))});
  }
  size_t left = children.size();
  while (left > 0) {
    std::vector<pollfd> polls;
    for (const Child& c : children) polls.push_back({c.alive ? c.pidfd : -1, POLLIN, 0});
    ::poll(polls.data(), polls.size(), -1);
    for (size_t r = 0; r < children.size(); ++r)
      if (polls[r].revents) {
        reap(children[r], static_cast<int>(r), shared);
        --left;
      }
  }
  Segment::remove_all(name);
  if (shared.failed.load()) comm::rethrow_as(shared.kind, shared.failed_rank, shared.text);
}

}  // namespace tutti
