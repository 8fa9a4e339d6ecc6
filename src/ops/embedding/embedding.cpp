// embedding, and what it shares with embedding_bag.
#include "ops/embedding/embedding.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/named.h"
#include "ops/index/indices.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {

Tensor checked_indices(const Tensor& indices, int64_t rows, const char* name) {
  NoGrad guard;
  Tensor ready = cast(indices.detach(), i64).contiguous();
  const int64_t* p = ready.numel() ? ready.data<int64_t>() : nullptr;
  int64_t n = ready.numel();
  Extremes found = extremes(p, n);
  if (n > 0 && (found.low < 0 || found.high >= rows)) {
    const int64_t* bad = std::find_if(p, p + n, [&](int64_t i) { return i < 0 || i >= rows; });
    fail<IndexError>(name, "index {} at position {} of {} is out of range for a table of {} rows", *bad, bad - p,
                     indices, rows);
  }
  return ready;
}

void check_table(const Tensor& weight, const Tensor& indices, const char* name) {
  const Tensor* both[] = {&weight, &indices};
  check_together(both, name);
  check<ShapeError>(weight.dim() == 2, name, "the weight must be a table [V, D], not {}", weight);
  check_index_dtype(indices, name);
}

int64_t wrap_padding(std::optional<int64_t> padding, int64_t rows, const char* name) {
  if (!padding) return -1;
  check<IndexError>(*padding >= -rows && *padding < rows, name, "padding_idx {} is out of range for a table of {} rows",
                    *padding, rows);
  return *padding < 0 ? *padding + rows : *padding;
}

namespace {

struct Lookup {
  int64_t padding;
  bool sparse, by_frequency;
  TUTTI_FIELDS(padding, sparse, by_frequency)
};

// 1 / how often each index occurs among all of them: [n, 1].
const Operator inverse_frequency_op{
    .name = "inverse_frequency",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = {c.input(0).numel(), 1}, .dtype = c.input(1).dtype(), .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          std::vector<int64_t> index = c.input(0).to_vector<int64_t>(), sorted = index;
          std::sort(sorted.begin(), sorted.end());
          std::vector<double> inverse(index.size());
          for (size_t i = 0; i < index.size(); ++i) {
            auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), index[i]);
            inverse[i] = 1 / static_cast<double>(last - first);
          }
          Tensor out = c.output();
          out.copy_(reshape(tensor(inverse), out.sizes()));
        },
};

}  // namespace

Tensor table_gradient(const TableGradient& how, const Tensor& g, const Tensor& indices) {
  Tensor rows = g, index = indices;
  if (how.by_frequency) rows = rows * call(inverse_frequency_op, {&index, &rows});
  // Sparse gradients keep the entries, of zeros: how many there are does not depend on values, so that they compile.
  if (how.padding >= 0)
    rows = where(unsqueeze(index != how.padding, 1), rows, zeros({}, {.dtype = g.dtype(), .device = g.device()}));
  Shape sizes{how.rows, g.size(1)};
  if (how.sparse) return sparse_coo(unsqueeze(index, 0), rows, sizes);
  Tensor table = zeros(sizes, {.dtype = g.dtype(), .device = g.device()});
  return index_add_(table, 0, index, rows);
}

namespace {

struct Shorten {
  double max_norm, p;
  bool bags;
  TUTTI_FIELDS(max_norm, p, bags)
};

// The table (input 0), of which rows that are looked up (input 1) and are too long are shortened. Others are not
// touched where the output is the table itself.
const Operator shorten_op{
    .name = "embedding_shorten",
    .infer = [](const Call& c, std::span<TensorSpec> out) { out[0] = spec_like(c.input(0), c.output()); },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Shorten>();
          Tensor table = c.output();
          NoGrad guard;
          Tensor index = checked_indices(c.input(1), table.size(0), a.bags ? "embedding_bag" : "embedding");
          std::vector<int64_t> used = index.to_vector<int64_t>();
          std::sort(used.begin(), used.end());
          used.erase(std::unique(used.begin(), used.end()), used.end());
          start_from(c.input(0), table);
          if (used.empty()) return;
          Tensor at = tensor(used, {.device = table.device()});
          Tensor rows = index_select(table, 0, at), lengths = norm(rows, a.p, 1, true);
          Tensor shorter = where(lengths > a.max_norm, rows * (a.max_norm / (lengths + 1e-7)), rows);
          table.index_put_({at}, shorter);
        },
    .in_place = 1,
};

}  // namespace

void renormalize(const Tensor& weight, const Tensor& indices, double max_norm, double p, const char* name) {
  check<DTypeError>(is_differentiable(weight.dtype()), name, "max_norm is for rows of floating-point numbers, not {}",
                    weight);
  named(name, [&] {
    NoGrad guard;
    Shorten a{max_norm, p, name != std::string_view("embedding")};
    Tensor table = weight.detach();
    call_out(shorten_op, {&table, &indices}, table, attributes(a));
  });
}

namespace {

void run_embedding(const Call& c) {
  const Tensor &weight = c.input(0), &out = c.output();
  Tensor index = checked_indices(c.input(1), weight.size(0), "embedding");
  if (out.numel() == 0) return;
  RowPlan plan;
  plan.at = index.data<int64_t>();
  plan.count = index.numel();
  plan.scale = weight.stride(0);
  plan.row_stride = weight.size(1);
  plan.run = {weight.size(1), weight.stride(1), 1};
  take_rows(plan, bytes_of(out), bytes_of(weight), weight.element_size());
}

const Operator embedding_op{
    .name = "embedding",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = c.input(1).sizes(), .dtype = c.input(0).dtype(), .device = c.input(0).device()};
          out[0].sizes.push_back(c.input(0).size(1));
        },
    .cpu = run_embedding,
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Lookup>();
          Tensor index = reshape(cast(c.input(1), i64), {-1});
          Tensor g = reshape(c.grad(), {index.numel(), c.input_sizes(0)[1]});
          c.set(0, table_gradient({c.input_sizes(0)[0], a.padding, a.sparse, a.by_frequency}, g, index));
        },
    .saves_inputs = 0b10,
};

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& indices, const EmbeddingOptions& o) {
  check_table(weight, indices, "embedding");
  Lookup a{wrap_padding(o.padding_idx, weight.size(0), "embedding"), o.sparse, o.scale_grad_by_freq};
  if (o.max_norm) renormalize(weight, indices, *o.max_norm, o.norm_type, "embedding");
  return call(embedding_op, {&weight, &indices}, attributes(a));
}

}  // namespace tutti
