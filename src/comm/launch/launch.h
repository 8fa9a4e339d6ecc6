// How a process comes to be a rank.
#pragma once

#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/transport/transport.h"

namespace tutti::comm {

/// The calling rank's handle on the group of all ranks of a world, of threads or processes.
template <class World>
std::shared_ptr<RankGroup> make_handle(const std::shared_ptr<World>& world, int rank) {
  std::vector<int> all(static_cast<size_t>(world->size()));
  std::iota(all.begin(), all.end(), 0);
  return std::make_shared<RankGroup>(world->group(all, 0, 0), rank, world->state(rank));
}

/// The world that mpirun, srun or the variables RANK and WORLD_SIZE say this process is a rank of; null: none. The
/// first call meets the other ranks. See docs/collectives.md for the variables.
std::shared_ptr<RankGroup> world_from_environment();

/// The same of a process that spawn_processes made, for threads that its rank has started; null: it is none.
std::shared_ptr<RankGroup> spawned_world();

/// From now on an error that nobody catches is told to the other ranks of this world before the program ends by it.
void tell_at_terminate(const std::shared_ptr<RankGroup>& world);

/// "shm", "ucx", "gloo", "shm+ucx" or "shm+gloo", taken apart.
struct TransportChoice {
  std::string engine;  // between hosts; empty: none is needed
  bool share_memory;   // between ranks of a host
};
TransportChoice parse_transport(const std::string& text);
/// What carries the calls of ranks on so many hosts that ask for nothing: `engines` are those that each rank's build
/// has
/// ("ucx gloo"), of which all have to have one.
std::string default_transport(int hosts, const std::vector<std::string>& engines);

/// What an error says, without the rank that Tutti's errors begin with.
std::string text_of(const std::exception_ptr& error);

}  // namespace tutti::comm
