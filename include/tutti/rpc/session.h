// Sessions: a rank of a world becomes a worker that others can call, and that can call others (call.h).
//
//   double scale(double x) { return 2 * x; }
//
//   spawn_ranks(2, [] {                                   // or spawn_processes, tutti run, mpirun, srun
//     rpc::Session session({.name = rank() == 0 ? "driver" : "server"});
//     if (rank() == 0) EXPECT_EQ(rpc::sync<&scale>("server", 21.0), 42);
//   });                                                   // the session ends when all calls of all workers have
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/comm/group.h"

namespace tutti::rpc {

namespace detail {
class Agent;
}

/// A worker, as others see it.
struct Worker {
  std::string name;
  int rank = -1;  // in the world
  friend bool operator==(const Worker&, const Worker&) = default;
};

struct SessionOptions {
  std::string name = {};  // default: "worker" and the rank. No two workers of a session have the same
  Group group = {};       // whose ranks are the workers; default: the world
  std::chrono::milliseconds timeout = std::chrono::minutes(1);  // of calls that name none themselves
  // Threads for calls that come in. They are started as they are needed: as long as there are fewer, every call that
  // waits keeps one of its own; beyond, a call that waits lets others run on its stack.
  int threads = 16;
  // Bytes of calls to one worker that have not been answered. Who calls more than that waits, unless it is itself being
  // called: so the memory of a worker that is slow is bounded, and calls that wait for each other go on.
  size_t max_bytes = size_t{64} << 20;
};

/// What was still referenced when a session ended.
struct Leak {
  std::string type;     // of the object
  std::string made_at;  // "driver.cpp:12, by driver"
  std::vector<Worker> held_by;
};

struct ShutdownOptions {
  /// All workers wait until every call has ended everywhere: all of them must come to this. Otherwise this worker
  /// leaves at once: its calls end with CancelledError, and others' calls to it with RankFailure.
  bool graceful = true;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// All ranks of the group make theirs, and get it when all have. A rank has one session at a time, which all its
/// threads use. MismatchError where two workers have the same name.
class Session {
 public:
  explicit Session(SessionOptions options = {});
  /// Shuts down if that has not been done: gracefully, unless an exception is on its way. Leaks are listed on standard
  /// error.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::string& name() const;
  /// All of them, this one too, in the order of their ranks.
  const std::vector<Worker>& workers() const;
  /// Returns the objects of this worker that references were left to.
  std::vector<Leak> shutdown(const ShutdownOptions& options = {});

  /// How much there is of everything right now; for tests and monitoring.
  struct Statistics {
    size_t calls = 0;       // that this worker waits for
    size_t handlers = 0;    // calls that others wait for
    size_t objects = 0;     // that references lead to
    size_t references = 0;  // that this worker holds, to objects of any
    size_t threads = 0;
    size_t strangers = 0;  // messages that did not prove that they belong to this session
  };
  Statistics statistics() const;

 private:
  std::shared_ptr<detail::Agent> agent_;
  int exceptions_;
};

/// The calling rank's own worker; ValueError where it has no session.
const Worker& this_worker();
/// Inside of a call: who made it.
const Worker& caller();
/// Inside of a call: whether the caller still waits for it. Long ones look now and then.
bool cancelled();

}  // namespace tutti::rpc
