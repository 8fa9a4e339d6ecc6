// Tracing a function, and what of its run must be known to do the same again.
#include <algorithm>

#include "base/check.h"
#include "graph/function.h"
#include "graph/passes/passes.h"

namespace tutti::graph {
namespace {

using tutti::detail::Invocation;

bool same_edge(const Edge& a, const Edge& b) { return a.node == b.node && (!a.node || a.output == b.output); }

// A view whose base was written since takes its history anew at its next use, and in that order: looking would be a
// use.
bool is_stale_view(const Tensor& t) {
  const TensorImpl* x = impl(t);
  if (!x->base.defined()) return false;
  const AutogradMeta* base = impl(x->base)->autograd;
  return x->base_generation != (base ? base->generation : 0);
}

// Turns a finished run into an entry.
class Describer {
 public:
  Describer(Trace& trace, std::unordered_map<const TensorImpl*, Edge>& before, bool recording)
      : trace_(trace), entry_(*trace.entry), recorder_(*trace.recorder), before_(before), recording_(recording) {}

  void run() {
    for (const auto& leaf : recorder_.leaves()) {
      const Input* in = recorder_.graph().input_of(leaf.value);
      bool is_input = in && find(leaf.tensor) == leaf.value;
      entry_.leaf_inputs.push_back(is_input ? *in : Input{.origin = Origin::constant});
    }
    for (const Tensor& out : trace_.outputs) entry_.results.push_back(describe_result(out));
    std::vector<bool> written = written_memories(recorder_.graph());
    for (Result& r : entry_.results) {
      if (r.kind == Result::view) place_view(r);
      // A view that was written takes its history from its base when it is next used, which is outside.
      if (r.root == kNone || !r.aliases) continue;
      if (written[at(recorder_.graph().memory_of(recorder_.graph().outputs[at(r.index)]))])
        entry_.live = "it returns tensors that share memory it has written";
    }
    entry_.value_count = recorder_.graph().outputs.size();
    entry_.value_roots = trace_.roots.size();
    for (size_t k = 0; k < recorder_.leaves().size(); ++k) {
      if (entry_.leaf_inputs[k].origin != Origin::constant) continue;
      recorder_.output(recorder_.leaves()[k].tensor);
      ++entry_.leaf_count;
    }
    if (recording_) {
      find_mutated();
      find_targets();
    }
    if (recorder_.met_twice()) entry_.live = "it finds, with a gradient of its own, memory of an argument elsewhere";
    entry_.random = recorder_.drew_random();
    for (auto& [value, present] : recorder_.gradients())
      entry_.gradients.emplace_back(*recorder_.graph().input_of(value), present);
    entry_.set_traced(finish_graph(recorder_));
    find_purity();
  }

 private:
  ValueId find(const Tensor& t) const {
    for (const auto& m : recorder_.met())
      if (m.tensor.is_same(t)) return m.value;
    return kNone;
  }
  size_t leaf_of(const Tensor& t) const {
    const auto& leaves = recorder_.leaves();
    return static_cast<size_t>(
        std::find_if(leaves.begin(), leaves.end(), [&](auto& l) { return l.tensor.is_same(t); }) - leaves.begin());
  }

  Result describe_result(const Tensor& out) {
    if (!out.defined()) return {};
    for (size_t i = 0; i < entry_.results.size(); ++i)
      if (trace_.outputs[i].is_same(out)) return {.kind = Result::same, .index = static_cast<int32_t>(i)};
    const Graph& graph = recorder_.graph();
    if (size_t k = leaf_of(out); k < recorder_.leaves().size())
      return {.kind = Result::leaf, .index = static_cast<int32_t>(k)};
    if (ValueId v = find(out); v != kNone) return {.kind = Result::input, .of = *graph.input_of(v)};
    auto index = static_cast<int32_t>(graph.outputs.size());
    ValueId v = recorder_.output(out);
    Result r{.kind = Result::value, .index = index};
    bool several = false;
    find_chain(v, r, several);
    if (r.kind == Result::view) return r;
    if (recording_ && is_stale_view(out)) {
      entry_.live = "it returns a view of memory that it has written";
      return r;
    }
    if (several && recording_ && out.requires_grad())
      entry_.live = "it returns several views that one operator made of an argument";
    if (recording_ && out.requires_grad()) {
      r.root = static_cast<int32_t>(trace_.roots.size());
      trace_.roots.push_back(gradient_edge(out));
    }
    for (const auto& m : recorder_.met()) r.aliases = r.aliases || m.tensor.shares_storage(out);
    for (const Tensor& other : trace_.outputs)
      r.aliases = r.aliases || (!other.is_same(out) && other.shares_storage(out));
    return r;
  }

  // A result that views alone lead to from an input.
  void find_chain(ValueId v, Result& r, bool& several) const {
    const Graph& graph = recorder_.graph();
    std::vector<Node> chain;
    while (graph.values[at(v)].producer != kNone) {
      const Node& n = graph.nodes[at(graph.values[at(v)].producer)];
      if (n.kind != Kind::call || n.op->view_of < 0) return;
      if (n.outputs.size() != 1) {
        several = true;
        return;
      }
      chain.push_back(n);
      v = n.inputs[static_cast<size_t>(n.op->view_of)];
    }
    const Input* in = graph.input_of(v);
    if (!in || in->origin == Origin::constant || in->origin == Origin::saved) return;
    std::reverse(chain.begin(), chain.end());
    r.kind = Result::view;
    r.of = *in;
    r.chain = std::move(chain);
  }

  // Gradients are added in the order of nodes (see Note [Sums of gradients]), so that a view comes before the one node
  // of the function or after it, as it came before or after all other uses of its input. Where it came between, only
  // the function itself gives the same sums.
  void place_view(Result& r) {
    const Graph& graph = recorder_.graph();
    int32_t made = r.made = r.chain.empty() ? 0 : graph.values[at(r.chain[0].outputs[0])].producer;
    const Recorder::Met& of = find_met(r.of.value);
    if (!recording_ || r.chain.empty() || !(of.requires_grad || of.tensor.requires_grad())) return;
    bool before = false, after = false;
    if (written_memories(graph)[at(graph.memory_of(r.of.value))]) before = after = true;
    for (size_t k = 0; k < graph.nodes.size(); ++k) {
      const Node& n = graph.nodes[k];
      if (static_cast<int32_t>(k) == made || n.kind != Kind::call || !n.op->gradient) continue;
      if (std::find(n.inputs.begin(), n.inputs.end(), r.of.value) == n.inputs.end() || begins_view(n)) continue;
      (static_cast<int32_t>(k) < made ? before : after) = true;
    }
    r.early = !before;
    for (const Node& link : r.chain)
      for (const Node& n : graph.nodes) {
        bool next = n.op && n.op->view_of >= 0 && &link != &r.chain.back() && n.outputs == (&link + 1)->outputs;
        bool uses = std::find(n.inputs.begin(), n.inputs.end(), link.outputs[0]) != n.inputs.end();
        if (uses && !next && n.op && n.op->gradient) before = after = true;
      }
    if (before && after)
      entry_.live = "it returns a view of an argument that it also writes, or uses before and after making the view";
  }
  bool begins_view(const Node& n) const {
    return std::any_of(entry_.results.begin(), entry_.results.end(), [&](const Result& r) {
      return r.kind == Result::view && !r.chain.empty() && r.chain[0].outputs == n.outputs;
    });
  }
  const Recorder::Met& find_met(ValueId v) const {
    return *std::find_if(recorder_.met().begin(), recorder_.met().end(), [&](auto& m) { return m.value == v; });
  }

  // Inputs that were written by something with a gradient: their history now ends in this function.
  void find_mutated() {
    for (const auto& m : recorder_.met()) {
      if (leaf_of(m.tensor) < recorder_.leaves().size() || (m.requires_grad && !before_.count(impl(m.tensor))))
        continue;
      if (is_stale_view(m.tensor)) {
        entry_.live = "it writes, with gradients, memory of a view that was made outside";
        continue;
      }
      Edge now = gradient_edge(m.tensor);
      if (same_edge(now, before_[impl(m.tensor)])) continue;
      if (m.tensor.is_view()) {
        entry_.live = "it writes, with gradients, a view that was made outside";
        continue;
      }
      trace_.roots.push_back(now);
      entry_.mutated.push_back(*recorder_.graph().input_of(m.value));
    }
  }

  void find_targets() {
    for (const auto& m : recorder_.met()) {
      bool was_leaf = !before_.count(impl(m.tensor));
      if (!m.requires_grad || (was_leaf && leaf_of(m.tensor) < recorder_.leaves().size())) continue;
      Edge edge = was_leaf ? gradient_edge(m.tensor) : before_[impl(m.tensor)];
      entry_.targets.push_back({.input = *recorder_.graph().input_of(m.value)});
      trace_.targets.push_back(edge);
    }
    for (size_t k = 0; k < recorder_.leaves().size(); ++k) {
      entry_.targets.push_back({.leaf = static_cast<int32_t>(k)});
      trace_.targets.push_back(gradient_edge(recorder_.leaves()[k].tensor));
    }
    count_edges();
  }

  // See Note [Sums of gradients].
  void count_edges() {
    std::unordered_map<const tutti::Node*, bool> seen;
    for (const Edge& e : trace_.targets)
      if (e.node) seen[e.node.get()] = true;
    std::vector<const tutti::Node*> open;
    auto follow = [&](const Edge& edge) {
      for (size_t i = 0; i < trace_.targets.size(); ++i)
        if (same_edge(trace_.targets[i], edge)) {
          ++entry_.targets[i].edges;
          break;  // one tensor under two names is one target
        }
      if (seen.emplace(edge.node.get(), true).second) open.push_back(edge.node.get());
    };
    for (const Edge& root : trace_.roots)
      if (root.node) follow(root);
    while (!open.empty()) {
      const tutti::Node* node = open.back();
      open.pop_back();
      for (const Edge& edge : node->edges)
        if (edge.node) follow(edge);
    }
  }

  void find_purity() {
    auto traced = entry_.traced();
    const Graph& graph = *traced;
    std::vector<bool> outside = outside_memories(graph);
    for (const Node& n : graph.nodes) {
      entry_.pure = entry_.pure && (n.kind <= Kind::empty || n.kind == Kind::version);
      for (size_t i = 0; i < n.outputs.size(); ++i)
        entry_.pure = entry_.pure && !(n.is_written(i) && outside[at(graph.memory_of(n.outputs[i]))]);
    }
  }

  Trace& trace_;
  Entry& entry_;
  Recorder& recorder_;
  std::unordered_map<const TensorImpl*, Edge>& before_;
  bool recording_;
};

}  // namespace

Tensor find_input(const Input& input, const Graph& graph, const TensorList& arguments) {
  switch (input.origin) {
    case Origin::argument:
      return arguments[at(input.index)];
    case Origin::gradient:
      return find_input(*graph.input_of(input.index), graph, arguments).grad();
    default:
      return input.tensor;
  }
}

Graph finish_graph(Recorder& recorder) {
  Graph graph = recorder.graph();
  std::vector<bool> written = written_memories(graph), keep(graph.nodes.size(), true);
  for (Input& in : graph.inputs) in.fresh = in.origin == Origin::constant && written[at(graph.memory_of(in.value))];
  for (size_t k = 0; k < keep.size(); ++k)
    keep[k] = graph.nodes[k].kind != Kind::empty || !graph.nodes[k].outputs.empty();
  keep_nodes(graph, keep);
  return graph;
}

Program make_program(Graph graph, const MakeOptions& options) {
  graph.exact = options.exact;
  optimise(graph);
  Program p;
  p.graph = std::make_shared<const Graph>(std::move(graph));
  p.run = backend(options.backend).compile(p.graph);
  return p;
}

Trace trace_function(const std::string& name, const Invocation& call) {
  Trace trace{.recorder = std::make_shared<Recorder>(name),
              .outputs = {},
              .roots = {},
              .targets = {},
              .entry = std::make_shared<Entry>()};
  trace.entry->name = name;
  bool recording = grad_enabled();
  std::unordered_map<const TensorImpl*, Edge> before;
  trace.recorder->on_input = [&](const Tensor& x) {
    // A leaf's accumulator is numbered when it is made, and gradients are accumulated in that order: it is left to be
    // made where the function itself asks for it.
    if (recording && !x.is_leaf()) before.emplace(impl(x), gradient_edge(x));
  };
  for (size_t i = 0; i < call.tensors.size(); ++i)
    if (call.tensors[i].defined() && !call.tensors[i].is_number()) trace.recorder->argument(call.tensors[i], i);
  {
    TraceGuard tracing(*trace.recorder);
    trace.outputs = call.body(call.tensors);
  }
  for (const auto& o : trace.recorder->outside()) {
    trace.entry->outside.emplace_back(o, o->now());
    if (auto lasting = o->lasting()) trace.entry->lasting.push_back(std::move(lasting));
  }
  Describer(trace, before, recording).run();
  trace.recorder->on_input = nullptr;
  return trace;
}

}  // namespace tutti::graph
