#include "base/check.h"
#include "ops/sparse/arithmetic.h"
#include "pointwise/signature.h"
#include "tensor/impl.h"

namespace tutti::pointwise {
namespace {

bool any_sparse(std::initializer_list<const Tensor*> inputs) {
  for (const Tensor* x : inputs)
    if (x->defined() && impl(*x)->layout == Layout::sparse) return true;
  return false;
}

[[noreturn]] void not_for_sparse(const PointwiseOperator& op) {
  fail<ValueError>(op.name, "takes no sparse tensors here; apply it to the values(), or to_dense() first");
}

}  // namespace

Tensor apply(const PointwiseOperator& op, std::initializer_list<const Tensor*> inputs) {
  if (!any_sparse(inputs)) [[likely]]
    return call(op, inputs);
  Tensor result;
  const Tensor* const* x = inputs.begin();
  bool done = op.arity == 2 ? sparse_binary(op.name, *x[0], *x[1], result)
                            : op.arity == 1 && sparse_unary(op.name, *x[0], result);
  if (!done) not_for_sparse(op);
  return result;
}

Tensor& apply_out(const PointwiseOperator& op, std::initializer_list<const Tensor*> inputs, Tensor& out) {
  if (!any_sparse(inputs) && !(out.defined() && impl(out)->layout == Layout::sparse)) [[likely]]
    return call_out(op, inputs, out);
  const Tensor* const* x = inputs.begin();
  if (op.arity != 2 || !x[0]->is_same(out) || !sparse_binary_(op.name, out, *x[1])) not_for_sparse(op);
  return out;
}

}  // namespace tutti::pointwise
