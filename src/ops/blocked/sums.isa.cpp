#include "ops/blocked/blocked.h"
#include "ops/reduce/lanes.h"

namespace tutti {
namespace {

// fold_medium_row() of src/ops/reduce/fold.isa.cpp with a vector of channels in place of each number. There, elements
// of a row go to two vectors in turn: these are the 32 sums here.
void sum_image(const float* x, int64_t pixels, float* sums) {
  using V = pointwise::Vec<float, 16>;
  constexpr int N = 16;
  auto pixel = [&](int64_t i) { return V::load(x + i * N); };
  V sum[2 * N];
  for (int k = 0; k < 2 * N; ++k) sum[k] = pixel(k);
  int64_t i = 2 * N;
  for (; i + 2 * N <= pixels; i += 2 * N)
    for (int k = 0; k < 2 * N; ++k) sum[k] = sum[k] + pixel(i + k);
  for (int k = 0; k < N; ++k) sum[k] = sum[k] + sum[k + N];
  if (i + N <= pixels) {
    for (int k = 0; k < N; ++k) sum[k] = sum[k] + pixel(i + k);
    i += N;
  }
  for (int half = N / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) sum[k] = sum[k] + sum[k + half];
  for (; i < pixels; ++i) sum[0] = sum[0] + pixel(i);
  (V(0) + sum[0]).store(sums);
}

}  // namespace

TUTTI_ISA_DEFINE(sum_blocks, void, (const float* x, int64_t images, int64_t pixels, float* sums)) {
  for (int64_t n = 0; n < images; ++n) sum_image(x + n * pixels * 16, pixels, sums + n * 16);
}

}  // namespace tutti
