// Convolution and its two gradients as operators, each the gradient of the others (see problem.h), and what is made of
// them: transposed convolution, one spatial dim, inputs without a batch.
#include "tutti/ops/conv.h"

#include <algorithm>

#include "base/check.h"
#include "base/named.h"
#include "ops/blocked/blocked.h"
#include "ops/conv/problem.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {

bool convolution::is_channels_last(const Tensor& t) {
  return t.is_contiguous(MemoryFormat::channels_last) && !(t.strides() == contiguous_strides(t.sizes()));
}

namespace {

using namespace convolution;

struct Convolution {
  Shape stride, padding, dilation;
  int64_t groups;
  Shape sizes;         // of the result, where the inputs do not say: x's for the data pass, the weight's for its own
  bool channels_last;  // how x, y and their gradients are to lie in memory,
  bool weight_last;    // and the weight's gradient
  TUTTI_FIELDS(stride, padding, dilation, groups, sizes, channels_last, weight_last)
};

// ---- Shapes

Shape output_sizes(const Shape& x, const Shape& w, const Convolution& a) {
  Shape y{x[0], w[0]};
  for (size_t d = 0; d < a.stride.size(); ++d)
    y.push_back((x[d + 2] + 2 * a.padding[d] - a.dilation[d] * (w[d + 2] - 1) - 1) / a.stride[d] + 1);
  return y;
}

void check_operands(const Call& c) {
  const Tensor& first = c.input(0);
  check<DTypeError>(first.is_floating(), c.op.name, "needs floating-point elements, not {}; cast it first", first);
  for (const Tensor* t : c.inputs) {
    if (!t->defined()) continue;
    check<DTypeError>(t->dtype() == first.dtype(), c.op.name,
                      "operands must have the same dtype, not {} and {}; cast() one of them", first, *t);
    check<DeviceError>(t->device() == first.device(), c.op.name,
                       "operands are on different devices: {}, {}; copy them to one with to(device)", first, *t);
  }
}

TensorSpec spec_of(const Call& c, const Shape& sizes, bool last) {
  check_operands(c);
  TensorSpec spec{.sizes = sizes, .dtype = c.input(0).dtype(), .device = c.input(0).device()};
  if (!last) return spec;
  spec.strides = channels_last_strides(sizes);
  spec.strided = true;
  return spec;
}

// ---- Kernels

// t in `dtype`, dense in one of the two orders: as it is where that is so.
Tensor dense(const Tensor& t, DType dtype, bool last) {
  if (t.dtype() == dtype && (t.is_contiguous() || t.is_contiguous(MemoryFormat::channels_last))) return t;
  Tensor copy = last ? make_tensor(t.sizes(), channels_last_strides(t.sizes()), dtype, t.device())
                     : make_tensor(t.sizes(), dtype, t.device());
  copy_into(copy, t);
  return copy;
}

Tensor contiguous_in(const Tensor& t, DType dtype) {
  if (t.is_contiguous() && t.dtype() == dtype) return t;
  Tensor copy = make_tensor(t.sizes(), dtype, t.device());
  copy_into(copy, t);
  return copy;
}

Tensor& result_of(Operands& o, Pass pass) { return pass == Pass::forward ? o.y : pass == Pass::data ? o.x : o.w; }

// Nothing to add up: the result is the bias, or zero.
void run_empty(const Problem& p, const Operands& o, const Tensor& out) {
  if (out.numel() == 0) return;
  NoGrad guard;
  Tensor target = make_alias(out);
  if (p.pass != Pass::forward || !o.bias.defined()) {
    target.zero_();
    return;
  }
  Shape sizes = Shape::filled(p.y.size(), 1);
  sizes[1] = p.y[1];
  copy_into(target, expand(reshape(o.bias.detach(), sizes), p.y));
}

void run_pass(const Call& c, Pass pass, const Operands& given) {
  const auto& a = c.as<Convolution>();
  const Tensor& out = c.output();
  Problem p{pass, a.groups, given.x.sizes(), given.w.sizes(), given.y.sizes(), a.stride, a.padding, a.dilation};
  if (given.x.numel() == 0 || given.w.numel() == 0 || given.y.numel() == 0) return run_empty(p, given, out);
  DType computing = out.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Operands o;
  auto arrange = [&](Tensor& to, const Tensor& from, bool last) {
    if (!from.is_same(out)) to = dense(from, computing, last);
  };
  arrange(o.x, given.x, a.channels_last);
  arrange(o.y, given.y, a.channels_last);
  arrange(o.w, given.w, a.weight_last);
  if (given.bias.defined()) o.bias = contiguous_in(given.bias, computing);
  Tensor& result = result_of(o, pass);
  result = out.dtype() == computing ? out : make_tensor(out.sizes(), out.strides(), computing, out.device());
  if (computing == DType::f64 || !run_onednn(p, o)) {
    for (Tensor* t : {&o.x, &o.w, &o.y})
      if (t != &result) *t = contiguous_in(*t, computing);
    if (!result.is_contiguous()) result = make_tensor(out.sizes(), computing, out.device());
    run_columns(p, o);
  }
  if (!result.is_same(out)) copy_into(out, result);
}

// ---- Operators

extern const Operator convolution_op, data_op, weight_op;

Tensor call_data(const Tensor& g, const Tensor& w, Convolution a, const Shape& x_sizes) {
  a.sizes = x_sizes;
  return call(data_op, {&g, &w}, attributes(a));
}
Tensor call_weight(const Tensor& g, const Tensor& x, Convolution a, const Shape& w_sizes) {
  a.sizes = w_sizes;
  return call(weight_op, {&g, &x}, attributes(a));
}
Tensor call_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Convolution& a) {
  return call(convolution_op, {&x, &w, &bias}, attributes(a));
}

const Operator convolution_op{
    .name = "convolution",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<Convolution>();
          out[0] = spec_of(c, output_sizes(c.input(0).sizes(), c.input(1).sizes(), a), a.channels_last);
        },
    .cpu = [](const Call& c) { run_pass(c, Pass::forward, {c.input(0), c.input(1), c.output(), c.input(2)}); },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Convolution>();
          const Tensor& g = c.grad();
          if (c.needs(0)) c.set(0, call_data(g, c.input(1), a, c.input_sizes(0)));
          if (c.needs(1)) c.set(1, call_weight(g, c.input(0), a, c.input_sizes(1)));
          if (!c.needs(2)) return;
          Shape others{0};
          for (int64_t d = 2; d < g.dim(); ++d) others.push_back(d);
          c.set(2, sum(g, others));
        },
    .saves_inputs = 0b011,
    .autocast = AutocastPolicy::low_precision,
};

// From (gradient of y, w) to that of x: a transposed convolution.
const Operator data_op{
    .name = "conv_backward_data",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = spec_of(c, c.as<Convolution>().sizes, c.as<Convolution>().channels_last);
        },
    .cpu = [](const Call& c) { run_pass(c, Pass::data, {c.output(), c.input(1), c.input(0), {}}); },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Convolution>();
          const Tensor& h = c.grad();
          if (c.needs(0)) c.set(0, call_forward(h, c.input(1), {}, a));
          if (c.needs(1)) c.set(1, call_weight(c.input(0), h, a, c.input_sizes(1)));
        },
    .saves_inputs = 0b11,
    .autocast = AutocastPolicy::low_precision,
};

// From (gradient of y, x) to that of w.
const Operator weight_op{
    .name = "conv_backward_weight",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = spec_of(c, c.as<Convolution>().sizes, c.as<Convolution>().weight_last);
        },
    .cpu = [](const Call& c) { run_pass(c, Pass::weight, {c.input(1), c.output(), c.input(0), {}}); },
    .gradient =
        [](GradientCall& c) {
          const auto& a = c.as<Convolution>();
          const Tensor& h = c.grad();
          if (c.needs(0)) c.set(0, call_forward(c.input(1), h, {}, a));
          if (c.needs(1)) c.set(1, call_data(c.input(0), h, a, c.input_sizes(1)));
        },
    .saves_inputs = 0b11,
    .autocast = AutocastPolicy::low_precision,
};

// ---- In blocks: the same with x, y or both so; weights never are

bool in_blocks(const Tensor& t) { return t.dim() == 5; }
Shape image_sizes(const Tensor& t) { return in_blocks(t) ? blocked::plain_sizes(t.sizes()) : t.sizes(); }

Tensor plain_copy(const Tensor& t) {
  if (!in_blocks(t)) return t;
  Tensor copy = make_tensor(image_sizes(t), DType::f32, t.device());
  blocked::reorder(t, copy);
  return copy;
}

void run_blocked(const Call& c, Pass pass, const Operands& given) {
  const auto& a = c.as<Convolution>();
  const Tensor& out = c.output();
  Problem p{pass,      a.groups,  image_sizes(given.x), given.w.sizes(), image_sizes(given.y), a.stride,
            a.padding, a.dilation};
  Operands o = given;
  for (Tensor* t : {&o.x, &o.w, &o.y, &o.bias})
    if (t->defined() && !t->is_same(out)) *t = contiguous_in(*t, DType::f32);
  if (run_onednn(p, o)) return;
  Tensor& result = result_of(o, pass);
  for (Tensor* t : {&o.x, &o.y})
    if (t != &result) *t = plain_copy(*t);
  if (in_blocks(out)) result = make_tensor(image_sizes(out), DType::f32, out.device());
  run_columns(p, o);
  if (in_blocks(out)) blocked::reorder(result, out);
}

const Operator blocked_op{
    .name = "convolution_blocked",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          Shape y = output_sizes(image_sizes(c.input(0)), c.input(1).sizes(), c.as<Convolution>());
          out[0] = spec_of(c, blocked::blocked_sizes(y), false);
        },
    .cpu = [](const Call& c) { run_blocked(c, Pass::forward, {c.input(0), c.input(1), c.output(), c.input(2)}); },
};
// In the attributes are the sizes of the result as it lies in memory.
const Operator blocked_data_op{
    .name = "conv_backward_data_blocked",
    .infer = [](const Call& c, std::span<TensorSpec> out) { out[0] = spec_of(c, c.as<Convolution>().sizes, false); },
    .cpu = [](const Call& c) { run_blocked(c, Pass::data, {c.output(), c.input(1), c.input(0), {}}); },
};
const Operator blocked_weight_op{
    .name = "conv_backward_weight_blocked",
    .infer = [](const Call& c, std::span<TensorSpec> out) { out[0] = spec_of(c, c.as<Convolution>().sizes, false); },
    .cpu = [](const Call& c) { run_blocked(c, Pass::weight, {c.input(1), c.output(), c.input(0), {}}); },
};

// ---- Checks

// One number for all spatial dims, or one for each; none below `least`.
Shape spread(const char* name, const char* what, const Shape& given, size_t dims, int64_t least) {
  check<ShapeError>(given.size() == 1 || given.size() == dims, name, "{} {} must have one entry or {}", what, given,
                    dims);
  for (int64_t v : given)
    check<ValueError>(v >= least && v < int64_t{1} << 31, name, "{} {} must be at least {}, and fit 31 bits", what,
                      given, least);
  return given.size() == dims ? given : Shape::filled(dims, given[0]);
}

void check_tensors(const char* name, const Tensor& x, const Tensor& w, const Tensor& bias, size_t spatial) {
  check<ValueError>(x.defined() && w.defined(), name,
                    "the input or the weight is undefined: it was never given a value");
  auto dims = static_cast<int64_t>(spatial);
  check<ShapeError>(w.dim() == dims + 2, name, "the weight must have {} dims, not be {}", dims + 2, w);
  check<ShapeError>(x.dim() == dims + 2 || x.dim() == dims + 1, name,
                    "takes an input of {} dims (batch, channels, {} spatial) or {} without the batch, not {}", dims + 2,
                    dims, dims + 1, x);
  for (int64_t k = 2; k < w.dim(); ++k)
    check<ShapeError>(w.size(k) > 0, name, "the kernel of the weight {} must not be empty", w);
  check<ShapeError>(!bias.defined() || bias.dim() == 1, name, "the bias must have one dim, not be {}", bias);
  for (const Tensor* t : {&w, &bias})
    check<DeviceError>(!t->defined() || t->device() == x.device(), name,
                       "operands are on different devices: {}, {}; copy them to one with to(device)", x, *t);
}

Convolution options_of(const char* name, const ConvOptions& o, size_t spatial) {
  check<ValueError>(o.groups >= 1, name, "groups must be positive, not {}", o.groups);
  return {.stride = spread(name, "stride", o.stride, spatial, 1),
          .padding = spread(name, "padding", o.padding, spatial, 0),
          .dilation = spread(name, "dilation", o.dilation, spatial, 1),
          .groups = o.groups,
          .sizes = {},
          .channels_last = false,
          .weight_last = false};
}

void set_layouts(Convolution& a, const Tensor& data, const Tensor& w) {
  a.weight_last = is_channels_last(w);
  a.channels_last = is_channels_last(data) || a.weight_last;
}

// Sizes of a batched convolution that fit each other.
void check_convolution(const char* name, const Tensor& x, const Tensor& w, const Tensor& bias, const Convolution& a) {
  check<ShapeError>(w.size(0) % a.groups == 0 && x.size(1) % a.groups == 0, name,
                    "the channels of {} and the out channels of the weight {} must be multiples of groups {}", x, w,
                    a.groups);
  check<ShapeError>(w.size(1) == x.size(1) / a.groups, name,
                    "the weight {} takes {} channels in each of {} groups, the input {} has {}", w, w.size(1), a.groups,
                    x, x.size(1) / a.groups);
  check<ShapeError>(!bias.defined() || bias.size(0) == w.size(0), name,
                    "the bias {} must have one entry for each of the {} out channels", bias, w.size(0));
  for (size_t d = 0; d < a.stride.size(); ++d) {
    int64_t size = x.sizes()[d + 2] + 2 * a.padding[d], reach = a.dilation[d] * (w.sizes()[d + 2] - 1) + 1;
    check<ShapeError>(reach <= size, name,
                      "the kernel reaches over {} elements along spatial dim {}, the padded input has {}: {}, {}",
                      reach, d, size, x, w);
  }
}

// Runs f on a batched input of two or three spatial dims; takes away what was added.
template <class F>
Tensor as_batch(const Tensor& x, const Tensor& w, size_t spatial, F&& f) {
  bool single = x.dim() == static_cast<int64_t>(spatial) + 1, line = spatial == 1;
  Tensor batch = single ? unsqueeze(x, 0) : x;
  Tensor y = line ? squeeze(f(unsqueeze(batch, 2), unsqueeze(w, 2)), 2) : f(batch, w);
  return single ? squeeze(y, 0) : y;
}

// A line is an image of height one.
void lift(Convolution& a) {
  a.stride.insert(0, 1);
  a.padding.insert(0, 0);
  a.dilation.insert(0, 1);
}

Tensor convolve(const char* name, size_t spatial, const Tensor& x, const Tensor& w, const Tensor& bias,
                const ConvOptions& options) {
  check_tensors(name, x, w, bias, spatial);
  Convolution a = options_of(name, options, spatial);
  if (spatial == 1) lift(a);
  auto run = [&](const Tensor& batch, const Tensor& kernel) {
    check_convolution(name, batch, kernel, bias, a);
    set_layouts(a, batch, kernel);
    return call_forward(batch, kernel, bias, a);
  };
  return named(name, [&] { return as_batch(x, w, spatial, run); });
}

// The sizes of the tensor whose convolution has the sizes of g.
Shape transposed_sizes(const char* name, const Tensor& g, const Tensor& w, const Convolution& a, const Shape& added) {
  Shape sizes{g.size(0), w.size(1) * a.groups};
  for (size_t d = 0; d < a.stride.size(); ++d) {
    int64_t size = (g.sizes()[d + 2] - 1) * a.stride[d] - 2 * a.padding[d] + a.dilation[d] * (w.sizes()[d + 2] - 1) + 1;
    check<ShapeError>(size + added[d] > 0, name, "the result would have size {} along spatial dim {}: {}, {}",
                      size + added[d], d, g, w);
    sizes.push_back(size + added[d]);
  }
  return sizes;
}

Tensor transpose_batch(const char* name, const Tensor& g, const Tensor& w, Convolution a, Shape added) {
  set_layouts(a, g, w);
  Shape sizes = transposed_sizes(name, g, w, a, added);
  bool wide = false;
  for (size_t d = 0; d < added.size(); ++d) wide = wide || added[d] >= a.stride[d];
  if (!wide) return call_data(g, w, a, sizes);
  // More output padding than a stride: no convolution maps these sizes to g's, so the whole is cut to size.
  Shape padding = std::exchange(a.padding, Shape::filled(added.size(), 0)), pads;
  for (size_t d = added.size(); d-- > 0;) {
    pads.push_back(-padding[d]);
    pads.push_back(added[d] - padding[d]);
  }
  return pad(call_data(g, w, a, transposed_sizes(name, g, w, a, Shape::filled(added.size(), 0))), pads);
}

Tensor convolve_transposed(const char* name, size_t spatial, const Tensor& x, const Tensor& w, const Tensor& bias,
                           const ConvTransposeOptions& o) {
  check_tensors(name, x, w, bias, spatial);
  Convolution a = options_of(name, {o.stride, o.padding, o.dilation, o.groups}, spatial);
  Shape added = spread(name, "output_padding", o.output_padding, spatial, 0);
  for (size_t d = 0; d < spatial; ++d)
    check<ValueError>(added[d] < std::max(a.stride[d], a.dilation[d]), name,
                      "output_padding {} must be smaller than the stride {} or the dilation {}", added, a.stride,
                      a.dilation);
  if (spatial == 1) {
    lift(a);
    added.insert(0, 0);
  }
  auto run = [&](const Tensor& batch, const Tensor& kernel) {
    check<ShapeError>(kernel.size(0) == batch.size(1) && kernel.size(0) % a.groups == 0, name,
                      "the weight {} takes {} channels (a multiple of groups {}), the input {} has {}", kernel,
                      kernel.size(0), a.groups, batch, batch.size(1));
    for (size_t d = 2; d < batch.sizes().size(); ++d)
      check<ShapeError>(batch.sizes()[d] > 0, name, "the input {} has an empty spatial dim", batch);
    check<ShapeError>(!bias.defined() || bias.size(0) == kernel.size(1) * a.groups, name,
                      "the bias {} must have one entry for each of the {} out channels", bias,
                      kernel.size(1) * a.groups);
    Tensor y = transpose_batch(name, batch, kernel, a, added);
    if (!bias.defined()) return y;
    Shape sizes = Shape::filled(y.sizes().size(), 1);
    sizes[1] = bias.size(0);
    return y + reshape(bias.dtype() == y.dtype() ? bias : cast(bias, y.dtype()), sizes);
  };
  return named(name, [&] { return as_batch(x, w, spatial, run); });
}

}  // namespace

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  return convolve("conv1d", 1, x, weight, bias, options);
}
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  return convolve("conv2d", 2, x, weight, bias, options);
}
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  return convolve("conv3d", 3, x, weight, bias, options);
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeOptions& o) {
  return convolve_transposed("conv_transpose1d", 1, x, weight, bias, o);
}
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeOptions& o) {
  return convolve_transposed("conv_transpose2d", 2, x, weight, bias, o);
}
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeOptions& o) {
  return convolve_transposed("conv_transpose3d", 3, x, weight, bias, o);
}

namespace {

// The options of a gradient whose result has the sizes `result`; the other tensors are checked against them.
Convolution gradient_options(const char* name, const Tensor& g, const Tensor& other, const Shape& x, const Shape& w,
                             const ConvOptions& options) {
  check<ValueError>(g.defined() && other.defined(), name, "an operand is undefined: it was never given a value");
  check<ShapeError>((x.size() == 4 || x.size() == 5) && w.size() == x.size(), name,
                    "takes sizes of 4 or 5 dims, not {} for the input and {} for the weight", x, w);
  Convolution a = options_of(name, options, x.size() - 2);
  bool fits = w[0] % a.groups == 0 && w[1] * a.groups == x[1];
  for (size_t d = 2; fits && d < x.size(); ++d)
    fits = w[d] > 0 && a.dilation[d - 2] * (w[d] - 1) + 1 <= x[d] + 2 * a.padding[d - 2];
  check<ShapeError>(
      fits && g.sizes() == output_sizes(x, w, a), name,
      "an input of sizes {} and a weight of sizes {} give no result of {}'s sizes with stride {}, padding "
      "{}, dilation {}, groups {}",
      x, w, g, a.stride, a.padding, a.dilation, a.groups);
  return a;
}

}  // namespace

Tensor conv_backward_data(const Tensor& gradient, const Tensor& weight, const Shape& x_sizes,
                          const ConvOptions& options) {
  Convolution a = gradient_options("conv_backward_data", gradient, weight, x_sizes,
                                   weight.defined() ? weight.sizes() : Shape(), options);
  set_layouts(a, gradient, weight);
  return call_data(gradient, weight, a, x_sizes);
}

Tensor conv_backward_weight(const Tensor& gradient, const Tensor& x, const Shape& weight_sizes,
                            const ConvOptions& options) {
  Convolution a =
      gradient_options("conv_backward_weight", gradient, x, x.defined() ? x.sizes() : Shape(), weight_sizes, options);
  a.channels_last = is_channels_last(x);
  return call_weight(gradient, x, a, weight_sizes);
}

Shape same_pads(const Shape& kernel, const Shape& dilation) {
  Shape steps = spread("same_pads", "dilation", dilation, kernel.size(), 1), pads;
  for (size_t d = kernel.size(); d-- > 0;) {
    check<ValueError>(kernel[d] > 0, "same_pads", "kernel {} must be positive", kernel);
    int64_t total = steps[d] * (kernel[d] - 1);
    pads.push_back(total / 2);
    pads.push_back(total - total / 2);
  }
  return pads;
}

}  // namespace tutti

namespace tutti::blocked {

void reorder(const Tensor& from, const Tensor& to) {
  convolution::reorder_onednn(from, to, from.dim() == 4 ? from.sizes() : to.sizes());
}

Form convolution_form(const Asked& asked) {
  using namespace convolution;
  bool forward = &asked.op == &convolution_op, data = &asked.op == &data_op, weight = &asked.op == &weight_op;
  if (!forward && !data && !weight) return {};
  const auto& a = *static_cast<const Convolution*>(asked.attributes.data);
  if (a.channels_last || a.weight_last || a.stride.size() != 2) return {};
  Pass pass = forward ? Pass::forward : data ? Pass::data : Pass::weight;
  const Shape &x = data ? asked.outputs[0] : asked.inputs[forward ? 0 : 1],
              &y = forward ? asked.outputs[0] : asked.inputs[0], &w = weight ? asked.outputs[0] : asked.inputs[1];
  if (x.product() == 0 || y.product() == 0 || w.product() == 0) return {};
  auto meta = [](const Shape& sizes) { return make_tensor(sizes, DType::f32, DeviceKind::meta); };
  Operands o{meta(x), meta(w), meta(y), {}};
  if (forward && !asked.inputs[2].empty()) o.bias = meta(asked.inputs[2]);
  Wanted wanted = wanted_blocks({pass, a.groups, x, w, y, a.stride, a.padding, a.dilation}, o);
  if (!wanted.y) return {};
  uint32_t of_x = wanted.x ? 1 : 0;
  if (forward) return {.op = &blocked_op, .inputs = of_x, .outputs = 1, .wants = true};
  if (weight) return {.op = &blocked_weight_op, .inputs = 1 | of_x << 1, .outputs = 0, .wants = true};
  auto own = std::make_shared<Convolution>(a);
  if (wanted.x) own->sizes = blocked_sizes(own->sizes);
  return {.op = &blocked_data_op,
          .attributes = attributes(*own),
          .owner = own,
          .inputs = 1,
          .outputs = of_x,
          .wants = true};
}

}  // namespace tutti::blocked
