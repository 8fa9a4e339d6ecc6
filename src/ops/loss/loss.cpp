// Losses that are compositions of other operators.
#include "ops/loss/loss.h"

#include "amp/policy.h"
#include "base/check.h"
#include "base/named.h"
#include "tensor/call.h"
#include "tensor/impl.h"
#include "tutti/context.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {

Tensor reduce_loss(const Tensor& loss, Reduction reduction) {
  return reduction == Reduction::none ? loss : reduction == Reduction::sum ? sum(loss) : mean(loss);
}

void check_loss_input(const Tensor& x, const char* name) {
  check<ValueError>(x.defined(), name, "an input is undefined: it was never given a value");
  check<ValueError>(x.layout() == Layout::strided, name, "{} is sparse; to_dense() it first", x);
  check<DTypeError>(x.is_floating(), name, "needs floating-point elements, not {}; cast it first", x);
}

void check_targets(const int64_t* target, int64_t count, int64_t classes, int64_t ignore, const char* name) {
  for (int64_t i = 0; i < count; ++i)
    if ((target[i] < 0 || target[i] >= classes) && target[i] != ignore)
      fail<IndexError>(name, "target {} at position {} is not a class: there are {} (and {} is ignored)", target[i], i,
                       classes, ignore);
}

bool lowered(const Tensor& input) { return amp::casts(AutocastPolicy::full_precision, input); }
Tensor in_f32(const Tensor& x) { return amp::input_for(AutocastPolicy::full_precision, x); }

namespace {

// Both are floating-point, and of one shape: a loss that broadcasts is nearly always a mistake.
void check_pair(const Tensor& input, const Tensor& target, const char* name) {
  check_loss_input(input, name);
  check<ValueError>(target.defined(), name, "the target is undefined: it was never given a value");
  check<ShapeError>(input.sizes() == target.sizes(), name, "the target {} must have the shape of the input {}", target,
                    input);
  check<DeviceError>(input.device() == target.device(), name, "{} and {} are on different devices", input, target);
}

Tensor zero_like_number(const Tensor& x) { return zeros({}, {.dtype = x.dtype(), .device = x.device()}); }

// ---- binary_cross_entropy: an operator, since its gradient is finite where that of its formula is not.

Tensor cut_log(const Tensor& x) { return maximum(log(x), -100); }
Tensor cut_log1m(const Tensor& x) { return maximum(log1p(-x), -100); }

void run_binary(const Call& c) {
  NoGrad guard;
  Tensor x = c.input(0).detach(), t = c.input(1).detach();
  check<ValueError>(!any((x < 0) | (x > 1)).item<bool>(), "binary_cross_entropy",
                    "the input {} must hold probabilities, in [0, 1]; for logits there is "
                    "binary_cross_entropy_with_logits",
                    x);
  copy_into(c.output(), -(t * cut_log(x) + (1 - t) * cut_log1m(x)));
}

const Operator binary_cross_entropy_op{
    .name = "binary_cross_entropy",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor& x = c.input(0);
          out[0] = {.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()};
        },
    .cpu = run_binary,
    .gradient =
        [](GradientCall& c) {
          Tensor x = c.input(0), t = c.input(1), g = c.grad();
          if (c.needs(0)) c.set(0, g * (x - t) / maximum((1 - x) * x, 1e-12));
          if (c.needs(1)) c.set(1, g * (cut_log1m(x) - cut_log(x)));
        },
    .saves_inputs = 3,
    .autocast = AutocastPolicy::full_precision,
};

// ---- nll_loss

struct Classes {
  int64_t count, ignored;
  TUTTI_FIELDS(count, ignored)
};

// The targets as i64, each of which is a class or ignored: an operator, so that a compiled function looks at them too.
const Operator nll_targets_op{
    .name = "nll_loss",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = c.input(0).sizes(), .dtype = i64, .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          const auto& a = c.as<Classes>();
          Tensor t = cast(c.input(0).detach(), i64).contiguous();
          check_targets(t.data<int64_t>(), t.numel(), a.count, a.ignored, "nll_loss");
          copy_into(c.output(), t);
        },
};

// Of the classes in `dim` the target's, with its weight.
Tensor picked_loss(const Tensor& x, const Tensor& target, int64_t dim, const NllOptions& options) {
  Classes a{x.size(dim), options.ignore_index};
  Tensor t = call(nll_targets_op, {&target}, attributes(a));
  Tensor ignored = t == options.ignore_index, zero = zero_like_number(x);
  t = where(ignored, 0, t);
  Tensor picked = x.size(dim) == 0 ? zeros(t.sizes(), {.dtype = x.dtype(), .device = x.device()})
                                   : squeeze(gather(x, dim, unsqueeze(t, dim)), dim);
  Tensor loss, total;
  if (options.weight.defined()) {
    Tensor w = reshape(index_select(cast(options.weight.detach(), x.dtype()), 0, reshape(t, {-1})), t.sizes());
    loss = where(ignored, zero, -(picked * w));
    total = sum(where(ignored, zero, w));
  } else {
    loss = where(ignored, zero, -picked);
    total = sum(cast(logical_not(ignored), x.dtype()));
  }
  return options.reduction == Reduction::mean ? sum(loss) / total : reduce_loss(loss, options.reduction);
}

}  // namespace

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check_pair(input, target, "mse_loss");
  if (lowered(input, target)) return mse_loss(in_f32(input), in_f32(target), reduction);
  return named("mse_loss", [&] { return reduce_loss(square(input - target), reduction); });
}

Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check_pair(input, target, "l1_loss");
  if (lowered(input, target)) return l1_loss(in_f32(input), in_f32(target), reduction);
  return named("l1_loss", [&] { return reduce_loss(abs(input - target), reduction); });
}

Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, double beta, Reduction reduction) {
  check_pair(input, target, "smooth_l1_loss");
  if (lowered(input, target)) return smooth_l1_loss(in_f32(input), in_f32(target), beta, reduction);
  check<ValueError>(beta >= 0, "smooth_l1_loss", "beta must not be negative, not {}", beta);
  return named("smooth_l1_loss", [&] {
    Tensor d = abs(input - target);
    if (beta == 0) return reduce_loss(d, reduction);
    return reduce_loss(where(d < beta, square(d) * (0.5 / beta), d - 0.5 * beta), reduction);
  });
}

Tensor huber_loss(const Tensor& input, const Tensor& target, double delta, Reduction reduction) {
  check_pair(input, target, "huber_loss");
  if (lowered(input, target)) return huber_loss(in_f32(input), in_f32(target), delta, reduction);
  check<ValueError>(delta > 0, "huber_loss", "delta must be positive, not {}", delta);
  return named("huber_loss", [&] {
    Tensor d = abs(input - target);
    return reduce_loss(where(d < delta, square(d) * 0.5, (d - 0.5 * delta) * delta), reduction);
  });
}

Tensor nll_loss(const Tensor& x, const Tensor& target, const NllOptions& options) {
  const char* name = "nll_loss";
  check_loss_input(x, name);
  check<ValueError>(target.defined(), name, "the target is undefined: it was never given a value");
  if (lowered(x)) return nll_loss(in_f32(x), target, options);
  check<ShapeError>(x.dim() >= 1, name, "needs [C], [N, C] or [N, C, d1, ...], not {}", x);
  int64_t dim = x.dim() == 1 ? 0 : 1;
  Shape places = x.sizes();
  places.erase(static_cast<size_t>(dim));
  check<DTypeError>(target.dtype() == i64 || target.dtype() == i32, name, "targets must be i64 or i32, not {}", target);
  check<ShapeError>(target.sizes() == places, name, "the target {} must have the shape {}: that of {} without classes",
                    target, places, x);
  check<ShapeError>(!options.weight.defined() || options.weight.sizes() == Shape(x.size(dim)), name,
                    "the weight {} must have one number for each of {} classes", options.weight, x.size(dim));
  return named(name, [&] { return picked_loss(x, target, dim, options); });
}

Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, const BinaryOptions& options) {
  check_pair(input, target, "binary_cross_entropy");
  if (lowered(input, target)) return binary_cross_entropy(in_f32(input), in_f32(target), options);
  return named("binary_cross_entropy", [&] {
    Tensor t = cast(target, input.dtype());
    Tensor loss = call(binary_cross_entropy_op, {&input, &t});
    return reduce_loss(options.weight.defined() ? loss * options.weight : loss, options.reduction);
  });
}

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target, const BinaryLogitsOptions& options) {
  check_pair(x, target, "binary_cross_entropy_with_logits");
  if (lowered(x, target)) return binary_cross_entropy_with_logits(in_f32(x), in_f32(target), options);
  return named("binary_cross_entropy_with_logits", [&] {
    Tensor t = cast(target, x.dtype()), logarithm = log_sigmoid(x);
    if (options.pos_weight.defined()) logarithm = logarithm * (1 + (options.pos_weight - 1) * t);
    Tensor loss = (1 - t) * x - logarithm;
    return reduce_loss(options.weight.defined() ? loss * options.weight : loss, options.reduction);
  });
}

Tensor kl_div(const Tensor& input, const Tensor& target, const KlOptions& options) {
  check_pair(input, target, "kl_div");
  check_loss_input(target, "kl_div");
  if (lowered(input, target)) return kl_div(in_f32(input), in_f32(target), options);
  Tensor loss = options.log_target ? exp(target) * (target - input) : xlogy(target, target) - target * input;
  if (!options.batch_mean) return reduce_loss(loss, options.reduction);
  check<ShapeError>(input.dim() > 0, "kl_div", "batch_mean needs a batch: a first dim, which {} has not", input);
  return sum(loss) / static_cast<double>(input.size(0));
}

Tensor cosine_similarity(const Tensor& x1, const Tensor& x2, int64_t dim, double epsilon) {
  const char* name = "cosine_similarity";
  check_loss_input(x1, name);
  check_loss_input(x2, name);
  if (lowered(x1, x2)) return cosine_similarity(in_f32(x1), in_f32(x2), dim, epsilon);
  int64_t dims = named(name, [&] { return static_cast<int64_t>(broadcast_shapes(x1.sizes(), x2.sizes()).size()); });
  int64_t d = wrap_dim(dim, dims, name) - dims;  // from the end, where broadcasting lines dims up
  auto aligned = [&](const Tensor& x) {
    return x.dim() >= -d ? x : expand(x, broadcast_shapes(x.sizes(), Shape::filled(static_cast<size_t>(-d), 1)));
  };
  return named(name, [&] {
    Tensor a = aligned(x1), b = aligned(x2);
    Tensor products = sum(a * b, d), sizes = maximum(norm(a, 2, d), epsilon) * maximum(norm(b, 2, d), epsilon);
    return products / sizes;
  });
}

namespace {

// ±1 targets, one for each row.
Tensor signs(const Tensor& target, const Shape& sizes, const char* name) {
  check<ValueError>(target.defined(), name, "the target is undefined: it was never given a value");
  check<ShapeError>(target.sizes() == sizes, name, "the target {} must have the shape {}", target, sizes);
  return target;
}

}  // namespace

Tensor cosine_embedding_loss(const Tensor& x1, const Tensor& x2, const Tensor& target, const MarginOptions& options) {
  const char* name = "cosine_embedding_loss";
  check_pair(x1, x2, name);
  if (lowered(x1, x2)) return cosine_embedding_loss(in_f32(x1), in_f32(x2), target, options);
  check<ShapeError>(x1.dim() == 1 || x1.dim() == 2, name, "needs [N, D] or [D], not {}", x1);
  Shape rows = x1.sizes();
  rows.erase(rows.size() - 1);
  Tensor t = signs(target, rows, name);
  return named(name, [&] {
    // A small number inside of the root, not a norm cut off: rows of zeros have gradients too.
    Tensor sizes = sqrt((sum(x1 * x1, -1) + 1e-12) * (sum(x2 * x2, -1) + 1e-12)), cosine = sum(x1 * x2, -1) / sizes;
    Tensor loss = where(t == 1, 1 - cosine, where(t == -1, relu(cosine - options.margin), zero_like_number(x1)));
    return reduce_loss(loss, options.reduction);
  });
}

Tensor margin_ranking_loss(const Tensor& x1, const Tensor& x2, const Tensor& target, const MarginOptions& options) {
  check_pair(x1, x2, "margin_ranking_loss");
  if (lowered(x1, x2)) return margin_ranking_loss(in_f32(x1), in_f32(x2), target, options);
  return named("margin_ranking_loss", [&] {
    Tensor t = cast(signs(target, x1.sizes(), "margin_ranking_loss"), x1.dtype());
    return reduce_loss(relu(options.margin - t * (x1 - x2)), options.reduction);
  });
}

Tensor hinge_embedding_loss(const Tensor& input, const Tensor& target, const HingeOptions& options) {
  check_loss_input(input, "hinge_embedding_loss");
  if (lowered(input)) return hinge_embedding_loss(in_f32(input), target, options);
  return named("hinge_embedding_loss", [&] {
    Tensor t = signs(target, input.sizes(), "hinge_embedding_loss"), zero = zero_like_number(input);
    Tensor loss = where(t == 1, input, where(t == -1, relu(options.margin - input), zero));
    return reduce_loss(loss, options.reduction);
  });
}

Tensor soft_margin_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check_loss_input(input, "soft_margin_loss");
  if (lowered(input)) return soft_margin_loss(in_f32(input), target, reduction);
  return named("soft_margin_loss", [&] {
    Tensor t = cast(signs(target, input.sizes(), "soft_margin_loss"), input.dtype());
    return reduce_loss(-log_sigmoid(t * input), reduction);
  });
}

Tensor pairwise_distance(const Tensor& x1, const Tensor& x2, double p, double epsilon, bool keepdim) {
  check_loss_input(x1, "pairwise_distance");
  check_loss_input(x2, "pairwise_distance");
  if (lowered(x1, x2)) return pairwise_distance(in_f32(x1), in_f32(x2), p, epsilon, keepdim);
  check<ShapeError>(x1.dim() > 0 && x2.dim() > 0, "pairwise_distance", "{} and {} must have a last dim", x1, x2);
  return named("pairwise_distance", [&] { return norm(x1 - x2 + epsilon, p, -1, keepdim); });
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletOptions& options) {
  return named("triplet_margin_loss", [&] {
    Tensor near = pairwise_distance(anchor, positive, options.p, options.epsilon);
    Tensor far = pairwise_distance(anchor, negative, options.p, options.epsilon);
    if (options.swap) far = minimum(far, pairwise_distance(positive, negative, options.p, options.epsilon));
    return reduce_loss(relu(near - far + options.margin), options.reduction);
  });
}

}  // namespace tutti
