// The loop around generated code. A kernel computes rows: `rows` times `count` neighbouring elements. Everything else
// (which dims are rows, threads, operands that are not neighbours in memory, results that go past the caches) is here,
// so that kernels depend on formulas and dtypes and hardly on shapes.
#pragma once

#include <vector>

#include "tutti/graph/ir.h"

namespace tutti::graph::native {

/// `operands`: where each begins; `strides`: bytes from row to row. Outputs come after inputs.
using Entry = void (*)(std::byte* const* operands, const int64_t* strides, int64_t rows, int64_t count);

inline constexpr size_t kMaxOperands = 80;

class Loop {
 public:
  /// `operands` are broadcast to `sizes`; the last `outputs` of them are written.
  Loop(const Shape& sizes, std::vector<Type> operands, size_t outputs, size_t nodes);

  /// Whether operand k is one number in each row, instead of `count` neighbours.
  bool is_repeated(size_t k) const { return operands_[k].stride[0] == 0; }
  /// Results go past the caches: kernels get them aligned to 64 bytes.
  bool is_streamed() const { return streamed_; }
  /// `data`: where each operand begins.
  void run(Entry entry, std::byte* const* data) const;

 private:
  struct Operand {
    int64_t size = 0;  // bytes of an element
    DType dtype = {};
    std::vector<int64_t> stride = {};  // in bytes, by dim of the loop, innermost first
    bool gathered = false;             // it is not a row of neighbours, and goes through a tile
  };

  void merge(const Shape& sizes, const std::vector<Type>& types);
  void add_dim(int64_t size, const std::vector<int64_t>& strides);
  void range(Entry entry, std::byte* const* data, int64_t begin, int64_t end) const;
  void tiles(Entry entry, std::byte* const* data, int64_t begin, int64_t end) const;
  void locate(std::byte* const* data, int64_t index, std::byte** at) const;

  size_t inputs_ = 0;
  std::vector<Operand> operands_;
  std::vector<int64_t> sizes_;  // innermost first
  std::vector<int64_t> row_strides_;
  int64_t total_ = 1, grain_ = 0;
  bool tiled_ = false;
  bool streamed_ = false;  // results are rows too large to be in a cache when they are read again
};

}  // namespace tutti::graph::native
