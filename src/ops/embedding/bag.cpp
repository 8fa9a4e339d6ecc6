// embedding_bag. Sum and mean are one operator, a sum of rows each times a factor: linear in the table and in the
// factors, which are 1, one over the size of the bag, 0 for padding, times what the user gave.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/embedding/embedding.h"
#include "ops/index/indices.h"
#include "tensor/call.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

constexpr const char* kName = "embedding_bag";
constexpr int64_t kGrain = 16384;  // elements worth a thread's attention

struct BagLayout {
  int64_t bags, padding;
  bool mean;
  DType dtype;
  TUTTI_FIELDS(bags, padding, mean, dtype)
};
struct Bags {
  int64_t padding;
  bool sparse, by_frequency;
  TUTTI_FIELDS(padding, sparse, by_frequency)
};

template <class F>
void with_float(DType dtype, F&& f) {
  dtype == f64 ? f.template operator()<double>() : f.template operator()<float>();
}

// Where bags begin, [bags + 1], of n indices and offsets [bags] or [bags + 1].
void fill_starts(const Tensor& offsets, int64_t bags, int64_t n, int64_t* starts) {
  Tensor given = cast(offsets.detach(), i64).contiguous();
  bool has_end = given.numel() == bags + 1;
  if (given.numel() > 0) std::copy_n(given.data<int64_t>(), given.numel(), starts);
  check<IndexError>(bags > 0 || n == 0, kName, "there are {} indices and no bag to put them in", n);
  if (bags == 0) starts[0] = 0;
  check<IndexError>(starts[0] == 0, kName, "the first offset must be 0, not {}", starts[0]);
  for (int64_t b = 1; b < given.numel(); ++b)
    check<IndexError>(starts[b] >= starts[b - 1], kName, "offset {} of bag {} is below the one before, {}", starts[b],
                      b, starts[b - 1]);
  check<IndexError>(!has_end || starts[bags] == n, kName, "the last offset must be the number of indices, {}, not {}",
                    n, starts[bags]);
  if (has_end) return;
  check<IndexError>(bags == 0 || starts[bags - 1] <= n, kName, "offset {} is beyond the {} indices", starts[bags - 1],
                    n);
  starts[bags] = n;
}

// Outputs: where bags begin [bags + 1], the bag of each index [n], the factor of each index [n].
const Operator bag_layout_op{
    .name = "bag_layout",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<BagLayout>();
          int64_t n = c.input(0).numel();
          Device device = c.input(0).device();
          out[0] = {.sizes = a.bags + 1, .dtype = i64, .device = device};
          out[1] = {.sizes = n, .dtype = i64, .device = device};
          out[2] = {.sizes = n, .dtype = a.dtype, .device = device};
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<BagLayout>();
          NoGrad guard;
          Tensor indices = cast(c.input(0).detach(), i64).contiguous();
          const int64_t* index = indices.data<int64_t>();
          int64_t *starts = c.output(0).data<int64_t>(), *bag_of = c.output(1).data<int64_t>();
          fill_starts(c.input(1), a.bags, indices.numel(), starts);
          Tensor factors = empty({indices.numel()}, {.dtype = a.dtype == f64 ? f64 : f32});
          with_float(factors.dtype(), [&]<class T>() {
            T* factor = factors.data<T>();
            for (int64_t b = 0; b < a.bags; ++b) {
              int64_t count = 0;
              for (int64_t k = starts[b]; k < starts[b + 1]; ++k) count += index[k] != a.padding;
              T each = a.mean ? T(1) / static_cast<T>(count) : T(1);
              for (int64_t k = starts[b]; k < starts[b + 1]; ++k) {
                bag_of[k] = b;
                factor[k] = index[k] == a.padding ? T(0) : each;
              }
            }
          });
          copy_into(c.output(2), factors);
        },
};

// The weight as the kernels read it: rows of f32 or f64 that lie in memory as one.
Tensor readable(const Tensor& weight) {
  NoGrad guard;
  Tensor w = cast(weight.detach(), weight.dtype() == f64 ? f64 : f32);
  return w.numel() && w.stride(1) != 1 ? w.contiguous() : w;
}

// Inputs: weight, indices, starts, bag of each index, factors.
void run_sum(const Call& c) {
  Tensor weight = readable(c.input(0)), index = checked_indices(c.input(1), weight.size(0), kName);
  const Tensor& out = c.output();
  if (out.numel() == 0) return;
  NoGrad guard;
  DType dtype = weight.dtype();
  Tensor factors = cast(c.input(4).detach(), dtype).contiguous(), starts = c.input(2).contiguous();
  Tensor to = out.dtype() == dtype ? out : empty(out.sizes(), {.dtype = dtype, .device = out.device()});
  with_float(dtype, [&]<class T>() {
    const auto *at = index.data<int64_t>(), *start = starts.data<int64_t>();
    int64_t bags = out.size(0), width = out.size(1);
    int64_t grain = std::max<int64_t>(1, kGrain / (width * (index.numel() / bags + 1)));
    parallel_for(bags, grain, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        sum_bag_pointer()({.dtype = dtype,
                           .table = weight.raw_data(),
                           .row = weight.stride(0),
                           .at = at + start[b],
                           .factors = factors.data<T>() + start[b],
                           .count = start[b + 1] - start[b],
                           .padding = c.as<Bags>().padding,
                           .width = width},
                          to.data<T>() + b * width);
    });
  });
  if (!to.is_same(out)) copy_into(out, to);
}

// The gradients of rows: row bag_of[k] of g [bags, D] times factor k, [n, D].
const Operator bag_rows_op{
    .name = "embedding_bag_rows",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = {c.input(1).numel(), c.input(0).size(1)},
                    .dtype = c.input(0).dtype(),
                    .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          const Tensor& out = c.output();
          if (out.numel() == 0) return;
          NoGrad guard;
          Tensor g = readable(c.input(0)), bag_of = c.input(1).contiguous();
          Tensor factors = cast(c.input(2).detach(), g.dtype()).contiguous();
          Tensor to = out.dtype() == g.dtype() ? out : empty(out.sizes(), {.dtype = g.dtype(), .device = out.device()});
          int64_t width = out.size(1);
          with_float(g.dtype(), [&]<class T>() {
            const int64_t* bag = bag_of.data<int64_t>();
            parallel_for(out.size(0), std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end) {
              for (int64_t k = begin; k < end; ++k)
                scale_row_pointer()(g.dtype(), g.data<T>() + bag[k] * g.stride(0), factors.data<T>() + k,
                                    to.data<T>() + k * width, width);
            });
          });
          if (!to.is_same(out)) copy_into(out, to);
        },
    .gradient =
        [](GradientCall& c) {
          Tensor bag_of = c.input(1), factors = c.input(2), h = c.grad();
          if (c.needs(0)) {
            Tensor whole = zeros(c.input_sizes(0), {.dtype = h.dtype(), .device = h.device()});
            c.set(0, index_add_(whole, 0, bag_of, h * unsqueeze(factors, 1)));
          }
          if (c.needs(2)) c.set(2, sum(h * index_select(c.input(0), 0, bag_of), 1));
        },
    .saves_inputs = 0b111,
};

const Operator bag_sum_op{
    .name = kName,
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          check<DTypeError>(c.input(4).dtype() == c.input(0).dtype(), kName,
                            "per_sample_weights {} must have the dtype of the table {}", c.input(4), c.input(0));
          out[0] = {.sizes = {c.input(2).numel() - 1, c.input(0).size(1)},
                    .dtype = c.input(0).dtype(),
                    .device = c.input(0).device()};
        },
    .cpu = run_sum,
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Bags>();
          Tensor index = cast(c.input(1), i64), bag_of = c.input(3), factors = c.input(4), g = c.grad();
          if (c.needs(0))
            c.set(0, table_gradient({c.input_sizes(0)[0], a.padding, a.sparse, a.by_frequency},
                                    call(bag_rows_op, {&g, &bag_of, &factors}), index));
          if (c.needs(4)) {
            Tensor products = sum(index_select(g, 0, bag_of) * index_select(c.input(0), 0, index), 1);
            Tensor none = zeros({}, {.dtype = products.dtype(), .device = products.device()});
            c.set(4, a.padding < 0 ? products : where(index == a.padding, none, products));
          }
        },
    .saves_inputs = 0b11011,
    .autocast = AutocastPolicy::widest,  // the weights of lookups may come from a product
};

// Outputs: the largest of each column, and the row of the table it came from (the first of several; -1 if none).
void run_max(const Call& c) {
  Tensor weight = readable(c.input(0)), index = checked_indices(c.input(1), weight.size(0), kName);
  const Tensor &out = c.output(0), &from = c.output(1);
  if (out.numel() == 0) return;
  NoGrad guard;
  Tensor to = zeros(out.sizes(), {.dtype = weight.dtype(), .device = out.device()}), starts = c.input(2).contiguous();
  with_float(weight.dtype(), [&]<class T>() {
    const auto *at = index.data<int64_t>(), *start = starts.data<int64_t>();
    int64_t bags = out.size(0), width = out.size(1), padding = c.as<Bags>().padding;
    int64_t grain = std::max<int64_t>(1, kGrain / (width * (index.numel() / bags + 1)));
    parallel_for(bags, grain, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        T* best = to.data<T>() + b * width;
        int64_t* where = from.data<int64_t>() + b * width;
        std::fill_n(where, width, int64_t{-1});
        for (int64_t k = start[b]; k < start[b + 1]; ++k) {
          if (at[k] == padding) continue;
          const T* row = weight.data<T>() + at[k] * weight.stride(0);
          for (int64_t d = 0; d < width; ++d)
            if (where[d] < 0 || row[d] > best[d] || (row[d] != row[d] && best[d] == best[d])) {
              best[d] = row[d];
              where[d] = at[k];
            }
        }
      }
    });
  });
  copy_into(out, to);
}

const Operator bag_max_op{
    .name = kName,
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = {c.input(2).numel() - 1, c.input(0).size(1)},
                    .dtype = c.input(0).dtype(),
                    .device = c.input(0).device()};
          out[1] = {.sizes = out[0].sizes, .dtype = i64, .device = out[0].device};
        },
    .cpu = run_max,
    .gradient =
        [](GradientCall& c) {
          Tensor from = c.output(1), g = c.grad();
          Options like{.dtype = g.dtype(), .device = g.device()};
          if (c.input_sizes(0)[0] == 0) return;  // an empty table: nothing to tell it
          g = where(from < 0, zeros({}, like), g);
          Tensor table = zeros(c.input_sizes(0), like);
          c.set(0, scatter_add_(table, 0, maximum(from, 0), g));
        },
    .saves_outputs = 0b10,
};

// The indices as one list, where bags begin, and how many there are.
struct Input {
  Tensor indices, offsets;
  int64_t bags;
};
Input normalize(const Tensor& indices, const Tensor& offsets, bool include_last) {
  if (indices.dim() == 2) {
    check<ValueError>(!offsets.defined(), kName, "2-D indices {} are bags already: offsets {} are for 1-D ones",
                      indices, offsets);
    check<ValueError>(!include_last, kName, "include_last_offset is for 1-D indices, not {}", indices);
    int64_t bags = indices.size(0), size = indices.size(1);
    Tensor starts = arange(bags + 1, {.dtype = i64, .device = indices.device()}) * size;
    return {reshape(indices, {bags * size}), starts, bags};
  }
  check<ShapeError>(indices.dim() == 1, kName, "indices must be 1-D with offsets, or 2-D [bags, n], not {}", indices);
  check<ValueError>(offsets.defined(), kName, "1-D indices {} need offsets that say where each bag begins", indices);
  const Tensor* both[] = {&indices, &offsets};
  check_together(both, kName);
  check_index_dtype(offsets, kName);
  check<ShapeError>(offsets.dim() == 1, kName, "offsets must be 1-D, not {}", offsets);
  check<ShapeError>(!include_last || offsets.numel() > 0, kName,
                    "with include_last_offset there is at least one offset, the end of the last bag");
  return {indices, offsets, offsets.numel() - (include_last ? 1 : 0)};
}

void check_options(const Tensor& weight, const Tensor& indices, const EmbeddingBagOptions& o) {
  check<DTypeError>(weight.is_floating(), kName, "needs floating-point rows, not {}", weight);
  check<ValueError>(!(o.mode == BagMode::max && o.sparse), kName,
                    "the gradient of a max cannot be sparse: each column has its own row");
  check<ValueError>(!(o.mode == BagMode::max && o.scale_grad_by_freq), kName,
                    "scale_grad_by_freq is for sums and means, not for max");
  const Tensor& w = o.per_sample_weights;
  if (!w.defined()) return;
  const Tensor* both[] = {&weight, &w};
  check_together(both, kName);
  check<ValueError>(o.mode == BagMode::sum, kName, "per_sample_weights are for BagMode::sum only");
  check<ShapeError>(w.sizes() == indices.sizes(), kName, "per_sample_weights {} must have the shape of the indices {}",
                    w, indices);
}

}  // namespace

Tensor embedding_bag(const Tensor& weight, const Tensor& indices, const Tensor& offsets, const EmbeddingBagOptions& o) {
  check_table(weight, indices, kName);
  check_options(weight, indices, o);
  Input in = normalize(indices, offsets, o.include_last_offset);
  int64_t padding = wrap_padding(o.padding_idx, weight.size(0), kName);
  if (o.max_norm) renormalize(weight, in.indices, *o.max_norm, o.norm_type, kName);
  BagLayout layout{in.bags, padding, o.mode == BagMode::mean, weight.dtype()};
  Tensor parts[3];
  const Tensor* layout_inputs[] = {&in.indices, &in.offsets};
  call(bag_layout_op, layout_inputs, attributes(layout), parts);
  auto& [starts, bag_of, factors] = parts;
  Bags a{padding, o.sparse, o.scale_grad_by_freq};
  if (o.mode == BagMode::max) {
    const Tensor* inputs[] = {&weight, &in.indices, &starts};
    Tensor outputs[2];
    call(bag_max_op, inputs, attributes(a), outputs);
    return outputs[0];
  }
  if (o.per_sample_weights.defined()) factors = reshape(o.per_sample_weights, {-1});
  return call(bag_sum_op, {&weight, &in.indices, &starts, &bag_of, &factors}, attributes(a));
}

}  // namespace tutti
