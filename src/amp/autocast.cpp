// Autocast and tracing: what call() does first when a mode asks for it.
#include "amp/policy.h"
#include "base/check.h"
#include "base/small_vector.h"
#include "tensor/call.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti {
namespace {

bool castable(const Tensor& x) {
  return x.defined() && is_floating(x.dtype()) && x.dtype() != DType::f64 && !x.is_number();
}

// The dtype that the policy asks of this operator's floating-point inputs; none: leave them.
std::optional<DType> wanted_dtype(const Operator& op, std::span<const Tensor* const> inputs) {
  switch (op.autocast) {
    case AutocastPolicy::none:
      return {};
    case AutocastPolicy::low_precision:
      return context().autocast_dtype;
    case AutocastPolicy::full_precision:
      return DType::f32;
    case AutocastPolicy::widest: {
      std::optional<DType> widest;
      for (const Tensor* x : inputs)
        if (castable(*x)) widest = widest ? promote(*widest, x->dtype()) : x->dtype();
      return widest;
    }
  }
  return {};
}

}  // namespace

namespace amp {
namespace {
DType dtype_for(AutocastPolicy policy) {
  TUTTI_ASSERT(policy == AutocastPolicy::low_precision || policy == AutocastPolicy::full_precision);
  return policy == AutocastPolicy::low_precision ? context().autocast_dtype : DType::f32;
}
}  // namespace

bool casts(AutocastPolicy policy, const Tensor& x) {
  return context().modes & kAutocastMode && castable(x) && x.dtype() != dtype_for(policy);
}
Tensor input_for(AutocastPolicy policy, const Tensor& x) { return casts(policy, x) ? cast(x, dtype_for(policy)) : x; }
}  // namespace amp

bool call_in_mode(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes,
                  std::span<Tensor> outputs) {
  if (context().modes & kAutocastMode) {
    ModeGuard off(0, kAutocastMode);
    auto dtype = wanted_dtype(op, inputs);
    SmallVector<Tensor, 4> converted(inputs.size());
    SmallVector<const Tensor*, 4> pointers;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& x = *inputs[i];
      bool cast_it = dtype && castable(x) && x.dtype() != *dtype;
      if (cast_it) converted[i] = cast(x, *dtype);
      pointers.push_back(cast_it ? &converted[i] : &x);
    }
    call(op, pointers.span(), attributes, outputs);
    return true;
  }
  Tracer* tracer = context().tracer;
  TUTTI_ASSERT(tracer);
  // The tracer sees the call once; what it runs itself, or the kernel, is not recorded again.
  ModeGuard off(0, kTraceMode);
  if (!tracer->call(op, inputs, attributes, outputs)) call(op, inputs, attributes, outputs);
  return true;
}

}  // namespace tutti
