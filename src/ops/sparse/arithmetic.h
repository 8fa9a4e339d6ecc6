// Arithmetic of sparse tensors: what the public functions of the same names do where an input is sparse.
#pragma once

#include "tutti/tensor.h"

namespace tutti {

/// If an input is sparse and the function ("add", "sub", "mul", "div") is known here: sets the result and returns true.
///   sparse ± sparse        sparse, coalesced
///   sparse ± dense         dense
///   sparse · number        sparse (numbers and zero-dimensional tensors; ÷ too)
///   sparse · dense         sparse: the values times the elements at their positions
///   sparse · sparse        sparse, with the entries of the first
/// All of it is differentiable; see Note [Gradients of sparse tensors].
bool sparse_binary(const char* name, const Tensor& a, const Tensor& b, Tensor& result);
/// The same in place: dense ± sparse, sparse ± sparse, sparse · number. A sparse tensor changed in place must not
/// require a gradient.
bool sparse_binary_(const char* name, Tensor& a, const Tensor& b);
/// Functions that keep zero: "neg", "conj", "abs", "sign", "sqrt", "square", "relu".
bool sparse_unary(const char* name, const Tensor& x, Tensor& result);
/// Makes a sparse tensor that takes no part in autograd what `result` is: a sparse tensor of its shape.
void sparse_assign(Tensor& a, const Tensor& result, const char* name);
/// A sparse tensor of x's shape and sparse dims without an entry.
Tensor sparse_zeros(const Tensor& x, DType dtype, Device device);

/// Matrix product where one or both are sparse; the result is dense. A sparse operand's gradient is sparse.
Tensor sparse_mm(const char* name, const Tensor& a, const Tensor& b);

}  // namespace tutti
