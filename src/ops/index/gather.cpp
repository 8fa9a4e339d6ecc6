// gather and scatter: an index for every element, along one dim.
#include <algorithm>
#include <complex>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/index/indices.h"
#include "tensor/call.h"
#include "tensor/defined.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

constexpr int64_t kBlock = 4096;  // elements of a long row that make a unit of work

// ---- The loop. `indexed` is the tensor that indices point into, `dense` the one of the indices' shape.

struct LineDim {
  int64_t size = 1, indexed = 0, dense = 0, index = 0;  // strides
};

struct Lines {
  SmallVector<LineDim, 6> outer;  // dims that are independent of each other
  LineDim along;                  // walked in order by one unit of work, so that duplicates meet in order
  LineDim inner;
  int64_t scale = 1;  // elements from one index to the next
  int64_t block = 1;  // of inner
  const int64_t* index = nullptr;
  int64_t dim = 0;
};

// In a gather all elements are independent; in a scatter those along `dim` are not.
Lines make_lines(const Tensor& indexed, const Tensor& dense, const Tensor& index, int64_t dim, bool scatter) {
  Lines lines;
  lines.dim = dim;
  lines.index = index.data<int64_t>();
  lines.scale = indexed.stride(dim);
  size_t last = index.sizes().size() - 1;
  for (size_t d = 0; d <= last; ++d) {
    bool is_dim = static_cast<int64_t>(d) == dim;
    LineDim line{index.sizes()[d], is_dim ? 0 : indexed.strides()[d], dense.strides()[d], index.strides()[d]};
    if (d == last)
      lines.inner = line;
    else if (is_dim && scatter)
      lines.along = line;
    else
      lines.outer.push_back(line);
  }
  bool whole = scatter && static_cast<int64_t>(last) == dim;
  lines.block = whole ? std::max<int64_t>(lines.inner.size, 1)
                      : std::min<int64_t>(std::max<int64_t>(lines.inner.size, 1), kBlock);
  return lines;
}

// Calls run(offset in indexed, offset in dense, indices, count) for the pieces of rows.
template <class Run>
void for_lines(const Lines& lines, Run&& run) {
  int64_t outer = 1;
  for (auto& d : lines.outer) outer *= d.size;
  int64_t blocks = (lines.inner.size + lines.block - 1) / lines.block;
  int64_t work = std::max<int64_t>(1, lines.block * lines.along.size);
  parallel_for(outer * blocks, std::max<int64_t>(1, kMovedGrain / work), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      int64_t start = unit % blocks * lines.block, rest = unit / blocks;
      int64_t count = std::min(lines.block, lines.inner.size - start);
      int64_t indexed = start * lines.inner.indexed, dense = start * lines.inner.dense,
              index = start * lines.inner.index;
      for (size_t d = lines.outer.size(); d-- > 0;) {
        const LineDim& o = lines.outer[d];
        int64_t i = rest % o.size;
        rest /= o.size;
        indexed += i * o.indexed;
        dense += i * o.dense;
        index += i * o.index;
      }
      for (int64_t j = 0; j < lines.along.size; ++j)
        run(indexed, dense + j * lines.along.dense, lines.index + index + j * lines.along.index, count);
    }
  });
}

template <class B>
void gather_lines(const Lines& l, B* dense, const B* indexed) {
  for_lines(l, [&](int64_t from_at, int64_t to_at, const int64_t* index, int64_t n) {
    B* to = dense + to_at;
    const B* from = indexed + from_at;
    for (int64_t i = 0; i < n; ++i) to[i * l.inner.dense] = from[i * l.inner.indexed + index[i] * l.scale];
  });
}
template <class B>
void scatter_lines(const Lines& l, B* indexed, const B* dense) {
  for_lines(l, [&](int64_t to_at, int64_t from_at, const int64_t* index, int64_t n) {
    B* to = indexed + to_at;
    const B* from = dense + from_at;
    for (int64_t i = 0; i < n; ++i) to[i * l.inner.indexed + index[i] * l.scale] = from[i * l.inner.dense];
  });
}
template <class T>
void scatter_add_lines(const Lines& l, T* indexed, const T* dense) {
  for_lines(l, [&](int64_t to_at, int64_t from_at, const int64_t* index, int64_t n) {
    T* to = indexed + to_at;
    const T* from = dense + from_at;
    for (int64_t i = 0; i < n; ++i) {
      T& sum = to[i * l.inner.indexed + index[i] * l.scale];
      sum = static_cast<T>(sum + from[i * l.inner.dense]);
    }
  });
}

// ---- Whole rows: where an index was expanded along all other dims, whole rows move at a time.

bool names_rows(const Tensor& index, int64_t dim) {
  bool others = false;
  for (int64_t d = 0; d < index.dim(); ++d) {
    if (d == dim || index.size(d) == 1) continue;
    if (index.stride(d) != 0) return false;
    others = true;
  }
  return others && index.numel() > 0;
}

struct Rows {
  Tensor index;
  RowPlan plan;
};
Rows make_rows(const Tensor& indexed, const Tensor& dense, const Tensor& index, int64_t dim, const char* name) {
  Shape sizes = index.sizes();
  sizes[static_cast<size_t>(dim)] = indexed.size(dim);
  Tensor part = make_alias(indexed, sizes, indexed.strides(), indexed.storage_offset());
  Tensor line = make_alias(index, {index.size(dim)}, {index.stride(dim)}, index.storage_offset());
  Rows rows{ready_indices(line, dim, indexed.size(dim), name),
            plan_rows(part, dim, dense.strides(), static_cast<size_t>(dim))};
  rows.plan.at = rows.index.data<int64_t>();
  rows.plan.count = rows.index.numel();
  rows.plan.scale = indexed.stride(dim);
  return rows;
}

// ---- Shapes

void check_shapes(const Tensor& x, int64_t dim, const Tensor& index, const char* name) {
  check_index_dtype(index, name);
  bool same_dims = index.dim() == x.dim() || (index.dim() <= 1 && x.dim() <= 1);
  check<ShapeError>(same_dims, name, "the index {} must have as many dims as {}", index, x);
  for (int64_t d = 0; d < std::min(index.dim(), x.dim()); ++d)
    check<ShapeError>(d == dim || index.size(d) <= x.size(d), name,
                      "the index {} does not fit {}: only in dim {} may it be larger, but it is in dim {}", index, x,
                      dim, d);
}

const Operator& last_writers_operator();

// ---- gather

const Operator gather_op{
    .name = "gather",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          check_together(c.inputs, "gather");
          check_shapes(c.input(0), c.as<AlongDim>().dim, c.input(1), "gather");
          out[0] = {.sizes = c.input(1).sizes(), .dtype = c.input(0).dtype(), .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          int64_t dim = c.as<AlongDim>().dim;
          Tensor x = at_least_1d(c.input(0)), index = at_least_1d(c.input(1)), out = at_least_1d(c.output());
          if (names_rows(index, dim)) {
            Rows rows = make_rows(x, out, index, dim, "gather");
            take_rows(rows.plan, bytes_of(out), bytes_of(x), x.element_size());
            return;
          }
          index = ready_indices(index, dim, x.size(dim), "gather");
          Lines lines = make_lines(x, out, index, dim, false);
          with_bytes(x.element_size(), [&]<class B>() {
            gather_lines(lines, reinterpret_cast<B*>(bytes_of(out)), reinterpret_cast<const B*>(bytes_of(x)));
          });
        },
    .gradient =
        [](GradientCall& c) {
          Tensor whole = zeros(c.input_sizes(0), {.dtype = c.grad().dtype(), .device = c.grad().device()});
          c.set(0, scatter_add_(whole, c.as<AlongDim>().dim, c.input(1), c.grad()));
        },
    .saves_inputs = 0b10,
};

// ---- scatter, scatter_add: inputs are x, index and source, which has the shape of index.

void infer_scatter(const Call& c, std::span<TensorSpec> out) {
  const Tensor &x = c.input(0), &index = c.input(1), &source = c.input(2);
  check_together(c.inputs, c.op.name);
  check_shapes(x, c.as<AlongDim>().dim, index, c.op.name);
  check<DTypeError>(source.dtype() == x.dtype(), c.op.name, "{} and {} differ in dtype", source, x);
  check<ShapeError>(source.sizes() == index.sizes(), c.op.name, "the source {} has not the shape of the index {}",
                    source, index);
  out[0] = spec_like(x, c.output());
}

template <class Rowwise, class Linewise>
void run_scatter(const Call& c, Rowwise&& rowwise, Linewise&& linewise) {
  int64_t dim = c.as<AlongDim>().dim;
  Tensor x = at_least_1d(c.input(0)), index = at_least_1d(apart_from(c.input(1), c.output()));
  Tensor source = at_least_1d(apart_from(c.input(2), c.output())), out = at_least_1d(c.output());
  if (names_rows(index, dim)) {
    Rows rows = make_rows(out, source, index, dim, c.op.name);
    start_from(x, out);
    rowwise(rows.plan, out, source);
    return;
  }
  index = ready_indices(index, dim, x.size(dim), c.op.name);
  start_from(x, out);
  if (index.numel() > 0) linewise(out, source, index, dim);
}

const Operator scatter_op{
    .name = "scatter",
    .infer = infer_scatter,
    .cpu =
        [](const Call& c) {
          run_scatter(
              c,
              [](const RowPlan& plan, const Tensor& out, const Tensor& source) {
                put_rows(plan, bytes_of(out), bytes_of(source), out.element_size());
              },
              [](const Tensor& out, const Tensor& source, const Tensor& index, int64_t dim) {
                Lines lines = make_lines(out, source, index, dim, true);
                with_bytes(out.element_size(), [&]<class B>() {
                  scatter_lines(lines, reinterpret_cast<B*>(bytes_of(out)),
                                reinterpret_cast<const B*>(bytes_of(source)));
                });
              });
        },
    .gradient =
        [](GradientCall& c) {
          int64_t dim = c.as<AlongDim>().dim;
          Tensor index = c.input(1);
          if (c.needs(0)) c.set(0, scatter(c.grad(), dim, index, 0));
          if (c.needs(2)) {
            // Elements that a later one with the same index has overwritten do not matter.
            Tensor remains = call(last_writers_operator(), {&index, &c.grad()}, c.attributes());
            c.set(2, where(remains, gather(c.grad(), dim, index), 0));
          }
        },
    .saves_inputs = 0b10,
    .in_place = 1,
};

void add_lines(const Tensor& out, const Tensor& source, const Tensor& index, int64_t dim) {
  if (out.dtype() == DType::bf16 || out.dtype() == DType::f16) {
    // Sums are made in f32 and rounded once.
    NoGrad guard;
    Tensor wide = make_tensor(out.sizes(), DType::f32, out.device()),
           wide_source = make_tensor(source.sizes(), DType::f32, out.device());
    copy_into(wide, out);
    copy_into(wide_source, source);
    add_lines(wide, wide_source, index, dim);
    copy_into(out, wide);
    return;
  }
  Lines lines = make_lines(out, source, index, dim, true);
  with_type(out.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, BFloat16> && !std::is_same_v<T, Half>)
      scatter_add_lines(lines, reinterpret_cast<T*>(bytes_of(out)), reinterpret_cast<const T*>(bytes_of(source)));
  });
}

const Operator scatter_add_op{
    .name = "scatter_add",
    .infer = infer_scatter,
    .cpu =
        [](const Call& c) {
          run_scatter(
              c,
              [](const RowPlan& plan, const Tensor& out, const Tensor& source) {
                add_rows(plan, bytes_of(out), bytes_of(source), out.dtype());
              },
              add_lines);
        },
    .gradient =
        [](GradientCall& c) {
          if (c.needs(0)) c.set(0, c.grad());
          if (c.needs(2)) c.set(2, gather(c.grad(), c.as<AlongDim>().dim, c.input(1)));
        },
    .saves_inputs = 0b10,
    .in_place = 1,
};

// Of an index into a tensor like the second input: which of its elements no later one repeats.
const Operator scatter_last_writers_op{
    .name = "scatter_last_writers",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = c.input(0).sizes(), .dtype = DType::boolean, .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          int64_t dim = c.as<AlongDim>().dim;
          Tensor x = at_least_1d(c.input(1)), out = at_least_1d(c.output());
          Tensor index = ready_indices(at_least_1d(c.input(0)), dim, x.size(dim), "scatter");
          Shape sizes = index.sizes(), strides = contiguous_strides(x.sizes());
          std::vector<bool> written(static_cast<size_t>(x.numel()));
          const auto* at = index.data<int64_t>();
          bool* last = out.data<bool>();
          for (int64_t k = index.numel(); k-- > 0;) {
            int64_t rest = k, target = at[k] * strides[static_cast<size_t>(dim)];
            for (size_t d = sizes.size(); d-- > 0; rest /= sizes[d])
              if (static_cast<int64_t>(d) != dim) target += rest % sizes[d] * strides[d];
            last[k] = !written[static_cast<size_t>(target)];
            written[static_cast<size_t>(target)] = true;
          }
        },
};
const Operator& last_writers_operator() { return scatter_last_writers_op; }

// The part of the source that belongs to the index.
Tensor fit_source(const Tensor& x, const Tensor& index, const Tensor& source, const char* name) {
  Tensor part = value_for(x, source, name);
  if (part.dim() == 0) return expand(part, index.sizes());
  check<ShapeError>(part.dim() == index.dim(), name, "the source {} must have as many dims as the index {}", source,
                    index);
  for (int64_t d = 0; d < index.dim(); ++d) {
    check<ShapeError>(index.size(d) <= part.size(d), name, "the index {} is larger than the source {} in dim {}", index,
                      source, d);
    if (index.size(d) < part.size(d)) part = narrow(part, d, 0, index.size(d));
  }
  return part;
}

Tensor& scatter_into(const Operator& op, Tensor& out, const Tensor& x, int64_t dim, const Tensor& index,
                     const Tensor& source) {
  AlongDim a{wrap_dim(dim, x, op.name)};
  check_defined(index, op.name);
  Tensor part = fit_source(x, index, source, op.name);
  return call_out(op, {&x, &index, &part}, out, attributes(a));
}

}  // namespace

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  Tensor out;
  return gather_out(out, x, dim, index);
}
Tensor& gather_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index) {
  AlongDim a{wrap_dim(dim, x, "gather")};
  return call_out(gather_op, {&x, &index}, out, attributes(a));
}
Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  Tensor out;
  return scatter_out(out, x, dim, index, source);
}
Tensor& scatter_(Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  return scatter_out(x, x, dim, index, source);
}
Tensor& scatter_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  return scatter_into(scatter_op, out, x, dim, index, source);
}
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  Tensor out;
  return scatter_add_out(out, x, dim, index, source);
}
Tensor& scatter_add_(Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  return scatter_add_out(x, x, dim, index, source);
}
Tensor& scatter_add_out(Tensor& out, const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  return scatter_into(scatter_add_op, out, x, dim, index, source);
}

}  // namespace tutti
