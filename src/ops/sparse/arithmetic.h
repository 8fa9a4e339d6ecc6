// Arithmetic of sparse tensors: what the public functions of the same names do where an input is sparse.
#pragma once

#include "pointwise/signature.h"
#include "tutti/tensor.h"

namespace tutti {

/// If an input is sparse and the operator takes such (its signature says how): sets the result and returns true.
///   sum, difference   sparse ± sparse        sparse, coalesced
///                     sparse ± dense         dense
///   product           sparse · number        sparse (numbers and zero-dimensional tensors; quotients too)
///                     sparse · dense         sparse: the values times the elements at their positions
///                     sparse · sparse        sparse, with the entries of the first
/// All of it is differentiable; see Note [Gradients of sparse tensors].
bool sparse_binary(const pointwise::PointwiseOperator& op, const Tensor& a, const Tensor& b, Tensor& result);
/// The same in place: dense ± sparse, sparse ± sparse, sparse · number. A sparse tensor changed in place must not
/// require a gradient.
bool sparse_binary_(const pointwise::PointwiseOperator& op, Tensor& a, const Tensor& b);
/// Operators that keep zero are applied to the values; linear ones need not add duplicates first.
bool sparse_unary(const pointwise::PointwiseOperator& op, const Tensor& x, Tensor& result);
bool sparse_unary_(const pointwise::PointwiseOperator& op, Tensor& x);
/// The product of some of an operator's inputs, in the dtype that all of them together are computed in.
Tensor sparse_product(const pointwise::PointwiseOperator& op, std::initializer_list<const Tensor*> all,
                      std::initializer_list<const Tensor*> factors);
/// Makes a sparse tensor that takes no part in autograd what `result` is: a sparse tensor of its shape.
void sparse_assign(Tensor& a, const Tensor& result, const char* name);
/// A sparse tensor of x's shape and sparse dims without an entry.
Tensor sparse_zeros(const Tensor& x, DType dtype, Device device);

/// Matrix product where one or both are sparse; the result is dense. A sparse operand's gradient is sparse.
Tensor sparse_mm(const char* name, const Tensor& a, const Tensor& b);

}  // namespace tutti
