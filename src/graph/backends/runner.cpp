#include "graph/backends/runner.h"

#include "base/check.h"
#include "base/small_vector.h"
#include "comm/functional/start.h"
#include "graph/passes/passes.h"
#include "tensor/impl.h"
#include "tutti/ops.h"
#include "tutti/trace.h"

namespace tutti::graph {

struct Runner::Run {
  TensorList values;
  std::vector<uint64_t> versions;  // remembered by nodes
  const Host* host;
  std::vector<Work> works = {};  // begun by nodes; empty until one is
};

Runner::Runner(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {
  std::vector<int32_t> last(graph_->values.size(), -1);
  for (size_t k = 0; k < graph_->nodes.size(); ++k) {
    for (ValueId v : graph_->nodes[k].inputs)
      if (v != kNone) last[at(v)] = static_cast<int32_t>(k);
    for (ValueId v : graph_->nodes[k].outputs) last[at(v)] = static_cast<int32_t>(k);
  }
  for (ValueId v : graph_->outputs)
    if (v != kNone) last[at(v)] = -1;
  last_uses_.resize(graph_->nodes.size());
  for (size_t v = 0; v < last.size(); ++v)
    if (last[v] >= 0) last_uses_[static_cast<size_t>(last[v])].push_back(static_cast<ValueId>(v));
}

size_t Runner::run_fused(TensorList&, size_t) const { return 0; }

TensorList Runner::run(TensorList inputs, const Host* host) const {
  NoGrad no_grad;
  ModeGuard plain(0, kAutocastMode);  // the graph has the casts in it
  Run r{TensorList(graph_->values.size()), std::vector<uint64_t>(graph_->nodes.size()), host};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& in = graph_->inputs[i];
    r.values[at(in.value)] = in.fresh ? inputs[i].clone() : std::move(inputs[i]);
  }
  for (size_t k = 0; k < graph_->nodes.size();) {
    size_t end = k + run_fused(r.values, k);
    if (end == k) step(r, end++);
    for (; k < end; ++k)
      for (ValueId v : last_uses_[k]) r.values[at(v)].reset();
  }
  TensorList outputs;
  for (ValueId v : graph_->outputs) outputs.push_back(v == kNone ? Tensor() : r.values[at(v)]);
  return outputs;
}

void Runner::step(Run& r, size_t k) const {
  const Node& n = graph_->nodes[k];
  switch (n.kind) {
    case Kind::call:
      return call_operator(r, n, k);
    case Kind::alias: {
      const Type& t = graph_->type(n.outputs[0]);
      const Tensor& x = r.values[at(n.inputs[0])];
      Tensor alias = make_alias(x, t.sizes, t.strides, offset_of(r, n.inputs[0], t));
      impl(alias)->dtype = t.dtype;
      r.values[at(n.outputs[0])] = alias;
      return;
    }
    case Kind::empty: {
      const Type& t = graph_->type(n.outputs[0]);
      r.values[at(n.outputs[0])] = make_tensor(t.sizes, t.strides, t.dtype, t.device);
      return;
    }
    case Kind::host:
      return call_host(r, n, k);
    case Kind::wait: {
      if (r.works.empty()) return;
      Work& work = r.works[static_cast<size_t>(graph_->values[at(n.inputs[0])].producer)];
      if (work.defined()) work.wait();
      return;
    }
    default:
      return effect(r, n, k);
  }
}

// Inputs may begin elsewhere in their storage than they did when the graph was made.
int64_t Runner::offset_of(const Run& r, ValueId of, const Type& t) const {
  const Tensor& x = r.values[at(of)];
  if (x.is_sparse()) return 0;
  auto bytes = static_cast<int64_t>(size_of(t.dtype)), own = static_cast<int64_t>(x.element_size());
  return t.offset + (x.storage_offset() - graph_->type(of).offset) * own / bytes;
}

void Runner::call_operator(Run& r, const Node& n, size_t k) const {
  SmallVector<const Tensor*, 8> inputs;
  static const Tensor undefined;
  for (ValueId v : n.inputs) inputs.push_back(v == kNone ? &undefined : &r.values[at(v)]);
  SmallVector<Tensor, 4> outputs(n.outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i)
    if (n.is_written(i)) outputs[i] = r.values[at(n.outputs[i])];
  {
    ModeGuard mode(n.keeps_version ? uint32_t{kPreserveVersion} : 0, n.keeps_version ? 0 : uint32_t{kPreserveVersion});
    std::optional<fn::StartGuard> start;
    if (n.starts && !tracing()) {
      r.works.resize(graph_->nodes.size());
      start.emplace(r.works[k]);
    }
    call(*n.op, inputs.span(), n.attributes, outputs.span());
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!n.is_written(i)) r.values[at(n.outputs[i])] = std::move(outputs[i]);
}

void Runner::call_host(Run& r, const Node& n, size_t k) const {
  TensorList outputs, inputs(n.outputs.size());
  for (ValueId v : n.inputs) outputs.push_back(v == kNone ? Tensor() : r.values[at(v)]);
  for (ValueId v : last_uses_[k]) r.values[at(v)].reset();
  TUTTI_ASSERT(r.host);
  (*r.host)(n.number, outputs, inputs);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (n.outputs[i] != kNone) r.values[at(n.outputs[i])] = inputs[i];
}

void Runner::effect(Run& r, const Node& n, size_t k) const {
  const Tensor& x = r.values[at(n.inputs[0])];
  auto number = static_cast<uint64_t>(n.number);
  if (n.kind == Kind::resize) {
    x.resize_storage(number);
  } else if (n.kind == Kind::version) {
    r.versions[k] = x.version();
  } else if (n.kind == Kind::set_version) {
    x.set_version(n.absolute ? number : r.versions[number]);
  } else if (n.kind == Kind::set_grad) {
    x.set_grad(n.inputs[1] == kNone ? Tensor() : r.values[at(n.inputs[1])].detach());
  } else if (n.kind == Kind::require_grad) {
    Tensor leaf = x;
    leaf.requires_grad_(n.number != 0);
  } else {
    TUTTI_ASSERT(n.kind == Kind::set_data);
    x.set_data(r.values[at(n.inputs[1])]);
  }
}

}  // namespace tutti::graph
