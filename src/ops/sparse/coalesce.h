// Positions and rows of sparse tensors.
#pragma once

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "tensor/impl.h"

namespace tutti {

/// Bytes of one entry's values.
inline size_t row_bytes(const Tensor& values) {
  size_t bytes = values.element_size();
  for (size_t d = 1; d < values.sizes().size(); ++d) bytes *= static_cast<size_t>(values.sizes()[d]);
  return bytes;
}

/// Calls body(begin, end) for pieces of [0, rows) that hold a fair amount of bytes each.
template <class Body>
void for_rows(int64_t rows, size_t bytes, Body&& body) {
  parallel_for(rows, std::max<int64_t>(1, static_cast<int64_t>(65536 / std::max<size_t>(bytes, 16))),
               std::forward<Body>(body));
}

/// Takes row-major positions apart into indices [dims, n].
void write_indices(const std::vector<int64_t>& positions, const Shape& sizes, const Tensor& indices);

/// The order that sorts positions, equal ones staying as they are.
std::vector<int64_t> sorting_order(const std::vector<int64_t>& positions);

}  // namespace tutti
