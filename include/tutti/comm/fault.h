// Faults on purpose: what a program does when a rank is slow, loses a message, throws or dies can be tried out, and
// tried again, since everything is seeded.
//
//   spawn_ranks(4, body, {.faults = {{.kind = Fault::kill, .rank = 2, .call = 100}}});
//
//   InjectFaults guard({{.kind = Fault::delay, .probability = 0.01, .time = 5ms}}, /*seed=*/7);   // from here on
//
// Processes that were started by others take them from the environment: faults separated by semicolons,
//
//   TUTTI_FAULTS="seed=7; kill rank=2 call=100; delay probability=0.01 ms=5; drop collective=send rank=0 call=3"
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/error.h"

namespace tutti {

/// What a rank meets at one of its collectives or messages, before it begins.
struct Fault {
  enum Kind : uint8_t {
    delay,  // the rank is late by `time`
    drop,   // its part is lost: the call returns as if done, and others wait for it. A message does not arrive
    fail,   // it throws InjectedError
    kill,   // its process is killed (SIGKILL); a rank that is a thread fails for good and throws InjectedError
  };
  Kind kind = delay;
  int rank = -1;                // of the world; -1: any
  int64_t call = -1;            // that one of the rank's calls, from 0 on; -1: by probability
  double probability = 0;       // of each call
  std::string collective = {};  // counts calls of this name only: "all_reduce", "send", ...; "": all
  std::chrono::nanoseconds time = std::chrono::milliseconds(10);  // of a delay
};

/// A fault that was asked for.
struct InjectedError : Error {
  using Error::Error;
};

namespace comm {
class RankState;
}

/// While it lives, the calling rank's calls, in all groups and threads, meet these faults (and those of other guards).
/// Calls are counted from its beginning.
class [[nodiscard]] InjectFaults {
 public:
  explicit InjectFaults(std::vector<Fault> faults, uint64_t seed = 0);
  ~InjectFaults();
  InjectFaults(const InjectFaults&) = delete;
  InjectFaults& operator=(const InjectFaults&) = delete;

 private:
  std::shared_ptr<comm::RankState> rank_;
  uint64_t id_;
};

struct FaultPlan {
  std::vector<Fault> faults;
  uint64_t seed = 0;
};
/// The text of TUTTI_FAULTS; ValueError names what it does not know.
FaultPlan parse_faults(std::string_view text);

}  // namespace tutti
