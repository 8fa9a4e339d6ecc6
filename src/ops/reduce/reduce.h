// What the operators of this family share: attributes, checks, shapes.
#pragma once

#include <optional>

#include "tutti/operator.h"

namespace tutti::reduction {

struct Dims {
  Shape dims;  // from the front, in rising order, each once
  bool keepdim;
  std::optional<DType> dtype;  // to compute in, and of the result
  TUTTI_FIELDS(dims, keepdim, dtype)
};

/// Throws if x is undefined or sparse.
void check_strided(const Tensor& x, const char* name);
/// Dims counted from the front and sorted; none stands for all. Throws if one is given twice.
Shape normalize_dims(const Tensor& x, const Shape& dims, const char* name);
/// An entry for each dim of a tensor: 1 if it is among dims.
Shape mark_dims(size_t count, const Shape& dims);
Shape reduced_sizes(const Shape& sizes, const Shape& dims, bool keepdim);
/// The number of elements that go into one result.
int64_t reduced_count(const Shape& sizes, const Shape& dims);
/// What a reduction over dims gave, seen with the sizes that keepdim would have given it.
Tensor restore_dims(const Tensor& y, const Shape& sizes, const Shape& dims);
/// Throws ShapeError if there is nothing to take an extreme of.
void check_not_empty(const Tensor& x, const Shape& dims, const char* name);

/// The dtype in which elements are computed: f32, f64, i64, c64 or c128.
DType computing_dtype(DType t);

/// x in the dtype that was asked for, if any.
Tensor cast_first(const Tensor& x, std::optional<DType> dtype, const char* name);
/// Puts a finished result into `out`, or makes `out` that result where it is undefined.
Tensor& write_out(Tensor& out, const Tensor& result, const char* name);

}  // namespace tutti::reduction
