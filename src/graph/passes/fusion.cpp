#include <algorithm>

#include "graph/passes/passes.h"

namespace tutti::graph {
namespace {

// Which nodes a node needs, directly or not: one bit each.
class Ancestors {
 public:
  explicit Ancestors(const Graph& graph) : words_((graph.nodes.size() + 63) / 64) {
    bits_.resize(graph.nodes.size() * words_);
    for (size_t k = 0; k < graph.nodes.size(); ++k)
      for (ValueId v : graph.nodes[k].inputs) {
        int32_t p = v == kNone ? kNone : graph.values[at(v)].producer;
        if (p == kNone) continue;
        for (size_t w = 0; w < words_; ++w) bits_[k * words_ + w] |= bits_[at(p) * words_ + w];
        bits_[k * words_ + at(p) / 64] |= uint64_t{1} << (at(p) % 64);
      }
  }
  bool has(int32_t node, int32_t ancestor) const {
    return bits_[at(node) * words_ + at(ancestor) / 64] >> (at(ancestor) % 64) & 1;
  }

 private:
  size_t words_;
  std::vector<uint64_t> bits_;
};

class Fusion {
 public:
  explicit Fusion(Graph& graph) : graph_(graph), ancestors_(graph), written_(written_memories(graph)) {}

  void run() {
    graph_.groups.clear();
    for (size_t k = 0; k < graph_.nodes.size(); ++k) {
      graph_.nodes[k].group = kNone;
      if (fusible(graph_.nodes[k])) place(static_cast<int32_t>(k));
    }
    drop_single();
    for (size_t g = 0; g < graph_.groups.size(); ++g) find_ends(graph_.groups[g], static_cast<int32_t>(g));
  }

 private:
  bool fusible(const Node& n) const {
    if (!n.op || !(n.op->pointwise || n.op->reduction) || n.has_effect() || n.outputs.size() != 1) return false;
    for (ValueId v : n.inputs)
      if (v != kNone && (written_[at(graph_.memory_of(v))] || graph_.type(v).layout != Layout::strided)) return false;
    return !written_[at(graph_.memory_of(n.outputs[0]))];
  }
  int32_t group_of(ValueId v) const {
    int32_t p = v == kNone ? kNone : graph_.values[at(v)].producer;
    return p == kNone ? kNone : graph_.nodes[at(p)].group;
  }
  // Joining is wrong if something between the group and the node would have to run in the middle of the loop.
  bool may_join(int32_t k, int32_t g) const {
    const Node& n = graph_.nodes[at(k)];
    const FusionGroup& group = graph_.groups[at(g)];
    const Shape& sizes = n.op->reduction ? graph_.type(n.inputs[0]).sizes : graph_.type(n.outputs[0]).sizes;
    if (group.reduces || !(group.sizes == sizes)) return false;
    for (ValueId v : n.inputs) {
      int32_t p = v == kNone ? kNone : graph_.values[at(v)].producer;
      if (p == kNone || graph_.nodes[at(p)].group == g) continue;
      for (int32_t member : group.nodes)
        if (ancestors_.has(p, member)) return false;
    }
    return true;
  }
  void place(int32_t k) {
    Node& n = graph_.nodes[at(k)];
    for (ValueId v : n.inputs) {
      int32_t g = group_of(v);
      if (g == kNone || !may_join(k, g)) continue;
      n.group = g;
      graph_.groups[at(g)].nodes.push_back(k);
      graph_.groups[at(g)].reduces = n.op->reduction;
      return;
    }
    if (n.op->reduction) return;
    n.group = static_cast<int32_t>(graph_.groups.size());
    graph_.groups.push_back({.nodes = {k}, .sizes = graph_.type(n.outputs[0]).sizes});
  }
  void drop_single() {
    std::vector<FusionGroup> kept;
    for (FusionGroup& group : graph_.groups) {
      auto number = group.nodes.size() > 1 ? static_cast<int32_t>(kept.size()) : kNone;
      for (int32_t k : group.nodes) graph_.nodes[at(k)].group = number;
      if (number != kNone) kept.push_back(std::move(group));
    }
    graph_.groups = std::move(kept);
  }
  void find_ends(FusionGroup& group, int32_t g) {
    auto add = [](std::vector<ValueId>& list, ValueId v) {
      if (std::find(list.begin(), list.end(), v) == list.end()) list.push_back(v);
    };
    for (int32_t k : group.nodes)
      for (ValueId v : graph_.nodes[at(k)].inputs)
        if (v != kNone && group_of(v) != g) add(group.inputs, v);
    for (const Node& n : graph_.nodes)
      for (ValueId v : n.inputs)
        if (n.group != g && group_of(v) == g) add(group.outputs, v);
    for (ValueId v : graph_.outputs)
      if (group_of(v) == g) add(group.outputs, v);
  }

  Graph& graph_;
  Ancestors ancestors_;
  std::vector<bool> written_;
};

}  // namespace

void find_groups(Graph& graph) { Fusion(graph).run(); }

}  // namespace tutti::graph
