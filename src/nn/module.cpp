// What modules can do whatever their type: walking the tree, and changing all of it.
#include "tutti/nn/module.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>

#include "base/check.h"
#include "base/names.h"
#include "nn/hooks.h"
#include "nn/visit.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::nn {

Parameter::Parameter(const Tensor& data, bool requires_grad) {
  if (!data.defined()) return;
  // A leaf that nobody asked gradients of becomes the parameter itself; anything else keeps its own place in its graph.
  static_cast<Tensor&>(*this) = data.is_leaf() && !data.is_view() && !data.is_number() ? data : data.detach();
  requires_grad_(requires_grad && (is_floating() || is_complex()));
}

static std::mutex awaited_mutex;  // copies may make their first call at once
void Parameter::arrive(const Tensor& value) {
  std::lock_guard lock(awaited_mutex);
  if (!awaited->value.defined()) awaited->value = Parameter(value, awaited->requires_grad);
  static_cast<Tensor&>(*this) = awaited->value;
}
void Parameter::take_over() {
  std::lock_guard lock(awaited_mutex);
  static_cast<Tensor&>(*this) = awaited->value;
}

ModuleBase::ModuleBase() = default;
ModuleBase::~ModuleBase() {
  if (setting_) setting_->module_is_gone();
}
ModuleBase::ModuleBase(ModuleBase&& other) noexcept
    : hooks_(std::move(other.hooks_)), training_(other.training_), replica_(other.replica_) {
  other.was_set();
}
ModuleBase& ModuleBase::operator=(ModuleBase&& other) noexcept {
  if (this == &other) return *this;
  hooks_ = std::move(other.hooks_);
  training_ = other.training_;
  replica_ = other.replica_;
  was_set();
  other.was_set();
  return *this;
}
ModuleBase::ModuleBase(const ModuleBase& other)
    : hooks_(other.hooks_ ? std::make_unique<detail::Hooks>(*other.hooks_) : nullptr),
      training_(other.training_),
      replica_(other.replica_) {
  other.look();  // the copy will do what this one would
}
ModuleBase& ModuleBase::operator=(const ModuleBase& other) {
  if (this == &other) return *this;
  other.look();
  hooks_ = other.hooks_ ? std::make_unique<detail::Hooks>(*other.hooks_) : nullptr;
  training_ = other.training_;
  replica_ = other.replica_;
  was_set();
  return *this;
}

namespace {

using detail::nothing;
using detail::walk;

template <class Handle>
auto collect(std::vector<std::pair<std::string, Tensor>>& list, std::set<TensorImpl*>& seen) {
  return [&](const std::string& path, Handle& t) {
    if constexpr (std::same_as<Handle, Parameter>)
      check<ValueError>(t.defined() || !t.awaited, "parameters",
                        "{} has no value yet: its module is lazy and must run once first", path);
    if (t.defined() && seen.insert(t.impl()).second) list.emplace_back(path, t);
  };
}

TensorList without_names(const std::vector<std::pair<std::string, Tensor>>& named) {
  TensorList list;
  for (const auto& [name, t] : named) list.push_back(t);
  return list;
}

// Calls f(path, tensor handle) for every parameter and buffer that is defined.
template <class F>
void for_each_state(const ModuleBase& module, F f) {
  auto visit = [&](const std::string& path, auto& t) {
    if (t.defined()) f(path, t);
  };
  walk(module, visit, visit, nothing);
}

}  // namespace

std::vector<std::pair<std::string, Tensor>> ModuleBase::named_parameters() const {
  std::vector<std::pair<std::string, Tensor>> list;
  std::set<TensorImpl*> seen;
  walk(*this, collect<Parameter>(list, seen), nothing, nothing);
  return list;
}
std::vector<std::pair<std::string, Tensor>> ModuleBase::named_buffers() const {
  std::vector<std::pair<std::string, Tensor>> list;
  std::set<TensorImpl*> seen;
  walk(*this, nothing, collect<Buffer>(list, seen), nothing);
  return list;
}
TensorList ModuleBase::parameters() const { return without_names(named_parameters()); }
TensorList ModuleBase::buffers() const { return without_names(named_buffers()); }

std::vector<std::pair<std::string, ModuleBase*>> ModuleBase::named_modules() const {
  std::vector<std::pair<std::string, ModuleBase*>> list;
  walk(*this, nothing, nothing, [&](const std::string& path, ModuleBase& m) { list.emplace_back(path, &m); });
  return list;
}

std::vector<std::pair<std::string, ModuleBase*>> ModuleBase::named_children() const {
  struct Children final : detail::FieldVisitor {
    std::vector<std::pair<std::string, ModuleBase*>> list;
    void parameter(const std::string&, Parameter&) override {}
    void buffer(const std::string&, Buffer&) override {}
    void module(const std::string& name, ModuleBase& m) override { list.emplace_back(name, &m); }
  } children;
  const_cast<ModuleBase*>(this)->visit_fields(children);
  return std::move(children.list);
}

int64_t ModuleBase::parameter_count() const {
  int64_t count = 0;
  std::set<TensorImpl*> seen;
  walk(
      *this,
      [&](const std::string&, Parameter& p) {
        if (p.defined() && seen.insert(p.impl()).second) count += p.numel();
      },
      nothing, nothing);
  return count;
}

void ModuleBase::apply(const std::function<void(ModuleBase&)>& f) {
  for (auto& [name, child] : named_children()) child->apply(f);
  f(*this);
}

void ModuleBase::train(bool on) {
  walk(*this, nothing, nothing, [on](const std::string&, ModuleBase& m) {
    m.training_ = on;
    m.was_set();
  });
}

void ModuleBase::to(const ModuleOptions& options) {
  check<ValueError>(!options.dtype || is_differentiable(*options.dtype), "Module::to",
                    "a module is of a floating-point or complex dtype: it cannot be trained or run in {}",
                    options.dtype.value_or(DType::f32));
  NoGrad guard;
  auto converted = [&](Tensor t) {
    if (options.device) t = t.to(*options.device);
    if (options.dtype && t.is_floating()) t = t.to(*options.dtype);
    // Formats other than contiguous are for images; a tensor of another number of dims has no channels to put last.
    if (options.format && (t.dim() == 4 || t.dim() == 5 || *options.format == MemoryFormat::contiguous))
      t = t.contiguous(*options.format);
    return t;
  };
  auto promise = [&](const std::string&, Parameter& p) {
    if (p.defined() || !p.awaited) return;
    if (options.device) p.awaited->device = options.device;
    if (options.dtype) p.awaited->dtype = options.dtype;
  };
  walk(*this, promise, nothing, nothing);
  std::set<TensorImpl*> done;
  for_each_state(*this, [&](const std::string&, Tensor& t) {
    if (!done.insert(t.impl()).second) return;
    Tensor gradient = t.grad();
    if (Tensor next = converted(t.detach()); !next.is_same(t)) t.set_data(next);
    if (gradient.defined()) t.set_grad(converted(gradient));
  });
}

void ModuleBase::zero_grad() {
  if (replica_) {
    std::fprintf(
        stderr,
        "tutti: zero_grad() of a replica of %s has no effect: gradients are in the module that it is a replica "
        "of; call it there\n",
        type_name().c_str());
    return;
  }
  walk(
      *this,
      [](const std::string&, Parameter& p) {
        if (p.defined()) p.Tensor::zero_grad();
      },
      nothing, nothing);
}

void ModuleBase::requires_grad_(bool value) {
  walk(
      *this,
      [value](const std::string&, Parameter& p) {
        if (p.defined()) p.Tensor::requires_grad_(value);
        if (p.awaited) p.awaited->requires_grad = value;
      },
      nothing, nothing);
}

void unshare(ModuleBase& module) {
  NoGrad guard;
  std::map<TensorImpl*, Tensor> copies;
  for_each_state(module, [&](const std::string&, Tensor& t) {
    Tensor& copy = copies[t.impl()];
    if (!copy.defined()) {
      copy = t.detach().clone();
      if (t.requires_grad()) copy.requires_grad_();
    }
    t = copy;
  });
  std::map<Parameter::Awaited*, std::shared_ptr<Parameter::Awaited>> cells;
  auto wait_anew = [&](const std::string&, Parameter& p) {
    if (!p.awaited) return;
    auto& cell = cells[p.awaited.get()];
    if (!cell) cell = std::make_shared<Parameter::Awaited>(*p.awaited);
    cell->value = p;
    p.awaited = cell;
  };
  walk(module, wait_anew, nothing, [](const std::string&, ModuleBase& m) {
    if (m.hooks_) m.hooks_->unshare();
    m.was_set();
  });
}

std::string ModuleBase::type_name() const { return short_name(typeid(*this)); }

namespace detail {

void failed_in(const ModuleBase& module, Error& error) noexcept {
  try {
    const void* failed = error.module_address();
    if (!failed) return error.set_module(&module, module.type_name());
    for (const auto& [path, below] : module.named_modules())
      if (below == failed && below != &module)
        return error.set_module(failed, fmt::format("{}.{} ({})", module.type_name(), path, below->type_name()));
  } catch (...) {  // NOLINT: the error itself is worth more than its place
  }
}

void check_declared(const ModuleBase& module, const std::type_info& declared) {
  if (typeid(module) == declared) return;
  check<ValueError>(
      false, "module",
      "{} is derived from {}, whose fields and forward are all that would be seen of it: make it a Module<{}> of its "
      "own that has a {} as a member",
      short_name(typeid(module)), short_name(declared), short_name(typeid(module)), short_name(declared));
}

void check_layout(const std::type_info& type, const void* object, size_t base, size_t size, const char* names,
                  std::span<const FieldPlace> fields) {
  struct Range {
    std::string name;
    size_t begin, end, align;
  };
  std::vector<Range> ranges;
  for (size_t i = 0; i < fields.size(); ++i) {
    auto begin = static_cast<size_t>(static_cast<const char*>(fields[i].at) - static_cast<const char*>(object));
    ranges.push_back({tree::Key{.fields = names, .index = static_cast<int64_t>(i)}.text(), begin,
                      begin + fields[i].size, fields[i].align});
  }
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  ranges.push_back({"its end", size, size, 1});
  std::string last = "its beginning";
  size_t end = base;
  for (const Range& f : ranges) {
    // Up to the next field's alignment there may be padding; a tensor or module has at least 8 bytes.
    check<ValueError>(
        f.begin < end + std::max<size_t>(8, f.align), "module",
        "{} has {} bytes between {} and {} that TUTTI_FIELDS does not name: a member was forgotten. If it "
        "holds no tensors or modules, name it all the same, or declare "
        "'static constexpr bool other_members = true;'",
        short_name(type), f.begin - end, last, f.name);
    end = std::max(end, f.end);
    last = f.name;
  }
}

}  // namespace detail
}  // namespace tutti::nn
