// What all optimizers share: slots, gradients, state.
#include "tutti/optim/optimizer.h"

#include <cmath>
#include <set>

#include "base/check.h"
#include "optim/slot.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti::optim {

void Optimizer::add_slots(const TensorList& parameters) {
  constexpr const char* kName = "Optimizer";  // constructors come here, where name() is not known yet
  std::set<TensorImpl*> known;
  for (const auto& group : groups_)
    for (const Slot& slot : group) known.insert(slot.parameter.impl());
  std::vector<Slot> slots;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& p = parameters[i];
    check<ValueError>(p.defined(), kName, "parameter {} is undefined: a lazy module must have run once before", i);
    check<ValueError>(p.is_leaf() && (p.is_floating() || p.is_complex()), kName,
                      "parameter {} ({}) is not a leaf of a floating-point dtype", i, p);
    check<ValueError>(known.insert(p.impl()).second, kName, "parameter {} of group {} ({}) was given twice", i,
                      groups_.size(), p);
    slots.push_back({.parameter = p});
  }
  groups_.push_back(std::move(slots));
  scales_.push_back(1);
}

void Optimizer::check_group(size_t group) const {
  check<IndexError>(group < groups_.size(), "Optimizer", "there is no group {}: there are {}, counted from 0", group,
                    groups_.size());
}
void Optimizer::check_any_parameters() const {
  bool any = false;
  for (const auto& group : groups_) any |= !group.empty();
  check<ValueError>(any, "Optimizer", "there are no parameters to change: the list is empty");
}

TensorList Optimizer::parameters(size_t group) const {
  check_group(group);
  TensorList list;
  for (const Slot& slot : groups_[group]) list.push_back(slot.parameter);
  return list;
}
TensorList Optimizer::parameters() const {
  TensorList list;
  for (const auto& group : groups_)
    for (const Slot& slot : group) list.push_back(slot.parameter);
  return list;
}

void Optimizer::set_lr(double lr) {
  for (size_t g = 0; g < groups_.size(); ++g) set_lr(g, lr);
}

void Optimizer::set_lr(size_t group, double lr) {
  check_group(group);
  check<ValueError>(lr >= 0, name(), "lr must not be negative or NaN, as {} is", lr);
  lr_of(group) = lr;
}
void Optimizer::set_momentum(size_t, double) { check<ValueError>(false, name(), "has no momentum that could be set"); }

void Optimizer::scale_lr(size_t group, double factor) {
  check_group(group);
  check<ValueError>(factor >= 0 && std::isfinite(factor), name(), "a rate cannot be scaled by {}", factor);
  scales_[group] *= factor;
  set_lr(group, lr(group) * factor);
}

void Optimizer::zero_grad() {
  for (const Tensor& p : parameters()) gradient_sink().set_gradient(p, {});
}

void Optimizer::step() {
  if (Tracer* tracer = tracing()) tracer->untraceable("Optimizer::step() counts its own steps; call it outside");
  NoGrad guard;
  struct Work {
    std::vector<Slot*> slots;
    TensorList gradients;
  };
  std::vector<Work> work(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g)
    for (Slot& slot : groups_[g]) {
      Tensor gradient = gradient_sink().gradient(slot.parameter);
      if (!gradient.defined()) continue;
      slot.state.resize(state_names().size());
      for (const Tensor& s : slot.state)
        check<ValueError>(!s.defined() || can_be_state(s, slot.parameter), name(),
                          "a parameter is {} now; what was kept for it is {}", slot.parameter, s);
      check<ShapeError>(gradient.sizes() == slot.parameter.sizes(), name(), "{} cannot be the gradient of {}", gradient,
                        slot.parameter);
      check<DTypeError>(slot.parameter.is_complex() || !gradient.is_complex(), name(),
                        "{} cannot be the gradient of {}", gradient, slot.parameter);
      check_gradient(g, slot.parameter, gradient);
      work[g].slots.push_back(&slot);
      work[g].gradients.push_back(gradient);
    }
  for (size_t g = 0; g < work.size(); ++g)
    if (!work[g].slots.empty()) update(g, work[g].slots, work[g].gradients);
}

void Optimizer::check_gradient(size_t, const Tensor& parameter, const Tensor& gradient) {
  check<ValueError>(
      !gradient.is_sparse(), name(),
      "does not take sparse gradients (of {}); SparseAdam does, and SGD without momentum and weight decay", parameter);
  check<DeviceError>(parameter.device().is_cpu(), name(), "there is no kernel for parameters like {}", parameter);
}

io::State Optimizer::state() const {
  io::State result;
  result["optimizer"] = name();
  io::ValueList groups;
  std::vector<std::string> names = state_names();
  for (size_t g = 0; g < groups_.size(); ++g) {
    io::ValueList slots;
    for (const Slot& slot : groups_[g]) {
      io::State entry;
      entry["step"] = slot.step;
      for (size_t i = 0; i < slot.state.size(); ++i)
        if (slot.state[i].defined()) entry[names[i]] = slot.state[i].detach();
      slots.push_back(std::move(entry));
    }
    io::State group;
    group["options"] = options_state(g);
    group["lr_scale"] = scales_[g];
    group["parameters"] = std::move(slots);
    groups.push_back(std::move(group));
  }
  result["groups"] = std::move(groups);
  return result;
}

void Optimizer::load_state(const io::State& state) {
  NoGrad guard;
  const std::string& kind = state["optimizer"].as<std::string>();
  check<ValueError>(kind == name(), name(), "this is the state of {}, not of {}", kind, name());
  const auto& groups = state["groups"].as<io::ValueList>();
  check<ValueError>(groups.size() == groups_.size(), name(), "the state has {} groups, the optimizer {}", groups.size(),
                    groups_.size());
  auto fresh = groups_;
  auto scales = scales_;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& group = groups[g].as<io::State>();
    check_options(group["options"].as<io::State>());
    scales[g] = group["lr_scale"].as<double>();
    check<ValueError>(scales[g] >= 0 && std::isfinite(scales[g]), name(), "a rate cannot be scaled by {}", scales[g]);
    const auto& slots = group["parameters"].as<io::ValueList>();
    check<ValueError>(slots.size() == fresh[g].size(), name(), "group {} of the state has {} parameters, not {}", g,
                      slots.size(), fresh[g].size());
    for (size_t i = 0; i < slots.size(); ++i)
      load_slot(fresh[g][i], slots[i].as<io::State>(), fmt::format("parameter {} in group {}", i, g));
  }
  for (size_t g = 0; g < groups.size(); ++g) load_options(g, groups[g].as<io::State>()["options"].as<io::State>());
  groups_ = std::move(fresh);
  scales_ = std::move(scales);
}

void Optimizer::load_slot(Slot& slot, const io::State& state, const std::string& which) const {
  constexpr int64_t kMostSteps = int64_t{1} << 60;  // there is room to go on counting
  slot.step = state["step"].as<int64_t>();
  check<ValueError>(slot.step >= 0 && slot.step <= kMostSteps, name(), "the state counts {} steps of {}", slot.step,
                    which);
  std::vector<std::string> names = state_names();
  slot.state.assign(names.size(), {});
  for (size_t k = 0; k < names.size(); ++k) {
    const io::Value* value = state.find(names[k]);
    if (!value) continue;
    const Tensor& t = value->as<Tensor>();
    if (!t.defined()) continue;
    check<ValueError>(can_be_state(t, slot.parameter), name(), "the state's {} of {} is {}, but the parameter is {}",
                      names[k], which, t, slot.parameter);
    slot.state[k] = empty_state(slot.parameter).copy_(t);
  }
}

}  // namespace tutti::optim
