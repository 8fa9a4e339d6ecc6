// Attention: kernels of one block of scores.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "tutti/dtype.h"

namespace tutti::attending {

/// Scores of `rows` queries and `columns` keys, in f32 or f64. Row r counts to `first_limit + r` (causal) if that is
/// less than `columns`.
struct Block {
  DType dtype;
  int64_t rows, columns, row_stride;  // of the scores
  int64_t first_limit;                // INT64_MAX / 2: no limit
  const bool* allowed = nullptr;      // a mask, or
  const void* added = nullptr;        // one of numbers
  int64_t mask_row = 0;               // from row to row of the mask; columns lie next to each other
};

/// scores → exp(scores - top), with top the largest of this and all blocks before. top and sum are brought up to date;
/// what was computed with the old top is to be multiplied by `correction`.
TUTTI_ISA_DECLARE(attend_forward, void, (const Block& b, void* scores, void* top, void* sum, void* correction))
/// x[r] · factor[r] for rows of `width`.
TUTTI_ISA_DECLARE(scale_rows, void,
                  (DType dtype, void* x, int64_t row_stride, int64_t rows, int64_t width, const void* factor))
/// log of the sums; factors become 1 / sum, or 0 where nothing was attended to.
TUTTI_ISA_DECLARE(finish_rows, void, (DType dtype, const void* top, void* sum_to_factor, void* log_sums, int64_t rows))
/// scores → p = exp(scores - log_sums), and grads (of p) → p · (grads - delta) · scale.
TUTTI_ISA_DECLARE(attend_backward, void,
                  (const Block& b, void* scores, void* grads, const void* log_sums, const void* delta, double scale))
/// delta[r] = Σ x[r]·y[r], rows of `width`, each with its own stride.
TUTTI_ISA_DECLARE(dot_rows, void,
                  (DType dtype, const void* x, int64_t x_row, const void* y, int64_t y_row, int64_t rows, int64_t width,
                   void* delta))

}  // namespace tutti::attending
