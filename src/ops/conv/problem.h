// What the three passes of a convolution work on. Σ y·(x∗w) is linear in x, w and y: the convolution and its two
// gradients are the derivatives of this one form by one of the three, and a Problem describes them all.
#pragma once

#include "tutti/shape.h"
#include "tutti/tensor.h"

namespace tutti::convolution {

enum class Pass : uint8_t { forward, data, weight };  // the pass computes y, x or w from the two others

struct Problem {
  Pass pass;
  int64_t groups;
  Shape x, w,
      y;  // [batch, channels, spatial...], [out channels, channels / groups, kernel...], [batch, out, spatial...]
  Shape stride, padding, dilation;
  size_t spatial() const { return stride.size(); }
};

/// The operands of a pass. Each is dense, either contiguous or channels-last, and all are of one dtype. For oneDNN, x
/// and y may lie in blocks (ops/blocked/blocked.h), each by itself.
struct Operands {
  Tensor x, w, y;
  Tensor bias;  // of the forward pass; maybe undefined
};

/// By its strides: a tensor of one channel, or of one pixel, can be either.
bool is_channels_last(const Tensor& t);

/// In f32, by oneDNN. False if it has no such convolution; then nothing has been written.
bool run_onednn(const Problem& p, const Operands& o);

/// Which of x and y oneDNN would have in blocks, whose channels these are. Only sizes and strides are looked at.
struct Wanted {
  bool x = false, y = false;
};
Wanted wanted_blocks(const Problem& p, const Operands& o);
/// An f32 image of these sizes, of which one lies in blocks.
void reorder_onednn(const Tensor& from, const Tensor& to, const Shape& sizes);

/// By matrix products over unfolded windows; f32 or f64, all operands contiguous.
void run_columns(const Problem& p, const Operands& o);

}  // namespace tutti::convolution
