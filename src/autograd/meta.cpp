#include "autograd/meta.h"

#include <array>

#include "base/check.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

uint32_t generation_of(const Tensor& base) { return impl(base)->autograd ? impl(base)->autograd->generation : 0; }

// How a view lies in its base, so that the same part of another tensor of the base's geometry can be found.
struct ViewGeometry {
  Shape sizes, strides;
  int64_t offset;  // from the start of the storage, in elements of the view
  DType dtype;
};
ViewGeometry geometry_of(const TensorImpl* view) { return {view->sizes, view->strides, view->offset, view->dtype}; }

// The part of `whole` at this geometry; `shift` is subtracted from the offset. Differentiable.
Tensor part_of(const Tensor& whole, const ViewGeometry& g, int64_t shift) {
  if (whole.dtype() == g.dtype) return as_strided(whole, g.sizes, g.strides, g.offset - shift);
  if (is_complex(whole.dtype()) && !is_complex(g.dtype))
    return as_strided(view_as_real(whole), g.sizes, g.strides, g.offset - 2 * shift);
  check<GradError>(
      is_complex(g.dtype), "backward",
      "a view of {} as {} was written in place: gradients cannot follow a change of dtype; clone() the view first",
      whole.dtype(), g.dtype);
  Shape sizes = g.sizes, strides;
  for (int64_t s : g.strides) strides.push_back(2 * s);
  sizes.push_back(2);
  strides.push_back(1);
  return view_as_complex(as_strided(whole, sizes, strides, 2 * g.offset - shift));
}

// See Note [Views and history].
void refresh_view(const TensorImpl* view) {
  EnableGrad guard;
  ViewGeometry g = geometry_of(view);
  Tensor fresh = part_of(view->base, g, 0);
  auto& meta = autograd_meta(Tensor(const_cast<TensorImpl*>(view)));
  auto* made = impl(fresh)->autograd;
  meta.node = made ? made->node : Ref<Node>();
  meta.output = made ? made->output : 0;
  const_cast<TensorImpl*>(view)->base_generation = generation_of(view->base);
}

// The history of a base after part of it was written by `inner`: the gradient of that part goes to inner, the rest on
// to what the base was before.
class WrittenPartNode final : public Node {
 public:
  WrittenPartNode(const Tensor& base, const TensorImpl* view, Ref<Node> inner, uint32_t output)
      : sizes_(base.sizes()),
        strides_(base.strides()),
        offset_(base.storage_offset()),
        part_(geometry_of(view)),
        inner_(std::move(inner)),
        output_(output) {
    device = base.device();
    edges.push_back(gradient_edge(base));
    if (inner_)
      for (auto& e : inner_->edges) edges.push_back(e);
    number_node(*this);
    if (inner_) sequence = std::max(sequence, inner_->sequence + 1);
  }
  std::string name() const override { return "written_part"; }
  void run(GradientBuffer& outputs, GradientBuffer& inputs) override {
    Tensor gradient = make_tensor(sizes_, strides_, outputs[0].dtype(), outputs[0].device());
    gradient.copy_(outputs[0]);
    Tensor part = part_of(gradient, part_, offset_);
    if (inner_) {
      GradientBuffer inner_outputs(inner_->outputs), inner_inputs(inner_->edges.size());
      inner_outputs[output_] = part.clone();
      inner_->run(inner_outputs, inner_inputs);
      for (size_t i = 0; i < inner_inputs.size(); ++i) inputs[i + 1] = std::move(inner_inputs[i]);
    }
    if (edges[0].node) {
      part.zero_();
      inputs[0] = gradient;
    }
  }
  void free_saved() override {
    if (inner_) inner_->free_saved();
  }

 private:
  Shape sizes_, strides_;
  int64_t offset_;
  ViewGeometry part_;
  Ref<Node> inner_;
  uint32_t output_;
};

}  // namespace

std::mutex& autograd_mutex(const TensorImpl* t) {
  // Never destroyed: nodes in static storage may be freed after any order of destructors.
  static auto& mutexes = *new std::array<std::mutex, 64>;
  return mutexes[reinterpret_cast<uintptr_t>(t) / 64 % mutexes.size()];
}

AutogradMeta& autograd_meta(const Tensor& t) {
  if (!impl(t)->autograd) impl(t)->autograd = new AutogradMeta;
  return *impl(t)->autograd;
}

bool requires_grad_slow(const TensorImpl* t) {
  if (t->base.defined() && t->base_generation != generation_of(t->base)) refresh_view(t);
  return t->autograd && (t->autograd->requires_grad || t->autograd->node);
}

Edge gradient_edge(const Tensor& t) {
  const TensorImpl* x = impl(t);
  if (!requires_grad(x)) return {};
  AutogradMeta& meta = *x->autograd;
  if (meta.node) return {meta.node, meta.output};
  std::unique_lock lock(autograd_mutex(x));
  if (meta.accumulator)
    if (auto node = try_retain(meta.accumulator)) return {std::move(node), 0};
  lock.unlock();
  // Made outside of the lock: allocating may free other nodes, whose destructors take such locks.
  auto fresh = make_node<AccumulateNode>(t);
  lock.lock();
  if (meta.accumulator)
    if (auto node = try_retain(meta.accumulator)) {
      lock.unlock();  // `fresh` dies after this
      return {std::move(node), 0};
    }
  meta.accumulator = fresh.get();
  lock.unlock();
  return {Ref<Node>(fresh.get()), 0};
}

bool is_protected_leaf(const TensorImpl* t) {
  if (t->base.defined()) t = impl(t->base);
  return t->autograd && t->autograd->requires_grad && !t->autograd->node;
}

void rebase_history(const Tensor& t, const Ref<Node>& node, uint32_t output) {
  TensorImpl* x = impl(t);
  if (x->base.defined()) {
    Tensor base = x->base;
    if (!node && !requires_grad(impl(base))) return;
    auto written = make_node<WrittenPartNode>(base, x, node, output);
    auto& meta = autograd_meta(base);
    meta.node = Ref<Node>(written.get());
    meta.output = 0;
    ++meta.generation;
    return;
  }
  if (!node && !x->autograd) return;
  auto& meta = autograd_meta(t);
  meta.node = node;
  meta.output = output;
  ++meta.generation;
}

// ---- The tensor's own view of it

bool Tensor::requires_grad() const { return tutti::requires_grad(impl()); }
bool Tensor::is_leaf() const { return !tutti::requires_grad(impl()) || !impl()->autograd->node; }

Tensor& Tensor::requires_grad_(bool value) {
  check<GradError>(!value || is_differentiable(dtype()), "requires_grad_",
                   "only floating and complex tensors have gradients, not {}", *this);
  check<GradError>(is_leaf(), "requires_grad_", "{} was made by '{}': only leaves can be told; use detach()", *this,
                   is_leaf() ? "" : grad_node()->name());
  check<GradError>(!value || !impl()->inference, "requires_grad_",
                   "{} was made in inference mode; clone() it outside first", *this);
  if (value || impl()->autograd) autograd_meta(*this).requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const { return defined() && impl()->autograd ? impl()->autograd->grad : Tensor(); }

void Tensor::set_grad(const Tensor& grad) const {
  if (!grad.defined() && !impl()->autograd) return;
  if (grad.defined())
    check<ShapeError>(grad.sizes() == sizes(), "set_grad", "the gradient of {} cannot be {}", *this, grad);
  std::lock_guard lock(autograd_mutex(impl()));
  autograd_meta(*this).grad = grad;
}

Node* Tensor::grad_node() const { return tutti::requires_grad(impl()) ? impl()->autograd->node.get() : nullptr; }

Tensor Tensor::detach() const { return make_alias(*this); }

Tensor& Tensor::detach_() {
  check<GradError>(!is_view(), "detach_", "{} is a view; use detach()", *this);
  if (auto* meta = impl()->autograd) {
    meta->node = {};
    meta->requires_grad = false;
    ++meta->generation;
  }
  return *this;
}

HookHandle Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) const {
  check<GradError>(requires_grad(), "register_hook", "{} does not require a gradient", *this);
  auto& meta = autograd_meta(*this);
  if (!meta.node) {
    if (!meta.hooks) meta.hooks = std::make_unique<LeafHooks>();
    return meta.hooks->before.add(std::move(hook));
  }
  return meta.node->hooks().before.add([hook = std::move(hook), output = meta.output](Gradients& gradients) {
    if (!gradients[output].defined()) return;
    if (Tensor changed = hook(gradients[output]); changed.defined()) gradients[output] = changed;
  });
}

HookHandle Tensor::register_post_accumulate_hook(std::function<void(const Tensor&)> hook) const {
  check<GradError>(requires_grad() && is_leaf(), "register_post_accumulate_hook",
                   "{} is not a leaf that requires a gradient", *this);
  auto& meta = autograd_meta(*this);
  if (!meta.hooks) meta.hooks = std::make_unique<LeafHooks>();
  return meta.hooks->accumulated.add(std::move(hook));
}

void Tensor::retain_grad() {
  check<GradError>(requires_grad(), "retain_grad", "{} does not require a gradient", *this);
  if (is_leaf() || impl()->autograd->retain_grad) return;
  impl()->autograd->retain_grad = true;
  // A weak reference: the node must not keep its own output alive. The handle's count cannot be taken from zero.
  TensorImpl* target = impl();
  auto alive = std::make_shared<TensorImpl*>(target);
  impl()->autograd->retained = alive;
  register_hook([weak = std::weak_ptr(alive)](const Tensor& gradient) {
    if (auto tensor = weak.lock()) Tensor(*tensor).set_grad(gradient);
    return Tensor();
  });
}

}  // namespace tutti
