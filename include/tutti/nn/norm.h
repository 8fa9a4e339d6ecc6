// Normalising layers.
#pragma once

#include "tutti/nn/module.h"
#include "tutti/ops.h"
#include "tutti/ops/norm.h"

namespace tutti::nn {

struct NormOptions {
  double eps = 1e-5;
  bool affine = true;  // has weight and bias
  bool bias = true;
};

struct LayerNorm : Module<LayerNorm> {
  Shape normalized_shape;
  double eps;
  Parameter weight, bias;
  TUTTI_FIELDS(normalized_shape, eps, weight, bias)
  template <std::integral I>  // LayerNorm({2}), which could also mean a copy
  explicit LayerNorm(const I (&normalized_shape)[1], const NormOptions& options = {})
      : LayerNorm(Shape(normalized_shape[0]), options) {}
  explicit LayerNorm(const Shape& normalized_shape, const NormOptions& options = {});
  Tensor forward(const Tensor& x) { return layer_norm(x, normalized_shape, weight, bias, eps); }
};

struct RMSNormOptions {
  double eps = 1e-6;
  bool affine = true;  // has a weight
};
struct RMSNorm : Module<RMSNorm> {
  Shape normalized_shape;
  double eps;
  Parameter weight;
  TUTTI_FIELDS(normalized_shape, eps, weight)
  template <std::integral I>  // RMSNorm({2}), which could also mean a copy
  explicit RMSNorm(const I (&normalized_shape)[1], const RMSNormOptions& options = {})
      : RMSNorm(Shape(normalized_shape[0]), options) {}
  explicit RMSNorm(const Shape& normalized_shape, const RMSNormOptions& options = {});
  Tensor forward(const Tensor& x) { return rms_norm(x, normalized_shape, weight, eps); }
};

struct GroupNorm : Module<GroupNorm> {
  int64_t groups;
  double eps;
  Parameter weight, bias;
  TUTTI_FIELDS(groups, eps, weight, bias)
  GroupNorm(int64_t groups, int64_t channels, const NormOptions& options = {});
  Tensor forward(const Tensor& x) { return group_norm(x, groups, weight, bias, eps); }
};

struct BatchNormOptions {
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;  // none: the running statistics are plain averages of all batches
  bool affine = true;
  bool track_running_stats = true;  // otherwise the batch's own statistics are used in evaluation too
  TUTTI_FIELDS(eps, momentum, affine, track_running_stats)
};
/// The same with the defaults that instances want: each has statistics of its own, and nothing is learnt.
struct InstanceNormOptions {
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;
  bool affine = false;
  bool track_running_stats = false;
  operator BatchNormOptions() const { return {eps, momentum, affine, track_running_stats}; }  // NOLINT
};

/// Where the statistics of a batch come from, when not from the batch alone: see parallel::sync_batch_norms. It gives
/// those of all batches that count, differentiably.
using StatisticsSource = std::function<BatchStatistics(const Tensor& x)>;

namespace detail {
Tensor run_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& mean, Tensor& var,
                      Tensor& batches, const BatchNormOptions& options, bool training, bool instance,
                      const StatisticsSource* source);
void check_dims(const char* layer, const Tensor& x, int64_t least, int64_t most);
void check_options(const std::type_info& layer, int64_t channels, const BatchNormOptions& options);

template <class Derived, int64_t Least, int64_t Most, bool Instance>
struct BatchNormLayer : Module<Derived> {
  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;
  BatchNormOptions options;
  std::shared_ptr<const StatisticsSource> statistics;  // null: the batch
  TUTTI_FIELDS(weight, bias, running_mean, running_var, num_batches_tracked, options, statistics)

  BatchNormLayer(int64_t channels, const BatchNormOptions& options) : options(options) {
    check_options(typeid(Derived), channels, options);
    if (options.affine) {
      weight = ones({channels});
      bias = zeros({channels});
    }
    if (options.track_running_stats) {
      running_mean = zeros({channels});
      running_var = ones({channels});
      num_batches_tracked = full({}, 0, {.dtype = DType::i64});
    }
  }
  Tensor forward(const Tensor& x) {
    check_dims(Instance ? "InstanceNorm" : "BatchNorm", x, Least, Most);
    return run_batch_norm(x, weight, bias, running_mean, running_var, num_batches_tracked, options, this->is_training(),
                          Instance, statistics.get());
  }
};
}  // namespace detail

struct BatchNorm1d : detail::BatchNormLayer<BatchNorm1d, 2, 3, false> {
  explicit BatchNorm1d(int64_t channels, const BatchNormOptions& options = {}) : BatchNormLayer(channels, options) {}
};
struct BatchNorm2d : detail::BatchNormLayer<BatchNorm2d, 4, 4, false> {
  explicit BatchNorm2d(int64_t channels, const BatchNormOptions& options = {}) : BatchNormLayer(channels, options) {}
};
struct BatchNorm3d : detail::BatchNormLayer<BatchNorm3d, 5, 5, false> {
  explicit BatchNorm3d(int64_t channels, const BatchNormOptions& options = {}) : BatchNormLayer(channels, options) {}
};
struct InstanceNorm1d : detail::BatchNormLayer<InstanceNorm1d, 3, 3, true> {
  explicit InstanceNorm1d(int64_t channels, const InstanceNormOptions& options = {})
      : BatchNormLayer(channels, options) {}
};
struct InstanceNorm2d : detail::BatchNormLayer<InstanceNorm2d, 4, 4, true> {
  explicit InstanceNorm2d(int64_t channels, const InstanceNormOptions& options = {})
      : BatchNormLayer(channels, options) {}
};
struct InstanceNorm3d : detail::BatchNormLayer<InstanceNorm3d, 5, 5, true> {
  explicit InstanceNorm3d(int64_t channels, const InstanceNormOptions& options = {})
      : BatchNormLayer(channels, options) {}
};

// Compiled once, in src/nn/layers.cpp.
extern template class Module<LayerNorm>;
extern template class Module<RMSNorm>;
extern template class Module<GroupNorm>;
extern template class Module<BatchNorm1d>;
extern template class Module<BatchNorm2d>;
extern template class Module<BatchNorm3d>;
extern template class Module<InstanceNorm1d>;
extern template class Module<InstanceNorm2d>;
extern template class Module<InstanceNorm3d>;

}  // namespace tutti::nn
