// Convolution layers: nn::Conv2d(3, 32, 3, {.stride = 2, .padding = 1}). A Shape of one entry stands for all spatial
// dims.
#pragma once

#include "tutti/nn/module.h"
#include "tutti/ops.h"
#include "tutti/ops/conv.h"

namespace tutti {
const char* to_string(PadMode mode);
}

namespace tutti::nn {

struct ConvLayerOptions {
  Shape stride = 1;
  Shape padding = 0;
  Shape dilation = 1;
  int64_t groups = 1;
  bool bias = true;
  bool same = false;                         // pads so that the spatial sizes stay (stride 1); instead of `padding`
  PadMode padding_mode = PadMode::constant;  // what the padding is filled with: zeros, or the input's own values
  TUTTI_FIELDS(stride, padding, dilation, groups, bias, same, padding_mode)
};
struct ConvTransposeLayerOptions {
  Shape stride = 1;
  Shape padding = 0;
  Shape output_padding = 0;
  Shape dilation = 1;
  int64_t groups = 1;
  bool bias = true;
  TUTTI_FIELDS(stride, padding, output_padding, dilation, groups, bias)
};

namespace detail {
struct ConvParts {
  Tensor weight, bias;
};
ConvParts make_conv(const char* layer, int64_t dims, int64_t first, int64_t second, int64_t fan_in_channels,
                    int64_t out, const Shape& kernel, bool bias);
Tensor run_conv(int64_t dims, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const ConvLayerOptions& options);
Tensor run_conv_transpose(int64_t dims, const Tensor& x, const Tensor& weight, const Tensor& bias,
                          const ConvTransposeLayerOptions& options);
void check_groups(const char* layer, int64_t in, int64_t out, int64_t groups);
void check_options(const char* layer, int64_t dims, const ConvLayerOptions& options);
void check_options(const char* layer, int64_t dims, const ConvTransposeLayerOptions& options);

template <class Derived, int64_t N>
struct ConvLayer : Module<Derived> {
  Parameter weight, bias;  // [out, in / groups, kernel...], [out]
  ConvLayerOptions options;
  TUTTI_FIELDS(weight, bias, options)

  ConvLayer(int64_t in, int64_t out, const Shape& kernel, const ConvLayerOptions& options = {}) : options(options) {
    constexpr const char* name = N == 1 ? "Conv1d" : N == 2 ? "Conv2d" : "Conv3d";
    check_groups(name, in, out, options.groups);
    check_options(name, N, options);
    auto parts = make_conv(name, N, out, in / options.groups, in / options.groups, out, kernel, options.bias);
    weight = parts.weight;
    bias = Parameter(parts.bias);
  }
  Tensor forward(const Tensor& x) { return run_conv(N, x, weight, bias, options); }
};

template <class Derived, int64_t N>
struct ConvTransposeLayer : Module<Derived> {
  Parameter weight, bias;  // [in, out / groups, kernel...], [out]
  ConvTransposeLayerOptions options;
  TUTTI_FIELDS(weight, bias, options)

  ConvTransposeLayer(int64_t in, int64_t out, const Shape& kernel, const ConvTransposeLayerOptions& options = {})
      : options(options) {
    constexpr const char* name = N == 1 ? "ConvTranspose1d" : N == 2 ? "ConvTranspose2d" : "ConvTranspose3d";
    check_groups(name, in, out, options.groups);
    check_options(name, N, options);
    auto parts = make_conv(name, N, in, out / options.groups, out / options.groups, out, kernel, options.bias);
    weight = parts.weight;
    bias = Parameter(parts.bias);
  }
  Tensor forward(const Tensor& x) { return run_conv_transpose(N, x, weight, bias, options); }
};
}  // namespace detail

struct Conv1d : detail::ConvLayer<Conv1d, 1> {
  using ConvLayer::ConvLayer;
};
struct Conv2d : detail::ConvLayer<Conv2d, 2> {
  using ConvLayer::ConvLayer;
};
struct Conv3d : detail::ConvLayer<Conv3d, 3> {
  using ConvLayer::ConvLayer;
};
struct ConvTranspose1d : detail::ConvTransposeLayer<ConvTranspose1d, 1> {
  using ConvTransposeLayer::ConvTransposeLayer;
};
struct ConvTranspose2d : detail::ConvTransposeLayer<ConvTranspose2d, 2> {
  using ConvTransposeLayer::ConvTransposeLayer;
};
struct ConvTranspose3d : detail::ConvTransposeLayer<ConvTranspose3d, 3> {
  using ConvTransposeLayer::ConvTransposeLayer;
};

// Compiled once, in src/nn/layers.cpp.
extern template class Module<Conv1d>;
extern template class Module<Conv2d>;
extern template class Module<Conv3d>;
extern template class Module<ConvTranspose1d>;
extern template class Module<ConvTranspose2d>;
extern template class Module<ConvTranspose3d>;

}  // namespace tutti::nn
