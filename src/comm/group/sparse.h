// all_reduce of sparse tensors.
#pragma once

#include "tutti/comm/collectives.h"

namespace tutti::comm {

/// Ranks may hold different indices, and any number of them, with duplicates; afterwards all hold the same, coalesced,
/// with the bits that all_reduce of the dense tensors would give.
void all_reduce_sparse(const Tensor& x, const ReduceOptions& options);
/// The same of several tensors, some of which are sparse, without waiting. See Note [Sparse all_reduce in steps].
Work all_reduce_sparse_async(const TensorList& xs, const ReduceOptions& options);

}  // namespace tutti::comm
