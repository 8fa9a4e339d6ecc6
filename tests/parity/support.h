// What several sections of docs/parity.md use.
#pragma once

#include <cstddef>

#include "tutti/parallel/data_parallel.h"

namespace tutti::test {

/// Logical CPU devices that stand for two GPUs.
inline const parallel::Devices kTwo = {"cpu:0", "cpu:1"};

/// A rank as an index.
inline size_t at(int k) { return static_cast<size_t>(k); }

}  // namespace tutti::test
