// What a starter of many processes (tutti run, mpirun, srun) says of this one in its environment.
#pragma once

#include <optional>
#include <span>

namespace tutti {

struct Launched {
  int rank, size;
};
/// None: it was not started as one of several, or the environment does not say so in numbers that make sense, which
/// world() complains of.
std::optional<Launched> launched();

/// The variables that say so; the first pair that is there counts.
struct LauncherVariables {
  const char *rank, *size;
};
std::span<const LauncherVariables> launcher_variables();

}  // namespace tutti
