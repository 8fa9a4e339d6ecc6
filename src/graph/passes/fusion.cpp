#include <algorithm>
#include <set>

#include "graph/formula.h"
#include "graph/passes/passes.h"
#include "tensor/call.h"

namespace tutti::graph {
namespace {

// Note [Fusion]
// A group runs as one, so seen from outside it is one node: two groups must not need each other, even where none of
// their nodes do. Pointwise nodes are taken in order, and each joins the groups of its inputs that have its shape,
// unless something that is in neither lies on a way between them. Reductions are added to groups at the end: what a
// loop leaves is folded by the reduction's own kernel, in the order that it has in eager. Then nodes are put in an
// order in which groups are together. Effects, and all that touches memory which is written, keep their order among
// each other.
class Fusion {
 public:
  explicit Fusion(Graph& graph) : graph_(graph), written_(written_memories(graph)) {}

  void run() {
    graph_.groups.clear();
    find_order();
    for (Node& n : graph_.nodes) n.group = kNone;
    std::vector<int32_t> reductions;
    for (int32_t k = 0; k < count(); ++k) {
      const Node& n = graph_.nodes[at(k)];
      if (!free(n)) continue;
      if (n.op->reduction)
        reductions.push_back(k);
      else if (!reads_transposed(n) && formula_of(graph_, n))
        place(k);
    }
    for (int32_t k : reductions) add_reduction(k);
    drop_small();
    put_in_order();
    for (size_t g = 0; g < graph_.groups.size(); ++g) find_ends(graph_.groups[g], static_cast<int32_t>(g));
  }

 private:
  static constexpr size_t kMaxNodes = 48, kMaxInputs = 30;  // so that a loop's values fit its registers, more or less

  int32_t count() const { return static_cast<int32_t>(graph_.nodes.size()); }
  Node& node(int32_t k) const { return graph_.nodes[at(k)]; }
  FusionGroup& group(int32_t g) const { return graph_.groups[at(g)]; }

  // ---- What may be moved at all

  bool free(const Node& n) const { return n.op && n.outputs.size() == 1 && !n.has_effect() && !touches_written(n); }
  bool touches_written(const Node& n) const {
    auto touches = [&](ValueId v) { return v != kNone && written_[at(graph_.memory_of(v))]; };
    return std::any_of(n.inputs.begin(), n.inputs.end(), touches) ||
           std::any_of(n.outputs.begin(), n.outputs.end(), touches);
  }
  // A copy that only changes the layout: its kernel does that better.
  bool reads_transposed(const Node& n) const {
    return n.op == &clone_operator() && !(graph_.type(n.inputs[0]).strides == graph_.type(n.outputs[0]).strides);
  }
  // Nodes whose order among each other is fixed: each follows the one before it.
  void find_order() {
    follows_.assign(graph_.nodes.size(), kNone);
    int32_t last = kNone;
    for (int32_t k = 0; k < count(); ++k)
      if (node(k).has_effect() || touches_written(node(k))) follows_[at(k)] = std::exchange(last, k);
  }

  // ---- Units: a group, or a node that is in none

  int32_t unit_of(int32_t k) const { return node(k).group == kNone ? k : count() + node(k).group; }
  template <class F>
  void for_each_member(int32_t unit, F&& f) const {
    if (unit < count()) return f(unit);
    for (int32_t k : group(unit - count()).nodes) f(k);
  }
  template <class F>
  void for_each_needed(int32_t k, F&& f) const {
    for (ValueId v : node(k).inputs)
      if (int32_t p = v == kNone ? kNone : graph_.values[at(v)].producer; p != kNone) f(p);
    if (follows_[at(k)] != kNone) f(follows_[at(k)]);
  }
  // Whether `unit` needs `other` by way of a third.
  bool needs_by_others(int32_t unit, int32_t other) const {
    std::vector<int32_t> stack;
    std::vector<bool> seen(at(count()) + graph_.groups.size());
    auto visit = [&](int32_t u) {
      for_each_member(u, [&](int32_t k) {
        for_each_needed(k, [&](int32_t p) {
          int32_t up = unit_of(p);
          if (up == unit || (u == unit && up == other) || seen[at(up)]) return;
          seen[at(up)] = true;
          stack.push_back(up);
        });
      });
    };
    for (visit(unit); !stack.empty();) {
      int32_t u = stack.back();
      stack.pop_back();
      if (u == other) return true;
      visit(u);
    }
    return false;
  }

  // ---- Groups

  int32_t group_of(ValueId v) const {
    int32_t p = v == kNone ? kNone : graph_.values[at(v)].producer;
    return p == kNone ? kNone : node(p).group;
  }
  bool small_enough(int32_t a, int32_t b) const {
    std::set<ValueId> inputs;
    size_t nodes = 0;
    for (int32_t unit : {a, b})
      for_each_member(unit, [&](int32_t k) {
        ++nodes;
        for (ValueId v : node(k).inputs)
          if (int32_t g = group_of(v); g == kNone || (count() + g != a && count() + g != b)) inputs.insert(v);
      });
    return nodes <= kMaxNodes && inputs.size() <= kMaxInputs;
  }

  void place(int32_t k) {
    const Shape& sizes = graph_.type(node(k).outputs[0]).sizes;
    for (ValueId v : node(k).inputs) {
      int32_t g = group_of(v), own = node(k).group;
      if (g == kNone || g == own || !(group(g).sizes == sizes)) continue;
      int32_t a = unit_of(k), b = count() + g;
      if (!small_enough(a, b) || needs_by_others(a, b) || needs_by_others(b, a)) continue;
      own == kNone ? join(k, g) : merge(own, g);
    }
    if (node(k).group != kNone) return;
    graph_.groups.push_back({.sizes = sizes});
    join(k, static_cast<int32_t>(graph_.groups.size()) - 1);
  }
  void join(int32_t k, int32_t g) {
    node(k).group = g;
    group(g).nodes.push_back(k);
  }
  void merge(int32_t into, int32_t from) {
    for (int32_t k : group(from).nodes) join(k, into);
    group(from).nodes.clear();
    std::sort(group(into).nodes.begin(), group(into).nodes.end());
  }
  void add_reduction(int32_t k) {
    int32_t g = group_of(node(k).inputs[0]);
    if (g == kNone || group(g).reduces || !(group(g).sizes == graph_.type(node(k).inputs[0]).sizes)) return;
    if (needs_by_others(k, count() + g) || needs_by_others(count() + g, k)) return;
    // Something in the group may need it.
    bool needed = false;
    for (int32_t member : group(g).nodes) for_each_needed(member, [&](int32_t p) { needed = needed || p == k; });
    if (needed) return;
    join(k, g);
    group(g).reduces = true;
  }
  void drop_small() {
    std::vector<FusionGroup> kept;
    for (FusionGroup& group : graph_.groups) {
      auto number = group.nodes.size() > 1 ? static_cast<int32_t>(kept.size()) : kNone;
      for (int32_t k : group.nodes) node(k).group = number;
      if (number != kNone) kept.push_back(std::move(group));
    }
    graph_.groups = std::move(kept);
  }

  // ---- Order

  // A group comes where its last node was, or as soon as somebody needs it.
  void put_in_order() {
    std::vector<int32_t> order;
    std::vector<bool> done(at(count()) + graph_.groups.size());
    std::vector<std::pair<int32_t, bool>> stack;  // units; whether what they need is done
    for (int32_t k = 0; k < count(); ++k) {
      int32_t g = node(k).group;
      if (g != kNone && group(g).nodes.back() != k) continue;
      stack.emplace_back(unit_of(k), false);
      while (!stack.empty()) {
        auto [unit, ready] = stack.back();
        stack.pop_back();
        if (done[at(unit)]) continue;
        if (ready) {
          done[at(unit)] = true;
          for_each_member(unit, [&](int32_t member) { order.push_back(member); });
          continue;
        }
        stack.emplace_back(unit, true);
        for_each_member(unit, [&](int32_t member) {
          for_each_needed(member, [&](int32_t p) {
            if (unit_of(p) != unit && !done[at(unit_of(p))]) stack.emplace_back(unit_of(p), false);
          });
        });
      }
    }
    reorder_nodes(graph_, order);
  }

  void find_ends(FusionGroup& group, int32_t g) {
    auto add = [](std::vector<ValueId>& list, ValueId v) {
      if (std::find(list.begin(), list.end(), v) == list.end()) list.push_back(v);
    };
    for (int32_t k : group.nodes)
      for (ValueId v : node(k).inputs)
        if (v != kNone && group_of(v) != g) add(group.inputs, v);
    for (const Node& n : graph_.nodes)
      for (ValueId v : n.inputs)
        if (n.group != g && group_of(v) == g) add(group.outputs, v);
    for (ValueId v : graph_.outputs)
      if (group_of(v) == g) add(group.outputs, v);
  }

  Graph& graph_;
  std::vector<bool> written_;
  std::vector<int32_t> follows_;  // by node: the one that must stay before it
};

}  // namespace

void find_groups(Graph& graph) { Fusion(graph).run(); }

}  // namespace tutti::graph
