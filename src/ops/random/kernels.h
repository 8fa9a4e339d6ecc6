// The loops that fill memory with random numbers. See Note [Random streams] in philox.h.
#pragma once

#include <cstdint>

#include "base/isa.h"

namespace tutti {

/// Elements begin ... begin + count-1 of what an operator draws; `begin` is a multiple of 64.
struct RandomRange {
  uint64_t seed, position;
  int64_t begin, count;
};

inline constexpr int64_t kBlocksInGroup = 16;
inline constexpr int64_t kElementsOfOneWord = 64;  // in a group
inline constexpr int64_t kElementsOfTwoWords = 32;

/// Groups first ... of 64 words each, in the order of Note [Random streams].
TUTTI_ISA_DECLARE(random_words, void,
                  (uint64_t seed, uint64_t position, int64_t first_group, int64_t groups, uint32_t* out))

/// low + u·width, but at most `last`, for u of the given number of bits in [0, 1). One word an element.
TUTTI_ISA_DECLARE(random_uniform_f32, void,
                  (const RandomRange& range, float low, float width, float last, int bits, float* out))
/// u has 53 bits. Two words an element.
TUTTI_ISA_DECLARE(random_uniform_f64, void,
                  (const RandomRange& range, double low, double width, double last, double* out))
/// mean + std·z by Box and Muller. One word an element (f32), or two (f64).
TUTTI_ISA_DECLARE(random_normal_f32, void, (const RandomRange& range, float mean, float std, float* out))
TUTTI_ISA_DECLARE(random_normal_f64, void, (const RandomRange& range, double mean, double std, double* out))
/// Exponential with rate 1. Two words an element.
TUTTI_ISA_DECLARE(random_exponential_f64, void, (const RandomRange& range, double* out))
/// 1 with probability 1 - threshold / 2^32, else 0. One word an element.
TUTTI_ISA_DECLARE(random_mask, void, (const RandomRange& range, uint32_t threshold, uint8_t* out))
/// scale·in where that mask is 1, else 0.
TUTTI_ISA_DECLARE(random_drop_f32, void,
                  (const RandomRange& range, uint32_t threshold, float scale, const float* in, float* out))
TUTTI_ISA_DECLARE(random_drop_f64, void,
                  (const RandomRange& range, uint32_t threshold, double scale, const double* in, double* out))

}  // namespace tutti
