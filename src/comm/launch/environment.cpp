// Ranks that somebody else started: who they are is in the environment.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/cores.h"
#include "base/launched.h"
#include "comm/launch/errors.h"
#include "comm/launch/launch.h"
#include "comm/launch/meeting_file.h"
#include "comm/store/socket.h"
#include "comm/transport/hosts_world.h"
#include "comm/transport/process_world.h"
#include "comm/transport/shm.h"
#include "comm/transport/wire.h"
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
  // Among the ranks of its host, where the starter says so.
  std::optional<int64_t> local_rank = {}, local_size = {};
};

// Of the starter that said the rank, or of nobody: RANK and LOCAL_RANK belong together.
void find_local(Started& me, size_t starter) {
  constexpr std::array<std::array<const char*, 2>, 4> names = {
      {{"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
       {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
       {"SLURM_LOCALID", nullptr}}};
  auto [rank, size] = names[starter];
  me.local_rank = number(rank);
  if (size) me.local_size = number(size);
  bool sane = (!me.local_rank || (*me.local_rank >= 0 && *me.local_rank < me.local_size.value_or(me.size))) &&
              (!me.local_size || (*me.local_size >= 1 && *me.local_size <= me.size));
  check<ValueError>(sane, "world",
                    "{} is {} and {} is {} in a world of {}: ranks of a host are numbered from 0 to one below the "
                    "number of them",
                    rank, me.local_rank.value_or(0), size ? size : "the number of ranks",
                    me.local_size.value_or(me.size), me.size);
}

std::optional<Started> find_starter() {
  // In the order of launcher_variables().
  constexpr std::array<std::array<const char*, 2>, 4> jobs = {{{"TUTTI_JOB", "TORCHELASTIC_RUN_ID"},
                                                               {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
                                                               {"PMI_JOBID", "PMI_ID"},
                                                               {"SLURM_JOB_ID", nullptr}}};
  TUTTI_ASSERT(launcher_variables().size() == jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const LauncherVariables& s = launcher_variables()[i];
    auto rank = number(s.rank), size = number(s.size);
    if (!rank || !size) continue;
    check<ValueError>(*size >= 1 && *rank >= 0 && *rank < *size && *size < 1 << 20, "world",
                      "{} is {} and {} is {}: ranks are numbered from 0 to one below the number of them", s.rank, *rank,
                      s.size, *size);
    Started found{static_cast<int>(*rank), static_cast<int>(*size), s.rank, {}};
    find_local(found, i);
    for (const char* name : jobs[i])
      if (name && found.job.empty()) found.job = variable(name).value_or("");
    if (auto step = variable("SLURM_STEP_ID"); step && std::string(s.rank) == "SLURM_PROCID") found.job += "." + *step;
    return found;
  }
  return {};
}

std::chrono::milliseconds time_variable(const char* name, double seconds) {
  if (auto text = variable(name)) {
    char* end = nullptr;
    seconds = std::strtod(text->c_str(), &end);
    check<ValueError>(end == text->c_str() + text->size() && seconds > 0 && seconds < 1e9, "world",
                      "the environment variable {} is '{}', which is not a time in seconds", name, *text);
  }
  return std::chrono::milliseconds(std::max<int64_t>(1, std::llround(seconds * 1e3)));
}

struct Times {
  std::chrono::milliseconds timeout = time_variable("TUTTI_TIMEOUT", 300), silence = time_variable("TUTTI_SILENCE", 10);
};

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "localhost" || address == "::1";
}

StorePtr join_store(const Started& me, TcpStoreOptions options) try {
  return std::make_shared<TcpStore>(std::move(options));
} catch (const ConnectionError& e) {
  if (me.rank == 0)
    fail<ConnectionError>(
        "world",
        "rank 0 of {} (by {}) cannot open the store where ranks meet: {}. Does rank 0 of this job run "
        "already (was it started twice?), or another program that has the same MASTER_PORT?",
        me.size, me.by, e.what());
  fail<ConnectionError>("world",
                        "rank {} of {} (by {}) did not reach the store of rank 0, where ranks meet: {}. Is rank 0 "
                        "started, with the same MASTER_ADDR, MASTER_PORT and TUTTI_SECRET, and can its host be reached "
                        "from here? (TUTTI_TIMEOUT says how many seconds to try)",
                        me.rank, me.size, me.by, e.what());
}

struct MeetingPoint {
  StorePtr store;
  std::string file = {};  // where they meet in one
};

MeetingPoint meet(const Started& me, const Times& times) {
  auto address = variable("MASTER_ADDR");
  auto port = number("MASTER_PORT");
  if (address) {
    check<ValueError>(port && *port > 0 && *port < 65536, "world",
                      "MASTER_ADDR is {} but MASTER_PORT does not name a port: ranks meet at both", *address);
    std::string secret = variable("TUTTI_SECRET").value_or("");
    check<ValueError>(!secret.empty() || is_loopback(*address), "world",
                      "ranks meet at {}, where others can come too: set TUTTI_SECRET, the same for all ranks",
                      *address);
    return {join_store(me, TcpStoreOptions{.host = me.rank == 0 ? "" : *address,
                                           .port = static_cast<uint16_t>(*port),
                                           .serve = me.rank == 0,
                                           .secret = secret,
                                           .timeout = times.timeout,
                                           .grace = times.silence})};
  }
  check<ValueError>(!me.job.empty(), "world",
                    "{} says that this is rank {} of {}, but nothing says where they meet: set MASTER_ADDR and "
                    "MASTER_PORT, the same for all ranks",
                    me.by, me.rank, me.size);
  check<ValueError>(number("SLURM_NNODES").value_or(1) == 1 && me.local_size.value_or(me.size) == me.size, "world",
                    "{} says that this is rank {} of {}, of which {} are on this host, and nothing says where they "
                    "meet: set MASTER_ADDR (the host of rank 0) and MASTER_PORT, the same for all ranks, and "
                    "TUTTI_SECRET (mpirun passes them on by -x NAME, srun by itself)",
                    me.by, me.rank, me.size, me.local_size ? fmt::to_string(*me.local_size) : "some");
  std::string file = join_meeting_file(me.job);
  return {std::make_shared<FileStore>(file, FileStoreOptions{.remove = true, .timeout = times.timeout}), file};
}

/// What the ranks have told each other: the same on all of them.
struct Meeting {
  std::vector<int> host_of;  // of each rank
  int hosts = 0;
  std::string transport;
};

// What a rank tells the others of itself.
struct RankNote {
  std::string host, transport, engines;  // transport: empty where nobody said
  std::string name, pid, number;         // of its host, as people know it; its process; one that no other process has
  std::string identity;                  // of the process, on its host

  std::string encode() const {
    return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}", host, transport, engines, name, pid, number, identity);
  }
  static RankNote decode(const std::string& text) {
    std::istringstream lines(text);
    RankNote note;
    for (std::string* field :
         {&note.host, &note.transport, &note.engines, &note.name, &note.pid, &note.number, &note.identity})
      std::getline(lines, *field);
    return note;
  }
  std::string process() const { return fmt::format("process {} on host {}", pid, name); }
  /// As far as this process can know. Its number may be another's by now, or be kept by a parent that does not ask.
  bool has_ended() const {
    return host == host_id() && !identity.empty() && process_identity(std::atoi(pid.c_str())) != identity;
  }
};

RankNote own_note() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) name[0] = 0;
  std::random_device random;
  return {.host = host_id(),
          .transport = variable("TUTTI_TRANSPORT").value_or(""),
          .engines = fmt::format("{} {}", has_ucx() ? "ucx" : "", has_gloo() ? "gloo" : ""),
          .name = name,
          .pid = fmt::to_string(::getpid()),
          .number = fmt::format("{:08x}{:08x}", random(), random()),
          .identity = process_identity(::getpid())};
}

// Ranks that meet in a store: what they leave there for each other. One that does not come, or ends meanwhile, is
// named.
class MeetingPlace {
 public:
  MeetingPlace(const Started& me, StorePtr store, const std::string& prefix, std::chrono::milliseconds timeout)
      : me_(me),
        tcp_(std::dynamic_pointer_cast<TcpStore>(store)),
        prefix_(prefix),
        view_(prefix, std::move(store)),
        timeout_(timeout) {
    if (!tcp_) return;
    std::string will = encode_failure({me.rank, "RankFailure", "its process ended while the ranks were meeting"});
    tcp_->leave_will(prefix_ + "failed", will, will, {});
  }
  Store& store() { return view_; }

  /// Leaves what this rank says of itself at its key. ValueError, on whoever comes later, if another process is this
  /// rank already. The others hear of it if they still wait for somebody: most likely the one with the wrong number.
  void claim(const Store::Keys& keys, const RankNote& note) {
    const std::string &key = keys[static_cast<size_t>(me_.rank)], mine = note.encode();
    std::string there = view_.compare_and_set(key, "", mine);
    // Where ranks meet in a file, nobody hears of one that was killed there, and its starter may have tried again.
    while (there != mine && !tcp_ && RankNote::decode(there).has_ended())
      there = view_.compare_and_set(key, there, mine);
    if (there == mine) return;
    std::string text = fmt::format(
        "rank {} is taken by {}, and {} wants to be it too: ranks given twice? {} must be another one for each process",
        me_.rank, RankNote::decode(there).process(), note.process(), me_.by);
    if (tcp_) tcp_->leave_will(prefix_ + "failed", "", "", {});  // the rank does not end with this process
    if (!view_.has(keys)) view_.compare_and_set("failed", "", encode_failure({me_.rank, "ValueError", text}));
    fail<ValueError>("world", "{}", text);
  }
  const std::shared_ptr<TcpStore>& tcp() const { return tcp_; }

  std::string get(const std::string& key, const std::string& missing) { return get_all({key}, {missing})[0]; }
  /// `missing` says for each key who has not come if it stays without a value.
  Store::Values get_all(const Store::Keys& keys, const std::vector<std::string>& missing) try {
    auto deadline = Clock::now() + timeout_;
    while (true) {
      auto left = std::min<std::chrono::nanoseconds>(deadline - Clock::now(), std::chrono::milliseconds(200));
      try {
        return view_.multi_get(keys, {.timeout = std::max<std::chrono::nanoseconds>(left, left.zero())});
      } catch (const TimeoutError&) {
      }
      if (auto failed = view_.try_get("failed")) {
        Failure f = decode_failure(*failed);
        let_others_hear();
        fail<RankFailure>("world", "rank {} failed: {}", f.rank, f.text);
      }
      if (Clock::now() >= deadline) time_out(keys, missing);
    }
  } catch (const ConnectionError& e) {
    lost(e);
  }
  [[noreturn]] static void lost(const ConnectionError& e) {
    fail<RankFailure>("world", "rank 0 failed: the ranks meet at its store, which is gone ({})", text(e));
  }
  /// This rank cannot go on: the others need not wait for it.
  void tell(const Error& e) try {
    view_.compare_and_set("failed", "", encode_failure({me_.rank, "RankFailure", e.what()}));
    let_others_hear(true);
  } catch (const Error&) {  // what is wrong here matters more than who could not hear it
  }
  /// Who serves leaves last: when it goes, the others have the answers to all that they asked.
  void leave() {
    if (tcp_) tcp_->leave_will(prefix_ + "failed", "", "", {});
    if (view_.add("left", 1) == me_.size) view_.set("left/all", "yes");
    if (me_.rank == 0) get("left/all", "some rank has met the others, but not left");
  }

 private:
  [[noreturn]] void time_out(const Store::Keys& keys, const std::vector<std::string>& missing) {
    std::string who;
    for (size_t k = 0; k < keys.size(); ++k)
      if (!view_.has({keys[k]})) who += (who.empty() ? "" : ", ") + missing[k];
    let_others_hear();
    fail<TimeoutError>("world",
                       "waited {:.3g} s for all {} ranks to come: {}. Were all started, with the same WORLD_SIZE, "
                       "MASTER_ADDR and MASTER_PORT? (TUTTI_TIMEOUT says how long to wait)",
                       std::chrono::duration<double>(timeout_).count(), me_.size, who);
  }
  // Of a failure, of this rank (`mine`) or of one of the others: who serves stays a little while.
  void let_others_hear(bool mine = false) {
    if (!tcp_) return;
    if (me_.rank != 0) {
      if (!mine) view_.add("heard", 1);
      return;
    }
    auto until = Clock::now() + std::chrono::seconds(1);
    while (Clock::now() < until && view_.add("heard", 0) < me_.size - (mine ? 1 : 2))
      std::this_thread::sleep_for(kLook);
  }
  static constexpr auto kLook = std::chrono::milliseconds(10);
  static std::string text(const std::exception& e) { return e.what(); }

  const Started& me_;
  const std::shared_ptr<TcpStore> tcp_;
  const std::string prefix_;
  PrefixStore view_;
  const std::chrono::milliseconds timeout_;
};

// Throws what is wrong with what the ranks want, the same on all of them.
void check_wishes(Meeting& meeting, const std::vector<RankNote>& notes) {
  std::vector<std::string> engines;
  for (size_t r = 0; r < notes.size(); ++r) {
    engines.push_back(notes[r].engines);
    check<ValueError>(
        notes[r].transport == notes[0].transport, "world",
        "ranks disagree: TUTTI_TRANSPORT is '{}' for rank 0, but '{}' for rank {}; set it alike, or nowhere",
        notes[0].transport, notes[r].transport, r);
  }
  meeting.transport = notes[0].transport.empty() ? default_transport(meeting.hosts, engines) : notes[0].transport;
  if (!parse_transport(meeting.transport).engine.empty()) return;
  for (size_t r = 1; r < notes.size(); ++r)
    check<ValueError>(meeting.host_of[r] == meeting.host_of[0], "world",
                      "TUTTI_TRANSPORT is shm, but rank {} is on another host than rank 0: use shm+ucx", r);
}

Meeting compare_notes(const Started& me, MeetingPlace& place) {
  auto key = [](int r) { return fmt::format("rank/{}", r); };
  Store::Keys keys;
  std::vector<std::string> missing;
  for (int r = 0; r < me.size; ++r) {
    keys.push_back(key(r));
    missing.push_back(fmt::format("rank {} did not", r));
  }
  place.claim(keys, own_note());
  Meeting meeting;
  std::map<std::string, int> numbers;
  std::vector<RankNote> notes;
  for (const std::string& text : place.get_all(keys, missing)) {
    notes.push_back(RankNote::decode(text));
    meeting.host_of.push_back(numbers.try_emplace(notes.back().host, static_cast<int>(numbers.size())).first->second);
  }
  meeting.hosts = static_cast<int>(numbers.size());
  try {
    check_wishes(meeting, notes);
  } catch (const Error& wrong) {
    try {
      place.leave();
    } catch (const Error&) {  // what is wrong matters more than who could not hear it
    }
    throw;
  }
  return meeting;
}

/// What ranks of this host share.
std::shared_ptr<ProcessWorld> make_local(const Started& me, const Meeting& meeting, MeetingPlace& place,
                                         std::chrono::milliseconds timeout) {
  int host = meeting.host_of[static_cast<size_t>(me.rank)];
  auto first = std::find(meeting.host_of.begin(), meeting.host_of.end(), host) - meeting.host_of.begin();
  auto here = std::count(meeting.host_of.begin(), meeting.host_of.end(), host);
  auto key = [&](const char* what) { return fmt::format("{}/{}", what, host); };
  Store& store = place.store();
  if (first == me.rank) store.set(key("name"), fmt::format("tutti-{}-{:08x}", ::getpid(), std::random_device{}()));
  std::string name = place.get(key("name"), fmt::format("rank {} came, but made no memory for its host", first)),
              segment_name = name + "-world";
  struct Remove {  // the memory's name is needed by nobody who has it, nor where not all get it
    const std::string& name;
    ~Remove() { Segment::remove(name); }
  } remove{segment_name};
  auto world = std::make_shared<ProcessWorld>(Segment::named(segment_name, SharedWorld::bytes(me.size)), name, me.rank,
                                              me.size, timeout, static_cast<int>(here));
  if (store.add(key("here"), 1) == here) store.set(key("all"), "yes");
  place.get(key("all"), "not all ranks of this host found its memory");
  return world;
}

// Engines between hosts hear by a server of ranks that end. Ranks of one host that met by a file find one of their own
// there, which is rank 0.
std::shared_ptr<TcpStore> serve_here(const Started& me, MeetingPlace& place, const Times& times) {
  TcpStoreOptions options{.host = "127.0.0.1", .serve = me.rank == 0, .timeout = times.timeout, .grace = times.silence};
  if (me.rank == 0) {
    std::random_device random;
    options.secret = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
    auto server = std::make_shared<TcpStore>(options);
    place.store().set("server", fmt::format("{} {}", server->port(), options.secret));
    return server;
  }
  std::string where = place.get("server", "rank 0 came, but serves nothing");
  options.port = static_cast<uint16_t>(std::stoi(where));
  options.secret = where.substr(where.find(' ') + 1);
  return std::dynamic_pointer_cast<TcpStore>(join_store(me, options));
}

// The address of this host as the others reach it: the one from which it reaches the meeting place.
std::string own_address(const Started& me) {
  if (auto said = variable("TUTTI_ADDRESS")) return *said;
  if (!variable("MASTER_ADDR")) return "127.0.0.1";
  std::string master = *variable("MASTER_ADDR");
  return me.rank == 0 ? master : store::address_towards(master, static_cast<uint16_t>(*number("MASTER_PORT")));
}

// What the starter says, or what the ranks have found out.
void set_local(const Started& me, const Meeting& meeting, RankState& state) {
  auto begin = meeting.host_of.begin(), mine = begin + me.rank;
  state.local_rank = static_cast<int>(me.local_rank.value_or(std::count(begin, mine, *mine)));
  state.local_size = static_cast<int>(me.local_size.value_or(std::count(begin, meeting.host_of.end(), *mine)));
}

struct Worlds {
  std::shared_ptr<ProcessWorld> local;
  std::shared_ptr<HostsWorld> hosts;  // where they are needed
};

Worlds make_worlds(const Started& me) {
  Times times;
  auto [store, file] = meet(me, times);
  // A job that starts again may meet in the same store.
  auto epoch = number("TUTTI_EPOCH").value_or(number("TORCHELASTIC_RESTART_COUNT").value_or(0));
  std::string prefix = fmt::format("{}/", epoch);
  MeetingPlace place(me, store, prefix, times.timeout);
  Meeting meeting;
  try {
    meeting = compare_notes(me, place);
  } catch (const ConnectionError& e) {
    MeetingPlace::lost(e);
  } catch (...) {
    try {
      if (!file.empty()) leave_meeting(file);
    } catch (const Error&) {  // what is wrong with the meeting matters more
    }
    throw;
  }
  if (!file.empty()) forget_meeting(file);
  TransportChoice choice = parse_transport(meeting.transport);
  Worlds worlds;
  try {
    worlds.local = make_local(me, meeting, place, times.timeout);
  } catch (const MemoryError& e) {
    place.tell(e);
    throw;
  } catch (const ConnectionError& e) {
    MeetingPlace::lost(e);
  }
  set_local(me, meeting, *worlds.local->state(me.rank));
  if (choice.engine.empty()) {
    place.leave();
    return worlds;
  }
  auto tcp = place.tcp();
  check<ValueError>(tcp || meeting.hosts == 1, "world",
                    "ranks that do not share a host meet at MASTER_ADDR and MASTER_PORT: set both, the same for all "
                    "ranks");
  if (!tcp) tcp = serve_here(me, place, times);
  worlds.hosts = std::make_shared<HostsWorld>(worlds.local, tcp, prefix,
                                              HostsOptions{.host_of = meeting.host_of,
                                                           .engine = choice.engine,
                                                           .share_memory = choice.share_memory,
                                                           .silence = times.silence,
                                                           .server = 0,
                                                           .address = own_address(me)});
  set_local(me, meeting, *worlds.local->state(me.rank));  // what HostsWorld has counted is its own
  return worlds;
}

struct Environment {
  Worlds worlds;
  std::shared_ptr<RankGroup> handle;
  Environment() {
    auto me = find_starter();
    if (!me) return;
    tell_launcher(LauncherNote::joined);
    worlds = make_worlds(*me);
    try {
      handle = worlds.hosts ? make_handle(worlds.hosts, me->rank) : make_handle(worlds.local, me->rank);
    } catch (...) {  // nobody destroys this object: what the world has in /dev/shm would stay
      if (worlds.local) worlds.local->ended();
      throw;
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {  // main() has returned
    handle.reset();
    if (worlds.hosts) worlds.hosts->leave();
    if (!worlds.local) return;
    ProcessWorld& world = *worlds.local;
    world.state(world.rank())->leave(world.failed() ? world.failure() : nullptr);
    world.ended();
  }
};

}  // namespace

TransportChoice parse_transport(const std::string& text) {
  if (text == "shm") return {"", true};
  for (const char* engine : {"ucx", "gloo"}) {
    if (text == engine) return {engine, false};
    if (text == std::string("shm+") + engine) return {engine, true};
  }
  fail<ValueError>("world", "the transport '{}' is none of shm, ucx, gloo, shm+ucx and shm+gloo", text);
}

std::string default_transport(int hosts, const std::vector<std::string>& engines) {
  if (hosts == 1) return "shm";
  for (const char* engine : {"ucx", "gloo"}) {
    auto has = [&](const std::string& rank) { return rank.find(engine) != std::string::npos; };
    if (std::all_of(engines.begin(), engines.end(), has)) return std::string("shm+") + engine;
  }
  fail<ValueError>("world",
                   "ranks are on {} hosts, and there is no engine between hosts that the builds of all of them have: "
                   "build Tutti with UCX, or with Gloo, on all",
                   hosts);
}

std::shared_ptr<RankGroup> world_from_environment() {
  // A forked process is not the rank that its parent may be, but may be one by what its own environment says.
  static std::mutex mutex;
  static pid_t owner = 0;
  static std::unique_ptr<Environment> known;
  static std::exception_ptr failure;  // there is no second meeting: later calls say the same
  std::lock_guard lock(mutex);
  if (owner != ::getpid()) {
    (void)known.release();  // the parent's: to leave its world is not for us
    failure = nullptr;
    owner = ::getpid();
    try {
      known = std::make_unique<Environment>();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) rethrow_copy(failure);
  Environment& environment = *known;
  if (environment.handle) {
    Context& mine = context();
    int rank = environment.worlds.local->rank(), size = environment.worlds.local->size();
    mine.rank = rank;
    mine.world_size = size;
    generator();  // the rank's own, for the first thread that asks
    // A starter that binds ranks to cores has divided them already.
    int cores = static_cast<int>(process_cores().size());
    int here = environment.handle->state->local_size;
    if (mine.threads == 0 && cores == ::sysconf(_SC_NPROCESSORS_ONLN)) mine.threads = std::max(1, cores / here);
  }
  return environment.handle;
}

}  // namespace tutti::comm
