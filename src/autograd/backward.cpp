// backward() and grad(): the two ways users start a GraphTask; and the default gradient sink.
#include "autograd/engine.h"
#include "autograd/meta.h"
#include "base/check.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

// Adds to .grad. The layout contract: the gradient of a dense leaf has the leaf's own strides.
class LeafSink final : public GradientSink {
 public:
  void accumulate(const Tensor& leaf, Tensor gradient) override {
    bool recording = grad_enabled();
    if (tracing()) [[unlikely]]
      return accumulate_traced(leaf, gradient, recording);
    // Nothing that may hold a graph is freed inside of the lock: accumulators that go take such locks too.
    for (bool owned = false; !recording; owned = true) {
      {
        std::lock_guard lock(autograd_mutex(impl(leaf)));
        Tensor& grad = autograd_meta(leaf).grad;
        if (!grad.defined() && owned) return grad.swap(gradient);
        // Of a view it may have to be found out, which takes such locks: views go the other way.
        if (grad.defined() && (grad.is_sparse() || impl(grad)->base.defined() || requires_grad(impl(grad)))) break;
        if (grad.defined()) {
          grad.add_(gradient);
          return;
        }
      }
      gradient = owned_gradient(leaf, std::move(gradient), recording);
    }
    // So are sums that are new tensors; then it is seen whether somebody else was faster.
    while (true) {
      Tensor old = leaf.grad(), sum;
      if (old.defined())
        sum = old + gradient;
      else
        sum = gradient = owned_gradient(leaf, std::move(gradient), recording);
      std::lock_guard lock(autograd_mutex(impl(leaf)));
      Tensor& grad = autograd_meta(leaf).grad;
      if (!grad.is_same(old)) continue;
      grad.swap(sum);
      return;
    }
  }
  Tensor gradient(const Tensor& leaf) override { return leaf.grad(); }
  void set_gradient(const Tensor& leaf, Tensor gradient) override { leaf.set_grad(gradient); }

 private:
  // The same in steps that a tracer sees. It holds on to tensors, so that none is ever the leaf's to take.
  static void accumulate_traced(const Tensor& leaf, const Tensor& gradient, bool recording) {
    Tensor old = leaf.grad();
    if (!old.defined()) {
      leaf.set_grad(owned_gradient(leaf, gradient, recording));
    } else if (recording || old.is_sparse() || requires_grad(impl(old))) {
      leaf.set_grad(old + gradient);
    } else {
      old.add_(gradient);
    }
  }
};

Tensor root_gradient(const Tensor& output, const Tensor& given, const char* operation) {
  check<GradError>(
      output.defined() && output.requires_grad(), operation,
      "{} does not require a gradient: nothing it was made from had requires_grad_(), or it was made inside NoGrad or "
      "InferenceMode, from detached tensors, or through an operator that has no gradient (a comparison, argmax, "
      "integers)",
      output);
  if (!given.defined()) {
    check<GradError>(output.numel() == 1, operation,
                     "{} is not a scalar: reduce it (sum, mean) or pass the gradient to start from", output);
    check<GradError>(!output.is_complex(), operation,
                     "{} is complex: take a real number of it (abs, real) or pass the gradient to start from", output);
    return ones_like(output).detach();
  }
  check<ShapeError>(given.sizes() == output.sizes(), operation, "the gradient {} does not fit the output {}", given,
                    output);
  check<DTypeError>(output.is_complex() || !given.is_complex(), operation,
                    "the gradient {} is complex, and the output {} is not", given, output);
  check<DeviceError>(given.device() == output.device(), operation, "the gradient {} is not where the output {} is",
                     given, output);
  return given.dtype() == output.dtype() ? given : cast(given, output.dtype());
}

}  // namespace

namespace {
// Memory that nobody else knows, which from_blob()'s is not.
bool is_alone(const Storage& s) { return s.references == 1 && !s.release; }
}  // namespace

Tensor owned_gradient(const Tensor& leaf, Tensor gradient, bool recording) {
  const TensorImpl* g = impl(gradient);
  if (g->sparse) {
    auto alone = [](const Tensor& part) { return impl(part)->references == 1 && is_alone(*impl(part)->storage); };
    return g->references == 1 && alone(g->sparse->values) && alone(g->sparse->indices) ? gradient : clone(gradient);
  }
  bool dense_leaf = is_dense(leaf.sizes(), leaf.strides());
  bool fits = dense_leaf ? g->strides == leaf.strides() || (g->contiguous && leaf.is_contiguous()) : g->contiguous;
  bool mine = g->references == 1 && (is_alone(*g->storage) || is_at_home(leaf, gradient));
  if (fits && mine && (recording || !requires_grad(g))) return gradient;
  Tensor copy = dense_leaf ? make_tensor(leaf.sizes(), leaf.strides(), gradient.dtype(), gradient.device())
                           : make_tensor(leaf.sizes(), gradient.dtype(), gradient.device());
  if (Tracer* tracer = tracing()) tracer->made(copy);
  return copy.copy_(recording ? gradient : gradient.detach());
}

void add_roots(GraphTask& task, const TensorList& outputs, const TensorList& gradients, const char* operation) {
  check<GradError>(!outputs.empty(), operation, "no output was given: there is nothing to start from");
  check<GradError>(gradients.empty() || gradients.size() == outputs.size(), operation,
                   "{} gradients were given for {} outputs", gradients.size(), outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i)
    task.add_root(gradient_edge(outputs[i]),
                  root_gradient(outputs[i], gradients.empty() ? Tensor() : gradients[i], operation));
}

GradientSink& gradient_sink() {
  static auto& leaf_sink = *new LeafSink;
  return context().sink ? *context().sink : leaf_sink;
}

void backward(const TensorList& outputs, const TensorList& gradients, BackwardOptions options) {
  GraphTask task({.keep_graph = options.retain_graph || options.create_graph, .create_graph = options.create_graph});
  add_roots(task, outputs, gradients, "backward");
  task.run();
}

TensorList grad(const TensorList& outputs, const TensorList& inputs, const GradOptions& options,
                const TensorList& gradients) {
  GraphTask task({.keep_graph = options.retain_graph || options.create_graph, .create_graph = options.create_graph});
  add_roots(task, outputs, gradients, "grad");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check<GradError>(inputs[i].defined() && inputs[i].requires_grad(), "grad",
                     "input {} ({}) does not require a gradient", i, inputs[i]);
    task.capture(gradient_edge(inputs[i]));
  }
  task.run();
  TensorList result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    result.push_back(task.captured(i));
    check<GradError>(
        result.back().defined() || options.allow_unused, "grad",
        "input {} ({}) was not used to compute the outputs; allow_unused gives an undefined gradient instead", i,
        inputs[i]);
  }
  return result;
}

TensorList backward_until(const TensorList& roots, const TensorList& gradients, const TensorList& inputs,
                          bool create_graph) {
  if (roots.empty()) return TensorList(inputs.size());
  GraphTask task({.keep_graph = create_graph, .create_graph = create_graph, .captures_only = false});
  add_roots(task, roots, gradients, "checkpoint");
  for (auto& x : inputs) task.capture(x.defined() ? gradient_edge(x) : Edge());
  task.run();
  TensorList result;
  for (size_t i = 0; i < inputs.size(); ++i) result.push_back(task.captured(i));
  return result;
}

void Tensor::backward() const { tutti::backward({*this}); }
void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  tutti::backward({*this}, {gradient}, {.retain_graph = retain_graph, .create_graph = create_graph});
}

}  // namespace tutti
