// The memory of tensors on CPU devices: how much there is, and giving back what is kept for reuse. The counters are the
// process's: threads share them, and so do ranks that are threads. Memory that others own (from_blob, DLPack) is not
// counted. Blocks come in classes of sizes, so that bytes are up to a quarter more than were asked for.
#pragma once

#include <cstdint>

namespace tutti::memory {

struct Statistics {
  int64_t bytes_in_use;  // given out and not yet returned
  int64_t bytes_cached;  // returned, and kept for the next of their size: blocks of 32 KiB and more
  /// The most in use since reset_peak() or the program's start, whenever a block of 32 KiB or more was given out.
  int64_t bytes_peak;
};
Statistics statistics();
/// From now on bytes_peak is the most since now.
void reset_peak();
/// Gives what is kept for reuse back to the system: all large blocks, and the calling thread's small ones.
void empty_cache();

}  // namespace tutti::memory
