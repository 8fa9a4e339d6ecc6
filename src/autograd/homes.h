// Note [Gradients born in place]
//
// DDP wants the gradient of a parameter in a bucket. Left alone, it is made in memory of its own and copied there, and
// for large parameters that copy costs as much as the collective. So a pass can be told of homes: where the gradient of
// a leaf is to lie. The node whose result goes to such a leaf, directly or through nodes of views (linear multiplies by
// a transposed weight), then runs with the home as the place of the first tensor that has its geometry. If that was
// another tensor than the gradient, nothing is lost: one that goes on elsewhere is copied out, one that was temporary
// is gone when the node has run, and the gradient lies elsewhere and is copied in by who wants it there.
//
// A home is used once in a pass, and only where nobody else can come to hold what lies there: by operators (a custom
// Function may keep what it makes), where no hook sees the gradient, and when no graph of the backward pass is kept.
#pragma once

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "autograd/node.h"
#include "tensor/birth.h"

namespace tutti {

class Homes {
 public:
  bool any() const { return any_.load(std::memory_order_relaxed); }
  void offer(const Tensor& leaf, const Tensor& home);
  /// node.run(), with the home of a leaf that its result goes to.
  void run(Node& node, GradientBuffer& outputs, GradientBuffer& inputs);
  bool is_at_home(const Tensor& leaf, const Tensor& gradient);

 private:
  struct Home {
    Tensor leaf, place;
    bool used = false;
  };
  SmallVector<Birthplace, 2> claim(const Node& node);

  std::atomic<bool> any_ = false;
  std::mutex mutex_;  // workers of several devices run nodes at the same time
  std::unordered_map<const TensorImpl*, Home> homes_;
};

/// Whether two tensors are the same elements of the same memory.
bool same_place(const Tensor& a, const Tensor& b);
/// Those of the backward pass that this thread works for; null outside of one.
Homes* homes_of_pass();
/// From within a hook: the gradient that this pass will make for `leaf` may be written to the memory of `home`.
void offer_home(const Tensor& leaf, const Tensor& home);
/// Whether the gradient lies where offer_home() wanted it.
bool is_at_home(const Tensor& leaf, const Tensor& gradient);

}  // namespace tutti
