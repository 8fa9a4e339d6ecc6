// What all optimizers share: slots, gradients, state.
#include "tutti/optim/optimizer.h"

#include <set>

#include "base/check.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"

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
    check<ValueError>(known.insert(p.impl()).second, kName, "parameter {} ({}) was given twice", i, p);
    slots.push_back({.parameter = p});
  }
  groups_.push_back(std::move(slots));
}

TensorList Optimizer::parameters(size_t group) const {
  TensorList list;
  for (const Slot& slot : groups_.at(group)) list.push_back(slot.parameter);
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

void Optimizer::zero_grad() {
  for (const Tensor& p : parameters()) gradient_sink().set_gradient(p, {});
}

void Optimizer::step() {
  NoGrad guard;
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<Slot*> slots;
    TensorList gradients;
    for (Slot& slot : groups_[g]) {
      Tensor gradient = gradient_sink().gradient(slot.parameter);
      if (!gradient.defined()) continue;
      slot.state.resize(state_names().size());
      slots.push_back(&slot);
      gradients.push_back(gradient);
    }
    if (!slots.empty()) update(g, slots, gradients);
  }
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
  std::vector<std::string> names = state_names();
  auto fresh = groups_;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& slots = groups[g].as<io::State>()["parameters"].as<io::ValueList>();
    check<ValueError>(slots.size() == fresh[g].size(), name(), "group {} of the state has {} parameters, not {}", g,
                      slots.size(), fresh[g].size());
    for (size_t i = 0; i < slots.size(); ++i) {
      const auto& entry = slots[i].as<io::State>();
      Slot& slot = fresh[g][i];
      slot.step = entry["step"].as<int64_t>();
      slot.state.assign(names.size(), {});
      for (size_t k = 0; k < names.size(); ++k) {
        const io::Value* value = entry.find(names[k]);
        if (!value) continue;
        const Tensor& t = value->as<Tensor>();
        check<ValueError>(t.sizes() == slot.parameter.sizes(), name(),
                          "the state's {} of parameter {} in group {} is {}, but the parameter is {}", names[k], i, g,
                          t, slot.parameter);
        Tensor own = empty_strided(slot.parameter.sizes(), slot.parameter.strides(),
                                   {.dtype = t.dtype(), .device = slot.parameter.device()});
        slot.state[k] = own.copy_(t.to(own.device()));
      }
    }
  }
  std::vector<io::State> before;
  for (size_t g = 0; g < groups.size(); ++g) before.push_back(options_state(g));
  try {
    for (size_t g = 0; g < groups.size(); ++g) load_options(g, groups[g].as<io::State>()["options"].as<io::State>());
  } catch (...) {
    for (size_t g = 0; g < groups.size(); ++g) load_options(g, before[g]);
    throw;
  }
  groups_ = std::move(fresh);
}

}  // namespace tutti::optim
