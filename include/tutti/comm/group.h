// Groups: ranks that work together. A program finds its world, the group of all ranks, in its context, or in what
// started it: mpirun, srun, or whoever sets RANK and WORLD_SIZE; one that was not started as a rank of anything is a
// world of one.
//
//   spawn_ranks(4, [] {
//     Tensor x = full({3}, rank());
//     all_reduce(x);                       // 0 + 1 + 2 + 3 on every rank
//     Group pair = world().split(rank() / 2);
//     broadcast(x, {.root = 1, .group = pair});
//   });
#pragma once

#include <chrono>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/fault.h"
#include "tutti/error.h"

namespace tutti {

/// Another rank failed: the text says which, and what happened to it.
struct RankFailure : Error {
  using Error::Error;
};
/// Ranks called different collectives, or the same one with different shapes, dtypes, roots or reductions.
struct MismatchError : Error {
  using Error::Error;
};

/// Ranks wait for each other in a circle, none of them for itself: the text says who waits for whom, in which call, at
/// which line. All ranks get it.
struct DeadlockError : Error {
  using Error::Error;
};

namespace comm {
class RankGroup;
}

/// What tells this host from others: TUTTI_HOST, or its name, start and namespaces. Ranks that share it share memory.
std::string host_id();

/// A cheap handle; copies are the same group. Any thread of a rank may use it. All collectives of a group happen in the
/// order in which they were called; those of different groups do not wait for each other.
class Group {
 public:
  Group() = default;
  bool defined() const { return handle_ != nullptr; }
  /// Of the calling rank in this group; -1 when it is not a member.
  int rank() const;
  int size() const;
  /// What carries its calls: "threads", "shm" between processes of a host, "ucx" or "gloo" between hosts, "shm+ucx" or
  /// "shm+gloo" where several members share a host.
  std::string transport() const;
  /// The members' ranks in the world.
  const std::vector<int>& ranks() const;
  /// A group of these ranks of this group, renumbered in the given order. Members must all call it (in the same order,
  /// if several times for the same ranks); others may, and get a group that they cannot use.
  Group subgroup(const std::vector<int>& ranks) const;
  /// Groups of all ranks that give the same colour, ordered by key and then by rank. All ranks of this group must call
  /// it.
  Group split(int64_t colour, int64_t key = 0) const;
  /// Groups of the ranks on one host: those that give the same name for it. All ranks of this group must call it.
  Group split_by_host(const std::string& host = host_id()) const;

  const std::shared_ptr<comm::RankGroup>& handle() const { return handle_; }
  explicit Group(std::shared_ptr<comm::RankGroup> handle) : handle_(std::move(handle)) {}
  friend bool operator==(const Group&, const Group&) = default;

 private:
  std::shared_ptr<comm::RankGroup> handle_;
};

/// "ranks [0, 2] by threads": its members in the world, and what carries its collectives.
std::string to_string(const Group& group);
std::ostream& operator<<(std::ostream& out, const Group& group);

/// All ranks that were started together with the calling one.
Group world();
/// In the world.
int rank();
int world_size();
/// Among the ranks on this host, in the order of the world.
int local_rank();
int local_size();

struct SpawnOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of collectives that name none themselves
  uint64_t seed = 0;                                            // rank r draws from a stream of its own
  std::vector<Fault> faults = {};                               // to be met on purpose, drawn by the seed
  std::string trace = {};  // folder where ranks leave their flight records; "": TUTTI_TRACE, if that is set
  // Of processes: what carries their calls, "shm", or for trying out on one host what is meant for several: "ucx" or
  // "gloo", or "shm+ucx" or "shm+gloo" with `hosts`, which says for each rank the number of the host it pretends to be
  // on.
  std::string transport = "shm";
  std::vector<int> hosts = {};
  std::chrono::milliseconds silence = std::chrono::seconds(1);  // after which a host that says nothing counts as lost
};
/// Runs body on n ranks that are threads of this process, and waits for all. If ranks throw, the others' collectives
/// end at once with RankFailure, and the error of the first is thrown here: tutti::Errors as they are (they know their
/// rank), others nested in a RankFailure.
void spawn_ranks(int n, const std::function<void()>& body, const SpawnOptions& options = {});
/// The same on n processes, forked from this one: what body does to variables stays there. A process that is killed is
/// a rank that failed. Errors of Tutti's own classes arrive as such, with rank and text; of others only the text. Each
/// process uses one thread for its operators, since a forked process cannot use the threads of its parent.
void spawn_processes(int n, const std::function<void()>& body, const SpawnOptions& options = {});

/// Runs body on ranks. If a launcher (`tutti run`, mpirun, srun, or one that sets RANK and WORLD_SIZE) started this
/// process, calls body once, as the launched rank; n is ignored. Otherwise calls spawn_ranks(n, body), whose ranks are
/// threads of this process. Throws ValueError if n < 1; throws if the launcher's variables are invalid, and what body
/// throws.
void launch(int n, const std::function<void()>& body);

}  // namespace tutti
