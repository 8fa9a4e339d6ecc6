#include "graph/passes/passes.h"

namespace tutti::graph {

void remove_dead_code(Graph& graph) {
  std::vector<bool> used(graph.values.size()), read(graph.values.size()), keep(graph.nodes.size());
  std::vector<bool> outside = outside_memories(graph);
  auto use = [&](ValueId v) {
    if (v == kNone) return;
    used[at(v)] = true;
    read[at(graph.memory_of(v))] = true;
  };
  for (ValueId v : graph.outputs) use(v);
  for (size_t k = graph.nodes.size(); k-- > 0;) {
    const Node& n = graph.nodes[k];
    bool needed = n.kind > Kind::empty || (n.op && (n.op->random || n.op->collective));
    for (size_t i = 0; i < n.outputs.size(); ++i) {
      size_t memory = at(graph.memory_of(n.outputs[i]));
      needed = needed || used[at(n.outputs[i])] || (n.is_written(i) && (outside[memory] || read[memory]));
    }
    if (!needed) continue;
    keep[k] = true;
    for (ValueId v : n.inputs) use(v);
    for (size_t i = 0; i < n.outputs.size(); ++i)
      if (n.is_written(i)) use(n.outputs[i]);
  }
  // A value that only removed nodes made keeps its number, but nothing makes it.
  for (Value& v : graph.values)
    if (v.producer != kNone && !keep[at(v.producer)]) v.producer = kNone;
  keep_nodes(graph, keep);
  // Inputs that nobody uses are not asked for; arguments keep their places by their index.
  std::erase_if(graph.inputs, [&](const Input& in) {
    bool gradient_of_it = false;
    for (const Input& other : graph.inputs)
      gradient_of_it |= other.origin == Origin::gradient && other.index == in.value;
    return !used[at(in.value)] && !gradient_of_it && (in.origin == Origin::constant || in.origin == Origin::saved);
  });
}

}  // namespace tutti::graph
