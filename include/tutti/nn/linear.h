// Linear layers.
#pragma once

#include "tutti/nn/module.h"

namespace tutti {
/// x @ weightᵀ + bias over the last dim of x; weight is [out, in].
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
/// y[..., k] = aᵀ weight[k] b + bias[k]
Tensor bilinear(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias = {});
}  // namespace tutti

namespace tutti::nn {

struct LinearOptions {
  bool bias = true;
  std::optional<DType> dtype = {};
  std::optional<Device> device = {};
};

struct Linear : Module<Linear> {
  Parameter weight, bias;  // [out, in], [out]
  TUTTI_FIELDS(weight, bias)

  Linear(int64_t in, int64_t out, const LinearOptions& options = {});
  /// Draws weights anew.
  void reset_parameters();
  Tensor forward(const Tensor& x) { return linear(x, weight, bias); }
};

/// A Linear that learns its number of inputs from the first tensor it sees. It has no parameters before that. Unless
/// said otherwise (by the options, or to() before the first call) they get that tensor's dtype and device.
struct LazyLinear : Module<LazyLinear> {
  int64_t out;
  Parameter weight, bias;
  TUTTI_FIELDS(out, weight, bias)

  explicit LazyLinear(int64_t out, const LinearOptions& options = {});
  Tensor forward(const Tensor& x);
};

struct Bilinear : Module<Bilinear> {
  Parameter weight, bias;  // [out, in1, in2], [out]
  TUTTI_FIELDS(weight, bias)

  Bilinear(int64_t in1, int64_t in2, int64_t out, const LinearOptions& options = {});
  Tensor forward(const Tensor& a, const Tensor& b) { return bilinear(a, b, weight, bias); }
};

// Compiled once, in src/nn/layers.cpp.
extern template class Module<Linear>;
extern template class Module<LazyLinear>;
extern template class Module<Bilinear>;

}  // namespace tutti::nn
