// The ways in which ranks of a test can be started: the same body on each.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "comm/transport/wire.h"
#include "tests/support/shared.h"
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

/// The same by an engine: flat, or on two hosts, or on hosts in turns.
inline void spawn_by(const char* transport, std::vector<int> hosts, int n, const std::function<void()>& body,
                     SpawnOptions options) {
  options.transport = transport;
  options.hosts = std::move(hosts);
  options.silence = std::chrono::seconds(5);  // tests of many processes on few cores; others set their own
  spawn_checked_processes(n, body, options);
}
inline void spawn_ucx(int n, const std::function<void()>& body, const SpawnOptions& options) {
  spawn_by("ucx", {}, n, body, options);
}
inline void spawn_gloo(int n, const std::function<void()>& body, const SpawnOptions& options) {
  spawn_by("gloo", {}, n, body, options);
}
inline std::vector<int> two_hosts(int n) {
  std::vector<int> hosts;
  for (int r = 0; r < n; ++r) hosts.push_back(r * 2 / n);
  return hosts;
}
inline void spawn_hosts(int n, const std::function<void()>& body, const SpawnOptions& options) {
  spawn_by("shm+ucx", two_hosts(n), n, body, options);
}
inline void spawn_hosts_gloo(int n, const std::function<void()>& body, const SpawnOptions& options) {
  spawn_by("shm+gloo", two_hosts(n), n, body, options);
}

inline constexpr Way kThreads{"threads", spawn_ranks};
inline constexpr Way kProcesses{"shm", spawn_checked_processes};
inline constexpr Way kUcx{"ucx", spawn_ucx};
inline constexpr Way kGloo{"gloo", spawn_gloo};
inline constexpr Way kHosts{"shm_ucx", spawn_hosts};
inline constexpr Way kHostsGloo{"shm_gloo", spawn_hosts_gloo};
#ifdef TUTTI_SANITIZE_THREAD  // which does not follow a process that has threads into its children
inline std::vector<Way> all_ways() { return {kThreads}; }
#else
inline std::vector<Way> all_ways() {
  std::vector<Way> ways = {kThreads, kProcesses};
#ifdef TUTTI_SANITIZE_ADDRESS  // slow: the engines' own tests (hosts_test.cpp) run by all of them there too
  if (comm::has_ucx()) ways.push_back(kHosts);
#else
  if (comm::has_ucx()) ways.insert(ways.end(), {kUcx, kHosts});
  if (comm::has_gloo()) ways.insert(ways.end(), {kGloo, kHostsGloo});
#endif
  return ways;
}
#endif
/// Of ranks that see each other's memory: circles are found only there.
inline std::vector<Way> one_host_ways() {
  std::vector<Way> ways = all_ways();
  ways.resize(std::min<size_t>(ways.size(), 2));
  return ways;
}
inline auto every_way() { return testing::ValuesIn(all_ways()); }

/// A fixture for tests of a world of `n` ranks, on every way of running 1, 2, 3, 4 and 8 of them:
/// INSTANTIATE_TEST_SUITE_P(Worlds, Suite, every_world(), name_world).
class EveryWorld : public testing::TestWithParam<std::tuple<Way, int>> {
 protected:
  void spawn(const std::function<void()>& body) { std::get<0>(GetParam()).spawn(n, body, {}); }
  int n = std::get<1>(GetParam());
};
inline auto every_world() { return testing::Combine(every_way(), testing::Values(1, 2, 3, 4, 8)); }
inline std::string name_world(const testing::TestParamInfo<std::tuple<Way, int>>& info) {
  return std::get<0>(info.param).name + std::to_string(std::get<1>(info.param));
}
/// The same for tests that say themselves of how many ranks they are.
class EveryWay : public testing::TestWithParam<Way> {
 protected:
  static void spawn(int n, const std::function<void()>& body, const SpawnOptions& options = {}) {
    GetParam().spawn(n, body, options);
  }
};
inline std::string name_way(const testing::TestParamInfo<Way>& info) { return info.param.name; }

}  // namespace tutti::test
