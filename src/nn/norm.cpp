#include "tutti/nn/norm.h"

#include "base/check.h"
#include "tutti/context.h"

namespace tutti::nn::detail {
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
  check<ShapeError>(x.dim() >= least && x.dim() <= most, layer, "this layer takes tensors of {}{} dims, not {}", least,
                    most > least ? fmt::format(" to {}", most) : "", x);
}

Tensor run_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& mean, Tensor& var,
                      Tensor& batches, const BatchNormOptions& o, bool training, bool instance,
                      const StatisticsSource* source) {
  double momentum = o.momentum.value_or(0);
  if (training && batches.defined()) {
    NoGrad guard;
    batches.add_(1);
    if (!o.momentum) momentum = 1 / batches.item<double>();
  }
  bool own = training || !mean.defined();
  if (own && source) return run_with(*source, x, weight, bias, mean, var, momentum, o.eps);
  if (instance) return instance_norm(x, weight, bias, mean, var, own, momentum, o.eps);
  return batch_norm(x, weight, bias, mean, var, own, momentum, o.eps);
}

}  // namespace tutti::nn::detail
