// What users call.
#include "tutti/parallel/fsdp.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "comm/group/call.h"
#include "nn/hooks.h"
#include "parallel/fsdp/family.h"
#include "parallel/fsdp/unit.h"
#include "tutti/ops.h"

namespace tutti::parallel {
namespace {

// Note [Gradients of gradients]
// A pass that is itself differentiated (grad() with create_graph) has nodes that saved a unit's parameters, and what
// runs them comes from the gradients of the unit's inputs and leaves at those of its outputs. So where backward frees a
// unit, an identity is put on the gradients that gathers it when this is differentiated, and where backward gathers
// one, an identity that frees it. These do the same when they are differentiated in turn. One node over all gradients,
// so that nothing is freed before the last of them.
// `call` is the forward that all of this is about.
using Call = std::shared_ptr<const UnitCall>;
void mark_gradients(TensorList& gradients, const std::shared_ptr<ShardUnit>& unit, const Call& call, bool gathers);

struct Turn : Function<Turn> {
  std::shared_ptr<ShardUnit> unit;
  Call call;
  bool gathers = false;
  TensorList forward(const TensorList& gradients, const std::shared_ptr<ShardUnit>& of, const Call& from, bool gather) {
    unit = of;
    call = from;
    gathers = gather;
    accept_undefined_gradients();
    TensorList same;
    for (const Tensor& g : gradients) same.push_back(g.detach());
    return same;
  }
  TensorList backward(const TensorList& gradients) {
    if (gathers)
      unit->family->before_second(*unit, call.get());
    else
      unit->family->after_second(*unit);
    TensorList same = gradients;
    mark_gradients(same, unit, call, !gathers);
    return same;
  }
};

void mark_gradients(TensorList& gradients, const std::shared_ptr<ShardUnit>& unit, const Call& call, bool gathers) {
  if (!grad_enabled()) return;
  TensorList some;
  for (const Tensor& g : gradients)
    if (g.defined() && g.requires_grad()) some.push_back(g);
  if (some.empty()) return;
  some = Turn::apply(some, unit, call, gathers);
  size_t next = 0;
  for (Tensor& g : gradients)
    if (g.defined() && g.requires_grad()) g = some[next++];
}

// What its forward has left for the hooks that run.
Call call_of(const ShardUnit* unit) {
  nn::detail::CallNotes* notes = nn::detail::call_notes();
  auto found = notes ? notes->find(unit) : nn::detail::CallNotes::iterator();
  return notes && found != notes->end() ? std::static_pointer_cast<const UnitCall>(found->second) : nullptr;
}

// Modules are values that move and are copied: hooks are told which one they are about.
void add_hooks(nn::ModuleBase& module, const std::shared_ptr<ShardUnit>& unit) {
  module.register_forward_pre_hook(
      [unit](nn::ModuleBase& m, TensorList& inputs) { unit->family->before_forward(*unit, m, inputs); });
  module.register_forward_hook([unit](nn::ModuleBase& m, const TensorList&, TensorList& outputs) {
    Call call = unit->family->after_forward(*unit, m, outputs);
    if (auto* notes = nn::detail::call_notes(); notes && call) (*notes)[unit.get()] = call;
  });
  module.register_forward_failure_hook([unit](nn::ModuleBase& m) { unit->family->forward_failed(*unit, m); });
  module.register_backward_pre_hook([unit](nn::ModuleBase&, TensorList& grad_outputs) {
    Call call = call_of(unit.get());
    unit->family->before_backward(*unit, call.get());
    mark_gradients(grad_outputs, unit, call, false);
  });
  module.register_backward_hook([unit](nn::ModuleBase&, TensorList& grad_inputs, const TensorList&) {
    unit->family->after_backward_of(*unit, grad_inputs);
    mark_gradients(grad_inputs, unit, call_of(unit.get()), true);
  });
}

// Those inside the unit, which checkpoints call again in backward, when nobody is inside of its forward.
void add_inner_hooks(nn::ModuleBase& module, const std::shared_ptr<ShardUnit>& unit) {
  for (auto& [path, inner] : module.named_modules()) {
    if (inner == &module || !unit->has_parameters_of(*inner)) continue;
    inner->register_forward_pre_hook(
        [unit](nn::ModuleBase& m, TensorList&) { unit->family->before_inner_forward(*unit, m); });
    inner->register_forward_hook(
        [unit](nn::ModuleBase& m, const TensorList&, TensorList&) { unit->family->after_inner_forward(*unit, m); });
    inner->register_forward_failure_hook([unit](nn::ModuleBase& m) { unit->family->after_inner_forward(*unit, m); });
  }
}

void watch_gradients(const std::shared_ptr<ShardUnit>& unit) {
  for (size_t f = 0; f < unit->flats.size(); ++f)
    for (size_t k = 0; k < unit->flats[f].members().size(); ++k) {
      ShardMember& m = unit->flats[f].members()[k];
      m.whole.requires_grad_();  // it may become one that does
      m.whole.register_post_accumulate_hook([weak = std::weak_ptr(unit), f, k](const Tensor&) {
        if (auto self = weak.lock()) self->family->accumulated(*self, f, k);
      });
      m.whole.requires_grad_(m.shard.requires_grad());
    }
}

}  // namespace

void fully_shard(nn::ModuleBase& module, const FullyShardOptions& given, const Place& place) {
  FullyShardOptions options = given;
  options.place = place;  // they may have been made elsewhere
  auto family = std::make_shared<ShardFamily>(options);
  auto unit = std::make_shared<ShardUnit>(module, options, family);
  family->add(unit);
  register_unit(unit);
  add_hooks(module, unit);
  add_inner_hooks(module, unit);
  watch_gradients(unit);
}

ShardNoSync::ShardNoSync(std::shared_ptr<ShardFamily> family) : family_(std::move(family)) { family_->add_no_sync(1); }
ShardNoSync::~ShardNoSync() {
  if (family_) family_->add_no_sync(-1);
}

namespace {

std::shared_ptr<ShardFamily> family_of(const nn::ModuleBase& module, const char* operation) {
  std::shared_ptr<ShardFamily> family;
  for (const Tensor& p : module.parameters())
    if (ShardPlace place = find_shard(p)) family = place.unit->family;
  check<ValueError>(family != nullptr, operation, "this {} has no parameter that is sharded", module.type_name());
  return family;
}

}  // namespace

ShardNoSync no_sync(const nn::ModuleBase& module) { return ShardNoSync(family_of(module, "no_sync")); }
void set_samples(const nn::ModuleBase& module, double count) { family_of(module, "set_samples")->set_samples(count); }

// ---- Norms

namespace {

// Of which group each parameter is cut over, if any, and all of these groups in the order in which they come, which is
// the same on all ranks as long as they give the same parameters.
struct CutOver {
  std::vector<Group> groups, of;
  explicit CutOver(const TensorList& parameters) {
    for (const Tensor& parameter : parameters) {
      ShardPlace place = find_shard(parameter);
      of.push_back(place ? place.unit->family->group() : Group());
      if (place && std::find(groups.begin(), groups.end(), of.back()) == groups.end()) groups.push_back(of.back());
    }
  }
};

// Parts of one parameter are added first, rank after rank in the order of all sums; then parameters, in the order in
// which they are given.
double norm_of_all(const TensorList& parameters, double p) {
  NoGrad guard;
  bool largest = std::isinf(p);
  std::vector<double> sums;
  CutOver cut(parameters);
  for (const Tensor& parameter : parameters) {
    Tensor g = gradient_sink().gradient(parameter);
    if (g.defined() && g.is_sparse()) g = g.coalesce().values();
    double n = g.defined() && g.numel() ? norm(g.is_complex() ? g : g.to(DType::f64), p).item<double>() : 0;
    sums.push_back(largest ? n : std::pow(n, p));
  }
  for (const Group& group : cut.groups) {
    // What is whole on every rank is not to be counted by each.
    std::vector<double> parts;
    for (size_t i = 0; i < sums.size(); ++i)
      if (cut.of[i] == group) parts.push_back(sums[i]);
    Tensor all = tensor(parts, {.dtype = DType::f64});
    comm::PurposeGuard purpose("the norm of gradients of fully_shard");
    all_reduce(all, {.op = largest ? Reduce::max : Reduce::sum, .group = group});
    parts = all.to_vector<double>();
    for (size_t i = 0, next = 0; i < sums.size(); ++i)
      if (cut.of[i] == group) sums[i] = parts[next++];
  }
  double total = 0;
  for (double s : sums) {
    if (std::isnan(s)) return s;
    total = largest ? std::max(total, s) : total + s;
  }
  return largest ? total : std::pow(total, 1 / p);
}

}  // namespace

void spread_overflow(const TensorList& parameters) {
  NoGrad guard;
  TensorList numbers;
  bool overflow = false;
  for (const Tensor& parameter : parameters) {
    Tensor g = gradient_sink().gradient(parameter);
    if (g.defined() && g.is_sparse()) g = g.values();
    if (!g.defined() || g.numel() == 0) continue;
    numbers.push_back(g);
    overflow = overflow || !isfinite(g).all().item<bool>();
  }
  CutOver cut(parameters);
  if (cut.groups.empty()) return;
  Tensor any = full({1}, overflow ? 1 : 0, {.dtype = DType::i32});
  comm::PurposeGuard purpose("fully_shard: whether a gradient has overflowed");
  for (const Group& group : cut.groups) all_reduce(any, {.op = Reduce::max, .group = group});
  if (any.item<int>() == 0) return;
  for (Tensor& g : numbers) g.fill_(std::numeric_limits<double>::quiet_NaN());
}

double grad_norm(const TensorList& parameters, double p) {
  check<ValueError>(p > 0, "grad_norm", "takes p > 0, not {}", p);
  return norm_of_all(parameters, p);
}

double clip_grad_norm_(const TensorList& parameters, double max_norm, const optim::ClipOptions& options) {
  check<ValueError>(max_norm >= 0 && options.p > 0, "clip_grad_norm_", "takes a norm ≥ 0 and p > 0, not {} and {}",
                    max_norm, options.p);
  double total = norm_of_all(parameters, options.p);
  check<ValueError>(!options.error_if_nonfinite || std::isfinite(total), "clip_grad_norm_",
                    "the norm of the gradients is {}: a loss or gradient overflowed", total);
  NoGrad guard;
  double scale = max_norm / (total + 1e-6);
  if (scale >= 1) return total;
  for (const Tensor& parameter : parameters) {
    Tensor g = gradient_sink().gradient(parameter);
    if (!g.defined()) continue;
    if (g.is_sparse()) gradient_sink().set_gradient(parameter, g = g.coalesce());
    (g.is_sparse() ? g.values() : g).mul_(scale);
  }
  return total;
}

}  // namespace tutti::parallel
