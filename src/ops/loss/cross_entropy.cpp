// cross_entropy. For class indices it is one operator that keeps a logsumexp for each place, not the probabilities:
//
//   loss = (1 - s)·w[t]·(L - x[t]) + s/C·Σ w[c]·(L - x[c]),  L = logsumexp(x),  s the label smoothing, w the weights
//   dloss/dx[c] = a·exp(x[c] - L) - b[c],  a = (1 - s)·w[t] + s/C·Σ w,  b[c] = (1 - s)·w[t]·[c = t] + s/C·w[c]
#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/named.h"
#include "base/parallel.h"
#include "ops/loss/loss.h"
#include "ops/reduce/softmax.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

constexpr const char* kName = "cross_entropy";

struct Classes {
  int64_t ignore_index;
  double label_smoothing;
  Reduction reduction;
  TUTTI_FIELDS(ignore_index, label_smoothing, reduction)
};

DType compute_dtype(DType dtype) { return dtype == f64 ? f64 : f32; }

// Logits are [outer, classes, inner]; places are [outer, inner].
struct Places {
  int64_t outer, classes, inner;
  explicit Places(const Tensor& logits)
      : outer(logits.dim() == 1 ? 1 : logits.size(0)), classes(logits.size(logits.dim() == 1 ? 0 : 1)), inner(1) {
    for (int64_t d = 2; d < logits.dim(); ++d) inner *= logits.size(d);
  }
};

Shape place_sizes(const Tensor& logits) {
  Shape sizes = logits.sizes();
  sizes.erase(sizes.size() == 1 ? 0 : 1);
  return sizes;
}

template <class F>
void with_float(DType dtype, F&& f) {
  dtype == f64 ? f.template operator()<double>() : f.template operator()<float>();
}

// Weights as numbers of T, ones where there are none; and s/C·Σ w.
template <class T>
struct Weights {
  std::vector<T> of;
  T keep, spread, spread_sum;  // 1 - s, s/C, s/C·Σ w
  Weights(const Tensor& weight, int64_t classes, double smoothing) {
    of = weight.defined() ? weight.to_vector<T>() : std::vector<T>(static_cast<size_t>(classes), T(1));
    keep = static_cast<T>(1 - smoothing);
    spread = classes ? static_cast<T>(smoothing / static_cast<double>(classes)) : T(0);
    spread_sum = spread * std::accumulate(of.begin(), of.end(), T(0));
  }
};

struct Prepared {
  Tensor logits, target;
  Places places;
  Prepared(const Tensor& x, const Tensor& t) : places(x) {
    NoGrad guard;
    logits = cast(x.detach(), compute_dtype(x.dtype())).contiguous();
    target = cast(t.detach(), i64).contiguous();
  }
};

int64_t grain_of(const Places& p) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, p.classes * p.inner)); }

template <class T>
T loss_of(const T* x, int64_t stride, int64_t target, T log_sum, const Weights<T>& w, int64_t classes) {
  T loss = w.keep * w.of[static_cast<size_t>(target)] * (log_sum - x[target * stride]);
  if (w.spread == T(0)) return loss;
  T spread = 0;
  for (int64_t c = 0; c < classes; ++c) spread += w.of[static_cast<size_t>(c)] * (log_sum - x[c * stride]);
  return loss + w.spread * spread;
}

// Outputs: the loss; L for each place; what a mean divides by (the sum of the targets' weights).
void run(const Call& c) {
  const auto& a = c.as<Classes>();
  Prepared in(c.input(0), c.input(1));
  const Places& p = in.places;
  int64_t places = p.outer * p.inner;
  const auto* target = in.target.data<int64_t>();
  check_targets(target, places, p.classes, a.ignore_index, kName);
  with_float(in.logits.dtype(), [&]<class T>() {
    Weights<T> w(c.input(2), p.classes, a.label_smoothing);
    const T* x = in.logits.data<T>();
    T* log_sums = c.output(1).data<T>();
    std::vector<T> losses(static_cast<size_t>(places));
    parallel_for(p.outer, grain_of(p), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        const T* rows = x + o * p.classes * p.inner;
        for (int64_t i = 0; i < p.inner; i += reduction::kSoftmaxColumns)
          reduction::run_softmax_pointer()(reduction::Exponential::logsumexp, in.logits.dtype(), rows + i,
                                           log_sums + o * p.inner + i, p.classes,
                                           std::min(reduction::kSoftmaxColumns, p.inner - i), p.inner);
        for (int64_t i = 0; i < p.inner; ++i) {
          int64_t place = o * p.inner + i, t = target[place];
          losses[static_cast<size_t>(place)] =
              t == a.ignore_index ? T(0) : loss_of(rows + i, p.inner, t, log_sums[place], w, p.classes);
        }
      }
    });
    double total = 0, sum = 0;
    for (int64_t i = 0; i < places; ++i) {
      sum += static_cast<double>(losses[static_cast<size_t>(i)]);
      if (target[i] != a.ignore_index) total += static_cast<double>(w.of[static_cast<size_t>(target[i])]);
    }
    *c.output(2).data<T>() = static_cast<T>(total);
    if (a.reduction == Reduction::none)
      copy_into(c.output(0), reshape(tensor(losses), c.output(0).sizes()));
    else
      copy_into(c.output(0), tensor(a.reduction == Reduction::sum ? sum : sum / total, {f64}));
  });
}

// One outer index of the gradient. `scale` is what each place's gradient is multiplied with.
template <class T>
void gradient_rows(const Places& p, const Classes& a, const Weights<T>& w, const T* x, const int64_t* target,
                   const T* log_sums, const T* scale, T* out, T* factors) {
  DType dtype = dtype_of<T>;
  for (int64_t i = 0; i < p.inner; ++i)
    factors[i] =
        target[i] == a.ignore_index ? T(0) : scale[i] * (w.keep * w.of[static_cast<size_t>(target[i])] + w.spread_sum);
  if (p.inner == 1 && factors[0] == T(0)) {
    std::fill_n(out, p.classes, T(0));
    if (target[0] == a.ignore_index) return;
  } else if (p.inner == 1) {
    shifted_exp_row_pointer()(dtype, x, static_cast<double>(log_sums[0]), static_cast<double>(factors[0]), out,
                              p.classes);
  } else {
    for (int64_t c = 0; c < p.classes; ++c)
      shifted_exp_columns_pointer()(dtype, x + c * p.inner, log_sums, factors, out + c * p.inner, p.inner);
  }
  for (int64_t i = 0; i < p.inner; ++i) {
    if (target[i] == a.ignore_index) {
      for (int64_t c = 0; c < p.classes; ++c) out[c * p.inner + i] = T(0);  // even where 0·exp is NaN
      continue;
    }
    out[target[i] * p.inner + i] -= scale[i] * w.keep * w.of[static_cast<size_t>(target[i])];
    if (w.spread != T(0))
      for (int64_t c = 0; c < p.classes; ++c)
        out[c * p.inner + i] -= scale[i] * w.spread * w.of[static_cast<size_t>(c)];
  }
}

// Inputs: the gradient of the loss, then those of the loss, then its outputs 1 and 2.
void run_gradient(const Call& c) {
  const auto& a = c.as<Classes>();
  Prepared in(c.input(1), c.input(2));
  const Places& p = in.places;
  DType dtype = in.logits.dtype();
  NoGrad guard;
  Tensor g = cast(c.input(0).detach(), dtype).contiguous();
  Tensor to = c.output().dtype() == dtype ? c.output() : make_tensor(in.logits.sizes(), dtype, c.output().device());
  with_float(dtype, [&]<class T>() {
    Weights<T> w(c.input(3), p.classes, a.label_smoothing);
    const T *grads = g.data<T>(), *x = in.logits.data<T>(), *log_sums = c.input(4).data<T>();
    T one = a.reduction == Reduction::none ? T(0) : *grads;
    if (a.reduction == Reduction::mean) one /= *c.input(5).data<T>();
    const auto* target = in.target.data<int64_t>();
    T* out = to.data<T>();
    parallel_for(p.outer, grain_of(p), [&](int64_t begin, int64_t end) {
      std::vector<T> scale(static_cast<size_t>(p.inner), one), factors(static_cast<size_t>(p.inner));
      for (int64_t o = begin; o < end; ++o) {
        int64_t at = o * p.inner, row = at * p.classes;
        if (a.reduction == Reduction::none) std::copy_n(grads + at, p.inner, scale.begin());
        gradient_rows(p, a, w, x + row, target + at, log_sums + at, scale.data(), out + row, factors.data());
      }
    });
  });
  if (!to.is_same(c.output())) copy_into(c.output(), to);
}

// a [places] and b [like logits] of the formula above, zero where ignored.
struct Factors {
  Tensor a, b;
};
Factors factors_of(const Tensor& x, const Tensor& target, const Tensor& weight, const Classes& options) {
  int64_t dim = x.dim() == 1 ? 0 : 1, classes = x.size(dim);
  Options like{.dtype = x.dtype(), .device = x.device()};
  Tensor w = weight.defined() ? cast(weight, x.dtype()) : ones({classes}, like);
  Tensor ignored = target == options.ignore_index, t = cast(where(ignored, 0, target), i64);
  Shape along = Shape::filled(static_cast<size_t>(x.dim()), 1);
  along[static_cast<size_t>(dim)] = classes;
  Tensor wide = reshape(w, along), kept = unsqueeze(where(ignored, 0, ones(target.sizes(), like)), dim);
  Tensor hit = zeros(x.sizes(), like);
  if (classes > 0) scatter_add_(hit, dim, unsqueeze(t, dim), ones(unsqueeze(t, dim).sizes(), like));
  double s = options.label_smoothing, spread = classes ? s / static_cast<double>(classes) : 0;
  Tensor chosen = hit * wide;
  Tensor b = (chosen * (1 - s) + wide * spread) * kept;
  return {sum(b, dim, true), b};
}

// Second derivatives: the gradient above, written in public operators. out = g·(a·softmax(x) - b).
void gradient_of_gradient(GradientCall& c) {
  const auto& options = c.as<Classes>();
  Tensor h = c.grad(), g = c.input(0), x = c.input(1);
  int64_t dim = x.dim() == 1 ? 0 : 1;
  auto [a, b] = factors_of(x.detach(), c.input(2), c.input(3), options);
  Tensor p = softmax(x, dim);
  Tensor each = options.reduction == Reduction::none   ? unsqueeze(g, dim)
                : options.reduction == Reduction::mean ? g / cast(c.input(5), g.dtype())
                                                       : g;
  Tensor weighted = sum(h * p, dim, true);
  if (c.needs(0)) {
    Tensor by_place = a * weighted - sum(h * b, dim, true);
    c.set(0, options.reduction == Reduction::none   ? squeeze(by_place, dim)
             : options.reduction == Reduction::mean ? sum(by_place) / cast(c.input(5), g.dtype())
                                                    : sum(by_place));
  }
  if (c.needs(1)) c.set(1, each * a * p * (h - weighted));
}

const Operator cross_entropy_gradient_op{
    .name = "cross_entropy_gradient",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& x = c.input(1);
          out[0] = {.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
        },
    .cpu = run_gradient,
    .gradient = gradient_of_gradient,
    .saves_inputs = 0b101111,
};

const Operator cross_entropy_op{
    .name = kName,
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& x = c.input(0);
          Shape places = place_sizes(x), loss = c.as<Classes>().reduction == Reduction::none ? places : Shape();
          DType computing = compute_dtype(x.dtype());
          out[0] = {.sizes = loss, .dtype = x.dtype(), .device = x.device()};
          out[1] = {.sizes = places, .dtype = computing, .device = x.device()};
          out[2] = {.dtype = computing, .device = x.device()};
        },
    .cpu = run,
    .gradient =
        [](GradientCall& c) {
          Tensor g = c.grad(), x = c.input(0), t = c.input(1), w = c.input(2), log_sums = c.output(1),
                 total = c.output(2);
          c.set(0, call(cross_entropy_gradient_op, {&g, &x, &t, &w, &log_sums, &total}, c.attributes()));
        },
    .saves_inputs = 0b111,
    .saves_outputs = 0b110,
    .autocast = AutocastPolicy::full_precision,
};

Tensor with_probabilities(const Tensor& x, const Tensor& target, const CrossEntropyOptions& o, int64_t dim) {
  check_loss_input(target, kName);
  if (lowered(x, target)) return with_probabilities(in_f32(x), in_f32(target), o, dim);
  int64_t classes = x.size(dim);
  Tensor t = cast(target, x.dtype());
  if (o.label_smoothing > 0) t = t * (1 - o.label_smoothing) + o.label_smoothing / static_cast<double>(classes);
  if (o.weight.defined()) {
    Shape along = Shape::filled(static_cast<size_t>(x.dim()), 1);
    along[static_cast<size_t>(dim)] = classes;
    t = t * reshape(o.weight.detach(), along);
  }
  return reduce_loss(-sum(log_softmax(x, dim) * t, dim), o.reduction);
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& o) {
  check_loss_input(logits, kName);
  check<ValueError>(target.defined(), kName, "the target is undefined: it was never given a value");
  check<ShapeError>(logits.dim() >= 1, kName, "needs logits [C], [N, C] or [N, C, d1, ...], not {}", logits);
  check<ValueError>(o.label_smoothing >= 0 && o.label_smoothing <= 1, kName,
                    "label_smoothing must lie in [0, 1], not {}", o.label_smoothing);
  int64_t dim = logits.dim() == 1 ? 0 : 1;
  check<ShapeError>(!o.weight.defined() || o.weight.sizes() == Shape(logits.size(dim)), kName,
                    "the weight {} must have one number for each of {} classes", o.weight, logits.size(dim));
  for (const Tensor* t : {&target, &o.weight})
    check<DeviceError>(!t->defined() || t->device() == logits.device(), kName, "{} and {} are on different devices",
                       logits, *t);
  bool indices = target.dtype() == i64 || target.dtype() == i32;
  if (!indices && target.sizes() == logits.sizes())
    return named(kName, [&] { return with_probabilities(logits, target, o, dim); });
  check<DTypeError>(indices, kName, "the target {} must hold classes as i64 or i32, or probabilities of the shape {}",
                    target, logits.sizes());
  check<ShapeError>(target.sizes() == place_sizes(logits), kName,
                    "the target {} must have the shape {}: that of the logits {} without their classes{}", target,
                    place_sizes(logits), logits,
                    target.sizes() == logits.sizes() ? "; or be probabilities of floating point, target.to(f32)" : "");
  if (logits.dim() >= 4 && !logits.is_contiguous() && logits.is_contiguous(MemoryFormat::channels_last)) {
    // The classes of a place lie together: places are rows, and the gradient lies in memory as the logits do.
    Tensor rows = reshape(movedim(logits, 1, -1), {target.numel(), logits.size(1)});
    Tensor loss = cross_entropy(rows, reshape(target, {target.numel()}), o);
    return o.reduction == Reduction::none ? reshape(loss, target.sizes()) : loss;
  }
  Classes a{o.ignore_index, o.label_smoothing, o.reduction};
  Tensor weight = o.weight.defined() ? o.weight.detach() : Tensor();
  const Tensor* inputs[] = {&logits, &target, &weight};
  Tensor outputs[3];
  call(cross_entropy_op, inputs, attributes(a), outputs);
  return outputs[0];
}

}  // namespace tutti
