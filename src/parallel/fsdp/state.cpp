// State dicts and optimizers' states as if nothing were sharded.
#include "parallel/fsdp/state.h"

#include "base/check.h"
#include "comm/group/call.h"
#include "nn/visit.h"
#include "parallel/fsdp/family.h"
#include "tutti/ops.h"

namespace tutti::parallel {

using io::State;
using io::ValueList;

Tensor in_memory(const ShardMember& m, const Tensor& whole) {
  Tensor laid = empty_strided(m.sizes, m.strides, {.dtype = whole.dtype(), .device = whole.device()});
  laid.copy_(whole);
  return as_strided(laid, {m.count}, {1}, 0);
}

namespace {

// What ranks have of something that is cut as a member is, put together on the root.
Tensor gather_whole(const ShardPlace& place, const Tensor& part, int root) {
  const Group& group = place.unit->family->group();
  const ShardMember& m = *place.member;
  TensorList parts;
  Tensor all;
  if (group.rank() == root) {
    all = empty({m.count}, {.dtype = part.dtype(), .device = part.device()});
    for (int r = 0; r < group.size(); ++r) {
      auto [begin, end] = place.flat->range(m, r);
      parts.push_back(all.narrow(0, begin, end - begin));
    }
  }
  comm::PurposeGuard purpose("fully_shard: the whole state, on one rank");
  gather(parts, part.detach().contiguous(), {.root = root, .group = group});
  return all.defined() ? as_strided(all, m.sizes, m.strides, 0).contiguous() : Tensor();
}

bool is_root(const Group& group, int root) {
  check<ValueError>(root >= 0 && root < group.size(), "full_state", "root {} is not in a group of {}", root,
                    group.size());
  return group.rank() == root;
}

}  // namespace

Group group_of(const TensorList& parameters, const char* operation) {
  for (const Tensor& p : parameters)
    if (ShardPlace place = find_shard(p)) return place.unit->family->group();
  fail<ValueError>(operation, "no parameter is sharded");
}

std::vector<std::pair<std::string, Tensor>> entries_of(const nn::ModuleBase& module) {
  std::vector<std::pair<std::string, Tensor>> list;
  nn::detail::walk(
      module,
      [&](const std::string& path, nn::Parameter& p) {
        if (p.defined()) list.emplace_back(path, p);
      },
      [&](const std::string& path, nn::Buffer& b) {
        if (b.persistent && b.defined()) list.emplace_back(path, b);
      },
      nn::detail::nothing);
  return list;
}

void each_slot(State& state, const optim::Optimizer& optimizer, const SlotVisitor& f) {
  check<ValueError>(state.has("groups"), "load_full_state", "this is not the state of an optimizer");
  auto groups = state["groups"].as<ValueList>();
  check<ValueError>(groups.size() == optimizer.group_count(), "load_full_state",
                    "the state has {} groups, the optimizer {}", groups.size(), optimizer.group_count());
  for (size_t g = 0; g < groups.size(); ++g) {
    State group = groups[g].as<State>();
    auto slots = group["parameters"].as<ValueList>();
    TensorList parameters = optimizer.parameters(g);
    check<ValueError>(slots.size() == parameters.size(), "load_full_state",
                      "group {} of the state has {} parameters, not {}", g, slots.size(), parameters.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      State slot = slots[i].as<State>();
      f(slot, parameters[i], fmt::format("{}/{}", g, i));
      slots[i] = std::move(slot);
    }
    group["parameters"] = std::move(slots);
    groups[g] = std::move(group);
  }
  state["groups"] = std::move(groups);
}

// ---- As if nothing were sharded

nn::StateDict full_state_dict(const nn::ModuleBase& module, int root) {
  NoGrad guard;
  bool mine = is_root(group_of(module.parameters(), "full_state_dict"), root);
  nn::StateDict state;
  std::map<TensorImpl*, Tensor> known;  // what is shared is gathered once
  for (auto& [path, t] : entries_of(module)) {
    auto [whole, fresh] = known.try_emplace(t.impl());
    ShardPlace place = find_shard(t);
    if (fresh) whole->second = place ? gather_whole(place, t, root) : t.detach().clone();
    if (mine) state[path] = whole->second;
  }
  return state;
}

nn::LoadReport load_full_state_dict(nn::ModuleBase& module, const nn::StateDict& state,
                                    const nn::LoadOptions& options) {
  NoGrad guard;
  nn::StateDict parts = state;
  std::string misshaped;
  for (auto& [path, t] : entries_of(module)) {
    ShardPlace place = find_shard(t);
    auto given = parts.find(path);
    if (!place || given == parts.end() || !given->second.defined()) continue;
    const ShardMember& m = *place.member;
    Tensor& value = given->second;
    if (!(value.sizes() == m.sizes)) {
      misshaped += fmt::format("\n  {} (is {} here, {} there)", path, m.sizes, value.sizes());
      continue;
    }
    // Of what lies as it does here, only this rank's part is touched.
    bool as_here = value.is_contiguous() && value.strides() == m.strides;
    Tensor flat = as_here ? value.view({m.count}) : in_memory(m, value);
    value = flat.narrow(0, m.begin, m.end - m.begin);
  }
  check<ValueError>(misshaped.empty(), "load_full_state_dict", "the state does not fit this {}; nothing was loaded{}",
                    module.type_name(), misshaped.empty() ? "" : "\n  of another shape:" + misshaped);
  return module.load_state_dict(parts, options);
}

State full_state(const optim::Optimizer& optimizer, int root) {
  NoGrad guard;
  bool mine = is_root(group_of(optimizer.parameters(), "full_state"), root);
  State state = optimizer.state();
  each_slot(state, optimizer, [&](State& slot, const Tensor& parameter, const std::string&) {
    ShardPlace place = find_shard(parameter);
    if (!place) return;
    for (io::Entry& e : slot.entries)
      if (Tensor* t = std::get_if<Tensor>(&e.value.value)) *t = gather_whole(place, *t, root);
  });
  return mine ? state : State();
}

void load_full_state(optim::Optimizer& optimizer, const State& full) {
  NoGrad guard;
  State state = full;
  each_slot(state, optimizer, [&](State& slot, const Tensor& parameter, const std::string&) {
    ShardPlace place = find_shard(parameter);
    if (!place) return;
    const ShardMember& m = *place.member;
    for (io::Entry& e : slot.entries)
      if (Tensor* t = std::get_if<Tensor>(&e.value.value); t && t->defined()) {
        check<ValueError>(t->sizes() == m.sizes, "load_full_state", "the {} of {} is {}, but the parameter is {}",
                          e.name, m.name, *t, m.sizes);
        *t = in_memory(m, *t).narrow(0, m.begin, m.end - m.begin);
      }
  });
  optimizer.load_state(state);
}

}  // namespace tutti::parallel
