// index_select and index_add: whole slices along one dim, by a list of indices.
#include <array>

#include "base/check.h"
#include "base/named.h"
#include "ops/index/indices.h"
#include "ops/reduce/reduce.h"
#include "tensor/defined.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

void check_list(const Tensor& index, const char* name) {
  check_index_dtype(index, name);
  check<ShapeError>(index.dim() <= 1, name, "the index must be a list (one dim), not {}", index);
}

RowPlan plan_for(const Tensor& indexed, const Tensor& rows, const Tensor& index, int64_t dim) {
  RowPlan plan = plan_rows(indexed, dim, rows.strides(), position(dim));
  plan.at = index.data<int64_t>();
  plan.count = index.numel();
  plan.scale = indexed.stride(dim);
  return plan;
}

const Operator index_select_op{
    .name = "index_select",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor &x = c.input(0), &index = c.input(1);
          check_together(c.inputs, "index_select");
          check_list(index, "index_select");
          out[0] = {.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
          check<ShapeError>(x.dim() > 0 || index.numel() == 1, "index_select",
                            "a zero-dimensional tensor has one element; {} asks for {}", index, index.numel());
          if (x.dim() > 0) out[0].sizes[position(c.as<AlongDim>().dim)] = index.numel();
        },
    .cpu =
        [](const Call& c) {
          int64_t dim = c.as<AlongDim>().dim;
          Tensor x = at_least_1d(c.input(0)), out = at_least_1d(c.output());
          Tensor index = ready_indices(c.input(1), dim, x.size(dim), "index_select");
          take_rows(plan_for(x, out, index, dim), bytes_of(out), bytes_of(x), x.element_size());
        },
    .gradient =
        [](GradientCall& c) {
          Tensor whole = zeros(c.input_sizes(0), {.dtype = c.grad().dtype(), .device = c.grad().device()});
          c.set(0, index_add_(whole, c.as<AlongDim>().dim, c.input(1), c.grad()));
        },
    .saves_inputs = 0b10,
};

const Operator index_add_op{
    .name = "index_add",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor &x = c.input(0), &index = c.input(1), &source = c.input(2);
          check_together(c.inputs, "index_add");
          check_list(index, "index_add");
          Shape wanted = x.sizes();
          if (x.dim() > 0) wanted[position(c.as<AlongDim>().dim)] = index.numel();
          check<ShapeError>(x.dim() > 0 || index.numel() == 1, "index_add",
                            "a zero-dimensional tensor takes one index, not {}", index);
          bool one = x.dim() == 0 && source.dim() <= 1 && source.numel() == 1;
          check<ShapeError>(source.sizes() == wanted || one, "index_add",
                            "the source {} cannot be added to {} by {}: it must have the shape {}", source, x, index,
                            wanted);
          check<DTypeError>(source.dtype() == x.dtype(), "index_add", "{} and {} differ in dtype", source, x);
          out[0] = spec_like(x, c.output());
        },
    .cpu =
        [](const Call& c) {
          int64_t dim = c.as<AlongDim>().dim;
          Tensor out = at_least_1d(c.output()), source = at_least_1d(apart_from(c.input(2), c.output()));
          Tensor index = ready_indices(apart_from(c.input(1), c.output()), dim, out.size(dim), "index_add");
          start_from(at_least_1d(c.input(0)), out);
          add_rows(plan_for(out, source, index, dim), bytes_of(out), bytes_of(source), out.dtype());
        },
    .gradient =
        [](GradientCall& c) {
          if (c.needs(0)) c.set(0, c.grad());
          if (c.needs(2)) c.set(2, reshape(index_select(c.grad(), c.as<AlongDim>().dim, c.input(1)), c.input_sizes(2)));
        },
    .saves_inputs = 0b10,
    .in_place = 1,
};

// index_copy and index_fill are index_put along one dim.
std::vector<Index> entries_for(const Tensor& x, int64_t dim, const Tensor& index, const char* name) {
  check_together(std::array{&x, &index}, name);
  check_list(index, name);
  check<ShapeError>(x.dim() > 0, name, "a zero-dimensional tensor has no rows");
  dim = wrap_dim(dim, x, name);
  std::vector<Index> entries(position(dim), Slice());
  Tensor list = index.dim() == 1 ? index : view(index, {1});
  // Values are looked at here only for errors that name this operator; a tracer must not see that.
  entries.emplace_back(index.device().is_meta() || tracing() ? list : ready_indices(list, dim, x.size(dim), name));
  return entries;
}

Tensor check_rows(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  check_together(std::array{&x, &index, &source}, "index_copy");
  check<ShapeError>(x.dim() > 0, "index_copy", "a zero-dimensional tensor has no rows");
  Shape wanted = x.sizes();
  wanted[position(wrap_dim(dim, x, "index_copy"))] = index.numel();
  check<ShapeError>(source.sizes() == wanted, "index_copy",
                    "the source {} cannot be put into {} by {}: it must have the shape {}", source, x, index, wanted);
  check<DTypeError>(source.dtype() == x.dtype(), "index_copy", "{} and {} differ in dtype", source, x);
  return source;
}

Tensor check_value(const Tensor& x, const Tensor& value) {
  check_defined(x, "index_fill");
  check_defined(value, "index_fill");
  check<ShapeError>(value.numel() == 1, "index_fill", "the value must be a number or a one-element tensor, not {}",
                    value);
  check<DeviceError>(value.is_number() || value.device() == x.device(), "index_fill",
                     "{} and {} are on different devices", value, x);
  return reshape(value_for(x, value, "index_fill"), {});
}

}  // namespace

Tensor index_copy(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  Tensor rows = check_rows(x, dim, index, source);
  return named("index_copy", [&] { return index_put(x, entries_for(x, dim, index, "index_copy"), rows); });
}
Tensor& index_copy_(Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  Tensor rows = check_rows(x, dim, index, source);
  named("index_copy_", [&] { x.index_put_(entries_for(x, dim, index, "index_copy_"), rows); });
  return x;
}
Tensor& index_copy_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  if (out.is_same(x)) return index_copy_(out, dim, index, source);
  return reduction::write_out(out, index_copy(x, dim, index, source), "index_copy");
}
Tensor index_fill(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& value) {
  return named("index_fill",
               [&] { return index_put(x, entries_for(x, dim, index, "index_fill"), check_value(x, value)); });
}
Tensor& index_fill_(Tensor& x, int64_t dim, const Tensor& index, const Tensor& value) {
  named("index_fill_", [&] { x.index_put_(entries_for(x, dim, index, "index_fill_"), check_value(x, value)); });
  return x;
}
Tensor& index_fill_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& value) {
  if (out.is_same(x)) return index_fill_(out, dim, index, value);
  return reduction::write_out(out, index_fill(x, dim, index, value), "index_fill");
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  Tensor out;
  return index_select_out(out, x, dim, index);
}
Tensor& index_select_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index) {
  AlongDim a{wrap_dim(dim, x, "index_select")};
  return call_out(index_select_op, {&x, &index}, out, attributes(a));
}
Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  Tensor out;
  return index_add_out(out, x, dim, index, source);
}
Tensor& index_add_(Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  return index_add_out(x, x, dim, index, source);
}
Tensor& index_add_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  AlongDim a{wrap_dim(dim, x, "index_add")};
  Tensor rows = value_for(x, source, "index_add");
  return call_out(index_add_op, {&x, &index, &rows}, out, attributes(a));
}

}  // namespace tutti
