#include <algorithm>

#include "graph/passes/passes.h"
#include "tensor/call.h"

namespace tutti::graph {
namespace {

// Views that lead back to a geometry they came from (a transposed transpose), and copies that only change a layout for
// somebody who takes any, or that nobody would miss. Values are the same bits, read from elsewhere.
class Layouts {
 public:
  explicit Layouts(Graph& graph)
      : graph_(graph),
        written_(written_memories(graph)),
        given_out_(graph.values.size()),
        others_(graph.values.size()) {
    for (ValueId v : graph.outputs)
      if (v != kNone) given_out_[at(graph.memory_of(v))] = true;
    for (const Node& n : graph.nodes)
      for (ValueId v : n.inputs)
        if (v != kNone && !takes_any_layout(n)) others_[at(v)] = true;
  }

  void run() {
    bool hosts = std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [](auto& n) { return n.kind == Kind::host; });
    for (const Node& n : graph_.nodes) {
      if (n.kind != Kind::call || n.has_effect() || n.outputs.size() != 1) continue;
      if (n.op->view_of >= 0)
        leave_out_view(n);
      else if (n.op == &clone_operator() && !hosts)
        leave_out_copy(n.inputs[0], n.outputs[0]);
    }
  }

 private:
  // Products of matrices, whose sums are added in an order that only shapes decide. Those with vectors, and very long
  // sums, are cut by how operands lie in memory too (src/ops/matmul/gemm.cpp).
  bool takes_any_layout(const Node& n) const {
    constexpr int64_t kLongSum = 4096;
    bool product = n.op && n.op->matrix_product;
    if (!product || !graph_.exact) return product;
    const Shape &out = graph_.type(n.outputs[0]).sizes, &left = graph_.type(n.inputs[n.inputs.size() - 2]).sizes;
    return out[out.size() - 1] > 1 && out[out.size() - 2] > 1 && left[left.size() - 1] < kLongSum;
  }

  // What effects are done to stays the object that it is, and what leaves the graph is no input's own handle.
  void read_instead(ValueId from, ValueId to) {
    for (Node& n : graph_.nodes) {
      if (n.kind != Kind::call) continue;
      for (ValueId& v : n.inputs)
        if (v == from) v = to;
    }
    if (graph_.input_of(to)) return;
    for (ValueId& v : graph_.outputs)
      if (v == from) v = to;
  }

  void leave_out_view(const Node& n) {
    ValueId out = n.outputs[0];
    for (const Node* link = &n;;) {
      ValueId v = link->inputs[static_cast<size_t>(link->op->view_of)];
      if (graph_.type(v) == graph_.type(out)) return read_instead(out, v);
      int32_t producer = graph_.values[at(v)].producer;
      if (producer == kNone) return;
      link = &graph_.nodes[at(producer)];
      if (link->kind != Kind::call || link->op->view_of < 0) return;
    }
  }

  void leave_out_copy(ValueId from, ValueId copy) {
    if (from == kNone) return;
    const Type &a = graph_.type(from), &b = graph_.type(copy);
    bool still = !written_[at(graph_.memory_of(from))] && !written_[at(copy)] && graph_.memory_of(copy) == copy;
    bool private_copy = !given_out_[at(copy)] && a.layout == Layout::strided && a.dtype == b.dtype;
    if (!still || !private_copy || a.number || !(a.sizes == b.sizes)) return;
    if (a.strides == b.strides || !others_[at(copy)]) read_copy(from, copy);
  }
  // Views of the copy would have another memory: they keep it.
  void read_copy(ValueId from, ValueId copy) {
    for (const Value& v : graph_.values)
      if (v.memory == copy && &v != &graph_.values[at(copy)]) return;
    read_instead(copy, from);
  }

  Graph& graph_;
  std::vector<bool> written_, given_out_;
  std::vector<bool> others_;  // by value: somebody but products reads it
};

}  // namespace

void fold_layouts(Graph& graph) { Layouts(graph).run(); }

}  // namespace tutti::graph
