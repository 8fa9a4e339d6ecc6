// The parts of call() that only some modes need.
#pragma once

#include "tutti/operator.h"

namespace tutti {

/// Autocast and tracing. True: the call has been done.
bool call_in_mode(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
                  std::span<Tensor> outputs);

/// Copies values, converting dtype; shapes must agree. No autograd.
void copy_into(const Tensor& to, const Tensor& from);
/// The operator behind Tensor::copy_(): its input is copied into the output, which must be given.
const Operator& copy_operator();

}  // namespace tutti
