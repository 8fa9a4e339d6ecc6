#include <limits>

#include "base/check.h"
#include "base/named.h"
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

[[noreturn]] void not_for_sparse(const PointwiseOperator& op, std::initializer_list<const Tensor*> inputs) {
  std::string list;
  for (const Tensor* x : inputs) list += (list.empty() ? "" : ", ") + describe(*x);
  fail<ValueError>(op.name,
                   "takes no sparse tensors here ({}): apply it to the values() of a coalesced one, where zeros stay "
                   "zeros, or to_dense() it first",
                   list);
}

// x + value·y·z with sparse tensors among them: what add(x, y, alpha) and its kin are made of. Sets the second summand.
bool sparse_addcmul(const PointwiseOperator& op, const Tensor* const* x, Tensor& summand) {
  if (op.signature.sparse != SparseForm::sum_of_products) return false;
  summand = sparse_product(op, {x[0], x[1], x[2], x[3]}, {x[1], x[2], x[3]});
  return true;
}

}  // namespace

Tensor apply(const PointwiseOperator& op, std::initializer_list<const Tensor*> inputs) {
  if (!any_sparse(inputs)) [[likely]]
    return call(op, inputs);
  Tensor result;
  const Tensor* const* x = inputs.begin();
  Tensor summand;
  if (sparse_addcmul(op, x, summand)) return named(op.name, [&] { return add(*x[0], summand); });
  bool done =
      op.arity == 2 ? sparse_binary(op, *x[0], *x[1], result) : op.arity == 1 && sparse_unary(op, *x[0], result);
  if (!done) not_for_sparse(op, inputs);
  return result;
}

Tensor& apply_out(const PointwiseOperator& op, std::initializer_list<const Tensor*> inputs, Tensor& out) {
  if (!any_sparse(inputs) && !(out.defined() && impl(out)->layout == Layout::sparse)) [[likely]]
    return call_out(op, inputs, out);
  const Tensor* const* x = inputs.begin();
  Tensor summand;
  if (x[0]->is_same(out) && sparse_addcmul(op, x, summand)) return add_(out, summand);
  bool done = x[0]->is_same(out) && (op.arity == 2   ? sparse_binary_(op, out, *x[1])
                                     : op.arity == 1 ? sparse_unary_(op, out)
                                                     : false);
  if (!done) not_for_sparse(op, inputs);
  return out;
}

}  // namespace tutti::pointwise

namespace tutti {

// ---- Short forms

Tensor add(const Tensor& x, const Tensor& y, const Tensor& alpha) {
  return named("add", [&] { return addcmul(x, y, alpha); });
}

Tensor sub(const Tensor& x, const Tensor& y, const Tensor& alpha) {
  return named("sub", [&] { return addcmul(x, y, alpha, -1); });
}

Tensor nan_to_num(const Tensor& x, const Tensor& nan) {
  check<ValueError>(x.defined(), "nan_to_num", "input 0 is undefined: it was never given a value");
  double most = x.dtype() == DType::f64    ? std::numeric_limits<double>::max()
                : x.dtype() == DType::f16  ? 65504
                : x.dtype() == DType::bf16 ? 0x1.fep127
                : x.is_floating()          ? static_cast<double>(std::numeric_limits<float>::max())
                                           : 0;
  // Whole numbers are finite: what stands for infinities must not make them floats.
  if (x.is_complex()) return complex(nan_to_num(real(x), nan), nan_to_num(imag(x), nan));
  if (!x.is_floating()) return x.dtype() == DType::boolean ? clone(x) : nan_to_num(x, 0, 0, 0);
  return nan_to_num(x, nan, most, -most);
}

}  // namespace tutti
