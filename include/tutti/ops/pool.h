// Pooling in one, two and three spatial dims. x is [batch, channels, spatial...], or without the batch; what is
// channels-last in memory stays so. A Shape with one entry stands for all spatial dims.
#pragma once

#include <optional>

#include "tutti/fields.h"
#include "tutti/tensor.h"

namespace tutti {

struct MaxPoolOptions {
  Shape stride = {};  // empty: the kernel
  Shape padding = 0;  // of -∞, at most half of the kernel
  Shape dilation = 1;
  bool ceil_mode = false;  // a last window may hang over the end
  TUTTI_FIELDS(stride, padding, dilation, ceil_mode)
};
/// NaN counts as the largest.
Tensor max_pool1d(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options = {});
Tensor max_pool2d(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options = {});
Tensor max_pool3d(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options = {});
/// Also where each value came from: i64, counted through the spatial dims of x in row-major order.
ValuesIndices max_pool1d_with_indices(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options = {});
ValuesIndices max_pool2d_with_indices(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options = {});
ValuesIndices max_pool3d_with_indices(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options = {});

struct AvgPoolOptions {
  Shape stride = {};  // empty: the kernel
  Shape padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;                 // the zeros of the padding count as elements
  std::optional<int64_t> divisor_override = {};  // divide by this instead of the number of elements
  TUTTI_FIELDS(stride, padding, ceil_mode, count_include_pad, divisor_override)
};
Tensor avg_pool1d(const Tensor& x, const Shape& kernel, const AvgPoolOptions& options = {});
Tensor avg_pool2d(const Tensor& x, const Shape& kernel, const AvgPoolOptions& options = {});
Tensor avg_pool3d(const Tensor& x, const Shape& kernel, const AvgPoolOptions& options = {});

/// Windows chosen so that the result has the spatial sizes `output`; -1 keeps x's.
Tensor adaptive_avg_pool1d(const Tensor& x, const Shape& output);
Tensor adaptive_avg_pool2d(const Tensor& x, const Shape& output);
Tensor adaptive_avg_pool3d(const Tensor& x, const Shape& output);
Tensor adaptive_max_pool1d(const Tensor& x, const Shape& output);
Tensor adaptive_max_pool2d(const Tensor& x, const Shape& output);
Tensor adaptive_max_pool3d(const Tensor& x, const Shape& output);
ValuesIndices adaptive_max_pool1d_with_indices(const Tensor& x, const Shape& output);
ValuesIndices adaptive_max_pool2d_with_indices(const Tensor& x, const Shape& output);
ValuesIndices adaptive_max_pool3d_with_indices(const Tensor& x, const Shape& output);

}  // namespace tutti
