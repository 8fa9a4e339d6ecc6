// Matrix products as operators. All of them are one kernel over gemm(): batches broadcast, and sums of products with a
// vector are products of matrices with one row or column.
#include <cmath>

#include "base/check.h"
#include "base/named.h"
#include "ops/matmul/gemm.h"
#include "ops/reduce/reduce.h"
#include "ops/sparse/arithmetic.h"
#include "pointwise/renamed.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Scales {
  double beta, alpha;
  TUTTI_FIELDS(beta, alpha)
};

// ---- Checks and shapes

void check_defined(const char* name, std::initializer_list<const Tensor*> operands) {
  for (const Tensor* x : operands)
    check<ValueError>(x->defined(), name, "an operand is undefined: it was never given a value");
}

// Here and below tensors are looked into by impl(): small products are so short that a dozen calls to ask for sizes
// would show.
void check_dims(const char* name, const Tensor& a, size_t a_dims, const Tensor& b, size_t b_dims) {
  check<ShapeError>(impl(a)->sizes.size() == a_dims && impl(b)->sizes.size() == b_dims, name,
                    "takes a tensor of {} dims and one of {}, not {} and {}", a_dims, b_dims, a, b);
}

// The last dim of a meets the second to last of b (its only one, if b is a vector).
void check_inner(const char* name, const Tensor& a, const Tensor& b) {
  const Shape& right = impl(b)->sizes;
  int64_t inner = impl(a)->sizes.back(), other = right[right.size() - (right.size() > 1 ? 2 : 1)];
  check<ShapeError>(inner == other, name, "inner sizes {} and {} differ: {}, {}", inner, other, a, b);
}

void check_alike(const char* name, const Tensor& a, const Tensor& b) {
  check<DTypeError>(impl(b)->dtype == impl(a)->dtype, name,
                    "operands must have the same dtype, not {} and {}; cast() one of them", a, b);
  check<DeviceError>(impl(b)->device == impl(a)->device, name,
                     "operands are on different devices: {}, {}; copy them to one with to(device)", a, b);
}

// What `infer` says of all products: one dtype, one device.
TensorSpec spec_of(const Call& c, Shape sizes) {
  const Tensor& a = c.input(c.inputs.size() - 2);
  for (const Tensor* x : c.inputs)
    if (x != &a) check_alike(c.op.name, a, *x);
  return {.sizes = std::move(sizes), .dtype = impl(a)->dtype, .device = impl(a)->device};
}

Shape batch_sizes(const Tensor& x) { return Shape(std::span(x.sizes().data(), x.sizes().size() - 2)); }

Shape batched_sizes(const char* name, const Tensor& a, const Tensor& b) {
  check<ShapeError>(a.dim() >= 2 && b.dim() >= 2, name, "takes matrices or batches of them, not {} and {}", a, b);
  check_inner(name, a, b);
  Shape left = batch_sizes(a), right = batch_sizes(b), sizes = left;
  if (!(left == right)) {
    try {
      sizes = broadcast_shapes(left, right);
    } catch (const ShapeError&) {
      fail<ShapeError>(
          name, "the batches of {} and {} do not broadcast: sizes must be equal or 1, counted from the last", a, b);
    }
  }
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-1));
  return sizes;
}

// c of addmm and baddbmm: broadcast to the result.
void check_added(const Call& c, const Shape& sizes) {
  const Tensor& added = c.input(0);
  bool fits = added.sizes().size() <= sizes.size();
  for (size_t d = 0; fits && d < added.sizes().size(); ++d) {
    int64_t size = added.sizes()[added.sizes().size() - 1 - d];
    fits = size == 1 || size == sizes[sizes.size() - 1 - d];
  }
  check<ShapeError>(fits, c.op.name, "{} cannot be broadcast to the product's shape {}", added, sizes);
  const auto& s = c.as<Scales>();
  auto whole = [](double x) { return x == std::trunc(x) && std::abs(x) < 0x1p63; };
  check<ValueError>(is_differentiable(added.dtype()) || (whole(s.beta) && whole(s.alpha)), c.op.name,
                    "beta {} and alpha {} must be whole numbers for {}", s.beta, s.alpha, added);
}

// ---- The kernel

// Strides of x's batch dims, broadcast to `dims` of them; those of size one count as zero.
Shape batch_strides(const Tensor& x, size_t dims) {
  Shape strides = Shape::filled(dims, 0);
  size_t own = x.sizes().size() - 2;
  for (size_t d = 0; d < own; ++d)
    if (x.sizes()[d] != 1) strides[dims - own + d] = x.strides()[d];
  return strides;
}

// Lets gemm read the summand where it lies if it has rows of neighbouring numbers; else copies it into the output.
void set_added(products::Gemm& g, const Tensor& added, const Tensor& out) {
  const Shape& sizes = added.sizes();
  bool matrix = out.dim() == 2 && !sizes.empty() && sizes.back() == out.size(1) &&
                (added.strides().back() == 1 || out.size(1) == 1);
  if (matrix) {
    g.d = added.raw_data();
    g.d_row = sizes.size() == 2 && sizes[0] != 1 ? added.strides()[0] : 0;
  } else if (added.is_contiguous() && sizes == out.sizes()) {
    g.d = added.raw_data();
    g.d_row = g.columns;
  } else {
    copy_into(out, added);
  }
}

// out = beta·added + alpha·a@b
void multiply(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor* added = nullptr, Scales s = {0, 1}) {
  if (impl(out)->numel == 0) return;
  const Shape &a_sizes = impl(a)->sizes, &a_strides = impl(a)->strides, &b_strides = impl(b)->strides;
  size_t a_dims = a_sizes.size(), b_dims = b_strides.size();
  int64_t columns = impl(b)->sizes.back();
  products::Gemm g{.dtype = impl(out)->dtype,
                   .rows = a_sizes[a_dims - 2],
                   .columns = columns,
                   .depth = a_sizes[a_dims - 1],
                   .a = {},
                   .b = {},
                   .c = out.raw_data(),
                   .c_row = columns,
                   .alpha = s.alpha,
                   .beta = s.beta};
  if (impl(out)->sizes.size() > 2) {
    g.batch = batch_sizes(out);
    g.a_batch = batch_strides(a, g.batch.size());
    g.b_batch = batch_strides(b, g.batch.size());
  }
  if (g.depth > 0) {
    g.a = {a.raw_data(), a_strides[a_dims - 2], g.depth == 1 ? 1 : a_strides[a_dims - 1]};
    g.b = {b.raw_data(), b_strides[b_dims - 2], columns == 1 ? 1 : b_strides[b_dims - 1]};
  } else {  // a sum of nothing is a sum of one zero
    alignas(16) static const std::byte zero[16]{};
    g.depth = 1;
    g.a = g.b = {zero, 0, 0};
    g.a_batch = g.b_batch = Shape::filled(g.batch.size(), 0);
  }
  if (s.beta != 0) set_added(g, *added, out);
  products::gemm(g);
}

Tensor adjoint(const Tensor& x) { return transpose(x.is_complex() ? conj(x) : x, -2, -1); }
Tensor conjugate(const Tensor& x) { return x.is_complex() ? conj(x) : x; }
Tensor scaled(const Tensor& x, double factor) { return factor == 1 ? x : x * factor; }

Tensor batched(const Tensor& a, const Tensor& b);

// a@b, as the gradient of an operand: laid out as the operand is. A weight comes to its product transposed; were its
// gradient not, it would be copied when it gets back.
Tensor batched_like(const Tensor& operand, const Tensor& a, const Tensor& b) {
  bool turned = operand.stride(-2) == 1 && operand.stride(-1) != 1 && operand.size(-1) > 1;
  if (!turned) return batched(a, b);
  return transpose(batched(transpose(b, -2, -1), transpose(a, -2, -1)), -2, -1);
}

// ---- Operators

const Operator mm_op{
    .name = "mm",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor &a = c.input(0), &b = c.input(1);
          check_dims("mm", a, 2, b, 2);
          check_inner("mm", a, b);
          out[0] = spec_of(c, {impl(a)->sizes[0], impl(b)->sizes[1]});
        },
    .cpu = [](const Call& c) { multiply(c.output(), c.input(0), c.input(1)); },
    .gradient =
        [](GradientCall& c) {
          if (c.needs(0)) c.set(0, batched_like(c.input(0), c.grad(), adjoint(c.input(1))));
          if (c.needs(1)) c.set(1, batched_like(c.input(1), adjoint(c.input(0)), c.grad()));
        },
    .saves_inputs = 0b11,
    .matrix_product = true,
    .autocast = AutocastPolicy::low_precision,
};

// Also the product of matmul: batches of any number of dims, broadcast.
const Operator bmm_op{
    .name = "bmm",
    .infer = [](const Call& c,
                std::span<TensorSpec> out) { out[0] = spec_of(c, batched_sizes("bmm", c.input(0), c.input(1))); },
    .cpu = [](const Call& c) { multiply(c.output(), c.input(0), c.input(1)); },
    .gradient =
        [](GradientCall& c) {
          if (c.needs(0)) c.set(0, batched(c.grad(), adjoint(c.input(1))));
          if (c.needs(1)) c.set(1, batched(adjoint(c.input(0)), c.grad()));
        },
    .saves_inputs = 0b11,
    .matrix_product = true,
    .autocast = AutocastPolicy::low_precision,
};

void added_gradient(GradientCall& c) {
  const auto& s = c.as<Scales>();
  if (c.needs(0)) c.set(0, s.beta == 0 ? zeros_like(c.grad()) : scaled(c.grad(), s.beta));
  if (c.needs(1)) c.set(1, scaled(batched_like(c.input(1), c.grad(), adjoint(c.input(2))), s.alpha));
  if (c.needs(2)) c.set(2, scaled(batched_like(c.input(2), adjoint(c.input(1)), c.grad()), s.alpha));
}

const Operator addmm_op{
    .name = "addmm",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor &a = c.input(1), &b = c.input(2);
          check_dims("addmm", a, 2, b, 2);
          check_inner("addmm", a, b);
          Shape sizes{a.size(0), b.size(1)};
          check_added(c, sizes);
          out[0] = spec_of(c, sizes);
        },
    .cpu = [](const Call& c) { multiply(c.output(), c.input(1), c.input(2), &c.input(0), c.as<Scales>()); },
    .gradient = added_gradient,
    .saves_inputs = 0b110,
    .in_place = 1,
    .matrix_product = true,
    .autocast = AutocastPolicy::low_precision,
};

const Operator baddbmm_op{
    .name = "baddbmm",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor &a = c.input(1), &b = c.input(2);
          check_dims("baddbmm", a, 3, b, 3);
          Shape sizes = batched_sizes("baddbmm", a, b);
          check_added(c, sizes);
          out[0] = spec_of(c, sizes);
        },
    .cpu = [](const Call& c) { multiply(c.output(), c.input(1), c.input(2), &c.input(0), c.as<Scales>()); },
    .gradient = added_gradient,
    .saves_inputs = 0b110,
    .in_place = 1,
    .matrix_product = true,
    .autocast = AutocastPolicy::low_precision,
};

// The result as a matrix, x as one column: without autograd, since kernels call this.
Tensor as_matrix(const Tensor& x, int64_t rows, int64_t columns) {
  NoGrad guard;
  Tensor dense = x.contiguous();
  return make_alias(dense, {rows, columns}, {columns, 1}, dense.storage_offset());
}

const Operator mv_op{
    .name = "mv",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          check_dims("mv", c.input(0), 2, c.input(1), 1);
          check_inner("mv", c.input(0), c.input(1));
          out[0] = spec_of(c, {c.input(0).size(0)});
        },
    .cpu =
        [](const Call& c) {
          const Tensor& a = c.input(0);
          multiply(as_matrix(c.output(), a.size(0), 1), a, as_matrix(c.input(1), a.size(1), 1));
        },
    .gradient =
        [](GradientCall& c) {
          if (c.needs(0)) c.set(0, outer(c.grad(), conjugate(c.input(1))));
          if (c.needs(1)) c.set(1, mv(adjoint(c.input(0)), c.grad()));
        },
    .saves_inputs = 0b11,
    .autocast = AutocastPolicy::low_precision,
};

const Operator dot_op{
    .name = "dot",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          check_dims("dot", c.input(0), 1, c.input(1), 1);
          check_inner("dot", c.input(0), c.input(1));
          out[0] = spec_of(c, {});
        },
    .cpu =
        [](const Call& c) {
          int64_t n = c.input(0).size(0);
          multiply(as_matrix(c.output(), 1, 1), as_matrix(c.input(0), 1, n), as_matrix(c.input(1), n, 1));
        },
    .gradient =
        [](GradientCall& c) {
          if (c.needs(0)) c.set(0, c.grad() * conjugate(c.input(1)));
          if (c.needs(1)) c.set(1, c.grad() * conjugate(c.input(0)));
        },
    .saves_inputs = 0b11,
    .autocast = AutocastPolicy::low_precision,
};

// A matrix or vector on either side of a sparse one.
Tensor sparse_matmul(const Tensor& a, const Tensor& b) {
  Tensor left = a.dim() == 1 ? unsqueeze(to_dense(a), 0) : a, right = b.dim() == 1 ? unsqueeze(to_dense(b), 1) : b;
  bool sparse = left.is_sparse() || right.is_sparse();
  Tensor product = sparse ? sparse_mm("matmul", left, right) : mm(left, right);
  if (b.dim() == 1) product = squeeze(product, 1);
  return a.dim() == 1 ? squeeze(product, 0) : product;
}

Tensor batched(const Tensor& a, const Tensor& b) {
  return a.dim() == 2 && b.dim() == 2 ? mm(a, b) : call(bmm_op, {&a, &b});
}

void check_batches(const Tensor& a, const Tensor& b) {
  check_defined("bmm", {&a, &b});
  check_dims("bmm", a, 3, b, 3);
  check<ShapeError>(a.size(0) == b.size(0), "bmm", "batches of {} and {} matrices: {}, {}; matmul() broadcasts them",
                    a.size(0), b.size(0), a, b);
}

// c is not looked at where beta is 0: it may be NaN.
Tensor sparse_add_product(const Operator& op, const Tensor& c, const Tensor& a, const Tensor& b, Scales s) {
  Tensor product = scaled(sparse_mm(op.name, a, b), s.alpha);
  return (s.beta == 0 ? zeros_like(c) : scaled(c, s.beta)) + product;
}

// beta·c + alpha·a@b, for matrices and batches of them. A number given as c takes the product's dtype.
Tensor& add_product(const Operator& op, Tensor& out, const Tensor& c, const Tensor& a, const Tensor& b, Scales s) {
  check_defined(op.name, {&c, &a, &b});
  if (a.is_sparse() || b.is_sparse()) return reduction::write_out(out, sparse_add_product(op, c, a, b, s), op.name);
  Tensor added = c.is_number() ? cast(c, a.dtype()) : c;
  return call_out(op, {&added, &a, &b}, out, attributes(s));
}

}  // namespace

Tensor mm(const Tensor& a, const Tensor& b) {
  Tensor out;
  return mm_out(out, a, b);
}
Tensor& mm_out(Tensor& out, const Tensor& a, const Tensor& b) {
  check_defined("mm", {&a, &b});
  if (a.is_sparse() || b.is_sparse()) return reduction::write_out(out, sparse_mm("mm", a, b), "mm");
  return call_out(mm_op, {&a, &b}, out);
}

Tensor mv(const Tensor& a, const Tensor& x) {
  Tensor out;
  return mv_out(out, a, x);
}
Tensor& mv_out(Tensor& out, const Tensor& a, const Tensor& x) {
  check_defined("mv", {&a, &x});
  if (!a.is_sparse() && !x.is_sparse()) return call_out(mv_op, {&a, &x}, out);
  check_dims("mv", a, 2, x, 1);
  Tensor column = unsqueeze(to_dense(x), 1);
  return reduction::write_out(out, squeeze(a.is_sparse() ? sparse_mm("mv", a, column) : mm(a, column), 1), "mv");
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  Tensor out;
  return bmm_out(out, a, b);
}
Tensor& bmm_out(Tensor& out, const Tensor& a, const Tensor& b) {
  check_batches(a, b);
  return call_out(bmm_op, {&a, &b}, out);
}

Tensor dot(const Tensor& a, const Tensor& b) {
  Tensor out;
  return dot_out(out, a, b);
}
Tensor& dot_out(Tensor& out, const Tensor& a, const Tensor& b) {
  check_defined("dot", {&a, &b});
  return call_out(dot_op, {&a, &b}, out);
}

Tensor outer(const Tensor& a, const Tensor& b) {
  Tensor out;
  return outer_out(out, a, b);
}
Tensor& outer_out(Tensor& out, const Tensor& a, const Tensor& b) {
  check_defined("outer", {&a, &b});
  check_dims("outer", a, 1, b, 1);
  static const auto op = pointwise::renamed(pointwise::mul_operator(), "outer");
  named("outer", [&] {
    Tensor column = unsqueeze(a, 1);
    call_out(op, {&column, &b}, out);
  });
  return out;
}

Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  Tensor out;
  return addmm_out(out, c, a, b, beta, alpha);
}
Tensor& addmm_(Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  return addmm_out(c, c, a, b, beta, alpha);
}
Tensor& addmm_out(Tensor& out, const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  return add_product(addmm_op, out, c, a, b, {beta, alpha});
}

Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  Tensor out;
  return baddbmm_out(out, c, a, b, beta, alpha);
}
Tensor& baddbmm_(Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  return baddbmm_out(c, c, a, b, beta, alpha);
}
Tensor& baddbmm_out(Tensor& out, const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  return add_product(baddbmm_op, out, c, a, b, {beta, alpha});
}

namespace {
Tensor matmul_by_dims(const Tensor& a, const Tensor& b) {
  check_defined("matmul", {&a, &b});
  check<ShapeError>(a.dim() > 0 && b.dim() > 0, "matmul",
                    "takes tensors of at least one dim, not {} and {}; use * for numbers", a, b);
  if (a.is_sparse() || b.is_sparse()) return sparse_matmul(a, b);
  if (!(context().modes & kAutocastMode)) check_alike("matmul", a, b);
  check_inner("matmul", a, b);
  if (b.dim() <= 2) {
    if (a.dim() == 1) return b.dim() == 1 ? dot(a, b) : mv(transpose(b, 0, 1), a);
    if (a.dim() == 2) return b.dim() == 1 ? mv(a, b) : mm(a, b);
    // One product of many rows rather than many products.
    Shape sizes(std::span(a.sizes().data(), a.sizes().size() - 1));
    Tensor rows = reshape(a, {sizes.product(), a.size(-1)});
    if (b.dim() == 2) sizes.push_back(b.size(1));
    return reshape(b.dim() == 1 ? mv(rows, b) : mm(rows, b), sizes);
  }
  Tensor left = a.dim() == 1 ? unsqueeze(a, 0) : a;
  batched_sizes("matmul", left, b);
  Tensor product = batched(left, b);
  return a.dim() == 1 ? squeeze(product, -2) : product;
}
}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  return named("matmul", [&] { return matmul_by_dims(a, b); });
}

Tensor& matmul_out(Tensor& out, const Tensor& a, const Tensor& b) {
  check_defined("matmul", {&a, &b});
  bool sparse = a.is_sparse() || b.is_sparse();
  named("matmul", [&] {
    if (a.dim() == 2 && b.dim() == 2 && !sparse) {
      mm_out(out, a, b);
    } else if (a.dim() >= 2 && b.dim() > 2 && !sparse) {
      check_inner("matmul", a, b);
      call_out(bmm_op, {&a, &b}, out);
    } else {
      reduction::write_out(out, matmul(a, b), "matmul");
    }
  });
  return out;
}

}  // namespace tutti
