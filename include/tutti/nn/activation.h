// Activations as modules: what they compute is the pointwise operator of the same name.
#pragma once

#include "tutti/nn/module.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::nn {

struct ReLU : Module<ReLU> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return relu(x); }
};

struct ReLU6 : Module<ReLU6> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return relu6(x); }
};

struct LeakyReLU : Module<LeakyReLU> {
  double slope;
  TUTTI_FIELDS(slope)
  explicit LeakyReLU(double slope = 0.01) : slope(slope) {}
  Tensor forward(const Tensor& x) { return leaky_relu(x, slope); }
};

struct ELU : Module<ELU> {
  double alpha;
  TUTTI_FIELDS(alpha)
  explicit ELU(double alpha = 1) : alpha(alpha) {}
  Tensor forward(const Tensor& x) { return elu(x, alpha); }
};

struct SELU : Module<SELU> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return selu(x); }
};

struct CELU : Module<CELU> {
  double alpha;
  TUTTI_FIELDS(alpha)
  explicit CELU(double alpha = 1) : alpha(alpha) {}
  Tensor forward(const Tensor& x) { return celu(x, alpha); }
};

struct SiLU : Module<SiLU> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return silu(x); }
};

struct Mish : Module<Mish> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return mish(x); }
};

struct Softplus : Module<Softplus> {
  double beta;
  TUTTI_FIELDS(beta)
  explicit Softplus(double beta = 1) : beta(beta) {}
  Tensor forward(const Tensor& x) { return softplus(x, beta); }
};

struct Softsign : Module<Softsign> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return softsign(x); }
};

struct Tanh : Module<Tanh> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return tanh(x); }
};

struct Sigmoid : Module<Sigmoid> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return sigmoid(x); }
};

struct LogSigmoid : Module<LogSigmoid> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return log_sigmoid(x); }
};

struct Hardtanh : Module<Hardtanh> {
  double low;
  double high;
  TUTTI_FIELDS(low, high)
  explicit Hardtanh(double low = -1, double high = 1) : low(low), high(high) {}
  Tensor forward(const Tensor& x) { return hardtanh(x, low, high); }
};

struct Hardsigmoid : Module<Hardsigmoid> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return hardsigmoid(x); }
};

struct Hardswish : Module<Hardswish> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return hardswish(x); }
};

struct Hardshrink : Module<Hardshrink> {
  double bound;
  TUTTI_FIELDS(bound)
  explicit Hardshrink(double bound = 0.5) : bound(bound) {}
  Tensor forward(const Tensor& x) { return hardshrink(x, bound); }
};

struct Softshrink : Module<Softshrink> {
  double bound;
  TUTTI_FIELDS(bound)
  explicit Softshrink(double bound = 0.5) : bound(bound) {}
  Tensor forward(const Tensor& x) { return softshrink(x, bound); }
};

struct Threshold : Module<Threshold> {
  double limit;
  double value;
  TUTTI_FIELDS(limit, value)
  Threshold(double limit, double value) : limit(limit), value(value) {}
  Tensor forward(const Tensor& x) { return threshold(x, limit, value); }
};

struct Tanhshrink : Module<Tanhshrink> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return tanhshrink(x); }
};

struct GELU : Module<GELU> {
  bool tanh;  // the approximation by tanh
  TUTTI_FIELDS(tanh)
  explicit GELU(bool tanh = false) : tanh(tanh) {}
  Tensor forward(const Tensor& x) { return tanh ? gelu_tanh(x) : gelu(x); }
};

struct Softmax : Module<Softmax> {
  int64_t dim;
  TUTTI_FIELDS(dim)
  explicit Softmax(int64_t dim = -1) : dim(dim) {}
  Tensor forward(const Tensor& x) { return softmax(x, dim); }
};

struct Softmin : Module<Softmin> {
  int64_t dim;
  TUTTI_FIELDS(dim)
  explicit Softmin(int64_t dim = -1) : dim(dim) {}
  Tensor forward(const Tensor& x) { return softmax(-x, dim); }
};

struct LogSoftmax : Module<LogSoftmax> {
  int64_t dim;
  TUTTI_FIELDS(dim)
  explicit LogSoftmax(int64_t dim = -1) : dim(dim) {}
  Tensor forward(const Tensor& x) { return log_softmax(x, dim); }
};

/// Half of the channels (along dim) times the sigmoid of the other half.
struct GLU : Module<GLU> {
  int64_t dim;
  TUTTI_FIELDS(dim)
  explicit GLU(int64_t dim = -1) : dim(dim) {}
  Tensor forward(const Tensor& x);
};

/// max(x, 0) + weight·min(x, 0), one weight for all or one for each channel (dim 1).
struct PReLU : Module<PReLU> {
  Parameter weight;
  TUTTI_FIELDS(weight)
  explicit PReLU(int64_t channels = 1, double slope = 0.25);
  Tensor forward(const Tensor& x) {
    Shape sizes = Shape::filled(static_cast<size_t>(x.dim()), 1);
    if (weight.numel() > 1 && x.dim() > 1) sizes[1] = weight.numel();
    return where(x > 0, x, (x.dim() ? weight.view(sizes) : weight.view({})) * x);
  }
};

/// A leaky relu whose slope is drawn anew for each element in training, between low and high; otherwise their mean.
struct RReLU : Module<RReLU> {
  double low, high;
  TUTTI_FIELDS(low, high)
  explicit RReLU(double low = 1.0 / 8, double high = 1.0 / 3);
  Tensor forward(const Tensor& x);
};

struct Dropout : Module<Dropout> {
  double p;
  TUTTI_FIELDS(p)
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) { return dropout(x, p, is_training()); }
};

/// Drops whole channels: [N, C, ...].
struct ChannelDropout : Module<ChannelDropout> {
  double p;
  TUTTI_FIELDS(p)
  explicit ChannelDropout(double p = 0.5);
  Tensor forward(const Tensor& x) {
    if (!is_training() || p == 0) return x;
    Shape sizes = Shape::filled(static_cast<size_t>(x.dim()), 1);
    for (size_t d = 0; d < 2 && d < sizes.size(); ++d) sizes[d] = x.size(static_cast<int64_t>(d));
    return x * dropout(ones(sizes, {.dtype = x.dtype(), .device = x.device()}), p, true);
  }
};
using Dropout1d = ChannelDropout;
using Dropout2d = ChannelDropout;
using Dropout3d = ChannelDropout;

// Compiled once, in src/nn/layers.cpp.
extern template class Module<ReLU>;
extern template class Module<ReLU6>;
extern template class Module<LeakyReLU>;
extern template class Module<ELU>;
extern template class Module<SELU>;
extern template class Module<CELU>;
extern template class Module<SiLU>;
extern template class Module<Mish>;
extern template class Module<Softplus>;
extern template class Module<Softsign>;
extern template class Module<Tanh>;
extern template class Module<Sigmoid>;
extern template class Module<LogSigmoid>;
extern template class Module<Hardtanh>;
extern template class Module<Hardsigmoid>;
extern template class Module<Hardswish>;
extern template class Module<Hardshrink>;
extern template class Module<Softshrink>;
extern template class Module<Threshold>;
extern template class Module<Tanhshrink>;
extern template class Module<GELU>;
extern template class Module<Softmax>;
extern template class Module<Softmin>;
extern template class Module<LogSoftmax>;
extern template class Module<GLU>;
extern template class Module<PReLU>;
extern template class Module<RReLU>;
extern template class Module<Dropout>;
extern template class Module<ChannelDropout>;

}  // namespace tutti::nn
