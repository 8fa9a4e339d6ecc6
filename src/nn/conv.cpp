#include "tutti/nn/conv.h"

#include <cmath>

#include "base/check.h"
#include "tutti/nn/init.h"

namespace tutti {
const char* to_string(PadMode mode) {
  constexpr const char* names[] = {"constant", "reflect", "replicate", "circular"};
  return names[static_cast<size_t>(mode)];
}
}  // namespace tutti

namespace tutti::nn::detail {
namespace {
void check_entries(const char* layer, const char* what, const Shape& given, int64_t dims, int64_t least) {
  check<ShapeError>(given.size() == 1 || static_cast<int64_t>(given.size()) == dims, layer,
                    "takes a {} of one entry or {}, not {}", what, dims, given);
  for (int64_t n : given) check<ValueError>(n >= least, layer, "takes a {} of {} or more, not {}", what, least, given);
}
}  // namespace

void check_options(const char* layer, int64_t dims, const ConvLayerOptions& o) {
  check_entries(layer, "stride", o.stride, dims, 1);
  check_entries(layer, "padding", o.padding, dims, 0);
  check_entries(layer, "dilation", o.dilation, dims, 1);
  if (!o.same) return;
  for (int64_t n : o.stride) check<ValueError>(n == 1, layer, "'same' padding is for stride 1, not {}", o.stride);
  for (int64_t n : o.padding) check<ValueError>(n == 0, layer, "takes 'same' or a padding, not both ({})", o.padding);
}
void check_options(const char* layer, int64_t dims, const ConvTransposeLayerOptions& o) {
  check_entries(layer, "stride", o.stride, dims, 1);
  check_entries(layer, "padding", o.padding, dims, 0);
  check_entries(layer, "output_padding", o.output_padding, dims, 0);
  check_entries(layer, "dilation", o.dilation, dims, 1);
}

void check_groups(const char* layer, int64_t in, int64_t out, int64_t groups) {
  check<ValueError>(in > 0 && out > 0 && groups > 0 && in % groups == 0 && out % groups == 0, layer,
                    "{} channels to {} do not divide into {} groups", in, out, groups);
}

ConvParts make_conv(const char* layer, int64_t dims, int64_t first, int64_t second, int64_t fan_in_channels,
                    int64_t out, const Shape& kernel, bool bias) {
  check_entries(layer, "kernel", kernel, dims, 1);
  Shape sizes{first, second};
  int64_t taps = 1;
  for (int64_t d = 0; d < dims; ++d) {
    sizes.push_back(kernel[kernel.size() == 1 ? 0 : static_cast<size_t>(d)]);
    taps *= sizes.back();
  }
  double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, fan_in_channels * taps)));
  ConvParts parts{init::uniform_(empty(sizes), -bound, bound), {}};
  if (bias) parts.bias = init::uniform_(empty({out}), -bound, bound);
  return parts;
}

Tensor run_conv(int64_t dims, const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvLayerOptions& o) {
  ConvOptions options{o.stride, o.padding, o.dilation, o.groups};
  Tensor padded = x;
  auto at = [](const Shape& s, int64_t d) { return s[s.size() == 1 ? 0 : static_cast<size_t>(d)]; };
  Shape pads;  // as pad() wants them: the last dim first
  if (o.same) {
    Shape kernel(std::span<const int64_t>(weight.sizes().data() + 2, static_cast<size_t>(dims)));
    pads = same_pads(kernel, o.dilation);
  } else if (o.padding_mode != PadMode::constant) {
    for (int64_t d = dims; d-- > 0;) {
      pads.push_back(at(o.padding, d));
      pads.push_back(at(o.padding, d));
    }
  }
  if (!pads.empty()) {
    padded = pad(x, pads, o.padding_mode);
    options.padding = 0;
  }
  if (dims == 1) return conv1d(padded, weight, bias, options);
  return dims == 2 ? conv2d(padded, weight, bias, options) : conv3d(padded, weight, bias, options);
}

Tensor run_conv_transpose(int64_t dims, const Tensor& x, const Tensor& weight, const Tensor& bias,
                          const ConvTransposeLayerOptions& o) {
  ConvTransposeOptions options{o.stride, o.padding, o.output_padding, o.dilation, o.groups};
  if (dims == 1) return conv_transpose1d(x, weight, bias, options);
  return dims == 2 ? conv_transpose2d(x, weight, bias, options) : conv_transpose3d(x, weight, bias, options);
}

}  // namespace tutti::nn::detail
