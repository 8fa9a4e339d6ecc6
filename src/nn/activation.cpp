#include "tutti/nn/activation.h"

#include "base/check.h"

namespace tutti::nn {

Tensor GLU::forward(const Tensor& x) {
  check<ShapeError>(x.size(dim) % 2 == 0, "GLU", "dim {} of {} does not divide into halves", dim, x);
  int64_t half = x.size(dim) / 2;
  Tensor y = x.narrow(dim, 0, half) * sigmoid(x.narrow(dim, half, half));
  // Half of the channels is not dense, and a product of such is contiguous.
  bool last = !x.is_contiguous() && x.dim() >= 4 && x.is_contiguous(MemoryFormat::channels_last);
  return last ? y.contiguous(MemoryFormat::channels_last) : y;
}

RReLU::RReLU(double low, double high) : low(low), high(high) {
  check<ValueError>(low <= high, "RReLU", "takes slopes from low to high, not {} to {}", low, high);
}
Tensor RReLU::forward(const Tensor& x) {
  if (!is_training()) return leaky_relu(x, (low + high) / 2);
  Tensor slope = rand(x.sizes(), {.dtype = x.dtype(), .device = x.device()}) * (high - low) + low;
  return where(x > 0, x, slope * x);
}

}  // namespace tutti::nn
