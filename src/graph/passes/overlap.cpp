#include <algorithm>

#include "graph/passes/passes.h"

namespace tutti::graph {
namespace {

// Note [Overlap]
// A collective begins where the last of its inputs is ready, and what comes after it runs meanwhile, up to the first
// node that touches a result or writes an input: before that one there is a node `wait`. Collectives keep their order
// among each other, since all ranks must make the same calls in the same order; a rank that traces meanwhile makes the
// same calls too, and waits for each. Fusion groups stay together.
class Overlap {
 public:
  explicit Overlap(Graph& graph) : graph_(graph) {}

  void run() {
    move_up();
    add_waits();
  }

 private:
  const Node& node(int32_t k) const { return graph_.nodes[at(k)]; }
  bool has_memory_of(const std::vector<ValueId>& list, ValueId v) const {
    return std::any_of(list.begin(), list.end(), [&](ValueId other) {
      return v != kNone && other != kNone && graph_.memory_of(other) == graph_.memory_of(v);
    });
  }

  bool can_start(const Node& n) const {
    if (!n.op || !n.op->can_start || n.writes) return false;
    for (const auto* list : {&n.inputs, &n.outputs})
      for (ValueId v : *list)
        if (v == kNone || graph_.type(v).layout != Layout::strided || !graph_.type(v).device.is_cpu()) return false;
    return true;
  }
  bool can_pass(const Node& before, const Node& collective) const {
    if (before.kind > Kind::empty || (before.op && before.op->collective)) return false;
    return std::none_of(before.outputs.begin(), before.outputs.end(),
                        [&](ValueId v) { return has_memory_of(collective.inputs, v); });
  }
  static bool same_group(const Node& a, const Node& b) { return a.group != kNone && a.group == b.group; }

  void move_up() {
    std::vector<int32_t> order(graph_.nodes.size());
    for (size_t k = 0; k < order.size(); ++k) order[k] = static_cast<int32_t>(k);
    for (size_t k = 0; k < order.size(); ++k) {
      int32_t moved = order[k];
      if (!can_start(node(moved))) continue;
      size_t best = k;
      for (size_t p = k; p > 0 && can_pass(node(order[p - 1]), node(moved));) {
        --p;
        if (p == 0 || !same_group(node(order[p - 1]), node(order[p]))) best = p;
      }
      std::rotate(order.begin() + static_cast<std::ptrdiff_t>(best), order.begin() + static_cast<std::ptrdiff_t>(k),
                  order.begin() + static_cast<std::ptrdiff_t>(k) + 1);
    }
    reorder_nodes(graph_, order);
  }

  bool must_wait(const Node& n, const Node& collective) const {
    if (n.kind == Kind::host) return true;
    for (const auto* list : {&n.inputs, &n.outputs})
      for (ValueId v : *list)
        if (has_memory_of(collective.outputs, v)) return true;
    for (size_t i = 0; i < n.outputs.size(); ++i)
      if (n.is_written(i) && has_memory_of(collective.inputs, n.outputs[i])) return true;
    return n.kind > Kind::empty && n.kind != Kind::wait && has_memory_of(collective.inputs, n.inputs[0]);
  }

  void add_waits() {
    size_t count = graph_.nodes.size();
    std::vector<std::vector<int32_t>> before(count + 1);  // by node: waits that come before it
    std::vector<Node> waits;
    for (size_t k = 0; k < count; ++k) {
      Node& n = graph_.nodes[k];
      if (!can_start(n)) continue;
      size_t use = k + 1;
      while (use < count && !must_wait(graph_.nodes[use], n)) ++use;
      while (use < count && use > k + 1 && same_group(graph_.nodes[use - 1], graph_.nodes[use])) --use;
      if (use == k + 1) continue;  // nothing runs meanwhile
      n.starts = true;
      Node wait{.kind = Kind::wait};
      for (const auto* list : {&n.outputs, &n.inputs})
        wait.inputs.insert(wait.inputs.end(), list->begin(), list->end());
      before[use].push_back(static_cast<int32_t>(count + waits.size()));
      waits.push_back(std::move(wait));
    }
    if (waits.empty()) return;
    graph_.nodes.insert(graph_.nodes.end(), std::make_move_iterator(waits.begin()),
                        std::make_move_iterator(waits.end()));
    std::vector<int32_t> order;
    for (size_t k = 0; k <= count; ++k) {
      order.insert(order.end(), before[k].begin(), before[k].end());
      if (k < count) order.push_back(static_cast<int32_t>(k));
    }
    reorder_nodes(graph_, order);
  }

  Graph& graph_;
};

}  // namespace

void overlap_collectives(Graph& graph) { Overlap(graph).run(); }

}  // namespace tutti::graph
