// What the two kinds of checkpoints share.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/fsdp/unit.h"

namespace tutti::parallel {

/// Of the first parameter that is sharded; ValueError if none is.
Group group_of(const TensorList& parameters, const char* operation);
/// All that a state dict has, in order: parameters and buffers that are kept.
std::vector<std::pair<std::string, Tensor>> entries_of(const nn::ModuleBase& module);
/// A whole's elements in the order in which the member's lie.
Tensor in_memory(const ShardMember& member, const Tensor& whole);
/// Calls f(state of a slot, its parameter, "group/number") for all slots of an optimizer's state. f may change it.
using SlotVisitor = std::function<void(io::State& slot, const Tensor& parameter, const std::string& which)>;
void each_slot(io::State& state, const optim::Optimizer& optimizer, const SlotVisitor& f);

}  // namespace tutti::parallel
