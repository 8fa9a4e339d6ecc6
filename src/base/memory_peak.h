// How much memory there has been in use at most.
#pragma once

#include <cstdint>

namespace tutti::memory {

/// The most bytes in use (statistics().bytes_in_use) whenever a large block was given out since reset_peak(), or the
/// program's start.
int64_t peak_bytes();
void reset_peak();

}  // namespace tutti::memory
