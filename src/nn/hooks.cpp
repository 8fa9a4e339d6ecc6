// Running a module with hooks around it. See Note [Backward hooks].
#include "nn/hooks.h"

#include "base/check.h"
#include "tutti/autograd.h"

namespace tutti::nn {

// Note [Backward hooks]
// A module's gradients are seen by two identities put into the graph: one over all outputs, whose backward has the
// gradients of the outputs, and one over all inputs, whose backward has those of the inputs. One node over all tensors,
// not one each, so that a hook sees them together. The hooks get the module as it is in backward: a copy taken in
// forward (it shares the tensors), since the object that ran forward may have been moved or be gone.
namespace {

struct Backward {
  std::unique_ptr<ModuleBase> module;
  std::shared_ptr<const detail::Hooks> hooks;
  TensorList grad_outputs;
  bool has_inputs = false;
  size_t input_count = 0;

  void run(TensorList& grad_inputs) {
    TensorList outputs = std::move(grad_outputs);
    hooks->backward.run(*module, grad_inputs, outputs);
  }
};

TensorList aliases(const TensorList& tensors) {
  TensorList result;
  for (const Tensor& t : tensors) result.push_back(t.defined() ? t.detach() : t);
  return result;
}

void check_count(const char* hook, size_t got, size_t wanted) {
  check<ValueError>(got == wanted, hook, "the hook left {} tensors where there were {}", got, wanted);
}

struct InputGradients : Function<InputGradients> {
  std::shared_ptr<Backward> call;
  TensorList forward(const TensorList& inputs, const std::shared_ptr<Backward>& backward) {
    call = backward;
    accept_undefined_gradients();
    return aliases(inputs);
  }
  TensorList backward(const TensorList& gradients) {
    TensorList result = gradients;
    call->run(result);
    check_count("register_backward_hook", result.size(), gradients.size());
    return result;
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
    TensorList result = gradients;
    call->hooks->backward_pre.run(*call->module, result);
    check_count("register_backward_pre_hook", result.size(), gradients.size());
    call->grad_outputs = result;
    if (!call->has_inputs) {
      TensorList none(call->input_count);
      call->run(none);
    }
    return result;
  }
};

// Runs tensors through a Function, leaving those that cannot have a gradient as they are.
template <class F>
bool pass(TensorList& tensors, const std::shared_ptr<Backward>& call) {
  bool any = false;
  for (const Tensor& t : tensors) any = any || (t.defined() && t.requires_grad());
  if (!any) return false;
  TensorList through;
  for (const Tensor& t : tensors)
    if (t.defined()) through.push_back(t);
  through = F::apply(through, call);
  size_t next = 0;
  for (Tensor& t : tensors) {
    if (!t.defined()) continue;
    if (t.requires_grad()) t = through[next];
    ++next;
  }
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

}  // namespace

HookedCall::HookedCall(ModuleBase& module, TensorList& inputs) : module_(module) {
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
    backward->input_count = count;
    if (!hooks.backward.empty()) backward->has_inputs = pass<InputGradients>(inputs, backward);
    call->backward = backward;
  }
  inputs_ = inputs;
}

void HookedCall::finish(TensorList& outputs) {
  auto call = std::static_pointer_cast<Call>(state_);
  size_t count = outputs.size();
  module_.hooks_->forward.run(module_, inputs_, outputs);
  check_count("register_forward_hook", outputs.size(), count);
  if (call->backward) pass<OutputGradients>(outputs, call->backward);
  call->finished = true;
}

}  // namespace detail

detail::Hooks& ModuleBase::own_hooks() {
  if (!hooks_) hooks_ = std::make_unique<detail::Hooks>();
  return *hooks_;
}
HookHandle ModuleBase::register_forward_pre_hook(ForwardPreHook hook) {
  return own_hooks().forward_pre.add(std::move(hook));
}
HookHandle ModuleBase::register_forward_hook(ForwardHook hook) { return own_hooks().forward.add(std::move(hook)); }
HookHandle ModuleBase::register_forward_failure_hook(ForwardFailureHook hook) {
  return own_hooks().forward_failure.add(std::move(hook));
}
HookHandle ModuleBase::register_backward_pre_hook(BackwardPreHook hook) {
  return own_hooks().backward_pre.add(std::move(hook));
}
HookHandle ModuleBase::register_backward_hook(BackwardHook hook) { return own_hooks().backward.add(std::move(hook)); }

}  // namespace tutti::nn
