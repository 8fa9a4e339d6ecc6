// Pooling layers.
#pragma once

#include "tutti/nn/module.h"
#include "tutti/ops/pool.h"

namespace tutti::nn {

struct MaxPool1d : Module<MaxPool1d> {
  Shape kernel;
  MaxPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  template <std::integral I>  // MaxPool1d({2}), which could also mean a copy
  explicit MaxPool1d(const I (&kernel)[1], const MaxPoolOptions& options = {}) : MaxPool1d(Shape(kernel[0]), options) {}
  explicit MaxPool1d(const Shape& kernel, const MaxPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return max_pool1d(x, kernel, options); }
};
struct AvgPool1d : Module<AvgPool1d> {
  Shape kernel;
  AvgPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  template <std::integral I>  // AvgPool1d({2}), which could also mean a copy
  explicit AvgPool1d(const I (&kernel)[1], const AvgPoolOptions& options = {}) : AvgPool1d(Shape(kernel[0]), options) {}
  explicit AvgPool1d(const Shape& kernel, const AvgPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return avg_pool1d(x, kernel, options); }
};
struct AdaptiveAvgPool1d : Module<AdaptiveAvgPool1d> {
  Shape output;
  TUTTI_FIELDS(output)
  template <std::integral I>  // AdaptiveAvgPool1d({2}), which could also mean a copy
  explicit AdaptiveAvgPool1d(const I (&output)[1]) : AdaptiveAvgPool1d(Shape(output[0])) {}
  explicit AdaptiveAvgPool1d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_avg_pool1d(x, output); }
};
struct AdaptiveMaxPool1d : Module<AdaptiveMaxPool1d> {
  Shape output;
  TUTTI_FIELDS(output)
  template <std::integral I>  // AdaptiveMaxPool1d({2}), which could also mean a copy
  explicit AdaptiveMaxPool1d(const I (&output)[1]) : AdaptiveMaxPool1d(Shape(output[0])) {}
  explicit AdaptiveMaxPool1d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_max_pool1d(x, output); }
};

struct MaxPool2d : Module<MaxPool2d> {
  Shape kernel;
  MaxPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  template <std::integral I>  // MaxPool2d({2}), which could also mean a copy
  explicit MaxPool2d(const I (&kernel)[1], const MaxPoolOptions& options = {}) : MaxPool2d(Shape(kernel[0]), options) {}
  explicit MaxPool2d(const Shape& kernel, const MaxPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return max_pool2d(x, kernel, options); }
};
struct AvgPool2d : Module<AvgPool2d> {
  Shape kernel;
  AvgPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  template <std::integral I>  // AvgPool2d({2}), which could also mean a copy
  explicit AvgPool2d(const I (&kernel)[1], const AvgPoolOptions& options = {}) : AvgPool2d(Shape(kernel[0]), options) {}
  explicit AvgPool2d(const Shape& kernel, const AvgPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return avg_pool2d(x, kernel, options); }
};
struct AdaptiveAvgPool2d : Module<AdaptiveAvgPool2d> {
  Shape output;
  TUTTI_FIELDS(output)
  template <std::integral I>  // AdaptiveAvgPool2d({2}), which could also mean a copy
  explicit AdaptiveAvgPool2d(const I (&output)[1]) : AdaptiveAvgPool2d(Shape(output[0])) {}
  explicit AdaptiveAvgPool2d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_avg_pool2d(x, output); }
};
struct AdaptiveMaxPool2d : Module<AdaptiveMaxPool2d> {
  Shape output;
  TUTTI_FIELDS(output)
  template <std::integral I>  // AdaptiveMaxPool2d({2}), which could also mean a copy
  explicit AdaptiveMaxPool2d(const I (&output)[1]) : AdaptiveMaxPool2d(Shape(output[0])) {}
  explicit AdaptiveMaxPool2d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_max_pool2d(x, output); }
};

struct MaxPool3d : Module<MaxPool3d> {
  Shape kernel;
  MaxPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  template <std::integral I>  // MaxPool3d({2}), which could also mean a copy
  explicit MaxPool3d(const I (&kernel)[1], const MaxPoolOptions& options = {}) : MaxPool3d(Shape(kernel[0]), options) {}
  explicit MaxPool3d(const Shape& kernel, const MaxPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return max_pool3d(x, kernel, options); }
};
struct AvgPool3d : Module<AvgPool3d> {
  Shape kernel;
  AvgPoolOptions options;
  TUTTI_FIELDS(kernel, options)
  template <std::integral I>  // AvgPool3d({2}), which could also mean a copy
  explicit AvgPool3d(const I (&kernel)[1], const AvgPoolOptions& options = {}) : AvgPool3d(Shape(kernel[0]), options) {}
  explicit AvgPool3d(const Shape& kernel, const AvgPoolOptions& options = {}) : kernel(kernel), options(options) {}
  Tensor forward(const Tensor& x) { return avg_pool3d(x, kernel, options); }
};
struct AdaptiveAvgPool3d : Module<AdaptiveAvgPool3d> {
  Shape output;
  TUTTI_FIELDS(output)
  template <std::integral I>  // AdaptiveAvgPool3d({2}), which could also mean a copy
  explicit AdaptiveAvgPool3d(const I (&output)[1]) : AdaptiveAvgPool3d(Shape(output[0])) {}
  explicit AdaptiveAvgPool3d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_avg_pool3d(x, output); }
};
struct AdaptiveMaxPool3d : Module<AdaptiveMaxPool3d> {
  Shape output;
  TUTTI_FIELDS(output)
  template <std::integral I>  // AdaptiveMaxPool3d({2}), which could also mean a copy
  explicit AdaptiveMaxPool3d(const I (&output)[1]) : AdaptiveMaxPool3d(Shape(output[0])) {}
  explicit AdaptiveMaxPool3d(const Shape& output) : output(output) {}
  Tensor forward(const Tensor& x) { return adaptive_max_pool3d(x, output); }
};

// Compiled once, in src/nn/layers.cpp.
extern template class Module<MaxPool1d>;
extern template class Module<AvgPool1d>;
extern template class Module<AdaptiveAvgPool1d>;
extern template class Module<AdaptiveMaxPool1d>;
extern template class Module<MaxPool2d>;
extern template class Module<AvgPool2d>;
extern template class Module<AdaptiveAvgPool2d>;
extern template class Module<AdaptiveMaxPool2d>;
extern template class Module<MaxPool3d>;
extern template class Module<AvgPool3d>;
extern template class Module<AdaptiveAvgPool3d>;
extern template class Module<AdaptiveMaxPool3d>;

}  // namespace tutti::nn
