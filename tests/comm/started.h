// Ranks that have nothing in common but what is in their environment.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ports.h"
#include "tutti/context.h"

namespace tutti::test {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// A process with these variables, in a network namespace where one is named, that runs body as if it were its main.
inline pid_t start_one(const Variables& variables, const std::function<void()>& body, const std::string& network = {}) {
  std::fflush(nullptr);
  pid_t pid = ::fork();
  if (pid != 0) return pid;
  if (!network.empty()) {
    int fd = ::open(("/var/run/netns/" + network).c_str(), O_RDONLY | O_CLOEXEC);
    // What is in /sys shows the network of whoever mounted it.
    if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0 || ::unshare(CLONE_NEWNS) != 0 ||
        ::mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) != 0 || ::umount2("/sys", MNT_DETACH) != 0 ||
        ::mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0)
      ::_exit(3);
  }
  context().world = nullptr;  // of the process that it was forked from
  for (auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  try {
    body();
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
  std::fflush(nullptr);
  std::exit(testing::Test::HasFailure() ? 1 : 0);  // as if main had returned
}

/// What mpirun and its like do.
inline void start_with(const std::vector<Variables>& environments, const std::function<void()>& body) {
  std::vector<pid_t> children;
  for (auto& variables : environments) children.push_back(start_one(variables, body));
  for (pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

/// Environments of n ranks that meet at a port of their own, and what else each is told.
inline std::vector<Variables> ranks_of(int n, const std::function<Variables(int)>& more) {
  std::string port = std::to_string(reserved_port());
  std::vector<Variables> environments;
  for (int r = 0; r < n; ++r) {
    environments.push_back({{"RANK", std::to_string(r)},
                            {"WORLD_SIZE", std::to_string(n)},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", port},
                            {"TUTTI_TIMEOUT", "60"}});
    for (auto& variable : more(r)) environments.back().push_back(variable);
  }
  return environments;
}

}  // namespace tutti::test
