// The backend that generates code: groups of pointwise nodes become loops of their own, the rest runs through
// operators.
#pragma once

#include "graph/backend.h"
#include "graph/backends/native/library.h"

namespace tutti::graph::native {

class NativeBackend final : public Backend {
 public:
  /// ValueError if there are groups and no native code can be had.
  std::unique_ptr<Executable> compile(std::shared_ptr<const Graph> graph) const override;
};

}  // namespace tutti::graph::native
