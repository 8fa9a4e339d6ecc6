#include "tutti/nn/init.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "tutti/context.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::nn::init {

Tensor uniform_(Tensor t, double low, double high) {
  NoGrad guard;
  return t.uniform_(low, high);
}
Tensor normal_(Tensor t, double mean, double std) {
  NoGrad guard;
  return t.normal_(mean, std);
}
Tensor constant_(Tensor t, double value) {
  NoGrad guard;
  return t.fill_(value);
}
Tensor zeros_(Tensor t) { return constant_(std::move(t), 0); }
Tensor ones_(Tensor t) { return constant_(std::move(t), 1); }

Tensor trunc_normal_(Tensor t, double mean, double std, double low, double high) {
  check<ValueError>(std >= 0 && low < high, "trunc_normal_", "takes std ≥ 0 and low < high, not {} and [{}, {}]", std,
                    low, high);
  NoGrad guard;
  if (std == 0) return t.fill_(std::clamp(mean, low, high));
  // The inverse of the distribution function, at a uniform place between its values at both ends.
  auto cdf = [&](double x) { return (1 + std::erf((x - mean) / std / std::sqrt(2.0))) / 2; };
  Tensor u = empty(t.sizes(), {.dtype = DType::f64, .device = t.device()});
  u.uniform_(2 * cdf(low) - 1, 2 * cdf(high) - 1);
  return t.copy_(clamp(erfinv(u) * (std * std::sqrt(2.0)) + mean, low, high));
}

Tensor eye_(Tensor t) {
  check<ShapeError>(t.dim() == 2, "eye_", "takes a matrix, not {}", t);
  NoGrad guard;
  return t.copy_(eye(t.size(0), t.size(1), {.dtype = t.dtype(), .device = t.device()}));
}

Tensor dirac_(Tensor t, int64_t groups) {
  check<ShapeError>(t.dim() >= 3 && t.dim() <= 5 && groups > 0 && t.size(0) % groups == 0, "dirac_",
                    "takes a convolution's weight of 3 to 5 dims whose first divides into {} groups, not {}", groups,
                    t);
  NoGrad guard;
  t.zero_();
  int64_t per_group = t.size(0) / groups;
  for (int64_t i = 0; i < t.size(0); ++i) {
    if (i % per_group >= t.size(1)) continue;
    Tensor centre = t.select(0, i).select(0, i % per_group);
    while (centre.dim()) centre = centre.select(0, centre.size(0) / 2);
    centre.fill_(1);
  }
  return t;
}

Tensor orthogonal_(Tensor t, double gain) {
  check<ShapeError>(t.dim() >= 2, "orthogonal_", "takes a tensor of 2 dims or more, not {}", t);
  NoGrad guard;
  if (t.numel() == 0) return t;
  int64_t rows = t.size(0), columns = t.numel() / rows, count = std::min(rows, columns),
          length = std::max(rows, columns);
  Tensor q = randn({count, length}, {.dtype = DType::f64});
  double* v = q.data<double>();
  // Gram-Schmidt, twice for each vector: once leaves errors of the size of the rounding times the condition.
  for (int64_t i = 0; i < count; ++i) {
    double* x = v + i * length;
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t j = 0; j < i; ++j) {
        const double* y = v + j * length;
        double product = 0;
        for (int64_t k = 0; k < length; ++k) product += x[k] * y[k];
        for (int64_t k = 0; k < length; ++k) x[k] -= product * y[k];
      }
    double square = 0;
    for (int64_t k = 0; k < length; ++k) square += x[k] * x[k];
    for (int64_t k = 0; k < length; ++k) x[k] /= std::sqrt(square);
  }
  if (rows > columns) q = q.t();
  return t.copy_((q * gain).reshape(t.sizes()));
}

Tensor sparse_(Tensor t, double sparsity, double std) {
  check<ShapeError>(t.dim() == 2, "sparse_", "takes a matrix, not {}", t);
  NoGrad guard;
  t.normal_(0, std);
  auto zeros = static_cast<int64_t>(std::ceil(sparsity * static_cast<double>(t.size(0))));
  for (int64_t column = 0; column < t.size(1); ++column) {
    Tensor rows = randperm(t.size(0)).narrow(0, 0, zeros), c = t.select(1, column);
    c.index_put_({rows}, 0);
  }
  return t;
}

namespace {
Fan fan_for(const char* name, const Tensor& weight) {
  check<ValueError>(weight.defined(), name, "the tensor is undefined: it was never given a value");
  check<ShapeError>(weight.dim() >= 2, name, "takes a weight of 2 dims or more, not {}", weight);
  int64_t kernel = 1;
  for (int64_t d = 2; d < weight.dim(); ++d) kernel *= weight.size(d);
  return {weight.size(1) * kernel, weight.size(0) * kernel};
}
}  // namespace
Fan fan(const Tensor& weight) { return fan_for("fan", weight); }

double gain(const std::string& nonlinearity, double slope) {
  if (nonlinearity == "linear" || nonlinearity == "sigmoid") return 1;
  if (nonlinearity == "tanh") return 5.0 / 3;
  if (nonlinearity == "relu") return std::sqrt(2.0);
  if (nonlinearity == "leaky_relu") return std::sqrt(2 / (1 + slope * slope));
  if (nonlinearity == "selu") return 0.75;
  fail<ValueError>("gain", "knows linear, sigmoid, tanh, relu, leaky_relu and selu, not '{}'", nonlinearity);
}

Tensor xavier_uniform_(Tensor t, double gain) {
  Fan f = fan_for("xavier_uniform_", t);
  double bound = gain * std::sqrt(6.0 / static_cast<double>(f.in + f.out));
  return uniform_(std::move(t), -bound, bound);
}
Tensor xavier_normal_(Tensor t, double gain) {
  Fan f = fan_for("xavier_normal_", t);
  return normal_(std::move(t), 0, gain * std::sqrt(2.0 / static_cast<double>(f.in + f.out)));
}

namespace {
double kaiming_std(const char* name, const Tensor& t, double slope, FanMode mode, const std::string& nonlinearity) {
  Fan f = fan_for(name, t);
  return gain(nonlinearity, slope) /
         std::sqrt(static_cast<double>(std::max<int64_t>(1, mode == FanMode::in ? f.in : f.out)));
}
}  // namespace
Tensor kaiming_uniform_(Tensor t, double slope, FanMode mode, const std::string& nonlinearity) {
  double bound = std::sqrt(3.0) * kaiming_std("kaiming_uniform_", t, slope, mode, nonlinearity);
  return uniform_(std::move(t), -bound, bound);
}
Tensor kaiming_normal_(Tensor t, double slope, FanMode mode, const std::string& nonlinearity) {
  double std = kaiming_std("kaiming_normal_", t, slope, mode, nonlinearity);
  return normal_(std::move(t), 0, std);
}

}  // namespace tutti::nn::init
