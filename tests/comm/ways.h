// The ways in which ranks of a test can be started: the same body on each.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <stdexcept>
#include <vector>

#include "tutti/comm/group.h"

namespace tutti::test {

struct Way {
  const char* name;
  void (*spawn)(int n, const std::function<void()>& body, const SpawnOptions& options);
  friend std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }
};

inline void spawn_checked_processes(int n, const std::function<void()>& body, const SpawnOptions& options) {
  // An assertion that fails in another process fails the test here.
  spawn_processes(
      n,
      [&] {
        body();
        if (testing::Test::HasFailure()) throw std::runtime_error("an assertion failed on this rank");
      },
      options);
}

inline constexpr Way kThreads{"threads", spawn_ranks};
inline constexpr Way kProcesses{"shm", spawn_checked_processes};
#ifdef TUTTI_SANITIZE_THREAD  // which does not follow a process that has threads into its children
inline std::vector<Way> all_ways() { return {kThreads}; }
#else
inline std::vector<Way> all_ways() { return {kThreads, kProcesses}; }
#endif
inline auto every_way() { return testing::ValuesIn(all_ways()); }

}  // namespace tutti::test
