// layer_norm and rms_norm: one operator, with and without the mean.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/norm/kernels.h"
#include "ops/norm/norm.h"
#include "tensor/impl.h"
#include "tutti/ops.h"
#include "tutti/ops/norm.h"

namespace tutti {
namespace {

using namespace normalization;

struct LayerNorm {
  Shape normalized;
  double eps;
  TUTTI_FIELDS(normalized, eps)
};

Over over_of(const Shape& sizes, const LayerNorm& a, bool centered) {
  Over over{.sizes = {}, .dims = {}, .centered = centered, .eps = a.eps, .weights = a.normalized};
  for (size_t d = sizes.size() - a.normalized.size(); d < sizes.size(); ++d)
    over.dims.push_back(static_cast<int64_t>(d));
  return over;
}

void infer_rows(const Call& c, std::span<TensorSpec> out) {
  check_operands(c, 0, {1, 2});
  const Tensor& x = c.input(0);
  int64_t length = c.as<LayerNorm>().normalized.product();
  out[0] = {.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
  out[1] = {.sizes = {length ? x.numel() / length : 0}, .dtype = computing_dtype(x.dtype()), .device = x.device()};
  out[2] = out[1];
}

template <bool centered>
void run_forward(const Call& c) {
  const auto& a = c.as<LayerNorm>();
  DType computing = computing_dtype(c.input(0).dtype());
  int64_t length = a.normalized.product(), rows = c.output(1).numel();
  Tensor x = arranged(c.input(0), computing), w = arranged(c.input(1), computing), b = arranged(c.input(2), computing);
  if (x.numel() == 0) return;
  Result y(c.output(), computing);
  auto size = static_cast<int64_t>(size_of(computing));
  auto at = [&](const void* p, int64_t element) { return static_cast<const std::byte*>(p) + element * size; };
  auto to = [&](void* p, int64_t element) { return static_cast<std::byte*>(p) + element * size; };
  parallel_for(rows, std::max<int64_t>(1, 16384 / length), [&](int64_t begin, int64_t end) {
    normalize_rows_pointer()(computing, centered, at(x.raw_data(), begin * length), data_or_null(w), data_or_null(b),
                             to(y.data(), begin * length), to(c.output(1).raw_data(), begin),
                             to(c.output(2).raw_data(), begin), end - begin, length, a.eps);
  });
  y.finish();
}

void infer_rows_backward(const Call& c, std::span<TensorSpec> out) {
  check_operands(c, 1, {2});
  const Tensor& x = c.input(1);
  out[0] = {.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
  out[1] = {.sizes = c.as<LayerNorm>().normalized,
            .dtype = c.input(2).defined() ? c.input(2).dtype() : x.dtype(),
            .device = x.device()};
  out[2] = out[1];
}

// Adds up what the groups of rows found for the weights, in their order.
template <class T>
void add_groups(const std::vector<T>& parts, int64_t groups, int64_t length, void* out) {
  constexpr int64_t kColumns = 1024;
  parallel_for(length, kColumns, [&](int64_t begin, int64_t end) {
    double sum[kColumns] = {};
    for (int64_t k = 0; k < groups; ++k) {
      const T* row = parts.data() + k * length;
      for (int64_t i = begin; i < end; ++i) sum[i - begin] += static_cast<double>(row[i]);
    }
    for (int64_t i = begin; i < end; ++i) static_cast<T*>(out)[i] = static_cast<T>(sum[i - begin]);
  });
}

template <class T, bool centered>
void backward(const Call& c) {
  constexpr DType computing = dtype_of<T>;
  int64_t length = c.as<LayerNorm>().normalized.product();
  Tensor g = arranged(c.input(0), computing), x = arranged(c.input(1), computing), w = arranged(c.input(2), computing);
  Tensor mean = arranged(c.input(3), computing), rstd = arranged(c.input(4), computing);
  int64_t rows = mean.numel();
  Result dx(c.output(0), computing), dw(c.output(1), computing), db(c.output(2), computing);
  // At most 64 groups of rows, whose sums for the weights are added in the end.
  int64_t grain = std::max<int64_t>(32, (rows + 63) / 64), groups = (rows + grain - 1) / grain;
  std::vector<T> weights(static_cast<size_t>(groups * length)), biases(weights.size());
  if (x.numel() > 0)
    parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
      int64_t at = begin * length, group = begin / grain * length;
      normalize_rows_gradient_pointer()(computing, centered, g.data<T>() + at, x.data<T>() + at, data_or_null(w),
                                        mean.data<T>() + begin, rstd.data<T>() + begin, static_cast<T*>(dx.data()) + at,
                                        weights.data() + group, biases.data() + group, end - begin, length);
    });
  add_groups(weights, groups, length, dw.data());
  add_groups(biases, groups, length, db.data());
  for (Result* r : {&dx, &dw, &db}) r->finish();
}

template <bool centered>
void run_backward(const Call& c) {
  if (c.input(1).dtype() == DType::f64)
    backward<double, centered>(c);
  else
    backward<float, centered>(c);
}

template <bool centered>
void second_gradient(GradientCall& c) {
  differentiate_gradient(c, over_of(c.input_sizes(1), c.as<LayerNorm>(), centered));
}

const Operator layer_norm_backward_op{
    .name = "layer_norm_backward",
    .infer = infer_rows_backward,
    .cpu = run_backward<true>,
    .gradient = second_gradient<true>,
    .saves_inputs = 0b111,
};
const Operator rms_norm_backward_op{
    .name = "rms_norm_backward",
    .infer = infer_rows_backward,
    .cpu = run_backward<false>,
    .gradient = second_gradient<false>,
    .saves_inputs = 0b111,
};

template <const Operator& backward_op>
void first_gradient(GradientCall& c) {
  if (!c.grad().defined()) return;
  Tensor x = c.input(0), w = c.input(1), mean = c.output(1), rstd = c.output(2);
  const Tensor* inputs[] = {&c.grad(), &x, &w, &mean, &rstd};
  Tensor gradients[3];
  call(backward_op, inputs, c.attributes(), gradients);
  for (size_t i = 0; i < 3; ++i) c.set(i, gradients[i]);
}

const Operator layer_norm_op{
    .name = "layer_norm",
    .infer = infer_rows,
    .cpu = run_forward<true>,
    .gradient = first_gradient<layer_norm_backward_op>,
    .saves_inputs = 0b011,
    .saves_outputs = 0b110,
    .autocast = AutocastPolicy::full_precision,
};
const Operator rms_norm_op{
    .name = "rms_norm",
    .infer = infer_rows,
    .cpu = run_forward<false>,
    .gradient = first_gradient<rms_norm_backward_op>,
    .saves_inputs = 0b011,
    .saves_outputs = 0b110,
    .autocast = AutocastPolicy::full_precision,
};

Tensor normalize(const Operator& op, const Tensor& x, const Shape& normalized, const Tensor& weight, const Tensor& bias,
                 double eps) {
  check<ValueError>(x.defined(), op.name, "the input is undefined: it was never given a value");
  size_t dims = normalized.size();
  bool fits = dims > 0 && dims <= x.sizes().size();
  for (size_t d = 0; fits && d < dims; ++d) fits = x.sizes()[x.sizes().size() - dims + d] == normalized[d];
  check<ShapeError>(fits, op.name, "the last dims of {} are not of the sizes {}", x, normalized);
  for (const Tensor* t : {&weight, &bias})
    check<ShapeError>(!t->defined() || t->sizes() == normalized, op.name,
                      "weight and bias must have the sizes {}, not be {}", normalized, *t);
  LayerNorm a{normalized, eps};
  const Tensor* inputs[] = {&x, &weight, &bias};
  Tensor outputs[3];
  call(op, inputs, attributes(a), outputs);
  return outputs[0];
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight, const Tensor& bias,
                  double eps) {
  return normalize(layer_norm_op, x, normalized_shape, weight, bias, eps);
}

Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight, double eps) {
  return normalize(rms_norm_op, x, normalized_shape, weight, {}, eps);
}

}  // namespace tutti
