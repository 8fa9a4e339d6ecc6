#include "graph/given.h"

#include <algorithm>

#include "graph/function.h"

namespace tutti::graph {
namespace {

bool same_input(const Input& a, const Input& b) {
  return a.value == b.value && a.origin == b.origin && a.index == b.index;
}
bool same_inputs(const std::vector<Input>& a, const std::vector<Input>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_input);
}
bool same_result(const Result& a, const Result& b) {
  return a.kind == b.kind && a.index == b.index && same_input(a.of, b.of) && a.chain.size() == b.chain.size() &&
         a.early == b.early && a.made == b.made && a.root == b.root && a.aliases == b.aliases;
}
bool same_target(const Target& a, const Target& b) {
  return same_input(a.input, b.input) && a.leaf == b.leaf && a.edges == b.edges;
}

// One count for all that hold it here, so that it shows when nobody else does.
template <class T>
std::shared_ptr<const T> hold(const T& counted, const void* key) {
  static std::mutex mutex;
  static std::unordered_map<const void*, std::weak_ptr<const T>> all;
  std::lock_guard lock(mutex);
  std::erase_if(all, [](auto& item) { return item.second.expired(); });
  auto held = all[key].lock();
  if (!held) all[key] = held = std::make_shared<const T>(counted);
  return held;
}

}  // namespace

Given::Given(const TensorList& arguments, bool lasting) : lasting_(lasting) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Tensor& x = arguments[i];
    if (!x.defined() || x.is_number()) continue;  // a number is part of the graph
    const TensorImpl* t = impl(x);
    Storage* memory = versioned_storage(t);
    Item item{.index = i, .object = t, .offset = t->offset, .requires_grad = x.requires_grad()};
    if (memory) item.memory = hold(Ref<Storage>(memory), memory);
    if (!memory || (x.is_leaf() && !t->base.defined())) item.leaf = hold(x, t);
    items_.push_back(std::move(item));
  }
}

bool Given::Item::is(const Tensor& x) const {
  const TensorImpl* t = impl(x);
  if (leaf && t == object) return true;
  if (!in_memory(t)) return false;
  // What requires a gradient has a place of its own for it.
  return anywhere || (t->offset == offset && (anyone || t == object || !requires_grad));
}

bool Given::Item::in_memory(const TensorImpl* t) const { return memory && versioned_storage(t) == memory->get(); }

bool Given::Item::lost() const {
  if (leaf && object->references.load(std::memory_order_acquire) > 1) return false;
  uint32_t mine = leaf && in_memory(object) ? 2 : 1;
  return !memory || (*memory)->references.load(std::memory_order_acquire) <= mine;
}

// Whether a trace with this tensor in its place tells that it may be any.
bool Given::Item::compare(const TensorImpl* other, const Storage* other_memory, int64_t other_offset) {
  if (other == object && leaf) return false;
  if (!memory || other_memory != memory->get()) return true;
  anyone = true;
  anywhere = anywhere || other_offset != offset;
  return false;
}

bool Given::fits(const TensorList& arguments) {
  if (any()) return true;
  forget_lost();
  return std::all_of(items_.begin(), items_.end(), [&](const Item& item) { return item.is(arguments[item.index]); });
}

void Given::also(const TensorList& arguments) {
  std::erase_if(items_, [&](Item& item) {
    const TensorImpl* t = impl(arguments[item.index]);
    return item.compare(t, versioned_storage(t), t->offset);
  });
}

void Given::also(const Given& other) {
  std::erase_if(items_, [&](Item& item) {
    auto same = std::find_if(other.items_.begin(), other.items_.end(), [&](auto& x) { return x.index == item.index; });
    return same == other.items_.end() ||
           item.compare(same->object, same->memory ? same->memory->get() : nullptr, same->offset);
  });
}

void Given::forget_lost() {
  if (!lasting_) std::erase_if(items_, [](const Item& item) { return item.lost(); });
}

bool may_bucket(const Graph& graph) { return graph.count("all_reduce") > 1; }

// Another geometry of an argument's memory begins where it does in relation to the argument, or else it is a captured
// tensor, which is where it is.
static bool same_alias(const Graph& a, const Node& x, const Graph& b, const Node& y) {
  if (x.kind != Kind::alias || x.outputs.empty() || x.inputs.empty()) return true;
  const Type &to = a.type(x.outputs[0]), &too = b.type(y.outputs[0]);
  return to.sizes == too.sizes && to.strides == too.strides &&
         to.offset - a.type(x.inputs[0]).offset == too.offset - b.type(y.inputs[0]).offset;
}

// Numbers that the function takes from elsewhere stay what they were, and so do captured tensors: those may differ.
bool same_structure(const Graph& a, const Graph& b) {
  return a.values.size() == b.values.size() && a.outputs == b.outputs && same_inputs(a.inputs, b.inputs) &&
         std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(), [&](const Node& x, const Node& y) {
           return x.kind == y.kind && x.op == y.op && x.inputs == y.inputs && x.outputs == y.outputs &&
                  x.writes == y.writes && same_alias(a, x, b, y);
         });
}

bool same_trace(const Entry& a, const Graph& a_traced, const Entry& b) {
  return std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(), same_result) &&
         std::equal(a.targets.begin(), a.targets.end(), b.targets.begin(), b.targets.end(), same_target) &&
         same_inputs(a.mutated, b.mutated) && same_inputs(a.leaf_inputs, b.leaf_inputs) &&
         a.value_roots == b.value_roots && a.value_count == b.value_count && a.leaf_count == b.leaf_count &&
         a.pure == b.pure && a.live == b.live && same_structure(a_traced, *b.traced());
}

}  // namespace tutti::graph
