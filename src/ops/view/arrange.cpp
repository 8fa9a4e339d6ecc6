// movedim, tile, diag, meshgrid and fill_diagonal_: compositions of other views and copies.
#include <algorithm>

#include "base/check.h"
#include "base/named.h"
#include "ops/view/box.h"
#include "tensor/defined.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

// Dims counted from the front, each only once.
Shape different_dims(const Tensor& x, const Shape& dims, const char* name) {
  Shape seen = Shape::filled(x.sizes().size(), 0), result;
  for (int64_t d : dims) {
    int64_t w = wrap_dim(d, x, name);
    check<ShapeError>(x.dim() > 0 && seen[position(w)]++ == 0, name,
                      "dim {} of {} is given twice, or there is none: {}", d, x, dims);
    result.push_back(w);
  }
  return result;
}

}  // namespace

Tensor movedim(const Tensor& x, const Shape& from, const Shape& to) {
  check_defined(x, "movedim");
  check<ShapeError>(from.size() == to.size(), "movedim", "{} dims cannot go to {} places: {}, {}", from.size(),
                    to.size(), from, to);
  Shape source = different_dims(x, from, "movedim"), target = different_dims(x, to, "movedim");
  Shape order = Shape::filled(x.sizes().size(), -1), rest;
  for (size_t k = 0; k < source.size(); ++k) order[position(target[k])] = source[k];
  for (int64_t d = 0; d < x.dim(); ++d)
    if (std::find(source.begin(), source.end(), d) == source.end()) rest.push_back(d);
  size_t next = 0;
  for (int64_t& d : order)
    if (d < 0) d = rest[next++];
  return named("movedim", [&] { return permute(x, order); });
}

Tensor tile(const Tensor& x, const Shape& repeats) {
  check_defined(x, "tile");
  Shape all = repeats;
  while (all.size() < x.sizes().size()) all.insert(0, 1);
  for (int64_t r : repeats) check<ValueError>(r >= 0, "tile", "repeats must not be negative: {}", repeats);
  return named("tile", [&] { return repeat(x, all); });
}

Tensor diag(const Tensor& x, int64_t offset) {
  check_defined(x, "diag");
  check<ShapeError>(x.dim() == 1 || x.dim() == 2, "diag", "takes a list or a matrix, not {}", x);
  return named("diag", [&] {
    if (x.dim() == 2) return clone(diagonal(x, offset));
    int64_t n = 0;
    bool wraps = offset == INT64_MIN || __builtin_add_overflow(x.size(0), std::abs(offset), &n);
    check<ShapeError>(!wraps, "diag", "a matrix with {} on diagonal {} has too many elements", x, offset);
    Tensor whole = zeros({n, n}, {.dtype = x.dtype(), .device = x.device()});
    diagonal(whole, offset).copy_(x);
    return whole;
  });
}

TensorList meshgrid(const TensorList& lists, bool by_columns) {
  check<ValueError>(!lists.empty(), "meshgrid", "needs at least one list");
  // The dim along which list k varies.
  auto dim_of = [&](size_t k) { return by_columns && lists.size() > 1 && k < 2 ? 1 - k : k; };
  Shape sizes = Shape::filled(lists.size(), 1);
  for (auto& list : lists) check_defined(list, "meshgrid");
  for (size_t k = 0; k < lists.size(); ++k) {
    check<ShapeError>(lists[k].dim() <= 1, "meshgrid", "input {} must be a list (one dim), not {}", k, lists[k]);
    check<DTypeError>(lists[k].dtype() == lists[0].dtype(), "meshgrid", "{} and {} differ in dtype", lists[0],
                      lists[k]);
    check<DeviceError>(lists[k].device() == lists[0].device(), "meshgrid", "{} and {} are on different devices",
                       lists[0], lists[k]);
    sizes[dim_of(k)] = lists[k].numel();
  }
  TensorList grids;
  for (size_t k = 0; k < lists.size(); ++k) {
    Shape own = Shape::filled(lists.size(), 1);
    own[dim_of(k)] = lists[k].numel();
    grids.push_back(named("meshgrid", [&] { return expand(reshape(lists[k], own), sizes); }));
  }
  return grids;
}

Tensor& Tensor::fill_diagonal_(const Tensor& value) {
  check_defined(*this, "fill_diagonal_");
  check<ShapeError>(dim() >= 2, "fill_diagonal_", "needs at least 2 dims, not {}", *this);
  for (int64_t s : sizes())
    check<ShapeError>(dim() == 2 || s == size(0), "fill_diagonal_", "more than 2 dims must have one size: {}", *this);
  named("fill_diagonal_", [&] {
    Tensor line = diagonal();
    while (line.dim() > 1) line = line.diagonal(0, 0, -1);
    line.fill_(value);
  });
  return *this;
}

}  // namespace tutti
