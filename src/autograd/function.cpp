// Custom functions and activation checkpointing.
#include <algorithm>
#include <mutex>
#include <utility>

#include "autograd/engine.h"
#include "autograd/meta.h"
#include "base/check.h"
#include "base/names.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"
#include "tutti/random.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

// The name of a type, without what a reader cannot look up.
std::string readable(const char* type) {
  std::string name = demangle(type);
  constexpr std::string_view nowhere = "(anonymous namespace)::";
  for (size_t at = name.find(nowhere); at != std::string::npos; at = name.find(nowhere)) name.erase(at, nowhere.size());
  return name;
}

class FunctionNode;

}  // namespace

struct FunctionAccess {
  static TensorList& to_save(FunctionBase& f) { return f.to_save_; }
  static TensorList& non_differentiable(FunctionBase& f) { return f.non_differentiable_; }
  static std::vector<bool>& needs(FunctionBase& f) { return f.needs_; }
  static bool accept_undefined(const FunctionBase& f) { return f.accept_undefined_; }
  static void set_node(FunctionBase& f, const Node* node) { f.node_ = node; }
  static const Node* node(const FunctionBase& f) { return f.node_; }
  static std::vector<uint64_t>& versions(FunctionBase& f) { return f.versions_; }
  static TensorList& dirty(FunctionBase& f) { return f.dirty_; }
  static void allow_aliases(FunctionBase& f) { f.allow_aliases_ = true; }
  static bool aliases_allowed(const FunctionBase& f) { return f.allow_aliases_; }
};

namespace {

class FunctionNode final : public Node {
 public:
  struct Info {
    Shape sizes;
    DType dtype;
    Device device;
  };

  FunctionNode(std::shared_ptr<FunctionBase> function, std::string name)
      : function_(std::move(function)), name_(std::move(name)) {
    FunctionAccess::set_node(*function_, this);
    keeps = true;
  }
  ~FunctionNode() override { FunctionAccess::set_node(*function_, nullptr); }
  std::string name() const override { return name_; }

  void run(GradientBuffer& outputs, GradientBuffer& inputs) override {
    if (freed_) freed_already(*this);
    TensorList gradients(outputs.begin(), outputs.end());
    if (!FunctionAccess::accept_undefined(*function_))
      for (size_t i = 0; i < gradients.size(); ++i)
        if (!gradients[i].defined() && is_differentiable(infos_[i].dtype))
          gradients[i] = zeros(infos_[i].sizes, {.dtype = infos_[i].dtype, .device = infos_[i].device});
    TensorList result = function_->run_backward(gradients);
    check<GradError>(result.size() == edges.size(), "backward",
                     "'{}' has {} tensor inputs, but its backward returned {} gradients", name_, edges.size(),
                     result.size());
    for (size_t i = 0; i < result.size(); ++i) {
      if (!result[i].defined() || !edges[i].node) continue;
      check<ShapeError>(
          result[i].sizes() == input_infos_[i].sizes || is_broadcast(input_infos_[i].sizes, result[i].sizes()),
          "backward", "'{}' returned a gradient of shape {} for its input {} of shape {}", name_, result[i].sizes(), i,
          input_infos_[i].sizes);
      if (!(result[i].sizes() == input_infos_[i].sizes)) result[i] = sum_to(result[i], input_infos_[i].sizes);
      if (result[i].dtype() != input_infos_[i].dtype) result[i] = cast(result[i], input_infos_[i].dtype);
      inputs[i] = result[i];
    }
  }

  void free_saved() override {
    for (auto& s : saved_) s.reset();
    freed_ = true;
  }
  void replace_saved(const Tensor& from, const Tensor& to) override {
    for (auto& s : saved_) s.replace(from, to);
  }
  Tensor saved(size_t i) const {
    check<IndexError>(i < saved_.size(), "saved", "'{}' saved {} tensors; there is no number {}", name_, saved_.size(),
                      i);
    return saved_[i].unpack(*this);
  }

  std::vector<Info> infos_, input_infos_;
  std::vector<SavedTensor> saved_;

 private:
  static bool is_broadcast(const Shape& from, const Shape& to) {
    if (from.size() > to.size()) return false;
    for (size_t d = 0; d < from.size(); ++d) {
      int64_t a = from[from.size() - 1 - d], b = to[to.size() - 1 - d];
      if (a != b && a != 1) return false;
    }
    return true;
  }
  std::shared_ptr<FunctionBase> function_;
  std::string name_;
  bool freed_ = false;
};

// The same values under a node of their own.
struct Gate : Function<Gate> {
  Tensor forward(const Tensor& x) {
    FunctionAccess::allow_aliases(*this);  // the other handle is never used again
    return x;
  }
  TensorList backward(const TensorList& gradients) { return gradients; }
};

bool contains(const TensorList& list, const Tensor& x) {
  return std::any_of(list.begin(), list.end(), [&](auto& t) { return t.is_same(x); });
}

// Finds what a checkpointed function uses beside its arguments (a module's parameters): tensors that require gradients
// and were there before. They count as inputs too, so that backward treats them as any others. So do the arguments
// themselves, which the function may also know otherwise: when it runs again, its arguments are others.
class Captured final : public NestedTracer {
 public:
  bool call(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
            std::span<Tensor> outputs) override {
    for (const Tensor* x : inputs) note(*x);
    return outer_ && outer_->call(op, inputs, attributes, outputs);
  }
  void note(const Tensor& x) {
    // A view whose base was written gets a new node when it is asked, which says nothing of its age.
    const bool stale = x.defined() && is_stale_view(impl(x));
    if (!x.defined() || !x.requires_grad()) return;
    const Node* node = x.grad_node();
    const uint64_t number = node ? node->sequence : 0;
    if (grad_enabled() && !stale && number > before_ && number <= last_number()) return;  // made inside
    std::lock_guard lock(mutex_);  // the function may use threads
    if (!contains(found_, x)) found_.push_back(x);
    if (auto* outer = dynamic_cast<Captured*>(outer_)) outer->note(x);
  }
  const TensorList& found() const { return found_; }

 private:
  const uint64_t before_ = last_number();
  std::mutex mutex_;
  TensorList found_;
};

// Runs the function again in backward, with the random numbers and the modes it had, and differentiates that run.
struct Checkpoint : Function<Checkpoint> {
  struct Run {
    std::function<TensorList(const TensorList&)> body;
    size_t count;  // of its inputs; what else it uses is saved after them
    Context then;
    Generator::State random;
    TensorList outputs;  // until they are handed out
    size_t results = 0;
  };
  std::shared_ptr<Run> run;
  size_t total = 0;

  // All that requires gradients is in `inputs`; the function itself has run.
  TensorList forward(const std::shared_ptr<Run>& done, const TensorList& inputs) {
    run = done;
    total = inputs.size();
    for (auto& x : inputs) save(x);
    accept_undefined_gradients();
    run->results = run->outputs.size();
    return std::exchange(run->outputs, {});
  }
  TensorList backward(const TensorList& gradients) {
    bool recording = grad_enabled();
    TensorList inputs, stops;
    for (size_t i = 0; i < run->count; ++i) {
      Tensor x = saved(i);
      // Gradients found here must stop at the inputs: they go on through this node.
      if (needs_gradient(i)) x = recording ? Gate::apply(x) : x.detach().requires_grad_();
      inputs.push_back(x);
      stops.push_back(needs_gradient(i) ? x : Tensor());
    }
    for (size_t i = run->count; i < total; ++i) stops.push_back(saved(i));
    TensorList outputs = again(inputs), roots, root_gradients;
    check<GradError>(outputs.size() == run->results, "checkpoint",
                     "the function gave {} tensors, and {} when backward ran it again: it must do the same both times",
                     run->results, outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    return backward_until(roots, root_gradients, stops, recording);
  }

  // With all that was current in forward, and random numbers of its own: other workers of this backward draw too.
  TensorList again(const TensorList& inputs) {
    Context mine = run->then;
    // Who traced forward may be gone; who traces this pass sees what is done again.
    mine.modes = (mine.modes & ~uint32_t{kTraceMode}) | (context().modes & kTraceMode);
    mine.tracer = context().tracer;
    mine.threads = context().threads;
    mine.generator = std::make_shared<Generator>();
    mine.generator->set_state(run->random);
    ContextGuard guard(mine);
    return run->body(inputs);
  }
};

}  // namespace

namespace {

uint64_t version_of(const Tensor& x) { return x.defined() && impl(x)->storage ? x.version() : 0; }

// An input that forward wrote has a history that nobody knows, unless forward says so and returns it.
void check_written(FunctionBase& function, const char* name, const TensorList& inputs, const TensorList& dirty,
                   const TensorList& outputs) {
  auto& versions = FunctionAccess::versions(function);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (version_of(inputs[i]) == versions[i] && !contains(dirty, inputs[i])) continue;
    check<GradError>(
        contains(dirty, inputs[i]), readable(name).c_str(),
        "forward wrote to its tensor argument {} ({}) in place: say so with mark_dirty(), or clone() it first", i,
        inputs[i]);
    check<GradError>(contains(outputs, inputs[i]), readable(name).c_str(),
                     "tensor argument {} is marked dirty, so forward must return it", i);
    check<GradError>(!grad_enabled() || !is_protected_leaf(impl(inputs[i])), readable(name).c_str(),
                     "tensor argument {} ({}) is (a view of) a leaf that requires a gradient and was written in place; "
                     "clone() it first",
                     i, inputs[i]);
  }
}

// A result in an argument's memory is a view of it: a write to the argument is one to the result.
void view_argument(const Tensor& out, const TensorList& inputs) {
  for (const Tensor& x : inputs) {
    if (!x.defined() || !x.shares_storage(out)) continue;
    const Tensor& base = impl(x)->base.defined() ? impl(x)->base : x;
    impl(out)->base = base;
    impl(out)->base_generation = impl(base)->autograd ? impl(base)->autograd->generation : 0;
    return;
  }
}

}  // namespace

Tensor FunctionBase::saved(size_t i) const {
  check<GradError>(node_ != nullptr, "saved", "is for backward; in forward, use the tensors themselves");
  return static_cast<const FunctionNode*>(node_)->saved(i);
}

void detail::begin_function(FunctionBase& function, const TensorList& inputs) {
  auto& needs = FunctionAccess::needs(function);
  auto& versions = FunctionAccess::versions(function);
  auto* captured = context().modes & kTraceMode ? dynamic_cast<Captured*>(context().tracer) : nullptr;
  for (auto& x : inputs) {
    if (captured) captured->note(x);
    needs.push_back(grad_enabled() && x.defined() && x.requires_grad());
    versions.push_back(version_of(x));
  }
}

TensorList detail::finish_function(std::shared_ptr<FunctionBase> function, const char* name, const TensorList& inputs,
                                   TensorList outputs) {
  auto& needs = FunctionAccess::needs(*function);
  TensorList saved = std::exchange(FunctionAccess::to_save(*function), {});
  TensorList excluded = std::exchange(FunctionAccess::non_differentiable(*function), {});
  TensorList dirty = std::exchange(FunctionAccess::dirty(*function), {});
  check_written(*function, name, inputs, dirty, outputs);
  if (std::find(needs.begin(), needs.end(), true) == needs.end()) return outputs;

  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].defined())
      fail<ValueError>(readable(name).c_str(),
                       "output {} of its forward is undefined: return a tensor, an empty one where there is nothing to "
                       "say",
                       i);

  auto node = make_node<FunctionNode>(function, readable(name));
  node->outputs = static_cast<uint32_t>(outputs.size());
  node->device = outputs.empty() ? context().device : outputs[0].device();
  node->edges.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    node->input_infos_.push_back(inputs[i].defined()
                                     ? FunctionNode::Info{inputs[i].sizes(), inputs[i].dtype(), inputs[i].device()}
                                     : FunctionNode::Info{});
    if (needs[i]) node->edges[i] = gradient_edge(inputs[i]);
  }
  number_node(*node);
  if (context().modes & kAnomalyMode) note_origin(*node);
  TensorList originals = outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor& out = outputs[i];
    node->infos_.push_back({out.sizes(), out.dtype(), out.device()});
    bool differentiable =
        is_differentiable(out.dtype()) &&
        std::none_of(excluded.begin(), excluded.end(), [&](auto& t) { return t.is_same(originals[i]); });
    if (contains(dirty, out)) {
      if (differentiable)
        rebase_history(out, Ref<Node>(node.get()), static_cast<uint32_t>(i));
      else if (is_differentiable(out.dtype()))
        rebase_history(out, {}, 0);
      continue;
    }
    // A fresh handle: forward may have returned an input as it is, whose own history must stay.
    out = out.detach();
    auto shares = [&](auto& x) { return x.defined() && x.shares_storage(out); };
    impl(out)->aliased =
        !FunctionAccess::aliases_allowed(*function) && (std::any_of(inputs.begin(), inputs.end(), shares) ||
                                                        std::count_if(originals.begin(), originals.end(), shares) > 1);
    if (impl(out)->aliased) view_argument(out, inputs);
    if (!differentiable) continue;
    auto& meta = autograd_meta(out);
    meta.node = Ref<Node>(node.get());
    meta.output = static_cast<uint32_t>(i);
  }
  for (auto& t : saved) {
    size_t which = static_cast<size_t>(
        std::find_if(originals.begin(), originals.end(), [&](auto& o) { return o.is_same(t); }) - originals.begin());
    // What forward wrote is the node's result now; as an input it would hold the node that holds it.
    bool is_input = contains(inputs, t) && !contains(dirty, t);
    if (!t.defined())
      node->saved_.emplace_back();
    else if (which < outputs.size() && !is_input)
      node->saved_.emplace_back(outputs[which], true);
    else
      node->saved_.emplace_back(t, false);
  }
  return outputs;
}

TensorList checkpoint(std::function<TensorList(const TensorList&)> f, const TensorList& inputs) {
  if (!grad_enabled()) return f(inputs);
  auto run = std::make_shared<Checkpoint::Run>(
      Checkpoint::Run{std::move(f), inputs.size(), context(), generator().state(), {}});
  std::vector<uint64_t> versions;
  for (auto& x : inputs) versions.push_back(version_of(x));
  Captured captured;
  {
    NoGrad no_grad;
    TraceGuard watching(captured);
    run->outputs = run->body(inputs);
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    check<GradError>(version_of(inputs[i]) == versions[i], "checkpoint",
                     "the function wrote to its argument {} ({}) in place, which backward, running it again, would do "
                     "once more; clone() it inside first",
                     i, inputs[i]);
  TensorList all = inputs;
  all.insert(all.end(), captured.found().begin(), captured.found().end());
  return Checkpoint::apply(run, all);
}
Tensor checkpoint(std::function<Tensor(const Tensor&)> f, const Tensor& input) {
  return checkpoint([f = std::move(f)](const TensorList& xs) { return TensorList{f(xs[0])}; }, TensorList{input})[0];
}

}  // namespace tutti
