// Whole backward passes as graphs.
#include <algorithm>
#include <optional>

#include "autograd/engine.h"
#include "autograd/meta.h"
#include "base/check.h"
#include "graph/keys.h"
#include "graph/leave.h"
#include "tutti/ops.h"

namespace tutti {

using graph::Graph;
using graph::Input;

// Note [Captured passes]
// A pass is known by its nodes in the order in which the engine takes them, each by its signature, by where its edges
// lead, and by the form of the tensors it keeps. Those tensors, the leaves and the first gradient are the arguments of
// the graph. A node that cannot say what it is (a custom Function, a node or leaf with hooks) is a step of the graph
// that calls the node itself, so hooks may be others each time and see what they would have seen. Hooks on leaves are
// where DDP averages: its collectives begin as gradients come, and the graph runs as an engine's pass does, so that the
// end of it is known (after_backward). Other hooks on leaves may write anything that the pass reads, this time or the
// next (an optimizer that steps there, FSDP's that frees), which needs all nodes where they were: such passes run as
// usual. So do those whose nodes have saved something that was written since: only the node itself knows whether it
// reads that, for these gradients.
namespace {

struct Pass {
  std::vector<Ref<Node>> nodes;  // highest sequence number first
  std::string key;
  TensorList kept;
  std::unordered_map<const Node*, int64_t> hosts;
  bool whole = true;  // nothing in it that only a pass of its own can run
};

std::vector<Ref<Node>> reachable(const Ref<Node>& root) {
  std::vector<Ref<Node>> nodes{root};
  std::unordered_map<const Node*, bool> seen{{root.get(), true}};
  for (size_t k = 0; k < nodes.size(); ++k)
    for (const Edge& edge : nodes[k]->edges)
      if (edge.node && seen.emplace(edge.node.get(), true).second) nodes.push_back(edge.node);
  std::stable_sort(nodes.begin(), nodes.end(), [](auto& a, auto& b) { return a->sequence > b->sequence; });
  return nodes;
}

void append_form(std::string& key, const Tensor& t) {
  key += t.defined() ? fmt::format("{}{}{}{}{}{}", static_cast<int>(t.layout()), t.dtype(), t.sizes(), t.strides(),
                                   t.device(), detail::readable(impl(t)) ? "" : " freed")
                     : "-";
}

// Which of them are one tensor (=), or share memory (~): the graph of such a pass says nothing of others.
void append_sharing(std::string& key, const TensorList& tensors) {
  std::unordered_map<const Storage*, std::vector<size_t>> all;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Storage* memory = tensors[i].defined() ? versioned_storage(impl(tensors[i])) : nullptr;
    if (!memory) continue;
    auto& others = all[memory];
    auto same = std::find_if(others.begin(), others.end(),
                             [&](size_t k) { return graph::type_of(tensors[k]) == graph::type_of(tensors[i]); });
    if (!others.empty())
      key += same == others.end() ? fmt::format(" {}~{}", i, others[0]) : fmt::format(" {}={}", i, *same);
    others.push_back(i);
  }
}

Pass describe_pass(const Ref<Node>& root) {
  Pass pass;
  pass.nodes = reachable(root);
  std::unordered_map<const Node*, size_t> number;
  for (size_t k = 0; k < pass.nodes.size(); ++k) number[pass.nodes[k].get()] = k;
  for (size_t k = 0; k < pass.nodes.size(); ++k) {
    Node& node = *pass.nodes[k];
    size_t before = pass.kept.size();
    bool known = !node.has_hooks() && node.signature(pass.key, pass.kept);
    if (!known) {
      pass.kept.resize(before);
      pass.hosts[&node] = static_cast<int64_t>(k);
      pass.key += "host " + node.name();
      if (auto* leaf = dynamic_cast<AccumulateNode*>(&node)) {
        LeafHooks* hooks = leaf_hooks(leaf->leaf(), false);
        pass.whole = pass.whole && (!hooks || hooks->only_take());
      }
      // A compiled function that has not been differentiated yet is about to be.
      pass.whole = pass.whole && !dynamic_cast<graph::CompiledNode*>(&node);
    }
    for (size_t i = before; i < pass.kept.size(); ++i) append_form(pass.key, pass.kept[i]);
    for (const Edge& edge : node.edges)
      pass.key += edge.node ? fmt::format(" {}:{}", number[edge.node.get()], edge.output) : " -";
    pass.key += '\n';
  }
  return pass;
}

}  // namespace

struct CompiledBackward::State {
  CompileOptions options;
  std::mutex mutex;
  struct Captured {
    graph::Program program;
    std::vector<std::pair<Input, bool>> gradients;
    std::unordered_map<int64_t, std::vector<std::optional<graph::Type>>> gave;  // what hosts gave; none: no gradient
    std::vector<std::string> facts;                                             // what the pass was like, for people
  };
  std::unordered_map<std::string, std::vector<std::shared_ptr<Captured>>> graphs;
  std::vector<std::shared_ptr<Captured>> order;
  CompileStats stats;
  graph::Leaver leaver;

  explicit State(CompileOptions given) : options(std::move(given)), leaver(options.name) {}

  graph::Shown show(const PrintOptions& print) {
    std::lock_guard lock(mutex);
    graph::Shown shown;
    for (const auto& captured : order) shown.add(captured->program, print);
    return shown;
  }

  std::string explain() {
    std::lock_guard lock(mutex);
    return explain_locked();
  }
  std::string explain_locked() const {
    std::string text = fmt::format("{}: {} graphs, {} passes run from graphs, {} run uncompiled\n", options.name,
                                   order.size(), stats.runs, stats.fallbacks);
    for (size_t k = 0; k < order.size(); ++k) {
      std::string reason = k ? "a .grad that was there or not, or who shares memory" : "the first pass";
      for (size_t i = order[k]->facts.size(); k && i-- > 0;) {
        const auto& before = order[k - 1]->facts;
        if (i >= before.size() || order[k]->facts[i] != before[i])
          reason = fmt::format("{} (before: {})", order[k]->facts[i], i < before.size() ? before[i] : "none");
      }
      text += fmt::format("graph {}: {}\n", k, reason);
    }
    return text;
  }
  // Before a pass that has no graph yet.
  void check_limit() {
    std::lock_guard lock(mutex);
    if (static_cast<int64_t>(order.size()) < options.limit) return;
    fail<ValueError>("CompiledBackward",
                     "'{}' was captured for {} different passes, the limit; nothing was run:\n{}Where sizes keep "
                     "changing, call backward() itself, or raise CompileOptions::limit",
                     options.name, options.limit, explain_locked());
  }

  void forget(const std::string& key) {
    std::lock_guard lock(mutex);
    auto it = graphs.find(key);
    if (it == graphs.end()) return;
    for (const auto& captured : it->second) std::erase(order, captured);
    graphs.erase(it);
  }
  std::shared_ptr<Captured> find(const std::string& key, const TensorList& arguments) {
    std::lock_guard lock(mutex);
    auto it = graphs.find(key);
    if (it == graphs.end()) return nullptr;
    for (auto& c : it->second) {
      bool fits = true;
      for (auto& [in, present] : c->gradients)
        fits = fits && find_input(in, *c->program.graph, arguments).grad().defined() == present;
      if (fits) return c;
    }
    return nullptr;
  }
};

CompiledBackward::CompiledBackward(CompileOptions options) {
  if (options.name == "function") options.name = "backward";
  graph::backend(options.backend);
  state_ = std::make_shared<State>(std::move(options));
}

void CompiledBackward::operator()(const Tensor& root, const Tensor& gradient) const {
  check<GradError>(root.defined() && root.requires_grad(), "CompiledBackward", "{} does not require a gradient", root);
  Edge edge = gradient_edge(root);
  Pass pass;
  try {
    pass = describe_pass(edge.node);
  } catch (const VersionError&) {
    pass.whole = false;
  }
  bool plain = pass.whole && !(context().modes & (kTraceMode | kAnomalyMode));
  for (const auto& node : pass.nodes) plain = plain && node->device == pass.nodes[0]->device;
  if (!plain) {
    root.backward(gradient);
    std::lock_guard lock(state_->mutex);
    ++state_->stats.fallbacks;
    return;
  }
  check<GradError>(gradient.defined() || root.numel() == 1, "CompiledBackward",
                   "{} is not a scalar: pass the gradient to start from", root);
  TensorList arguments{gradient.defined() ? gradient.detach() : ones_like(root).detach()};
  check_replacement("CompiledBackward", arguments[0], root);
  arguments.insert(arguments.end(), pass.kept.begin(), pass.kept.end());
  append_form(pass.key, arguments[0]);
  append_sharing(pass.key, arguments);
  pass.key += fmt::format(" {} {}", edge.output, static_cast<const void*>(context().sink));

  uint32_t autocast = context().modes & kAutocastMode;
  if (auto captured = state_->find(pass.key, arguments)) {
    graph::Host host = [&](int64_t which, TensorList& outputs, TensorList& inputs) {
      GradientBuffer out(outputs.size()), in(inputs.size());
      for (size_t i = 0; i < outputs.size(); ++i) out[i] = std::move(outputs[i]);
      Node& node = *pass.nodes[static_cast<size_t>(which)];
      {
        ModeGuard modes(autocast, 0);
        run_node(node, out, in);
      }
      const auto& gave = captured->gave.at(which);
      for (size_t i = 0; i < inputs.size(); ++i) {
        inputs[i] = in[i];
        if (in[i].defined() == gave[i].has_value()) continue;
        if (in[i].defined()) {
          state_->forget(pass.key);
          fail<GradError>(
              "CompiledBackward",
              "'{}' gives a gradient for its input {} where it gave none when this pass was captured, so what "
              "follows is not in the graph (leaves that come before may have got theirs): run passes that "
              "differ so by backward()",
              node.name(), i);
        }
        inputs[i] = zeros(gave[i]->sizes, {.dtype = gave[i]->dtype, .device = gave[i]->device});
      }
    };
    TensorList given;
    for (const Input& in : captured->program.graph->inputs)
      given.push_back(find_input(in, *captured->program.graph, arguments));
    GraphTask({}).run_instead([&] {
      captured->program.run->run(std::move(given), &host);
      for (auto& node : pass.nodes) node->free_saved();
    });
    std::lock_guard lock(state_->mutex);
    ++state_->stats.runs;
    return;
  }

  state_->check_limit();
  auto captured = std::make_shared<State::Captured>();
  captured->facts.push_back(fmt::format("{} nodes", pass.nodes.size()));
  for (size_t i = 0; i < arguments.size(); ++i)
    captured->facts.push_back(
        fmt::format("{}: {}", i ? fmt::format("tensor {} that nodes have saved", i - 1) : "the root's gradient",
                    arguments[i].defined() ? describe(arguments[i]) : "undefined"));
  graph::Recorder recorder(state_->options.name);
  recorder.hosts = std::move(pass.hosts);
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].defined() && !arguments[i].is_number()) recorder.argument(arguments[i], i);
  GraphTask({}).run_instead([&] {  // what is done at the end of a pass is not traced
    TraceGuard tracing(recorder);
    GraphTask task({});
    task.add_root(edge, arguments[0]);
    task.run();
  });
  Graph graph = finish_graph(recorder);
  captured->gave = std::move(recorder.gave);
  for (auto& [value, present] : recorder.gradients()) captured->gradients.emplace_back(*graph.input_of(value), present);
  captured->program = graph::make_program(std::move(graph), {state_->options.backend, state_->options.exact});
  {
    std::lock_guard lock(state_->mutex);
    state_->graphs[pass.key].push_back(captured);
    state_->order.push_back(captured);
    ++state_->stats.traces;
    ++state_->stats.backward_graphs;
  }
  state_->leaver.leave([&](const PrintOptions& o) { return state_->show(o); }, [&] { return state_->explain(); });
}

int64_t CompiledBackward::graph_count() const { return static_cast<int64_t>(graphs().size()); }
std::vector<std::shared_ptr<const Graph>> CompiledBackward::graphs() const {
  return state_->show({.code = false}).graphs;
}
std::string CompiledBackward::explain() const { return state_->explain(); }
std::string CompiledBackward::print(PrintOptions options) const { return state_->show(options).text(); }
std::string CompiledBackward::html(PrintOptions options) const {
  return state_->show(options).page(state_->options.name);
}
CompileStats CompiledBackward::stats() const {
  std::lock_guard lock(state_->mutex);
  return state_->stats;
}

}  // namespace tutti
