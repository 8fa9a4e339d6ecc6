// What runs a graph. `eager` calls operators one by one; others may generate code for the groups of a graph and leave
// the rest to kernels. A backend sees graphs that are verified and planned, and nothing of how they came about.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/graph/ir.h"

namespace tutti::graph {

/// Runs node `which` of the backward pass that a graph was captured from. `outputs` that nobody needs any more are its
/// own, to be kept or written.
using Host = std::function<void(int64_t which, TensorList& outputs, TensorList& inputs)>;

class Executable {
 public:
  virtual ~Executable() = default;
  /// `inputs` in the order of the graph's; the results in that of its outputs. Inputs are let go of after their
  /// last use. May be called by several threads.
  virtual TensorList run(TensorList inputs, const Host* host = nullptr) const = 0;
  /// Generated code, where there is some: as LLVM's language, or as the machine's.
  virtual std::string code(bool assembly) const {
    (void)assembly;
    return {};
  }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::unique_ptr<Executable> compile(std::shared_ptr<const Graph> graph) const = 0;
};

/// "native" or "eager"; "": the one that $TUTTI_BACKEND names, else native where it can be had. ValueError for others.
const Backend& backend(const std::string& name);

}  // namespace tutti::graph
