// A pointwise node as generated code computes it: which primitive, on what.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pointwise/signature.h"
#include "tutti/graph/ir.h"

namespace tutti::graph {

struct Formula {
  std::string function = {};  // of the primitives: "mul_f32"; empty for copies, which only convert
  pointwise::Kind kind = {};  // what inputs are converted to: f32, f64 or i64
  std::vector<ValueId> inputs = {};
  bool truth = false;  // it gives 1 for true and 0 for false
};

/// None for nodes that are left to their kernels: complex numbers, devices, checks of values.
std::optional<Formula> formula_of(const Graph& graph, const Node& node);

}  // namespace tutti::graph
