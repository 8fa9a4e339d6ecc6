// Graphs for people: as text and as a page.
#include "base/check.h"
#include "tutti/graph/ir.h"

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

std::string list(const std::vector<ValueId>& values) {
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
  text += n.op ? n.op->name : name(n.kind);
  std::string inside = list(n.inputs);
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
  if (in.origin == Origin::gradient || in.origin == Origin::saved) text += fmt::format(" of %{}", in.index);
  if (in.origin == Origin::constant && in.tensor.numel() <= 8 && in.tensor.device().is_cpu())
    text += " " + to_string(in.tensor);
  return text;
}

std::string group_text(const Graph& graph, size_t g) {
  const FusionGroup& group = graph.groups[g];
  return fmt::format("group {}: {} nodes over {}{}, reads {}, leaves {}", g, group.nodes.size(), group.sizes,
                     group.reduces ? " and a reduction" : "", list(group.inputs), list(group.outputs));
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

constexpr const char* kStyle =
    "body{font:14px sans-serif;margin:2em;max-width:80em}td{font:13px monospace;padding:1px 8px;white-space:pre-wrap}"
    "tr.g0{background:#e8f2ff}tr.g1{background:#eafbe7}tr.g2{background:#fff5e0}tr.g3{background:#fbe9f4}"
    "table{border-collapse:collapse}td:first-child{color:#888;text-align:right}";

}  // namespace

std::string to_string(const Graph& graph) {
  ModeGuard untraced(0, kTraceMode);
  std::string text = fmt::format("graph {} ({} nodes)\n", graph.name, graph.nodes.size());
  for (const Input& in : graph.inputs) text += "  " + input_text(graph, in) + "\n";
  for (size_t k = 0; k < graph.nodes.size(); ++k)
    text += fmt::format("  {:>3}  {}\n", k, node_text(graph, graph.nodes[k]));
  text += "  return " + list(graph.outputs) + "\n";
  for (size_t g = 0; g < graph.groups.size(); ++g) text += "  " + group_text(graph, g) + "\n";
  if (!graph.plan.bytes.empty())
    text += fmt::format("  memory: {} buffers, {} bytes ({} without sharing)\n", graph.plan.bytes.size(),
                        graph.plan.peak, graph.plan.without_reuse);
  return text;
}

std::string to_html(const std::vector<std::shared_ptr<const Graph>>& graphs, const std::string& title,
                    const std::vector<std::string>& code) {
  ModeGuard untraced(0, kTraceMode);
  std::string page = fmt::format(
      "<!DOCTYPE html><html><head><meta charset=\"utf-8\"><title>{0}</title><style>{1}</style>"
      "</head><body><h1>{0}</h1>\n",
      escaped(title), kStyle);
  for (size_t g = 0; g < graphs.size(); ++g) {
    const auto& graph = graphs[g];
    page += fmt::format("<h2>{}</h2><p>{} nodes, {} groups; memory: {} bytes in {} buffers, {} without sharing</p>\n",
                        escaped(graph->name), graph->nodes.size(), graph->groups.size(), graph->plan.peak,
                        graph->plan.bytes.size(), graph->plan.without_reuse);
    page += "<table>\n";
    for (const Input& in : graph->inputs)
      page += fmt::format("<tr><td></td><td>{}</td></tr>\n", escaped(input_text(*graph, in)));
    for (size_t k = 0; k < graph->nodes.size(); ++k) {
      const Node& n = graph->nodes[k];
      page += fmt::format("<tr{}><td>{}</td><td>{}</td></tr>\n",
                          n.group == kNone ? "" : fmt::format(" class=\"g{}\"", n.group % 4), k,
                          escaped(node_text(*graph, n)));
    }
    page += fmt::format("<tr><td></td><td>return {}</td></tr></table>\n", list(graph->outputs));
    for (size_t i = 0; i < graph->groups.size(); ++i)
      page += fmt::format("<p>{}</p>\n", escaped(group_text(*graph, i)));
    if (g < code.size() && !code[g].empty())
      page += fmt::format("<details><summary>generated code</summary><pre>{}</pre></details>\n", escaped(code[g]));
  }
  return page + "</body></html>\n";
}

}  // namespace tutti::graph
