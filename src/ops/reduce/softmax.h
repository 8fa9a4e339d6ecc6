// softmax, log_softmax and logsumexp: the kernels.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "tutti/dtype.h"

namespace tutti::reduction {

enum class Exponential : uint8_t { softmax, log_softmax, logsumexp };

// x is [length, columns], rows `stride` apart, in f32 or f64; y is the same (logsumexp: one number a column). Each
// column is one softmax: columns == 1 with stride == 1 is a plain row. x and y may be the same memory.
TUTTI_ISA_DECLARE(run_softmax, void,
                  (Exponential what, DType dtype, const void* x, void* y, int64_t length, int64_t columns,
                   int64_t stride))
// From the gradient g of y and y itself to x's. g and out may be the same memory.
TUTTI_ISA_DECLARE(run_softmax_gradient, void,
                  (Exponential what, DType dtype, const void* g, const void* y, void* out, int64_t length,
                   int64_t columns, int64_t stride))

/// Columns that the kernels can take at a time.
inline constexpr int64_t kSoftmaxColumns = 256;

}  // namespace tutti::reduction
