#include <limits>

#include "base/check.h"
#include "ops/sparse/arithmetic.h"
#include "pointwise/signature.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

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

namespace tutti {

// ---- Short forms

Tensor sub(const Tensor& x, const Tensor& y, const Tensor& alpha) { return addcmul(x, y, alpha, -1); }

Tensor nan_to_num(const Tensor& x, const Tensor& nan) {
  check<ValueError>(x.defined(), "nan_to_num", "input 0 is undefined: it was never given a value");
  double most = x.dtype() == DType::f64    ? std::numeric_limits<double>::max()
                : x.dtype() == DType::f16  ? 65504
                : x.dtype() == DType::bf16 ? 0x1.fep127
                : x.is_floating()          ? static_cast<double>(std::numeric_limits<float>::max())
                                           : 0;
  // Whole numbers are finite: what stands for infinities must not make them floats.
  if (!x.is_floating()) return nan_to_num(x, 0, 0, 0);
  return nan_to_num(x, nan, most, -most);
}

}  // namespace tutti
