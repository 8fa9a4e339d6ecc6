// Moving boxes of elements between two strided places: what flip, roll, repeat, cat and pad have in common. Elements
// are moved as bytes, so that twelve dtypes need five loops.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/small_vector.h"
#include "tutti/tensor.h"

namespace tutti {

/// Dims as users count them (from the front) and as containers do.
inline size_t position(int64_t dim) { return static_cast<size_t>(dim); }
constexpr int64_t kBoxGrain = 32768;  // elements a thread takes at a time

/// An element of `Size` bytes, whatever it means. Alignment 1: rows of several elements are moved as one, too.
template <int Size>
struct Bytes {
  std::byte bytes[Size];
};

/// Calls f.template operator()<Bytes<n>>() for an element size: 1, 2, 4, 8 or 16.
template <class F>
decltype(auto) with_bytes(size_t size, F&& f) {
  switch (size) {
    case 1:
      return f.template operator()<Bytes<1>>();
    case 2:
      return f.template operator()<Bytes<2>>();
    case 4:
      return f.template operator()<Bytes<4>>();
    case 8:
      return f.template operator()<Bytes<8>>();
    default:
      return f.template operator()<Bytes<16>>();
  }
}

struct BoxDim {
  int64_t size;
  int64_t to, from;  // strides in elements; `from` may be negative or, to repeat, zero
};
using BoxDims = SmallVector<BoxDim, 8>;

/// Copies the elements of `element` bytes that lie at `from` to `to`. The two places must not overlap.
void move_box(std::byte* to, const std::byte* from, size_t element, BoxDims dims);

/// The first byte of a tensor's data; null where it has none.
std::byte* bytes_of(const Tensor& x);

}  // namespace tutti
