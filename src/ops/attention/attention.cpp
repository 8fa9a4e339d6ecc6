// Scaled dot-product attention.
//
// Queries are taken in blocks, and for each block keys in blocks: their scores stay in the cache, where they become
// weights relative to the largest score so far; what was summed before is corrected when a larger one comes. Kept for
// the gradient is one logarithm a query, from which the weights can be had again, block by block. So can the weights
// that dropout leaves: see Note [Dropped weights].
#include "ops/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "amp/policy.h"
#include "base/check.h"
#include "base/named.h"
#include "base/parallel.h"
#include "ops/again.h"
#include "ops/matmul/gemm_kernel.h"
#include "ops/random/draw.h"
#include "ops/random/kernels.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/context.h"
#include "tutti/operator.h"
#include "tutti/ops.h"
#include "tutti/ops/attention.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using attending::Block;
using products::Matrix;

constexpr const char* kName = "scaled_dot_product_attention";
// Scores of a block are to stay in the second-level cache, in the backward pass together with their gradients.
constexpr int64_t kQueries = 64, kKeys = 256, kKeysBackward = 128;
// Queries of a block: few under a causal mask, since a block computes up to the last key that any of them sees.
int64_t queries_of(bool causal) { return causal ? kQueries / 2 : kQueries; }
constexpr int64_t kNoLimit = INT64_MAX / 2;

struct Attend {
  double scale;
  bool causal;
  double dropout;
  TUTTI_FIELDS(scale, causal, dropout)
};

// ---- Dropout

// Note [Dropped weights]
// Whether the weight of query t and key s in batch b is dropped depends on random word (b·T + t)·S' + s after the
// position that `state` holds, S' being the number of keys rounded up to whole groups of words. So each row of a block,
// which begins at a multiple of a group, can draw its part by itself, and the backward pass (or the composition, which
// second derivatives take) draws the same again; no mask is kept.
struct Dropping {
  uint64_t seed = 0, position = 0;
  uint32_t threshold = 0;
  double scale = 1;
  int64_t row = 0;  // S'
  bool on = false;

  Dropping() = default;
  Dropping(double p, const Tensor& state, int64_t keys) : row(padded(keys)), on(p > 0) {
    if (!on) return;
    const auto* s = state.data<int64_t>();
    seed = static_cast<uint64_t>(s[0]), position = static_cast<uint64_t>(s[1]);
    threshold = drop_threshold(p);
    scale = p < 1 ? 1 / (1 - p) : 0;
  }
  static int64_t padded(int64_t keys) {
    return (keys + kElementsOfOneWord - 1) / kElementsOfOneWord * kElementsOfOneWord;
  }
  // Columns first ... of rows that begin with number first_row in all of the batch.
  template <class T>
  void apply(T* x, int64_t stride, int64_t first_row, int64_t rows, int64_t first, int64_t columns) const {
    if (!on || columns <= 0) return;
    for (int64_t r = 0; r < rows; ++r, x += stride) {
      RandomRange range{seed, position, (first_row + r) * row + first, columns};
      if constexpr (std::is_same_v<T, double>)
        random_drop_f64_pointer()(range, threshold, scale, x, x);
      else
        random_drop_f32_pointer()(range, threshold, static_cast<float>(scale), x, x);
    }
  }
};
static_assert(kKeys % kElementsOfOneWord == 0 && kKeysBackward % kElementsOfOneWord == 0);

// ---- One matrix of a batch

// A tensor's matrix (its last two dims) at one index of the batch.
struct Part {
  std::byte* data = nullptr;
  int64_t row = 0, column = 1;
  Matrix at(int64_t i, size_t element) const { return {data + i * row * static_cast<int64_t>(element), row, column}; }
  Matrix transposed_at(int64_t i, size_t element) const {
    return {data + i * row * static_cast<int64_t>(element), column, row};
  }
};
Part part_of(const Tensor& x, int64_t index, int64_t matrix_dims = 2) {
  if (!x.defined() || x.numel() == 0) return {};
  int64_t offset = 0;
  for (int64_t d = x.dim() - matrix_dims - 1; d >= 0; --d) {
    offset += index % x.size(d) * x.stride(d);
    index /= x.size(d);
  }
  auto* data = impl(x)->data() + offset * static_cast<int64_t>(x.element_size());
  return matrix_dims == 2 ? Part{data, x.stride(-2), x.stride(-1)} : Part{data, x.stride(-1), 1};
}

struct Sizes {
  int64_t batch = 1, queries, keys, depth, width;
  Sizes(const Tensor& q, const Tensor& k, const Tensor& v)
      : queries(q.size(-2)), keys(k.size(-2)), depth(q.size(-1)), width(v.size(-1)) {
    for (int64_t d = 0; d < q.dim() - 2; ++d) batch *= q.size(d);
  }
};

void multiply(DType dtype, int64_t rows, int64_t columns, int64_t depth, Matrix a, Matrix b, void* c, int64_t c_row,
              double alpha, double beta) {
  if (rows == 0 || columns == 0) return;
  if (depth == 0) {
    auto bytes = static_cast<size_t>(columns) * size_of(dtype);
    for (int64_t r = 0; r < rows && beta == 0; ++r)
      std::memset(static_cast<std::byte*>(c) + r * c_row * static_cast<int64_t>(size_of(dtype)), 0, bytes);
    return;
  }
  multiply_tiles_pointer()({dtype, rows, columns, depth, a, b, c, c_row, c, c_row, alpha, beta});
}

// The block of scores that begins at query i and key j, with its part of the mask.
Block make_block(DType dtype, const Tensor& mask, const Part& mask_part, const Attend& a, int64_t i, int64_t rows,
                 int64_t j, int64_t columns) {
  Block b{.dtype = dtype,
          .rows = rows,
          .columns = columns,
          .row_stride = columns,
          .first_limit = a.causal ? i + 1 - j : kNoLimit};
  if (!mask.defined()) return b;
  const std::byte* from = mask_part.data + (i * mask_part.row + j) * static_cast<int64_t>(mask.element_size());
  b.mask_row = mask_part.row;
  if (mask.dtype() == DType::boolean)
    b.allowed = reinterpret_cast<const bool*>(from);
  else
    b.added = from;
  return b;
}

// Pieces of work that are worth a thread's attention.
int64_t grain_of(const Sizes& s, int64_t queries) {
  double work = static_cast<double>(queries) * static_cast<double>(s.keys) * static_cast<double>(s.depth + s.width);
  return static_cast<int64_t>(std::clamp(0x1p18 / std::max(work, 1.0), 1.0, 1e6));
}

// Kernels want the mask's columns next to each other, and matrices that are not expanded along their columns.
Tensor with_rows(const Tensor& x) {
  if (!x.defined() || x.numel() == 0 || x.stride(-1) == 1) return x;
  NoGrad guard;
  return x.detach().contiguous();
}

// ---- Forward: out and the logarithm of each query's sum

template <class T>
void forward_block(const Call& c, const Sizes& s, const Dropping& drop, int64_t batch, int64_t i, T* buffer) {
  const auto& a = c.as<Attend>();
  constexpr DType dtype = dtype_of<T>;
  constexpr size_t element = sizeof(T);
  const Tensor& mask = c.input(3);
  Part q = part_of(c.input(0), batch), k = part_of(c.input(1), batch), v = part_of(c.input(2), batch),
       m = part_of(mask, batch), out = part_of(c.output(0), batch), logs = part_of(c.output(1), batch, 1);
  int64_t rows = std::min(queries_of(a.causal), s.queries - i);
  T *scores = buffer, *top = scores + kQueries * kKeys, *sum = top + kQueries, *correction = sum + kQueries;
  std::fill_n(top, rows, -std::numeric_limits<T>::infinity());
  std::fill_n(sum, rows, T(0));
  T* to = reinterpret_cast<T*>(out.data) + i * out.row;
  int64_t keys = a.causal ? std::min(s.keys, i + rows) : s.keys;
  for (int64_t j = 0; j < keys; j += kKeys) {
    int64_t columns = std::min(kKeys, keys - j);
    multiply(dtype, rows, columns, s.depth, q.at(i, element), k.transposed_at(j, element), scores, columns, a.scale, 0);
    attending::attend_forward_pointer()(make_block(dtype, mask, m, a, i, rows, j, columns), scores, top, sum,
                                        correction);
    drop.apply(scores, columns, batch * s.queries + i, rows, j, columns);
    if (j > 0) attending::scale_rows_pointer()(dtype, to, out.row, rows, s.width, correction);
    multiply(dtype, rows, s.width, columns, {scores, columns, 1}, v.at(j, element), to, out.row, 1, j > 0 ? 1 : 0);
  }
  if (keys == 0)
    for (int64_t r = 0; r < rows; ++r) std::fill_n(to + r * out.row, s.width, T(0));
  attending::finish_rows_pointer()(dtype, top, sum, reinterpret_cast<T*>(logs.data) + i, rows);
  attending::scale_rows_pointer()(dtype, to, out.row, rows, s.width, sum);
}

template <class T>
void forward(const Call& c) {
  Sizes s(c.input(0), c.input(1), c.input(2));
  if (s.batch * s.queries == 0) return;
  Tensor mask = with_rows(c.input(3));
  const Tensor* inputs[] = {&c.input(0), &c.input(1), &c.input(2), &mask};
  Call ready{c.op, inputs, c.attributes, c.outputs};
  Dropping drop(c.as<Attend>().dropout, c.input(4), s.keys);
  int64_t step = queries_of(c.as<Attend>().causal), blocks = (s.queries + step - 1) / step;
  parallel_for(s.batch * blocks, grain_of(s, std::min(step, s.queries)), [&](int64_t begin, int64_t end) {
    auto buffer = std::make_unique_for_overwrite<T[]>(kQueries * (kKeys + 3));
    for (int64_t unit = begin; unit < end; ++unit)
      forward_block(ready, s, drop, unit / blocks, unit % blocks * step, buffer.get());
  });
}

// ---- Backward: inputs g, q, k, v, mask, out, logs, state; outputs those of q, k, v

template <class T>
struct Backward {
  const Call& c;
  const Tensor& mask;
  const Sizes& s;
  const Attend& a;
  const Dropping& drop;
  T *scores, *grads, *delta;
  int64_t batch = 0;
  Part g, q, k, v, m, dq, dk, dv;
  const T* logs;
  static constexpr DType dtype = dtype_of<T>;
  static constexpr size_t element = sizeof(T);

  T* at(const Part& p, int64_t row) const { return reinterpret_cast<T*>(p.data) + row * p.row; }

  void run(int64_t at_batch) {
    batch = at_batch;
    g = part_of(c.input(0), batch), q = part_of(c.input(1), batch), k = part_of(c.input(2), batch);
    v = part_of(c.input(3), batch), m = part_of(mask, batch);
    dq = part_of(c.output(0), batch), dk = part_of(c.output(1), batch), dv = part_of(c.output(2), batch);
    Part out = part_of(c.input(5), batch);
    logs = reinterpret_cast<const T*>(part_of(c.input(6), batch, 1).data);
    attending::dot_rows_pointer()(dtype, at(g, 0), g.row, at(out, 0), out.row, s.queries, s.width, delta);
    for (int64_t i = 0; i < s.queries && s.keys == 0; ++i) std::fill_n(at(dq, i), s.depth, T(0));
    int64_t step = queries_of(a.causal);
    for (int64_t j = 0; j < s.keys; j += kKeysBackward) {
      int64_t columns = std::min(kKeysBackward, s.keys - j);
      // With a causal mask, queries before these keys do not see them, nor any of a block those after its last.
      int64_t first = a.causal ? j / step * step : 0;
      for (int64_t r = j; r < j + columns && a.causal; ++r) {
        std::fill_n(at(dk, r), s.depth, T(0));
        std::fill_n(at(dv, r), s.width, T(0));
      }
      for (int64_t i = first; i < s.queries; i += step) {
        int64_t rows = std::min(step, s.queries - i), seen = a.causal ? std::min(columns, i + rows - j) : columns;
        block(i, rows, j, seen, a.causal || i > first);
      }
    }
  }

  void block(int64_t i, int64_t rows, int64_t j, int64_t columns, bool later) {
    multiply(dtype, rows, columns, s.depth, q.at(i, element), k.transposed_at(j, element), scores, columns, a.scale, 0);
    multiply(dtype, rows, columns, s.width, g.at(i, element), v.transposed_at(j, element), grads, columns, 1, 0);
    int64_t row = batch * s.queries + i;
    drop.apply(grads, columns, row, rows, j, columns);
    attending::attend_backward_pointer()(make_block(dtype, mask, m, a, i, rows, j, columns), scores, grads, logs + i,
                                         delta + i, a.scale);
    drop.apply(scores, columns, row, rows, j, columns);
    double beta = later ? 1 : 0;
    multiply(dtype, columns, s.width, rows, {scores, 1, columns}, g.at(i, element), at(dv, j), dv.row, 1, beta);
    multiply(dtype, columns, s.depth, rows, {grads, 1, columns}, q.at(i, element), at(dk, j), dk.row, 1, beta);
    multiply(dtype, rows, s.depth, columns, {grads, columns, 1}, k.at(j, element), at(dq, i), dq.row, 1, j > 0 ? 1 : 0);
  }
};

template <class T>
void backward(const Call& c) {
  Sizes s(c.input(1), c.input(2), c.input(3));
  if (s.queries == 0)
    for (size_t i : {1, 2}) c.output(i).zero_();
  if (s.batch * s.queries == 0) return;
  Tensor mask = with_rows(c.input(4)), g = with_rows(c.input(0));
  const Tensor* inputs[] = {&g, &c.input(1), &c.input(2), &c.input(3), &mask, &c.input(5), &c.input(6)};
  Call ready{c.op, inputs, c.attributes, c.outputs};
  Dropping drop(c.as<Attend>().dropout, c.input(7), s.keys);
  parallel_for(s.batch, grain_of(s, 2 * s.queries), [&](int64_t begin, int64_t end) {
    int64_t block = kQueries * kKeysBackward;
    auto buffer = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(2 * block + s.queries));
    Backward<T> b{.c = ready,
                  .mask = mask,
                  .s = s,
                  .a = c.as<Attend>(),
                  .drop = drop,
                  .scores = buffer.get(),
                  .grads = buffer.get() + block,
                  .delta = buffer.get() + 2 * block,
                  .g = {},
                  .q = {},
                  .k = {},
                  .v = {},
                  .m = {},
                  .dq = {},
                  .dk = {},
                  .dv = {},
                  .logs = nullptr};
    for (int64_t batch = begin; batch < end; ++batch) b.run(batch);
  });
}

// ---- Descriptors

// Contiguous, but with the dims in the order in which x has them in memory: what comes out of [B, T, H, D] seen as
// [B, H, T, D] can be seen as [B, T, H·D] again without a copy.
TensorSpec spec_like(const Tensor& x, const Shape& sizes) {
  TensorSpec spec{.sizes = sizes, .dtype = x.dtype(), .device = x.device()};
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end() - 1, [&](size_t d, size_t e) { return x.strides()[d] > x.strides()[e]; });
  spec.strides.resize(sizes.size());
  int64_t step = 1;
  for (size_t i = order.size(); i-- > 0; step *= std::max<int64_t>(1, sizes[order[i]])) spec.strides[order[i]] = step;
  spec.strided = true;
  return spec;
}

Shape with_last(Shape sizes, int64_t last) {
  sizes[sizes.size() - 1] = last;
  return sizes;
}

struct Keep {
  Shape sizes;
  double dropout;
  DType dtype;
  TUTTI_FIELDS(sizes, dropout, dtype)
};
// What the weights [..., T, S] are multiplied with: 0, or 1 / (1 - p). See Note [Dropped weights].
const Operator keep_op{
    .name = "attention_dropout",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<Keep>();
          out[0] = {.sizes = a.sizes, .dtype = a.dtype, .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Keep>();
          Tensor out = c.output();
          if (out.numel() == 0) return;
          int64_t keys = out.size(-1);
          Dropping drop(a.dropout, c.input(0), keys);
          auto fill = [&]<class T>(T) {
            parallel_for(out.numel() / keys, kRandomGrain / keys + 1, [&](int64_t begin, int64_t end) {
              T* to = out.data<T>() + begin * keys;
              std::fill_n(to, (end - begin) * keys, T(1));
              drop.apply(to, keys, begin, end - begin, 0, keys);
            });
          };
          a.dtype == DType::f64 ? fill(double()) : fill(float());
        },
};

// The same in public operators, which make the weights as a whole.
Tensor composed(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const Tensor& state,
                const Attend& a) {
  Tensor scores = matmul(q, transpose(k, -2, -1)) * a.scale, allowed;
  if (mask.defined() && mask.dtype() == DType::boolean) allowed = mask;
  if (mask.defined() && mask.is_floating()) {
    allowed = mask != -std::numeric_limits<double>::infinity();
    scores = scores + where(allowed, mask, 0);
  }
  if (a.causal) {
    Tensor below = tril(ones({q.size(-2), k.size(-2)}, {.dtype = DType::boolean, .device = q.device()}));
    allowed = allowed.defined() ? logical_and(allowed, below) : below;
  }
  // A finite number instead of -∞, then zeros: a row without anything allowed has weights and gradients of 0, not NaN.
  if (allowed.defined()) scores = where(allowed, scores, q.dtype() == DType::f64 ? -1e300 : -1e38);
  Tensor weights = softmax(scores, -1);
  if (allowed.defined()) weights = where(allowed, weights, 0);
  if (a.dropout > 0) {
    Keep keep{weights.sizes(), a.dropout, weights.dtype()};
    weights = weights * call(keep_op, {&state}, attributes(keep));
  }
  return matmul(weights, v);
}

// ---- Descriptors for any floating-point dtype: bf16 and f16 are computed in f32

Tensor widened(const Tensor& x, DType dtype) {
  if (!x.defined() || !x.is_floating() || x.dtype() == dtype) return x;
  NoGrad guard;
  return cast(x.detach(), dtype);
}
bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }
DType computed_in(DType dtype) { return is_half(dtype) ? DType::f32 : dtype; }

// Calls `run` with inputs and outputs of one dtype, f32 or f64. A mask of numbers may come in any.
void with_wide(const Call& c, DType own, void (*run_f32)(const Call&), void (*run_f64)(const Call&)) {
  DType dtype = computed_in(own);
  std::vector<Tensor> wide, outputs;
  std::vector<const Tensor*> inputs;
  for (const Tensor* x : c.inputs) wide.push_back(widened(*x, dtype));
  for (const Tensor& x : wide) inputs.push_back(&x);
  for (Tensor& out : c.outputs)
    outputs.push_back(out.dtype() == dtype ? out : make_tensor(out.sizes(), out.strides(), dtype, out.device()));
  Call ready{c.op, inputs, c.attributes, outputs};
  dtype == DType::f64 ? run_f64(ready) : run_f32(ready);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].is_same(c.outputs[i])) copy_into(c.outputs[i], outputs[i]);
}

const Operator attention_gradient_op{
    .name = "scaled_dot_product_attention_gradient",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          for (size_t i = 0; i < 3; ++i) out[i] = spec_like(c.input(i + 1), c.input(i + 1).sizes());
        },
    .cpu = [](const Call& c) { with_wide(c, c.input(1).dtype(), backward<float>, backward<double>); },
};

void gradient(GradientCall& c) {
  Tensor g = c.grad(), q = c.input(0), k = c.input(1), v = c.input(2), mask = c.input(3), state = c.input(4);
  if (!g.defined()) return;
  if (grad_enabled()) {
    Attend a = c.as<Attend>();
    DType own = q.dtype(), wide = computed_in(own);
    auto f = [&](const TensorList& x) {
      Tensor y = composed(cast(x[0], wide), cast(x[1], wide), cast(x[2], wide), widened(mask, wide), state, a);
      return TensorList{cast(y, own)};
    };
    TensorList found = differentiate_again(f, {q, k, v}, {g});
    for (size_t i = 0; i < 3; ++i) c.set(i, found[i]);
    return;
  }
  Tensor out = c.output(0), logs = c.output(1), outputs[3];
  const Tensor* inputs[] = {&g, &q, &k, &v, &mask, &out, &logs, &state};
  call(attention_gradient_op, inputs, c.attributes(), outputs);
  for (size_t i = 0; i < 3; ++i) c.set(i, outputs[i]);
}

// Outputs: the result, and the logarithms.
const Operator attention_op{
    .name = kName,
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& q = c.input(0);
          for (size_t i : {1, 2})
            check<DTypeError>(c.input(i).dtype() == q.dtype(), kName,
                              "queries, keys and values must have one floating-point dtype: {} beside {}", c.input(i),
                              q);
          out[0] = spec_like(q, with_last(q.sizes(), c.input(2).size(-1)));
          Shape rows = q.sizes();
          rows.erase(rows.size() - 1);
          out[1] = {.sizes = rows, .dtype = computed_in(q.dtype()), .device = q.device()};
        },
    .cpu = [](const Call& c) { with_wide(c, c.input(0).dtype(), forward<float>, forward<double>); },
    .gradient = gradient,
    .saves_inputs = 0b11111,
    .saves_outputs = 0b11,
    .autocast = AutocastPolicy::low_precision,
};

// ---- What the public function does before

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  for (const Tensor* x : {&q, &k, &v}) {
    check<ValueError>(x->defined(), kName, "an input is undefined: it was never given a value");
    check<ShapeError>(x->dim() >= 2, kName, "queries, keys and values are [..., T, D]; {} has too few dims", *x);
    check<DTypeError>(x->is_floating(), kName, "queries, keys and values must be floating-point numbers, not {}", *x);
    check<DeviceError>(x->device() == q.device(), kName, "{} and {} are on different devices", q, *x);
  }
  check<ShapeError>(q.size(-1) == k.size(-1), kName, "queries {} and keys {} must agree in their last dim", q, k);
  check<ShapeError>(k.size(-2) == v.size(-2), kName, "there must be one value for each key: {} and {}", k, v);
  check<ValueError>(o.dropout >= 0 && o.dropout <= 1, kName, "dropout must lie in [0, 1], not {}", o.dropout);
  if (!o.mask.defined()) return;
  check<DeviceError>(o.mask.device() == q.device(), kName, "{} and the mask {} are on different devices", q, o.mask);
  check<DTypeError>(o.mask.dtype() == DType::boolean || o.mask.is_floating(), kName,
                    "the mask must be bool or numbers to add, not {}", o.mask);
}

// Dims in front as `batch` says; the last two as they are.
Tensor spread(const Tensor& x, Shape batch, int64_t rows, int64_t columns) {
  batch.push_back(rows);
  batch.push_back(columns);
  return x.sizes() == batch ? x : expand(x, batch);
}
Shape front(const Tensor& x) {
  Shape sizes = x.sizes();
  sizes.resize(sizes.size() - 2);
  return sizes;
}

// Whether the mask is [..., T, S] for this batch: of sizes like those, or 1.
void check_mask(const Tensor& mask, const Shape& batch, int64_t queries, int64_t keys) {
  Shape full = batch;
  full.push_back(queries);
  full.push_back(keys);
  bool fits = mask.dim() <= static_cast<int64_t>(full.size());
  for (int64_t d = 1; fits && d <= mask.dim(); ++d)
    fits = mask.size(-d) == 1 || mask.size(-d) == full[full.size() - static_cast<size_t>(d)];
  check<ShapeError>(fits, kName, "the mask {} cannot be broadcast to the scores {}, [..., queries, keys]", mask, full);
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  Attend a{o.scale.value_or(q.size(-1) ? 1 / std::sqrt(static_cast<double>(q.size(-1))) : 1), o.causal, o.dropout};
  Shape batch = broadcast_shapes(broadcast_shapes(front(q), front(k)), front(v));
  Tensor mask = o.mask;
  bool learns = mask.defined() && mask.requires_grad() && grad_enabled();
  if (mask.defined()) {
    Shape full = batch;
    full.push_back(q.size(-2));
    full.push_back(k.size(-2));
    check_mask(mask, batch, q.size(-2), k.size(-2));
    if (!learns) {
      if (mask.dim() == 0 || mask.size(-1) != k.size(-2)) {
        Shape row = mask.dim() == 0 ? Shape(1) : mask.sizes();
        row[row.size() - 1] = k.size(-2);
        mask = expand(mask, row).contiguous();
      }
      mask = expand(mask, full);
    }
  }
  Tensor state;
  if (o.dropout > 0) state = random_state(batch.product() * q.size(-2) * Dropping::padded(k.size(-2)), q.device());
  Tensor wide_q = spread(q, batch, q.size(-2), q.size(-1)), wide_k = spread(k, batch, k.size(-2), k.size(-1)),
         wide_v = spread(v, batch, v.size(-2), v.size(-1));
  if (learns) {
    auto low = [](const Tensor& x) { return amp::input_for(AutocastPolicy::low_precision, x); };
    Tensor low_q = low(wide_q), low_k = low(wide_k), low_v = low(wide_v);
    DType own = low_q.dtype(), wide = computed_in(own);
    ModeGuard off(0, kAutocastMode);
    return cast(composed(cast(low_q, wide), cast(low_k, wide), cast(low_v, wide), cast(mask, wide), state, a), own);
  }
  const Tensor* inputs[] = {&wide_q, &wide_k, &wide_v, &mask, &state};
  Tensor outputs[2];
  call(attention_op, inputs, attributes(a), outputs);
  return outputs[0];
}

// x [..., heads, T, D] as [..., groups, heads / groups, T, D].
Tensor in_groups(const Tensor& x, int64_t groups) {
  if (x.dim() < 3) return x;
  Shape sizes = x.sizes();
  size_t at = sizes.size() - 3;
  int64_t heads = sizes[at];
  if (heads == 1) return unsqueeze(x, -3);
  sizes[at] = heads / groups;
  sizes.insert(at, groups);
  return reshape(x, sizes);
}

// As many heads of queries as of keys and values, or groups of them for each.
Tensor attend_in_groups(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  check_inputs(q, k, v, o);
  int64_t heads = q.dim() > 2 ? q.size(-3) : 1, groups = k.dim() > 2 ? k.size(-3) : 1;
  if (heads == groups || heads == 1 || groups <= 1) return attend(q, k, v, o);
  check<ShapeError>(heads % groups == 0 && v.dim() > 2 && v.size(-3) == groups, kName,
                    "the heads of keys {} and values {} must divide those of queries {}", k, v, q);
  AttentionOptions grouped = o;
  if (o.mask.defined()) {
    check<ShapeError>(o.mask.dim() < 3 || o.mask.size(-3) == 1 || o.mask.size(-3) == heads, kName,
                      "the mask {} is not for {} heads: it is broadcast to [..., heads, queries, keys]", o.mask, heads);
    grouped.mask = in_groups(o.mask, groups);
  }
  Tensor out = attend(in_groups(q, groups), unsqueeze(k, -3), unsqueeze(v, -3), grouped);
  Shape sizes = out.sizes();
  size_t at = sizes.size() - 4;
  sizes[at + 1] *= sizes[at];
  sizes.erase(at);
  return reshape(out, sizes);
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  return named(kName, [&] { return attend_in_groups(q, k, v, o); });
}

}  // namespace tutti
