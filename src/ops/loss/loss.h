// What the losses share.
#pragma once

#include "base/isa.h"
#include "tutti/dtype.h"
#include "tutti/ops/loss.h"

namespace tutti {

/// The loss of each element, reduced as asked.
Tensor reduce_loss(const Tensor& loss, Reduction reduction);
/// Throws unless the inputs are dense floating-point tensors.
void check_loss_input(const Tensor& x, const char* name);
/// Throws an IndexError that names the first target outside of [0, classes) which is not `ignore`.
void check_targets(const int64_t* target, int64_t count, int64_t classes, int64_t ignore, const char* name);
/// Whether autocast has given an input less precision than losses need: they are full_precision, whatever they are made
/// of.
bool lowered(const Tensor& input);
template <class... T>
bool lowered(const Tensor& input, const T&... others) {
  return lowered(input) || (lowered(others) || ...);
}
Tensor in_f32(const Tensor& x);

/// y[i] = exp(x[i] - shift) · scale. f32 or f64.
TUTTI_ISA_DECLARE(shifted_exp_row, void,
                  (DType dtype, const void* x, double shift, double scale, void* y, int64_t count))
/// y[i] = exp(x[i] - shift[i]) · scale[i]
TUTTI_ISA_DECLARE(shifted_exp_columns, void,
                  (DType dtype, const void* x, const void* shift, const void* scale, void* y, int64_t count))

}  // namespace tutti
