// The speed of memory, as memcpy by several threads sees it: what memory-bound work is compared with.
#pragma once

#include <cstdint>

#include "bench/support/measure.h"

namespace bench {

/// Copies `bytes` from one buffer to another; it moves twice that, a read and a write.
Contender copy_contender(int64_t bytes, int threads);

}  // namespace bench
