// Pooling: four operators. Maxima remember where they came from, and their gradient goes there; averages and their
// transpose are each other's gradients.
#include "ops/pool/pool.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/named.h"
#include "base/parallel.h"
#include "ops/blocked/blocked.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"
#include "tutti/ops/pool.h"

namespace tutti {
namespace {

using pooling::Axis;
using pooling::Windows;

struct Pooling {
  Shape input, output;                      // spatial sizes
  Shape kernel, stride, padding, dilation;  // empty for adaptive windows
  bool include_pad = true;
  int64_t divisor = 0;
  bool channels_last = false;
  TUTTI_FIELDS(input, output, kernel, stride, padding, dilation, include_pad, divisor, channels_last)
};

// ---- Windows

// The tables of one dim, which Axis points into.
struct Tables {
  std::vector<int64_t> first, count, divisor;

  Axis axis(int64_t in, int64_t step) const {
    return {.in = in,
            .out = static_cast<int64_t>(first.size()),
            .step = step,
            .first = first.data(),
            .count = count.data(),
            .divisor = divisor.data()};
  }
  void add(int64_t from, int64_t elements, int64_t divide_by) {
    first.push_back(elements > 0 ? from : 0);
    count.push_back(std::max<int64_t>(elements, 0));
    divisor.push_back(divide_by);
  }
};

Tables tables_of(const Pooling& a, size_t d) {
  Tables t;
  int64_t in = a.input[d], out = a.output[d];
  for (int64_t o = 0; o < out; ++o) {
    if (a.kernel.empty()) {
      int64_t from = o * in / out, to = 1 + ((o + 1) * in - 1) / out;
      t.add(from, to - from, to - from);
      continue;
    }
    int64_t start = o * a.stride[d] - a.padding[d], step = a.dilation[d];
    int64_t from = start < 0 ? start + (-start + step - 1) / step * step : start;
    int64_t to = std::min(start + (a.kernel[d] - 1) * step + 1, in), elements = (to - from + step - 1) / step;
    int64_t padded = std::min(start + a.kernel[d], in + a.padding[d]) - start;
    t.add(from, elements, a.include_pad ? padded : std::max<int64_t>(elements, 0));
  }
  return t;
}

// Everything a kernel needs, for a tensor of this batch and these channels.
struct Plan {
  Tables tables[3];
  Windows windows;

  Plan(const Pooling& a, const Shape& sizes) {
    size_t dims = a.input.size();
    for (size_t d = 0; d < 3; ++d) {
      bool there = d + dims >= 3;
      size_t k = d + dims - 3;
      if (there)
        tables[d] = tables_of(a, k);
      else
        tables[d].add(0, 1, 1);
      windows.axis[d] = tables[d].axis(there ? a.input[k] : 1, there && !a.dilation.empty() ? a.dilation[k] : 1);
      if (!there || a.kernel.empty()) continue;
      windows.axis[d].kernel = a.kernel[k];
      windows.axis[d].stride = a.stride[k];
      windows.axis[d].padding = a.padding[k];
    }
    windows.outer = a.channels_last ? sizes[0] : sizes[0] * sizes[1];
    windows.inner = a.channels_last ? sizes[1] : 1;
    if (sizes.size() > dims + 2) windows.inner = sizes[dims + 2];  // of channels in blocks
    windows.divisor = a.divisor;
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
};

// ---- Kernels

DType computing_dtype(const Tensor& t) { return t.dtype() == DType::f64 ? DType::f64 : DType::f32; }

Tensor make_like(const Shape& sizes, DType dtype, Device device, bool last) {
  return last ? make_tensor(sizes, channels_last_strides(sizes), dtype, device) : make_tensor(sizes, dtype, device);
}

// t in this dtype and the memory order of the operator.
Tensor arranged(const Tensor& t, DType dtype, bool last) {
  bool fits = last ? t.is_contiguous(MemoryFormat::channels_last) : t.is_contiguous();
  if (fits && t.dtype() == dtype) return t;
  Tensor copy = make_like(t.sizes(), dtype, t.device(), last);
  copy_into(copy, t);
  return copy;
}

// Where the result is computed: out itself, or a tensor of the computing dtype to be copied there.
Tensor result_for(const Tensor& out, bool last) {
  DType computing = computing_dtype(out);
  return out.dtype() == computing ? out : make_like(out.sizes(), computing, out.device(), last);
}

int64_t rows_at_a_time(const Windows& w) {
  int64_t work = w.axis[2].in * w.inner * std::max<int64_t>(1, w.in() / std::max<int64_t>(1, w.out() * 4));
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, work));
}

void run_max(const Call& c) {
  const auto& a = c.as<Pooling>();
  Plan plan(a, c.output().sizes());
  const Windows& w = plan.windows;
  DType computing = computing_dtype(c.input(0));
  Tensor x = arranged(c.input(0), computing, a.channels_last), y = result_for(c.output(), a.channels_last);
  auto* indices = c.output(1).data<int64_t>();
  parallel_for(w.rows(), rows_at_a_time(w), [&](int64_t begin, int64_t end) {
    max_pool_rows_pointer()(computing, w, x.raw_data(), y.raw_data(), indices, begin, end);
  });
  if (!y.is_same(c.output())) copy_into(c.output(), y);
}

void run_avg(const Call& c) {
  const auto& a = c.as<Pooling>();
  Plan plan(a, c.output().sizes());
  const Windows& w = plan.windows;
  DType computing = computing_dtype(c.input(0));
  Tensor x = arranged(c.input(0), computing, a.channels_last), y = result_for(c.output(), a.channels_last);
  parallel_for(w.rows(), rows_at_a_time(w), [&](int64_t begin, int64_t end) {
    avg_pool_rows_pointer()(computing, w, x.raw_data(), y.raw_data(), begin, end);
  });
  if (!y.is_same(c.output())) copy_into(c.output(), y);
}

// Inner elements that one thread takes at a time. Windows overlap, so a plane is not divided further.
constexpr int64_t kInnerBlock = 64;

// Calls body(outer, first, count) for blocks of inner elements, after filling their memory with zeros, unless it need
// not be.
template <class T, class Body>
void for_each_block(const Windows& w, T* x, Body&& body) {
  int64_t blocks = (w.inner + kInnerBlock - 1) / kInnerBlock, size = w.in() * w.inner;
  int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, w.in() * std::min(w.inner, kInnerBlock)));
  parallel_for(w.outer * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      int64_t outer = unit / blocks, first = unit % blocks * kInnerBlock,
              count = std::min(kInnerBlock, w.inner - first);
      T* plane = x + outer * size;
      if (count == w.inner)
        std::fill(plane, plane + size, T(0));
      else
        for (int64_t i = 0; i < w.in(); ++i) std::fill_n(plane + i * w.inner + first, count, T(0));
      body(outer, first, count);
    }
  });
}

template <class T>
void scatter_max(const Windows& w, const T* g, const int64_t* indices, T* x) {
  int64_t out = w.out(), in = w.in();
  if (w.inner > 1 && in <= std::numeric_limits<int32_t>::max() && w.apart()) {
    auto spread = [&](int64_t outer, int64_t first, int64_t count) {
      max_pool_spread_pointer()(dtype_of<T>, w, g, indices, x, outer, first, count);
    };
    return for_each_block(w, x, spread);
  }
  for_each_block(w, x, [&](int64_t outer, int64_t first, int64_t count) {
    for (int64_t o = 0; o < out; ++o) {
      int64_t at = (outer * out + o) * w.inner + first;
      T* plane = x + outer * in * w.inner + first;
      for (int64_t i = 0; i < count; ++i) {
        int64_t index = indices[at + i];
        if (static_cast<uint64_t>(index) < static_cast<uint64_t>(in)) plane[index * w.inner + i] += g[at + i];
      }
    }
  });
}

void run_max_backward(const Call& c) {
  const auto& a = c.as<Pooling>();
  Plan plan(a, c.output().sizes());
  DType computing = computing_dtype(c.input(0));
  Tensor g = arranged(c.input(0), computing, a.channels_last), x = result_for(c.output(), a.channels_last);
  Tensor indices = arranged(c.input(1), DType::i64, a.channels_last);
  if (computing == DType::f64)
    scatter_max(plan.windows, g.data<double>(), indices.data<int64_t>(), x.data<double>());
  else
    scatter_max(plan.windows, g.data<float>(), indices.data<int64_t>(), x.data<float>());
  if (!x.is_same(c.output())) copy_into(c.output(), x);
}

void run_avg_backward(const Call& c) {
  const auto& a = c.as<Pooling>();
  Plan plan(a, c.output().sizes());
  const Windows& w = plan.windows;
  DType computing = computing_dtype(c.input(0));
  Tensor g = arranged(c.input(0), computing, a.channels_last), x = result_for(c.output(), a.channels_last);
  auto body = [&](int64_t outer, int64_t first, int64_t count) {
    avg_pool_spread_pointer()(computing, w, g.raw_data(), x.raw_data(), outer, first, count);
  };
  if (computing == DType::f64)
    for_each_block(w, x.data<double>(), body);
  else
    for_each_block(w, x.data<float>(), body);
  if (!x.is_same(c.output())) copy_into(c.output(), x);
}

// ---- Operators

TensorSpec spec_of(const Call& c, const Shape& spatial) {
  const Tensor& x = c.input(0);
  check<DTypeError>(x.is_floating(), c.op.name, "needs floating-point elements, not {}; cast it first", x);
  TensorSpec spec{.sizes = {x.size(0), x.size(1)}, .dtype = x.dtype(), .device = x.device()};
  for (int64_t s : spatial) spec.sizes.push_back(s);
  if (!c.as<Pooling>().channels_last) return spec;
  spec.strides = channels_last_strides(spec.sizes);
  spec.strided = true;
  return spec;
}

void infer_forward(const Call& c, std::span<TensorSpec> out) {
  out[0] = spec_of(c, c.as<Pooling>().output);
  if (out.size() == 1) return;
  out[1] = out[0];
  out[1].dtype = DType::i64;
}
void infer_backward(const Call& c, std::span<TensorSpec> out) { out[0] = spec_of(c, c.as<Pooling>().input); }

const Operator max_backward_op{
    .name = "max_pool_backward",
    .infer = infer_backward,
    .cpu = run_max_backward,
    .gradient =
        [](GradientCall& c) {
          Tensor taken = gather(flatten(c.grad(), 2), 2, flatten(c.input(1), 2));
          c.set(0, reshape(taken, c.input_sizes(0)));
        },
    .saves_inputs = 0b10,
};

const Operator max_op{
    .name = "max_pool",
    .infer = infer_forward,
    .cpu = run_max,
    .gradient =
        [](GradientCall& c) {
          if (!c.grad().defined()) return;
          Tensor indices = c.output(1);
          c.set(0, call(max_backward_op, {&c.grad(), &indices}, c.attributes()));
        },
    .saves_outputs = 0b10,
};

extern const Operator avg_backward_op;

const Operator avg_op{
    .name = "avg_pool",
    .infer = infer_forward,
    .cpu = run_avg,
    .gradient = [](GradientCall& c) { c.set(0, call(avg_backward_op, {&c.grad()}, c.attributes())); },
};
const Operator avg_backward_op{
    .name = "avg_pool_backward",
    .infer = infer_backward,
    .cpu = run_avg_backward,
    .gradient = [](GradientCall& c) { c.set(0, call(avg_op, {&c.grad()}, c.attributes())); },
};

// ---- In blocks of channels

void infer_blocked(const Call& c, const Shape& spatial, std::span<TensorSpec> out) {
  const Tensor& x = c.input(0);
  out[0] = {
      .sizes = {x.size(0), x.size(1), spatial[0], spatial[1], x.size(4)}, .dtype = x.dtype(), .device = x.device()};
  if (out.size() == 1) return;
  out[1] = out[0];
  out[1].dtype = DType::i64;
}

const Operator blocked_max_op{
    .name = "max_pool_blocked",
    .infer = [](const Call& c, std::span<TensorSpec> out) { infer_blocked(c, c.as<Pooling>().output, out); },
    .cpu = run_max,
};
const Operator blocked_max_backward_op{
    .name = "max_pool_backward_blocked",
    .infer = [](const Call& c, std::span<TensorSpec> out) { infer_blocked(c, c.as<Pooling>().input, out); },
    .cpu = run_max_backward,
};

// ---- Checks

Shape spread(const char* name, const char* what, const Shape& given, size_t dims, int64_t least) {
  check<ShapeError>(given.size() == 1 || given.size() == dims, name, "{} {} must have one entry or {}", what, given,
                    dims);
  for (int64_t v : given)
    check<ValueError>(v >= least && v < int64_t{1} << 31, name, "{} {} must be at least {}, and fit 31 bits", what,
                      given, least);
  return given.size() == dims ? given : Shape::filled(dims, given[0]);
}

// The spatial sizes of an input of `dims` spatial dims, with or without a batch.
Shape spatial_sizes(const char* name, const Tensor& x, size_t dims) {
  check<ValueError>(x.defined(), name, "the input is undefined: it was never given a value");
  auto n = static_cast<int64_t>(dims);
  check<ShapeError>(x.dim() == n + 2 || x.dim() == n + 1, name,
                    "takes an input of {} dims (batch, channels, {} spatial) or {} without the batch, not {}", n + 2, n,
                    n + 1, x);
  Shape sizes;
  for (int64_t d = x.dim() - n; d < x.dim(); ++d) {
    check<ShapeError>(x.size(d) > 0, name, "the spatial dims of {} must not be empty", x);
    sizes.push_back(x.size(d));
  }
  return sizes;
}

Pooling windows_of(const char* name, const Tensor& x, size_t dims, const Shape& kernel, const Shape& stride,
                   const Shape& padding, const Shape& dilation, bool ceil_mode) {
  Pooling a;
  a.input = spatial_sizes(name, x, dims);
  a.kernel = spread(name, "kernel", kernel, dims, 1);
  a.stride = stride.empty() ? a.kernel : spread(name, "stride", stride, dims, 1);
  a.padding = spread(name, "padding", padding, dims, 0);
  a.dilation = spread(name, "dilation", dilation, dims, 1);
  for (size_t d = 0; d < dims; ++d) {
    check<ValueError>(2 * a.padding[d] <= a.kernel[d], name, "padding {} must be at most half of the kernel {}",
                      a.padding, a.kernel);
    int64_t room = a.input[d] + 2 * a.padding[d] - a.dilation[d] * (a.kernel[d] - 1) - 1;
    check<ShapeError>(room >= 0 || (ceil_mode && room + a.stride[d] > 0), name,
                      "the kernel {} (dilation {}) is larger than the padded input {}", a.kernel, a.dilation, x);
    int64_t out = (room + (ceil_mode ? a.stride[d] - 1 : 0)) / a.stride[d] + 1;
    // A window must begin inside the input or the padding before it.
    if (ceil_mode && (out - 1) * a.stride[d] >= a.input[d] + a.padding[d]) --out;
    a.output.push_back(out);
  }
  return a;
}

Pooling adaptive_windows(const char* name, const Tensor& x, size_t dims, const Shape& output) {
  Pooling a;
  a.input = spatial_sizes(name, x, dims);
  a.output = spread(name, "the output", output, dims, -1);
  for (size_t d = 0; d < dims; ++d)
    if (a.output[d] == -1) a.output[d] = a.input[d];
  return a;
}

bool is_channels_last(const Tensor& x) {
  return x.is_contiguous(MemoryFormat::channels_last) && !(x.strides() == contiguous_strides(x.sizes()));
}

ValuesIndices max_pool(const Tensor& x, Pooling a) {
  bool single = x.dim() == static_cast<int64_t>(a.input.size()) + 1;
  Tensor batch = single ? unsqueeze(x, 0) : x;
  a.channels_last = is_channels_last(batch);
  const Tensor* inputs[] = {&batch};
  Tensor outputs[2];
  call(max_op, inputs, attributes(a), outputs);
  if (single) return {squeeze(outputs[0], 0), squeeze(outputs[1], 0)};
  return {outputs[0], outputs[1]};
}

Tensor avg_pool(const Tensor& x, Pooling a) {
  bool single = x.dim() == static_cast<int64_t>(a.input.size()) + 1;
  Tensor batch = single ? unsqueeze(x, 0) : x;
  a.channels_last = is_channels_last(batch);
  Tensor y = call(avg_op, {&batch}, attributes(a));
  return single ? squeeze(y, 0) : y;
}

ValuesIndices max_pool(const char* name, size_t dims, const Tensor& x, const Shape& kernel, const MaxPoolOptions& o) {
  Pooling a = windows_of(name, x, dims, kernel, o.stride, o.padding, o.dilation, o.ceil_mode);
  return named(name, [&] { return max_pool(x, a); });
}

Tensor avg_pool(const char* name, size_t dims, const Tensor& x, const Shape& kernel, const AvgPoolOptions& o) {
  Pooling a = windows_of(name, x, dims, kernel, o.stride, o.padding, 1, o.ceil_mode);
  check<ValueError>(!o.divisor_override || *o.divisor_override != 0, name, "divisor_override must not be 0");
  a.include_pad = o.count_include_pad;
  a.divisor = o.divisor_override.value_or(0);
  return named(name, [&] { return avg_pool(x, a); });
}

Tensor adaptive_avg(const char* name, size_t dims, const Tensor& x, const Shape& output) {
  Pooling a = adaptive_windows(name, x, dims, output);
  return named(name, [&] { return avg_pool(x, a); });
}
ValuesIndices adaptive_max(const char* name, size_t dims, const Tensor& x, const Shape& output) {
  Pooling a = adaptive_windows(name, x, dims, output);
  return named(name, [&] { return max_pool(x, a); });
}

}  // namespace

ValuesIndices max_pool1d_with_indices(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options) {
  return max_pool("max_pool1d", 1, x, kernel, options);
}
ValuesIndices max_pool2d_with_indices(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options) {
  return max_pool("max_pool2d", 2, x, kernel, options);
}
ValuesIndices max_pool3d_with_indices(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options) {
  return max_pool("max_pool3d", 3, x, kernel, options);
}
Tensor max_pool1d(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options) {
  return max_pool("max_pool1d", 1, x, kernel, options).values;
}
Tensor max_pool2d(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options) {
  return max_pool("max_pool2d", 2, x, kernel, options).values;
}
Tensor max_pool3d(const Tensor& x, const Shape& kernel, const MaxPoolOptions& options) {
  return max_pool("max_pool3d", 3, x, kernel, options).values;
}

Tensor avg_pool1d(const Tensor& x, const Shape& kernel, const AvgPoolOptions& options) {
  return avg_pool("avg_pool1d", 1, x, kernel, options);
}
Tensor avg_pool2d(const Tensor& x, const Shape& kernel, const AvgPoolOptions& options) {
  return avg_pool("avg_pool2d", 2, x, kernel, options);
}
Tensor avg_pool3d(const Tensor& x, const Shape& kernel, const AvgPoolOptions& options) {
  return avg_pool("avg_pool3d", 3, x, kernel, options);
}

Tensor adaptive_avg_pool1d(const Tensor& x, const Shape& output) {
  return adaptive_avg("adaptive_avg_pool1d", 1, x, output);
}
Tensor adaptive_avg_pool2d(const Tensor& x, const Shape& output) {
  return adaptive_avg("adaptive_avg_pool2d", 2, x, output);
}
Tensor adaptive_avg_pool3d(const Tensor& x, const Shape& output) {
  return adaptive_avg("adaptive_avg_pool3d", 3, x, output);
}
ValuesIndices adaptive_max_pool1d_with_indices(const Tensor& x, const Shape& output) {
  return adaptive_max("adaptive_max_pool1d", 1, x, output);
}
ValuesIndices adaptive_max_pool2d_with_indices(const Tensor& x, const Shape& output) {
  return adaptive_max("adaptive_max_pool2d", 2, x, output);
}
ValuesIndices adaptive_max_pool3d_with_indices(const Tensor& x, const Shape& output) {
  return adaptive_max("adaptive_max_pool3d", 3, x, output);
}
Tensor adaptive_max_pool1d(const Tensor& x, const Shape& output) {
  return adaptive_max_pool1d_with_indices(x, output).values;
}
Tensor adaptive_max_pool2d(const Tensor& x, const Shape& output) {
  return adaptive_max_pool2d_with_indices(x, output).values;
}
Tensor adaptive_max_pool3d(const Tensor& x, const Shape& output) {
  return adaptive_max_pool3d_with_indices(x, output).values;
}

bool is_max_pool_gradient(const Operator& op, const Attributes& attributes) {
  if (&op != &max_backward_op) return false;
  // Padding is at most half of a window; only one that is dilated can step over all that there is.
  const Shape& dilation = static_cast<const Pooling*>(attributes.data)->dilation;
  return std::all_of(dilation.begin(), dilation.end(), [](int64_t d) { return d == 1; });
}

}  // namespace tutti

namespace tutti::blocked {

Form pool_form(const Asked& asked) {
  bool forward = &asked.op == &max_op;
  if (!forward && &asked.op != &max_backward_op) return {};
  const auto& a = *static_cast<const Pooling*>(asked.attributes.data);
  if (a.channels_last || a.input.size() != 2) return {};
  if (forward) return {.op = &blocked_max_op, .inputs = 0b1, .outputs = 0b11};
  return {.op = &blocked_max_backward_op, .inputs = 0b11, .outputs = 0b1};
}

}  // namespace tutti::blocked
