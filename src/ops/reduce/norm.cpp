// Norms, variances and standard deviations.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/named.h"
#include "ops/reduce/fold.h"
#include "ops/reduce/reduce.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

using namespace reduction;

struct Norm {
  Shape dims;
  bool keepdim;
  double p;
  TUTTI_FIELDS(dims, keepdim, p)
};
struct Variance {
  Shape dims;
  bool keepdim;
  int64_t correction;
  TUTTI_FIELDS(dims, keepdim, correction)
};

template <class A>
void infer_reduced(const Call& c, std::span<TensorSpec> out) {
  const auto& a = c.as<A>();
  const Tensor& x = c.input(0);
  out[0] = {.sizes = reduced_sizes(x.sizes(), a.dims, a.keepdim), .dtype = x.dtype(), .device = x.device()};
}

// ---- norm

Request norm_request(double p, DType dtype) {
  DType real = computing_dtype(dtype);
  if (p == 0) return {.operation = Operation::count, .element = DType::boolean};
  if (p == 1) return {.operation = Operation::sum_abs, .element = real};
  if (p == 2) return {.operation = Operation::sum_squares, .element = real, .finish = Finish::root, .number = 2};
  if (std::isinf(p)) return {.operation = p > 0 ? Operation::max_abs : Operation::min_abs, .element = real};
  return {.operation = Operation::sum_powers, .element = DType::f64, .finish = Finish::root, .number = p, .power = p};
}

// Where x (or the norm) is 0, derivatives are 0; a 1 in its place keeps infinities out of the other branch, and so out
// of second derivatives too.
Tensor nonzero_or_one(const Tensor& x) { return where(x == 0, 1, x); }

void norm_gradient(GradientCall& c) {
  const auto& a = c.as<Norm>();
  const Shape& sizes = c.input_sizes(0);
  Tensor x = c.input(0), y = restore_dims(c.output(), sizes, a.dims), g = restore_dims(c.grad(), sizes, a.dims);
  if (a.p == 0) {
    c.set(0, zeros_like(x));
  } else if (a.p == 1) {
    c.set(0, sign(x) * g);
  } else if (a.p == 2) {
    c.set(0, x * where(y == 0, 0, g / nonzero_or_one(y)));
  } else if (std::isinf(a.p)) {
    Tensor magnitude = abs(x), chosen = magnitude == y;
    c.set(0, where(chosen, sign(x) * (g / cast(sum(chosen, a.dims, true), g.dtype())), 0));
  } else {
    // |x/y|^(p-1), not a quotient of powers: those overflow sooner.
    Tensor ratio = nonzero_or_one(abs(x)) / nonzero_or_one(y);
    c.set(0, where(x == 0, 0, sign(x) * pow(ratio, a.p - 1) * g));
  }
}

const Operator norm_op{
    .name = "norm",
    .infer = infer_reduced<Norm>,
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Norm>();
          const Tensor& x = c.input(0);
          fold_tensor(c.output(), x, mark_dims(x.sizes().size(), a.dims), norm_request(a.p, x.dtype()));
        },
    .gradient = norm_gradient,
    .saves_inputs = 1,
    .saves_outputs = 1,
    .reduction = true,
    .autocast = AutocastPolicy::full_precision,
};

// ---- var, std

// What squares are divided by: 0 where the correction leaves nothing, which gives NaN or infinity.
double divisor(const Shape& sizes, const Variance& a) {
  return static_cast<double>(std::max<int64_t>(0, reduced_count(sizes, a.dims) - a.correction));
}

template <Finish finish>
void run_variance(const Call& c) {
  const auto& a = c.as<Variance>();
  const Tensor& x = c.input(0);
  Request request{.operation = Operation::moments,
                  .element = computing_dtype(x.dtype()),
                  .finish = finish,
                  .number = divisor(x.sizes(), a)};
  fold_tensor(c.output(), x, mark_dims(x.sizes().size(), a.dims), request);
}

// The gradient of x, given that of the variance with all dims kept.
void set_variance_gradient(GradientCall& c, const Tensor& g) {
  const auto& a = c.as<Variance>();
  Tensor x = c.input(0);
  c.set(0, (x - mean(x, a.dims, true)) * (g * (2 / divisor(x.sizes(), a))));
}

const Operator var_op{
    .name = "var",
    .infer = infer_reduced<Variance>,
    .cpu = run_variance<Finish::variance>,
    .gradient =
        [](GradientCall& c) {
          set_variance_gradient(c, restore_dims(c.grad(), c.input_sizes(0), c.as<Variance>().dims));
        },
    .saves_inputs = 1,
    .reduction = true,
    .autocast = AutocastPolicy::full_precision,
};

const Operator std_op{
    .name = "stddev",
    .infer = infer_reduced<Variance>,
    .cpu = run_variance<Finish::deviation>,
    .gradient =
        [](GradientCall& c) {
          const Shape& dims = c.as<Variance>().dims;
          Tensor y = c.output(), g = where(y == 0, 0, c.grad() / (nonzero_or_one(y) * 2));
          set_variance_gradient(c, restore_dims(g, c.input_sizes(0), dims));
        },
    .saves_inputs = 1,
    .saves_outputs = 1,
    .reduction = true,
    .autocast = AutocastPolicy::full_precision,
};

void check_floating(const Tensor& x, const char* name) {
  check_strided(x, name);
  if (!is_differentiable(x.dtype()))
    fail<DTypeError>(name, "needs floating-point or complex elements, not {}; cast it first", x);
}

Tensor& variance(const Operator& op, Tensor& out, const Tensor& x, const Shape& dims, bool keepdim,
                 int64_t correction) {
  Variance a{normalize_dims(x, dims, op.name), keepdim, correction};
  return call_out(op, {&x}, out, attributes(a));
}

}  // namespace

Tensor norm(const Tensor& x, double p, const Shape& dims, bool keepdim) {
  Tensor out;
  return norm_out(out, x, p, dims, keepdim);
}
Tensor& norm_out(Tensor& out, const Tensor& x, double p, const Shape& dims, bool keepdim) {
  check_floating(x, "norm");
  check<ValueError>(!std::isnan(p), "norm", "the order is not a number");
  Norm a{normalize_dims(x, dims, "norm"), keepdim, p};
  if (p < 0 || std::isinf(p)) check_not_empty(x, a.dims, "norm");
  Tensor magnitude = x.is_complex() ? named("norm", [&] { return abs(x); }) : x;
  return call_out(norm_op, {&magnitude}, out, attributes(a));
}

Tensor var(const Tensor& x, const Shape& dims, bool keepdim, int64_t correction) {
  Tensor out;
  return var_out(out, x, dims, keepdim, correction);
}
Tensor& var_out(Tensor& out, const Tensor& x, const Shape& dims, bool keepdim, int64_t correction) {
  check_floating(x, "var");
  if (!x.is_complex()) return variance(var_op, out, x, dims, keepdim, correction);
  named("var", [&] { add_out(out, var(real(x), dims, keepdim, correction), var(imag(x), dims, keepdim, correction)); });
  return out;
}

Tensor stddev(const Tensor& x, const Shape& dims, bool keepdim, int64_t correction) {
  Tensor out;
  return stddev_out(out, x, dims, keepdim, correction);
}
Tensor& stddev_out(Tensor& out, const Tensor& x, const Shape& dims, bool keepdim, int64_t correction) {
  check_floating(x, "stddev");
  if (!x.is_complex()) return variance(std_op, out, x, dims, keepdim, correction);
  named("stddev", [&] { sqrt_out(out, var(x, dims, keepdim, correction)); });
  return out;
}

}  // namespace tutti
