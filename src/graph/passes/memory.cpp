#include <algorithm>

#include "graph/passes/passes.h"

namespace tutti::graph {
namespace {

struct Life {
  ValueId memory;
  int64_t bytes;
  size_t begin, end;  // nodes; both included
};

std::vector<Life> lives(const Graph& graph) {
  std::vector<size_t> last(graph.values.size());
  std::vector<bool> outside = outside_memories(graph);
  for (size_t k = 0; k < graph.nodes.size(); ++k) {
    for (ValueId v : graph.nodes[k].inputs)
      if (v != kNone) last[at(graph.memory_of(v))] = k;
    for (ValueId v : graph.nodes[k].outputs) last[at(graph.memory_of(v))] = std::max(last[at(graph.memory_of(v))], k);
  }
  for (ValueId v : graph.outputs)
    if (v != kNone) last[at(graph.memory_of(v))] = graph.nodes.size();
  std::vector<Life> list;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    bool own = value.memory == static_cast<ValueId>(v) && value.producer != kNone && !outside[v];
    if (own && value.type.layout == Layout::strided && !value.type.device.is_meta())
      list.push_back({static_cast<ValueId>(v), bytes_of(value.type), at(value.producer), last[v]});
  }
  std::stable_sort(list.begin(), list.end(), [](const Life& a, const Life& b) { return a.begin < b.begin; });
  return list;
}

}  // namespace

// In the order in which memory is needed, each takes the free buffer that fits best, or makes a free one larger.
void plan_memory(Graph& graph) {
  MemoryPlan plan;
  plan.buffer.assign(graph.values.size(), kNone);
  std::vector<size_t> free_from;  // of each buffer: the node after its last use
  for (const Life& life : lives(graph)) {
    plan.without_reuse += life.bytes;
    int32_t best = kNone;
    for (size_t b = 0; b < plan.bytes.size(); ++b) {
      if (free_from[b] > life.begin) continue;
      auto waste = [&](size_t buffer) { return std::abs(plan.bytes[buffer] - life.bytes); };
      if (best == kNone || waste(b) < waste(at(best))) best = static_cast<int32_t>(b);
    }
    if (best == kNone) {
      best = static_cast<int32_t>(plan.bytes.size());
      plan.bytes.push_back(0);
      free_from.push_back(0);
    }
    plan.bytes[at(best)] = std::max(plan.bytes[at(best)], life.bytes);
    free_from[at(best)] = life.end + 1;
    plan.buffer[at(life.memory)] = best;
    plan.lives.push_back({life.memory, best, static_cast<int32_t>(life.begin), static_cast<int32_t>(life.end)});
  }
  for (int64_t b : plan.bytes) plan.peak += b;
  graph.plan = std::move(plan);
}

}  // namespace tutti::graph
