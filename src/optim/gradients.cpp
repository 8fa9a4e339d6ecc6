#include "tutti/optim/gradients.h"

#include <atomic>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "optim/parts.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"

namespace tutti::optim {
namespace {

std::atomic<PartFinder> part_finder = nullptr;

// Each rank would have another norm, and scale by that.
void refuse_parts(const TensorList& parameters, const char* operation) {
  PartFinder is_part = part_finder.load();
  if (!is_part) return;
  for (size_t i = 0; i < parameters.size(); ++i)
    check<ValueError>(!is_part(parameters[i]), operation,
                      "parameter {} is this rank's part of one that fully_shard has cut, and the norm of parts is not "
                      "that of the whole: use parallel::{}",
                      i, operation);
}

// What holds the numbers of a gradient; duplicates of a sparse one are added first.
TensorList gradients_of(const TensorList& parameters) {
  TensorList list;
  for (const Tensor& p : parameters) {
    Tensor g = gradient_sink().gradient(p);
    if (!g.defined()) continue;
    if (g.is_sparse() && !g.is_coalesced()) {
      g = g.coalesce();
      gradient_sink().set_gradient(p, g);
    }
    list.push_back(g.is_sparse() ? g.values() : g);
  }
  return list;
}

double norm_of(const TensorList& gradients, double p) {
  bool largest = std::isinf(p);
  double total = 0;
  for (const Tensor& g : gradients) {
    // The norm of halves may be beyond their range.
    bool half = g.dtype() == DType::f16 || g.dtype() == DType::bf16;
    // NaN must stay NaN, so no std::max.
    double n = norm(half ? g.to(DType::f32) : g, p).item<double>();
    if (largest)
      total = n > total || std::isnan(n) ? n : total;
    else
      total += std::pow(n, p);
    if (std::isnan(total)) return total;
  }
  return largest ? total : std::pow(total, 1 / p);
}

}  // namespace

void set_part_finder(PartFinder finder) { part_finder = finder; }

double grad_norm(const TensorList& parameters, double p) {
  refuse_parts(parameters, "grad_norm");
  NoGrad guard;
  return norm_of(gradients_of(parameters), p);
}

double clip_grad_norm_(const TensorList& parameters, double max_norm, const ClipOptions& options) {
  check<ValueError>(max_norm >= 0 && options.p > 0, "clip_grad_norm_", "takes a norm ≥ 0 and p > 0, not {} and {}",
                    max_norm, options.p);
  refuse_parts(parameters, "clip_grad_norm_");
  NoGrad guard;
  TensorList gradients = gradients_of(parameters);
  double total = norm_of(gradients, options.p);
  check<ValueError>(!options.error_if_nonfinite || std::isfinite(total), "clip_grad_norm_",
                    "the norm of the gradients is {}: a loss or gradient overflowed", total);
  double scale = max_norm / (total + 1e-6);
  if (!(scale >= 1))
    for (Tensor& g : gradients) g.mul_(scale);
  return total;
}

void clip_grad_value_(const TensorList& parameters, double limit) {
  check<ValueError>(limit >= 0, "clip_grad_value_", "takes a limit ≥ 0, not {}", limit);
  NoGrad guard;
  for (Tensor& g : gradients_of(parameters)) clamp_(g, -limit, limit);
}

void average_into(nn::ModuleBase& average, const nn::ModuleBase& module, double decay) {
  NoGrad guard;
  using Named = std::vector<std::pair<std::string, Tensor>>;
  auto compare = [](const char* what, const Named& to, const Named& from) {
    check<ValueError>(to.size() == from.size(), "average_into", "the modules have {} and {} {}s", to.size(),
                      from.size(), what);
    for (size_t i = 0; i < to.size(); ++i)
      check<ValueError>(to[i].first == from[i].first && to[i].second.sizes() == from[i].second.sizes(), "average_into",
                        "{} ({}) and {} ({}) are not the same {}", to[i].first, to[i].second, from[i].first,
                        from[i].second, what);
  };
  Named to, from = module.named_parameters();
  try {
    to = average.named_parameters();
  } catch (const ValueError&) {
    fail<ValueError>("average_into",
                     "the average was made of a lazy module that had not run, and has no weights: make it (Ema) after "
                     "the module's first call");
  }
  Named to_buffers = average.named_buffers(), from_buffers = module.named_buffers();
  compare("parameter", to, from);
  compare("buffer", to_buffers, from_buffers);
  for (size_t i = 0; i < to.size(); ++i)
    lerp_(to[i].second, from[i].second.detach().to(to[i].second.dtype()), 1 - decay);
  for (size_t i = 0; i < to_buffers.size(); ++i) to_buffers[i].second.copy_(from_buffers[i].second);
}

void check_ema(double decay, int64_t updates) {
  check<ValueError>(decay >= 0 && decay <= 1 && updates >= 0 && updates <= int64_t{1} << 60, "Ema",
                    "the decay must be between 0 and 1 and updates not negative, not {} and {}", decay, updates);
}

}  // namespace tutti::optim
