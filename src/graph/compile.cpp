// Compiled functions: guards, and what happens in a call.
#include <algorithm>
#include <set>

#include "base/check.h"
#include "graph/contract.h"
#include "graph/entries.h"
#include "graph/function.h"
#include "graph/keys.h"
#include "graph/leave.h"
#include "graph/passes/passes.h"
#include "graph/symbolic.h"

namespace tutti {
namespace detail {

using graph::CallState;
using graph::CompiledNode;
using graph::CompiledStats;
using graph::Entry;
using graph::Graph;
using graph::Input;
using graph::Origin;
using graph::Result;
using graph::Trace;

class CompiledFunction {
 public:
  explicit CompiledFunction(CompileOptions options)
      : options_(std::move(options)), stats_(std::make_shared<CompiledStats>()), leaver_(options_.name) {
    graph::backend(options_.backend);  // a wrong name is an error here
  }
  // With backward graphs that came after the last call.
  ~CompiledFunction() {
    try {
      leave(true);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "tutti: '%s' could not be shown: %s\n", options_.name.c_str(), e.what());
    }
  }
  CompiledFunction(const CompiledFunction&) = delete;
  CompiledFunction& operator=(const CompiledFunction&) = delete;

  TensorList run(Invocation& call) {
    std::string key = key_of(call);
    std::shared_ptr<Entry> entry = find(key, call);
    std::string why;
    if (!entry && options_.dynamic_batch) entry = fit(key, call, why);
    if (!entry && is_restless()) return run_itself(call);
    bool replays = entry && entry->live.empty() && ready(*entry, call);
    if (Tracer* outer = replays ? tracing() : nullptr)
      for (const auto& o : entry->outside) outer->looked_at(o.first);
    TensorList results = replays ? replay(entry, call) : trace(entry, key, call, why);
    leave();
    return results;
  }

  CompileStats stats() const {
    std::lock_guard lock(stats_->mutex);
    return stats_->numbers;
  }
  graph::Shown show(const PrintOptions& options) {
    graph::Shown shown;
    for_each_program([&](const graph::Program& program) { shown.add(program, options); });
    return shown;
  }
  const std::string& name() const { return options_.name; }
  std::string explain() const;

 private:
  graph::MakeOptions make_options() const { return {options_.backend, options_.exact}; }
  std::string key_of(const Invocation& call, int64_t batch = -1) const {
    std::string key;
    append_context(key);
    append_key(key, call.key.data(), call.key.size());
    for (const Tensor& x : call.tensors) append_tensor(key, x, batch);
    TensorList watched = options_.watch ? options_.watch() : TensorList();
    for (const Tensor& x : watched) {
      const TensorImpl* object = x.impl();
      key.append(reinterpret_cast<const char*>(&object), sizeof object);
    }
    append_sharing(key, call.tensors, watched);
    return key;
  }

  // Guards that are known only once the function has run: what it captured, and which gradients it looked at.
  static bool holds(const Entry& entry, const Invocation& call) {
    for (const auto& c : entry.captured_facts)
      for (const Tensor& x : call.tensors)
        if (x.defined() && x.shares_storage(c.tensor)) return false;
    for (const auto& [what, then] : entry.outside)
      if (what->now() != then) return false;
    auto traced = entry.traced();
    for (const Input& in : traced->inputs) {
      if (in.origin != Origin::captured) continue;
      graph::Type now = graph::type_of(in.tensor);
      now.offset = traced->type(in.value).offset;
      if (!(now == traced->type(in.value))) return false;
    }
    for (auto& [in, present] : entry.gradients)
      if (find_input(in, *traced, call.tensors).grad().defined() != present) return false;
    for (size_t i = 0; i < entry.captured_facts.size(); ++i) {
      const auto& c = entry.captured_facts[i];
      if (c.tensor.requires_grad() != c.requires_grad || readable(impl(c.tensor)) != c.readable) return false;
    }
    return true;
  }

  std::shared_ptr<Entry> find(const std::string& key, const Invocation& call) {
    std::lock_guard lock(mutex_);
    forget_lost();
    forget_unhooked();
    return entries_.find(key, [&](Entry& entry) { return holds(entry, call) && entry.given.fits(call.tensors); });
  }

  // Of tensors that wait for a second trace: see Note [Arguments that are captured].
  void forget_lost() {
    std::erase_if(waiting_, [](auto& waiting) {
      auto entry = waiting.lock();
      if (!entry) return true;
      entry->given.forget_lost();
      std::lock_guard lock(entry->mutex);
      bool all = entry->given.any();
      for (const auto& b : entry->backwards) {
        b->given.forget_lost();
        all = all && b->given.any();
      }
      return all;
    });
  }

  // Note [Hooks that are others each time]
  // A graph has in it what the hooks of modules did. One of hooks that were removed can never be used again, and does
  // not count; but making a graph for every call is no gain where hooks are registered for each anew. So when a few
  // were lost that way, a call that finds no graph runs the function itself, unless the hooks are those that they were
  // in the last such call: they have come to rest.
  void forget_unhooked() {
    auto lost = [](const Entry& entry) {
      return std::any_of(entry.lasting.begin(), entry.lasting.end(), [](const auto& lasts) { return !lasts(); });
    };
    // Whichever rank finds it: each loses its own.
    for (const auto& entry : entries_.forget(lost)) {
      Restless& of = restless_[entry->rank];
      ++of.lost;
      of.last = entry->outside;
    }
  }
  bool is_restless() {
    std::lock_guard lock(mutex_);
    Restless& mine = restless_[context().rank];
    if (mine.lost < kLost) return false;
    bool moved = false;
    for (auto& [what, then] : mine.last) {
      uint64_t now = what->now();
      moved = moved || now != then;
      then = now;
    }
    return moved;
  }
  TensorList run_itself(Invocation& call) {
    {
      std::lock_guard lock(mutex_);
      ++uncompiled_;
      std::lock_guard stats_lock(stats_->mutex);
      ++stats_->numbers.traces;
    }
    return call.body(call.tensors);
  }

  // The entry for a batch size between two that were traced, or `why` not: see Note [Symbolic batch].
  std::shared_ptr<Entry> fit(const std::string& key, const Invocation& call, std::string& why) {
    int64_t batch = batch_of(call);
    if (batch < 0) return nullptr;
    std::shared_ptr<Entry> low, high;
    std::string family = key_of(call, batch);
    graph::Given given;
    {
      std::lock_guard lock(mutex_);
      std::tie(low, high) = entries_.around(family, batch, [&](Entry& entry) { return holds(entry, call); });
      if (!low || !high) return nullptr;
      given = low->given;
      given.also(high->given);
      if (!given.fits(call.tensors)) return nullptr;
    }
    auto entry = fit_entry(*low, *high, call, batch, make_options(), why);
    if (!entry || !ready(*entry, call)) return nullptr;
    entry->given = std::move(given);
    entry->arguments = call.arguments;
    entry->facts = facts_of(call);
    std::lock_guard lock(mutex_);
    entries_.add_fitted(key, entry);
    std::lock_guard stats_lock(stats_->mutex);
    ++stats_->numbers.fitted;
    return entry;
  }

  // Of entries that may have the graph of another batch size: what else the call depends on.
  std::optional<std::string> family_of(const Invocation& call, const Entry& entry) const {
    if (!options_.dynamic_batch || entry.batch < 0 || !entry.live.empty()) return {};
    return key_of(call, entry.batch);
  }

  // Until its backward graph is known, a function that changes others' tensors must run itself: see Note [Backward
  // graphs].
  static bool ready(Entry& entry, const Invocation& call) {
    std::lock_guard lock(entry.mutex);
    return runs_again(entry) || std::any_of(entry.backwards.begin(), entry.backwards.end(),
                                            [&](auto& b) { return b->given.fits(call.tensors); });
  }
  static bool runs_again(const Entry& entry) {
    bool differentiable = entry.value_roots + entry.mutated.size() > 0;
    return !differentiable || entry.pure;
  }
  static bool waits_for_backward(Entry& entry) {
    std::lock_guard lock(entry.mutex);
    return !runs_again(entry) && entry.backwards.empty();
  }

  // Whether the entry is for these arguments, or was found to be by another trace with them.
  static bool serves(Entry& entry, const Entry& traced, const Invocation& call) {
    if (entry.given.fits(call.tensors)) return true;
    if (!same_trace(entry, *entry.at_first, traced)) return false;
    entry.given.also(call.tensors);
    return true;
  }

  // Whether it is the calling rank's first. Another thread may have made the same call meanwhile: its entry serves
  // both.
  bool add_entry(const std::string& key, Invocation& call, Trace& trace, const std::string& why) {
    auto entry = trace.entry;
    entry->arguments = call.arguments;
    entry->result = call.result;
    entry->rest = *call.rest;
    entry->facts = facts_of(call);
    for (const auto& o : entry->outside) entry->facts.push_back(o.first->text());
    entry->batch = batch_of(call);
    std::optional<std::string> family = family_of(call, *entry);  // asks watch(), which may use this function: unlocked
    std::lock_guard lock(mutex_);
    if (auto same = entries_.find(key, [&](Entry& e) { return holds(e, call) && serves(e, *entry, call); })) {
      call.result = same->result;
      trace.entry = same;
      return false;
    }
    if (entry->live.empty()) {
      entry->at_first = entry->traced();
      entry->given = graph::Given(call.tensors, graph::may_bucket(*entry->at_first));
    }
    bool known_form = family && entries_.knows_form(*family, *entry), first = entries_.forms() == 0;
    if (!known_form && entries_.forms() >= options_.limit)
      fail<ValueError>("compile", "'{}' was traced for {} different calls, the limit:\n{}", options_.name,
                       options_.limit, explain_locked());
    if (entry->why.empty()) entry->why = why;
    waiting_.push_back(entry);
    entries_.add_traced(key, family, entry, known_form);
    bool first_of_rank = ranks_.insert(context().rank).second;
    std::lock_guard stats_lock(stats_->mutex);
    if (!known_form) ++stats_->numbers.forward_graphs;
    if (!known_form && !first) ++stats_->numbers.recompilations;
    return first_of_rank;
  }

  TensorList trace(std::shared_ptr<Entry> entry, const std::string& key, Invocation& call, const std::string& why) {
    CallState state = state_for(call);
    Trace trace = graph::trace_function(options_.name, call);
    {
      std::lock_guard lock(stats_->mutex);
      ++stats_->numbers.traces;
    }
    if (entry) {
      call.result = entry->result;
      trace.entry = entry;
    } else {
      note_captured(*trace.entry, *trace.recorder);
      bool first = add_entry(key, call, trace, why);
      if (first && !tracing()) graph::check_contract(*trace.entry->traced());
    }
    if (!trace.entry->live.empty() || trace.roots.empty()) return trace.outputs;
    return attach(std::move(trace), std::move(state), call);
  }

  // Facts of captured tensors as they were when they were met.
  static void note_captured(Entry& entry, const graph::Recorder& recorder) {
    auto traced = entry.traced();
    for (const auto& m : recorder.met()) {
      const Input* in = traced->input_of(m.value);
      if (in && in->origin == Origin::captured) entry.captured_facts.push_back({m.tensor, m.requires_grad, m.readable});
    }
  }

  CallState state_for(const Invocation& call) const {
    CallState state;
    state.stats = stats_;
    state.options = make_options();
    state.call = call;
    for (const Tensor& x : call.tensors) state.versions.push_back(x.defined() ? x.version() : 0);
    state.then = context();
    state.random = generator().state();
    return state;
  }

  // A tensor that was written holds the node in its history, so that the node must not hold the tensor: its memory will
  // do, since a function that writes its arguments is never run again.
  static void let_go(const Entry& entry, const Graph& traced, const Invocation& call, CallState& state) {
    for (const Input& in : entry.mutated) {
      Tensor written = find_input(in, traced, call.tensors);
      for (Tensor& t : state.call.tensors)
        if (t.defined() && !t.is_sparse() && t.shares_storage(written)) t = make_alias(t);
    }
  }

  // A call that ran the function itself: its results get the one node, behind which the function's own nodes are.
  TensorList attach(Trace trace, CallState state, const Invocation& call) {
    std::shared_ptr<Entry> entry = trace.entry;
    state.entry = entry;
    TensorList outputs = trace.outputs;
    auto traced = entry->traced();
    if (!entry->pure) state.call.body = nullptr;
    let_go(*entry, *traced, call, state);
    auto node = make_node<CompiledNode>(std::move(state));
    add_edges(*node, *entry, trace.targets);
    number_compiled(*node, outputs, trace.roots.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Result& r = entry->results[i];
      if (r.kind == Result::value && r.root != graph::kNone) outputs[i] = with_node(outputs[i], *node, r);
    }
    for (const Input& in : entry->mutated) graph::let_go(trace, find_input(in, *traced, call.tensors));
    rebase_mutated(*entry, *traced, call, *node);
    TensorList late = make_views(*entry, *traced, call, false);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Result& r = entry->results[i];
      if (late[i].defined()) outputs[i] = late[i];
      if (r.kind == Result::same) outputs[i] = Tensor(outputs[static_cast<size_t>(r.index)]);
    }
    trace.outputs.clear();
    node->set_live(std::move(trace));
    return outputs;
  }

  // Forward and backward graphs, in the order in which they were made.
  template <class F>
  void for_each_program(F&& f) {
    std::vector<std::shared_ptr<Entry>> entries;
    {
      std::lock_guard lock(mutex_);
      entries = entries_.order();
    }
    for (const auto& entry : entries) {
      f(*forward_of(*entry));
      std::lock_guard lock(entry->mutex);
      for (const auto& backward : entry->backwards) f(backward->program);
    }
  }

  static void rebase_mutated(const Entry& entry, const Graph& traced, const Invocation& call, CompiledNode& node) {
    for (size_t k = 0; k < entry.mutated.size(); ++k)
      rebase_history(find_input(entry.mutated[k], traced, call.tensors), Ref<Node>(&node),
                     static_cast<uint32_t>(entry.value_roots + k));
  }

  static void add_edges(CompiledNode& node, const Entry& entry, const std::vector<Edge>& targets) {
    for (size_t i = 0; i < targets.size(); ++i)
      for (size_t e = 0; e < entry.targets[i].edges; ++e) node.edges.push_back(targets[i]);
  }

  static void number_compiled(CompiledNode& node, const TensorList& outputs, size_t roots) {
    node.outputs = static_cast<uint32_t>(roots);
    node.device = context().device;
    for (const Tensor& t : outputs)
      if (t.defined()) {
        node.device = t.device();
        break;
      }
    number_node(node);
  }

  static Tensor with_node(const Tensor& t, CompiledNode& node, const Result& r) {
    Tensor out = t.detach();
    impl(out)->aliased = r.aliases;
    auto& meta = autograd_meta(out);
    meta.node = Ref<Node>(&node);
    meta.output = static_cast<uint32_t>(r.root);
    return out;
  }

  std::shared_ptr<graph::Program> forward_of(Entry& entry) {
    std::lock_guard lock(entry.mutex);
    if (entry.forward && entry.forward_saves == entry.saved.size()) return entry.forward;
    Graph graph = *entry.traced();
    for (graph::ValueId v : entry.saved)
      graph.outputs.push_back(graph::is_in_blocks(v) ? graph::give_in_blocks(graph, graph::saved_itself(v)) : v);
    entry.forward = std::make_shared<graph::Program>(graph::make_program(std::move(graph), make_options()));
    entry.forward_saves = entry.saved.size();
    return entry.forward;
  }

  TensorList replay(const std::shared_ptr<Entry>& entry, Invocation& call) {
    auto program = forward_of(*entry);
    auto traced = entry->traced();
    call.result = entry->result;
    {
      std::lock_guard lock(stats_->mutex);
      ++stats_->numbers.runs;
    }
    bool differentiable = entry->value_roots + entry->mutated.size() > 0;
    std::optional<CallState> state;
    std::vector<Edge> edges;
    if (differentiable) {
      state = state_for(call);
      state->entry = entry;
      if (!entry->pure) state->call.body = nullptr;
      let_go(*entry, *traced, call, *state);
      for (const auto& target : entry->targets)
        edges.push_back(target.leaf == graph::kNone ? gradient_edge(find_input(target.input, *traced, call.tensors))
                                                    : Edge());
    }
    TensorList views = make_views(*entry, *traced, call, true);
    TensorList inputs;
    for (const Input& in : program->graph->inputs) inputs.push_back(find_input(in, *program->graph, call.tensors));
    TensorList values = program->run->run(std::move(inputs));
    TensorList leaves = make_leaves(*entry, *traced, values, call);
    Ref<CompiledNode> node;
    if (differentiable) node = make_replayed(*entry, std::move(*state), std::move(edges), values, leaves);
    if (node) rebase_mutated(*entry, *traced, call, *node);
    TensorList late = make_views(*entry, *traced, call, false);
    for (size_t i = 0; i < views.size(); ++i)
      if (!views[i].defined()) views[i] = late[i];
    return make_results(*entry, *traced, values, leaves, views, call, node.get());
  }

  static TensorList make_leaves(const Entry& entry, const Graph& traced, const TensorList& values,
                                const Invocation& call) {
    TensorList leaves;
    size_t next = entry.value_count;
    for (const Input& in : entry.leaf_inputs) {
      bool inside = in.origin == Origin::constant;
      leaves.push_back(inside ? values[next++].detach().requires_grad_() : find_input(in, traced, call.tensors));
    }
    return leaves;
  }

  Ref<CompiledNode> make_replayed(const Entry& entry, CallState state, std::vector<Edge> edges,
                                  const TensorList& values, const TensorList& leaves) {
    for (size_t i = 0; i < entry.targets.size(); ++i)
      if (entry.targets[i].leaf != graph::kNone)
        edges[i] = gradient_edge(leaves[static_cast<size_t>(entry.targets[i].leaf)]);
    TensorList saved(values.begin() + static_cast<std::ptrdiff_t>(entry.value_count + entry.leaf_count), values.end());
    auto node = make_node<CompiledNode>(std::move(state));
    add_edges(*node, entry, edges);
    number_compiled(*node, values, entry.value_roots + entry.mutated.size());
    node->set_saved(saved);
    return node;
  }

  // By result; those that are no views, or are made at another time, are undefined.
  static TensorList make_views(const Entry& entry, const Graph& traced, const Invocation& call, bool early) {
    TensorList views(entry.results.size());
    std::vector<size_t> order;
    for (size_t i = 0; i < views.size(); ++i)
      if (entry.results[i].kind == Result::view && entry.results[i].early == early) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return entry.results[a].made < entry.results[b].made; });
    for (size_t i : order) {
      const Result& r = entry.results[i];
      views[i] = make_view(r, find_input(r.of, traced, call.tensors));
    }
    return views;
  }

  TensorList make_results(const Entry& entry, const Graph& traced, const TensorList& values, const TensorList& leaves,
                          const TensorList& views, const Invocation& call, CompiledNode* node) {
    TensorList outputs;
    for (const Result& r : entry.results) {
      auto index = static_cast<size_t>(r.index);
      if (r.kind == Result::undefined)
        outputs.emplace_back();
      else if (r.kind == Result::same)
        outputs.push_back(Tensor(outputs[index]));
      else if (r.kind == Result::input)
        outputs.push_back(find_input(r.of, traced, call.tensors));
      else if (r.kind == Result::leaf)
        outputs.push_back(leaves[index]);
      else if (r.kind == Result::view)
        outputs.push_back(views[outputs.size()]);
      else
        outputs.push_back(node && r.root != graph::kNone ? with_node(values[index], *node, r) : values[index]);
    }
    return outputs;
  }

  static Tensor make_view(const Result& r, Tensor x) {
    for (const graph::Node& n : r.chain) {
      Tensor next;
      const Tensor* input = &x;
      call(*n.op, {&input, 1}, n.attributes, {&next, 1});
      x = next;
    }
    return x;
  }

  std::string explain_locked() const;
  void leave(bool last = false) {
    if (leaver_.wanted())
      leaver_.leave([&](const PrintOptions& o) { return show(o); }, [&] { return explain(); }, last);
  }

  CompileOptions options_;
  std::shared_ptr<CompiledStats> stats_;
  graph::Leaver leaver_;
  mutable std::mutex mutex_;
  graph::Entries entries_;
  std::vector<std::weak_ptr<Entry>> waiting_;  // whose graphs are for some arguments only, as far as is known
  static constexpr int64_t kLost = 4;
  struct Restless {
    int64_t lost = 0;  // graphs of hooks that are gone
    std::vector<std::pair<std::shared_ptr<const Outside>, uint64_t>> last = {};
  };
  std::map<int, Restless> restless_;  // by rank, since all ranks must do the same
  int64_t uncompiled_ = 0;            // calls that ran the function for that
  std::set<int> ranks_;               // that have traced: ranks may be threads that share this object
};

std::string CompiledFunction::explain_locked() const {
  CompileStats numbers = stats();
  const auto& order = entries_.order();
  std::string text = fmt::format("{}: {} graphs, {} calls traced, {} run from graphs\n", options_.name, order.size(),
                                 numbers.traces, numbers.runs);
  if (uncompiled_)
    text += fmt::format("{} calls ran uncompiled: the hooks of modules were others each time\n", uncompiled_);
  if (numbers.fitted) text += fmt::format("{} batch sizes between traced ones were not traced\n", numbers.fitted);
  for (size_t k = 0; k < order.size(); ++k) {
    const Entry& e = *order[k];
    text += fmt::format("graph {}: ", k);
    if (k == 0) {
      text += "the first call\n";
    } else {
      std::string reason;
      const Entry& before = *order[k - 1];
      for (size_t i = 0; i < e.facts.size() && reason.empty(); ++i)
        if (i >= before.facts.size() || e.facts[i] != before.facts[i])
          reason = fmt::format("{} (before: {})", e.facts[i], i < before.facts.size() ? before.facts[i] : "none");
      for (size_t i = 0; i < e.gradients.size() && reason.empty(); ++i)
        if (i < before.gradients.size() && e.gradients[i].second != before.gradients[i].second)
          reason = fmt::format("a tensor {} a gradient now", e.gradients[i].second ? "has" : "has no");
      if (reason.empty())
        reason =
            "a captured tensor, a watched one, an argument that is captured too, or a value that is no tensor is "
            "another";
      text += reason + "\n";
    }
    if (!e.why.empty()) text += fmt::format("  not the graph of another batch size: {}\n", e.why);
    if (!e.live.empty())
      text += fmt::format("  runs uncompiled: {}\n", e.live);
    else if (waits_for_backward(*order[k]))
      text += "  runs uncompiled until its first backward pass: it changes tensors that were made outside\n";
  }
  return text;
}

std::string CompiledFunction::explain() const {
  std::lock_guard lock(mutex_);
  return explain_locked();
}

std::shared_ptr<CompiledFunction> make_compiled(CompileOptions options) {
  return std::make_shared<CompiledFunction>(std::move(options));
}
TensorList run_compiled(CompiledFunction& function, Invocation& call) { return function.run(call); }
CompileStats stats_of(const CompiledFunction& function) { return function.stats(); }
std::vector<std::shared_ptr<const graph::Graph>> graphs_of(CompiledFunction& function) {
  return function.show({.code = false}).graphs;
}
std::string explain(const CompiledFunction& function) { return function.explain(); }

std::string print(CompiledFunction& function, const PrintOptions& options) { return function.show(options).text(); }
std::string html(CompiledFunction& function, const PrintOptions& options) {
  return function.show(options).page(function.name());
}

}  // namespace detail
}  // namespace tutti
