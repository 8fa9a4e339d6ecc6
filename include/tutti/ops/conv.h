// Convolutions in one, two and three spatial dims. x is [batch, channels, spatial...], or without the batch; what is
// channels-last in memory stays so, in results and in gradients. A Shape with one entry stands for all spatial dims.
// Large 3×3 convolutions in f32 use Winograd's algorithm: twice as fast, off by millionths of the largest result, and
// an infinity or NaN spoils up to 4×4 pixels. TUTTI_WINOGRAD=0 in the environment turns it off.
#pragma once

#include "tutti/tensor.h"

namespace tutti {

struct ConvOptions {
  Shape stride = 1;
  Shape padding = 0;  // zeros on both sides; for other kinds pad() first
  Shape dilation = 1;
  int64_t groups = 1;
};
/// weight is [out channels, channels / groups, kernel...], bias [out channels] or nothing.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});

struct ConvTransposeOptions {
  Shape stride = 1;
  Shape padding = 0;         // taken away on both sides of the result
  Shape output_padding = 0;  // added to the end of the result: says which of the sizes that a convolution maps to x's
  Shape dilation = 1;
  int64_t groups = 1;
};
/// The transpose of a convolution (its gradient by the input). weight is [channels, out channels / groups, kernel...].
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTransposeOptions& options = {});
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTransposeOptions& options = {});
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTransposeOptions& options = {});

/// The gradients of a batched 2d or 3d convolution, themselves differentiable: by x, whose sizes are given,
Tensor conv_backward_data(const Tensor& gradient, const Tensor& weight, const Shape& x_sizes,
                          const ConvOptions& options = {});
/// and by the weight, whose sizes are given.
Tensor conv_backward_weight(const Tensor& gradient, const Tensor& x, const Shape& weight_sizes,
                            const ConvOptions& options = {});

/// The pads, as pad() takes them, with which a convolution of stride 1 keeps the spatial sizes. Where they cannot be
/// equal on both sides, the one behind is larger.
Shape same_pads(const Shape& kernel, const Shape& dilation = 1);

}  // namespace tutti
