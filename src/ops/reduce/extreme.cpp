// The largest and the smallest: amax, amin, max, min, argmax, argmin.
#include "ops/reduce/extreme.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/named.h"
#include "base/parallel.h"
#include "ops/reduce/fold.h"
#include "ops/reduce/reduce.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

using namespace reduction;

void check_ordered(const Tensor& x, const char* name) {
  check_strided(x, name);
  if (x.is_complex())
    fail<DTypeError>(name, "complex numbers have no order ({}); take abs(), real() or imag() first", x);
}

// ---- Over several dims

void infer_extreme(const Call& c, std::span<TensorSpec> out) {
  const auto& a = c.as<Dims>();
  const Tensor& x = c.input(0);
  out[0] = {.sizes = reduced_sizes(x.sizes(), a.dims, a.keepdim), .dtype = x.dtype(), .device = x.device()};
}

template <Operation operation>
void run_extreme(const Call& c) {
  const Tensor& x = c.input(0);
  fold_tensor(c.output(), x, mark_dims(x.sizes().size(), c.as<Dims>().dims),
              {.operation = operation, .element = computing_dtype(x.dtype())});
}

// All that are as large share the gradient evenly.
void share_gradient(GradientCall& c) {
  const Shape& dims = c.as<Dims>().dims;
  const Shape& sizes = c.input_sizes(0);
  Tensor chosen = c.input(0) == restore_dims(c.output(), sizes, dims), g = restore_dims(c.grad(), sizes, dims);
  c.set(0, where(chosen, g / cast(sum(chosen, dims, true), g.dtype()), 0));
}

const Operator amax_op{
    .name = "amax",
    .infer = infer_extreme,
    .cpu = run_extreme<Operation::max>,
    .gradient = share_gradient,
    .saves_inputs = 1,
    .saves_outputs = 1,
    .reduction = true,
};
const Operator amin_op{
    .name = "amin",
    .infer = infer_extreme,
    .cpu = run_extreme<Operation::min>,
    .gradient = share_gradient,
    .saves_inputs = 1,
    .saves_outputs = 1,
    .reduction = true,
};

Tensor& extreme(const Operator& op, Tensor& out, const Tensor& x, const Shape& dims, bool keepdim, const char* name) {
  check_ordered(x, name);
  Dims a{normalize_dims(x, dims, name), keepdim, {}};
  check_not_empty(x, a.dims, name);
  return call_out(op, {&x}, out, attributes(a));
}
Tensor extreme(const Operator& op, const Tensor& x, const Shape& dims, bool keepdim, const char* name) {
  Tensor out;
  return extreme(op, out, x, dims, keepdim, name);
}

// ---- Along one dim, with indices

// Finds values and indices [outer][columns] of a space with one reduced axis.
class Search {
 public:
  Search(const Space& space, bool largest)
      : space_(space), element_(computing_dtype(space.dtype)), kernels_(*find_extremes_pointer()(element_, largest)) {
    chunk_ = std::min(space.columns.size, kSearchColumns);
    chunks_ = (space.columns.size + chunk_ - 1) / chunk_;
    // Enough rows that a unit is worth starting, and few enough for every index to fit.
    item_rows_ = std::max<int64_t>(1024, 65536 / chunk_);
    items_ = (space.rows + item_rows_ - 1) / item_rows_;
  }

  void run(std::byte* values, int64_t* indices) const {
    if (items_ == 1) return run_units(values, indices);
    int64_t count = items_ * space_.outer * space_.columns.size;
    Tensor partial_values = make_tensor({count}, element_, Device());
    Tensor partial_indices = make_tensor({count}, DType::i64, Device());
    auto* found = reinterpret_cast<int64_t*>(impl(partial_indices)->data());
    run_units(impl(partial_values)->data(), found);
    merge(impl(partial_values)->data(), found, values, indices);
  }

 private:
  int64_t element_bytes() const { return static_cast<int64_t>(size_of(element_)); }

  void run_units(std::byte* values, int64_t* indices) const {
    int64_t elements = std::min(space_.rows, item_rows_) * chunk_;
    parallel_for(space_.outer * chunks_ * items_, std::max<int64_t>(1, 65536 / elements),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t unit = begin; unit < end; ++unit) {
                     int64_t item = unit % items_, part = unit / items_ % chunks_, outer = unit / items_ / chunks_;
                     int64_t to = (outer * items_ + item) * space_.columns.size + part * chunk_;
                     run_unit(outer, part * chunk_, item, values + to * element_bytes(), indices + to);
                   }
                 });
  }

  void run_unit(int64_t outer, int64_t first, int64_t item, std::byte* values, int64_t* indices) const {
    int64_t columns = std::min(chunk_, space_.columns.size - first), stride = space_.reduced[0].stride;
    int64_t begin = item * item_rows_, end = std::min(space_.rows, begin + item_rows_);
    auto bytes = static_cast<int64_t>(size_of(space_.dtype));
    const std::byte* base =
        space_.data + (offset_outermost_first(space_.kept, outer) + first * space_.columns.stride) * bytes;
    bool rows = columns == 1 && space_.columns.size == 1;
    bool native = space_.dtype == element_ && (rows ? stride == 1 : space_.columns.stride == 1);
    alignas(64) std::byte tile[kTile * 8];
    for (int64_t at = begin; at < end;) {
      int64_t count = native ? end - at : std::min(end - at, kTile / columns);
      const std::byte* x = base + at * stride * bytes;
      if (!native) gather_rows(space_, base, columns, at, at + count, element_, tile);
      search(native ? x : tile, native ? stride : columns, count, columns, rows, at - begin, values, indices);
      at += count;
    }
    for (int64_t c = 0; c < columns; ++c) indices[c] += begin;
  }

  // Rows [first, first + count) of a unit; what comes later only wins if it is more extreme.
  void search(const void* x, int64_t stride, int64_t count, int64_t columns, bool rows, int64_t first,
              std::byte* values, int64_t* indices) const {
    if (!rows) return kernels_.of_columns(x, stride, count, columns, first, values, indices);
    alignas(8) std::byte value[8];
    int64_t index;
    kernels_.of_row(x, count, first == 0 ? values : value, first == 0 ? indices : &index);
    if (first == 0) return;
    index += first;
    kernels_.merge(value, &index, 1, values, indices);
  }

  void merge(const std::byte* values, const int64_t* indices, std::byte* out, int64_t* out_indices) const {
    int64_t columns = space_.columns.size, step = columns * element_bytes();
    for (int64_t outer = 0; outer < space_.outer; ++outer)
      for (int64_t item = 0; item < items_; ++item) {
        const std::byte* from = values + (outer * items_ + item) * step;
        const int64_t* from_indices = indices + (outer * items_ + item) * columns;
        if (item == 0) {
          std::memcpy(out + outer * step, from, static_cast<size_t>(step));
          std::copy_n(from_indices, columns, out_indices + outer * columns);
        } else {
          kernels_.merge(from, from_indices, columns, out + outer * step, out_indices + outer * columns);
        }
      }
  }

  static constexpr int64_t kTile = 8192;
  const Space& space_;
  DType element_;
  const Extremes& kernels_;
  int64_t chunk_, chunks_, item_rows_, items_;
};

// Writes values (if wanted) and indices; `marks` has one dim, or all of a contiguous tensor.
void search_tensor(const Tensor& x, const Shape& marks, bool largest, const Tensor* values, const Tensor& indices) {
  if (indices.numel() == 0) return;
  Space space = make_space(x, marks, false);
  TUTTI_ASSERT(space.reduced.size() == 1);
  bool in_order = space.result_strides == contiguous_strides(space.result_sizes);
  DType element = computing_dtype(x.dtype());
  Tensor v =
      in_order && values && values->dtype() == element ? *values : make_tensor(space.result_sizes, element, Device());
  Tensor i = in_order ? indices : make_tensor(space.result_sizes, DType::i64, Device());
  Search(space, largest).run(impl(v)->data(), reinterpret_cast<int64_t*>(impl(i)->data()));
  auto deliver = [&](const Tensor& to, const Tensor& from) {
    if (to.is_same(from)) return;
    copy_into(make_alias(to, space.result_sizes, contiguous_strides(space.result_sizes), to.storage_offset()),
              make_alias(from, space.result_sizes, space.result_strides, 0));
  };
  if (values) deliver(*values, v);
  deliver(indices, i);
}

void infer_with_indices(const Call& c, std::span<TensorSpec> out) {
  infer_extreme(c, out);
  out[1] = out[0];
  out[1].dtype = DType::i64;
}

template <bool largest>
void run_with_indices(const Call& c) {
  const Tensor& x = c.input(0);
  search_tensor(x, mark_dims(x.sizes().size(), c.as<Dims>().dims), largest, &c.output(0), c.output(1));
}

// The element that was returned gets it all.
void scatter_gradient(GradientCall& c) {
  const Shape& dims = c.as<Dims>().dims;
  const Shape& sizes = c.input_sizes(0);
  Tensor g = restore_dims(c.grad(), sizes, dims);
  if (dims.empty()) return c.set(0, g);
  Tensor index = restore_dims(c.output(1).detach(), sizes, dims);
  Tensor nothing = zeros(sizes, {.dtype = g.dtype(), .device = g.device()});
  c.set(0, scatter_add(nothing, dims[0], index, g));
}

const Operator max_op{
    .name = "max",
    .infer = infer_with_indices,
    .cpu = run_with_indices<true>,
    .gradient = scatter_gradient,
    .saves_outputs = 2,
    .reduction = true,
};
const Operator min_op{
    .name = "min",
    .infer = infer_with_indices,
    .cpu = run_with_indices<false>,
    .gradient = scatter_gradient,
    .saves_outputs = 2,
    .reduction = true,
};

ValuesIndices& extreme_along(const Operator& op, ValuesIndices& out, const Tensor& x, int64_t dim, bool keepdim) {
  check_ordered(x, op.name);
  Dims a{normalize_dims(x, dim, op.name), keepdim, {}};
  check_not_empty(x, a.dims, op.name);
  return call_out(op, {&x}, out, attributes(a));
}

// ---- Indices alone

void infer_arg(const Call& c, std::span<TensorSpec> out) {
  infer_extreme(c, out);
  out[0].dtype = DType::i64;
}

template <bool largest>
void run_arg(const Call& c) {
  NoGrad no_grad;
  const Shape& dims = c.as<Dims>().dims;
  // Over all dims, indices count in row-major order.
  Tensor x = dims.size() > 1 ? contiguous(c.input(0)) : c.input(0);
  search_tensor(x, mark_dims(x.sizes().size(), dims), largest, nullptr, c.output());
}

const Operator argmax_op{.name = "argmax", .infer = infer_arg, .cpu = run_arg<true>, .reduction = true};
const Operator argmin_op{.name = "argmin", .infer = infer_arg, .cpu = run_arg<false>, .reduction = true};

Tensor& arg(const Operator& op, Tensor& out, const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  return extreme(op, out, x, dim ? Shape(*dim) : Shape(), keepdim, op.name);
}

}  // namespace

Tensor amax(const Tensor& x, const Shape& dims, bool keepdim) { return extreme(amax_op, x, dims, keepdim, "amax"); }
Tensor& amax_out(Tensor& out, const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme(amax_op, out, x, dims, keepdim, "amax");
}
Tensor amin(const Tensor& x, const Shape& dims, bool keepdim) { return extreme(amin_op, x, dims, keepdim, "amin"); }
Tensor& amin_out(Tensor& out, const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme(amin_op, out, x, dims, keepdim, "amin");
}
Tensor max(const Tensor& x) { return extreme(amax_op, x, {}, false, "max"); }
Tensor min(const Tensor& x) { return extreme(amin_op, x, {}, false, "min"); }
Tensor max(const Tensor& x, const Tensor& y) {
  return named("max", [&] { return maximum(x, y); });
}
Tensor min(const Tensor& x, const Tensor& y) {
  return named("min", [&] { return minimum(x, y); });
}
ValuesIndices max(const Tensor& x, int64_t dim, bool keepdim) {
  ValuesIndices out;
  return max_out(out, x, dim, keepdim);
}
ValuesIndices& max_out(ValuesIndices& out, const Tensor& x, int64_t dim, bool keepdim) {
  return extreme_along(max_op, out, x, dim, keepdim);
}
ValuesIndices min(const Tensor& x, int64_t dim, bool keepdim) {
  ValuesIndices out;
  return min_out(out, x, dim, keepdim);
}
ValuesIndices& min_out(ValuesIndices& out, const Tensor& x, int64_t dim, bool keepdim) {
  return extreme_along(min_op, out, x, dim, keepdim);
}
Tensor argmax(const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  Tensor out;
  return argmax_out(out, x, dim, keepdim);
}
Tensor& argmax_out(Tensor& out, const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  return arg(argmax_op, out, x, dim, keepdim);
}
Tensor argmin(const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  Tensor out;
  return argmin_out(out, x, dim, keepdim);
}
Tensor& argmin_out(Tensor& out, const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  return arg(argmin_op, out, x, dim, keepdim);
}

}  // namespace tutti
