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

Tensor run_with(const StatisticsSource& source, const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& mean,
                Tensor& var, double momentum, double eps) {
  BatchStatistics s = source(x);
  if (mean.defined()) {
    NoGrad guard;
    double count = static_cast<double>(s.count), unbiased = s.count > 1 ? count / (count - 1) : 1;
    mean.mul_(1 - momentum).add_(s.mean.detach(), momentum);
    var.mul_(1 - momentum).add_(s.var.detach(), momentum * unbiased);
  }
  return batch_norm_apply(x, s.mean, s.var, weight, bias, eps);
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
  double momentum = o.momentum || !counts ? o.momentum.value_or(0) : 1 / (batches.item<double>() + 1);
  Tensor y = own && source ? run_with(*source, x, weight, bias, mean, var, momentum, o.eps)
             : instance    ? instance_norm(x, weight, bias, mean, var, own, momentum, o.eps)
                           : batch_norm(x, weight, bias, mean, var, own, momentum, o.eps);
  if (counts) {  // only now: a batch that was refused is none
    NoGrad guard;
    batches.add_(1);
  }
  return y;
}

}  // namespace detail
}  // namespace tutti::nn
