// How much a rank counts in batch norms over all ranks.
//
// Note [Weights of losses that depend on each other]
// The loss of rank s depends on rank r's batch, by the statistics that they share. Backward through these sends what
// rank s has to all ranks, which add it up and go on; in the end each rank's gradients are multiplied by its weight.
// With an average by samples ranks have different ones, and what rank s sent would get that of the wrong rank. So it
// is multiplied by s's weight when it leaves, and divided by r's where it arrives.
#pragma once

#include <functional>
#include <optional>

#include "tutti/nn/module.h"
#include "tutti/parallel/sync_batch_norm.h"

namespace tutti::parallel {

/// The weight of this rank in the backward pass that runs; none: all count the same.
using WeightSource = std::function<std::optional<double>()>;
/// For all batch norms over ranks that are in the module. `number` tells sources apart, and is never 0: each is set
/// once.
void weigh_statistics(nn::ModuleBase& module, uint64_t number, const WeightSource& weight);

}  // namespace tutti::parallel
