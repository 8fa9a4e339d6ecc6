#include "graph/formula.h"

#include "base/check.h"
#include "graph/passes/passes.h"
#include "pointwise/loop.h"
#include "pointwise/renamed.h"
#include "tensor/call.h"
#include "tensor/impl.h"

namespace tutti::graph {
namespace {

using pointwise::GradientOperator;
using pointwise::PointwiseOperator;

bool plain(const Type& t) { return t.layout == Layout::strided && t.device.is_cpu() && !is_complex(t.dtype); }

// The constant that value v is, or null.
const Tensor* constant_of(const Graph& graph, ValueId v) {
  const Input* in = graph.input_of(v);
  return in && in->origin == Origin::constant && !in->fresh ? &in->tensor : nullptr;
}

// Inputs as operators see them, without memory.
struct Seen {
  TensorList tensors;
  std::vector<const Tensor*> pointers;

  Seen(const Graph& graph, const Node& node) {
    for (ValueId v : node.inputs) {
      const Type& t = graph.type(v);
      tensors.push_back(make_tensor(t.sizes, t.strides, t.dtype, DeviceKind::meta));
      impl(tensors.back())->number = t.number;
    }
    for (const Tensor& x : tensors) pointers.push_back(&x);
  }
};

// What op.sooner says, which looks at the values of small inputs: known here only of constants.
bool ask_sooner(const Graph& graph, const Node& node, const PointwiseOperator& op, size_t first,
                const PointwiseOperator*& other) {
  other = nullptr;
  if (!op.sooner) return true;
  std::vector<const Tensor*> inputs;
  Seen seen(graph, node);
  for (size_t i = first; i < node.inputs.size(); ++i) {
    const Tensor* constant = constant_of(graph, node.inputs[i]);
    if (i > first && graph.type(node.inputs[i]).sizes.empty() && !constant) return false;
    inputs.push_back(constant ? constant : &seen.tensors[i]);
  }
  other = op.sooner(inputs);
  return true;
}

const char* suffix(pointwise::Kind kind) {
  return kind == pointwise::Kind::f32 ? "_f32" : kind == pointwise::Kind::f64 ? "_f64" : "_i64";
}

// Kernels convert what they read to one kind; generated code never has to make integers of floats.
bool readable(const Graph& graph, const Formula& f) {
  for (ValueId v : f.inputs)
    if (f.kind == pointwise::Kind::i64 && is_floating(graph.type(v).dtype)) return false;
  return true;
}

std::optional<Formula> forward(const Graph& graph, const Node& n, const PointwiseOperator& op) {
  Seen seen(graph, n);
  DType common = pointwise::common_dtype(op.name, op.signature, seen.pointers);
  if (is_complex(common)) return {};
  Formula f{.function = pointwise::original(op).name, .kind = pointwise::kind_of(common), .inputs = n.inputs};
  f.truth = op.signature.result == pointwise::Result::boolean;
  if (graph.type(n.outputs[0]).dtype != (f.truth ? DType::boolean : common)) return {};
  auto kind = static_cast<int>(f.kind);
  // Of truths as numbers, 0 and 1, the complement is no truth.
  if (op.narrow && op.arity == 1 && common == DType::boolean && !f.truth) return {};
  if (!op.kernels.forward[kind] || (op.signature.divides_integers && f.kind == pointwise::Kind::i64)) return {};
  const PointwiseOperator* other = nullptr;
  if (!ask_sooner(graph, n, op, 0, other)) return {};
  if (other && other->kernels.forward[kind]) {
    f.function = other->name;
    f.inputs.resize(1);
  }
  f.function += suffix(f.kind);
  return f;
}

std::optional<Formula> gradient(const Graph& graph, const Node& n, const GradientOperator& op) {
  Seen seen(graph, n);
  std::span<const Tensor* const> inputs = seen.pointers;
  DType common = promote(inputs[0]->dtype(), pointwise::common_dtype(op.name, op.of->signature, inputs.subspan(1)));
  if (is_complex(common) || graph.type(n.outputs[0]).dtype != common) return {};
  Formula f{.function = op.name, .kind = pointwise::kind_of(common), .inputs = n.inputs};
  auto kind = static_cast<int>(f.kind);
  if (!op.of->kernels.gradient[op.which][kind]) return {};
  const PointwiseOperator* other = nullptr;
  if (op.which == 0 && !ask_sooner(graph, n, *op.of, 1, other)) return {};
  if (other && other->kernels.gradient[0][kind]) {
    f.function = std::string(other->name) + "_gradient0";
    f.inputs.resize(2);
  }
  f.function += suffix(f.kind);
  return f;
}

std::optional<Formula> copy(const Graph& graph, const Node& n) {
  DType from = graph.type(n.inputs[0]).dtype, to = graph.type(n.outputs[0]).dtype;
  bool truncates = is_floating(from) && category(to) == Category::integer;
  if (truncates || !(graph.type(n.inputs[0]).sizes == graph.type(n.outputs[0]).sizes)) return {};
  return Formula{.inputs = n.inputs};
}

}  // namespace

std::optional<Formula> formula_of(const Graph& graph, const Node& n) {
  bool copies = n.op == &clone_operator();
  if (!n.op || !(n.op->pointwise || copies) || n.outputs.size() != 1 || n.writes) return {};
  if (!plain(graph.type(n.outputs[0]))) return {};
  for (ValueId v : n.inputs)
    if (v == kNone || !plain(graph.type(v))) return {};
  if (copies) return copy(graph, n);
  ModeGuard untraced(0, kTraceMode);
  std::optional<Formula> f;
  try {
    if (pointwise::has_formula(*n.op))
      f = forward(graph, n, static_cast<const PointwiseOperator&>(*n.op));
    else if (pointwise::has_formula_of_gradient(*n.op))
      f = gradient(graph, n, static_cast<const GradientOperator&>(*n.op));
  } catch (const Error&) {
    return {};  // it will say so itself when it runs
  }
  if (f && !readable(graph, *f)) return {};
  return f;
}

}  // namespace tutti::graph
