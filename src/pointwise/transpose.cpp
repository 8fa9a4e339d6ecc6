#include "pointwise/transpose.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/parallel.h"

namespace tutti::pointwise {
namespace {

constexpr int64_t kLine = 64;              // bytes
constexpr int64_t kLeastElements = 1024;   // fewer are in the cache anyhow
constexpr int64_t kGrainBytes = 64 << 10;  // bytes a thread takes at a time

struct Dim {
  int64_t size, to, from;  // strides in elements
};

// [rows, columns]: columns lie together in `from`, rows in `to`.
template <class T>
void transpose_block(const T* from, int64_t from_row, T* to, int64_t to_column, int64_t rows, int64_t columns) {
  constexpr int64_t side = kLine / static_cast<int64_t>(sizeof(T));
  T block[side][side];
  if (rows == side && columns == side) {
    for (int64_t r = 0; r < side; ++r) std::memcpy(block[r], from + r * from_row, sizeof block[r]);
    for (int64_t c = 0; c < side; ++c) {
      T line[side];
      for (int64_t r = 0; r < side; ++r) line[r] = block[r][c];
      std::memcpy(to + c * to_column, line, sizeof line);
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[c * to_column + r] = from[r * from_row + c];
}

template <class T>
void copy_blocks(T* to, const T* from, const Dim& row, const Dim& column, const std::vector<Dim>& rest) {
  constexpr int64_t side = kLine / static_cast<int64_t>(sizeof(T));
  int64_t outer = 1;
  for (const Dim& d : rest) outer *= d.size;
  int64_t strips = (column.size + side - 1) / side;
  auto grain = std::max<int64_t>(1, kGrainBytes / (side * row.size * static_cast<int64_t>(sizeof(T))));
  parallel_for(outer * strips, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t index = i / strips, c = i % strips * side, at_to = c * column.to, at_from = c;
      for (const Dim& d : rest) {
        at_to += index % d.size * d.to;
        at_from += index % d.size * d.from;
        index /= d.size;
      }
      for (int64_t r = 0; r < row.size; r += side)
        transpose_block(from + at_from + r * row.from, row.from, to + at_to + r, column.to,
                        std::min(side, row.size - r), std::min(side, column.size - c));
    }
  });
}

}  // namespace

bool copy_transposed(const Tensor& to, const Tensor& from) {
  if (to.dtype() != from.dtype() || to.numel() < kLeastElements || !(to.sizes() == from.sizes())) return false;
  std::vector<Dim> dims;
  for (size_t d = 0; d < to.sizes().size(); ++d)
    if (to.sizes()[d] > 1) dims.push_back({to.sizes()[d], to.strides()[d], from.strides()[d]});
  auto row = std::find_if(dims.begin(), dims.end(), [](const Dim& d) { return d.to == 1; });
  auto column = std::find_if(dims.begin(), dims.end(), [](const Dim& d) { return d.from == 1; });
  if (row == dims.end() || column == dims.end() || row == column || row->size < 8 || column->size < 8) return false;
  for (const Dim& d : dims)
    if (d.to == 0 || d.from == 0) return false;  // expanded
  Dim r = *row, c = *column;
  std::erase_if(dims, [&](const Dim& d) { return d.to == 1 || d.from == 1; });
  auto run = [&]<class T>() {
    copy_blocks(static_cast<T*>(to.raw_data()), static_cast<const T*>(from.raw_data()), r, c, dims);
    return true;
  };
  switch (to.element_size()) {
    case 1:
      return run.operator()<uint8_t>();
    case 2:
      return run.operator()<uint16_t>();
    case 4:
      return run.operator()<uint32_t>();
    case 8:
      return run.operator()<uint64_t>();
    case 16:
      return run.operator()<std::array<uint64_t, 2>>();
    default:
      return false;
  }
}

}  // namespace tutti::pointwise
