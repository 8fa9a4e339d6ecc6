#include "tutti/amp.h"

#include <cmath>

#include "base/check.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti::amp {

Autocast::Autocast(DType dtype, bool enabled) : modes_(context().modes), dtype_(context().autocast_dtype) {
  check<DTypeError>(dtype == DType::bf16 || dtype == DType::f16, "Autocast", "casts to bf16 or f16, not {}", dtype);
  context().modes = enabled ? modes_ | kAutocastMode : modes_ & ~uint32_t{kAutocastMode};
  context().autocast_dtype = dtype;
}
Autocast::~Autocast() {
  context().modes = (context().modes & ~uint32_t{kAutocastMode}) | (modes_ & kAutocastMode);
  context().autocast_dtype = dtype_;
}

namespace {
bool can_scale(double scale) { return scale > 0 && std::isfinite(scale); }
}  // namespace

GradScaler::GradScaler(const ScalerOptions& options) : options_(options), scale_(options.enabled ? options.scale : 1) {
  const ScalerOptions& o = options;
  check<ValueError>(can_scale(o.scale) && o.growth >= 1 && std::isfinite(o.growth) && o.backoff > 0 && o.backoff < 1,
                    "GradScaler", "takes a finite scale > 0, growth ≥ 1 and backoff between 0 and 1, not {}, {} and {}",
                    o.scale, o.growth, o.backoff);
  check<ValueError>(o.growth_interval > 0, "GradScaler", "takes a growth_interval > 0, not {}", o.growth_interval);
}

void GradScaler::load_state(const State& state) {
  check<ValueError>(can_scale(state.scale) && state.good_steps >= 0, "GradScaler",
                    "a state has a finite scale > 0 and good_steps ≥ 0, not {} and {}", state.scale, state.good_steps);
  scale_ = state.scale;
  good_steps_ = state.good_steps;
}

Tensor GradScaler::scale(const Tensor& loss) const {
  if (!options_.enabled) return loss;
  // It would stay what it is now, while unscale_() divides by what it has become.
  if (Tracer* tracer = tracing())
    tracer->untraceable("GradScaler::scale(), by a number that changes (scale outside, or by an argument)");
  return loss * scale_;
}

GradScaler::Seen& GradScaler::unscaled(const void* optimizer, const TensorList& parameters) {
  for (Seen& s : seen_)
    if (s.optimizer == optimizer) return s;
  NoGrad guard;
  bool overflow = false;
  for (const Tensor& p : parameters) {
    Tensor g = gradient_sink().gradient(p);
    if (!g.defined()) continue;
    if (g.is_sparse() && !g.is_coalesced()) {  // entries that add up may overflow together
      g = g.coalesce();
      gradient_sink().set_gradient(p, g);
    }
    Tensor numbers = g.is_sparse() ? g.values() : g;
    if (scale_ != 1) numbers.mul_(1 / scale_);
    overflow = overflow || !isfinite(numbers).all().item<bool>();
  }
  seen_.push_back({optimizer, overflow, false});
  return seen_.back();
}

void GradScaler::unscale(const void* optimizer, const TensorList& parameters) {
  if (!options_.enabled) return;
  for (const Seen& s : seen_)
    check<ValueError>(s.optimizer != optimizer, "GradScaler",
                      "unscale_ was called {} without update() in between: what has come to the gradients since would "
                      "stay scaled",
                      s.stepped ? "after step for one optimizer" : "twice for one optimizer");
  unscaled(optimizer, parameters);
}

bool GradScaler::step(const void* optimizer, const TensorList& parameters, const std::function<void()>& run) {
  if (!options_.enabled) {
    run();
    return true;
  }
  Seen& seen = unscaled(optimizer, parameters);
  check<ValueError>(!seen.stepped, "GradScaler", "step was called twice for one optimizer without update() in between");
  seen.stepped = true;
  if (!seen.overflow) run();
  return !seen.overflow;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  check<ValueError>(!seen_.empty(), "GradScaler", "update was called before any step");
  bool overflow = false;
  for (const Seen& s : seen_) overflow = overflow || s.overflow;
  seen_.clear();
  if (overflow) {
    if (can_scale(scale_ * options_.backoff)) scale_ *= options_.backoff;
    good_steps_ = 0;
  } else if (++good_steps_ >= options_.growth_interval) {
    if (can_scale(scale_ * options_.growth)) scale_ *= options_.growth;  // else it would never come back
    good_steps_ = 0;
  }
}

}  // namespace tutti::amp
