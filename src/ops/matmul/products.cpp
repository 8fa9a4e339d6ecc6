// Matrix products: mm, bmm and their sums with a third matrix are operators; the others are made of these.
#include "base/check.h"
#include "ops/matmul/gemm.h"
#include "ops/sparse/arithmetic.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Scales {
  double beta, alpha;
  TUTTI_FIELDS(beta, alpha)
};

// What both operands of every product must have in common.
void check_pair(const char* name, const Tensor& a, const Tensor& b, int64_t dims) {
  check<ShapeError>(a.dim() == dims && b.dim() == dims, name, "needs two tensors of {} dims, not {} and {}", dims, a,
                    b);
  check<DTypeError>(a.dtype() == b.dtype(), name, "dtypes differ: {} and {}; cast one with to(dtype)", a, b);
  check<DeviceError>(a.device() == b.device(), name, "inputs are on different devices: {} and {}", a, b);
  check<ShapeError>(a.size(-1) == b.size(-2), name, "{} and {} do not fit: {} columns meet {} rows", a, b, a.size(-1),
                    b.size(-2));
  check<ShapeError>(dims == 2 || a.size(0) == b.size(0), name, "{} and {} have different numbers of matrices", a, b);
}

Shape product_sizes(const Tensor& a, const Tensor& b) {
  Shape sizes = a.sizes();
  sizes[sizes.size() - 1] = b.size(-1);
  return sizes;
}

void infer_product(const Call& c, std::span<TensorSpec> out) {
  const Tensor &a = c.input(0), &b = c.input(1);
  check_pair(c.op.name, a, b, std::string_view(c.op.name) == "mm" ? 2 : 3);
  out[0] = {.sizes = product_sizes(a, b), .dtype = a.dtype(), .device = a.device()};
}

void infer_sum(const Call& c, std::span<TensorSpec> out) {
  const Tensor &m = c.input(0), &a = c.input(1), &b = c.input(2);
  check_pair(c.op.name, a, b, std::string_view(c.op.name) == "addmm" ? 2 : 3);
  Shape sizes = product_sizes(a, b);
  check<DTypeError>(m.dtype() == a.dtype(), c.op.name, "dtypes differ: {} is added to the product of {} and {}", m, a,
                    b);
  check<DeviceError>(m.device() == a.device(), c.op.name, "{} and {} are on different devices", m, a);
  check<ShapeError>(m.dim() <= a.dim() && broadcast_shapes(m.sizes(), sizes) == sizes, c.op.name,
                    "{} does not broadcast to the product's shape {}", m, sizes);
  out[0] = {.sizes = sizes, .dtype = a.dtype(), .device = a.device()};
}

// out = beta·addend + alpha·a@b; the addend is undefined for a plain product.
void multiply(const Tensor& a, const Tensor& b, const Tensor& addend, Scales scales, const Tensor& out) {
  if (out.numel() == 0) return;
  products::Gemm g{.dtype = a.dtype(),
                   .rows = a.size(-2),
                   .columns = b.size(-1),
                   .depth = a.size(-1),
                   .a = {impl(a)->data(), a.stride(-2), a.stride(-1)},
                   .b = {impl(b)->data(), b.stride(-2), b.stride(-1)},
                   .c = impl(out)->data(),
                   .c_row = b.size(-1),
                   .alpha = scales.alpha};
  if (a.dim() == 3) {
    g.batch = {a.size(0)};
    g.a_batch = {a.stride(0)};
    g.b_batch = {b.stride(0)};
  }
  if (addend.defined() && scales.beta != 0) {
    // The sum starts as the addend in full shape: it is broadcast into the result first.
    if (!addend.is_same(out)) {
      NoGrad guard;
      Tensor target = out.detach();
      target.copy_(addend.detach());
    }
    g.beta = scales.beta;
  }
  products::gemm(g);
}

void run_product(const Call& c) { multiply(c.input(0), c.input(1), {}, {0, 1}, c.output()); }
void run_sum(const Call& c) { multiply(c.input(1), c.input(2), c.input(0), c.as<Scales>(), c.output()); }

// The conjugate transpose, which gradients multiply with.
Tensor adjoint(const Tensor& x) {
  Tensor t = transpose(x, -2, -1);
  return x.is_complex() ? conj(t) : t;
}
Tensor scaled(const Tensor& x, double factor) { return factor == 1 ? x : x * factor; }

void product_gradient(GradientCall& c) {
  auto multiply = std::string_view(c.op().name) == "mm" ? mm : bmm;
  if (c.needs(0)) c.set(0, multiply(c.grad(), adjoint(c.input(1))));
  if (c.needs(1)) c.set(1, multiply(adjoint(c.input(0)), c.grad()));
}

void sum_gradient(GradientCall& c) {
  auto multiply = std::string_view(c.op().name) == "addmm" ? mm : bmm;
  auto [beta, alpha] = c.as<Scales>();
  if (c.needs(0)) c.set(0, scaled(c.grad(), beta));
  if (c.needs(1)) c.set(1, scaled(multiply(c.grad(), adjoint(c.input(2))), alpha));
  if (c.needs(2)) c.set(2, scaled(multiply(adjoint(c.input(1)), c.grad()), alpha));
}

constexpr Operator product_operator(const char* name) {
  return {.name = name,
          .infer = infer_product,
          .cpu = run_product,
          .gradient = product_gradient,
          .saves_inputs = 3,
          .autocast = AutocastPolicy::low_precision};
}
constexpr Operator sum_operator(const char* name) {
  return {.name = name,
          .infer = infer_sum,
          .cpu = run_sum,
          .gradient = sum_gradient,
          .saves_inputs = 6,
          .autocast = AutocastPolicy::low_precision};
}
const Operator mm_op = product_operator("mm"), bmm_op = product_operator("bmm");
const Operator addmm_op = sum_operator("addmm"), baddbmm_op = sum_operator("baddbmm");

// [batch..., rows, columns] as [product of batch, rows, columns].
Tensor flat_batch(const Tensor& x, const Shape& batch) {
  Shape sizes = batch;
  sizes.push_back(x.size(-2));
  sizes.push_back(x.size(-1));
  return reshape(expand(x, sizes), {batch.product(), x.size(-2), x.size(-1)});
}

Tensor batched(const Tensor& a, const Tensor& b) {
  check<ShapeError>(a.size(-1) == b.size(-2), "matmul", "{} and {} do not fit: {} columns meet {} rows", a, b,
                    a.size(-1), b.size(-2));
  auto batch_of = [](const Tensor& x) { return Shape(std::span(x.sizes().begin(), x.sizes().size() - 2)); };
  // One matrix on the right: the rows of all matrices on the left are one tall matrix.
  if (b.dim() == 2) {
    Shape sizes = a.sizes();
    sizes[sizes.size() - 1] = b.size(-1);
    return view(mm(reshape(a, {sizes.product() / std::max<int64_t>(1, b.size(-1)), a.size(-1)}), b), sizes);
  }
  Shape batch;
  try {
    batch = broadcast_shapes(batch_of(a), batch_of(b));
  } catch (const ShapeError&) {
    fail<ShapeError>("matmul", "the leading dims of {} and {} do not broadcast", a, b);
  }
  Shape sizes = batch;
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-1));
  return view(bmm(flat_batch(a, batch), flat_batch(b, batch)), sizes);
}

}  // namespace

Tensor mm(const Tensor& a, const Tensor& b) {
  if (a.is_sparse() || b.is_sparse()) return sparse_mm(a, b);
  return call(mm_op, {&a, &b});
}
Tensor bmm(const Tensor& a, const Tensor& b) { return call(bmm_op, {&a, &b}); }

Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  if (a.is_sparse() || b.is_sparse()) return scaled(c, beta) + scaled(sparse_mm(a, b), alpha);
  Scales s{beta, alpha};
  return call(addmm_op, {&c, &a, &b}, attributes(s));
}
Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  Scales s{beta, alpha};
  return call(baddbmm_op, {&c, &a, &b}, attributes(s));
}

Tensor mv(const Tensor& a, const Tensor& x) {
  check<ShapeError>(a.dim() == 2 && x.dim() == 1, "mv", "needs a matrix and a vector, not {} and {}", a, x);
  check<ShapeError>(a.size(1) == x.size(0), "mv", "{} and {} do not fit: {} columns meet {} elements", a, x, a.size(1),
                    x.size(0));
  return view(mm(a, unsqueeze(x, 1)), {a.size(0)});
}

Tensor dot(const Tensor& a, const Tensor& b) {
  check<ShapeError>(a.dim() == 1 && b.dim() == 1, "dot", "needs two vectors, not {} and {}", a, b);
  check<ShapeError>(a.size(0) == b.size(0), "dot", "{} and {} have different lengths", a, b);
  return view(mm(unsqueeze(a, 0), unsqueeze(b, 1)), {});
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check<ShapeError>(a.dim() == 1 && b.dim() == 1, "outer", "needs two vectors, not {} and {}", a, b);
  return unsqueeze(a, 1) * unsqueeze(b, 0);
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  check<ShapeError>(a.dim() > 0 && b.dim() > 0, "matmul",
                    "needs tensors of at least one dim, not {} and {}; use * for numbers", a, b);
  if (a.dim() == 1 && b.dim() == 1) return dot(a, b);
  if (a.dim() == 2 && b.dim() == 2) return mm(a, b);
  if (a.dim() == 2 && b.dim() == 1) return mv(a, b);
  if (a.dim() == 1) return squeeze(matmul(unsqueeze(a, 0), b), -2);
  if (b.dim() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  return batched(a, b);
}

}  // namespace tutti
