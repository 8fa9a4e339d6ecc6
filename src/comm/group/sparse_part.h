// The pieces of which an all_reduce of sparse tensors is made, whether it is waited for or not.
//
// Note [Sparse all_reduce]
// Ranks exchange which rows they have, sorted; each lays its values out by the union of all rows, zeros where it has
// none, and those are reduced as any dense tensor is. So the order of additions is the canonical one, and only rows
// that some rank has are moved.
#pragma once

#include <vector>

#include "tutti/comm/collectives.h"
#include "tutti/tensor.h"

namespace tutti::comm {

/// Of tensors of headers and of rows' numbers.
inline constexpr Options kNumbers{.dtype = DType::i64, .device = Device()};

/// One rank's part in one tensor's reduction.
struct SparsePart {
  /// Throws what is wrong with x.
  SparsePart(const Tensor& x, const ReduceOptions& options);
  /// What others must know of this rank's, as numbers.
  struct Header {
    int64_t rows = 0;
    int64_t waits = 0, dims = 0, sparse_dims = 0, hash = 0;  // must agree; the last is of the sizes
    int64_t dtype = 0, line = 0, sizes[6] = {};              // for errors
    char file[64] = {};
    bool fits(const Header& other) const {
      return dims == other.dims && sparse_dims == other.sparse_dims && hash == other.hash;
    }
  };
  static constexpr int64_t kHeader = sizeof(Header) / sizeof(int64_t);
  void add_header(std::vector<int64_t>& to, bool waits, const Place& place) const;
  /// Of all ranks, from the numbers that each gave; `at` is where this tensor's begin. Throws if ranks do not fit, and
  /// says what each called; `sequence`: the number of the collective in its group.
  void take_headers(const TensorList& headers, size_t at, const ReduceOptions& options, uint64_t sequence);
  /// Then: all ranks' rows are gathered from row_numbers() into rooms, values laid out by them and reduced, and the
  /// result becomes x.
  Tensor row_numbers() const;
  void lay_out();
  void finish() const;

  TensorList rooms;
  Tensor values;

 private:
  Tensor x_, mine_;
  std::vector<int64_t> rows_, all_;
};

/// Room for what take_headers() wants.
TensorList header_rooms(int64_t numbers, int ranks);

}  // namespace tutti::comm
