// Sparse COO tensors, as the operators of this folder see them.
//
// Note [Gradients of sparse tensors]: a gradient is a function of the position in the tensor, and so has the tensor's
// shape. It is dense, or sparse, where positions that have no entry (and matter to nobody, since the tensor has none
// there either) count as zero and entries of one position add up, as always. The gradient of an entry is then the
// gradient at its position: duplicates all get the same. An operator that treats duplicates as different things, which
// only sparse_values is, has a gradient only where there are none.
#pragma once

#include <vector>

#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti {

inline const SparseParts& sparse_parts(const Tensor& x) { return *impl(x)->sparse; }
inline int64_t entries_of(const Tensor& x) { return sparse_parts(x).values.size(0); }

/// The row-major number of each entry's position among the sparse dims.
std::vector<int64_t> entry_positions(const Tensor& indices, const Shape& sizes);
/// Sorted by position, duplicates added up in the order they stand in. No autograd.
Tensor coalesced(const Tensor& x);
/// Whether two entries have the same position.
bool has_duplicates(const Tensor& x);

/// A sparse tensor with x's shape and indices and these values; differentiable in the values.
Tensor sparse_with_values(const Tensor& x, const Tensor& values);
/// The elements of x (dense or sparse) at these positions: [n, dense dims...]; differentiable in x.
Tensor sparse_gather(const Tensor& x, const Tensor& indices);
/// A copy of a sparse tensor.
Tensor sparse_copy(const Tensor& x, DType dtype, Device device);
/// Of a sparse matrix.
Tensor sparse_transpose(const Tensor& x);

/// The dtype of the loops: f32, f64, i64, c64 or c128.
DType computing_dtype(DType dtype);

}  // namespace tutti
