// Shapes, dtypes and gradients: what every pointwise operator shares, whatever its formula.
#include "base/check.h"
#include "base/isa.h"
#include "pointwise/composed.h"
#include "pointwise/signature.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti::pointwise {
namespace {

DType number_dtype(DType t) {
  if (is_complex(t)) return to_complex(context().default_dtype);
  return is_floating(t) ? context().default_dtype : t;
}

// Two classes of operands, of which the first rules: the second matters only by a higher category.
std::optional<DType> combine(std::optional<DType> higher, std::optional<DType> lower) {
  if (!higher || !lower) return higher ? higher : lower;
  if (category(*lower) <= category(*higher)) return higher;
  if (is_complex(*lower) && is_floating(*higher)) return to_complex(*higher);
  return promote(*higher, *lower);
}

uint8_t accept_bit(DType t) {
  switch (category(t)) {
    case Category::boolean:
      return kBool;
    case Category::integer:
      return kInt;
    case Category::floating:
      return kFloat;
    default:
      return kComplex;
  }
}

std::string accepted(uint8_t bits) {
  std::string text;
  auto add = [&](uint8_t bit, const char* what) {
    if (bits & bit) text += (text.empty() ? "" : ", ") + std::string(what);
  };
  add(kBool, "bool");
  add(kInt, "integers");
  add(kFloat, "floats");
  add(kComplex, "complex");
  return text;
}

std::string list_inputs(std::span<const Tensor* const> inputs) {
  std::string text;
  for (const Tensor* x : inputs) text += (text.empty() ? "" : ", ") + tutti::describe(*x);
  return text;
}

Device common_device(const char* name, std::span<const Tensor* const> inputs) {
  std::optional<Device> device;
  for (const Tensor* x : inputs) {
    const TensorImpl* t = impl(*x);
    if (t->number) continue;
    if (device && !(*device == t->device))
      fail<DeviceError>(name, "inputs are on different devices: {}; copy them to one with to(device)",
                        list_inputs(inputs));
    device = t->device;
  }
  return device ? *device : impl(*inputs[0])->device;
}

// Where a dense input has the full shape, the result takes its layout: channels-last stays channels-last.
void choose_strides(std::span<const Tensor* const> inputs, TensorSpec& spec) {
  for (const Tensor* x : inputs) {
    const TensorImpl* t = impl(*x);
    if (!(t->sizes == spec.sizes) || t->number) continue;
    if (t->contiguous || t->layout == Layout::sparse) return;
    if (!is_dense(t->sizes, t->strides)) continue;
    spec.strides = t->strides;
    spec.strided = true;
    return;
  }
}

void infer_shape(const char* name, std::span<const Tensor* const> inputs, TensorSpec& spec) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor* x = inputs[i];
    check<ValueError>(
        x->defined(), name,
        "input {} is undefined: it was never given a value, or was moved from (a .grad() is undefined before "
        "backward(), and of a tensor that is no leaf unless retain_grad() was called)",
        i);
    check<ValueError>(impl(*x)->layout == Layout::strided, name, "{} is sparse; use its values(), or to_dense() it",
                      *x);
  }
  spec.sizes = impl(*inputs[0])->sizes;
  for (size_t i = 1; i < inputs.size(); ++i) {
    const Shape& sizes = impl(*inputs[i])->sizes;
    if (sizes == spec.sizes) continue;
    try {
      spec.sizes = broadcast_shapes(spec.sizes, sizes);
    } catch (const ShapeError&) {
      fail<ShapeError>(name, "shapes do not broadcast: {}. Sizes must be equal or 1, counted from the last dim",
                       list_inputs(inputs));
    }
  }
  spec.device = common_device(name, inputs);
  choose_strides(inputs, spec);
}

}  // namespace

namespace {

// By classes: tensors with dims, zero-dimensional tensors, numbers.
DType promoted(std::span<const Tensor* const> inputs) {
  const TensorImpl* first = impl(*inputs[0]);
  bool same = !first->number;
  for (const Tensor* x : inputs) same = same && impl(*x)->dtype == first->dtype && !impl(*x)->number;
  if (same) [[likely]]
    return first->dtype;
  std::optional<DType> dims, scalars, numbers;
  for (const Tensor* x : inputs) {
    const TensorImpl* t = impl(*x);
    auto& slot = t->number ? numbers : t->sizes.empty() ? scalars : dims;
    DType dtype = t->number ? number_dtype(t->dtype) : t->dtype;
    slot = slot ? promote(*slot, dtype) : dtype;
  }
  return *combine(combine(dims, scalars), numbers);
}

}  // namespace

DType common_dtype(const char* name, const Signature& signature, std::span<const Tensor* const> inputs) {
  DType common = promoted(inputs.subspan(signature.condition ? 1 : 0));
  if (!(signature.accepts & accept_bit(common))) [[unlikely]]
    fail<DTypeError>(name, "does not take {} ({}); it accepts {}", common, list_inputs(inputs),
                     accepted(signature.accepts));
  if (signature.integers_to_float && category(common) < Category::floating) common = context().default_dtype;
  return common;
}

// What is true of a number that is no bool depends on the dtype it is looked at in.
void check_condition(const char* name, const Tensor& x) {
  check<DTypeError>(x.dtype() == DType::boolean, name, "the condition {} is not bool: compare it (ne(x, 0)) first", x);
}

void infer(const Call& call, std::span<TensorSpec> outputs) {
  const auto& op = static_cast<const PointwiseOperator&>(call.op);
  TensorSpec& spec = outputs[0];
  infer_shape(op.name, call.inputs, spec);
  if (op.signature.condition) check_condition(op.name, *call.inputs[0]);
  DType common = common_dtype(op.name, op.signature, call.inputs);
  spec.dtype = op.signature.result == Result::boolean ? DType::boolean
               : op.signature.result == Result::real  ? to_real(common)
                                                      : common;
}

void infer_gradient(const Call& call, std::span<TensorSpec> outputs) {
  const auto& op = static_cast<const GradientOperator&>(call.op);
  TensorSpec& spec = outputs[0];
  infer_shape(op.name, call.inputs, spec);
  spec.dtype = promote(impl(call.input(0))->dtype, common_dtype(op.name, op.of->signature, call.inputs.subspan(1)));
}

void gradient(GradientCall& call) {
  const auto& op = static_cast<const PointwiseOperator&>(call.op());
  for (size_t k = 0; k < call.inputs(); ++k) {
    if (!call.needs(k)) continue;
    if (op.signature.stepwise) {
      call.set(k, zeros(call.input_sizes(k), {.dtype = call.input_dtype(k), .device = call.input_device(k)}));
      continue;
    }
    Tensor values[kMaxArity];
    const Tensor* inputs[kMaxArity + 1] = {&call.grad()};
    for (size_t i = 0; i < call.inputs(); ++i) {
      values[i] = call.input(i);
      inputs[i + 1] = &values[i];
    }
    Tensor result;
    tutti::call(op.gradients[k], {inputs, call.inputs() + 1}, {}, {&result, 1});
    call.set(k, std::move(result));
  }
}

// The gradient of h(g, x) = g·conj(f_k(x)), given that of h.
void second_gradient(GradientCall& call) {
  const auto& op = static_cast<const GradientOperator&>(call.op());
  const PointwiseOperator& of = *op.of;
  int arity = of.arity;
  Tensor g = call.input(0), gg = call.grad(0);
  bool complex = is_complex(gg.dtype());
  std::vector<Composed> x;
  for (int i = 0; i < arity; ++i) x.emplace_back(call.input(static_cast<size_t>(i) + 1));
  if (call.needs(0)) {
    Tensor values[kMaxArity], seed = complex ? tutti::conj(gg) : gg;
    const Tensor* inputs[kMaxArity + 1] = {&seed};
    for (int i = 0; i < arity; ++i) {
      values[i] = x[static_cast<size_t>(i)].tensor();
      inputs[i + 1] = &values[i];
    }
    Tensor result;
    tutti::call(op, {inputs, static_cast<size_t>(arity) + 1}, {}, {&result, 1});
    call.set(0, complex ? tutti::conj(result) : result);
  }
  for (int j = 0; j < arity; ++j) {
    auto slot = static_cast<size_t>(j) + 1;
    if (!call.needs(slot)) continue;
    check<GradError>(of.second != nullptr, op.name, "has no second derivative");
    // A choice between two constants has no dtype of its own: it gets the default, which must not be less than that of
    // x.
    DefaultDTypeGuard wide(to_real(gg.dtype()) == DType::f64 ? DType::f64 : context().default_dtype);
    Composed s = of.second(op.which, j, x.data());
    if (s.is(0)) {
      call.set(slot,
               zeros(call.input_sizes(slot), {.dtype = call.input_dtype(slot), .device = call.input_device(slot)}));
      continue;
    }
    Tensor factor = complex ? tutti::conj(gg) * g : gg * g;
    call.set(slot, factor * (complex && !s.is_constant() ? tutti::conj(s.tensor()) : s.tensor()));
  }
}

Kernels best(const Kernels& base, const Kernels* v3, const Kernels* v4) {
  const Kernels* wide = v4 && best_isa() >= Isa::v4 ? v4 : v3 && best_isa() >= Isa::v3 ? v3 : &base;
  Kernels chosen = *wide;
  for (int kind : {static_cast<int>(Kind::c64), static_cast<int>(Kind::c128)}) {
    chosen.forward[kind] = base.forward[kind];
    for (int k = 0; k < kMaxArity; ++k) chosen.gradient[k][kind] = base.gradient[k][kind];
  }
  return chosen;
}

}  // namespace tutti::pointwise
