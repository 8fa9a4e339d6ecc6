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

/// What `tutti run` wants to know of a rank: that its program uses Tutti, and that it has joined the world. If no rank
/// joins, the copies of the program have nothing to do with each other, which the command reports.
enum class LauncherNote { uses_tutti, joined };
/// Writes the note into the open file of `tutti run` that TUTTI_JOINED names by its path in /proc. Does nothing where
/// there is none, or where this process cannot open it (a container in between).
void tell_launcher(LauncherNote note);

}  // namespace tutti
