#include "ops/reduce/reduce.h"

#include "base/check.h"
#include "pointwise/loop.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti::reduction {

void check_strided(const Tensor& x, const char* name) {
  check<ValueError>(x.defined(), name, "the input is undefined: it was never given a value");
  if (x.is_sparse()) fail<ValueError>(name, "{} is sparse; use its values(), or to_dense() it", x);
}

Tensor cast_first(const Tensor& x, std::optional<DType> dtype, const char* name) {
  if (!dtype) return x;
  check_strided(x, name);
  if (x.is_complex() && !is_complex(*dtype))
    fail<DTypeError>(name, "{} cannot be computed in {}, which has no imaginary part; take real() or abs() of it first",
                     x, *dtype);
  return cast(x, *dtype);
}

Tensor& write_out(Tensor& out, const Tensor& result, const char* name) {
  if (!out.defined()) return out = result;
  check<ShapeError>(out.sizes() == result.sizes(), name, "the result of shape {} cannot be written into {}",
                    result.sizes(), out);
  check<DTypeError>(category(out.dtype()) >= category(result.dtype()), name,
                    "the result is {} and cannot be written into {} without losing its kind", result.dtype(), out);
  return out.copy_(result);
}

Shape normalize_dims(const Tensor& x, const Shape& dims, const char* name) {
  check_strided(x, name);
  auto count = static_cast<size_t>(x.dim());
  Shape marks = Shape::filled(count, dims.empty() ? 1 : 0), result;
  bool on_scalar = false;
  for (int64_t d : dims) {
    int64_t w = wrap_dim(d, x, name);
    bool twice = count == 0 ? std::exchange(on_scalar, true) : marks[static_cast<size_t>(w)]++ != 0;
    if (twice) fail<ShapeError>(name, "dim {} of {} is given twice in {}; name each dim once", d, x, dims);
  }
  for (size_t d = 0; d < count; ++d)
    if (marks[d]) result.push_back(static_cast<int64_t>(d));
  return result;
}

Shape mark_dims(size_t count, const Shape& dims) {
  Shape marks = Shape::filled(count, 0);
  for (int64_t d : dims) marks[static_cast<size_t>(d)] = 1;
  return marks;
}

Shape reduced_sizes(const Shape& sizes, const Shape& dims, bool keepdim) {
  Shape marks = mark_dims(sizes.size(), dims), result;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!marks[d])
      result.push_back(sizes[d]);
    else if (keepdim)
      result.push_back(1);
  }
  return result;
}

int64_t reduced_count(const Shape& sizes, const Shape& dims) {
  int64_t count = 1;
  for (int64_t d : dims) count *= sizes[static_cast<size_t>(d)];
  return count;
}

Tensor restore_dims(const Tensor& y, const Shape& sizes, const Shape& dims) {
  return reshape(y, reduced_sizes(sizes, dims, true));
}

void check_not_empty(const Tensor& x, const Shape& dims, const char* name) {
  if (reduced_count(x.sizes(), dims) > 0 || reduced_sizes(x.sizes(), dims, false).product() == 0) return;
  fail<ShapeError>(name, "{} has no elements along dims {}, and nothing has no {}; give at least one element", x, dims,
                   name);
}

DType computing_dtype(DType t) { return pointwise::dtype_of_kind(pointwise::kind_of(t)); }

}  // namespace tutti::reduction
