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

namespace {
double probability(const char* layer, double p) {
  check<ValueError>(p >= 0 && p <= 1, layer, "p is a probability, between 0 and 1, not {}", p);
  return p;
}
int64_t at_least_one(const char* layer, int64_t channels) {
  check<ValueError>(channels > 0, layer, "takes a number of channels > 0, not {}", channels);
  return channels;
}
}  // namespace

Dropout::Dropout(double p) : p(probability("Dropout", p)) {}
ChannelDropout::ChannelDropout(double p) : p(probability("ChannelDropout", p)) {}
PReLU::PReLU(int64_t channels, double slope) : weight(full({at_least_one("PReLU", channels)}, slope)) {}

RReLU::RReLU(double low, double high) : low(low), high(high) {
  check<ValueError>(low <= high, "RReLU", "takes slopes from low to high, not {} to {}", low, high);
}
Tensor RReLU::forward(const Tensor& x) {
  if (!is_training()) return leaky_relu(x, (low + high) / 2);
  Tensor slope = rand(x.sizes(), {.dtype = x.dtype(), .device = x.device()}) * (high - low) + low;
  return where(x > 0, x, slope * x);
}

}  // namespace tutti::nn
