// call(): the only way by which any operator runs.
#include "tensor/call.h"

#include "autograd/meta.h"
#include "autograd/operator_node.h"
#include "base/check.h"
#include "base/named.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

bool same_elements(const TensorImpl* a, const TensorImpl* b) {
  return a->offset == b->offset && a->dtype == b->dtype && a->sizes == b->sizes && a->strides == b->strides;
}

// An output the caller gave: may this operator write its result there?
void check_output(const Operator& op, const TensorSpec& spec, const Tensor& out, bool recording) {
  const TensorImpl* t = impl(out);
  check<ValueError>(t->layout == Layout::strided, op.name, "cannot write into {}; use the out-of-place form", out);
  check<ShapeError>(t->sizes == spec.sizes, op.name,
                    "the result, {}{}, cannot be written into {}: it needs an output of its shape", spec.dtype,
                    spec.sizes, out);
  check<DTypeError>(category(t->dtype) >= category(spec.dtype), op.name,
                    "the result is {} and cannot be written into {} without losing its kind; cast it first", spec.dtype,
                    out);
  check<DeviceError>(t->device == spec.device, op.name, "the result is on {} and cannot be written into {}",
                     spec.device, out);
  check<ShapeError>(
      !overlaps_itself(t->sizes, t->strides), op.name,
      "elements of {} share memory (an expanded view?) and cannot be written one by one; clone() it first", out);
  check<GradError>(
      !recording || !is_protected_leaf(t), op.name,
      "{} is (a view of) a leaf that requires a gradient: writing it in place would lose its history; do it inside "
      "NoGrad, or use the out-of-place form",
      out);
  if (t->storage && !t->device.is_meta()) check_readable(out, op.name);
  check<GradError>(
      !recording || !(t->aliased || (t->base.defined() && impl(t->base)->aliased)), op.name,
      "{} shares memory with a tensor whose gradients would not know of this: it is (a view of) the result "
      "of a custom Function that gave back an argument, or gave two results in one memory, or values() of "
      "a sparse tensor; clone() it before writing in place",
      out);
  check<GradError>(
      !recording || !t->base.defined() || !is_differentiable(t->dtype) || requires_grad(t) ||
          !requires_grad(impl(t->base)),
      op.name,
      "{} is a view that was made inside NoGrad of a tensor that requires a gradient: writing it now would "
      "lose that gradient; make the view outside of NoGrad, or write it inside",
      out);
  check<GradError>(!recording || !t->inference, op.name,
                   "{} was made in inference mode and cannot be written while gradients are "
                   "recorded; clone() it first",
                   out);
}

Tensor make_result(const Operator& op, const TensorSpec& spec) {
  try {
    return spec.strided ? make_tensor(spec.sizes, spec.strides, spec.dtype, spec.device)
                        : make_tensor(spec.sizes, spec.dtype, spec.device);
  } catch (const MemoryError& e) {
    fail<MemoryError>(op.name, "no memory for the result, {}{}: {}", spec.dtype, spec.sizes, text_of(e));
  } catch (const ShapeError& e) {  // too many elements
    throw_named(op.name, e);
  }
}

Tensor make_output(const Operator& op, const TensorSpec& spec, std::span<const Tensor* const> inputs) {
  if (op.view_of >= 0) {
    const Tensor& x = *inputs[static_cast<size_t>(op.view_of)];
    Tensor view = make_alias(x, spec.sizes, spec.strides, spec.offset);
    TensorImpl* v = impl(view);
    v->dtype = spec.dtype;
    v->device = spec.device;
    v->number = false;
    v->base = impl(x)->base.defined() ? impl(x)->base : x;
    v->base_generation = impl(v->base)->autograd ? impl(v->base)->autograd->generation : 0;
    return view;
  }
  return make_result(op, spec);
}

bool check_inputs(const Operator& op, std::span<const Tensor* const> inputs, bool may_record) {
  bool needs_gradient = false;
  for (const Tensor* x : inputs) {
    if (!x->defined()) continue;
    const TensorImpl* t = impl(*x);
    if (t->layout == Layout::sparse && !op.sparse) [[unlikely]]
      fail<ValueError>(op.name, "{} is sparse; use its values(), or to_dense() it", *x);
    if (t->storage && t->numel != 0 && !t->device.is_meta() &&
        (!t->contiguous || t->storage->bytes < static_cast<size_t>(t->offset + t->numel) * size_of(t->dtype)) &&
        op.view_of < 0)  // which only looks at how it lies
      check_readable(*x, op.name);
    if (t->sparse && !t->device.is_meta()) [[unlikely]] {
      check_readable(t->sparse->indices, op.name);
      check_readable(t->sparse->values, op.name);
    }
    if (may_record && requires_grad(t)) needs_gradient = true;
  }
  return needs_gradient;
}

// Two outputs in one memory: what is written last would be all that is left.
void check_apart(const Operator& op, std::span<Tensor> outputs) {
  auto bytes = [](const Tensor& x) {
    const TensorImpl* t = impl(x);
    auto size = static_cast<int64_t>(size_of(t->dtype));
    return std::pair(t->offset * size, (t->offset + span_elements(t->sizes, t->strides)) * size);
  };
  for (size_t i = 0; i < outputs.size(); ++i)
    for (size_t k = 0; k < i; ++k) {
      if (!outputs[i].defined() || !outputs[i].shares_storage(outputs[k]) || impl(outputs[i])->numel == 0) continue;
      auto a = bytes(outputs[i]), b = bytes(outputs[k]);
      check<ValueError>(a.first >= b.second || b.first >= a.second, op.name,
                        "two of its results cannot both be written into {} and {}, which share memory: give tensors "
                        "that do not",
                        outputs[k], outputs[i]);
    }
}

// Everything that only calls with given outputs need: checks, copies of overlapped inputs, a detour through a fresh
// tensor where the kernel could not write the given one itself.
struct InPlace : memory::Pooled {
  SmallVector<Tensor, 2> given;
  SmallVector<Tensor, 2> targets;     // what the kernel writes; the caller's own handles may be inputs as well
  SmallVector<Tensor, 2> overlapped;  // owns the copies
  SmallVector<const Tensor*, 4> inputs;
  SmallVector<Tensor, 2> saved_copies;  // of inputs that the gradient needs and the kernel overwrites

  InPlace(const Operator& op, std::span<const Tensor* const> original, std::span<Tensor> outputs,
          std::span<TensorSpec> specs, bool grad_mode, bool recording) {
    if (outputs.size() > 1) check_apart(op, outputs);
    given.resize(outputs.size());
    targets.resize(outputs.size());
    overlapped.resize(original.size());
    saved_copies.resize(original.size());
    for (const Tensor* x : original) inputs.push_back(x);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Tensor& out = outputs[i];
      if (!out.defined()) continue;
      check_output(op, specs[i], out, grad_mode);
      given[i] = out;
      for (size_t k = 0; k < original.size(); ++k) {
        if (!original[k]->defined() || !original[k]->shares_storage(out)) continue;
        NoGrad no_grad;
        if (recording && saves(op.saves_inputs, k) && !saved_copies[k].defined()) {
          saved_copies[k] = original[k]->detach().clone();
          // Whoever traces this call is still in the context, though its mode is off while the operator runs.
          if (Tracer* tracer = context().tracer) tracer->copied(*original[k], saved_copies[k]);
        }
        bool may_be = (op.pointwise || saves(op.in_place, k)) && same_elements(impl(*original[k]), impl(out));
        if (!may_be && !overlapped[k].defined()) {  // the kernel only reads: what was saved serves it as well
          overlapped[k] = saved_copies[k].defined() ? saved_copies[k] : original[k]->detach().clone();
          inputs[k] = &overlapped[k];
        }
      }
      const TensorSpec& spec = specs[i];
      const TensorImpl* t = impl(out);
      bool writable =
          op.pointwise || (t->dtype == spec.dtype && (spec.strided ? t->strides == spec.strides : t->contiguous));
      targets[i] = writable ? out : make_result(op, spec);
    }
  }
  // Copies detoured results to where they belong and counts the writes.
  void finish(const Operator& op, std::span<Tensor> outputs) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!given[i].defined()) {
        outputs[i] = targets[i];
        continue;
      }
      if (!targets[i].is_same(given[i]) && !impl(given[i])->device.is_meta()) {
        NoGrad no_grad;
        copy_into(given[i], targets[i]);
      }
      impl(outputs[i])->storage->wrote(op.name);
    }
  }
};

void attach(const Ref<OperatorNode>& node, std::span<Tensor> outputs, InPlace* in_place) {
  node->outputs = static_cast<uint32_t>(outputs.size());
  node->device = impl(outputs[0])->device;
  for (uint32_t i = 0; i < outputs.size(); ++i) {
    if (!is_differentiable(impl(outputs[i])->dtype)) continue;
    if (in_place && in_place->given[i].defined()) {
      rebase_history(outputs[i], Ref<Node>(node.get()), i);
      continue;
    }
    auto* meta = new AutogradMeta;
    meta->node = Ref<Node>(node.get());
    meta->output = i;
    impl(outputs[i])->autograd = meta;
  }
  node->save_outputs(outputs);
}

// What is asked of an undefined tensor fails in the name of what was asked ("sizes"); who called wants to hear theirs.
void check_defined(const Operator& op, std::span<const Tensor* const> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i)
    check<ValueError>(inputs[i]->defined(), op.name, "input {} is undefined: it was never given a value", i);
}

[[noreturn]] void no_kernel(const Operator& op, Device device, std::span<const Tensor* const> inputs) {
  std::string list;
  for (const Tensor* x : inputs) list += (list.empty() ? "" : ", ") + (x->defined() ? describe(*x) : "undefined");
  if (device.is_meta() && op.dynamic_shape)
    fail<DeviceError>(op.name, "the shape of the result depends on values, which meta tensors ({}) do not have", list);
  fail<DeviceError>(op.name, "there is no kernel for {} (inputs: {})", device, list);
}

}  // namespace

void call(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
          std::span<Tensor> outputs) try {
  Context& current = context();
  uint32_t modes = current.modes;
  if (modes & (kAutocastMode | kTraceMode)) [[unlikely]]
    if (call_in_mode(op, inputs, attributes, outputs)) return;

  Call c{op, inputs, attributes, outputs};
  SmallVector<TensorSpec, 1> specs(outputs.size());
  try {
    op.infer(c, specs.span());
  } catch (const ValueError& e) {
    if (e.operation() != op.name) check_defined(op, inputs);
    throw;
  }

  bool grad_mode = modes & kGradMode;
  bool recording = check_inputs(op, inputs, grad_mode && op.gradient);
  std::unique_ptr<InPlace> in_place;  // GCC sets all of a std::optional to zero, in every call
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].defined() && !in_place)
      in_place = std::make_unique<InPlace>(op, inputs, outputs, specs.span(), grad_mode, recording);
  if (in_place) {
    c.inputs = in_place->inputs.span();
    c.outputs = in_place->targets.span();
  }

  Ref<OperatorNode> node;
  if (recording) {
    node = make_node<OperatorNode>(op);
    node->set_inputs(inputs, in_place ? in_place->saved_copies.span() : std::span<Tensor>());
    node->set_attributes(attributes);
    number_node(*node);
    if (modes & kAnomalyMode) [[unlikely]]
      note_origin(*node);
  }

  Device device = specs[0].device;
  if (!op.dynamic_shape)
    for (size_t i = 0; i < outputs.size(); ++i)
      if (!c.outputs[i].defined()) c.outputs[i] = make_output(op, specs[i], inputs);
  if (op.view_of < 0 && (!device.is_meta() || op.dynamic_shape)) {
    Kernel kernel = op.kernel(device.kind);
    if (!kernel) no_kernel(op, device, inputs);
    if (device == current.device) [[likely]] {
      kernel(c);
    } else {
      DeviceGuard guard(device);
      kernel(c);
    }
  }
  if (in_place) in_place->finish(op, outputs);
  if (modes & kInferenceMode) [[unlikely]]
    for (size_t i = 0; i < outputs.size(); ++i)
      if (!in_place || !in_place->given[i].defined()) impl(outputs[i])->inference = true;
  if (recording)
    attach(node, outputs, in_place.get());
  else if (in_place && grad_mode)
    for (auto& out : outputs) rebase_history(out, {}, 0);
} catch (const MemoryError& e) {  // for what a kernel works with, too
  throw_named(op.name, e);
}

}  // namespace tutti
