// Pooling layers.
#pragma once

#include "tutti/nn/module.h"
#include "tutti/ops/pool.h"

namespace tutti::nn {

struct MaxPool1d : Module<MaxPool1d> {
  Shape kernel;
  MaxPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  explicit MaxPool1d(const Shape& kernel, const MaxPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return max_pool1d(x, kernel, options); }
};
struct AvgPool1d : Module<AvgPool1d> {
  Shape kernel;
  AvgPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  explicit AvgPool1d(const Shape& kernel, const AvgPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return avg_pool1d(x, kernel, options); }
};
struct AdaptiveAvgPool1d : Module<AdaptiveAvgPool1d> {
  Shape output;
  TUTTI_FIELDS(output)
  explicit AdaptiveAvgPool1d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_avg_pool1d(x, output); }
};
struct AdaptiveMaxPool1d : Module<AdaptiveMaxPool1d> {
  Shape output;
  TUTTI_FIELDS(output)
  explicit AdaptiveMaxPool1d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_max_pool1d(x, output); }
};

struct MaxPool2d : Module<MaxPool2d> {
  Shape kernel;
  MaxPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  explicit MaxPool2d(const Shape& kernel, const MaxPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return max_pool2d(x, kernel, options); }
};
struct AvgPool2d : Module<AvgPool2d> {
  Shape kernel;
  AvgPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  explicit AvgPool2d(const Shape& kernel, const AvgPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return avg_pool2d(x, kernel, options); }
};
struct AdaptiveAvgPool2d : Module<AdaptiveAvgPool2d> {
  Shape output;
  TUTTI_FIELDS(output)
  explicit AdaptiveAvgPool2d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_avg_pool2d(x, output); }
};
struct AdaptiveMaxPool2d : Module<AdaptiveMaxPool2d> {
  Shape output;
  TUTTI_FIELDS(output)
  explicit AdaptiveMaxPool2d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_max_pool2d(x, output); }
};

struct MaxPool3d : Module<MaxPool3d> {
  Shape kernel;
  MaxPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  explicit MaxPool3d(const Shape& kernel, const MaxPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return max_pool3d(x, kernel, options); }
};
struct AvgPool3d : Module<AvgPool3d> {
  Shape kernel;
  AvgPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  explicit AvgPool3d(const Shape& kernel, const AvgPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return avg_pool3d(x, kernel, options); }
};
struct AdaptiveAvgPool3d : Module<AdaptiveAvgPool3d> {
  Shape output;
  TUTTI_FIELDS(output)
  explicit AdaptiveAvgPool3d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_avg_pool3d(x, output); }
};
struct AdaptiveMaxPool3d : Module<AdaptiveMaxPool3d> {
  Shape output;
  TUTTI_FIELDS(output)
  explicit AdaptiveMaxPool3d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_max_pool3d(x, output); }
};

}  // namespace tutti::nn
