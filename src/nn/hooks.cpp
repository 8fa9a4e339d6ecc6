// Running a module with hooks around it. See Note [Backward hooks].
#include "nn/hooks.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "tutti/autograd.h"

namespace tutti::nn {

// Note [Backward hooks]
// A module's gradients are seen by two identities put into the graph: one over all outputs, whose backward has the
// gradients of the outputs, and one over all inputs, whose backward has those of the inputs. One node over all tensors,
// not one each, so that a hook sees them together. The hooks get the module as it is in backward: a copy taken in
// forward (it shares the tensors), since the object that ran forward may have been moved or be gone.
namespace {

thread_local detail::CallNotes* current_notes = nullptr;
class NotesGuard {
 public:
  explicit NotesGuard(detail::CallNotes* notes) : saved_(std::exchange(current_notes, notes)) {}
  ~NotesGuard() { current_notes = saved_; }
  NotesGuard(const NotesGuard&) = delete;
  NotesGuard& operator=(const NotesGuard&) = delete;

 private:
  detail::CallNotes* saved_;
};

// Where the tensors that are in the graph stand among all: the others are undefined.
struct Places {
  std::vector<size_t> defined = {};
  size_t count = 0;

  explicit Places(const TensorList& all = {}) : count(all.size()) {
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].defined()) defined.push_back(i);
  }
  TensorList narrow(const TensorList& all) const {
    TensorList some;
    for (size_t i : defined) some.push_back(all[i]);
    return some;
  }
  TensorList widen(const TensorList& some) const {
    TensorList all(count);
    for (size_t k = 0; k < defined.size(); ++k) all[defined[k]] = some[k];
    return all;
  }
};

struct Backward {
  std::unique_ptr<ModuleBase> module;
  std::shared_ptr<const detail::Hooks> hooks;
  bool has_inputs = false;
  Places inputs, outputs;
  detail::CallNotes notes;

  void set_grad_outputs(const TensorList& gradients) {
    std::lock_guard lock(mutex_);
    grad_outputs_ = gradients;
  }
  void run(TensorList& grad_inputs) {
    TensorList gradients;
    {
      std::lock_guard lock(mutex_);
      gradients = std::exchange(grad_outputs_, {});
    }
    gradients.resize(outputs.count);  // undefined where a pass began inside of the module
    NotesGuard guard(&notes);
    hooks->backward.run(*module, grad_inputs, gradients);
  }

 private:
  std::mutex mutex_;  // a graph that is kept may be passed twice at once
  TensorList grad_outputs_;
};

TensorList aliases(const TensorList& tensors) {
  TensorList result;
  for (const Tensor& t : tensors) result.push_back(t.defined() ? t.detach() : t);
  return result;
}

void check_count(const char* hook, size_t got, size_t wanted) {
  check<ValueError>(got == wanted, hook, "the hook left {} tensors where there were {}", got, wanted);
}
// Gradients have the shapes of what they are gradients of, whatever a hook does to them.
void check_gradients(const char* hook, const TensorList& before, const TensorList& after) {
  check_count(hook, after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i)
    check<ShapeError>(!before[i].defined() || !after[i].defined() || before[i].sizes() == after[i].sizes(), hook,
                      "the hook made {} of gradient {}, which is {}", after[i], i, before[i]);
}

struct InputGradients : Function<InputGradients> {
  std::shared_ptr<Backward> call;
  TensorList forward(const TensorList& inputs, const std::shared_ptr<Backward>& backward) {
    call = backward;
    accept_undefined_gradients();
    return aliases(inputs);
  }
  TensorList backward(const TensorList& gradients) {
    TensorList all = call->inputs.widen(gradients);
    const TensorList before = all;
    call->run(all);
    check_gradients("register_backward_hook", before, all);
    return call->inputs.narrow(all);
  }
};

struct OutputGradients : Function<OutputGradients> {
  std::shared_ptr<Backward> call;
  TensorList forward(const TensorList& outputs, const std::shared_ptr<Backward>& backward) {
    call = backward;
    accept_undefined_gradients();
    return aliases(outputs);
  }
  TensorList backward(const TensorList& gradients) {
    TensorList all = call->outputs.widen(gradients);
    const TensorList before = all;
    {
      NotesGuard guard(&call->notes);
      call->hooks->backward_pre.run(*call->module, all);
    }
    check_gradients("register_backward_pre_hook", before, all);
    call->set_grad_outputs(all);
    if (!call->has_inputs) {
      TensorList none(call->inputs.count);
      call->run(none);
    }
    return call->outputs.narrow(all);
  }
};

// Runs tensors through a Function, leaving those that cannot have a gradient as they are.
template <class F>
bool pass(TensorList& tensors, const Places& places, const std::shared_ptr<Backward>& call) {
  bool any = false;
  for (const Tensor& t : tensors) any = any || (t.defined() && t.requires_grad());
  if (!any) return false;
  TensorList through = places.widen(F::apply(places.narrow(tensors), call));
  for (size_t i : places.defined)
    if (tensors[i].requires_grad()) tensors[i] = through[i];
  return true;
}

}  // namespace

namespace detail {
namespace {

// What a call keeps from its beginning to its end. If that does not come, something has thrown.
struct Call {
  ModuleBase& module;
  HookList<ForwardFailureHook> on_failure;
  std::shared_ptr<Backward> backward = nullptr;
  bool finished = false;

  ~Call() {
    if (finished) return;
    try {
      on_failure.run(module);
    } catch (...) {  // the error that is on its way says more
    }
  }
};

// Visiting a parameter is enough.
struct CatchUp final : FieldVisitor {
  void parameter(const std::string&, Parameter&) override {}
  void buffer(const std::string&, Buffer&) override {}
  void module(const std::string&, ModuleBase& m) override { m.visit_fields(*this); }
};

}  // namespace

CallNotes* call_notes() { return current_notes; }

HookedCall::HookedCall(ModuleBase& module, TensorList& inputs) : module_(module), given_(inputs) {
  const Hooks& hooks = *module.hooks_;
  auto call = std::make_shared<Call>(module, hooks.forward_failure);
  state_ = call;
  size_t count = inputs.size();
  hooks.forward_pre.run(module, inputs);
  check_count("register_forward_pre_hook", inputs.size(), count);
  if (grad_enabled() && (!hooks.backward_pre.empty() || !hooks.backward.empty())) {
    auto backward = std::make_shared<Backward>();
    backward->module = module.copy();
    backward->hooks = std::make_shared<Hooks>(hooks);
    backward->inputs = Places(inputs);
    if (!hooks.backward.empty()) backward->has_inputs = pass<InputGradients>(inputs, backward->inputs, backward);
    call->backward = backward;
  }
  inputs_ = inputs;
}

void HookedCall::finish(TensorList& outputs) {
  auto call = std::static_pointer_cast<Call>(state_);
  size_t count = outputs.size();
  {
    NotesGuard guard(call->backward ? &call->backward->notes : nullptr);
    module_.hooks_->forward.run(module_, inputs_, outputs);
  }
  check_count("register_forward_hook", outputs.size(), count);
  if (call->backward) {
    CatchUp catch_up;  // lazy parameters have come since it was copied
    call->backward->module->visit_fields(catch_up);
    call->backward->outputs = Places(outputs);
    pass<OutputGradients>(outputs, call->backward->outputs, call->backward);
  }
  call->finished = true;
}

void HookedCall::restore(TensorList& tensors) const {
  for (Tensor& t : tensors)
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (t.defined() && t.is_same(inputs_[i])) {
        t = given_[i];
        break;
      }
}

void Setting::set(bool training, const Hooks* hooks) {
  std::vector<std::shared_ptr<const HookState>> list = hooks ? hooks->list() : decltype(list)();
  std::lock_guard lock(mutex_);
  training_ = training;
  hooks_.swap(list);  // the old ones go when the lock is gone
}
uint64_t Setting::now() const {
  std::lock_guard lock(mutex_);
  return gone_ ? last_ : number();
}
// One that was removed never comes back.
std::function<bool()> Setting::lasting() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const HookState>> here;
  for (const auto& hook : hooks_)
    if (!hook->removed) here.push_back(hook);
  if (here.empty()) return {};
  return
      [here] { return std::none_of(here.begin(), here.end(), [](const auto& hook) { return hook->removed.load(); }); };
}
// Ids are never used twice, and no sum of some is another's: each is mixed before.
uint64_t Setting::number() const {
  uint64_t number = training_ ? 1 : 2;
  for (const auto& hook : hooks_)
    if (!hook->removed) number = (number ^ hook->id) * 0x9e3779b97f4a7c15u + (number >> 29);
  return number;
}
void Setting::module_is_gone() {
  std::vector<std::shared_ptr<const HookState>> list;
  std::lock_guard lock(mutex_);
  last_ = number();
  gone_ = true;
  hooks_.swap(list);
}
std::string Setting::text() const {
  std::lock_guard lock(mutex_);
  size_t hooks = 0;
  for (const auto& hook : hooks_) hooks += !hook->removed;
  return fmt::format("a {} that {}, with {} hooks", module_, training_ ? "trains" : "does not train", hooks);
}

}  // namespace detail

void ModuleBase::tell_tracer() const {
  static std::mutex mutex;  // a module may be traced by several threads
  std::shared_ptr<detail::Setting> setting;
  {
    std::lock_guard lock(mutex);
    if (!setting_) {
      setting_ = std::make_shared<detail::Setting>(type_name());
      setting_->set(training_, hooks_.get());
    }
    setting = setting_;
  }
  if (Tracer* tracer = tracing()) tracer->looked_at(setting);
}
void ModuleBase::was_set() {
  if (setting_) setting_->set(training_, hooks_.get());
}

template <class Function>
HookHandle ModuleBase::add_hook(detail::HookList<Function> detail::Hooks::* list, Function hook) {
  if (!hooks_) hooks_ = std::make_unique<detail::Hooks>();
  HookHandle handle = ((*hooks_).*list).add(std::move(hook));
  was_set();
  return handle;
}
HookHandle ModuleBase::register_forward_pre_hook(ForwardPreHook hook) {
  return add_hook(&detail::Hooks::forward_pre, std::move(hook));
}
HookHandle ModuleBase::register_forward_hook(ForwardHook hook) {
  return add_hook(&detail::Hooks::forward, std::move(hook));
}
HookHandle ModuleBase::register_forward_failure_hook(ForwardFailureHook hook) {
  return add_hook(&detail::Hooks::forward_failure, std::move(hook));
}
HookHandle ModuleBase::register_backward_pre_hook(BackwardPreHook hook) {
  return add_hook(&detail::Hooks::backward_pre, std::move(hook));
}
HookHandle ModuleBase::register_backward_hook(BackwardHook hook) {
  return add_hook(&detail::Hooks::backward, std::move(hook));
}

}  // namespace tutti::nn
