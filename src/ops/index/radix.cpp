// Least-significant-digit radix sort of packed items, in fixed pieces: stable, and parallel for long lists.
#include <algorithm>
#include <array>
#include <vector>

#include "base/parallel.h"
#include "ops/index/indices.h"

namespace tutti {
namespace {

constexpr int64_t kRadixPiece = 65536;  // items of a piece
constexpr int64_t kSmall = 512;         // shorter lists are sorted by comparison
constexpr int kDigit = 8;
constexpr size_t kValues = size_t{1} << kDigit;
using Histogram = std::array<int64_t, kValues>;

template <class T>
size_t digit(T item, int shift) {
  return static_cast<size_t>(static_cast<uint64_t>(item >> shift)) & (kValues - 1);
}

// One pass. False if all items have the same digit, so that nothing had to move.
template <class T>
bool pass(const T* from, T* to, int64_t count, int shift, std::vector<Histogram>& histograms) {
  parallel_for(count, kRadixPiece, [&](int64_t begin, int64_t end) {
    Histogram& h = histograms[static_cast<size_t>(begin / kRadixPiece)];
    h.fill(0);
    for (int64_t i = begin; i < end; ++i) ++h[digit(from[i], shift)];
  });
  // From counts to places: by digit, and within a digit by piece, which keeps the order.
  int64_t next = 0;
  for (size_t v = 0; v < kValues; ++v) {
    int64_t before = next;
    for (auto& h : histograms) next += std::exchange(h[v], next);
    if (next - before == count) return false;
  }
  parallel_for(count, kRadixPiece, [&](int64_t begin, int64_t end) {
    Histogram& h = histograms[static_cast<size_t>(begin / kRadixPiece)];
    for (int64_t i = begin; i < end; ++i) to[h[digit(from[i], shift)]++] = from[i];
  });
  return true;
}

template <class T>
void sort_items(T* items, T* scratch, int64_t count, int low, int high) {
  if (count <= kSmall) {
    std::sort(items, items + count);
    return;
  }
  std::vector<Histogram> histograms(static_cast<size_t>((count + kRadixPiece - 1) / kRadixPiece));
  T *from = items, *to = scratch;
  for (int shift = low; shift < high; shift += kDigit)
    if (pass(from, to, count, shift, histograms)) std::swap(from, to);
  if (from != items) std::copy(from, from + count, items);
}

}  // namespace

void radix_sort(uint64_t* items, uint64_t* scratch, int64_t count, int low, int high) {
  sort_items(items, scratch, count, low, high);
}
void radix_sort(Wide* items, Wide* scratch, int64_t count, int low, int high) {
  sort_items(items, scratch, count, low, high);
}

}  // namespace tutti
