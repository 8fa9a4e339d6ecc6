// What holds of every graph, checked after every pass.
#include "base/check.h"
#include "tutti/graph/ir.h"

namespace tutti::graph {
namespace {

class Verifier {
 public:
  Verifier(const Graph& graph, const char* after) : graph_(graph), after_(after), known_(graph.values.size()) {}

  void run() {
    for (size_t v = 0; v < graph_.values.size(); ++v) check_value(static_cast<ValueId>(v));
    for (const Input& in : graph_.inputs) {
      require(valid(in.value), "an input is no value");
      require(!known_[index(in.value)], "a value is two inputs");
      require(in.origin != Origin::gradient || (valid(in.index) && graph_.input_of(in.index)),
              "a gradient is that of no input");
      require((in.origin != Origin::captured && in.origin != Origin::constant) || in.tensor.defined(),
              "an input of the graph's own has no tensor");
      known_[index(in.value)] = true;
    }
    for (size_t k = 0; k < graph_.nodes.size(); ++k) check_node(static_cast<int32_t>(k));
    for (ValueId v : graph_.outputs) require(v == kNone || (valid(v) && known_[index(v)]), "an output is never made");
    for (const Node& n : graph_.nodes) require(!n.starts || is_waited_for(n), "nobody waits for a collective");
    check_groups();
  }

 private:
  static size_t index(ValueId v) { return static_cast<size_t>(v); }
  bool valid(ValueId v) const { return v >= 0 && index(v) < graph_.values.size(); }
  void require(bool condition, const char* what) {
    if (!condition) fail<InternalError>(after_, "broke the graph '{}': {}\n{}", graph_.name, what, to_string(graph_));
  }

  void check_value(ValueId v) {
    const Value& value = graph_.values[index(v)];
    require(valid(value.memory) && graph_.memory_of(value.memory) == value.memory, "a memory is no first value");
    require(value.type.sizes.size() == value.type.strides.size() || value.type.layout == Layout::sparse,
            "sizes and strides differ in length");
    require(graph_.type(value.memory).device == value.type.device, "values of one memory are on different devices");
  }

  void check_node(int32_t k) {
    const Node& n = graph_.nodes[static_cast<size_t>(k)];
    for (ValueId v : n.inputs)
      require(v == kNone || (valid(v) && known_[index(v)]), "a value is used before it is made");
    require((n.kind == Kind::call) == (n.op != nullptr), "calls, and only calls, have an operator");
    require(n.kind != Kind::call || !n.outputs.empty(), "a call has no output");
    require(n.kind != Kind::alias || (n.inputs.size() == 1 && n.outputs.size() == 1), "an alias is of one value");
    require(n.kind < Kind::resize || n.kind == Kind::host || (!n.inputs.empty() && n.inputs[0] != kNone),
            "an effect is on no value");
    require(n.kind != Kind::set_version || n.absolute ||
                (n.number >= 0 && n.number < k && graph_.nodes[static_cast<size_t>(n.number)].kind == Kind::version),
            "a version is restored that was not read");
    for (size_t i = 0; i < n.outputs.size(); ++i) {
      ValueId v = n.outputs[i];
      require(valid(v), "an output is no value");
      require(known_[index(v)] == n.is_written(i), "a value is made twice, or written before it is made");
      known_[index(v)] = true;
      if (!n.is_written(i)) require(graph_.values[index(v)].producer == k, "a value does not know its node");
      bool view = n.kind == Kind::alias || (n.op && n.op->view_of >= 0);
      if (view) {
        ValueId of = n.inputs[n.op ? static_cast<size_t>(n.op->view_of) : 0];
        require(graph_.memory_of(v) == graph_.memory_of(of), "a view does not share the memory of what it views");
      }
    }
  }

  bool is_waited_for(const Node& n) const {
    for (const Node& wait : graph_.nodes)
      if (wait.kind == Kind::wait && wait.inputs[0] == n.outputs[0]) return true;
    return false;
  }

  void check_groups() {
    for (size_t g = 0; g < graph_.groups.size(); ++g)
      for (int32_t k : graph_.groups[g].nodes)
        require(k >= 0 && static_cast<size_t>(k) < graph_.nodes.size() &&
                    graph_.nodes[static_cast<size_t>(k)].group == static_cast<int32_t>(g),
                "a node does not know its group");
  }

  const Graph& graph_;
  const char* after_;
  std::vector<bool> known_;
};

}  // namespace

void verify(const Graph& graph, const char* after) { Verifier(graph, after).run(); }

}  // namespace tutti::graph
