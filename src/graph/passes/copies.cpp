#include "graph/passes/passes.h"
#include "tensor/call.h"

namespace tutti::graph {

// `e = empty; e.copy_(v)`, where v is the graph's own, is not given out, and neither is written again: e is v.
// Gradients that are handed to leaves come that way (a tracer holds them, so that no leaf could take one as it is).
void remove_copies(Graph& graph) {
  std::vector<bool> outside = outside_memories(graph), given_out(graph.values.size()), keep(graph.nodes.size(), true);
  std::vector<int> last_write(graph.values.size(), -1), shared = shared_memories(graph);
  for (size_t k = 0; k < graph.nodes.size(); ++k) {
    const Node& n = graph.nodes[k];
    for (size_t i = 0; i < n.outputs.size(); ++i)
      if (n.is_written(i)) last_write[at(graph.memory_of(n.outputs[i]))] = static_cast<int>(k);
    if (n.kind == Kind::resize || n.kind == Kind::set_data) given_out[at(graph.memory_of(n.inputs[0]))] = true;
    if (n.kind == Kind::set_grad && n.inputs[1] != kNone) given_out[at(graph.memory_of(n.inputs[1]))] = true;
  }
  for (ValueId v : graph.outputs)
    if (v != kNone) given_out[at(graph.memory_of(v))] = true;
  for (size_t k = 0; k < graph.nodes.size(); ++k) {
    const Node& n = graph.nodes[k];
    if (n.op != &copy_operator() || n.inputs[0] == kNone) continue;
    ValueId copy = n.outputs[0], from = n.inputs[0], memory = graph.memory_of(from);
    int32_t made = graph.values[at(copy)].producer;
    bool fresh = made != kNone && graph.nodes[at(made)].kind == Kind::empty && shared[at(copy)] == 1 &&
                 graph.memory_of(copy) == copy && last_write[at(copy)] == static_cast<int>(k);
    bool dying = memory == from && graph.values[at(from)].producer != kNone && !outside[at(memory)] &&
                 !given_out[at(memory)] && shared[at(memory)] == 1 && last_write[at(memory)] < static_cast<int>(k);
    if (!fresh || !dying || !(graph.type(copy) == graph.type(from))) continue;
    if (graph.nodes[at(graph.values[at(from)].producer)].kind != Kind::call) continue;
    keep[k] = keep[at(made)] = false;
    graph.values[at(copy)].producer = kNone;
    given_out[at(memory)] = given_out[at(memory)] || given_out[at(copy)];
    replace_uses(graph, copy, from);
  }
  keep_nodes(graph, keep);
}

}  // namespace tutti::graph
