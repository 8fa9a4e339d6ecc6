// Graphs for people, as text; page.cpp makes pages of the same words.
#include "graph/print.h"

#include "base/check.h"
#include "graph/function.h"

namespace tutti::graph {
namespace {

std::string value(ValueId v) { return v == kNone ? "none" : fmt::format("%{}", v); }

std::string type_text(const Type& t) {
  std::string text = fmt::format("{}{}", t.dtype, t.sizes);
  if (t.number) text = "number " + text;
  if (t.layout == Layout::sparse) text = "sparse " + text;
  Shape dense;
  int64_t step = 1;
  for (size_t d = t.sizes.size(); d-- > 0; step *= t.sizes[d]) dense.insert(0, step);
  if (t.layout == Layout::strided && !(dense == t.strides)) text += fmt::format(" strides {}", t.strides);
  if (t.device.kind != DeviceKind::cpu || t.device.index != 0) text += fmt::format(" on {}", t.device);
  return text;
}

}  // namespace

std::string list_text(const std::vector<ValueId>& values) {
  std::string text;
  for (ValueId v : values) text += (text.empty() ? "" : ", ") + value(v);
  return text;
}

std::string node_text(const Graph& graph, const Node& n) {
  std::string made, written;
  for (size_t i = 0; i < n.outputs.size(); ++i) {
    std::string& to = n.is_written(i) ? written : made;
    to += (to.empty() ? "" : ", ") + value(n.outputs[i]);
    if (n.is_written(i)) continue;
    to += ": " + type_text(graph.type(n.outputs[i]));
    ValueId memory = graph.memory_of(n.outputs[i]);
    if (memory != n.outputs[i]) to += fmt::format(" in %{}", memory);
  }
  std::string text = made.empty() ? "" : made + " = ";
  if (n.starts) text += "start ";
  text += n.op ? n.op->name : name(n.kind);
  std::string inside = list_text(n.inputs);
  if (n.attributes.data) {
    std::string attributes = n.attributes.type->print(n.attributes.data);
    if (!attributes.empty()) inside += (inside.empty() ? "" : ", ") + attributes;
  }
  if (n.kind == Kind::resize) inside += fmt::format(", {} bytes", n.number);
  if (n.kind == Kind::set_version) inside += fmt::format(", {}{}", n.absolute ? "" : "as at node ", n.number);
  text += "(" + inside + ")";
  if (!written.empty()) text += " into " + written;
  if (n.keeps_version && !written.empty()) text += ", version kept";
  if (n.group != kNone) text += fmt::format("  # group {}", n.group);
  if (!n.place.empty()) text += "  # " + n.place;
  return text;
}

std::string input_text(const Graph& graph, const Input& in) {
  std::string text = fmt::format("{}: {} = {}", value(in.value), type_text(graph.type(in.value)), name(in.origin));
  if (in.origin == Origin::argument) text += fmt::format(" {}", in.index);
  if (in.origin == Origin::gradient || in.origin == Origin::saved)
    text += fmt::format(" of %{}", saved_itself(in.index));
  if (in.origin == Origin::saved && is_in_blocks(in.index)) text += " in blocks";
  if (in.origin == Origin::constant && in.tensor.numel() <= 8 && in.tensor.device().is_cpu())
    text += " " + to_string(in.tensor);
  return text;
}

std::string group_text(const Graph& graph, size_t g) {
  const FusionGroup& group = graph.groups[g];
  return fmt::format("group {}: {} nodes over {}{}, reads {}, leaves {}", g, group.nodes.size(), group.sizes,
                     group.reduces ? " and a reduction" : "", list_text(group.inputs), list_text(group.outputs));
}

std::string life_text(const Graph& graph, const MemoryPlan::Life& life) {
  bool leaves = static_cast<size_t>(life.last) >= graph.nodes.size();
  return fmt::format("%{} {}-{}", life.value, life.first, leaves ? "end" : std::to_string(life.last));
}

std::string to_string(const Graph& graph) {
  ModeGuard untraced(0, kTraceMode);
  std::string text = fmt::format("graph {} ({} nodes{})\n", graph.name, graph.nodes.size(),
                                 graph.exact ? "" : ", inexact: bits may differ from eager's");
  for (const Input& in : graph.inputs) text += "  " + input_text(graph, in) + "\n";
  for (size_t k = 0; k < graph.nodes.size(); ++k)
    text += fmt::format("  {:>3}  {}\n", k, node_text(graph, graph.nodes[k]));
  text += "  return " + list_text(graph.outputs) + "\n";
  for (size_t g = 0; g < graph.groups.size(); ++g) text += "  " + group_text(graph, g) + "\n";
  if (graph.plan.bytes.empty()) return text;
  text += fmt::format("  memory: {} buffers, {} bytes ({} without sharing)\n", graph.plan.bytes.size(), graph.plan.peak,
                      graph.plan.without_reuse);
  for (size_t b = 0; b < graph.plan.bytes.size(); ++b) {
    std::string lives;
    for (const auto& life : graph.plan.lives)
      if (life.buffer == static_cast<int32_t>(b)) lives += (lives.empty() ? "" : ", ") + life_text(graph, life);
    text += fmt::format("    buffer {}: {} bytes for {}\n", b, graph.plan.bytes[b], lives);
  }
  return text;
}

}  // namespace tutti::graph
