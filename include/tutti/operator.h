// Operators and the one way to run them. An operator is a descriptor; call() takes a descriptor, inputs and attributes
// and does everything else. See docs/architecture.md, "The way of the data", and src/ops/ for many examples. Here is an
// operator such as a user's program can have, with its gradient:
//
//   struct Power { int64_t n; TUTTI_FIELDS(n) };
//   const Operator power_op{
//       .name = "power",
//       // From shapes and dtypes alone, so that it runs for meta tensors too.
//       .infer = [](const Call& c, std::span<TensorSpec> out) {
//         if (c.input(0).dtype() != f32) throw DTypeError("power: takes f32 only", "power");
//         out[0] = {.sizes = c.input(0).sizes(), .dtype = f32, .device = c.input(0).device()};
//       },
//       // Inputs may have any strides; the output is as infer said (here: contiguous).
//       .cpu = [](const Call& c) {
//         Tensor x = c.input(0).detach().contiguous();
//         const float* from = x.data<float>();
//         float* to = c.output().data<float>();
//         for (int64_t i = 0; i < x.numel(); ++i) to[i] = std::pow(from[i], static_cast<float>(c.as<Power>().n));
//       },
//       // Written in differentiable operators (this is one of them), so that gradients of any order work.
//       .gradient = [](GradientCall& c) {
//         Tensor x = c.input(0);
//         Power less{c.as<Power>().n - 1};
//         c.set(0, c.grad() * (less.n + 1) * call(power_op, {&x}, attributes(less)));
//       },
//       .saves_inputs = 1,  // bit 0: the gradient reads input 0
//   };
//   Tensor power(const Tensor& x, int64_t n) {
//     Power a{n};
//     return call(power_op, {&x}, attributes(a));
//   }
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>

#include "tutti/context.h"
#include "tutti/fields.h"
#include "tutti/tensor.h"

namespace tutti {

struct Operator;

// ---- Attributes: what an operator needs to know beside its tensors. Any copyable struct with TUTTI_FIELDS will do.

/// Is given each number among an operator's attributes, and may change it.
struct NumberVisitor {
  virtual void visit(int64_t& number) = 0;
  virtual void visit(double& number) = 0;

 protected:
  ~NumberVisitor() = default;
};

struct AttributeType {
  size_t size, align;
  void (*copy)(void* to, const void* from);
  void (*destroy)(void*);
  bool (*equal)(const void*, const void*);
  size_t (*hash)(const void*);
  std::string (*print)(const void*);
  void (*visit)(void*, NumberVisitor&) = nullptr;  // each number, in order; null: nobody may change one
};

struct Attributes {
  const void* data = nullptr;
  const AttributeType* type = nullptr;
};

namespace detail {
std::string print_field(const std::string& v);
std::string print_field(const char* v);
std::string print_field(bool v);
std::string print_field(double v);
std::string print_field(int64_t v);
std::string print_field(uint64_t v);
std::string print_field(DType v);
std::string print_field(Device v);
std::string print_field(const Shape& v);
inline std::string print_field(int v) { return print_field(int64_t{v}); }
template <class T>
  requires std::is_enum_v<T>
std::string print_field(T v) {
  return print_field(static_cast<int64_t>(v));
}
template <class T>
std::string print_field(const std::optional<T>& v) {
  return v ? print_field(*v) : "none";
}
template <class T>
std::string print_field(const std::vector<T>& v) {
  std::string text = "[";
  for (size_t i = 0; i < v.size(); ++i) text += (i ? ", " : "") + print_field(T(v[i]));
  return text + "]";
}
std::string join_fields(const char* names, std::initializer_list<std::string> values);
size_t hash_text(const std::string& text);

template <class T>
void visit_field(T& field, NumberVisitor& visitor) {
  if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
    visitor.visit(field);
  } else if constexpr (std::is_same_v<T, Shape> || std::is_same_v<T, std::vector<int64_t>> ||
                       std::is_same_v<T, std::vector<Shape>>) {
    for (auto& entry : field) visit_field(entry, visitor);
  } else if constexpr (requires { field.has_value(); }) {
    if (field.has_value()) visit_field(*field, visitor);
  }
}
}  // namespace detail

template <class A>
inline constexpr AttributeType attribute_type{
    .size = sizeof(A),
    .align = alignof(A),
    .copy = [](void* to, const void* from) { new (to) A(*static_cast<const A*>(from)); },
    .destroy = [](void* p) { static_cast<A*>(p)->~A(); },
    .equal =
        [](const void* a, const void* b) {
          return static_cast<const A*>(a)->fields().tuple() == static_cast<const A*>(b)->fields().tuple();
        },
    .hash = [](const void* a) { return detail::hash_text(attribute_type<A>.print(a)); },
    .print =
        [](const void* a) {
          return std::apply(
              [](const auto&... f) { return detail::join_fields(A::field_names(), {detail::print_field(f)...}); },
              static_cast<const A*>(a)->fields().tuple());
        },
    .visit =
        [](void* a, NumberVisitor& visitor) {
          std::apply([&](auto&... f) { (detail::visit_field(f, visitor), ...); }, static_cast<A*>(a)->fields().tuple());
        },
};
template <class A>
Attributes attributes(const A& a) {
  return {&a, &attribute_type<A>};
}

// ---- What an operator's functions are given.

/// What `infer` says of an output: all that there is to know before any data exists.
struct TensorSpec {
  Shape sizes = {};
  Shape strides = {};  // in elements; left empty: contiguous
  int64_t offset = 0;  // of a view, in elements of the storage
  DType dtype = DType::f32;
  Device device = {};
  bool strided = false;  // strides (and offset) are set
};

struct Call {
  const Operator& op;
  std::span<const Tensor* const> inputs;
  Attributes attributes;
  std::span<Tensor> outputs;

  const Tensor& input(size_t i) const { return *inputs[i]; }
  Tensor& output(size_t i = 0) const { return outputs[i]; }
  template <class A>
  const A& as() const {
    return *static_cast<const A*>(attributes.data);
  }
};

/// What `gradient` is given: the saved call, the gradients of its outputs; and where it puts the inputs' gradients.
/// Everything it does must be public differentiable operators, so that gradients of any order come for free.
class GradientCall {
 public:
  virtual const Operator& op() const = 0;
  virtual size_t inputs() const = 0;
  /// The input as it was; only if the descriptor's `saves_inputs` has its bit.
  virtual Tensor input(size_t i) = 0;
  /// The output as it was; only if `saves_outputs` has its bit.
  virtual Tensor output(size_t i = 0) = 0;
  /// Shape and dtype of an input or output, known without saving it.
  virtual const Shape& input_sizes(size_t i) const = 0;
  virtual DType input_dtype(size_t i) const = 0;
  virtual Device input_device(size_t i) const = 0;
  /// The gradient that arrived for output i: undefined when none did.
  virtual const Tensor& grad(size_t i = 0) const = 0;
  /// Whether anyone wants the gradient of input i. Work for others is wasted.
  virtual bool needs(size_t i) const = 0;
  virtual void set(size_t i, Tensor gradient) = 0;
  virtual Attributes attributes() const = 0;
  template <class A>
  const A& as() const {
    return *static_cast<const A*>(attributes().data);
  }

 protected:
  ~GradientCall() = default;
};

using Infer = void (*)(const Call&, std::span<TensorSpec> outputs);
/// Writes the outputs, which are as `infer` said. Inputs are as the caller had them: of any strides, perhaps undefined.
using Kernel = void (*)(const Call&);
using Gradient = void (*)(GradientCall&);

/// What autocast does with an operator's floating-point inputs.
enum class AutocastPolicy : uint8_t { none, low_precision, full_precision, widest };

inline constexpr uint32_t kAll = ~uint32_t{0};

struct Operator {
  const char* name;
  Infer infer = nullptr;
  Kernel cpu = nullptr;
  Kernel cuda = nullptr;
  Kernel meta = nullptr;        // only where kernels make the outputs (dynamic_shape): makes them of meta tensors
  Gradient gradient = nullptr;  // null: not differentiable (the result never requires a gradient)
  // Bit k: the gradient reads the value of input (output) k. What is not saved can be freed or changed at once.
  uint32_t saves_inputs = 0;
  uint32_t saves_outputs = 0;
  // Bit k: input k may be the output itself, since the kernel reads each element of it before it writes that place (all
  // inputs, if the operator is pointwise). Others are copied first, where an output shares their memory.
  uint32_t in_place = 0;
  int8_t view_of = -1;  // the output is a view of input k: infer gives strides and offset, no kernel runs
  bool pointwise = false;
  bool reduction = false;
  bool random = false;  // draws from the context's generator
  bool collective = false;
  bool can_start = false;       // a collective that may begin at one place and be waited for at another
  bool can_join = false;        // two calls of this collective may be one of all their tensors
  bool same_shapes = false;     // a collective whose input has the same shape on all ranks
  bool matrix_product = false;  // the last two inputs are matrices, which may lie in memory in any way
  bool dynamic_shape = false;   // the output's shape depends on data (or it is sparse): the kernel makes the output
  bool sparse = false;          // takes sparse inputs and sparse gradients; call() keeps them from all others
  AutocastPolicy autocast = AutocastPolicy::none;

  Kernel kernel(DeviceKind kind) const {
    return kind == DeviceKind::cpu ? cpu : kind == DeviceKind::cuda ? cuda : meta;
  }
};

/// Runs an operator: autocast → record for tracing → infer → kernel → attach the gradient node. Outputs that are
/// defined on entry are written in place (an "out" variant; in-place if an input is the same tensor); others are made.
void call(const Operator& op, std::span<const Tensor* const> inputs, Attributes attributes, std::span<Tensor> outputs);

inline Tensor call(const Operator& op, std::initializer_list<const Tensor*> inputs, Attributes attributes = {}) {
  Tensor result;
  call(op, {inputs.begin(), inputs.size()}, attributes, {&result, 1});
  return result;
}
/// The same, writing into `out`.
inline Tensor& call_out(const Operator& op, std::initializer_list<const Tensor*> inputs, Tensor& out,
                        Attributes attributes = {}) {
  call(op, {inputs.begin(), inputs.size()}, attributes, {&out, 1});
  return out;
}

}  // namespace tutti
