#include "ops/blocked/blocked.h"
#include "ops/reduce/lanes.h"

namespace tutti {
namespace {

using V = pointwise::Vec<float, 16>;

// fold_rows() of src/ops/reduce/fold.isa.cpp with a vector of channels in place of each number.

// Up to 1024 pixels: fold_medium_row(). There, elements of a row go to two vectors in turn, which are the 32 sums here.
V sum_medium(const float* x, int64_t pixels) {
  constexpr int N = 16;
  auto pixel = [&](int64_t i) { return V::load(x + i * 16); };
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
  return V(0) + sum[0];
}

// Above: accumulate() of rows of 64, every 16 of which go to sums of their own first, then narrow().
V sum_long(const float* x, int64_t pixels) {
  constexpr int64_t N = 64, kFew = 16 * N;
  auto pixel = [&](int64_t i) { return V::load(x + i * 16); };
  V total[N], sum[N];
  for (V& t : total) t = V(0);
  int64_t whole = pixels / N * N;
  for (int64_t first = 0; first < whole; first += kFew) {
    for (int64_t k = 0; k < N; ++k) sum[k] = pixel(first + k);
    for (int64_t i = first + N; i < whole && i < first + kFew; i += N)
      for (int64_t k = 0; k < N; ++k) sum[k] = sum[k] + pixel(i + k);
    for (int64_t k = 0; k < N; ++k) total[k] = total[k] + sum[k];
  }
  for (int64_t i = whole; i < pixels; ++i) total[i - whole] = total[i - whole] + pixel(i);
  for (int64_t half = N / 2; half > 0; half /= 2)
    for (int64_t k = 0; k < half; ++k) total[k] = total[k] + total[k + half];
  return total[0];
}

}  // namespace

TUTTI_ISA_DEFINE(sum_blocks, void, (const float* x, int64_t images, int64_t pixels, float* sums)) {
  for (int64_t n = 0; n < images; ++n, x += pixels * 16, sums += 16)
    (pixels <= 1024 ? sum_medium(x, pixels) : sum_long(x, pixels)).store(sums);
}

}  // namespace tutti
