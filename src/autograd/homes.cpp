#include "autograd/homes.h"

#include "autograd/meta.h"
#include "autograd/operator_node.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

constexpr int kMaxViews = 4;

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.is_sparse() || !a.shares_storage(b)) return false;
  auto range = [](const Tensor& t) {
    const std::byte* begin = impl(t)->data();
    return std::pair(begin, begin + span_elements(t.sizes(), t.strides()) * static_cast<int64_t>(t.element_size()));
  };
  auto [a_begin, a_end] = range(a);
  auto [b_begin, b_end] = range(b);
  return a_begin < b_end && b_begin < a_end;
}

// The leaf that this edge leads to by views alone, or null.
const AccumulateNode* leaf_beyond(const Node* node) {
  for (int i = 0; node && i < kMaxViews; ++i) {
    if (node->has_hooks()) return nullptr;
    if (auto* leaf = dynamic_cast<const AccumulateNode*>(node)) return leaf;
    auto* op = dynamic_cast<const OperatorNode*>(node);
    if (!op || op->op().view_of < 0 || node->edges.size() != 1) return nullptr;
    node = node->edges[0].node.get();
  }
  return nullptr;
}

bool is_watched(const Tensor& leaf) {
  LeafHooks* hooks = leaf_hooks(leaf, false);
  bool any = false;
  if (hooks) hooks->before.each([&](auto&) { any = true; });
  return any;
}

// Hooks that come before a node see what goes into it, which is no gradient of a leaf.
bool shows_results(Node& node) {
  bool any = false;
  if (node.has_hooks()) node.hooks().after.each([&](auto&) { any = true; });
  return any;
}

}  // namespace

bool same_place(const Tensor& a, const Tensor& b) {
  return a.shares_storage(b) && a.storage_offset() == b.storage_offset() && a.dtype() == b.dtype() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

void Homes::offer(const Tensor& leaf, const Tensor& home) {
  if (is_watched(leaf)) return;
  std::lock_guard lock(mutex_);
  homes_.try_emplace(impl(leaf), Home{leaf, home});
  any_.store(true, std::memory_order_relaxed);
}

SmallVector<Birthplace, 2> Homes::claim(const Node& node) {
  SmallVector<Birthplace, 2> places;
  for (size_t edge = 0; edge < node.edges.size(); ++edge) {
    const AccumulateNode* leaf = leaf_beyond(node.edges[edge].node.get());
    if (!leaf) continue;
    std::lock_guard lock(mutex_);
    auto found = homes_.find(impl(leaf->leaf()));
    if (found == homes_.end() || std::exchange(found->second.used, true)) continue;
    places.push_back({found->second.place, edge});
  }
  return places;
}

void Homes::run(Node& node, GradientBuffer& outputs, GradientBuffer& inputs) {
  SmallVector<Birthplace, 2> places;
  if (!shows_results(node) && !grad_enabled() && dynamic_cast<OperatorNode*>(&node)) places = claim(node);
  if (places.empty()) return node.run(outputs, inputs);
  {
    BirthGuard births(places.span());
    node.run(outputs, inputs);
  }
  for (const Birthplace& place : places) {
    if (!place.used) continue;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (i != place.edge && inputs[i].defined() && overlap(inputs[i], place.home)) inputs[i] = clone(inputs[i]);
  }
}

bool Homes::is_at_home(const Tensor& leaf, const Tensor& gradient) {
  std::lock_guard lock(mutex_);
  auto found = homes_.find(impl(leaf));
  return found != homes_.end() && same_place(gradient, found->second.place);
}

void offer_home(const Tensor& leaf, const Tensor& home) {
  if (Homes* homes = homes_of_pass()) homes->offer(leaf, home);
}

bool is_at_home(const Tensor& leaf, const Tensor& gradient) {
  Homes* homes = homes_of_pass();
  return homes && homes->any() && homes->is_at_home(leaf, gradient);
}

}  // namespace tutti
