// From a group of pointwise nodes to code: text in LLVM's assembly language.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/isa.h"
#include "graph/backends/native/loop.h"
#include "graph/formula.h"

namespace tutti::graph::native {

/// What one kernel computes.
struct Recipe {
  struct Step {
    Formula formula;
    ValueId value;
  };
  std::vector<Step> steps;
  std::vector<ValueId> inputs, outputs;  // operands of the loop, in this order
};

struct Kernel {
  std::string name;                    // by its text: equal kernels have equal names
  std::string text;                    // of the function
  std::set<std::string> declarations;  // of the primitives it calls
};

Kernel write_kernel(const Graph& graph, const Recipe& recipe, const Loop& loop, Isa isa);
/// Kernels as one module.
std::string write_module(const std::vector<const Kernel*>& kernels);

}  // namespace tutti::graph::native
