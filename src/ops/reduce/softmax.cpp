// softmax, log_softmax and logsumexp.
#include "ops/reduce/softmax.h"

#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/reduce/reduce.h"
#include "tensor/call.h"
#include "tensor/convert.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

using namespace reduction;

struct Row {
  int64_t dim;
  TUTTI_FIELDS(dim)
};

// A dense tensor in memory, as seen from the dim along which it is normalised.
struct Layout {
  int64_t outer = 1, length = 1, inner = 1;
};

// Part of a layout: columns that lie side by side, `layout.inner` from each element to the next.
struct Part {
  int64_t at;      // offset of its first element
  int64_t column;  // the number of its first column
  int64_t columns;
};

// Inner dims this narrow are gathered column by column.
constexpr int64_t kNarrow = 16;

// Rows that have to be converted are, one at a time, as a whole.
Tensor working_room(const Call& c, int64_t elements, DType dtype) {
  try {
    return make_tensor({elements}, dtype, Device());
  } catch (const MemoryError& e) {
    fail<MemoryError>(c.op.name,
                      "no memory to hold a row of {} as {}; {} tensors whose rows are contiguous need none ({})",
                      c.input(0), dtype, dtype, e.what());
  }
}

// Calls body(part, buffer) for all parts, on many threads; the buffer has room for `count` elements of each column.
template <class Body>
void for_each_part(const Call& c, const Layout& l, int64_t count, DType computing, Body&& body) {
  if (l.outer * l.inner == 0) return;
  int64_t length = std::max<int64_t>(1, l.length);
  // Wide enough to use whole runs of memory, narrow enough for the part to stay in the cache from pass to pass.
  int64_t width = l.inner < kNarrow ? 1 : std::clamp<int64_t>(32768 / length / 16 * 16, 64, kSoftmaxColumns);
  width = std::min(width, l.inner);
  int64_t parts = (l.inner + width - 1) / width;
  parallel_for(l.outer * parts, std::max<int64_t>(1, 16384 / (length * width)), [&](int64_t begin, int64_t end) {
    Tensor room = working_room(c, count * width, computing);
    std::byte* buffer = impl(room)->data();
    for (int64_t unit = begin; unit < end; ++unit) {
      int64_t outer = unit / parts, first = unit % parts * width;
      body(Part{outer * l.length * l.inner + first, outer * l.inner + first, std::min(width, l.inner - first)}, buffer);
    }
  });
}

std::byte* element(const Tensor& x, int64_t index) {
  return impl(x)->data() + index * static_cast<int64_t>(x.element_size());
}

// Between a part of x and a buffer [length, columns].
void load(const Layout& l, const Part& p, const Tensor& x, DType computing, std::byte* buffer) {
  Convert convert = converter(computing, x.dtype());
  if (p.columns == 1) return convert(buffer, 1, element(x, p.at), l.inner, l.length);
  int64_t step = p.columns * static_cast<int64_t>(size_of(computing));
  for (int64_t r = 0; r < l.length; ++r) convert(buffer + r * step, 1, element(x, p.at + r * l.inner), 1, p.columns);
}
void store(const Layout& l, const Part& p, const Tensor& y, DType computing, const std::byte* buffer) {
  Convert convert = converter(y.dtype(), computing);
  if (p.columns == 1) return convert(element(y, p.at), l.inner, buffer, 1, l.length);
  int64_t step = p.columns * static_cast<int64_t>(size_of(computing));
  for (int64_t r = 0; r < l.length; ++r) convert(element(y, p.at + r * l.inner), 1, buffer + r * step, 1, p.columns);
}

// Whether the kernels can work on a part where it lies.
bool in_place(const Layout& l, const Part& p, const Tensor& x, DType computing) {
  return x.dtype() == computing && (p.columns > 1 || l.inner == 1);
}

Layout layout_of(const Tensor& x, int64_t dim) {
  Layout l;
  l.length = x.size(dim);
  l.inner = l.length == 1 ? x.numel() : x.stride(dim);
  l.outer = x.numel() == 0 ? 0 : x.numel() / (l.length * l.inner);
  return l;
}

// t's values in the memory order of `out`.
Tensor in_order_of(const Tensor& out, const Tensor& t) {
  if (t.strides() == out.strides() || (t.is_contiguous() && out.is_contiguous())) return t;
  Tensor copy = make_tensor(out.sizes(), out.strides(), t.dtype(), t.device());
  copy_into(copy, t);
  return copy;
}

// The shape, dtype and, where it is dense, memory order of the last input.
void infer_like(const Call& c, std::span<TensorSpec> out) {
  const Tensor& x = c.input(c.inputs.size() - 1);
  out[0] = {.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
  if (x.is_contiguous() || !is_dense(x.sizes(), x.strides())) return;
  out[0].strides = x.strides();
  out[0].strided = true;
}

template <Exponential what>
void run(const Call& c) {
  const Tensor& y = c.output();
  Tensor x = in_order_of(y, c.input(0));
  DType computing = computing_dtype(y.dtype());
  Layout l = layout_of(y, c.as<Row>().dim);
  bool converting = x.dtype() != computing || l.inner != 1;
  for_each_part(c, l, converting ? l.length : 0, computing, [&](const Part& p, std::byte* buffer) {
    if (in_place(l, p, x, computing))
      return run_softmax_pointer()(what, computing, element(x, p.at), element(y, p.at), l.length, p.columns, l.inner);
    load(l, p, x, computing, buffer);
    run_softmax_pointer()(what, computing, buffer, buffer, l.length, p.columns, p.columns);
    store(l, p, y, computing, buffer);
  });
}

template <Exponential what>
void run_gradient(const Call& c) {
  const Tensor& out = c.output();
  Tensor g = in_order_of(out, c.input(0)), y = in_order_of(out, c.input(1));
  DType computing = computing_dtype(out.dtype());
  Layout l = layout_of(out, c.as<Row>().dim);
  for_each_part(c, l, 2 * l.length, computing, [&](const Part& p, std::byte* buffer) {
    if (in_place(l, p, out, computing) && g.dtype() == computing)
      return run_softmax_gradient_pointer()(what, computing, element(g, p.at), element(y, p.at), element(out, p.at),
                                            l.length, p.columns, l.inner);
    std::byte* second = buffer + l.length * p.columns * static_cast<int64_t>(size_of(computing));
    load(l, p, g, computing, buffer);
    load(l, p, y, computing, second);
    run_softmax_gradient_pointer()(what, computing, buffer, second, buffer, l.length, p.columns, p.columns);
    store(l, p, out, computing, buffer);
  });
}

// y·(g - Σ g·y), with its own gradient for second derivatives.
const Operator softmax_gradient_op{
    .name = "softmax_gradient",
    .infer = infer_like,
    .cpu = run_gradient<Exponential::softmax>,
    .gradient =
        [](GradientCall& c) {
          int64_t dim = c.as<Row>().dim;
          Tensor h = c.grad(), g = c.input(0), y = c.input(1);
          Tensor weighted = sum(h * y, dim, true);
          if (c.needs(0)) c.set(0, y * (h - weighted));
          if (c.needs(1)) c.set(1, h * (g - sum(g * y, dim, true)) - g * weighted);
        },
    .saves_inputs = 3,
};

// g - exp(y)·Σ g
const Operator log_softmax_gradient_op{
    .name = "log_softmax_gradient",
    .infer = infer_like,
    .cpu = run_gradient<Exponential::log_softmax>,
    .gradient =
        [](GradientCall& c) {
          int64_t dim = c.as<Row>().dim;
          Tensor h = c.grad(), weighted = h * exp(c.input(1));
          if (c.needs(0)) c.set(0, h - sum(weighted, dim, true));
          if (c.needs(1)) c.set(1, -(weighted * sum(c.input(0), dim, true)));
        },
    .saves_inputs = 3,
};

template <const Operator& gradient_op>
void gradient(GradientCall& c) {
  Tensor g = c.grad(), y = c.output();
  c.set(0, call(gradient_op, {&g, &y}, c.attributes()));
}

const Operator softmax_op{
    .name = "softmax",
    .infer = infer_like,
    .cpu = run<Exponential::softmax>,
    .gradient = gradient<softmax_gradient_op>,
    .saves_outputs = 1,
    .in_place = 1,
    .autocast = AutocastPolicy::full_precision,
};
const Operator log_softmax_op{
    .name = "log_softmax",
    .infer = infer_like,
    .cpu = run<Exponential::log_softmax>,
    .gradient = gradient<log_softmax_gradient_op>,
    .saves_outputs = 1,
    .in_place = 1,
    .autocast = AutocastPolicy::full_precision,
};

void check_real(const Tensor& x, const char* name) {
  check_strided(x, name);
  if (!x.is_floating()) fail<DTypeError>(name, "needs floating-point elements, not {}; cast it first", x);
}

Tensor& normalize(const Operator& op, Tensor& out, const Tensor& x, int64_t dim) {
  check_real(x, op.name);
  Row a{wrap_dim(dim, x, op.name)};
  if (x.dim() > 0) return call_out(op, {&x}, out, attributes(a));
  Tensor row = reshape(x, {1});
  return write_out(out, reshape(call(op, {&row}, attributes(a)), {}), op.name);
}

// ---- logsumexp

// x with the reduced dims side by side in memory, and how it then lies.
Tensor bring_together(const Tensor& x, const Shape& dims, Layout& l) {
  l.length = reduced_count(x.sizes(), dims);
  bool adjacent = dims.empty() || dims.back() - dims[0] + 1 == static_cast<int64_t>(dims.size());
  if (x.is_contiguous() && adjacent) {
    for (int64_t d = dims.empty() ? 0 : dims.back() + 1; d < x.dim(); ++d) l.inner *= x.size(d);
    for (int64_t d = 0; d < (dims.empty() ? 0 : dims[0]); ++d) l.outer *= x.size(d);
    return x;
  }
  NoGrad no_grad;
  Shape marks = mark_dims(x.sizes().size(), dims), order;
  for (size_t d = 0; d < marks.size(); ++d) {
    if (marks[d]) continue;
    order.push_back(static_cast<int64_t>(d));
    l.outer *= x.sizes()[d];
  }
  for (int64_t d : dims) order.push_back(d);
  return contiguous(permute(x, order));
}

void run_logsumexp(const Call& c) {
  Layout l;
  Tensor x = bring_together(c.input(0), c.as<Dims>().dims, l);
  const Tensor& y = c.output();
  DType computing = computing_dtype(y.dtype());
  for_each_part(c, l, l.length + 1, computing, [&](const Part& p, std::byte* buffer) {
    std::byte* result = buffer + l.length * p.columns * static_cast<int64_t>(size_of(computing));
    bool direct = in_place(l, p, x, computing);
    if (!direct) load(l, p, x, computing, buffer);
    run_softmax_pointer()(Exponential::logsumexp, computing, direct ? element(x, p.at) : buffer, result, l.length,
                          p.columns, direct ? l.inner : p.columns);
    converter(y.dtype(), computing)(element(y, p.column), 1, result, 1, p.columns);
  });
}

const Operator logsumexp_op{
    .name = "logsumexp",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<Dims>();
          const Tensor& x = c.input(0);
          out[0] = {.sizes = reduced_sizes(x.sizes(), a.dims, a.keepdim), .dtype = x.dtype(), .device = x.device()};
        },
    .cpu = run_logsumexp,
    .gradient =
        [](GradientCall& c) {
          const Shape& dims = c.as<Dims>().dims;
          Tensor x = c.input(0), y = restore_dims(c.output(), x.sizes(), dims),
                 g = restore_dims(c.grad(), x.sizes(), dims);
          // -∞ - -∞ would be NaN where the gradient is 0.
          c.set(0, g * exp(x - where(logical_and(isinf(y), y < 0), 0, y)));
        },
    .saves_inputs = 1,
    .saves_outputs = 1,
    .reduction = true,
    .autocast = AutocastPolicy::full_precision,
};

}  // namespace

Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim) {
  Tensor out;
  return logsumexp_out(out, x, dims, keepdim);
}
Tensor& logsumexp_out(Tensor& out, const Tensor& x, const Shape& dims, bool keepdim) {
  check_real(x, "logsumexp");
  Dims a{normalize_dims(x, dims, "logsumexp"), keepdim, {}};
  return call_out(logsumexp_op, {&x}, out, attributes(a));
}

Tensor softmax(const Tensor& x, int64_t dim, std::optional<DType> dtype) {
  Tensor out;
  return softmax_out(out, cast_first(x, dtype, "softmax"), dim);
}
Tensor& softmax_out(Tensor& out, const Tensor& x, int64_t dim) { return normalize(softmax_op, out, x, dim); }
Tensor log_softmax(const Tensor& x, int64_t dim, std::optional<DType> dtype) {
  Tensor out;
  return log_softmax_out(out, cast_first(x, dtype, "log_softmax"), dim);
}
Tensor& log_softmax_out(Tensor& out, const Tensor& x, int64_t dim) { return normalize(log_softmax_op, out, x, dim); }

}  // namespace tutti
