// A process in which threads cannot be had.
#pragma once

#include <sys/resource.h>

#include <fstream>

#include "tutti/context.h"

#if !defined(TUTTI_SANITIZE_ADDRESS) && !defined(TUTTI_SANITIZE_THREAD)  // which need more memory than there is then
#define TUTTI_TEST_FEW_THREADS 1
#endif

namespace tutti::test {

/// From now on there is memory for the stacks of a few more threads only: for a process that a death test has started.
inline void leave_few_threads() {
  set_num_threads(1);  // OpenMP ends a process that gets no threads
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{.rlim_cur = pages * 4096 + (rlim_t{64} << 20), .rlim_max = RLIM_INFINITY};
  ::setrlimit(RLIMIT_AS, &limit);
}

}  // namespace tutti::test
