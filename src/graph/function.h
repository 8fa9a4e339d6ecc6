// What is behind a compiled function: entries, each a trace with its guards, its graphs and how results are made.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

#include "autograd/meta.h"
#include "autograd/node.h"
#include "graph/backend.h"
#include "graph/given.h"
#include "graph/record.h"
#include "tutti/compile.h"
#include "tutti/random.h"

namespace tutti::graph {

/// How one tensor of the result comes about.
struct Result {
  enum Kind : uint8_t {
    undefined,
    same,   // as result `index`
    input,  // an argument or captured tensor itself
    leaf,   // number `index` of the leaves made inside
    view,   // a view of an input: made anew with eager's views, so that writing it is felt there
    value,  // output `index` of the graph
  } kind = undefined;
  int32_t index = 0;
  Input of = {};                 // the input
  std::vector<Node> chain = {};  // from the input to the view
  bool early = true;             // the view is made before the graph runs, else after it
  int32_t made = 0;              // the node that begins the chain: views are made in that order
  int32_t root = kNone;          // of a value that requires a gradient: which output of the node it is
  bool aliases = false;          // shares memory with inputs or other results
};

/// Where a gradient goes: to an input, or to a leaf made inside.
///
/// Note [Sums of gradients]
/// Gradients that reach a tensor along several edges are added one after the other, and floating-point sums depend on
/// that order. So a node of a compiled function has as many edges to a target as the function itself would have had,
/// and hands on what comes along each, unadded.
struct Target {
  Input input = {};
  int32_t leaf = kNone;
  size_t edges = 0;
};

/// How programs are made of graphs: what CompileOptions says of it.
struct MakeOptions {
  std::string backend = {};
  bool exact = true;
};

/// A graph and what runs it.
struct Program {
  std::shared_ptr<const Graph> graph;
  std::unique_ptr<Executable> run;
};

/// A backward graph, for gradients of some form.
struct Backward {
  std::string key;
  Graph traced;  // as recorded
  Program program;
  std::vector<std::pair<Input, bool>> gradients;  // guards: whether these have a .grad
  Given given;                                    // the arguments of the function; locked by the entry's mutex
};

/// One trace of the function: everything needed to do the same again.
struct Entry {
  /// Unlike its address, never that of another one.
  const uint64_t id = [] {
    static std::atomic<uint64_t> next = 0;
    return ++next;
  }();
  const int rank = context().rank;  // whose call was traced
  std::string name;
  std::vector<std::string> facts;  // what the guards say, for people
  std::vector<Result> results;
  std::vector<Target> targets;
  std::vector<Input> mutated;                     // inputs whose history ends in the node: its last outputs
  size_t value_roots = 0;                         // outputs of the node that are values
  std::vector<Input> leaf_inputs;                 // of each leaf: the input it is; origin constant: it is made inside
  std::vector<std::pair<Input, bool>> gradients;  // guards: whether these have a .grad
  struct CapturedFact {
    Tensor tensor;
    bool requires_grad, readable;
  };
  std::vector<CapturedFact> captured_facts;
  /// What the function looked at beside tensors, and what it was when the function was done: one that changes it itself
  /// finds it so the next time.
  std::vector<std::pair<std::shared_ptr<const Outside>, uint64_t>> outside;
  std::vector<std::function<bool()>> lasting;     // of each: whether it can still become that
  Given given;                                    // locked by who has the entries
  std::shared_ptr<const Graph> at_first;          // the graph, as it was before backward passes asked for more
  bool random = false, pure = true;               // pure: running again has no effect on anything
  std::string live;                               // why the function itself must run each time; empty: it need not
  std::shared_ptr<const void> arguments, result;  // without their tensors
  std::string rest;                               // what is no tensor of the result
  int64_t batch = -1;                             // of the arguments; -1: none is known
  std::string why;                                // no other batch size's graph would do; empty: one would
  bool is_form = false;                           // counts as a graph of its own: see Entries
  std::mutex mutex;
  std::vector<ValueId> saved;        // values of the forward graph that backward graphs ask for; see saved_in_blocks()
  std::shared_ptr<Program> forward;  // made anew when `saved` grows
  size_t forward_saves = 0;          // how many of `saved` it gives
  std::vector<std::shared_ptr<Backward>> backwards;

  size_t value_count = 0, leaf_count = 0;  // outputs of the graph: values, leaves made inside, then saved ones

  /// As recorded. A backward pass that is traced puts another in its place, with what it asked for, while other threads
  /// run calls by this one: so who looks takes hold of one.
  std::shared_ptr<const Graph> traced() const {
    std::lock_guard lock(traced_mutex_);
    return traced_;
  }
  void set_traced(Graph graph) {
    auto next = std::make_shared<const Graph>(std::move(graph));
    std::lock_guard lock(traced_mutex_);
    traced_.swap(next);  // the old one goes when the lock is gone
  }

 private:
  mutable std::mutex traced_mutex_;  // its own: those who hold `mutex` look, too
  std::shared_ptr<const Graph> traced_ = std::make_shared<const Graph>();
};

/// A run of the function itself under a recorder.
struct Trace {
  std::shared_ptr<Recorder> recorder;
  TensorList outputs;
  std::vector<Edge> roots, targets;
  std::shared_ptr<Entry> entry;
};

/// The tensor that an input of the graph is in this call.
Tensor find_input(const Input& input, const Graph& graph, const TensorList& arguments);

Trace trace_function(const std::string& name, const tutti::detail::Invocation& call);
/// Before `written` (whose history ends in this run) gets the node that holds the run as its history: lets go of it.
/// See Note [Written arguments].
void let_go(Trace& trace, const Tensor& written);
/// Puts the graph of a recorder in order: constants that are written, nodes that became nothing.
Graph finish_graph(Recorder& recorder);
Program make_program(Graph graph, const MakeOptions& options);
/// What tells backward graphs apart: the forms of the gradients that come, null for those that do not.
std::string gradient_key(const std::vector<const Type*>& gradients);
/// Makes the program of a traced backward graph.
void prepare_backward(const Graph& forward, Backward& backward, const MakeOptions& options);
/// Adds it to the entry, with what forward must save for it.
void keep_backward(Entry& entry, std::shared_ptr<Backward> backward);
/// relu's gradient asks for its results in place of its input, where nobody else asks for that.
void ask_for_results(const Graph& forward, Graph& backward);
/// Values that the backward graph can compute again from others it has are not asked for.
void recompute(const Graph& forward, Graph& backward);
/// How backward graphs, and Entry::saved, name the value v of the forward graph when they ask for it with its channels
/// in blocks: see Note [Images in blocks].
inline ValueId saved_in_blocks(ValueId v) { return -2 - v; }
inline bool is_in_blocks(ValueId saved) { return saved < kNone; }
inline ValueId saved_itself(ValueId saved) { return is_in_blocks(saved) ? saved_in_blocks(saved) : saved; }
/// What is kept of forward for this backward graph, beside inputs.
int64_t saved_bytes(const Graph& forward, const Graph& backward);

struct CompiledStats {
  std::mutex mutex;
  CompileStats numbers;
};

/// What a node needs of the call it stands for.
struct CallState {
  std::shared_ptr<Entry> entry;
  std::shared_ptr<CompiledStats> stats;
  MakeOptions options;
  tutti::detail::Invocation call;
  std::vector<uint64_t> versions;  // of the arguments' tensors
  Context then;
  Generator::State random;
};

/// The one node of a compiled function.
class CompiledNode final : public tutti::Node {
 public:
  CompiledNode(CallState state) : state_(std::move(state)), name_("compiled " + state_.entry->name) { keeps = true; }
  std::string name() const override { return name_; }
  void run(GradientBuffer& outputs, GradientBuffer& inputs) override;
  void free_saved() override;
  void free_soon(bool soon) override { last_ = soon; }
  bool signature(std::string& key, TensorList& kept) const override;
  void replace_saved(const Tensor& from, const Tensor& to) override;

  /// Of a call that ran the function itself: its own graph of nodes.
  void set_live(Trace trace) { live_ = std::make_unique<Trace>(std::move(trace)); }
  void set_saved(const TensorList& tensors);

 private:
  void run_live(Trace& trace, GradientBuffer& outputs, GradientBuffer& inputs, bool record);
  void run_graph(const Backward& backward, GradientBuffer& outputs, GradientBuffer& inputs);
  Tensor saved_value(ValueId v) const;
  std::shared_ptr<Backward> find_backward(const GradientBuffer& outputs);
  void add_backward(Trace& trace, const std::shared_ptr<Recorder>& recorder, const GradientBuffer& outputs,
                    const TensorList& results);
  Trace run_again();

  CallState state_;
  std::string name_;
  std::unique_ptr<Trace> live_;
  std::vector<SavedTensor> saved_;
  bool freed_ = false, last_ = false;
};

}  // namespace tutti::graph
