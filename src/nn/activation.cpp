#include "tutti/nn/activation.h"

#include "base/check.h"

namespace tutti::nn {

Tensor GLU::forward(const Tensor& x) {
  check<ShapeError>(x.size(dim) % 2 == 0, "GLU", "dim {} of {} does not divide into halves", dim, x);
  auto halves = [](const Tensor& t, int64_t at) {
    int64_t half = t.size(at) / 2;
    return t.narrow(at, 0, half) * sigmoid(t.narrow(at, half, half));
  };
  if (x.is_contiguous() || x.dim() < 4 || !x.is_contiguous(MemoryFormat::channels_last)) return halves(x, dim);
  // A product of halves is contiguous, and so is the gradient by what was halved: in the order that x has in memory.
  int64_t at = dim < 0 ? dim + x.dim() : dim;
  return movedim(halves(movedim(x, 1, -1), at == 1 ? -1 : at > 1 ? at - 1 : 0), -1, 1);
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
