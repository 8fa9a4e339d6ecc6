// Numbers that come from elsewhere: from ranks, which may be processes, and from a peer's Python program.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/comm/group.h"

namespace bench {

double seconds();
double median(std::vector<double> list);

using Spawn = void (*)(int, const std::function<void()>&, const tutti::SpawnOptions&);

/// What body returned on rank 0 of `ranks` ranks; nothing where it failed.
std::vector<double> numbers_of_ranks(Spawn spawn, int ranks, const std::function<std::vector<double>()>& body);

/// The Python interpreter that peers run on: the one that TUTTI_BENCH_PYTHON names, or the system's.
std::string python();

/// Returns the numbers that a Python program prints; none where it or its libraries are not installed.
std::vector<double> numbers_of_python(const std::string& program, const std::string& arguments);

}  // namespace bench
