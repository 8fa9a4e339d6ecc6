#include "tutti/nn/norm.h"

#include "base/check.h"
#include "base/names.h"
#include "tutti/context.h"

namespace tutti::nn {
namespace {

void check_eps(const char* layer, double eps) {
  check<ValueError>(eps >= 0, layer, "eps is added to a variance and must be ≥ 0, not {}", eps);
}
void check_shape(const char* layer, const Shape& shape, double eps) {
  bool fits = !shape.empty();
  for (int64_t n : shape) fits = fits && n >= 0;
  check<ValueError>(fits, layer, "takes the sizes of the last dims, ≥ 0, not {}", shape);
  check_eps(layer, eps);
}

}  // namespace

LayerNorm::LayerNorm(const Shape& normalized_shape, const NormOptions& options)
    : normalized_shape(normalized_shape), eps(options.eps) {
  check_shape("LayerNorm", normalized_shape, eps);
  if (options.affine) weight = ones(normalized_shape);
  if (options.affine && options.bias) bias = zeros(normalized_shape);
}

RMSNorm::RMSNorm(const Shape& normalized_shape, const RMSNormOptions& options)
    : normalized_shape(normalized_shape), eps(options.eps) {
  check_shape("RMSNorm", normalized_shape, eps);
  if (options.affine) weight = ones(normalized_shape);
}

GroupNorm::GroupNorm(int64_t groups, int64_t channels, const NormOptions& options) : groups(groups), eps(options.eps) {
  check<ValueError>(groups > 0 && channels >= 0 && channels % groups == 0, "GroupNorm",
                    "{} channels do not divide into {} groups", channels, groups);
  check_eps("GroupNorm", eps);
  if (options.affine) weight = ones({channels});
  if (options.affine && options.bias) bias = zeros({channels});
}

namespace detail {
namespace {

// The share is a number or a tensor.
template <class Share>
Tensor run_with(const StatisticsSource& source, const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& mean,
                Tensor& var, const Share& share, double eps) {
  BatchStatistics s = source(x);
  if (mean.defined()) {
    NoGrad guard;
    double count = static_cast<double>(s.count), unbiased = s.count > 1 ? count / (count - 1) : 1;
    mean.mul_(1 - share).add_(s.mean.detach(), share);
    var.mul_(1 - share).add_(s.var.detach(), share * unbiased);
  }
  return batch_norm_apply(x, s.mean, s.var, weight, bias, eps);
}

// What a batch counts in the average of all: 1 / (batches so far + 1). It is computed by operators, since a compiled
// function must not read the number of batches.
Tensor share_of_batch(const Tensor& batches) {
  NoGrad guard;
  return 1 / (cast(batches, DType::f64) + 1);
}

// The average of all batches, whose share is a tensor: the statistics of this one are found by themselves.
template <class Norm>
Tensor run_averaging(const Norm& norm, const Tensor& x, Tensor& mean, Tensor& var, const Tensor& batches) {
  if (x.numel() == 0 || !mean.defined()) return norm(mean, var, 0);  // there is nothing to average
  Tensor mean_here = zeros_like(mean), var_here = zeros_like(var);
  Tensor y = norm(mean_here, var_here, 1);
  NoGrad guard;
  Tensor share = share_of_batch(batches);
  mean.mul_(1 - share).add_(mean_here * share);
  var.mul_(1 - share).add_(var_here * share);
  return y;
}

}  // namespace

void check_dims(const char* layer, const Tensor& x, int64_t least, int64_t most) {
  check<ValueError>(x.defined(), layer, "the input is undefined: it was never given a value");
  check<ShapeError>(x.dim() >= least && x.dim() <= most, layer, "this layer takes tensors of {}{} dims, not {}", least,
                    most > least ? fmt::format(" to {}", most) : "", x);
}

void check_options(const std::type_info& type, int64_t channels, const BatchNormOptions& o) {
  std::string name = short_name(type);
  const char* layer = name.c_str();
  check<ValueError>(channels >= 0, layer, "takes a number of channels ≥ 0, not {}", channels);
  check_eps(layer, o.eps);
  check<ValueError>(!o.momentum || (*o.momentum >= 0 && *o.momentum <= 1), layer,
                    "momentum is the share that a batch has in the running statistics, between 0 and 1, not {}",
                    o.momentum.value_or(0));
}

Tensor run_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& mean, Tensor& var,
                      Tensor& batches, const BatchNormOptions& o, bool training, bool instance,
                      const StatisticsSource* source) {
  bool counts = training && batches.defined(), own = training || !mean.defined();
  bool averages = counts && !o.momentum;
  auto norm = [&](const Tensor& running_mean, const Tensor& running_var, double momentum) {
    return (instance ? instance_norm : batch_norm)(x, weight, bias, running_mean, running_var, own, momentum, o.eps);
  };
  double momentum = o.momentum.value_or(0);
  Tensor y;
  if (own && source && averages)
    y = run_with(*source, x, weight, bias, mean, var, share_of_batch(batches), o.eps);
  else if (own && source)
    y = run_with(*source, x, weight, bias, mean, var, momentum, o.eps);
  else
    y = averages ? run_averaging(norm, x, mean, var, batches) : norm(mean, var, momentum);
  if (counts) {  // only now: a batch that was refused is none
    NoGrad guard;
    batches.add_(1);
  }
  return y;
}

}  // namespace detail
}  // namespace tutti::nn
