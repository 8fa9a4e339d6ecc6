// Running sums and products along one dim.
#pragma once

#include "base/isa.h"
#include "tutti/tensor.h"

namespace tutti::reduction {

/// The product of what comes before each element along dim (behind it, if reverse): 1 for the first. Differentiable.
Tensor exclusive_cumprod(const Tensor& x, int64_t dim, bool reverse);

/// Sequences of `length` elements that are `stride` apart; `count` of them, their beginnings `pitch` apart.
struct Sequences {
  int64_t length, stride, count, pitch;
  bool reverse;
};
inline constexpr int64_t kMaxSequences = 256;  // that lie side by side (pitch 1)
inline constexpr int64_t kRowSequences = 4;    // otherwise

enum class Running : uint8_t { sum, prod };

// Elements are f32, f64, i64, c64 or c128. Floats are added and multiplied in f64, whatever they are stored as.
TUTTI_ISA_DECLARE(run_cumulative, void, (Running running, DType dtype, const void* x, void* y, const Sequences& s))
/// y[k] = b[k] + a·y[the one before k], where a is that one's a (`source`) or a[k].
TUTTI_ISA_DECLARE(run_recurrence, void,
                  (DType dtype, const void* a, const void* b, void* y, const Sequences& s, bool source))

}  // namespace tutti::reduction
