// The loops of sparse times dense.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "tutti/dtype.h"

namespace tutti {

/// Rows row_begin ... row_end of out = S·dense. Row r of S has entries starts[r] ... starts[r + 1], each a column and a
/// value; dense and out have `width` columns. The dtype is one of f32, f64, i64, c64, c128.
TUTTI_ISA_DECLARE(sparse_rows_product, void,
                  (DType dtype, const int64_t* starts, const int64_t* columns, const void* values, const void* dense,
                   int64_t width, int64_t row_begin, int64_t row_end, void* out))

/// out[k] = Σ_j a[rows[k], j]·conj(b[columns[k], j]) for k in begin ... end.
TUTTI_ISA_DECLARE(sampled_rows_product, void,
                  (DType dtype, const int64_t* rows, const int64_t* columns, const void* a, const void* b,
                   int64_t width, int64_t begin, int64_t end, void* out))

}  // namespace tutti
