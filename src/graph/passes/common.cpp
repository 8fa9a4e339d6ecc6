#include <cstring>
#include <unordered_map>

#include "graph/passes/passes.h"
#include "tensor/impl.h"

namespace tutti::graph {
namespace {

bool same_attributes(const Attributes& a, const Attributes& b) {
  if (!a.data || !b.data) return a.data == b.data;
  return a.type == b.type && a.type->equal(a.data, b.data);
}

bool same_number(const Tensor& a, const Tensor& b) {
  return std::memcmp(impl(a)->data(), impl(b)->data(), size_of(a.dtype())) == 0;
}

// The same number written twice is one constant.
void merge_numbers(Graph& graph) {
  std::vector<const Input*> numbers;
  std::vector<bool> gone(graph.inputs.size());
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Input& in = graph.inputs[i];
    if (in.origin != Origin::constant || !in.tensor.is_number() || in.fresh) continue;
    for (const Input* other : numbers)
      if (graph.type(other->value) == graph.type(in.value) && same_number(other->tensor, in.tensor)) {
        replace_uses(graph, in.value, other->value);
        gone[i] = true;
        break;
      }
    if (!gone[i]) numbers.push_back(&in);
  }
  std::vector<Input> kept;
  for (size_t i = 0; i < gone.size(); ++i)
    if (!gone[i]) kept.push_back(graph.inputs[i]);
  graph.inputs = std::move(kept);
}

}  // namespace

void merge_common(Graph& graph) {
  merge_numbers(graph);
  std::vector<bool> written = written_memories(graph), given_out(graph.values.size()), keep(graph.nodes.size(), true);
  for (ValueId v : graph.outputs)
    if (v != kNone) given_out[at(graph.memory_of(v))] = true;
  auto untouched = [&](ValueId v) { return v == kNone || !written[at(graph.memory_of(v))]; };
  std::unordered_multimap<size_t, size_t> seen;
  for (size_t k = 0; k < graph.nodes.size(); ++k) {
    const Node& n = graph.nodes[k];
    if (n.kind != Kind::call || n.has_effect() || n.op->dynamic_shape) continue;
    bool pure = true;
    size_t hash = std::hash<const void*>()(n.op);
    for (ValueId v : n.inputs) {
      pure = pure && untouched(v);
      hash = hash * 31 + static_cast<size_t>(v + 1);
    }
    for (ValueId v : n.outputs) pure = pure && untouched(v);
    if (!pure) continue;
    auto [begin, end] = seen.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      const Node& first = graph.nodes[it->second];
      bool same = first.op == n.op && first.inputs == n.inputs && same_attributes(first.attributes, n.attributes) &&
                  first.outputs.size() == n.outputs.size();
      // Two results that leave the graph must not become one memory.
      for (size_t i = 0; same && i < n.outputs.size(); ++i)
        same = n.op->view_of >= 0 || !given_out[at(graph.memory_of(n.outputs[i]))];
      if (!same) continue;
      keep[k] = false;
      for (size_t i = 0; i < n.outputs.size(); ++i) {
        graph.values[at(n.outputs[i])].producer = kNone;
        replace_uses(graph, n.outputs[i], first.outputs[i]);
      }
      break;
    }
    if (keep[k]) seen.emplace(hash, k);
  }
  keep_nodes(graph, keep);
}

}  // namespace tutti::graph
