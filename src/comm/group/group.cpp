// Groups, the world, and ranks as threads.
#include "tutti/comm/group.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <ostream>
#include <thread>

#include "base/check.h"
#include "base/cores.h"
#include "base/launched.h"
#include "comm/launch/launch.h"
#include "comm/transport/threads.h"
#include "tutti/context.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using comm::RankGroup;
using comm::World;

const RankGroup& checked(const std::shared_ptr<RankGroup>& handle) {
  check<ValueError>(handle != nullptr, "Group", "this group is undefined");
  return *handle;
}

bool is_failure_of_another(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RankFailure&) {
    return true;
  } catch (...) {
    return false;
  }
}

[[noreturn]] void rethrow_with_rank(const std::exception_ptr& error, int rank) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    throw;  // it knows its rank
  } catch (...) {
    std::throw_with_nested(RankFailure(fmt::format("rank {} failed: {}", rank, comm::text_of(error)), "spawn_ranks"));
  }
}

}  // namespace

int Group::rank() const { return checked(handle_).rank; }
int Group::size() const { return checked(handle_).group->size(); }
std::string Group::transport() const { return checked(handle_).group->name(); }
const std::vector<int>& Group::ranks() const { return checked(handle_).group->ranks(); }

Group Group::subgroup(const std::vector<int>& ranks) const {
  const RankGroup& self = checked(handle_);
  int mine = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    check<ValueError>(ranks[i] >= 0 && ranks[i] < size(), "subgroup", "rank {} is not in a group of {}", ranks[i],
                      size());
    check<ValueError>(std::count(ranks.begin(), ranks.end(), ranks[i]) == 1, "subgroup", "rank {} is named twice",
                      ranks[i]);
    if (ranks[i] == self.rank) mine = static_cast<int>(i);
  }
  check<ValueError>(!ranks.empty(), "subgroup", "a group needs at least one rank");
  return Group(std::make_shared<RankGroup>(self.group->subgroup(self.rank, ranks), mine, self.state));
}

std::string to_string(const Group& group) {
  if (!group.defined()) return "undefined group";
  const auto& ranks = group.ranks();
  return fmt::format("ranks {} by {}", Shape(std::vector<int64_t>(ranks.begin(), ranks.end())),
                     group.handle()->group->name());
}
std::ostream& operator<<(std::ostream& out, const Group& group) { return out << to_string(group); }

namespace {
std::atomic<int> thread_ranks{0};  // that run in this process now

// The world of a thread that is not the one a rank began on.
std::shared_ptr<RankGroup> world_of_process() {
  if (auto spawned = comm::spawned_world()) return spawned;
  if (auto started = comm::world_from_environment()) {
    comm::tell_at_terminate(started);
    return started;
  }
  int others = thread_ranks.load();
  check<ValueError>(others == 0, "world",
                    "this thread belongs to none of the {} ranks that are threads of this process, so it has no world. "
                    "Take what it needs in the rank that starts it and give it to the thread: a group for its calls "
                    "(Group all = world(); ... all_reduce(x, {{.group = all}})), or all of the rank's context (Context "
                    "mine = context(); ... in the thread: ContextGuard guard(mine))",
                    others);
  return comm::make_handle(std::make_shared<World>(1, std::chrono::minutes(5)), 0);
}
}  // namespace

Group world() {
  Context& c = context();
  if (!c.world) c.world = world_of_process();
  return Group(std::static_pointer_cast<RankGroup>(c.world));
}
int rank() { return world().rank(); }
int world_size() { return world().size(); }
int local_rank() { return world().handle()->state->local_rank; }
int local_size() { return world().handle()->state->local_size; }

void spawn_ranks(int n, const std::function<void()>& body, const SpawnOptions& options) {
  check<ValueError>(n >= 1, "spawn_ranks", "needs at least one rank, not {}", n);
  auto world = std::make_shared<World>(n, options.timeout);
  for (int r = 0; r < n; ++r) world->state(r)->apply(options);
  // Ranks may end before others begin; what they sent waits in the group.
  auto everyone = comm::make_handle(world, 0);
  Context outer = context();
  struct Hosted {
    int n;
    explicit Hosted(int ranks) : n(ranks) { thread_ranks += n; }
    ~Hosted() { thread_ranks -= n; }
  } hosted(n);
  int cores = static_cast<int>(process_cores().size());
  std::mutex mutex;
  // One for each rank, so that none is freed while another thread may still look at it; `first` is the one to throw.
  std::vector<std::exception_ptr> errors(static_cast<size_t>(n));
  int first = -1;
  bool first_follows = false;
  auto run = [&](int rank) {
    Context mine = outer;
    mine.rank = rank;
    mine.world_size = n;
    mine.threads = std::max(1, cores / n);
    mine.generator =
        std::make_shared<Generator>(options.seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(rank), rank);
    mine.world = comm::make_handle(world, rank);
    ContextGuard guard(mine);
    mine = {};
    world->waits().enter(rank);
    try {
      body();
    } catch (...) {
      std::exception_ptr& error = errors[static_cast<size_t>(rank)] = std::current_exception();
      {
        std::lock_guard lock(mutex);
        // Failures that follow from another's do not count as first, even if they are noticed earlier.
        bool follows = is_failure_of_another(error);
        if (first < 0 || (first_follows && !follows)) {
          first = rank;
          first_follows = follows;
        }
      }
      world->fail(rank, comm::text_of(error));
    }
    world->state(rank)->leave(errors[static_cast<size_t>(rank)]);
    world->ended(rank);
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(n));
  try {
    for (int r = 0; r < n; ++r) threads.emplace_back(run, r);
  } catch (...) {
    world->fail(static_cast<int>(threads.size()),
                "its thread could not be started: " + comm::text_of(std::current_exception()));
    for (auto& t : threads) t.join();
    throw;
  }
  {
    comm::LibraryThread waiting;  // this thread will do nothing that ranks could wait for
    for (auto& t : threads) t.join();
  }
  if (first >= 0) rethrow_with_rank(errors[static_cast<size_t>(first)], first);
}

namespace {

// An error that nobody catches ends the process without writing what the C library has kept back for a pipe or a file:
// all that the ranks have printed.
void launch_threads(int n, const std::function<void()>& body) {
  try {
    spawn_ranks(n, body);
  } catch (...) {
    std::cout.flush();
    std::fflush(nullptr);
    throw;
  }
}

}  // namespace

void launch(int n, const std::function<void()>& body) {
  check<ValueError>(n >= 1, "launch", "needs at least one rank, not {}", n);
  auto is_set = [](const char* name) {
    const char* value = std::getenv(name);  // NOLINT: nobody sets the environment meanwhile
    return value && *value;
  };
  auto variables = launcher_variables();
  if (!std::any_of(variables.begin(), variables.end(), [&](auto& v) { return is_set(v.rank) && is_set(v.size); }))
    return launch_threads(n, body);
  world();  // throws if the variables make no sense
  body();
}

}  // namespace tutti
