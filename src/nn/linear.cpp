#include "tutti/nn/linear.h"

#include <cmath>

#include "base/check.h"
#include "tutti/context.h"
#include "tutti/nn/container.h"
#include "tutti/nn/init.h"
#include "tutti/ops.h"

namespace tutti {

namespace {
void check_dtype(const Tensor& x, const Tensor& weight) {
  if (x.dtype() == weight.dtype()) return;
  // Autocast brings floating-point numbers to one dtype.
  if (context().modes & kAutocastMode && x.is_floating() && weight.is_floating()) return;
  check<DTypeError>(false, "linear", "input {}, weight {}: cast the input, x.to({}), or the module", x, weight,
                    weight.dtype());
}
}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check<ValueError>(x.defined() && weight.defined(), "linear", "the {} is undefined: it was never given a value",
                    x.defined() ? "weight" : "input");
  check<ShapeError>(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1), "linear",
                    "takes inputs of [..., in] and weights of [out, in], not {} and {}", x, weight);
  check_dtype(x, weight);
  check<ShapeError>(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "linear",
                    "takes a bias of [{}], not {}", weight.size(0), bias);
  Shape sizes = x.sizes();
  sizes[sizes.size() - 1] = 1;
  Tensor rows = x.dim() == 2 ? x : x.reshape({sizes.product(), x.size(-1)});
  Tensor y = bias.defined() ? addmm(bias, rows, weight.t()) : mm(rows, weight.t());
  if (x.dim() == 2) return y;
  sizes[sizes.size() - 1] = weight.size(0);
  return y.view(sizes);
}

Tensor bilinear(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias) {
  check<ShapeError>(weight.dim() == 3 && a.dim() >= 1 && b.dim() == a.dim() && a.size(-1) == weight.size(1) &&
                        b.size(-1) == weight.size(2),
                    "bilinear", "takes [..., in1], [..., in2] and weights of [out, in1, in2], not {}, {} and {}", a, b,
                    weight);
  Tensor y = einsum("...i,oij,...j->...o", {a, weight, b});
  return bias.defined() ? y + cast(bias, y.dtype()) : y;  // autocast may have lowered y
}

namespace nn {

namespace {
Options made(const LinearOptions& o) { return {.dtype = o.dtype, .device = o.device}; }

Shape checked(const char* layer, const Shape& sizes) {
  for (int64_t n : sizes) check<ValueError>(n >= 0, layer, "takes numbers of inputs and outputs ≥ 0, not {}", n);
  return sizes;
}

void draw(const Tensor& x, int64_t inputs) {
  double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, inputs)));
  if (x.defined()) init::uniform_(x, -bound, bound);
}
void draw(const Tensor& weight, const Tensor& bias) {
  for (const Tensor& x : {weight, bias}) draw(x, weight.size(1));
}
}  // namespace

Linear::Linear(int64_t in, int64_t out, const LinearOptions& options)
    : weight(empty(checked("Linear", {out, in}), made(options))) {
  if (options.bias) bias = empty({out}, made(options));
  reset_parameters();
}
void Linear::reset_parameters() { draw(weight, bias); }

namespace {
// The value that was awaited comes, unless it came before: with a state, or to a copy.
void arrive(Parameter& p, const Shape& sizes, const Tensor& x) {
  p.catch_up();
  if (p.defined() || !p.awaited) return;
  const Parameter::Awaited& a = *p.awaited;
  // Under autocast x may be of a dtype that is for passing only.
  bool lowered = context().modes & kAutocastMode && x.is_floating() && x.dtype() != DType::f64;
  DType like = !x.is_floating() ? default_dtype() : lowered ? DType::f32 : x.dtype();
  Tensor value = empty(sizes, {.dtype = a.dtype.value_or(like), .device = a.device.value_or(x.device())});
  draw(value, x.size(-1));  // before others can see it
  p.arrive(value);
}
}  // namespace

LazyLinear::LazyLinear(int64_t out, const LinearOptions& options) : out(checked("LazyLinear", {out})[0]) {
  weight = Parameter::lazy({.sizes = {out, -1}, .dtype = options.dtype, .device = options.device});
  if (options.bias) bias = Parameter::lazy({.sizes = {out}, .dtype = options.dtype, .device = options.device});
}
Tensor LazyLinear::forward(const Tensor& x) {
  check<ShapeError>(x.dim() >= 1, "LazyLinear", "takes inputs of [..., in], not {}", x);
  arrive(weight, {out, x.size(-1)}, x);
  arrive(bias, {out}, x);
  return linear(x, weight, bias);
}

Bilinear::Bilinear(int64_t in1, int64_t in2, int64_t out, const LinearOptions& options)
    : weight(empty(checked("Bilinear", {out, in1, in2}), made(options))) {
  if (options.bias) bias = empty({out}, made(options));
  draw(weight, bias);
}

Tensor Unflatten::forward(const Tensor& x) {
  Shape all;
  int64_t at = dim < 0 ? dim + x.dim() : dim;
  check<ShapeError>(at >= 0 && at < x.dim(), "Unflatten", "there is no dim {} in {}", dim, x);
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (d != at) all.push_back(x.size(d));
    if (d == at)
      for (int64_t s : sizes) all.push_back(s);
  }
  return x.reshape(all);
}

}  // namespace nn
}  // namespace tutti
