#include "graph/passes/passes.h"

namespace tutti::graph {
namespace {

// Larger ones gain nothing by company, and would begin later.
constexpr int64_t kSmall = 1 << 20;

int64_t bytes_of_inputs(const Graph& graph, const Node& n) {
  int64_t bytes = 0;
  for (ValueId v : n.inputs) bytes += bytes_of(graph.type(v));
  return bytes;
}

bool can_join(const Graph& graph, const Node& a, const Node& b) {
  return a.op == b.op && a.attributes.type == b.attributes.type && !a.writes && !b.writes &&
         a.attributes.type->equal(a.attributes.data, b.attributes.data) &&
         graph.type(a.inputs[0]).dtype == graph.type(b.inputs[0]).dtype &&
         graph.type(a.inputs[0]).device == graph.type(b.inputs[0]).device &&
         bytes_of_inputs(graph, a) + bytes_of_inputs(graph, b) <= kSmall;
}

}  // namespace

// A later all_reduce (what can_join) takes an earlier one along if nobody in between needed its result or changed its
// input, and no other collective came between, whose order on all ranks must stay. Sums are the same bits either way:
// ranks are added in one order whatever the call.
void bucket_collectives(Graph& graph) {
  std::vector<bool> keep(graph.nodes.size(), true);
  int32_t open = kNone;  // the all_reduce that may still move down
  for (size_t k = 0; k < graph.nodes.size(); ++k) {
    Node& n = graph.nodes[k];
    if (n.op && n.op->collective) {
      if (n.op->can_join && open != kNone && can_join(graph, graph.nodes[at(open)], n)) {
        Node& first = graph.nodes[at(open)];
        n.inputs.insert(n.inputs.begin(), first.inputs.begin(), first.inputs.end());
        n.outputs.insert(n.outputs.begin(), first.outputs.begin(), first.outputs.end());
        for (ValueId v : n.outputs) graph.values[at(v)].producer = static_cast<int32_t>(k);
        keep[at(open)] = false;
      }
      open = n.op->can_join ? static_cast<int32_t>(k) : kNone;
      continue;
    }
    if (open == kNone) continue;
    const Node& first = graph.nodes[at(open)];
    bool closes = n.kind > Kind::empty;
    for (ValueId v : n.inputs)
      for (ValueId out : first.outputs) closes = closes || (v != kNone && graph.memory_of(v) == graph.memory_of(out));
    for (size_t i = 0; i < n.outputs.size(); ++i)
      for (ValueId in : first.inputs)
        closes = closes || (n.is_written(i) && graph.memory_of(n.outputs[i]) == graph.memory_of(in));
    if (closes) open = kNone;
  }
  keep_nodes(graph, keep);
}

}  // namespace tutti::graph
