// batch_norm, group_norm and instance_norm. All normalise by statistics that an entry of the batch and a channel
// together point to, and differ in how many of those share one; the kernels work on channels of entries.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/named.h"
#include "base/parallel.h"
#include "ops/blocked/blocked.h"
#include "ops/norm/kernels.h"
#include "ops/norm/norm.h"
#include "tensor/impl.h"
#include "tutti/ops.h"
#include "tutti/ops/norm.h"

namespace tutti {
namespace {

using namespace normalization;

struct ChannelNorm {
  int64_t groups;  // of channels that share statistics, in each entry; 0: all entries share a channel's
  double eps;
  bool channels_last;
  TUTTI_FIELDS(groups, eps, channels_last)
};

using Doubles = std::vector<double>;

// Which statistics belong to channel c of entry n.
struct Sharing {
  int64_t batch, channels, inner, groups;

  Sharing(const Shape& sizes, int64_t groups) : batch(sizes[0]), channels(sizes[1]), inner(1), groups(groups) {
    for (size_t d = 2; d < sizes.size(); ++d) inner *= sizes[d];
  }
  int64_t statistics() const { return groups ? batch * groups : channels; }
  int64_t elements() const { return groups ? channels / groups * inner : batch * inner; }
  size_t of(int64_t n, int64_t c) const {
    return static_cast<size_t>(groups ? n * groups + c / (channels / groups) : c);
  }
};

extern const Operator blocked_op, blocked_backward_op;

// Whether x lies in blocks (ops/blocked/blocked.h), and its sizes without them.
bool in_blocks(const Call& c) { return &c.op == &blocked_op || &c.op == &blocked_backward_op; }
ChannelNorm norm_of(const Call& c) {
  if (&c.op == &blocked_op) return {0, c.as<blocked::Norm>().eps, false};
  if (&c.op == &blocked_backward_op) return {0, c.as<blocked::NormGradient>().eps, false};
  return c.as<ChannelNorm>();
}
Shape sizes_of(const Call& c, const Tensor& x) { return in_blocks(c) ? blocked::plain_sizes(x.sizes()) : x.sizes(); }

// How the kernels see the tensor. Without spatial dims, the entries of a batch are rows of channels.
Channels layout_of(const Shape& sizes, const ChannelNorm& a) {
  Sharing s(sizes, a.groups);
  if (sizes.size() == 2 && a.groups == 0) return {1, s.channels, s.batch, true, 0};
  return {s.batch, s.channels, s.inner, a.channels_last, a.groups ? s.channels : 0};
}

int64_t units_at_a_time(const Channels& l) {
  int64_t size = l.last ? l.rows() * l.channels : l.blocks ? l.inner * blocked::kChannels : l.inner;
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, size));
}

// ---- Statistics

struct Moments {
  double count = 0, mean = 0, squares = 0;
  void merge(double n, double m, double s) {
    double total = count + n, step = m - mean;
    if (total == 0) return;
    mean += step * (n / total);
    squares += s + step * step * (count * n / total);
    count = total;
  }
};

// Calls body(entry of the sums, statistics' number, channel, elements) in order; where the layout has made one of all
// entries of the batch, n is 0.
template <class Body>
void for_each_sum(const Channels& l, const Sharing& s, Body&& body) {
  size_t at = 0;
  for (int64_t n = 0; n < l.outer; ++n)
    for (int64_t piece = 0; piece < l.pieces(); ++piece)
      for (int64_t c = 0; c < l.channels; ++c, ++at) body(at, s.of(n, c), n, c, static_cast<double>(l.elements(piece)));
}

void find_statistics(const Channels& l, const Sharing& s, const Tensor& x, Doubles& mean, Doubles& var) {
  Doubles means(static_cast<size_t>(l.sums())), squares(means.size());
  parallel_for(l.units(), units_at_a_time(l), [&](int64_t begin, int64_t end) {
    channel_moments_pointer()(x.dtype(), l, x.raw_data(), means.data(), squares.data(), begin, end);
  });
  std::vector<Moments> total(static_cast<size_t>(s.statistics()));
  for_each_sum(l, s, [&](size_t at, size_t k, int64_t, int64_t, double elements) {
    total[k].merge(elements, means[at], squares[at]);
  });
  for (size_t k = 0; k < total.size(); ++k) {
    mean[k] = total[k].mean;
    var[k] = total[k].squares / total[k].count;
  }
}

// ---- Kernels

// A table of the kernels, [entries,] channels, in the computing dtype.
template <class T>
struct Table {
  std::vector<T> values;
  Table(const Channels& l) : values(static_cast<size_t>(l.table ? l.outer * l.channels : l.channels)) {}
  template <class Value>
  void fill(const Channels& l, const Sharing& s, Value&& value) {
    for (size_t i = 0; i < values.size(); ++i) {
      auto n = static_cast<int64_t>(i) / l.channels, c = static_cast<int64_t>(i) % l.channels;
      values[i] = static_cast<T>(value(s.of(n, c), c));
    }
  }
  const T* data() const { return values.data(); }
};

template <class T>
double entry(const Tensor& t, int64_t i, double missing) {
  return t.defined() ? static_cast<double>(t.data<T>()[i]) : missing;
}

template <class T>
void forward(const Call& c) {
  constexpr DType computing = dtype_of<T>;
  ChannelNorm a = norm_of(c);
  Tensor x = arranged(c.input(0), computing, a.channels_last), w = arranged(c.input(1), computing),
         b = arranged(c.input(2), computing);
  Shape sizes = sizes_of(c, x);
  Channels l = layout_of(sizes, a);
  l.blocks = in_blocks(c);
  Sharing s(sizes, a.groups);
  Doubles mean(static_cast<size_t>(s.statistics())), var(mean.size());
  if (x.numel() > 0) find_statistics(l, s, x, mean, var);
  T *mean_out = c.output(1).data<T>(), *var_out = c.output(2).data<T>();
  for (size_t k = 0; k < mean.size(); ++k) {
    mean_out[k] = static_cast<T>(mean[k]);
    var_out[k] = static_cast<T>(var[k]);
  }
  if (x.numel() == 0) return;
  Table<T> centre(l), scale(l), shift(l);
  centre.fill(l, s, [&](size_t k, int64_t) { return mean[k]; });
  auto factor = [&](size_t k, int64_t i) { return entry<T>(w, i, 1) / std::sqrt(var[k] + a.eps); };
  scale.fill(l, s, factor);
  // What the mean lost when it was rounded matters where it is much larger than the deviation.
  shift.fill(l, s, [&](size_t k, int64_t i) {
    return entry<T>(b, i, 0) + (static_cast<double>(static_cast<T>(mean[k])) - mean[k]) * factor(k, i);
  });
  Result y(c.output(), computing);
  Tensor added = l.blocks && c.inputs.size() > 3 ? arranged(c.input(3), computing) : Tensor();
  bool relu = l.blocks && c.as<blocked::Norm>().relu;
  parallel_for(l.units(), units_at_a_time(l), [&](int64_t begin, int64_t end) {
    channel_apply_pointer()(computing, l, x.raw_data(), centre.data(), scale.data(), shift.data(), data_or_null(added),
                            relu, y.data(), begin, end);
  });
  y.finish();
}

void run_forward(const Call& c) { c.input(0).dtype() == DType::f64 ? forward<double>(c) : forward<float>(c); }

// dx = r·(a - ⟨a⟩ - x̂·⟨a·x̂⟩) with a = g·w, put as g·of_g + (x - mean)·of_x + shift.
template <class T>
void backward(const Call& c) {
  constexpr DType computing = dtype_of<T>;
  ChannelNorm a = norm_of(c);
  Tensor g = arranged(c.input(0), computing, a.channels_last), x = arranged(c.input(1), computing, a.channels_last);
  Tensor w = arranged(c.input(2), computing), mean = arranged(c.input(3), computing),
         var = arranged(c.input(4), computing);
  Shape sizes = sizes_of(c, x);
  Channels l = layout_of(sizes, a);
  l.blocks = in_blocks(c);
  Sharing s(sizes, a.groups);
  Doubles rs(static_cast<size_t>(s.statistics()));
  for (size_t k = 0; k < rs.size(); ++k) rs[k] = 1 / std::sqrt(static_cast<double>(var.data<T>()[k]) + a.eps);
  auto r = [&](size_t k) { return rs[k]; };
  Table<T> centre(l), of_g(l), of_x(l), shift(l);
  centre.fill(l, s, [&](size_t k, int64_t) { return mean.data<T>()[k]; });
  Doubles sums(static_cast<size_t>(l.sums())), products(sums.size());
  Result dx(c.output(0), computing), dw(c.output(1), computing), db(c.output(2), computing);
  blocked::NormGradient also = l.blocks ? c.as<blocked::NormGradient>() : blocked::NormGradient{};
  Tensor y = also.relu ? arranged(c.input(5), computing) : Tensor();
  // What relu leaves of g lies where it is asked for, else where dx will be.
  Tensor left = !also.relu ? g : also.keeps ? c.output(also.sums ? 4 : 3) : dx.tensor();
  parallel_for(l.units(), units_at_a_time(l), [&](int64_t begin, int64_t end) {
    channel_products_pointer()(computing, l, g.raw_data(), x.raw_data(), centre.data(), sums.data(), products.data(),
                               data_or_null(y), left.raw_data(), begin, end);
  });
  Doubles sum(static_cast<size_t>(s.statistics())), product(sum.size());
  Doubles weight(static_cast<size_t>(s.channels)), bias(weight.size());
  for_each_sum(l, s, [&](size_t at, size_t k, int64_t, int64_t channel, double) {
    double factor = entry<T>(w, channel, 1);
    sum[k] += factor * sums[at];
    product[k] += factor * products[at];
    weight[static_cast<size_t>(channel)] += r(k) * products[at];
    bias[static_cast<size_t>(channel)] += sums[at];
  });
  auto count = static_cast<double>(s.elements());
  of_g.fill(l, s, [&](size_t k, int64_t i) { return r(k) * entry<T>(w, i, 1); });
  of_x.fill(l, s, [&](size_t k, int64_t) { return -r(k) * r(k) * r(k) * product[k] / count; });
  shift.fill(l, s, [&](size_t k, int64_t) { return -r(k) * sum[k] / count; });
  Tensor rows = also.sums ? make_tensor({s.batch, s.channels}, DType::f32, x.device()) : Tensor();
  parallel_for(l.units(), units_at_a_time(l), [&](int64_t begin, int64_t end) {
    auto apply = [&](int64_t from, int64_t to) {
      channel_gradient_pointer()(computing, l, left.raw_data(), x.raw_data(), centre.data(), of_g.data(), of_x.data(),
                                 shift.data(), dx.data(), from, to);
    };
    if (!also.sums) return apply(begin, end);
    for (int64_t unit = begin; unit < end; ++unit) {  // one by one: a sum finds its image in the cache
      apply(unit, unit + 1);
      sum_blocks_pointer()(static_cast<const float*>(dx.data()) + unit * l.inner * blocked::kChannels, 1, l.inner,
                           rows.data<float>() + unit * blocked::kChannels);
    }
  });
  if (also.sums) blocked::add_rows(rows, c.output(3));
  for (size_t i = 0; i < weight.size(); ++i) {
    static_cast<T*>(dw.data())[i] = static_cast<T>(weight[i]);
    static_cast<T*>(db.data())[i] = static_cast<T>(bias[i]);
  }
  for (Result* result : {&dx, &dw, &db}) result->finish();
}

void run_backward(const Call& c) { c.input(1).dtype() == DType::f64 ? backward<double>(c) : backward<float>(c); }

// ---- Operators

TensorSpec spec_like(const Tensor& x, const ChannelNorm& a) {
  TensorSpec spec{.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
  if (!a.channels_last) return spec;
  spec.strides = channels_last_strides(x.sizes());
  spec.strided = true;
  return spec;
}

void infer_channels(const Call& c, std::span<TensorSpec> out) {
  check_operands(c, 0, {1, 2});
  const Tensor& x = c.input(0);
  ChannelNorm a = norm_of(c);
  out[0] = spec_like(x, a);
  out[1] = {.sizes = {Sharing(sizes_of(c, x), a.groups).statistics()},
            .dtype = computing_dtype(x.dtype()),
            .device = x.device()};
  out[2] = out[1];
}

void infer_channels_backward(const Call& c, std::span<TensorSpec> out) {
  check_operands(c, 1, {2});
  const Tensor &x = c.input(1), &w = c.input(2);
  out[0] = spec_like(x, norm_of(c));
  out[1] = {.sizes = {sizes_of(c, x)[1]}, .dtype = w.defined() ? w.dtype() : x.dtype(), .device = x.device()};
  out[2] = out[1];
  if (!in_blocks(c)) return;
  const auto& also = c.as<blocked::NormGradient>();
  if (also.sums) out[3] = {.sizes = out[1].sizes, .dtype = x.dtype(), .device = x.device()};
  if (also.keeps) out.back() = out[0];
}

void second_gradient(GradientCall& c) {
  const Shape& sizes = c.input_sizes(1);
  const auto& a = c.as<ChannelNorm>();
  Over over{.sizes = {}, .dims = {}, .centered = true, .eps = a.eps, .weights = Shape::filled(sizes.size(), 1)};
  over.weights[1] = sizes[1];
  if (a.groups) {
    over.sizes = {sizes[0], a.groups, Sharing(sizes, a.groups).elements()};
    over.dims = {2};
  } else {
    over.dims.push_back(0);
    for (size_t d = 2; d < sizes.size(); ++d) over.dims.push_back(static_cast<int64_t>(d));
  }
  differentiate_gradient(c, over);
}

const Operator backward_op{
    .name = "channel_norm_backward",
    .infer = infer_channels_backward,
    .cpu = run_backward,
    .gradient = second_gradient,
    .saves_inputs = 0b111,
};

void first_gradient(GradientCall& c) {
  if (!c.grad().defined()) return;
  Tensor x = c.input(0), w = c.input(1), mean = c.output(1), var = c.output(2);
  const Tensor* inputs[] = {&c.grad(), &x, &w, &mean, &var};
  Tensor gradients[3];
  call(backward_op, inputs, c.attributes(), gradients);
  for (size_t i = 0; i < 3; ++i) c.set(i, gradients[i]);
}

const Operator batch_norm_op{
    .name = "batch_norm",
    .infer = infer_channels,
    .cpu = run_forward,
    .gradient = first_gradient,
    .saves_inputs = 0b011,
    .saves_outputs = 0b110,
};
const Operator instance_norm_op{
    .name = "instance_norm",
    .infer = infer_channels,
    .cpu = run_forward,
    .gradient = first_gradient,
    .saves_inputs = 0b011,
    .saves_outputs = 0b110,
};
const Operator group_norm_op{
    .name = "group_norm",
    .infer = infer_channels,
    .cpu = run_forward,
    .gradient = first_gradient,
    .saves_inputs = 0b011,
    .saves_outputs = 0b110,
    .autocast = AutocastPolicy::full_precision,
};

const Operator blocked_op{.name = "batch_norm_blocked", .infer = infer_channels, .cpu = run_forward};
const Operator blocked_backward_op{
    .name = "channel_norm_backward_blocked", .infer = infer_channels_backward, .cpu = run_backward};

// ---- Public functions

void check_channels(const char* name, const Tensor& x, std::initializer_list<const Tensor*> tables) {
  check<ValueError>(x.defined(), name, "the input is undefined: it was never given a value");
  check<ShapeError>(x.dim() >= 2, name, "takes an input of at least 2 dims (batch, channels, ...), not {}", x);
  for (const Tensor* t : tables) {
    check<DeviceError>(!t->defined() || t->device() == x.device(), name,
                       "operands are on different devices: {}, {}; copy them to one with to(device)", x, *t);
    check<ShapeError>(!t->defined() || (t->dim() == 1 && t->size(0) == x.size(1)), name,
                      "weight, bias and statistics must have an entry for each of the {} channels of {}, not be {}",
                      x.size(1), x, *t);
  }
}

struct Normalized {
  Tensor y, mean, var;
};
Normalized normalize(const Operator& op, const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias,
                     double eps) {
  ChannelNorm a{groups, eps, is_channels_last(x)};
  const Tensor* inputs[] = {&x, &weight, &bias};
  Tensor outputs[3];
  call(op, inputs, attributes(a), outputs);
  return {outputs[0], outputs[1].detach(), outputs[2].detach()};
}

void move_towards(const char* name, const Tensor& running, const Tensor& found, double momentum) {
  if (!running.defined()) return;
  NoGrad guard;
  Tensor target = running;
  named(name, [&] {
    Tensor value = found.dtype() == running.dtype() ? found : cast(found, running.dtype());
    target.mul_(1 - momentum).add_(value * momentum);
  });
}

// x's sizes with all but the channels 1, so that tables broadcast.
Tensor as_table(const Tensor& t, const Tensor& x) {
  Shape sizes = Shape::filled(x.sizes().size(), 1);
  sizes[1] = x.size(1);
  return reshape(t, sizes);
}

}  // namespace

Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias, double eps) {
  check_channels("group_norm", x, {&weight, &bias});
  check<ShapeError>(groups >= 1 && x.size(1) % groups == 0 && x.size(1) > 0, "group_norm",
                    "the {} channels of {} cannot be divided into {} groups", x.size(1), x, groups);
  return normalize(group_norm_op, x, groups, weight, bias, eps).y;
}

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, bool training, double momentum, double eps) {
  check_channels("batch_norm", x, {&weight, &bias, &running_mean, &running_var});
  if (!training) {
    check<ValueError>(running_mean.defined() && running_var.defined(), "batch_norm",
                      "without training it needs a running mean and variance");
    return named("batch_norm", [&] { return batch_norm_apply(x, running_mean, running_var, weight, bias, eps); });
  }
  int64_t count = Sharing(x.sizes(), 0).elements();
  check<ValueError>(count != 1, "batch_norm",
                    "needs more than one value a channel in training: the variance of {} is that of one number", x);
  Normalized n = normalize(batch_norm_op, x, 0, weight, bias, eps);
  if (count == 0 || x.device().is_meta()) return n.y;
  move_towards("batch_norm", running_mean, n.mean, momentum);
  if (running_var.defined()) {
    NoGrad guard;
    move_towards("batch_norm", running_var, n.var * (static_cast<double>(count) / static_cast<double>(count - 1)),
                 momentum);
  }
  return n.y;
}

Tensor instance_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                     const Tensor& running_var, bool use_input_statistics, double momentum, double eps) {
  check_channels("instance_norm", x, {&weight, &bias, &running_mean, &running_var});
  if (!use_input_statistics) {
    check<ValueError>(running_mean.defined() && running_var.defined(), "instance_norm",
                      "without the input's statistics it needs a running mean and variance");
    return named("instance_norm", [&] { return batch_norm_apply(x, running_mean, running_var, weight, bias, eps); });
  }
  int64_t channels = x.size(1), count = Sharing(x.sizes(), channels).inner;
  check<ShapeError>(channels > 0, "instance_norm", "{} has no channels", x);
  check<ValueError>(count != 1, "instance_norm",
                    "needs more than one spatial element: the variance of {} is that of one number", x);
  Normalized n = normalize(instance_norm_op, x, channels, weight, bias, eps);
  if (x.numel() == 0 || x.device().is_meta()) return n.y;
  NoGrad guard;
  auto over_batch = [&](const Tensor& t) { return mean(reshape(t, {x.size(0), channels}), 0); };
  if (running_mean.defined()) move_towards("instance_norm", running_mean, over_batch(n.mean), momentum);
  if (running_var.defined())
    move_towards("instance_norm", running_var,
                 over_batch(n.var) * (static_cast<double>(count) / static_cast<double>(count - 1)), momentum);
  return n.y;
}

BatchStatistics batch_norm_statistics(const Tensor& x) {
  check_channels("batch_norm_statistics", x, {});
  check<DTypeError>(x.is_floating(), "batch_norm_statistics", "needs floating-point elements, not {}; cast it first",
                    x);
  Shape dims{0};
  for (int64_t d = 2; d < x.dim(); ++d) dims.push_back(d);
  return named("batch_norm_statistics", [&]() -> BatchStatistics {
    Tensor wide = x.dtype() == computing_dtype(x.dtype()) ? x : cast(x, computing_dtype(x.dtype()));
    return {mean(wide, dims), var(wide, dims, false, 0), Sharing(x.sizes(), 0).elements()};
  });
}

Tensor batch_norm_apply(const Tensor& x, const Tensor& mean, const Tensor& var, const Tensor& weight,
                        const Tensor& bias, double eps) {
  constexpr auto name = "batch_norm_apply";
  check_channels(name, x, {&mean, &var, &weight, &bias});
  check<ValueError>(mean.defined() && var.defined(), name, "needs a mean and a variance");
  check<DTypeError>(x.is_floating(), name, "needs floating-point elements, not {}; cast it first", x);
  DType computing = computing_dtype(x.dtype());
  auto wide = [&](const Tensor& t) { return t.dtype() == computing ? t : cast(t, computing); };
  return named(name, [&] {
    Tensor scale = rsqrt(wide(var) + eps);
    if (weight.defined()) scale = scale * wide(weight);
    Tensor shift = -(wide(mean) * scale);
    if (bias.defined()) shift = wide(bias) + shift;
    Tensor y = fused_multiply_add(wide(x), as_table(scale, x), as_table(shift, x));
    return y.dtype() == x.dtype() ? y : cast(y, x.dtype());
  });
}

}  // namespace tutti

namespace tutti::blocked {

Form norm_form(const Asked& asked) {
  bool forward = &asked.op == &batch_norm_op;
  if (!forward && &asked.op != &backward_op) return {};
  const auto& a = *static_cast<const ChannelNorm*>(asked.attributes.data);
  if (a.channels_last || a.groups) return {};
  Form form{.op = forward ? &blocked_op : &blocked_backward_op, .inputs = forward ? 0b1u : 0b11u, .outputs = 0b1};
  auto own = [&](auto kept) {
    form.attributes = attributes(*kept);
    form.owner = kept;
  };
  forward ? own(std::make_shared<Norm>(Norm{.eps = a.eps}))
          : own(std::make_shared<NormGradient>(NormGradient{.eps = a.eps}));
  return form;
}

const Operator& norm() { return blocked_op; }
const Operator& norm_gradient() { return blocked_backward_op; }

}  // namespace tutti::blocked
