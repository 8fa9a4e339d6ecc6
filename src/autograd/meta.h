// The autograd state of a tensor: where its gradient comes from and goes to.
#pragma once

#include <mutex>

#include "autograd/node.h"
#include "base/memory.h"
#include "tensor/impl.h"

namespace tutti {

/// A hook that only takes the gradient that has come (DDP's). It writes nothing that a backward pass reads and leaves
/// the leaf as it is, so that a pass with such hooks can be a graph.
struct TakesGradient {
  std::function<void()> take;
  void operator()(const Tensor&) const { take(); }
};

struct LeafHooks {
  HookList<Tensor(const Tensor&)> before;  // may change the gradient
  HookList<void(const Tensor&)> accumulated;

  bool only_take() const {
    bool only = true;
    before.each([&](auto&) { only = false; });
    accumulated.each([&](auto& hook) { only = only && hook.template target<TakesGradient>(); });
    return only;
  }
};

struct Retained {
  TensorImpl* tensor;
  HookHandle hook;
};

struct AutogradMeta : memory::Pooled {
  bool requires_grad = false;  // of a leaf; others require gradients by having a node
  bool retain_grad = false;
  uint32_t output = 0;          // which output of `node` this tensor is
  Ref<Node> node;               // what made it; null for leaves
  Node* accumulator = nullptr;  // of a leaf: the node that accumulates; lives as long as a graph uses it
  Tensor grad;
  std::unique_ptr<LeafHooks> hooks;
  std::shared_ptr<Retained> retained;  // alive while the tensor is: see retain_grad()
  // Note [Views and history]: writing a view in place changes the history of its base and so of all other views. The
  // base counts such changes in `generation`; a view compares it with its `base_generation` and, if it lags, makes its
  // node anew as an as_strided of the base.
  uint32_t generation = 0;
};

/// The hooks of a leaf; null if it has none and they are not to be made.
LeafHooks* leaf_hooks(const Tensor& leaf, bool make);
/// The state, made if there is none.
AutogradMeta& autograd_meta(const Tensor& t);

/// Whether t is a view whose base was written since its history was looked at.
bool is_stale_view(const TensorImpl* t);
/// Whether gradients flow to t; brings the history of a view up to date.
bool view_requires_grad(const TensorImpl* t);
inline bool requires_grad(const TensorImpl* t) {
  if (t->base.defined()) return view_requires_grad(t);
  return t->autograd && (t->autograd->requires_grad || t->autograd->node);
}
/// Where the gradient of t goes: its node, or a leaf's accumulator; empty if it needs none.
Edge gradient_edge(const Tensor& t);
/// After t was written by output `output` of node (null: by something without gradients): t's new history.
void rebase_history(const Tensor& t, const Ref<Node>& node, uint32_t output);
/// Whether t, or the tensor it is a view of, is a leaf that requires gradients: such must not be written in place.
bool is_protected_leaf(const TensorImpl* t);
/// Before t gets the data of `other`: a gradient that would not fit them goes.
void drop_grad_unless_like(const Tensor& t, const Tensor& other);
/// Guards the autograd state of t against other threads.
std::mutex& autograd_mutex(const TensorImpl* t);

}  // namespace tutti
