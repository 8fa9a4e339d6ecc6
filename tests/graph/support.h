// What several tests of compiled functions begin with.
#pragma once

#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::test {

/// In f64, the same for the same seed.
inline Tensor numbers(const Shape& sizes, uint64_t seed) {
  manual_seed(seed);
  return randn(sizes, {.dtype = f64});
}
inline Tensor leaf(const Shape& sizes, uint64_t seed) { return numbers(sizes, seed).requires_grad_(); }

/// In f32.
inline Tensor images(const Shape& sizes, uint64_t seed) {
  manual_seed(seed);
  return randn(sizes);
}

/// Some processors have other blocks of channels, which are not kept.
inline bool has_blocks() { return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"); }

}  // namespace tutti::test
