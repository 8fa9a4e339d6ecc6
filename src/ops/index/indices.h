// What the operators that take indices share: checking them, and moving the rows that they name.
#pragma once

#include <cstdint>
#include <span>

#include "ops/view/box.h"
#include "tensor/impl.h"
#include "tutti/operator.h"

namespace tutti {

// Elements a thread takes at a time, where they are moved and where they are only looked at.
constexpr int64_t kMovedGrain = 16384;
constexpr int64_t kReadGrain = 32768;

/// The attributes of operators along one dim.
struct AlongDim {
  int64_t dim;
  TUTTI_FIELDS(dim)
};

// ---- Checks

/// Throws unless the tensor can hold indices: i64 or i32.
void check_index_dtype(const Tensor& index, const char* name);
/// Throws unless all tensors are strided and on the device of the first.
void check_together(std::span<const Tensor* const> tensors, const char* name);
/// The indices as contiguous i64 within [0, size): negative ones count from the end. Throws an IndexError that names
/// the first one outside, before anything is written.
Tensor ready_indices(const Tensor& index, int64_t dim, int64_t size, const char* name);

/// The smallest and largest index; the widest range where there is none.
struct Extremes {
  int64_t low = INT64_MAX, high = INT64_MIN;
};
Extremes extremes(const int64_t* index, int64_t count);

// ---- In-place forms: the output may be input 0, and any other input may lie in its storage as well.

/// Fills the output with input 0, unless it is that already.
void start_from(const Tensor& input, const Tensor& out);
/// The input, or a copy of it if the output is in the same storage.
Tensor apart_from(const Tensor& input, const Tensor& out);
/// The geometry of a result like x: that of the output if there is one, else x's own if it is dense.
TensorSpec spec_like(const Tensor& x, const Tensor& out);

/// The tensor itself, or a zero-dimensional one as one of size 1. No autograd.
Tensor at_least_1d(const Tensor& x);
/// A value to be put into x: of its dtype and on its device. Throws if that would lose the value's kind.
Tensor value_for(const Tensor& x, const Tensor& value, const char* name);

// ---- Rows

/// One of the dims that are not indexed: its stride in the indexed tensor and in the one that holds the chosen rows.
struct RowDim {
  int64_t size, indexed, rows;
};

/// Row k of `rows` is what lies at at[k] · scale in the indexed tensor, and that again for every place of the outer
/// dims.
struct RowPlan {
  SmallVector<RowDim, 6> outer;
  RowDim run{1, 1, 1};  // the innermost dim behind the indices
  const int64_t* at = nullptr;
  int64_t count = 0;       // of indices
  int64_t scale = 1;       // elements
  int64_t row_stride = 1;  // from row k to row k + 1, in elements

  int64_t outer_count() const {
    int64_t n = 1;
    for (auto& d : outer) n *= d.size;
    return n;
  }
};

/// A plan for x with `dims` (ascending) indexed, where rows has the dims [before, n, after] (those of x before the
/// first indexed dim and after it) or, if the indexed dims are apart, [n, all others]. The caller sets at, count and
/// scale.
RowPlan plan_rows(const Tensor& x, const Shape& dims, const Shape& rows_strides, size_t index_dim);

/// rows ← indexed
void take_rows(const RowPlan& plan, std::byte* rows, const std::byte* indexed, size_t element);
/// indexed ← rows; of rows with the same index the last remains.
void put_rows(const RowPlan& plan, std::byte* indexed, const std::byte* rows, size_t element);
/// indexed += rows; rows with the same index add up in order, bf16 and f16 in f32.
void add_rows(const RowPlan& plan, std::byte* indexed, const std::byte* rows, DType dtype);

// ---- Sorting (radix.cpp)

using Wide = unsigned __int128;
/// Sorts items whose bits below `low` are in ascending order already (their places, usually) and whose bits from `high`
/// on are zero. `scratch` has room for as many.
void radix_sort(uint64_t* items, uint64_t* scratch, int64_t count, int low, int high);
void radix_sort(Wide* items, Wide* scratch, int64_t count, int low, int high);

}  // namespace tutti
