#include "ops/sparse/arithmetic.h"

#include <cstring>

#include "base/check.h"
#include "base/named.h"
#include "ops/sparse/coalesce.h"
#include "ops/sparse/sparse.h"
#include "tensor/call.h"
#include "tutti/operator.h"

namespace tutti {

using pointwise::SparseForm;

namespace {

// ---- Sums

Tensor joined(const Tensor& a, const Tensor& b, int64_t dim, DType dtype) {
  Shape sizes = a.sizes();
  sizes[static_cast<size_t>(dim)] += b.size(dim);
  Tensor all = make_tensor(sizes, dtype, a.device());
  if (a.device().is_meta()) return all;
  copy_into(narrow(all, dim, 0, a.size(dim)), a);
  copy_into(narrow(all, dim, a.size(dim), b.size(dim)), b);
  return all;
}

void add_entries(const Call& c) {
  NoGrad guard;
  const SparseParts &a = sparse_parts(c.input(0)), &b = sparse_parts(c.input(1));
  Tensor indices = joined(a.indices, b.indices, 1, DType::i64);
  Tensor values = joined(a.values, b.values, 0, promote(a.values.dtype(), b.values.dtype()));
  c.output() = coalesced(make_sparse(indices, values, c.input(0).sizes(), false));
}

const Operator sparse_add_op{
    .name = "sparse_add",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = c.input(0).sizes(),
                    .dtype = promote(c.input(0).dtype(), c.input(1).dtype()),
                    .device = c.input(0).device()};
        },
    .cpu = add_entries,
    .meta = add_entries,
    .gradient =
        [](GradientCall& c) {
          c.set(0, c.grad());
          c.set(1, c.grad());
        },
    .dynamic_shape = true,
    .sparse = true,
};

// dense + sparse, also in place.
const Operator sparse_add_dense_op{
    .name = "sparse_add_dense",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = c.input(0).sizes(),
                    .dtype = promote(c.input(0).dtype(), c.input(1).dtype()),
                    .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          const Tensor &dense = c.input(0), &out = c.output();
          if (out.numel() == 0) return;
          bool in_place = dense.shares_storage(out) && dense.raw_data() == out.raw_data();
          if (!in_place) copy_into(out, dense);
          Tensor x = coalesced(c.input(1));
          auto positions = entry_positions(sparse_parts(x).indices, x.sizes());
          Tensor values = sparse_parts(x).values.detach().to(out.dtype()).contiguous();
          if (values.shares_storage(out)) values = values.clone();
          if (values.numel() == 0) return;
          int64_t width = values.numel() / values.size(0);
          with_type(out.dtype(), [&]<class T>() {
            const T* from = values.data<T>();
            T* to = out.data<T>();
            for_rows(values.size(0), row_bytes(values), [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                T* row = to + positions[static_cast<size_t>(i)] * width;
                for (int64_t j = 0; j < width; ++j) row[j] = static_cast<T>(row[j] + from[i * width + j]);
              }
            });
          });
        },
    .gradient =
        [](GradientCall& c) {
          c.set(0, c.grad());
          c.set(1, c.grad());
        },
    .in_place = 1,
    .sparse = true,
};

// As the operator computes it. Numbers do as they are: they bring no dtype with them that the others have not.
Tensor in_dtype(const Tensor& x, DType dtype) { return x.is_number() || x.dtype() == dtype ? x : cast(x, dtype); }

Tensor dense_form(const Tensor& x) { return x.is_sparse() ? to_dense(x) : x; }

void check_alike(const char* name, const Tensor& a, const Tensor& b) {
  check<DeviceError>(a.device() == b.device() || a.is_number() || b.is_number(), name,
                     "inputs are on different devices: {}, {}", a, b);
}

bool fits_into(const Shape& small, const Shape& large) {
  if (small.size() > large.size()) return false;
  size_t missing = large.size() - small.size();
  for (size_t d = 0; d < small.size(); ++d)
    if (small[d] != 1 && small[d] != large[d + missing]) return false;
  return true;
}

bool is_scalar(const Tensor& x) { return !x.is_sparse() && x.dim() == 0; }

// a + b, or a - b if `negative`.
Tensor add_sparse(const char* name, const Tensor& left, const Tensor& right, DType dtype, bool negative) {
  check_alike(name, left, right);
  if (left.is_number() || right.is_number()) {
    Tensor x = dense_form(left), y = dense_form(right);
    return negative ? tutti::sub(x, y) : tutti::add(x, y);
  }
  Tensor a = in_dtype(left, dtype), b = in_dtype(right, dtype);
  if (negative) b = neg(b);
  if (a.is_sparse() && b.is_sparse()) {
    check<ShapeError>(a.sizes() == b.sizes() && a.sparse_dim() == b.sparse_dim(), name,
                      "sparse tensors must have the same shape and sparse dims: {} ({} sparse), {} ({} sparse)", a,
                      a.sparse_dim(), b, b.sparse_dim());
    return call(sparse_add_op, {&a, &b});
  }
  const Tensor &sparse = a.is_sparse() ? a : b, &dense = a.is_sparse() ? b : a;
  if (!fits_into(dense.sizes(), sparse.sizes())) return tutti::add(to_dense(sparse), dense);
  Tensor full = expand(dense, sparse.sizes());
  return call(sparse_add_dense_op, {&full, &sparse});
}

void check_changeable(const char* name, const Tensor& x, const Tensor& by) {
  check<GradError>(
      !grad_enabled() || !(x.requires_grad() || by.requires_grad()), name,
      "{} takes part in autograd and cannot be changed in place; use the out-of-place form, or do it inside NoGrad", x);
}

// The dtype that the dense operator would compute in.
DType computed_in(const pointwise::PointwiseOperator& op, std::initializer_list<const Tensor*> inputs) {
  return pointwise::common_dtype(op.name, op.signature, {inputs.begin(), inputs.size()});
}

// ---- Products

// Where gradients will be asked for, entries must be one to a position: see Note [Gradients of sparse tensors].
Tensor canonical(const Tensor& x, const Tensor& other) {
  return grad_enabled() && (x.requires_grad() || other.requires_grad()) ? coalesce(x) : x;
}

Tensor multiply_sparse(const Tensor& x, const Tensor& y) {
  Tensor a = canonical(x, y);
  if (is_scalar(y)) return sparse_with_values(a, mul(sparse_values(a), y));
  check_alike("mul", x, y);
  check<ShapeError>(y.is_sparse() ? x.sizes() == y.sizes() : fits_into(y.sizes(), x.sizes()), "mul",
                    "{} cannot be multiplied by {}: sparse tensors are not broadcast", x, y);
  Tensor b = y.is_sparse() ? y : expand(y, x.sizes());
  return sparse_with_values(a, mul(sparse_values(a), sparse_gather(b, sparse_parts(a).indices)));
}

Tensor divide_sparse(const Tensor& x, const Tensor& y) {
  check<ValueError>(
      x.is_sparse() && is_scalar(y), "div",
      "{} / {}: sparse tensors are divided by numbers only (elsewhere the result would not be sparse); use to_dense()",
      x, y);
  Tensor a = canonical(x, y);
  return sparse_with_values(a, div(sparse_values(a), y));
}

}  // namespace

Tensor sparse_zeros(const Tensor& x, DType dtype, Device device) {
  const SparseParts& parts = sparse_parts(x);
  Shape sizes = parts.values.sizes();
  sizes[0] = 0;
  return make_sparse(make_tensor({parts.indices.size(0), 0}, DType::i64, device), make_tensor(sizes, dtype, device),
                     x.sizes(), true);
}

void sparse_assign(Tensor& a, const Tensor& result, const char* name) {
  check_changeable(name, a, result);
  NoGrad guard;
  check<ShapeError>(result.is_sparse(), name, "{} cannot become the dense result; use the out-of-place form", a);
  check<DTypeError>(category(a.dtype()) >= category(result.dtype()), name,
                    "the result is {} and cannot be written into {}", result.dtype(), a);
  Tensor fresh = cast(result, a.dtype());
  // The new values carry the count of writes on, so that whoever saved `a` for backward notices.
  fresh.set_version(a.version());
  *impl(a)->sparse = sparse_parts(fresh);
  versioned_storage(impl(a))->wrote(name);
}

bool sparse_binary(const pointwise::PointwiseOperator& op, const Tensor& a, const Tensor& b, Tensor& result) {
  if (!a.defined() || !b.defined() || (!a.is_sparse() && !b.is_sparse())) return false;
  switch (op.signature.sparse) {
    case SparseForm::sum:
    case SparseForm::difference:
      result = named(op.name, [&] {
        return add_sparse(op.name, a, b, computed_in(op, {&a, &b}), op.signature.sparse == SparseForm::difference);
      });
      return true;
    case SparseForm::product: {
      DType dtype = computed_in(op, {&a, &b});
      Tensor x = in_dtype(a, dtype), y = in_dtype(b, dtype);
      result = x.is_sparse() ? multiply_sparse(x, y) : multiply_sparse(y, x);
      return true;
    }
    case SparseForm::quotient:
      result = divide_sparse(a.is_sparse() && is_scalar(b) ? in_dtype(a, computed_in(op, {&a, &b})) : a, b);
      return true;
    default:
      return false;
  }
}

Tensor sparse_product(const pointwise::PointwiseOperator& op, std::initializer_list<const Tensor*> all,
                      std::initializer_list<const Tensor*> factors) {
  DType dtype = computed_in(op, all);
  return named(op.name, [&] {
    Tensor product;
    for (const Tensor* x : factors) {
      Tensor factor = in_dtype(*x, dtype);
      product = product.defined() ? mul(product, factor) : factor;
    }
    return product;
  });
}

bool sparse_binary_(const pointwise::PointwiseOperator& op, Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || (!a.is_sparse() && !b.is_sparse())) return false;
  SparseForm form = op.signature.sparse;
  if (!a.is_sparse()) {
    if (form != SparseForm::sum && form != SparseForm::difference) return false;
    check_alike(op.name, a, b);
    check<ShapeError>(fits_into(b.sizes(), a.sizes()), op.name, "{} cannot be added to {} in place", b, a);
    bool negative = form == SparseForm::difference;
    named(op.name, [&] {
      if (!(b.sizes() == a.sizes()) || computed_in(op, {&a, &b}) != a.dtype()) {
        Tensor term = to_dense(b);
        negative ? a.sub_(term) : a.add_(term);
      } else {
        Tensor term = in_dtype(b, a.dtype());
        if (negative) term = neg(term);
        call_out(sparse_add_dense_op, {&a, &term}, a);
      }
    });
    return true;
  }
  check_changeable(op.name, a, b);
  NoGrad guard;
  Tensor result;
  if (!sparse_binary(op, a, b, result)) return false;
  sparse_assign(a, result, op.name);
  return true;
}

bool sparse_unary(const pointwise::PointwiseOperator& op, const Tensor& x, Tensor& result) {
  SparseForm form = op.signature.sparse;
  if (!x.defined() || !x.is_sparse() || (form != SparseForm::linear && form != SparseForm::keeps_zero)) return false;
  Tensor a = form == SparseForm::linear ? canonical(x, x) : coalesce(x), values = sparse_values(a);
  result = sparse_with_values(a, call(op, {&values}));
  return true;
}

bool sparse_unary_(const pointwise::PointwiseOperator& op, Tensor& x) {
  check_changeable(op.name, x, x);
  NoGrad guard;
  Tensor result;
  if (!sparse_unary(op, x, result)) return false;
  sparse_assign(x, result, op.name);
  return true;
}

}  // namespace tutti
