#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "graph/flow.h"
#include "graph/function.h"
#include "graph/passes/passes.h"
#include "ops/blocked/blocked.h"
#include "pointwise/signature.h"
#include "tensor/impl.h"

namespace tutti::graph {
namespace {

// Note [Images in blocks]
// oneDNN's fast convolutions take and give images with channels in blocks (ops/blocked/blocked.h), and one that is
// called with plain images reorders them on its way in and out, which takes a sixth of the step of a small network.
// Here images stay in blocks from one convolution to the next, through the operators between them that can do the same
// there: pointwise ones, batch_norm, max_pool, sums over all but the channels. Reordering is copying, convolutions
// are the primitives that they are in eager, and the others add up in the same order: so bits are eager's.
//
// Which operators work in blocks is a cut of a network: they are on the source's side, the others on the sink's, and
// what is paid is the bytes that are reordered:
//
//   source → convolution          those that it reorders by itself if it is not in blocks
//   producer → v → each reader    once for a value that is made in blocks and read by somebody who is not in blocks
//   each reader → v' → producer   and the other way round
//
// What backward asks forward to save may come in blocks, too: choose_saved_blocks() looks at both.
struct Operands {
  blocked::Form form;
  std::vector<ValueId> tables;  // inputs with an entry for each channel, which are to be seen in blocks too

  bool takes(size_t input) const { return input < 32 && form.inputs >> input & 1; }
  bool gives(size_t output) const { return output < 32 && form.outputs >> output & 1; }
};

Type blocked_type(Type t) {
  t.sizes = blocked::blocked_sizes(t.sizes);
  t.strides = contiguous_strides(t.sizes);
  t.offset = 0;
  return t;
}

class Blocks {
 public:
  explicit Blocks(Graph& graph) : graph_(graph), written_(written_memories(graph)) {
    for (const Node& n : graph.nodes) operands_.push_back(operands_of(n));
  }

  /// Whether anything here would gain.
  bool any() const {
    for (size_t k = 0; k < graph_.nodes.size(); ++k)
      if (operands_[k].form.wants || is_reorder(k)) return true;
    return false;
  }

  /// Inputs that can be had in blocks just as well, and where outputs begin that may be given in blocks.
  void choose(const std::vector<ValueId>& free_inputs, size_t free_outputs) {
    size_t nodes = graph_.nodes.size(), values = graph_.values.size();
    size_t source = nodes + 3 * values, sink = source + 1;
    Network network(sink + 1);
    auto made_of = [&](size_t v) { return nodes + 3 * v; };  // then its `v` and `v'` of the Note
    std::vector<std::vector<size_t>> readers(values);
    std::vector<bool> plainly(values);
    for (size_t k = 0; k < nodes; ++k) {
      const Node& n = graph_.nodes[k];
      const Operands& o = operands_[k];
      int64_t own = 0;
      for (size_t i = 0; i < n.inputs.size(); ++i) {
        if (n.inputs[i] == kNone) continue;
        o.takes(i) ? readers[at(n.inputs[i])].push_back(k) : void(plainly[at(n.inputs[i])] = true);
        if (o.takes(i)) own += kByte * bytes(n.inputs[i]);
      }
      for (size_t i = 0; i < n.outputs.size(); ++i)
        if (o.gives(i)) own += kByte * bytes(n.outputs[i]);
      if (is_reorder(k))
        network.add(source, k, Network::kNever);
      else if (o.form.wants)
        network.add(source, k, own);
      else
        network.add(k, sink, o.form.op ? 1 : Network::kNever);
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      if (ValueId v = graph_.outputs[i]; v != kNone && i < free_outputs) plainly[at(v)] = true;
    for (size_t v = 0; v < values; ++v) {
      auto id = static_cast<ValueId>(v);
      bool free = std::find(free_inputs.begin(), free_inputs.end(), id) != free_inputs.end();
      int32_t k = graph_.values[v].producer;
      bool blocked = k != kNone && gives(at(k), id);
      if (!free && !blocked && readers[v].empty()) continue;
      size_t maker = free ? made_of(v) : blocked ? at(k) : sink;
      int64_t cost = kByte * bytes(id) + 1;
      if (free) network.add(source, maker, cost - 1);  // forward has it in blocks and would reorder it
      if (maker != sink) {
        network.add(maker, made_of(v) + 1, cost);
        for (size_t reader : readers[v]) network.add(made_of(v) + 1, reader, Network::kNever);
        if (plainly[v]) network.add(made_of(v) + 1, sink, Network::kNever);
      }
      for (size_t reader : readers[v]) network.add(reader, made_of(v) + 2, Network::kNever);
      if (!readers[v].empty()) network.add(made_of(v) + 2, maker, cost);
    }
    std::vector<bool> side = network.cut(source, sink);
    chosen_.assign(side.begin(), side.begin() + static_cast<std::ptrdiff_t>(nodes));
    for (ValueId v : free_inputs)
      if (side[made_of(at(v))]) chosen_inputs_.push_back(v);
  }

  const std::vector<ValueId>& chosen_inputs() const { return chosen_inputs_; }
  /// Whether the value is made in blocks, in memory of its own.
  bool made_in_blocks(ValueId v) const {
    int32_t k = v == kNone ? kNone : graph_.values[at(v)].producer;
    return k != kNone && chosen_[at(k)] && gives(at(k), v) && graph_.memory_of(v) == v;
  }

  void rewrite() {
    if (std::none_of(chosen_.begin(), chosen_.end(), [](bool b) { return b; })) return;
    std::vector<Node> old = std::exchange(graph_.nodes, {});
    std::vector<int64_t> number(old.size());
    for (size_t k = 0; k < old.size(); ++k) {
      Node& n = old[k];
      if (n.kind == Kind::set_version && !n.absolute) n.number = number[static_cast<size_t>(n.number)];
      if (!is_reorder(k)) {
        put(n, operands_[k], chosen_[k]);
      } else if (n.op == &blocked::from_blocked()) {
        blocked_[n.outputs[0]] = renamed(n.inputs[0]);
        waiting_[n.outputs[0]] = true;
      } else if (auto it = blocked_.find(n.inputs[0]); it != blocked_.end()) {
        names_[n.outputs[0]] = it->second;
        graph_.values[at(n.outputs[0])].producer = kNone;
      } else {
        blocked_[n.inputs[0]] = n.outputs[0];
        put(n, {}, false);
      }
      number[k] = static_cast<int64_t>(graph_.nodes.size()) - 1;
    }
    for (ValueId& v : graph_.outputs)
      if (v != kNone) make_plain(v = renamed(v));
    for (auto [v, is] : waiting_)
      if (is) graph_.values[at(v)].producer = kNone;  // nobody asked for it
    for (size_t k = 0; k < graph_.nodes.size(); ++k)
      for (size_t i = 0; i < graph_.nodes[k].outputs.size(); ++i)
        if (!graph_.nodes[k].is_written(i))
          graph_.values[at(graph_.nodes[k].outputs[i])].producer = static_cast<int32_t>(k);
  }

 private:
  static constexpr int64_t kByte = 16;  // so that the number of nodes decides between ways that cost the same

  int64_t bytes(ValueId v) const { return bytes_of(graph_.type(v)); }
  bool is_reorder(size_t k) const {
    return operands_[k].form.op == &blocked::to_blocked() || operands_[k].form.op == &blocked::from_blocked();
  }
  bool gives(size_t k, ValueId v) const {
    const Node& n = graph_.nodes[k];
    for (size_t i = 0; i < n.outputs.size(); ++i)
      if (n.outputs[i] == v) return operands_[k].gives(i);
    return false;
  }

  // ---- What can be done in blocks

  bool untouched(ValueId v) const { return !written_[at(graph_.memory_of(v))]; }
  bool is_image(ValueId v) const {
    if (v == kNone || !untouched(v)) return false;
    const Type& t = graph_.type(v);
    return t.layout == Layout::strided && t.device.is_cpu() && !t.number && blocked::divides(t.sizes) &&
           t.strides == contiguous_strides(t.sizes);
  }
  Operands operands_of(const Node& n) const {
    if (n.kind != Kind::call || n.has_effect()) return {};
    bool to = n.op == &blocked::to_blocked(), from = n.op == &blocked::from_blocked();
    if (to || from) {
      if (!is_image(to ? n.inputs[0] : n.outputs[0])) return {};
      return {.form = {.op = n.op, .inputs = to, .outputs = from}, .tables = {}};
    }
    if (n.op->view_of >= 0) return {};
    if (n.op->pointwise) return pointwise_operands(n);
    std::vector<Shape> inputs, outputs;
    bool image = false;
    for (auto [ids, sizes] : {std::pair(&n.inputs, &inputs), std::pair(&n.outputs, &outputs)})
      for (ValueId v : *ids) {
        sizes->push_back(v == kNone ? Shape() : graph_.type(v).sizes);
        image = image || is_image(v);
      }
    if (!image || !single(n)) return {};
    Operands o{.form = blocked::form_of({*n.op, n.attributes, inputs, outputs}), .tables = {}};
    bool fits = true;
    for (size_t i = 0; i < n.inputs.size(); ++i) fits = fits && (!o.takes(i) || is_image(n.inputs[i]));
    for (size_t i = 0; i < n.outputs.size(); ++i) fits = fits && (!o.gives(i) || is_image(n.outputs[i]));
    return fits ? o : Operands();
  }
  // All floating operands are f32, and what is not an image is as it would be: contiguous.
  bool single(const Node& n) const {
    for (const auto* ids : {&n.inputs, &n.outputs})
      for (ValueId v : *ids) {
        if (v == kNone) continue;
        const Type& t = graph_.type(v);
        if (t.layout != Layout::strided || !t.device.is_cpu() || !untouched(v)) return false;
        if (t.dtype != DType::f32 && t.dtype != DType::i64) return false;
        if (!(t.strides == contiguous_strides(t.sizes))) return false;
      }
    return true;
  }
  Operands pointwise_operands(const Node& n) const {
    bool known = pointwise::has_formula(*n.op) || pointwise::has_formula_of_gradient(*n.op);
    if (!known || n.outputs.size() != 1 || n.inputs.size() > 31 || !is_image(n.outputs[0])) return {};
    const Shape& sizes = graph_.type(n.outputs[0]).sizes;
    Operands o{.form = {.op = n.op, .attributes = n.attributes, .outputs = 1}, .tables = {}};
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      ValueId v = n.inputs[i];
      if (v == kNone) return {};
      const Type& t = graph_.type(v);
      if (is_image(v) && t.sizes == sizes)
        o.form.inputs |= 1u << i;
      else if (is_table(t, sizes[1]))
        o.tables.push_back(v);
      else if (!t.sizes.empty())
        return {};
    }
    return o;
  }
  // [channels, 1, 1], perhaps with a batch of one.
  static bool is_table(const Type& t, int64_t channels) {
    if (t.layout != Layout::strided || !(t.strides == contiguous_strides(t.sizes))) return false;
    return t.sizes == Shape{channels, 1, 1} || t.sizes == Shape{1, channels, 1, 1};
  }

  // ---- Rewriting

  ValueId renamed(ValueId v) const {
    auto it = names_.find(v);
    return it == names_.end() ? v : it->second;
  }
  void put(Node& n, const Operands& o, bool in_blocks) {
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      ValueId& v = n.inputs[i];
      if (v == kNone) continue;
      v = renamed(v);
      if (!in_blocks || !o.takes(i)) make_plain(v);
      if (in_blocks && o.takes(i))
        v = make_blocked(v);
      else if (in_blocks && std::find(o.tables.begin(), o.tables.end(), v) != o.tables.end())
        v = see_table(v);
    }
    if (in_blocks) {
      n.op = o.form.op;
      n.attributes = o.form.attributes;
      if (o.form.owner) n.owner = o.form.owner;
      for (size_t i = 0; i < n.outputs.size(); ++i)
        if (o.gives(i)) {
          ValueId v = n.outputs[i], b = graph_.add_value(blocked_type(graph_.type(v)), kNone, kNone);
          blocked_[v] = n.outputs[i] = b;
          waiting_[v] = true;
        }
    }
    graph_.nodes.push_back(std::move(n));
  }
  void add(const Operator& op, ValueId from, ValueId to) {
    graph_.nodes.push_back({.op = &op, .inputs = {from}, .outputs = {to}});
  }
  void make_plain(ValueId v) {
    auto it = waiting_.find(v);
    if (it == waiting_.end() || !it->second) return;
    it->second = false;
    add(blocked::from_blocked(), blocked_.at(v), v);
  }
  ValueId make_blocked(ValueId v) {
    if (auto it = blocked_.find(v); it != blocked_.end()) return it->second;
    ValueId b = graph_.add_value(blocked_type(graph_.type(v)), kNone, kNone);
    add(blocked::to_blocked(), v, b);
    return blocked_[v] = b;
  }
  ValueId see_table(ValueId v) {
    auto [it, fresh] = tables_.emplace(v, kNone);
    if (!fresh) return it->second;
    Type t = graph_.type(v);
    int64_t channels = t.sizes.product();
    t.sizes = {1, channels / blocked::kChannels, 1, 1, blocked::kChannels};
    t.strides = contiguous_strides(t.sizes);
    ValueId seen = graph_.add_value(t, graph_.memory_of(v), kNone);
    graph_.nodes.push_back({.kind = Kind::alias, .inputs = {v}, .outputs = {seen}});
    return it->second = seen;
  }

  Graph& graph_;
  std::vector<bool> written_;
  std::vector<Operands> operands_;      // by node
  std::vector<bool> chosen_;            // by node: works in blocks
  std::vector<ValueId> chosen_inputs_;  // come in blocks
  std::map<ValueId, ValueId> blocked_;  // a value → the same in blocks
  std::map<ValueId, bool> waiting_;     // a value that is there in blocks → and only so
  std::map<ValueId, ValueId> names_;    // a value that is no longer made → the same
  std::map<ValueId, ValueId> tables_;   // a table → as operators in blocks see it
};

bool convolves(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const Node& n) { return n.op && std::strncmp(n.op->name, "conv", 4) == 0; });
}

void put_first(Graph& graph, std::vector<Node> nodes) {
  auto shift = static_cast<int32_t>(nodes.size());
  for (Value& v : graph.values)
    if (v.producer != kNone) v.producer += shift;
  for (Node& n : graph.nodes)
    if (n.kind == Kind::set_version && !n.absolute) n.number += shift;
  for (int32_t k = 0; k < shift; ++k) graph.values[at(nodes[at(k)].outputs[0])].producer = k;
  graph.nodes.insert(graph.nodes.begin(), std::make_move_iterator(nodes.begin()), std::make_move_iterator(nodes.end()));
}

}  // namespace

void keep_blocks(Graph& graph) {
  Blocks blocks(graph);
  if (!blocks.any()) return;
  blocks.choose({}, graph.outputs.size());
  blocks.rewrite();
}

ValueId give_in_blocks(Graph& graph, ValueId v) {
  ValueId b = graph.add_value(blocked_type(graph.type(v)), kNone, static_cast<int32_t>(graph.nodes.size()));
  graph.nodes.push_back({.op = &blocked::to_blocked(), .inputs = {v}, .outputs = {b}});
  return b;
}

void choose_saved_blocks(const Graph& forward, Graph& backward) {
  if (!convolves(forward) || !convolves(backward)) return;
  Graph there = forward, here = backward;
  // What forward has in blocks of what is asked for.
  std::vector<const Input*> asked;
  for (const Input& in : backward.inputs) {
    bool alone = backward.memory_of(in.value) == in.value && blocked::divides(backward.type(in.value).sizes);
    for (const Input& other : backward.inputs)
      if (&other != &in)
        alone = alone && backward.memory_of(other.value) != in.value &&
                (other.origin != Origin::gradient || other.index != in.value);
    if (in.origin != Origin::saved || !alone) continue;
    asked.push_back(&in);
    there.outputs.push_back(in.index);
  }
  tidy(there);
  Blocks of_forward(there);
  of_forward.choose({}, forward.outputs.size());
  std::vector<bool> leaves(there.values.size());
  for (size_t i = 0; i < forward.outputs.size(); ++i)
    if (there.outputs[i] != kNone) leaves[at(there.memory_of(there.outputs[i]))] = true;
  std::vector<ValueId> free_inputs;
  for (size_t i = 0; i < asked.size(); ++i)
    if (ValueId v = there.outputs[forward.outputs.size() + i]; of_forward.made_in_blocks(v) && !leaves[at(v)])
      free_inputs.push_back(asked[i]->value);
  // What backward would have in blocks of that.
  tidy(here);
  std::erase_if(free_inputs, [&](ValueId v) { return !here.input_of(v); });
  Blocks of_backward(here);
  of_backward.choose(free_inputs, here.outputs.size());
  std::vector<Node> first;
  for (ValueId v : of_backward.chosen_inputs()) {
    ValueId b = backward.add_value(blocked_type(backward.type(v)), kNone, kNone);
    for (Input& in : backward.inputs)
      if (in.value == v) in = {.value = b, .origin = Origin::saved, .index = saved_in_blocks(in.index)};
    first.push_back({.op = &blocked::from_blocked(), .inputs = {b}, .outputs = {v}});
  }
  put_first(backward, std::move(first));
}

}  // namespace tutti::graph
