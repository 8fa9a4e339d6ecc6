#include "graph/record.h"

#include <algorithm>

#include "autograd/meta.h"
#include "base/backtrace.h"
#include "base/check.h"
#include "comm/group/call.h"
#include "tensor/call.h"
#include "tutti/compile.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::graph {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  std::string where = backtrace_text();
  fail<TraceError>("compile", "{} cannot be part of a compiled function, at\n{}", what,
                   where.empty() ? "  (unknown: build with -g for lines)\n" : where);
}

bool is_readable(const Tensor& x) {
  const TensorImpl* t = impl(x);
  if (!t->storage || t->device.is_meta() || t->numel == 0) return true;
  return static_cast<size_t>(t->offset + span_elements(t->sizes, t->strides)) * size_of(t->dtype) <= t->storage->bytes;
}

}  // namespace

std::shared_ptr<const void> copy_attributes(Attributes& a) {
  if (!a.data) return nullptr;
  void* copy = ::operator new(a.type->size, std::align_val_t(a.type->align));
  a.type->copy(copy, a.data);
  a.data = copy;
  return std::shared_ptr<const void>(copy, [type = a.type](const void* p) {
    type->destroy(const_cast<void*>(p));
    ::operator delete(const_cast<void*>(p), std::align_val_t(type->align));
  });
}

Recorder::Recorder(std::string name, std::shared_ptr<Recorder> forward)
    : forward_(std::move(forward)), generator_(context().generator), first_node_(last_number()) {
  graph_.name = std::move(name);
}

ValueId Recorder::argument(const Tensor& x, size_t index) {
  std::lock_guard lock(mutex_);
  return add_input(x, Origin::argument, static_cast<int32_t>(index));
}

ValueId Recorder::output(const Tensor& x) {
  std::lock_guard lock(mutex_);
  ValueId v = x.defined() ? resolve(x, Use::read) : kNone;
  graph_.outputs.push_back(v);
  return v;
}

ValueId Recorder::known(const Tensor& x) const {
  auto it = handles_.find(impl(x));
  return it == handles_.end() ? kNone : it->second;
}

void Recorder::bind(const Tensor& x, ValueId v) {
  auto index = static_cast<size_t>(v);
  if (tensors_.size() <= index) tensors_.resize(index + 1);
  if (!tensors_[index].defined())
    tensors_[index] = x;
  else
    kept_.push_back(x);
  handles_[impl(x)] = v;
  if (impl(x)->sparse) sparse_indices_.insert(impl(impl(x)->sparse->indices)->storage.get());
  if (const Storage* s = versioned_storage(impl(x))) {
    auto& list = memories_[s].values;
    if (std::find(list.begin(), list.end(), v) == list.end()) list.push_back(v);
  }
}

ValueId Recorder::add_input(const Tensor& x, Origin origin, int32_t index) {
  if (on_input && origin != Origin::constant) {
    ModeGuard off(0, kTraceMode);
    on_input(x);
  }
  const Storage* s = versioned_storage(impl(x));
  ValueId memory = kNone;
  if (auto it = memories_.find(s); s && it != memories_.end()) memory = graph_.memory_of(it->second.values[0]);
  ValueId v = graph_.add_value(type_of(x), memory, kNone);
  graph_.inputs.push_back({.value = v,
                           .origin = origin,
                           .index = index,
                           .tensor = origin == Origin::captured || origin == Origin::constant ? x : Tensor()});
  bind(x, v);
  objects_.emplace(impl(x), v);
  if (origin != Origin::constant) met_.push_back({v, x, requires_grad(impl(x)), is_readable(x)});
  return v;
}

// Numbers, and tensors that host code filled: their values are part of the graph.
ValueId Recorder::add_constant(const Tensor& x) {
  Tensor copy;
  {
    NoGrad guard;
    ModeGuard off(0, kTraceMode);
    copy = make_tensor(x.sizes(), x.strides(), x.dtype(), x.device());
    copy.copy_(x.detach());
    impl(copy)->number = impl(x)->number;
  }
  ValueId v = graph_.add_value(type_of(copy), kNone, kNone);
  graph_.inputs.push_back({.value = v, .origin = Origin::constant, .index = 0, .tensor = copy});
  bind(x, v);
  return v;
}

ValueId Recorder::find_alias(const Tensor& x, Memory& memory) {
  Type type = type_of(x);
  for (ValueId v : memory.values)
    if (graph_.type(v) == type) return v;
  Node& n = add_node(Kind::alias);
  n.inputs = {memory.values[0]};
  ValueId v = graph_.add_value(std::move(type), graph_.memory_of(memory.values[0]),
                               static_cast<int32_t>(graph_.nodes.size() - 1));
  n.outputs = {v};
  return v;
}

// Memory made outside of operators: the first use tells whether host code had filled it.
void Recorder::settle(Memory& memory, ValueId v, Use use) {
  if (!memory.unwritten || use == Use::view) return;
  memory.unwritten = false;
  ValueId first = graph_.memory_of(v);
  if (use == Use::write && graph_.type(v) == graph_.type(first)) return;
  // The node `empty` becomes a constant; what the memory holds now is what host code has put there.
  Tensor whole = tensors_[static_cast<size_t>(first)], copy;
  {
    NoGrad guard;
    ModeGuard off(0, kTraceMode);
    copy = make_tensor(whole.sizes(), whole.strides(), whole.dtype(), whole.device());
    copy.copy_(whole.detach());
  }
  auto producer = graph_.values[static_cast<size_t>(first)].producer;
  graph_.inputs.push_back({.value = first, .origin = Origin::constant, .index = 0, .tensor = copy});
  graph_.values[static_cast<size_t>(first)].producer = kNone;
  graph_.nodes[static_cast<size_t>(producer)].outputs.clear();  // swept away when the graph is finished
}

ValueId Recorder::resolve(const Tensor& x, Use use) {
  if (!x.defined()) return kNone;
  ValueId v = kNone;
  const Storage* s = versioned_storage(impl(x));
  auto memory = s ? memories_.find(s) : memories_.end();
  if (auto it = handles_.find(impl(x)); it != handles_.end() && (!s || memory != memories_.end())) {
    v = it->second;
  } else if (memory != memories_.end()) {
    met_twice_ = met_twice_ || (graph_.input_of(memory->second.values[0]) && is_outside(x));
    v = find_alias(x, memory->second);
    bind(x, v);
  } else if (impl(x)->number) {
    return add_constant(x);
  } else {
    ValueId saved = forward_ ? forward_->find_saved(x) : kNone;
    if (saved != kNone) {
      const Tensor& whole = forward_->tensor(saved);
      v = add_input(whole, Origin::saved, saved);
      if (!whole.is_same(x)) return resolve(x, use);  // by its storage, which is known now
    } else {
      if (sparse_indices_.count(s)) refuse("using the indices of a sparse tensor that is made inside");
      v = add_input(x, Origin::captured, 0);
    }
  }
  if (s) settle(memories_[s], v, use);
  return v;
}

// What the forward pass knows of a tensor that backward uses: the value itself, or the first one of its memory.
ValueId Recorder::find_saved(const Tensor& x) {
  std::lock_guard lock(mutex_);
  const Storage* s = versioned_storage(impl(x));
  if (!s) return known(x);
  auto memory = memories_.find(s);
  if (memory == memories_.end()) return kNone;
  Type type = type_of(x);
  ValueId found = memory->second.values[0];
  for (ValueId v : memory->second.values)
    if (graph_.type(v) == type) found = v;
  settle(memory->second, found, Use::read);
  return found;
}

ValueId Recorder::object(const Tensor& t) const {
  auto it = objects_.find(impl(t));
  return it == objects_.end() ? kNone : it->second;
}

bool Recorder::is_leaf(const Tensor& t) const {
  return std::any_of(leaves_.begin(), leaves_.end(), [&](const Leaf& l) { return l.tensor.is_same(t); });
}

// Of a tensor that requires a gradient and was not met before: whether it was there already.
bool Recorder::is_outside(const Tensor& t) const {
  const AutogradMeta* meta = impl(t)->autograd;
  if (!meta || !grad_enabled() || !requires_grad(impl(t))) return false;
  return meta->node ? meta->node->sequence <= first_node_ : !is_leaf(t);
}

Node& Recorder::add_node(Kind kind) {
  graph_.nodes.push_back({.kind = kind, .keeps_version = (context().modes & kPreserveVersion) != 0});
  return graph_.nodes.back();
}

bool Recorder::call(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
                    std::span<Tensor> outputs) {
  Node node{.op = &op, .attributes = attributes, .keeps_version = (context().modes & kPreserveVersion) != 0};
  std::vector<bool> given;
  bool again = op.random && generator_ && context().generator != generator_;
  Generator::State at = op.random ? generator().state() : Generator::State{};
  {
    std::lock_guard lock(mutex_);
    node.owner = copy_attributes(node.attributes);
    for (size_t i = 0; i < inputs.size(); ++i)
      node.inputs.push_back(resolve(*inputs[i], op.view_of == static_cast<int>(i) ? Use::view : Use::read));
    for (auto& out : outputs) {
      given.push_back(out.defined());
      if (out.defined()) resolve(out, Use::write);
    }
    drew_random_ = drew_random_ || op.random;
    if (again && std::find(given.begin(), given.end(), true) != given.end())
      refuse("a checkpoint that writes random numbers into a tensor");
    if (op.collective) {
      std::string lines = backtrace_text();
      size_t begin = lines.find_first_not_of(' ');
      node.place = begin == std::string::npos ? "?" : lines.substr(begin, lines.find('\n') - begin);
    }
  }
  std::optional<comm::PurposeGuard> purpose;  // errors of ranks that wait for each other say it
  if (op.collective)
    purpose.emplace(comm::lasting(fmt::format("the first run of the compiled '{}'", graph_.name),
                                  "the first run of a compiled function"));
  if (!outer_ || !outer_->call(op, inputs, attributes, outputs)) tutti::call(op, inputs, attributes, outputs);
  purpose.reset();
  bool of_sparse = std::any_of(inputs.begin(), inputs.end(), [](auto* x) { return x->defined() && x->is_sparse(); });
  for (const Tensor& out : outputs)
    if (op.dynamic_shape && out.layout() == Layout::strided && !of_sparse)
      refuse(fmt::format("'{}', whose result's shape depends on values,", op.name));
  std::lock_guard lock(mutex_);
  if (again) return add_drawn(op, at, outputs), true;
  graph_.nodes.push_back(std::move(node));
  add_outputs(graph_.nodes.back(), outputs, given);
  if (op.random) drawn_.push_back({&op, at, graph_.nodes.back().outputs});
  return true;
}

const Recorder::Drawn* Recorder::find_drawn(const Operator& op, const Generator::State& at) const {
  for (const Drawn& d : drawn_)
    if (d.op == &op && d.at == at) return &d;
  return nullptr;
}

void Recorder::add_drawn(const Operator& op, const Generator::State& at, std::span<Tensor> outputs) {
  Recorder& first = forward_ && !find_drawn(op, at) ? *forward_ : *this;
  std::lock_guard lock(first.mutex_);
  const Drawn* drawn = first.find_drawn(op, at);
  if (!drawn) refuse("drawing random numbers from another generator than the thread's");
  std::vector<bool> written = written_memories(first.graph_);
  for (size_t i = 0; i < outputs.size(); ++i) {
    ValueId v = drawn->values[i];
    if (written[static_cast<size_t>(first.graph_.memory_of(v))] || !(first.graph_.type(v) == type_of(outputs[i])))
      refuse("a checkpoint that writes its random numbers");
    ValueId from = resolve(first.tensor(v), Use::read);
    add_copy(from, outputs[i]);
  }
}

void Recorder::add_outputs(Node& node, std::span<Tensor> outputs, const std::vector<bool>& given) {
  auto producer = static_cast<int32_t>(graph_.nodes.size() - 1);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (given[i]) {
      node.writes |= 1u << std::min<size_t>(i, 31);
      node.outputs.push_back(handles_.at(impl(outputs[i])));
      continue;
    }
    const Storage* s = versioned_storage(impl(outputs[i]));
    auto known = memories_.find(s);
    ValueId memory = s && known != memories_.end() ? graph_.memory_of(known->second.values[0]) : kNone;
    ValueId v = graph_.add_value(type_of(outputs[i]), memory, producer);
    node.outputs.push_back(v);
    bind(outputs[i], v);
  }
}

bool Recorder::node(tutti::Node& node, std::span<Tensor> outputs, std::span<Tensor> inputs,
                    const std::function<void()>& run) {
  auto which = hosts.find(&node);
  if (which == hosts.end()) return false;
  Node host{.kind = Kind::host, .number = which->second};
  {
    std::lock_guard lock(mutex_);
    for (const Tensor& g : outputs) host.inputs.push_back(resolve(g, Use::read));
  }
  {
    ModeGuard off(0, kTraceMode);
    run();
  }
  std::lock_guard lock(mutex_);
  graph_.nodes.push_back(std::move(host));
  auto producer = static_cast<int32_t>(graph_.nodes.size() - 1);
  // What comes out is this node's, though it may be what went in: the next time it may be something else.
  auto& given = gave[which->second];
  for (Tensor& g : inputs) {
    if (g.defined()) g = make_alias(g);
    if (g.defined() && !g.is_sparse() && memories_.count(versioned_storage(impl(g)))) {
      NoGrad guard;
      ModeGuard off(0, kTraceMode);
      g = g.detach().clone();  // of what went in, or of another that came out: as if it were not
    }
    given.push_back(g.defined() ? std::optional(type_of(g)) : std::nullopt);
    ValueId v = graph_.add_value(g.defined() ? type_of(g) : Type{}, kNone, producer);
    graph_.nodes.back().outputs.push_back(v);
    if (!g.defined()) continue;
    tensors_.resize(graph_.values.size());
    tensors_[static_cast<size_t>(v)] = g;
    handles_[impl(g)] = v;
    kept_.push_back(g);
    memories_[versioned_storage(impl(g))].values = {v};
  }
  return true;
}

void Recorder::made(const Tensor& t) {
  {
    std::lock_guard lock(mutex_);
    Node& n = add_node(Kind::empty);
    ValueId v = graph_.add_value(type_of(t), kNone, static_cast<int32_t>(graph_.nodes.size() - 1));
    n.outputs = {v};
    bind(t, v);
    memories_[versioned_storage(impl(t))].unwritten = true;
  }
  NestedTracer::made(t);
}

void Recorder::add_copy(ValueId from, const Tensor& copy) {
  add_node(Kind::empty);
  auto producer = static_cast<int32_t>(graph_.nodes.size() - 1);
  ValueId v = graph_.add_value(type_of(copy), kNone, producer);
  graph_.nodes.back().outputs = {v};
  bind(copy, v);
  graph_.nodes.push_back({.op = &copy_operator(), .inputs = {from}, .outputs = {v}, .writes = 1});
}

void Recorder::copied(const Tensor& original, const Tensor& copy) {
  {
    std::lock_guard lock(mutex_);
    ValueId from = resolve(original, Use::read);
    add_copy(from, copy);
  }
  NestedTracer::copied(original, copy);
}

// ---- After the run

void Recorder::replace(const Tensor& from, const Tensor& to) {
  std::lock_guard lock(mutex_);
  auto swap = [&](Tensor& t) {
    if (!t.defined()) return;
    if (impl(t)->base.defined() && impl(t)->base.is_same(from)) impl(t)->base = to;
    if (t.is_same(from)) t = to;
  };
  for (TensorList* list : {&tensors_, &kept_})
    for (Tensor& t : *list) swap(t);
  for (Met& m : met_) swap(m.tensor);
  for (auto* map : {&handles_, &objects_})
    if (auto it = map->find(impl(from)); it != map->end()) {
      ValueId v = it->second;
      map->erase(it);
      map->emplace(impl(to), v);
    }
}

void Recorder::for_each_inside(const std::function<void(const Tensor&)>& f) const {
  for (const TensorList* list : {&tensors_, &kept_})
    for (const Tensor& t : *list)
      if (t.defined() && !objects_.count(impl(t))) f(t);
}

// ---- Effects

void Recorder::resized(const Tensor& t, size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    ValueId v = resolve(t, Use::view);
    Node& n = add_node(Kind::resize);
    n.inputs = {v};
    n.number = static_cast<int64_t>(bytes);
  }
  NestedTracer::resized(t, bytes);
}

void Recorder::version_read(const Tensor& t, uint64_t version) {
  {
    std::lock_guard lock(mutex_);
    ValueId v = resolve(t, Use::view);
    add_node(Kind::version).inputs = {v};
    versions_[versioned_storage(impl(t))].emplace_back(version, static_cast<int32_t>(graph_.nodes.size() - 1));
  }
  NestedTracer::version_read(t, version);
}

// A number that was read from this very tensor stands for "as it was then"; any other is meant as it is.
void Recorder::version_set(const Tensor& t, uint64_t version) {
  {
    std::lock_guard lock(mutex_);
    ValueId v = resolve(t, Use::view);
    Node& n = add_node(Kind::set_version);
    n.inputs = {v};
    n.absolute = true;
    n.number = static_cast<int64_t>(version);
    const auto& read = versions_[versioned_storage(impl(t))];
    for (auto it = read.rbegin(); it != read.rend() && n.absolute; ++it)
      if (it->first == version) {
        n.absolute = false;
        n.number = it->second;
      }
  }
  NestedTracer::version_set(t, version);
}

void Recorder::grad_read(const Tensor& leaf, const Tensor& gradient) {
  {
    std::lock_guard lock(mutex_);
    resolve(leaf, Use::view);
    ValueId v = object(leaf);
    bool set_here = grads_set_.count(impl(leaf)) != 0;
    if (v != kNone && !set_here) {
      auto asked = std::pair(v, gradient.defined());
      if (std::find(gradients_.begin(), gradients_.end(), asked) == gradients_.end()) gradients_.push_back(asked);
      if (gradient.defined() && known(gradient) == kNone) add_input(gradient, Origin::gradient, v);
    }
  }
  NestedTracer::grad_read(leaf, gradient);
}

void Recorder::grad_set(const Tensor& leaf, const Tensor& gradient) {
  {
    std::lock_guard lock(mutex_);
    resolve(leaf, Use::view);
    ValueId v = object(leaf);
    if (v == kNone) refuse("setting the gradient of a tensor that is made inside");
    ValueId g = resolve(gradient, Use::read);
    add_node(Kind::set_grad).inputs = {v, g};
    grads_set_.insert(impl(leaf));
  }
  NestedTracer::grad_set(leaf, gradient);
}

void Recorder::grad_required(const Tensor& leaf, bool required) {
  {
    std::lock_guard lock(mutex_);
    ValueId v = resolve(leaf, Use::view);
    if (ValueId input = object(leaf); input != kNone) {
      Node& n = add_node(Kind::require_grad);
      n.inputs = {input};
      n.number = required;
    }
    if (required && !is_leaf(leaf)) leaves_.push_back({v, leaf});
  }
  NestedTracer::grad_required(leaf, required);
}

void Recorder::data_set(const Tensor& t, const Tensor& from) {
  {
    std::lock_guard lock(mutex_);
    ValueId v = object(t), data = resolve(from, Use::read);
    if (v == kNone) {
      if (handles_.count(impl(t)) == 0) refuse("set_data() on a tensor that has not been used before");
      handles_[impl(t)] = data;
    } else {
      add_node(Kind::set_data).inputs = {v, data};
      handles_[impl(t)] = data;
    }
    kept_.push_back(t);
  }
  NestedTracer::data_set(t, from);
}

void Recorder::hooked(const Tensor& t) {
  bool outside = false;
  {
    std::lock_guard lock(mutex_);
    outside = !is_leaf(t) && (object(t) != kNone || handles_.count(impl(t)) == 0);
  }
  if (outside) refuse("a hook on a tensor that was made outside (register it there)");
  NestedTracer::hooked(t);
}

void Recorder::looked_at(const std::shared_ptr<const Outside>& what) {
  NestedTracer::looked_at(what);
  std::lock_guard lock(mutex_);
  if (std::find(outside_.begin(), outside_.end(), what) == outside_.end()) outside_.push_back(what);
}

void Recorder::untraceable(const char* what) { refuse(what); }

}  // namespace tutti::graph
