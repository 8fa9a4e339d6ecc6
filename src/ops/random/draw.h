// Taking numbers from the calling thread's generator.
#pragma once

#include "tutti/random.h"

namespace tutti {

inline constexpr int64_t kRandomGrain = 16384;  // elements a thread takes at a time; a multiple of a group

/// Enough blocks for this many elements of one word (32 bits) or two each.
Generator::State reserve_words(int64_t elements, int64_t words);
/// The same as an operator, which a trace sees: i64 [2], the seed and the position. One word an element.
Tensor random_state(int64_t elements, Device device);
/// p·2^32, at most 2^32 - 1: a word below it is dropped.
uint32_t drop_threshold(double p);

}  // namespace tutti
