#include <algorithm>
#include <memory>

#include "graph/passes/passes.h"
#include "ops/blocked/blocked.h"
#include "pointwise/descriptors.h"

namespace tutti::graph {
namespace {

// Note [Norms and their neighbours]
// batch_norm goes over its images twice, for statistics and to apply them, and its gradient does too; what stands next
// to it in most networks (adding the images of a shortcut, relu; relu's gradient, the sum that is the gradient of a
// convolution's bias) would each go over them once more. In blocks (ops/blocked/blocked.h) these are done on the way:
//
//   y = batch_norm(x), z = add(a, y), relu(z)                         batch_norm(x, a), relu
//   h = relu_gradient(g, y), dx = norm_gradient(h, x), sum(dx)        norm_gradient(g, x, y), which gives h if need be
//
// Every number is computed as before, so bits stay. What is fused takes the norm's place, so its inputs must be there,
// and whoever else reads h must come later. Norms that have neighbours in them already stay as they are: they come from
// the graph of another compiled function, or of its backward pass, that is part of this one.
class Norms {
 public:
  explicit Norms(Graph& graph)
      : graph_(graph),
        written_(written_memories(graph)),
        shared_(shared_memories(graph)),
        given_(graph.values.size()),
        readers_(graph.values.size()),
        keep_(graph.nodes.size(), true) {
    for (ValueId v : graph.outputs)
      if (v != kNone) given_[at(v)] = true;
    for (int32_t k = 0; k < static_cast<int32_t>(graph.nodes.size()); ++k)
      for (ValueId v : node(k).inputs)
        if (v != kNone) readers_[at(v)].push_back(k);
  }

  void run() {
    for (int32_t k = 0; k < static_cast<int32_t>(graph_.nodes.size()); ++k) {
      if (node(k).op == &blocked::norm()) fuse_forward(k);
      if (node(k).op == &blocked::norm_gradient()) fuse_backward(k);
    }
    keep_nodes(graph_, keep_);
  }

 private:
  Node& node(int32_t k) { return graph_.nodes[at(k)]; }
  /// Nobody writes it or looks at its memory in another way.
  bool alone(ValueId v) const {
    return v != kNone && graph_.memory_of(v) == v && shared_[at(v)] == 1 && !written_[at(v)];
  }
  bool like(ValueId v, ValueId other) const {
    return v != kNone && !written_[at(graph_.memory_of(v))] && graph_.type(v) == graph_.type(other);
  }
  bool is_call(int32_t k, const Operator& op) { return node(k).op == &op && !node(k).has_effect() && keep_[at(k)]; }
  /// The node that alone reads v, as one operand.
  int32_t reader(ValueId v) const {
    return alone(v) && !given_[at(v)] && readers_[at(v)].size() == 1 ? readers_[at(v)][0] : kNone;
  }
  bool made_before(ValueId v, int32_t k) const { return graph_.values[at(v)].producer < k; }
  template <class A>
  A& own_attributes(Node& n) {
    auto own = std::make_shared<A>(*static_cast<const A*>(n.attributes.data));
    n.attributes = attributes(*own);
    n.owner = own;
    return *own;
  }
  /// Node k gives what `other`, which is left out, gave.
  void take_over(int32_t k, int32_t other, ValueId result) {
    keep_[at(other)] = false;
    graph_.values[at(result)].producer = k;
  }

  void fuse_forward(int32_t k) {
    Node& n = node(k);
    if (n.inputs.size() > 3 || static_cast<const blocked::Norm*>(n.attributes.data)->relu) return;
    auto take = [&](int32_t next) {
      graph_.values[at(n.outputs[0])].producer = kNone;
      take_over(k, next, n.outputs[0] = node(next).outputs[0]);
    };
    int32_t next = reader(n.outputs[0]);
    if (next != kNone && is_call(next, pointwise::add_operator())) {
      const std::vector<ValueId>& terms = node(next).inputs;
      ValueId added = terms[0] == n.outputs[0] ? terms[1] : terms[0], sum = node(next).outputs[0];
      if (!like(added, n.outputs[0]) || !made_before(added, k) || !like(sum, n.outputs[0]) || !alone(sum)) return;
      n.inputs.push_back(added);
      readers_[at(added)].push_back(k);
      take(next);
      next = reader(n.outputs[0]);
    }
    if (next == kNone || !is_call(next, pointwise::relu_operator())) return;
    if (ValueId result = node(next).outputs[0]; !like(result, n.outputs[0]) || !alone(result)) return;
    own_attributes<blocked::Norm>(n).relu = true;
    take(next);
  }

  void fuse_backward(int32_t k) {
    Node& n = node(k);
    if (n.inputs.size() > 5 || n.outputs.size() > 3) return;
    auto& also = own_attributes<blocked::NormGradient>(n);
    for (int32_t next : readers_[at(n.outputs[0])]) {
      if (also.sums || !is_call(next, blocked::sum()) || !alone(n.outputs[0])) continue;
      ValueId sum = node(next).outputs[0];
      if (!alone(sum) || graph_.type(sum).sizes.size() != 1) continue;
      also.sums = true;
      n.outputs.push_back(sum);
      take_over(k, next, sum);
    }
    ValueId g = n.inputs[0];
    int32_t relu = graph_.values[at(g)].producer;
    if (relu == kNone || !is_call(relu, pointwise::relu_operator().gradients[0]) || !alone(g)) return;
    for (ValueId v : node(relu).inputs)
      if (!like(v, g)) return;
    std::vector<int32_t>& readers = readers_[at(g)];
    if (std::any_of(readers.begin(), readers.end(), [&](int32_t r) { return r < k; })) return;
    if (std::count(readers.begin(), readers.end(), k) != 1) return;
    also.relu = true;
    also.keeps = readers.size() > 1 || given_[at(g)];
    n.inputs[0] = node(relu).inputs[0];
    n.inputs.push_back(node(relu).inputs[1]);
    graph_.values[at(g)].producer = kNone;
    keep_[at(relu)] = false;
    if (!also.keeps) return;
    n.outputs.push_back(g);
    graph_.values[at(g)].producer = k;
  }

  Graph& graph_;
  std::vector<bool> written_;                  // by memory
  std::vector<int> shared_;                    // by memory
  std::vector<bool> given_;                    // by value: a result of the graph
  std::vector<std::vector<int32_t>> readers_;  // by value: nodes, once for each operand
  std::vector<bool> keep_;                     // by node
};

}  // namespace

void fuse_norms(Graph& graph) {
  bool any = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                         [](const Node& n) { return n.op == &blocked::norm() || n.op == &blocked::norm_gradient(); });
  if (any) Norms(graph).run();
}

}  // namespace tutti::graph
