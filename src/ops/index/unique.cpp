// Values in order and how often they occur: kthvalue, median, unique, bincount. Compositions of sort and scatter.
#include "base/check.h"
#include "base/named.h"
#include "ops/index/indices.h"
#include "ops/reduce/reduce.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

// Element `place` (one for each line) of what was sorted along dim.
ValuesIndices pick(const ValuesIndices& sorted, int64_t dim, const Tensor& place, bool keepdim) {
  Tensor values = gather(sorted.values, dim, place), indices = gather(sorted.indices, dim, place);
  if (keepdim) return {values, indices};
  return {squeeze(values, dim), squeeze(indices, dim)};
}

void check_line(const Tensor& x, const char* name) {
  check<ValueError>(x.defined(), name, "the input is undefined: it was never given a value");
  check<DTypeError>(!x.is_complex(), name, "complex numbers have no order: {}", x);
}

// Both are looked at before the first is written.
ValuesIndices& write_both(ValuesIndices& out, const ValuesIndices& found, const char* name) {
  check<DTypeError>(!out.indices.defined() || category(out.indices.dtype()) >= Category::integer, name,
                    "indices cannot be written into {}", out.indices);
  for (auto [into, from] : {std::pair(&out.values, &found.values), {&out.indices, &found.indices}})
    check<ShapeError>(!into->defined() || into->sizes() == from->sizes(), name,
                      "the result is of sizes {}, and cannot be written into {}", from->sizes(), *into);
  check<ValueError>(!out.values.defined() || !out.indices.defined() || !out.values.shares_storage(out.indices), name,
                    "values and indices cannot both be written into {}: give two tensors", out.values);
  reduction::write_out(out.values, found.values, name);
  reduction::write_out(out.indices, found.indices, name);
  return out;
}

}  // namespace

ValuesIndices kthvalue(const Tensor& x, int64_t k, int64_t dim, bool keepdim) {
  check_line(x, "kthvalue");
  dim = wrap_dim(dim, x, "kthvalue");
  int64_t size = x.dim() == 0 ? 1 : x.size(dim);
  check<ValueError>(k >= 1 && k <= size, "kthvalue", "k = {} is not between 1 and the size {} of dim {} of {}", k, size,
                    dim, x);
  ValuesIndices sorted = named("kthvalue", [&] { return sort(x, dim); });
  if (x.dim() == 0) return sorted;
  ValuesIndices found{narrow(sorted.values, dim, k - 1, 1), narrow(sorted.indices, dim, k - 1, 1)};
  if (keepdim) return found;
  return {squeeze(found.values, dim), squeeze(found.indices, dim)};
}
ValuesIndices& kthvalue_out(ValuesIndices& out, const Tensor& x, int64_t k, int64_t dim, bool keepdim) {
  return write_both(out, kthvalue(x, k, dim, keepdim), "kthvalue");
}

ValuesIndices median(const Tensor& x, int64_t dim, bool keepdim) {
  check_line(x, "median");
  dim = wrap_dim(dim, x, "median");
  int64_t size = x.dim() == 0 ? 1 : x.size(dim);
  check<ValueError>(size > 0, "median", "dim {} of {} is empty: it has no middle", dim, x);
  ValuesIndices sorted = named("median", [&] { return sort(x, dim); });
  if (x.dim() == 0) return sorted;
  Tensor last = narrow(sorted.values, dim, size - 1, 1).detach();  // a NaN, if there is one
  Tensor middle = full_like(last, (size - 1) / 2, {.dtype = DType::i64});
  return pick(sorted, dim, x.is_floating() ? where(isnan(last), size - 1, middle) : middle, keepdim);
}
ValuesIndices& median_out(ValuesIndices& out, const Tensor& x, int64_t dim, bool keepdim) {
  return write_both(out, median(x, dim, keepdim), "median");
}

Tensor median(const Tensor& x) {
  check_line(x, "median");
  return median(named("median", [&] { return reshape(x, {x.numel()}); }), 0).values;
}
Tensor& median_out(Tensor& out, const Tensor& x) { return reduction::write_out(out, median(x), "median"); }

Unique unique(const Tensor& x) {
  check_line(x, "unique");
  check<DeviceError>(!x.device().is_meta(), "unique",
                     "the shape of the result depends on values, which {} does not have", x);
  NoGrad guard;
  int64_t n = x.numel();
  ValuesIndices sorted = named("unique", [&] { return sort(reshape(x.detach(), {n})); });
  Tensor first = ones({n}, {.dtype = DType::boolean, .device = x.device()});
  if (n > 1)
    narrow(first, 0, 1, n - 1).copy_(ne(narrow(sorted.values, 0, 1, n - 1), narrow(sorted.values, 0, 0, n - 1)));
  Tensor number = cumsum(first, 0) - 1, inverse = empty_like(number);
  scatter_(inverse, 0, sorted.indices, number);
  return {masked_select(sorted.values, first), reshape(inverse, x.sizes()), bincount(number)};
}

Tensor bincount(const Tensor& x, const Tensor& weights, int64_t least) {
  check<ValueError>(x.defined(), "bincount", "the input is undefined: it was never given a value");
  check<DTypeError>(is_integer(x.dtype()), "bincount", "counts integers, not {}", x);
  check<ShapeError>(x.dim() == 1, "bincount", "takes a list (one dim), not {}", x);
  check<DeviceError>(!x.device().is_meta(), "bincount",
                     "the shape of the result depends on values, which {} does not have", x);
  check<ValueError>(least >= 0, "bincount", "the least number of entries must not be negative: {}", least);
  if (weights.defined())
    check<ShapeError>(weights.sizes() == x.sizes(), "bincount", "the weights {} must have the shape of {}", weights, x);
  check<ValueError>(!x.is_sparse() && !(weights.defined() && weights.is_sparse()), "bincount",
                    "takes no sparse tensors; to_dense() them first");
  if (weights.defined())
    check<DeviceError>(weights.device() == x.device(), "bincount", "{} and {} are on different devices", x, weights);
  Tensor index = cast(x.detach(), DType::i64).contiguous();
  int64_t size = least;
  if (index.numel() > 0) {
    Extremes found = extremes(index.data<int64_t>(), index.numel());
    check<ValueError>(found.low >= 0, "bincount", "{} of {} is negative", found.low, x);
    size = std::max(size, found.high + 1);
  }
  Tensor added = !weights.defined()                   ? ones_like(index)
                 : is_differentiable(weights.dtype()) ? weights
                                                      : cast(weights, DType::f64);
  return named("bincount", [&] {
    return index_add(zeros({size}, {.dtype = added.dtype(), .device = x.device()}), 0, index, added);
  });
}

}  // namespace tutti
