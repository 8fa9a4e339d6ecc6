// Normalisation. Statistics of bf16 and f16 inputs are computed, and given, in f32. What is channels-last in memory
// stays so, in results and in gradients. Weights and biases may be left out.
#pragma once

#include "tutti/tensor.h"

namespace tutti {

/// Over the last dims, which have the sizes `normalized_shape`, as have weight and bias.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);
/// x / sqrt(mean(x²) + eps) · weight: as layer_norm, but the mean is not taken away.
Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {}, double eps = 1e-6);

/// x is [batch, channels, ...]; over each group of channels of each entry. weight and bias have an entry a channel.
Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);

/// x is [batch, channels, ...]; over everything but the channels. In training the statistics are the batch's, and the
/// running ones (where given) move towards them in place by `momentum`, the variance by its unbiased estimate;
/// otherwise the running ones are used.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum = 0.1, double eps = 1e-5);
/// Over each channel of each entry of x, [batch, channels, spatial...]. Running statistics as in batch_norm.
Tensor instance_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                     const Tensor& running_mean = {}, const Tensor& running_var = {}, bool use_input_statistics = true,
                     double momentum = 0.1, double eps = 1e-5);

// ---- The parts of batch_norm, for those who combine the statistics of several batches: all of them differentiable.

struct BatchStatistics {
  Tensor mean, var;  // [channels]; the variance is that of the batch itself (divided by count)
  int64_t count;     // elements of each channel
};
BatchStatistics batch_norm_statistics(const Tensor& x);
/// (x - mean) / sqrt(var + eps) · weight + bias
Tensor batch_norm_apply(const Tensor& x, const Tensor& mean, const Tensor& var, const Tensor& weight = {},
                        const Tensor& bias = {}, double eps = 1e-5);

}  // namespace tutti
