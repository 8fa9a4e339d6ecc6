// The backend that runs a graph through operators, and the choice between backends.
#include <atomic>
#include <cstdio>

#include "base/check.h"
#include "graph/backends/native/native.h"
#include "graph/backends/runner.h"

namespace tutti::graph {
namespace {

class EagerBackend final : public Backend {
 public:
  std::unique_ptr<Executable> compile(std::shared_ptr<const Graph> graph) const override {
    return std::make_unique<Runner>(std::move(graph));
  }
};

// Native code where it can be had, which is known only when the first graph comes that could use it.
class BestBackend final : public Backend {
 public:
  std::unique_ptr<Executable> compile(std::shared_ptr<const Graph> graph) const override {
    if (graph->groups.empty() || native::unavailable().empty()) return backend("native").compile(std::move(graph));
    static std::atomic<bool> said = false;
    if (!said.exchange(true))
      std::fprintf(stderr, "tutti: compiled functions run on the backend 'eager'; 'native' is not available:%s\n",
                   native::unavailable().c_str());
    return backend("eager").compile(std::move(graph));
  }
};

}  // namespace

const Backend& backend(const std::string& name) {
  static const EagerBackend eager;
  static const native::NativeBackend native;
  static const BestBackend best;
  if (name == "eager") return eager;
  if (name == "native") return native;
  check<ValueError>(name.empty(), "compile",
                    "there is no backend '{}'; there are: native, eager, and \"\" for the better one that is there",
                    name);
  const char* wish = std::getenv("TUTTI_BACKEND");
  return wish && *wish ? backend(wish) : best;
}

}  // namespace tutti::graph
