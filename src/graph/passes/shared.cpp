// The order of passes, and what they share.
#include "base/check.h"
#include "graph/passes/passes.h"
#include "tensor/call.h"
#include "tensor/impl.h"

namespace tutti::graph {

namespace {

struct Pass {
  const char* name;
  void (*run)(Graph&);
};
void run_passes(Graph& graph, std::initializer_list<Pass> passes) {
  for (const Pass& pass : passes) {
    pass.run(graph);
    verify(graph, pass.name);
  }
}

}  // namespace

void tidy(Graph& graph) {
  run_passes(graph, {
                        {"dead code", remove_dead_code},
                        {"functionalisation", functionalise},
                        {"common subexpressions", merge_common},
                        {"copies", remove_copies},
                        {"layout", fold_layouts},
                        {"dead code", remove_dead_code},
                    });
}

void optimise(Graph& graph) {
  verify(graph, "tracing");
  tidy(graph);
  run_passes(graph, {
                        {"blocks", keep_blocks},
                        {"norms", fuse_norms},
                        {"bucketing", bucket_collectives},
                        {"fusion", find_groups},
                        {"overlap", overlap_collectives},
                        {"memory planning", plan_memory},
                    });
}

void keep_nodes(Graph& graph, const std::vector<bool>& keep) {
  std::vector<int32_t> order;
  for (size_t k = 0; k < keep.size(); ++k)
    if (keep[k]) order.push_back(static_cast<int32_t>(k));
  reorder_nodes(graph, order);
}

void reorder_nodes(Graph& graph, const std::vector<int32_t>& order) {
  std::vector<int32_t> number(graph.nodes.size(), kNone);
  for (size_t i = 0; i < order.size(); ++i) number[at(order[i])] = static_cast<int32_t>(i);
  for (Node& n : graph.nodes)
    if (n.kind == Kind::set_version && !n.absolute) n.number = number[static_cast<size_t>(n.number)];
  for (Value& v : graph.values)
    if (v.producer != kNone) v.producer = number[at(v.producer)];
  std::vector<Node> nodes;
  nodes.reserve(order.size());
  for (int32_t k : order) nodes.push_back(std::move(graph.nodes[at(k)]));
  graph.nodes = std::move(nodes);
  for (FusionGroup& group : graph.groups)
    for (int32_t& k : group.nodes) k = number[at(k)];
}

void replace_uses(Graph& graph, ValueId from, ValueId to) {
  for (Node& n : graph.nodes)
    for (ValueId& v : n.inputs)
      if (v == from) v = to;
  for (ValueId& v : graph.outputs)
    if (v == from) v = to;
  for (Value& v : graph.values)
    if (v.memory == from) v.memory = graph.memory_of(to);
}

std::vector<bool> outside_memories(const Graph& graph) {
  std::vector<bool> outside(graph.values.size());
  for (const Input& in : graph.inputs)
    if (in.origin != Origin::constant) outside[at(graph.memory_of(in.value))] = true;
  return outside;
}

std::vector<int> shared_memories(const Graph& graph) {
  std::vector<int> count(graph.values.size());
  std::vector<bool> alive(graph.values.size());
  for (const Input& in : graph.inputs) alive[at(in.value)] = true;
  for (const Node& n : graph.nodes)
    for (ValueId v : n.outputs) alive[at(v)] = true;
  for (size_t v = 0; v < alive.size(); ++v)
    if (alive[v]) ++count[at(graph.values[v].memory)];
  return count;
}

std::optional<std::vector<TensorSpec>> infer_types(const Graph& graph, const Node& node) {
  TensorList inputs;
  std::vector<const Tensor*> pointers;
  for (ValueId v : node.inputs) {
    const Type* t = v == kNone ? nullptr : &graph.type(v);
    if (t && t->layout != Layout::strided) return {};
    inputs.push_back(t ? make_tensor(t->sizes, t->strides, t->dtype, DeviceKind::meta) : Tensor());
    if (!t) continue;
    TensorImpl* x = impl(inputs.back());
    x->number = t->number;
    x->offset = t->offset;
    if (node.op == &clone_operator()) x->device = t->device;  // it asks whether there are values to copy
  }
  for (const Tensor& x : inputs) pointers.push_back(&x);
  TensorList outputs(node.outputs.size());
  std::vector<TensorSpec> specs(node.outputs.size());
  try {
    node.op->infer({*node.op, pointers, node.attributes, outputs}, specs);
  } catch (const Error&) {
    return {};
  }
  return specs;
}

}  // namespace tutti::graph
