// Whether ranks have the same module, and the same numbers in it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tutti/comm/collectives.h"
#include "tutti/tensor.h"

namespace tutti::parallel {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// Things that must be the same on all ranks, each a name and what it is. MismatchError lists those that differ.
using Facts = std::vector<std::pair<std::string, std::string>>;
Facts facts_of(const char* kind, const NamedTensors& tensors);
void check_agree(const char* operation, const Facts& facts, const CollectiveOptions& options);

/// MismatchError, on all ranks, unless all have the same bits in all tensors; it names the first that differs, and who
/// has something else than most.
void check_equal_bits(const char* operation, const NamedTensors& tensors, const CollectiveOptions& options);

/// Those that are of one dtype on one device, in order: what one collective can take.
std::vector<TensorList> by_kind(const TensorList& tensors);

}  // namespace tutti::parallel
