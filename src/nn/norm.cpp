#include "tutti/nn/norm.h"

#include "base/check.h"

namespace tutti::nn::detail {

void check_dims(const char* layer, const Tensor& x, int64_t least, int64_t most) {
  check<ShapeError>(x.dim() >= least && x.dim() <= most, layer, "this layer takes tensors of {}{} dims, not {}", least,
                    most > least ? fmt::format(" to {}", most) : "", x);
}

Tensor run_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& mean, Tensor& var,
                      Tensor& batches, const BatchNormOptions& o, bool training, bool instance) {
  double momentum = o.momentum.value_or(0);
  if (training && batches.defined()) {
    NoGrad guard;
    batches.add_(1);
    if (!o.momentum) momentum = 1 / batches.item<double>();
  }
  bool own = training || !mean.defined();
  if (instance) return instance_norm(x, weight, bias, mean, var, own, momentum, o.eps);
  return batch_norm(x, weight, bias, mean, var, own, momentum, o.eps);
}

}  // namespace tutti::nn::detail
