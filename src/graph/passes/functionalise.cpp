#include "graph/passes/passes.h"

namespace tutti::graph {
namespace {

// Whether the operator, called without a given output, makes just what it would write.
bool makes_the_same(const Graph& graph, const Node& n) {
  auto specs = infer_types(graph, n);
  if (!specs) return false;
  const Type& t = graph.type(n.outputs[0]);
  const TensorSpec& s = (*specs)[0];
  bool contiguous = true;
  int64_t step = 1;
  for (size_t d = t.sizes.size(); d-- > 0; step *= t.sizes[d]) contiguous = contiguous && t.strides[d] == step;
  return s.sizes == t.sizes && s.dtype == t.dtype && t.offset == 0 && (s.strided ? s.strides == t.strides : contiguous);
}

}  // namespace

// Only memory with a single value is taken: where views of it exist, a write is how they learn of the change.
void functionalise(Graph& graph) {
  std::vector<bool> outside = outside_memories(graph);
  std::vector<int> shared = shared_memories(graph);
  for (size_t k = 0; k < graph.nodes.size(); ++k) {
    Node& n = graph.nodes[k];
    if (!n.op || !n.op->pointwise || n.outputs.size() != 1 || !n.is_written(0)) continue;
    ValueId old = n.outputs[0];
    bool own = graph.memory_of(old) == old && graph.values[at(old)].producer != kNone;
    if (!own || outside[at(old)] || shared[at(old)] != 1 || !makes_the_same(graph, n)) continue;
    Type type = graph.type(old);
    type.number = false;
    ValueId fresh = graph.add_value(std::move(type), kNone, static_cast<int32_t>(k));
    outside.push_back(false);
    shared.push_back(1);
    n.outputs[0] = fresh;
    n.writes = 0;
    for (size_t later = k + 1; later < graph.nodes.size(); ++later) {
      for (ValueId& v : graph.nodes[later].inputs)
        if (v == old) v = fresh;
      for (ValueId& v : graph.nodes[later].outputs)
        if (v == old) v = fresh;
    }
    for (ValueId& v : graph.outputs)
      if (v == old) v = fresh;
  }
}

}  // namespace tutti::graph
