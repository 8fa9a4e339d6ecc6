// What is kept between forward and backward: not what can be had again for less. See Note [What is kept].
#include <algorithm>
#include <map>
#include <set>

#include "graph/flow.h"
#include "graph/function.h"
#include "graph/passes/passes.h"
#include "ops/pool/pool.h"
#include "pointwise/descriptors.h"

namespace tutti::graph {
namespace {

// Operators that make floats of integers are those of real numbers (exp, tanh, division): computing such a result costs
// more than reading it.
bool is_costly(const Operator& op) {
  return static_cast<const pointwise::PointwiseOperator&>(op).signature.integers_to_float;
}

// Note [What is kept]
// Of what backward reads, each value is kept from forward, or computed again from others that are. Both cost: keeping
// is writing memory in forward and reading it in backward; computing again is next to nothing for views and for simple
// pointwise operators that become part of backward's loops, about as much as keeping for exp() and its like, and more
// where others than pointwise operators read it, who want it in memory. Inputs are held anyway. The cheapest choice
// for all values together is a cut of a network: each value is two nodes, before and after being kept, and
//
//   source → before      costs computing it again      (never: products, random numbers, written memory)
//   before → after       costs keeping it
//   after  → before of what is computed from it: never cut, since who is computed again needs what it is made from
//   after  → sink        never cut, of values that backward reads
//
// Values whose "before" is on the sink's side are computed again; those that are cut in two are kept. A result of the
// function is not kept for others that are made from it, if backward itself does not read it: its caller may write it
// before backward, as in eager.
class Partition {
 public:
  Partition(const Graph& forward, Graph& backward)
      : forward_(forward), backward_(backward), written_(written_memories(forward)) {
    std::vector<bool> written_back = written_memories(backward);
    for (const Input& in : backward.inputs) {
      if (in.origin != Origin::saved) continue;
      needed_.insert(in.index);
      if (read_by_others(in.value)) in_memory_.insert(in.index);
      if (written_back[at(backward.memory_of(in.value))]) written_[at(forward.memory_of(in.index))] = true;
    }
    given_.resize(forward.values.size());
    for (ValueId v : forward.outputs)
      if (v != kNone && !forward.input_of(forward.memory_of(v))) given_[at(forward.memory_of(v))] = true;
    for (ValueId v : needed_) given_[at(forward.memory_of(v))] = false;
    // Memory whose views cannot all be made again stays what it is.
    for (size_t v = 0; v < forward.values.size(); ++v) {
      auto id = static_cast<ValueId>(v);
      if (forward.memory_of(id) != id && forward.values[v].producer != kNone && !is_view(producer(id)))
        written_[at(forward.memory_of(id))] = true;
    }
  }

  void run() {
    size_t count = forward_.values.size(), source = 2 * count, sink = source + 1;
    Network network(sink + 1);
    std::vector<bool> met(count);
    std::vector<ValueId> open(needed_.begin(), needed_.end());
    for (ValueId v : open) {
      met[at(v)] = true;
      network.add(2 * at(v) + 1, sink, Network::kNever);
    }
    while (!open.empty()) {
      ValueId v = open.back();
      open.pop_back();
      int64_t again = cost_of_computing(v);
      network.add(source, 2 * at(v), again);
      network.add(2 * at(v), 2 * at(v) + 1, cost_of_keeping(v));
      if (again == Network::kNever) continue;
      for (ValueId u : producer(v).inputs) {
        if (u == kNone || is_constant(u)) continue;
        network.add(2 * at(u) + 1, 2 * at(v), Network::kNever);
        if (!met[at(u)]) open.push_back(u);
        met[at(u)] = true;
      }
    }
    std::vector<bool> kept = network.cut(source, sink);
    std::vector<ValueId> again;
    for (size_t v = 0; v < count; ++v)
      if (met[v] && !kept[2 * v]) again.push_back(static_cast<ValueId>(v));
    if (!again.empty()) rewrite(again);
  }

 private:
  // For each byte of a value.
  static constexpr int64_t kKeeping = 20, kSimple = 4, kCostly = 24, kIntoMemory = 20;

  bool read_by_others(ValueId v) const {
    for (const Node& n : backward_.nodes)
      if (std::find(n.inputs.begin(), n.inputs.end(), v) != n.inputs.end() && !(n.op && n.op->pointwise)) return true;
    return false;
  }
  const Node& producer(ValueId v) const { return forward_.nodes[at(forward_.values[at(v)].producer)]; }
  static bool is_view(const Node& n) {
    return n.outputs.size() == 1 && !n.writes && (n.kind == Kind::alias || (n.op && n.op->view_of >= 0));
  }
  static size_t viewed(const Node& n) { return n.kind == Kind::alias ? 0 : static_cast<size_t>(n.op->view_of); }
  bool is_constant(ValueId v) const {
    const Input* in = forward_.input_of(v);
    return in && in->origin == Origin::constant;
  }
  int64_t bytes(ValueId v) const { return std::max<int64_t>(1, bytes_of(forward_.type(v))); }
  // A view keeps all of its memory.
  int64_t cost_of_keeping(ValueId v) const {
    if (forward_.input_of(v)) return 0;
    if (given_[at(forward_.memory_of(v))]) return Network::kNever;
    return forward_.input_of(forward_.memory_of(v)) ? 2 : kKeeping * bytes(forward_.memory_of(v));
  }
  int64_t cost_of_computing(ValueId v) const {
    if (forward_.values[at(v)].producer == kNone || written_[at(forward_.memory_of(v))]) return Network::kNever;
    const Node& n = producer(v);
    bool view = is_view(n);
    if (!view && (n.kind != Kind::call || n.has_effect() || n.outputs.size() != 1)) return Network::kNever;
    if (!view && !pointwise::has_formula(*n.op)) return Network::kNever;
    for (ValueId u : n.inputs)
      if (u != kNone && written_[at(forward_.memory_of(u))]) return Network::kNever;
    if (view) return 1;
    return (is_costly(*n.op) ? kCostly : kSimple) * bytes(v) + (in_memory_.count(v) ? kIntoMemory * bytes(v) : 0);
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
      join(out, is_view(n) ? backward_.memory_of(n.inputs[viewed(n)]) : out);
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
  std::vector<bool> written_;             // memories of the forward graph that either graph writes
  std::vector<bool> given_;               // and those of results that backward does not read itself
  std::set<ValueId> needed_, in_memory_;  // in memory: read by more than pointwise operators
};

}  // namespace

void recompute(const Graph& forward, Graph& backward) { Partition(forward, backward).run(); }

namespace {

// Note [What relu keeps]
// Where relu gives 0 there is no gradient, and that is where its input is not above 0: its gradient is the same by its
// results, which are mostly kept anyway, for who reads them. Where max_pool alone reads them, each gradient goes to the
// largest of a window, and if that is 0, relu takes it away again: asking the pool's results before does the same on
// images that are smaller, and which are kept anyway, too.
class ReluGradients {
 public:
  ReluGradients(const Graph& forward, Graph& backward)
      : forward_(forward),
        backward_(backward),
        written_(written_memories(forward)),
        written_back_(written_memories(backward)),
        outside_(outside_memories(forward)),
        seen_(outside_) {
    for (ValueId v : forward.outputs)
      if (v != kNone) seen_[at(forward.memory_of(v))] = true;
  }

  void run() {
    for (size_t k = 0; k < backward_.nodes.size(); ++k)
      if (is_gradient(backward_.nodes[k])) ask_before_pool(k);
    std::vector<Input>& inputs = backward_.inputs;
    for (size_t k = 0; k < inputs.size();) {
      if (inputs[k].origin == Origin::saved && !ask_for_results(inputs[k]))
        inputs.erase(inputs.begin() + static_cast<std::ptrdiff_t>(k));  // now, so that none is asked of it
      else
        ++k;
    }
  }

 private:
  static bool is_gradient(const Node& n) { return n.op == &pointwise::relu_operator().gradients[0] && !n.has_effect(); }
  /// Of the forward graph: nobody writes it, in this pass or between the two.
  bool stays(ValueId v) const { return forward_.memory_of(v) == v && !written_[at(v)] && !seen_[at(v)]; }
  bool is_written(ValueId v) const { return written_back_[at(backward_.memory_of(v))]; }
  /// What relu makes of x in the forward graph, if both stay.
  ValueId result_of(ValueId x) const {
    if (written_[at(forward_.memory_of(x))]) return kNone;
    for (const Node& n : forward_.nodes)
      if (n.op == &pointwise::relu_operator() && n.inputs[0] == x && !n.has_effect())
        return stays(n.outputs[0]) && forward_.type(n.outputs[0]) == forward_.type(x) ? n.outputs[0] : kNone;
    return kNone;
  }
  /// The operands that v is in the backward graph, as nodes; an output or a .grad() is none.
  std::vector<const Node*> readers_of(ValueId v) const {
    std::vector<const Node*> readers;
    for (const Node& n : backward_.nodes)
      for (ValueId u : n.inputs)
        if (u == v) readers.push_back(&n);
    return readers;
  }
  /// Nothing but nodes reads v, by this value.
  bool read_by_nodes(ValueId v) const {
    if (backward_.memory_of(v) != v || shared_memories(backward_)[at(v)] != 1 || is_written(v)) return false;
    for (const Input& in : backward_.inputs)
      if (in.origin == Origin::gradient && in.index == v) return false;
    return std::find(backward_.outputs.begin(), backward_.outputs.end(), v) == backward_.outputs.end();
  }
  bool only_relu_asks(ValueId v) const {
    if (!read_by_nodes(v)) return false;
    for (const Node* n : readers_of(v))
      if (!is_gradient(*n) || n->inputs[0] == v) return false;
    return true;
  }
  const Input* saved(ValueId v) const {
    const Input* in = backward_.input_of(v);
    return in && in->origin == Origin::saved ? in : nullptr;
  }
  const Input* asked(ValueId of_forward) const {
    for (const Input& in : backward_.inputs)
      if (in.origin == Origin::saved && in.index == of_forward) return &in;
    return nullptr;
  }

  // relu_gradient(max_pool_backward(g, places), x) becomes max_pool_backward(relu_gradient(g, results), places).
  void ask_before_pool(size_t k) {
    Node& relu = backward_.nodes[k];
    ValueId spread = relu.inputs[0], result = relu.outputs[0];
    int32_t p = backward_.values[at(spread)].producer;
    const Input* x = saved(relu.inputs[1]);
    if (p == kNone || !x || !read_by_nodes(spread) || readers_of(spread).size() != 1) return;
    Node& pool = backward_.nodes[at(p)];
    if (!pool.op || pool.has_effect() || !is_max_pool_gradient(*pool.op, pool.attributes)) return;
    const Input* places = saved(pool.inputs[1]);
    if (!places || is_written(places->value) || is_written(x->value) || is_written(result)) return;
    ValueId y = result_of(x->index);
    int32_t f = forward_.values[at(places->index)].producer;
    if (y == kNone || f == kNone || forward_.nodes[at(f)].has_effect()) return;
    const Node& maxima = forward_.nodes[at(f)];
    if (maxima.outputs.size() != 2 || maxima.outputs[1] != places->index || maxima.inputs[0] != y) return;
    ValueId largest = maxima.outputs[0], g = pool.inputs[0];
    bool fits = stays(largest) && forward_.type(largest) == backward_.type(g) &&
                backward_.type(spread) == backward_.type(result);
    if (!fits || (!asked(largest) && !only_relu_asks(x->value))) return;
    ValueId old = x->value;  // inputs may move below
    if (!asked(largest)) {
      ValueId v = backward_.add_value(forward_.type(largest), kNone, kNone);
      backward_.inputs.push_back({.value = v, .origin = Origin::saved, .index = largest});
      written_back_.push_back(false);
    }
    if (is_written(asked(largest)->value)) return;
    ValueId left = backward_.add_value(backward_.type(g), kNone, p);
    written_back_.push_back(false);
    std::swap(pool.op, relu.op);
    std::swap(pool.attributes, relu.attributes);
    std::swap(pool.owner, relu.owner);
    relu.inputs = {left, pool.inputs[1]};
    pool.inputs = {g, asked(largest)->value};
    pool.outputs = {left};
    backward_.values[at(spread)].producer = kNone;
    if (readers_of(old).empty() && read_by_nodes(old))
      std::erase_if(backward_.inputs, [&](const Input& in) { return in.value == old; });
  }

  // False if another input is now read in its place.
  bool ask_for_results(Input& in) {
    if (outside_[at(forward_.memory_of(in.index))]) return true;
    ValueId y = result_of(in.index);
    if (y == kNone || !only_relu_asks(in.value)) return true;
    const Input* same = asked(y);
    if (!same) {
      in.index = y;
      return true;
    }
    if (is_written(same->value)) return true;
    replace_uses(backward_, in.value, same->value);
    return false;
  }

  const Graph& forward_;
  Graph& backward_;
  std::vector<bool> written_, written_back_;  // by memory
  std::vector<bool> outside_;                 // by memory of the forward graph: an input's
  std::vector<bool> seen_;                    // and a result's
};

}  // namespace

void ask_for_results(const Graph& forward, Graph& backward) {
  auto is_relu = [](const Node& n) { return n.op == &pointwise::relu_operator(); };
  if (std::any_of(forward.nodes.begin(), forward.nodes.end(), is_relu)) ReluGradients(forward, backward).run();
}

int64_t saved_bytes(const Graph& forward, const Graph& backward) {
  std::set<ValueId> memories;
  for (const Input& in : backward.inputs)
    if (in.origin == Origin::saved) memories.insert(forward.memory_of(saved_itself(in.index)));
  int64_t bytes = 0;
  for (ValueId v : memories) bytes += forward.input_of(v) ? 0 : bytes_of(forward.type(v));
  return bytes;
}

}  // namespace tutti::graph
