// What is kept between forward and backward: not what can be had again for nothing.
#include <algorithm>
#include <map>
#include <set>

#include "graph/function.h"
#include "graph/passes/passes.h"
#include "pointwise/signature.h"

namespace tutti::graph {
namespace {

// Operators that make floats of integers are those of real numbers (exp, tanh, division): computing such a result costs
// more than reading it.
bool is_costly(const Operator& op) {
  return op.infer != &pointwise::infer ||
         static_cast<const pointwise::PointwiseOperator&>(op).signature.integers_to_float;
}

// A view costs nothing; a simple pointwise operator on values that are kept anyway costs a pass over memory, as reading
// the kept result would, and saves that memory from forward to backward.
class Partition {
 public:
  Partition(const Graph& forward, Graph& backward)
      : forward_(forward), backward_(backward), written_(written_memories(forward)) {
    std::vector<bool> written_back = written_memories(backward);
    for (const Input& in : backward.inputs) {
      if (in.origin != Origin::saved) continue;
      needed_.insert(in.index);
      if (written_back[at(backward.memory_of(in.value))]) written_[at(forward.memory_of(in.index))] = true;
    }
  }

  void run() {
    std::vector<ValueId> again;  // latest first
    for (auto it = needed_.rbegin(); it != needed_.rend();) {
      ValueId v = *it;
      if (!cheap(v)) {
        ++it;
        continue;
      }
      again.push_back(v);
      for (ValueId u : producer(v).inputs)
        if (u != kNone && !is_constant(u)) needed_.insert(u);
      it = std::make_reverse_iterator(needed_.erase(std::next(it).base()));
    }
    if (again.empty()) return;
    std::reverse(again.begin(), again.end());
    rewrite(again);
  }

 private:
  const Node& producer(ValueId v) const { return forward_.nodes[at(forward_.values[at(v)].producer)]; }
  bool is_constant(ValueId v) const {
    const Input* in = forward_.input_of(v);
    return in && in->origin == Origin::constant;
  }
  bool kept_anyway(ValueId v) const { return v == kNone || needed_.count(v) || forward_.input_of(v); }
  bool cheap(ValueId v) const {
    if (forward_.values[at(v)].producer == kNone || written_[at(forward_.memory_of(v))]) return false;
    const Node& n = producer(v);
    if (n.kind != Kind::call || n.has_effect() || n.outputs.size() != 1) return false;
    bool view = n.op->view_of >= 0;
    if (!view && (!n.op->pointwise || is_costly(*n.op))) return false;
    for (ValueId u : n.inputs) {
      if (u == kNone) continue;
      if (written_[at(forward_.memory_of(u))]) return false;
      if (!view && !kept_anyway(u)) return false;
    }
    return true;
  }

  // The nodes that compute values again come first; inputs that they replace go, new ones come.
  void rewrite(const std::vector<ValueId>& again) {
    std::map<ValueId, ValueId> here;  // forward value → value of the backward graph
    for (const Input& in : backward_.inputs)
      if (in.origin == Origin::saved) here.emplace(in.index, in.value);
    std::vector<Node> first;
    for (ValueId v : again) {
      Node n = producer(v);
      n.group = kNone;
      for (ValueId& u : n.inputs)
        if (u != kNone) u = bring(u, here);
      if (!here.count(v)) here[v] = backward_.add_value(forward_.type(v), kNone, kNone);
      ValueId out = here.at(v);
      n.outputs = {out};
      Value& value = backward_.values[at(out)];
      value.producer = static_cast<int32_t>(first.size());
      if (n.op->view_of >= 0) join(out, backward_.memory_of(n.inputs[static_cast<size_t>(n.op->view_of)]));
      std::erase_if(backward_.inputs, [&](const Input& in) { return in.origin == Origin::saved && in.index == v; });
      first.push_back(std::move(n));
    }
    auto shift = static_cast<int32_t>(first.size());
    std::set<ValueId> redone;
    for (ValueId v : again) redone.insert(here.at(v));
    for (size_t v = 0; v < backward_.values.size(); ++v) {
      int32_t& p = backward_.values[v].producer;
      if (p != kNone && !redone.count(static_cast<ValueId>(v))) p += shift;
    }
    for (Node& n : backward_.nodes)
      if (n.kind == Kind::set_version && !n.absolute) n.number += shift;
    backward_.nodes.insert(backward_.nodes.begin(), std::make_move_iterator(first.begin()),
                           std::make_move_iterator(first.end()));
  }
  // The forward value u as a value of the backward graph, made an input where it is none yet.
  ValueId bring(ValueId u, std::map<ValueId, ValueId>& here) {
    if (auto it = here.find(u); it != here.end()) return it->second;
    ValueId v = backward_.add_value(forward_.type(u), kNone, kNone);
    const Input* in = forward_.input_of(u);
    if (in && in->origin == Origin::constant)
      backward_.inputs.push_back({.value = v, .origin = Origin::constant, .tensor = in->tensor});
    else
      backward_.inputs.push_back({.value = v, .origin = Origin::saved, .index = u});
    here.emplace(u, v);
    return v;
  }
  void join(ValueId v, ValueId memory) {
    ValueId old = backward_.memory_of(v);
    for (Value& value : backward_.values)
      if (value.memory == old) value.memory = memory;
  }

  const Graph& forward_;
  Graph& backward_;
  std::vector<bool> written_;  // memories of the forward graph that either graph writes
  std::set<ValueId> needed_;
};

}  // namespace

void recompute(const Graph& forward, Graph& backward) { Partition(forward, backward).run(); }

}  // namespace tutti::graph
