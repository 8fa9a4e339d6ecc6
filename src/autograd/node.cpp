#include "autograd/node.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "autograd/meta.h"
#include "base/backtrace.h"
#include "base/check.h"

namespace tutti {
namespace {

// Note [Freeing graphs]: a graph may be millions of nodes deep. A node whose last reference goes is put on this
// thread's list; the outermost call empties the list, so that depth never becomes stack. The list needs no destructor,
// since tensors in static storage free their graphs after those of thread-local objects have run; dead nodes are linked
// through their sequence numbers, which nobody asks for any more.
struct Graveyard {
  Node* first = nullptr;
  bool draining = false;
};
thread_local Graveyard graveyard;
thread_local uint64_t last_sequence = 0;

}  // namespace

void destroy(Node* node) noexcept {
  Graveyard& g = graveyard;
  if (g.draining) {
    node->sequence = reinterpret_cast<uint64_t>(std::exchange(g.first, node));
    return;
  }
  g.draining = true;
  delete node;
  while (g.first) {
    Node* next = g.first;
    g.first = reinterpret_cast<Node*>(next->sequence);
    delete next;
  }
  g.draining = false;
}

NodeHooks& Node::hooks() {
  NodeHooks* found = hooks_.load(std::memory_order_acquire);
  if (found) return *found;
  auto fresh = std::make_unique<NodeHooks>();
  if (hooks_.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *found;  // somebody else's
}

namespace {
uint32_t thread_number() {
  static std::atomic<uint32_t> threads{0};
  thread_local const uint32_t mine = threads.fetch_add(1, std::memory_order_relaxed);
  return mine;
}
}  // namespace

Visit::Visit(Node& node, bool frees) : node_(node) {
  if (!node.keeps) return;
  const uint32_t taken = kTaken | (thread_number() & (kTaken - 1));
  uint32_t seen = node.visits.load(std::memory_order_acquire);
  while (!(seen & kFreed)) {  // if it was, the node says so where it matters
    if (seen == taken) return;
    if (seen & kTaken) freed_already(node);
    bool alone = frees && seen == 0;
    if (!node.visits.compare_exchange_weak(seen, alone ? taken : seen + 1, std::memory_order_acq_rel)) continue;
    state_ = alone ? State::alone : State::reading;
    return;
  }
}

void Visit::leave(uint32_t then) {
  if (state_ == State::alone) {
    if (!then) node_.free_soon(false);
    node_.visits.store(then, std::memory_order_release);
  }
  if (state_ == State::reading) node_.visits.fetch_sub(1, std::memory_order_release);
  state_ = State::outside;
}

void Visit::free_saved() {
  if (state_ != State::alone) return;
  node_.free_saved();
  leave(kFreed);
}

void freed_already(const Node& node) {
  fail<GradError>(
      "backward",
      "the graph at '{}' was already used and freed: pass retain_graph to the first backward to use it twice",
      node.name());
}

void number_node(Node& node) {
  uint64_t highest = last_sequence;
  for (auto& edge : node.edges)
    if (edge.node) highest = std::max(highest, edge.node->sequence);
  node.sequence = last_sequence = highest + 1;
}

uint64_t last_number() { return last_sequence; }

void note_origin(Node& node) { node.origin = std::make_unique<std::string>(backtrace_text()); }

SavedTensor::SavedTensor(const Tensor& tensor, bool is_output) : is_output_(is_output) {
  const TensorImpl* t = impl(tensor);
  const Storage* storage = versioned_storage(t);
  version_ = storage ? storage->version.load(std::memory_order_relaxed) : 0;
  data_changes_ = t->data_changes;
  if (is_output) {
    tensor_ = make_alias(tensor);
    output_ = t->autograd ? t->autograd->output : 0;
  } else {
    tensor_ = tensor;
  }
}

SavedTensor SavedTensor::of_copy(Tensor copy, Edge history, bool requires_grad) {
  SavedTensor s;
  s.version_ = copy.version();
  s.data_changes_ = impl(copy)->data_changes;
  s.tensor_ = std::move(copy);
  s.history_ = std::move(history);
  s.detached_ = requires_grad;
  return s;
}

void SavedTensor::replace(const Tensor& from, const Tensor& to) {
  if (!tensor_.defined() || !tensor_.is_same(from)) return;
  data_changes_ += impl(to)->data_changes - impl(tensor_)->data_changes;
  tensor_ = to;
}

void SavedTensor::reset() {
  tensor_.reset();
  history_ = {};
  freed_ = true;
}

Tensor SavedTensor::unpack(const Node& saver) const {
  if (freed_) freed_already(saver);
  if (!tensor_.defined()) return {};
  const TensorImpl* t = impl(tensor_);
  const Storage* storage = versioned_storage(t);
  check<VersionError>(t->data_changes == data_changes_, "backward",
                      "'{}' needs {} as it was, but set_data() (or a module's to()) has given it other data since: run "
                      "backward before that, or forward again",
                      saver.name(), tensor_);
  if (storage && storage->version.load(std::memory_order_relaxed) != version_) {
    const char* writer = storage->last_writer.load(std::memory_order_relaxed);
    fail<VersionError>("backward",
                       "'{}' needs {} as it was, at version {}, but it is now at version {}: '{}' wrote to it in place "
                       "since. Use the out-of-place form, or clone() before writing{}{}",
                       saver.name(), tensor_, version_, storage->version.load(), writer ? writer : "something",
                       saver.origin ? "\nforward of this node:\n" : "", saver.origin ? *saver.origin : "");
  }
  if (!is_output_ && !detached_) return tensor_;
  Tensor result = make_alias(tensor_);
  if (!is_differentiable(t->dtype)) return result;
  auto& meta = autograd_meta(result);
  if (is_output_) {
    meta.node = Ref<Node>(const_cast<Node*>(&saver));
    meta.output = output_;
  } else {
    meta.node = history_.node;
    meta.output = history_.output;
  }
  return result;
}

AccumulateNode::AccumulateNode(const Tensor& leaf) : leaf_(leaf) {
  device = leaf.device();
  watched = true;  // the leaf has a plain pointer to it
  number_node(*this);
}

AccumulateNode::~AccumulateNode() {
  std::lock_guard lock(autograd_mutex(impl(leaf_)));
  auto* meta = impl(leaf_)->autograd;
  if (meta && meta->accumulator == this) meta->accumulator = nullptr;
}

void AccumulateNode::before(GradientBuffer& outputs) {
  LeafHooks* hooks = leaf_hooks(leaf_, false);
  if (!hooks) return;
  hooks->before.each([&](auto& hook) {
    if (Tensor changed = hook(outputs[0]); changed.defined()) {
      check_replacement("register_hook", changed, leaf_);
      outputs[0] = changed;
    }
  });
}

bool AccumulateNode::signature(std::string& key, TensorList& kept) const {
  if (leaf_hooks(leaf_, false)) return false;
  key += "leaf";
  kept.push_back(leaf_);
  return true;
}

void AccumulateNode::run(GradientBuffer& outputs, GradientBuffer&) {
  check_replacement("backward", outputs[0], leaf_);
  gradient_sink().accumulate(leaf_, std::move(outputs[0]));
  if (LeafHooks* hooks = leaf_hooks(leaf_, false)) hooks->accumulated.each([&](auto& hook) { hook(leaf_); });
}

void check_replacement(const char* what, const Tensor& gradient, const Tensor& like) {
  check<ShapeError>(gradient.sizes() == like.sizes(), what, "{} cannot be the gradient of {}: the shapes differ",
                    gradient, like);
  check<DTypeError>(gradient.dtype() == like.dtype(), what, "{} cannot be the gradient of {}: cast it first", gradient,
                    like);
  check<DeviceError>(gradient.device() == like.device(), what, "{} cannot be the gradient of {}: move it there first",
                     gradient, like);
}

std::string node_name(const Node& node) { return node.name(); }

HookHandle register_pre_hook(Node& node, std::function<void(Gradients&)> hook) {
  return node.hooks().before.add(std::move(hook));
}
HookHandle register_post_hook(Node& node, std::function<void(Gradients&, const Gradients&)> hook) {
  return node.hooks().after.add(std::move(hook));
}
std::vector<Node*> next_nodes(const Node& node) {
  std::vector<Node*> nodes;
  for (auto& edge : node.edges) nodes.push_back(edge.node.get());
  return nodes;
}

}  // namespace tutti
