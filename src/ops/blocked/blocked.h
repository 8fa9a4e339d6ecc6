// Images with channels in blocks, as oneDNN's convolutions want them: [batch, channels, height, width] is
// [batch, channels / 16, height, width, 16], contiguous. Operators of programs never see such tensors; the compiler's
// pass of that name puts the operators below in place of those that programs call, and they give the same bits.
#pragma once

#include <memory>
#include <span>

#include "base/isa.h"
#include "tutti/operator.h"

namespace tutti::blocked {

inline constexpr int64_t kChannels = 16;  // of a block

Shape blocked_sizes(const Shape& plain);
Shape plain_sizes(const Shape& blocked);
/// By sizes alone: whether such an image can lie in blocks.
bool divides(const Shape& plain);

/// Between the two ways to lie in memory.
const Operator& to_blocked();
const Operator& from_blocked();

/// What does the same as an operator, with some operands in blocks.
struct Form {
  const Operator* op = nullptr;  // null: nothing does
  Attributes attributes = {};
  std::shared_ptr<const void> owner = {};  // of the attributes; null: they are those that were given
  uint32_t inputs = 0, outputs = 0;        // bit k: operand k lies in blocks
  bool wants = false;                      // without blocks it would make them itself
};
struct Asked {
  const Operator& op;
  Attributes attributes;
  std::span<const Shape> inputs, outputs;  // sizes; those of tensors that are not there are empty
};

/// Of operators that know the number of their channels. Operands that are images are contiguous, and f32 (or indices).
Form form_of(const Asked& asked);

// ---- Of the families

Form convolution_form(const Asked& asked);
Form norm_form(const Asked& asked);
Form pool_form(const Asked& asked);
Form sum_form(const Asked& asked);

/// f32 images to and fro, one of them in blocks.
void reorder(const Tensor& from, const Tensor& to);

// ---- batch_norm and what is done to its images in the same pass over memory. See Note [Norms and their neighbours].

/// (x, weight, bias[, added]) → (y, mean, variance), where y is relu(added + what batch_norm gives), or less than that.
struct Norm {
  double eps;
  bool relu = false;
  TUTTI_FIELDS(eps, relu)
};
/// (g, x, weight, mean, variance[, y]) → (dx, dweight, dbias[, Σ dx][, left]). With `relu`, g is the gradient of
/// relu's results y, and what relu leaves of it goes on; `keeps`: and is given as `left`. `sums`: Σ dx over all but the
/// channels is given.
struct NormGradient {
  double eps;
  bool relu = false, sums = false, keeps = false;
  TUTTI_FIELDS(eps, relu, sums, keeps)
};
const Operator& norm();
const Operator& norm_gradient();

/// sum() over all but the channels.
const Operator& sum();
/// Its second step, from the sums of images [batch, channels].
void add_rows(const Tensor& rows, const Tensor& out);

}  // namespace tutti::blocked

namespace tutti {

/// Σ over the pixels of images [images, pixels, 16] as sum() adds up rows of 32 to 8192 elements: [images, 16].
TUTTI_ISA_DECLARE(sum_blocks, void, (const float* x, int64_t images, int64_t pixels, float* sums))

}  // namespace tutti
