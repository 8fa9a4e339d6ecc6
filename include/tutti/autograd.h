// Autograd: gradients of any order by the graph of nodes that call() builds.
#pragma once

#include <any>
#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/context.h"
#include "tutti/tensor.h"

namespace tutti {

// ---- Asking for gradients

/// Accumulates the gradients of all leaves into the gradient sink. Undefined gradients stand for 1 (scalars only).
void backward(const TensorList& outputs, const TensorList& gradients = {}, BackwardOptions options = {});

struct GradOptions {
  bool retain_graph = false;
  bool create_graph = false;
  bool allow_unused = false;  // inputs that do not matter give undefined tensors, not an error
};
/// The gradients of outputs with respect to inputs, returned instead of accumulated.
TensorList grad(const TensorList& outputs, const TensorList& inputs, const GradOptions& options = {},
                const TensorList& gradients = {});
/// Of one tensor by one: grad(loss, w). A template so that grad({loss}, {w}) stays a list.
template <std::derived_from<Tensor> T, std::derived_from<Tensor> U>
Tensor grad(const T& output, const U& input, const GradOptions& options = {}, const Tensor& gradient = {}) {
  return grad(TensorList{output}, TensorList{input}, options, TensorList{gradient})[0];
}

// ---- Where leaf gradients go

/// Receives the gradient of each leaf. The default sink adds to `.grad`; a distributed-autograd context has its own.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  virtual void accumulate(const Tensor& leaf, Tensor gradient) = 0;
  /// What has been accumulated for this leaf so far; undefined if nothing.
  virtual Tensor gradient(const Tensor& leaf) = 0;
  virtual void set_gradient(const Tensor& leaf, Tensor gradient) = 0;
};
/// The current sink: the context's, or the default one.
GradientSink& gradient_sink();
class [[nodiscard]] SinkGuard {
 public:
  [[nodiscard]] explicit SinkGuard(GradientSink& sink) : saved_(context().sink) { context().sink = &sink; }
  ~SinkGuard() { context().sink = saved_; }
  SinkGuard(const SinkGuard&) = delete;
  SinkGuard& operator=(const SinkGuard&) = delete;

 private:
  GradientSink* saved_;
};

// ---- Nodes, for hooks

using Gradients = std::vector<Tensor>;
/// What a node is called: the operator's name, or "accumulate" for a leaf.
std::string node_name(const Node& node);
/// Before: may change the gradients that arrive for the node's outputs.
HookHandle register_pre_hook(Node& node, std::function<void(Gradients& outputs)> hook);
/// After: may change the gradients the node found for its inputs.
HookHandle register_post_hook(Node& node, std::function<void(Gradients& inputs, const Gradients& outputs)> hook);
/// The nodes that take this node's results further towards the leaves; null where no gradient flows.
std::vector<Node*> next_nodes(const Node& node);

// ---- Custom functions

/// struct Cube : Function<Cube> {
///   double scale;                                                      // any state is a plain member
///   Tensor forward(const Tensor& x, double s) { scale = s; save(x); return x * x * x * s; }
///   TensorList backward(const TensorList& g) { auto x = saved(0); return {g[0] * 3 * x * x * scale}; }
/// };
/// Tensor y = Cube::apply(x, 2.0);
///
/// `forward` runs without recording; `backward` returns a gradient for each tensor argument in order (or an undefined
/// tensor), and is itself recorded when gradients of gradients are asked for. A TensorList argument counts as its
/// tensors, an optional one as a tensor that may be undefined. Passes in several threads may run one `backward` at
/// once.
class FunctionBase {
 public:
  virtual ~FunctionBase() = default;
  virtual TensorList run_backward(const TensorList& gradients) = 0;

 protected:
  /// Keeps tensors for backward: checked against in-place changes, freed with the graph.
  template <class... T>
  void save(const T&... tensors) {
    (to_save_.push_back(tensors), ...);
  }
  /// The i-th saved tensor; in backward.
  Tensor saved(size_t i) const;
  /// Whether anyone wants the gradient of the i-th tensor argument.
  bool needs_gradient(size_t i) const { return i < needs_.size() && needs_[i]; }
  /// These outputs carry no gradient (indices, masks).
  void mark_non_differentiable(const Tensor& output) { non_differentiable_.push_back(output); }
  /// This tensor argument was written in place. forward must return it.
  void mark_dirty(const Tensor& input) { dirty_.push_back(input); }
  /// Missing output gradients reach backward as undefined tensors instead of zeros.
  void accept_undefined_gradients() { accept_undefined_ = true; }

 private:
  friend struct FunctionAccess;
  TensorList to_save_, non_differentiable_, dirty_;
  std::vector<bool> needs_;
  std::vector<uint64_t> versions_;  // of the tensor arguments, before forward
  bool accept_undefined_ = false;
  bool allow_aliases_ = false;
  const Node* node_ = nullptr;
};

namespace detail {
/// Attaches a node for a custom function; returns outputs that carry it.
TensorList finish_function(std::shared_ptr<FunctionBase> function, const char* name, const TensorList& inputs,
                           TensorList outputs);
void begin_function(FunctionBase& function, const TensorList& inputs);
// What counts as a tensor argument: tensors, parameters, lists of them, and optional ones. Numbers do not.
template <class T>
void collect(TensorList& list, const T& x) {
  if constexpr (std::derived_from<T, Tensor>) {
    list.push_back(x);
  } else if constexpr (requires { requires std::derived_from<typename T::value_type, Tensor>; }) {
    if constexpr (requires { x.has_value(); })
      list.push_back(x ? Tensor(*x) : Tensor());
    else
      list.insert(list.end(), x.begin(), x.end());
  }
}
}  // namespace detail

template <class Derived>
class Function : public FunctionBase {
 public:
  template <class... Args>
  static auto apply(Args&&... args) {
    auto function = std::make_shared<Derived>();
    TensorList inputs;
    (detail::collect(inputs, args), ...);
    detail::begin_function(*function, inputs);
    auto run = [&] {
      NoGrad guard;
      return function->forward(std::forward<Args>(args)...);
    };
    using Result = decltype(run());
    static_assert(
        std::same_as<Result, Tensor> || std::same_as<Result, TensorList>,
        "Function::forward must return a Tensor, or a TensorList where it has several results (no pair, tuple "
        "or reference); other values can be kept as members");
    if constexpr (std::same_as<Result, Tensor>) {
      return detail::finish_function(function, typeid(Derived).name(), inputs, {run()})[0];
    } else {
      return detail::finish_function(function, typeid(Derived).name(), inputs, run());
    }
  }
  TensorList run_backward(const TensorList& gradients) override {
    return static_cast<Derived*>(this)->backward(gradients);
  }
};

// ---- Checkpointing, anomalies, checking

/// Runs f without keeping its intermediate tensors; backward runs it again, with the random state it had, to get them.
TensorList checkpoint(std::function<TensorList(const TensorList&)> f, const TensorList& inputs);
Tensor checkpoint(std::function<Tensor(const Tensor&)> f, const Tensor& input);

/// Inside, every node remembers where it was made. A NaN in backward is an error that names that place, and so does the
/// error about a saved tensor that was changed. Other errors arrive as they were thrown.
struct [[nodiscard]] AnomalyMode : ModeGuard {
  [[nodiscard]] AnomalyMode() : ModeGuard(kAnomalyMode, 0) {}
};

struct GradcheckOptions {
  double epsilon = 1e-6;
  double atol = 1e-5;
  double rtol = 1e-3;
  bool throw_on_failure = true;
};
/// Compares gradients with central differences (inputs should be f64 or c128; of sparse ones, their entries are
/// checked). Throws GradError naming the entry that disagrees, or returns false.
bool gradcheck(const std::function<TensorList(const TensorList&)>& f, const TensorList& inputs,
               const GradcheckOptions& options = {});
/// The same for second derivatives.
bool gradgradcheck(const std::function<TensorList(const TensorList&)>& f, const TensorList& inputs,
                   const GradcheckOptions& options = {});

}  // namespace tutti
