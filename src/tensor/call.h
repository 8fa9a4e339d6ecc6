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
/// The operator behind clone(), contiguous() and to(): a copy, perhaps of another dtype or layout.
const Operator& clone_operator();

/// call_out() of an operator that gives values and indices.
inline ValuesIndices& call_out(const Operator& op, std::initializer_list<const Tensor*> inputs, ValuesIndices& out,
                               Attributes attributes) {
  Tensor results[] = {out.values, out.indices};
  call(op, {inputs.begin(), inputs.size()}, attributes, results);
  out = {std::move(results[0]), std::move(results[1])};
  return out;
}

}  // namespace tutti
