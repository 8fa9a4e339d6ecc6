#include "autograd/meta.h"

#include <array>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "tutti/operator.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

uint32_t generation_of(const Tensor& base) { return impl(base)->autograd ? impl(base)->autograd->generation : 0; }

// Several threads may read one view, and each may find it stale: see refresh_view.
std::atomic_ref<uint32_t> generation_seen(const TensorImpl* view) {
  return std::atomic_ref(const_cast<TensorImpl*>(view)->base_generation);
}

// How a view lies in its base, so that the same part of another tensor of the base's geometry can be found.
struct ViewGeometry {
  Shape sizes, strides;
  int64_t offset;  // from the start of the storage, in elements of the view
  DType dtype;
  Device device;  // see view_on
};
ViewGeometry geometry_of(const TensorImpl* view) {
  return {view->sizes, view->strides, view->offset, view->dtype, view->device};
}

// Gradients follow a view of the same dtype, and one of complex numbers as pairs or of pairs as complex numbers.
bool can_follow(DType whole, DType part) {
  return whole == part || (is_differentiable(whole) && is_differentiable(part) && to_real(whole) == to_real(part));
}

Tensor part_at_home(const Tensor& whole, const ViewGeometry& g, int64_t shift) {
  if (whole.dtype() == g.dtype) return as_strided(whole, g.sizes, g.strides, g.offset - shift);
  if (is_complex(whole.dtype()) && !is_complex(g.dtype))
    return as_strided(view_as_real(whole), g.sizes, g.strides, g.offset - 2 * shift);
  check<GradError>(
      can_follow(whole.dtype(), g.dtype), "backward",
      "a view of {} as {} was written in place: gradients cannot follow a change of dtype; clone() the view first",
      whole.dtype(), g.dtype);
  Shape sizes = g.sizes, strides;
  for (int64_t s : g.strides) strides.push_back(2 * s);
  sizes.push_back(2);
  strides.push_back(1);
  return view_as_complex(as_strided(whole, sizes, strides, 2 * g.offset - shift));
}

// The part of `whole` at this geometry; `shift` is subtracted from the offset. Differentiable.
Tensor part_of(const Tensor& whole, const ViewGeometry& g, int64_t shift) {
  return view_on(part_at_home(whole, g, shift), g.device);
}

// The tensor, unless another thread is at freeing it: see ~TensorImpl.
Tensor tensor_of(Retained& retained, std::mutex& mutex) {
  std::lock_guard lock(mutex);
  TensorImpl* t = retained.tensor;
  if (!t || !t->try_retain()) return {};
  Tensor result(t);
  t->references.fetch_sub(1, std::memory_order_relaxed);
  return result;
}

void retain_at(const std::shared_ptr<Retained>& retained, Node& node, uint32_t output) {
  // A weak reference: the node must not keep its own output alive.
  retained->hook = node.hooks().retain.add(
      [weak = std::weak_ptr(retained), &mutex = autograd_mutex(retained->tensor), output](Gradients& gradients) {
        auto alive = weak.lock();
        if (!alive || !gradients[output].defined()) return;
        Tensor t = tensor_of(*alive, mutex);
        if (!t.defined()) return;
        Tensor old = t.grad();
        // A copy: others will have the same gradient.
        t.set_grad(old.defined() ? old + gradients[output] : gradients[output].clone());
      });
}

void set_history(AutogradMeta& meta, Ref<Node> node, uint32_t output) {
  meta.node = std::move(node);
  meta.output = output;
  ++meta.generation;
  if (!meta.retained) return;
  meta.retained->hook.remove();
  if (meta.node) retain_at(meta.retained, *meta.node, output);
}

// See Note [Views and history].
void refresh_view(const TensorImpl* view) {
  EnableGrad guard;
  ViewGeometry g = geometry_of(view);
  uint32_t generation = generation_of(view->base);
  Tensor fresh = can_follow(view->base.dtype(), g.dtype) ? part_of(view->base, g, 0) : Tensor();
  auto* made = fresh.defined() ? impl(fresh)->autograd : nullptr;
  Ref<Node> node = made ? made->node : Ref<Node>();
  std::lock_guard lock(autograd_mutex(view));  // `node` goes after it: freeing nodes takes such locks
  if (generation_seen(view).load() == generation) return;
  auto& meta = autograd_meta(Tensor(const_cast<TensorImpl*>(view)));
  std::swap(meta.node, node);
  meta.output = made ? made->output : 0;
  generation_seen(view).store(generation);
  if (!meta.retained) return;
  meta.retained->hook.remove();
  if (meta.node) retain_at(meta.retained, *meta.node, meta.output);
}

// The history of a base after part of it was written by `inner`: the gradient of that part goes to inner, the rest on
// to what the base was before.
class WrittenPartNode final : public Node {
 public:
  WrittenPartNode(const Tensor& base, const TensorImpl* view, const Ref<Node>& inner, uint32_t output)
      : sizes_(base.sizes()), strides_(base.strides()), offset_(base.storage_offset()), part_(geometry_of(view)) {
    device = base.device();
    edges.push_back(gradient_edge(base));
    edges.push_back({inner, output});
    number_node(*this);
    if (context().modes & kAnomalyMode) note_origin(*this);
  }
  std::string name() const override { return "written_part"; }
  void run(GradientBuffer& outputs, GradientBuffer& inputs) override {
    Tensor gradient = make_tensor(sizes_, strides_, outputs[0].dtype(), outputs[0].device());
    if (Tracer* tracer = tracing()) tracer->made(gradient);
    gradient.copy_(outputs[0]);
    Tensor part = part_of(gradient, part_, offset_);
    if (edges[1].node) inputs[1] = part.clone();
    if (edges[0].node) {
      part.zero_();
      inputs[0] = gradient;
    }
  }

 private:
  Shape sizes_, strides_;
  int64_t offset_;
  ViewGeometry part_;
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

LeafHooks* leaf_hooks(const Tensor& leaf, bool make) {
  std::lock_guard lock(autograd_mutex(impl(leaf)));
  auto& meta = autograd_meta(leaf);
  if (!meta.hooks && make) meta.hooks = std::make_unique<LeafHooks>();
  return meta.hooks.get();
}

bool is_stale_view(const TensorImpl* t) {
  return t->base.defined() && generation_seen(t).load() != generation_of(t->base);
}

bool view_requires_grad(const TensorImpl* t) {
  if (is_stale_view(t)) refresh_view(t);
  return t->autograd && (t->autograd->requires_grad || t->autograd->node);
}

Edge gradient_edge(const Tensor& t) {
  const TensorImpl* x = impl(t);
  if (!requires_grad(x)) return {};
  AutogradMeta& meta = *x->autograd;
  if (meta.node && !x->base.defined()) return {meta.node, meta.output};
  std::unique_lock lock(autograd_mutex(x));
  if (meta.node) return {meta.node, meta.output};
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
  auto is_leaf = [](const TensorImpl* x) { return x->autograd && x->autograd->requires_grad && !x->autograd->node; };
  return is_leaf(t) || (t->base.defined() && is_leaf(impl(t->base)));
}

void rebase_history(const Tensor& t, const Ref<Node>& node, uint32_t output) {
  TensorImpl* x = impl(t);
  if (x->base.defined()) {
    Tensor base = x->base;
    if (!node && !requires_grad(impl(base))) return;
    set_history(autograd_meta(base), Ref<Node>(make_node<WrittenPartNode>(base, x, node, output).get()), 0);
    if (x->autograd && x->autograd->retained) view_requires_grad(x);  // a gradient of what it was is not wanted
    return;
  }
  if (node || x->autograd) set_history(autograd_meta(t), node, output);
}

// ---- The tensor's own view of it

bool Tensor::requires_grad() const { return defined() && tutti::requires_grad(impl()); }
bool Tensor::is_leaf() const { return !requires_grad() || !impl()->autograd->node; }

Tensor& Tensor::requires_grad_(bool value) {
  check<ValueError>(defined(), "requires_grad_", "the tensor is undefined: it was never given a value");
  check<GradError>(!value || is_differentiable(dtype()), "requires_grad_",
                   "only floating and complex tensors have gradients, not {}", *this);
  check<GradError>(is_leaf(), "requires_grad_", "{} was made by '{}': only leaves can be told; use detach()", *this,
                   is_leaf() ? "" : grad_node()->name());
  check<GradError>(!value || !impl()->inference, "requires_grad_",
                   "{} was made in inference mode; clone() it outside first", *this);
  if (value || impl()->autograd) autograd_meta(*this).requires_grad = value;
  if (Tracer* tracer = tracing()) tracer->grad_required(*this, value);
  return *this;
}

Tensor Tensor::grad() const {
  Tensor grad;
  if (defined() && impl()->autograd) {
    std::lock_guard lock(autograd_mutex(impl()));  // a pass in another thread may be putting a new one there
    grad = impl()->autograd->grad;
  }
  if (Tracer* tracer = tracing(); tracer && defined()) tracer->grad_read(*this, grad);
  return grad;
}

void Tensor::set_grad(const Tensor& grad) const {
  check<ValueError>(defined(), "set_grad", "the tensor is undefined");
  if (!grad.defined() && !impl()->autograd && !tracing()) return;
  if (grad.defined()) check_replacement("set_grad", grad, *this);
  if (Tracer* tracer = tracing()) tracer->grad_set(*this, grad);
  Tensor old = grad;  // goes after the lock: it may be the last to know this leaf's accumulator, which takes it too
  std::lock_guard lock(autograd_mutex(impl()));
  autograd_meta(*this).grad.swap(old);
}

void drop_grad_unless_like(const Tensor& t, const Tensor& other) {
  Tensor old;  // goes after the lock, as in set_grad()
  if (!impl(t)->autograd) return;
  std::lock_guard lock(autograd_mutex(impl(t)));
  Tensor& grad = impl(t)->autograd->grad;
  if (grad.defined() &&
      !(grad.sizes() == other.sizes() && grad.dtype() == other.dtype() && grad.device() == other.device()))
    grad.swap(old);
}

Node* Tensor::grad_node() const { return requires_grad() ? impl()->autograd->node.get() : nullptr; }

Tensor Tensor::detach() const {
  check<ValueError>(defined(), "detach", "the tensor is undefined: it was never given a value");
  return make_alias(*this);
}

Tensor& Tensor::detach_() {
  check<ValueError>(defined(), "detach_", "the tensor is undefined: it was never given a value");
  check<GradError>(!is_view(), "detach_", "{} is a view; use detach()", *this);
  if (auto* meta = impl()->autograd) {
    meta->node = {};
    meta->requires_grad = false;
    ++meta->generation;
  }
  return *this;
}

HookHandle Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) const {
  check<ValueError>(hook != nullptr, "register_hook", "the hook is empty: there is nothing to call");
  check<GradError>(requires_grad(), "register_hook", "{} does not require a gradient", *this);
  if (Tracer* tracer = tracing()) tracer->hooked(*this);
  auto& meta = autograd_meta(*this);
  if (!meta.node) return leaf_hooks(*this, true)->before.add(std::move(hook));
  return meta.node->hooks().before.add([hook = std::move(hook), output = meta.output](Gradients& gradients) {
    if (!gradients[output].defined()) return;
    if (Tensor changed = hook(gradients[output]); changed.defined()) {
      check_replacement("register_hook", changed, gradients[output]);
      gradients[output] = changed;
    }
  });
}

HookHandle Tensor::register_post_accumulate_hook(std::function<void(const Tensor&)> hook) const {
  check<ValueError>(hook != nullptr, "register_post_accumulate_hook", "the hook is empty: there is nothing to call");
  check<GradError>(requires_grad() && is_leaf(), "register_post_accumulate_hook",
                   "{} is not a leaf that requires a gradient", *this);
  if (Tracer* tracer = tracing()) tracer->hooked(*this);
  return leaf_hooks(*this, true)->accumulated.add(std::move(hook));
}

void Tensor::retain_grad() {
  check<GradError>(requires_grad(), "retain_grad", "{} does not require a gradient", *this);
  if (is_leaf() || impl()->autograd->retain_grad) return;
  AutogradMeta& meta = *impl()->autograd;
  meta.retain_grad = true;
  impl()->watched = true;
  meta.retained = std::make_shared<Retained>(Retained{impl(), {}});
  retain_at(meta.retained, *meta.node, meta.output);
}

}  // namespace tutti
