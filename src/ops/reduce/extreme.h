// Where the largest and smallest elements are.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "tutti/dtype.h"

namespace tutti::reduction {

/// Columns that of_columns can take at a time.
inline constexpr int64_t kSearchColumns = 512;

/// Elements are f32, f64 or i64. The first NaN counts as the extreme; of equal elements the first does.
struct Extremes {
  // The extreme of `count` elements that lie side by side.
  void (*of_row)(const void* x, int64_t count, void* value, int64_t* index);
  // Of each of `columns` columns: carries `values` and `indices` on through `rows` rows, the first of which has the
  // index `first`. The very first call (first == 0) sets them.
  void (*of_columns)(const void* x, int64_t stride, int64_t rows, int64_t columns, int64_t first, void* values,
                     int64_t* indices);
  // Takes over what is more extreme in the results of later rows.
  void (*merge)(const void* values, const int64_t* indices, int64_t count, void* into, int64_t* into_indices);
};
TUTTI_ISA_DECLARE(find_extremes, const Extremes*, (DType element, bool largest))

}  // namespace tutti::reduction
