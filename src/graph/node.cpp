// Backward of a compiled function. See Note [Backward graphs].
#include <algorithm>

#include "autograd/engine.h"
#include "base/check.h"
#include "graph/contract.h"
#include "graph/function.h"
#include "graph/passes/passes.h"

namespace tutti::graph {
namespace {

// Note [Backward graphs]
// The call that traced the function has its own nodes, hidden behind the one node that its results show. When a
// gradient comes, they run inside a pass of their own, and a second recorder listens: what operators' gradients, hooks
// and custom functions do is the backward graph, and tensors of the forward trace that it uses are what forward has to
// save. Later calls save those, and their node runs the graph.
//
// A node that has neither (the function was called again before the first backward, a gradient of another form came, or
// a gradient of gradients is wanted) runs the function again on its arguments, as checkpoint() does. That needs
// arguments that have not changed and a function without effects on others' tensors; calls of other functions run the
// function itself until there is a backward graph.

std::string key_of(const GradientBuffer& gradients) {
  std::vector<Type> types;
  std::vector<const Type*> list;
  for (const Tensor& g : gradients) types.push_back(g.defined() ? type_of(g) : Type{});
  for (size_t i = 0; i < types.size(); ++i) list.push_back(gradients[i].defined() ? &types[i] : nullptr);
  return gradient_key(list);
}

Tensor find_backward_input(const Input& in, const Graph& graph, const GradientBuffer& outputs,
                           const std::function<Tensor(ValueId)>& saved) {
  switch (in.origin) {
    case Origin::argument:
      return outputs[at(in.index)];
    case Origin::saved:
      return saved(in.index);
    case Origin::gradient:
      return find_backward_input(*graph.input_of(in.index), graph, outputs, saved).grad();
    default:
      return in.tensor;
  }
}

// Note [Written arguments]
// A tensor that the function has written shows the function's node as its history, and that node holds the run with all
// its tensors and nodes: so none of those may hold the tensor, or neither would ever be freed. In the run, another
// handle takes its place, with the same memory and with the history that the tensor had inside. (What holds it beside
// the library, as the closure of a hook, holds it until backward has run.)
void replace_in(Trace& trace, const Tensor& from, const Tensor& to) {
  std::unordered_map<const tutti::Node*, bool> seen;
  for (const Edge& e : trace.targets)
    if (e.node) seen[e.node.get()] = true;  // what is behind them is not of this run
  std::vector<tutti::Node*> open;
  auto follow = [&](tutti::Node* node) {
    if (node && seen.emplace(node, true).second) open.push_back(node);
  };
  for (const Edge& root : trace.roots) follow(root.node.get());
  trace.recorder->for_each_inside([&](const Tensor& t) {
    if (const AutogradMeta* meta = impl(t)->autograd) follow(meta->node.get());
  });
  while (!open.empty()) {
    tutti::Node* node = open.back();
    open.pop_back();
    node->replace_saved(from, to);
    for (const Edge& edge : node->edges) follow(edge.node.get());
  }
  trace.recorder->replace(from, to);
}

// Whether there is one that serves these gradients and arguments: calls before the first backward pass, and other
// threads, trace theirs. See Note [Arguments that are captured].
bool has_backward(Entry& entry, const Backward& backward, const TensorList& arguments) {
  auto same_guard = [](auto& a, auto& b) {
    return a.first.origin == b.first.origin && a.first.index == b.first.index && a.first.value == b.first.value &&
           a.second == b.second;
  };
  return std::any_of(entry.backwards.begin(), entry.backwards.end(), [&](const auto& b) {
    if (b->key != backward.key || !std::equal(b->gradients.begin(), b->gradients.end(), backward.gradients.begin(),
                                              backward.gradients.end(), same_guard))
      return false;
    if (b->given.fits(arguments)) return true;
    if (!same_structure(b->traced, backward.traced)) return false;
    b->given.also(arguments);
    return true;
  });
}

}  // namespace

std::string gradient_key(const std::vector<const Type*>& gradients) {
  std::string key;
  for (const Type* g : gradients)
    key +=
        g ? fmt::format("{}{}{}{}{};", static_cast<int>(g->layout), g->dtype, g->sizes, g->strides, g->device) : "-;";
  return key;
}

void prepare_backward(const Graph& forward, Backward& backward, const MakeOptions& options) {
  Graph graph = backward.traced;
  ask_for_results(forward, graph);
  recompute(forward, graph);
  choose_saved_blocks(forward, graph);
  backward.program = make_program(std::move(graph), options);
}

void keep_backward(Entry& entry, std::shared_ptr<Backward> backward) {
  for (const Input& in : backward->program.graph->inputs)
    if (in.origin == Origin::saved && std::find(entry.saved.begin(), entry.saved.end(), in.index) == entry.saved.end())
      entry.saved.push_back(in.index);
  entry.backwards.push_back(std::move(backward));
}

void let_go(Trace& trace, const Tensor& written) {
  Edge history = gradient_edge(written);
  Tensor inside = make_alias(written);
  auto& meta = autograd_meta(inside);
  meta.node = history.node;
  meta.output = history.output;
  meta.generation = autograd_meta(written).generation;
  replace_in(trace, written, inside);
}

void CompiledNode::set_saved(const TensorList& tensors) {
  for (const Tensor& t : tensors) saved_.emplace_back(make_alias(t), false);
}

void CompiledNode::free_saved() {
  live_.reset();
  for (auto& s : saved_) s.reset();
  state_.call = {};
  // A captured tensor that the function has written is held by the entry, and holds this node as its history.
  state_.entry.reset();
  freed_ = true;
}

void CompiledNode::replace_saved(const Tensor& from, const Tensor& to) {
  for (auto& s : saved_) s.replace(from, to);
  for (Tensor& t : state_.call.tensors)
    if (t.defined() && t.is_same(from)) t = to;
  if (live_) replace_in(*live_, from, to);
}

void CompiledNode::run(GradientBuffer& outputs, GradientBuffer& inputs) {
  if (freed_) freed_already(*this);
  bool create_graph = grad_enabled();
  if (live_) return run_live(*live_, outputs, inputs, !create_graph);
  if (!create_graph)
    if (auto backward = find_backward(outputs)) return run_graph(*backward, outputs, inputs);
  Trace again = run_again();
  run_live(again, outputs, inputs, !create_graph && same_structure(*again.entry->traced(), *state_.entry->traced()));
}

std::shared_ptr<Backward> CompiledNode::find_backward(const GradientBuffer& outputs) {
  std::string key = key_of(outputs);
  std::lock_guard lock(state_.entry->mutex);
  auto traced = state_.entry->traced();
  for (const auto& b : state_.entry->backwards) {
    if (b->key != key || !b->given.fits(state_.call.tensors)) continue;
    const Graph& graph = *b->program.graph;
    bool fits = true;
    for (const Input& in : graph.inputs) {
      if (in.origin != Origin::saved) continue;
      auto& saved = state_.entry->saved;
      auto place = static_cast<size_t>(std::find(saved.begin(), saved.end(), in.index) - saved.begin());
      fits = fits && place < saved_.size();
    }
    auto nothing_saved = [&](ValueId v) { return find_input(*traced->input_of(v), *traced, state_.call.tensors); };
    for (auto& [in, present] : b->gradients)
      fits = fits && find_backward_input(in, graph, outputs, nothing_saved).grad().defined() == present;
    if (fits) return b;
  }
  return nullptr;
}

Tensor CompiledNode::saved_value(ValueId v) const {
  const Entry& entry = *state_.entry;
  auto place = static_cast<size_t>(std::find(entry.saved.begin(), entry.saved.end(), v) - entry.saved.begin());
  Tensor t = saved_[place].unpack(*this);
  // An input is handed on as the object it is, which has a gradient and an identity.
  auto traced = entry.traced();
  const Input* in = traced->input_of(v);
  return in && in->origin != Origin::gradient ? find_input(*in, *traced, state_.call.tensors) : t;
}

bool CompiledNode::signature(std::string& key, TensorList& kept) const {
  if (live_ || freed_) return false;
  const Entry* entry = state_.entry.get();
  std::lock_guard lock(state_.entry->mutex);
  if (entry->backwards.empty()) return false;
  key.append(reinterpret_cast<const char*>(&entry->id), sizeof entry->id);
  // A pass that is captured has one of the backward graphs in it, which may be for some arguments only: see Note
  // [Arguments that are captured].
  bool known = false;
  for (const auto& b : entry->backwards) {
    bool fits = b->given.fits(state_.call.tensors);
    key += fits ? '1' : '0';
    known = known || fits;
  }
  if (!known) return false;
  for (size_t i = 0; i < saved_.size(); ++i) kept.push_back(saved_value(entry->saved[i]));
  return true;
}

void CompiledNode::run_graph(const Backward& backward, GradientBuffer& outputs, GradientBuffer& inputs) {
  const Graph& graph = *backward.program.graph;
  TensorList given;
  auto unpack = [&](ValueId v) { return saved_value(v); };
  {
    std::lock_guard lock(state_.entry->mutex);  // `saved` may grow meanwhile
    for (const Input& in : graph.inputs) given.push_back(find_backward_input(in, graph, outputs, unpack));
  }
  if (last_)
    for (auto& s : saved_) s.reset();  // the graph lets go of them one by one
  TensorList results = backward.program.run->run(std::move(given));
  for (size_t i = 0; i < inputs.size(); ++i)
    if (results[i].defined() && edges[i].node) inputs[i] = results[i];
}

void CompiledNode::run_live(Trace& trace, GradientBuffer& outputs, GradientBuffer& inputs, bool record) {
  GraphTask task({.keep_graph = true, .create_graph = grad_enabled(), .captures_only = false, .add_captures = false});
  for (size_t k = 0; k < trace.roots.size(); ++k)
    if (outputs[k].defined()) task.add_root(trace.roots[k], outputs[k]);
  for (const Edge& edge : trace.targets) task.capture(edge);
  auto recorder = std::make_shared<Recorder>(state_.entry->name + " backward", trace.recorder);
  if (record) {
    for (size_t k = 0; k < outputs.size(); ++k)
      if (outputs[k].defined()) recorder->argument(outputs[k], k);
    TraceGuard tracing(*recorder);
    task.run();
  } else {
    task.run();
  }
  TensorList results;
  for (size_t i = 0; i < trace.targets.size(); ++i)
    for (size_t e = 0; e < state_.entry->targets[i].edges; ++e)
      results.push_back(e < task.arrived(i).size() ? task.arrived(i)[e] : Tensor());
  if (record) add_backward(trace, recorder, outputs, results);
  for (size_t i = 0; i < inputs.size() && i < results.size(); ++i)
    if (edges[i].node) inputs[i] = results[i];
}

void CompiledNode::add_backward(Trace& trace, const std::shared_ptr<Recorder>& recorder, const GradientBuffer& outputs,
                                const TensorList& results) {
  for (const Tensor& t : results) recorder->output(t);
  auto backward = std::make_shared<Backward>();
  backward->key = key_of(outputs);
  backward->traced = finish_graph(*recorder);
  for (auto& [value, present] : recorder->gradients())
    backward->gradients.emplace_back(*backward->traced.input_of(value), present);
  backward->given = Given(state_.call.tensors, may_bucket(backward->traced));
  Entry& entry = *state_.entry;
  // Aliases that backward asked for may have been added to the forward trace.
  Graph forward = finish_graph(*trace.recorder);
  bool first = false;
  {
    std::lock_guard lock(entry.mutex);
    first = entry.backwards.empty();
    if (has_backward(entry, *backward, state_.call.tensors)) return;
  }
  if (first && !tracing()) check_contract(backward->traced);
  prepare_backward(forward, *backward, state_.options);
  int64_t kept = saved_bytes(forward, *backward->program.graph), all = saved_bytes(forward, backward->traced);
  {
    std::lock_guard lock(entry.mutex);
    if (has_backward(entry, *backward, state_.call.tensors)) return;
    forward.outputs = entry.traced()->outputs;
    entry.set_traced(std::move(forward));
    keep_backward(entry, backward);
  }
  std::lock_guard lock(state_.stats->mutex);
  ++state_.stats->numbers.backward_graphs;
  state_.stats->numbers.saved_bytes += kept;
  state_.stats->numbers.spared_bytes += all - kept;
}

Trace CompiledNode::run_again() {
  const Entry& entry = *state_.entry;
  check<GradError>(entry.pure && state_.call.body, "backward",
                   "'{}' changes tensors that were made outside, so it cannot run again, which a gradient of gradients "
                   "(or one of another form than before) needs; differentiate it uncompiled",
                   name());
  for (size_t i = 0; i < state_.call.tensors.size(); ++i)
    if (const Tensor& x = state_.call.tensors[i]; x.defined())
      check<VersionError>(x.version() == state_.versions[i], "backward",
                          "'{}' needs argument {} ({}) as it was, but it was written in place since; clone() it first",
                          name(), i, x);
  Context mine = state_.then;
  mine.modes = (mine.modes & ~uint32_t{kTraceMode}) | (context().modes & kTraceMode);
  mine.tracer = context().tracer;
  mine.threads = context().threads;
  mine.generator = std::make_shared<Generator>();
  mine.generator->set_state(state_.random);
  ContextGuard guard(mine);
  {
    std::lock_guard lock(state_.stats->mutex);
    ++state_.stats->numbers.fallbacks;
  }
  return trace_function(entry.name, state_.call);
}

}  // namespace tutti::graph
