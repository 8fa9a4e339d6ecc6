// Ranks that somebody else started: who they are is in the environment.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>

#include "base/check.h"
#include "base/cores.h"
#include "comm/launch/launch.h"
#include "comm/transport/process_world.h"
#include "comm/transport/shm.h"
#include "tutti/comm/store.h"
#include "tutti/context.h"
#include "tutti/random.h"

namespace tutti::comm {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return {};
  return value;
}

std::optional<int64_t> number(const char* name) {
  auto text = variable(name);
  if (!text) return {};
  int64_t value = 0;
  auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  check<ValueError>(error == std::errc() && end == text->data() + text->size(), "world",
                    "the environment variable {} is '{}', which is not a whole number", name, *text);
  return value;
}

struct Started {
  int rank, size;
  std::string by;   // the variable that said so
  std::string job;  // a name that only this job has, where the starter gives one
};

std::optional<Started> find_starter() {
  struct Starter {
    const char *rank, *size;
    std::array<const char*, 2> job;
  };
  constexpr Starter starters[] = {
      {"RANK", "WORLD_SIZE", {"TUTTI_JOB", "TORCHELASTIC_RUN_ID"}},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
      {"PMI_RANK", "PMI_SIZE", {"PMI_JOBID", "PMI_ID"}},
      {"SLURM_PROCID", "SLURM_NTASKS", {"SLURM_JOB_ID", nullptr}}};
  for (const Starter& s : starters) {
    auto rank = number(s.rank), size = number(s.size);
    if (!rank || !size) continue;
    check<ValueError>(*size >= 1 && *rank >= 0 && *rank < *size && *size < 1 << 20, "world",
                      "{} is {} and {} is {}: ranks are numbered from 0 to one below the number of them", s.rank, *rank,
                      s.size, *size);
    Started found{static_cast<int>(*rank), static_cast<int>(*size), s.rank, {}};
    for (const char* name : s.job)
      if (name && found.job.empty()) found.job = variable(name).value_or("");
    if (auto step = variable("SLURM_STEP_ID"); step && std::string(s.rank) == "SLURM_PROCID") found.job += "." + *step;
    return found;
  }
  return {};
}

// The same for processes that can share memory and see each other.
std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat pids{}, shm{};
  ::stat("/proc/self/ns/pid", &pids);
  ::stat("/dev/shm", &shm);
  return fmt::format("{}/{}/{}/{}", name, boot, pids.st_ino, shm.st_dev);
}

StorePtr meet(const Started& me, std::chrono::milliseconds timeout) {
  auto address = variable("MASTER_ADDR");
  auto port = number("MASTER_PORT");
  if (address) {
    check<ValueError>(port && *port > 0 && *port < 65536, "world",
                      "MASTER_ADDR is {} but MASTER_PORT does not name a port: ranks meet at both", *address);
    return std::make_shared<TcpStore>(TcpStoreOptions{.host = me.rank == 0 ? "" : *address,
                                                      .port = static_cast<uint16_t>(*port),
                                                      .serve = me.rank == 0,
                                                      .secret = variable("TUTTI_SECRET").value_or(""),
                                                      .timeout = timeout});
  }
  check<ValueError>(!me.job.empty(), "world",
                    "{} says that this is rank {} of {}, but nothing says where they meet: set MASTER_ADDR and "
                    "MASTER_PORT, the same for all ranks",
                    me.by, me.rank, me.size);
  std::string name = me.job;
  for (char& c : name)
    if (c == '/') c = '_';
  return std::make_shared<FileStore>(fmt::format("/tmp/tutti-{}-{}", ::getuid(), name),
                                     FileStoreOptions{.remove = true, .timeout = timeout});
}

std::shared_ptr<ProcessWorld> make_world(const Started& me) {
  auto timeout = std::chrono::seconds(number("TUTTI_TIMEOUT").value_or(300));
  StorePtr store = meet(me, timeout);
  std::string mine = host_name();
  store->set(fmt::format("host/{}", me.rank), mine);
  if (me.rank == 0) store->set("name", fmt::format("tutti-{}-{:08x}", ::getpid(), std::random_device{}()));
  for (int r = 0; r < me.size; ++r)
    check<DeviceError>(store->get(fmt::format("host/{}", r)) == mine, "world",
                       "rank {} is on another host than rank {}; this build connects ranks of one host only", r,
                       me.rank);
  std::string name = store->get("name"), segment_name = name + "-world";
  auto world = std::make_shared<ProcessWorld>(Segment::named(segment_name, SharedWorld::bytes(me.size)), name, me.rank,
                                              me.size, timeout);
  // Who serves leaves last; the memory's name is needed by nobody who has it.
  if (store->add("here", 1) == me.size) store->set("all", "yes");
  store->get("all");
  Segment::remove(segment_name);
  if (store->add("gone", 1) == me.size) store->set("done", "yes");
  if (me.rank == 0) store->get("done");
  return world;
}

struct Environment {
  std::shared_ptr<ProcessWorld> world;
  std::shared_ptr<RankGroup> handle;
  Environment() {
    auto me = find_starter();
    if (!me) return;
    world = make_world(*me);
    handle = make_handle(world, me->rank);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {  // main() has returned
    handle.reset();
    if (!world) return;
    world->state(world->rank())->leave(world->failed() ? world->failure() : nullptr);
    world->ended();
  }
};

}  // namespace

std::shared_ptr<RankGroup> world_from_environment() {
  static Environment environment;
  if (environment.handle) {
    Context& mine = context();
    int rank = environment.world->rank(), size = environment.world->size();
    mine.rank = rank;
    mine.world_size = size;
    if (!mine.generator) mine.generator = std::make_shared<Generator>(static_cast<uint64_t>(rank));
    // A starter that binds ranks to cores has divided them already.
    int cores = static_cast<int>(process_cores().size());
    if (mine.threads == 0 && cores == ::sysconf(_SC_NPROCESSORS_ONLN)) mine.threads = std::max(1, cores / size);
  }
  return environment.handle;
}

}  // namespace tutti::comm
