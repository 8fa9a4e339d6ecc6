// Graphs as a page: one file, nothing to fetch.
#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "graph/print.h"

namespace tutti::graph {
namespace {

constexpr const char* kStyle = R"(
:root{--ink:#1d2433;--soft:#69728a;--line:#e3e7ef;--page:#f6f7fa;--card:#fff;--mark:#ffe28a}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9f2;--soft:#98a1b8;--line:#333a4b;--page:#171b24;--card:#1f2430;--mark:#7a5f00}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:0;padding:2em}
main{max-width:72em;margin:auto}h1{font-size:1.5em;margin:0 0 1em}h2{font-size:1.15em;margin:0}h3{font-size:.8em;
text-transform:uppercase;letter-spacing:.08em;color:var(--soft);margin:1.6em 0 .5em}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1.2em 1.5em;margin-bottom:1.5em}
.facts{display:flex;flex-wrap:wrap;gap:.4em 2em;color:var(--soft);margin-top:.3em}.facts b{color:var(--ink)}
table{border-collapse:collapse;width:100%}td{font:13px/1.5 ui-monospace,monospace;padding:1px 8px;white-space:pre-wrap;
overflow-wrap:anywhere;vertical-align:top}td:first-child{color:var(--soft);text-align:right;width:3em}
tr.in td{color:var(--soft)}tr[class^=g] td:first-child{border-left:5px solid}
.g0 td:first-child,.g0 .chip{border-color:#4c8dff}.g1 td:first-child,.g1 .chip{border-color:#23a26d}
.g2 td:first-child,.g2 .chip{border-color:#e08a00}.g3 td:first-child,.g3 .chip{border-color:#c44fb5}
.g4 td:first-child,.g4 .chip{border-color:#8a6fe8}.g5 td:first-child,.g5 .chip{border-color:#d8554a}
.chip{display:inline-block;border-left:5px solid;padding-left:8px;font:13px/1.7 ui-monospace,monospace}
.v{border-radius:3px}.v.on{background:var(--mark)}svg{width:100%;display:block}svg text{font:11px ui-monospace,monospace;
fill:var(--soft)}svg rect.v{fill:#4c8dff;opacity:.75}svg rect.v.on{fill:#e08a00;opacity:1}
svg line{stroke:var(--line)}pre{font:12px/1.45 ui-monospace,monospace;overflow:auto;max-height:40em}
summary{cursor:pointer;color:var(--soft);margin-top:1.2em}
)";

// Pointing at a value shows where else in its graph it is.
constexpr const char* kScript = R"(
for (const on of [true, false])
  document.addEventListener(on ? "mouseover" : "mouseout", e => {
    const v = e.target.closest("[data-v]");
    if (v) for (const other of v.closest("section").querySelectorAll(`[data-v="${v.dataset.v}"]`))
      other.classList.toggle("on", on);
  });
)";

constexpr int kColours = 6;

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

// Names of values (%12) become things to point at.
std::string marked(const std::string& text) {
  std::string plain = escaped(text), out;
  for (size_t i = 0; i < plain.size();) {
    size_t end = i + 1;
    while (plain[i] == '%' && end < plain.size() && std::isdigit(static_cast<unsigned char>(plain[end]))) ++end;
    std::string part = plain.substr(i, end - i);
    out += part.size() > 1 ? fmt::format("<span class=\"v\" data-v=\"{}\">{}</span>", part.substr(1), part) : part;
    i = end;
  }
  return out;
}

std::string row(const std::string& style, const std::string& number, const std::string& text) {
  return fmt::format("<tr{}><td>{}</td><td>{}</td></tr>\n", style.empty() ? "" : fmt::format(" class=\"{}\"", style),
                     number, marked(text));
}

std::string colour(int32_t group) { return group == kNone ? "" : fmt::format("g{}", group % kColours); }

std::string node_table(const Graph& graph) {
  std::string text = "<h3>Graph</h3><table>\n";
  for (const Input& in : graph.inputs) text += row("in", "", input_text(graph, in));
  for (size_t k = 0; k < graph.nodes.size(); ++k)
    text += row(colour(graph.nodes[k].group), std::to_string(k), node_text(graph, graph.nodes[k]));
  return text + row("in", "", "return " + list_text(graph.outputs)) + "</table>\n";
}

std::string group_list(const Graph& graph) {
  if (graph.groups.empty()) return "";
  std::string text = "<h3>Fusion groups</h3>\n";
  for (size_t g = 0; g < graph.groups.size(); ++g)
    text += fmt::format("<div class=\"{}\"><span class=\"chip\">{}</span></div>\n", colour(static_cast<int32_t>(g)),
                        marked(group_text(graph, g)));
  return text;
}

// Time, in nodes, goes from left to right; a line for each buffer, a bar for each value that lives in it.
std::string memory_chart(const Graph& graph) {
  const MemoryPlan& plan = graph.plan;
  if (plan.lives.empty()) return "";
  constexpr double kLeft = 150, kWidth = 1000, kRow = 20;
  double step = (kWidth - kLeft) / static_cast<double>(std::max<size_t>(1, graph.nodes.size()));
  std::string text =
      fmt::format("<h3>Memory plan</h3><svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"memory plan\">\n", kWidth,
                  kRow * static_cast<double>(plan.bytes.size()) + 2);
  for (size_t b = 0; b < plan.bytes.size(); ++b) {
    double y = kRow * static_cast<double>(b);
    text += fmt::format("<text x=\"0\" y=\"{}\">{}: {} bytes</text><line x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n",
                        y + 14, b, plan.bytes[b], kLeft, kWidth, y + kRow, y + kRow);
  }
  for (const auto& life : plan.lives) {
    double last = std::min<double>(life.last, static_cast<double>(graph.nodes.size()) - 1);
    text += fmt::format(
        "<rect class=\"v\" data-v=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\">"
        "<title>{}, {} bytes</title></rect>\n",
        life.value, kLeft + life.first * step, kRow * life.buffer + 3,
        std::max(1.0, (last - life.first + 1) * step - 1), kRow - 6, life_text(graph, life),
        bytes_of(graph.type(life.value)));
  }
  return text + "</svg>\n";
}

std::string section(const Graph& graph, const std::string& code) {
  std::string text = fmt::format(
      "<section><h2>{}</h2><div class=\"facts\"><span><b>{}</b> nodes</span><span><b>{}</b> fusion groups</span>"
      "<span><b>{}</b> bytes in <b>{}</b> buffers, {} without sharing</span>{}</div>\n",
      escaped(graph.name), graph.nodes.size(), graph.groups.size(), graph.plan.peak, graph.plan.bytes.size(),
      graph.plan.without_reuse, graph.exact ? "" : "<span><b>inexact</b>: bits may differ from eager's</span>");
  text += node_table(graph) + group_list(graph) + memory_chart(graph);
  if (!code.empty())
    text += fmt::format("<details><summary>generated code</summary><pre>{}</pre></details>\n", escaped(code));
  return text + "</section>\n";
}

}  // namespace

std::string to_html(const std::vector<std::shared_ptr<const Graph>>& graphs, const std::string& title,
                    const std::vector<std::string>& code) {
  ModeGuard untraced(0, kTraceMode);
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>{0}</title><style>{1}</style></head>\n<body><main><h1>{0}</h1>\n",
      escaped(title), kStyle);
  for (size_t g = 0; g < graphs.size(); ++g) page += section(*graphs[g], g < code.size() ? code[g] : "");
  return page + "</main><script>" + kScript + "</script></body></html>\n";
}

}  // namespace tutti::graph
