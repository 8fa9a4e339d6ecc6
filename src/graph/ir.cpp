#include "tutti/graph/ir.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tensor/impl.h"

namespace tutti::graph {

const char* name(Origin origin) {
  constexpr const char* names[] = {"argument", "captured", "gradient", "saved", "constant"};
  return names[static_cast<size_t>(origin)];
}

const char* name(Kind kind) {
  constexpr const char* names[] = {"call",     "alias",        "empty", "resize",   "version", "set_version",
                                   "set_grad", "require_grad", "host",  "set_data", "wait"};
  return names[static_cast<size_t>(kind)];
}

Type type_of(const Tensor& t) {
  const TensorImpl* x = impl(t);
  return {.dtype = x->dtype,
          .sizes = x->sizes,
          .strides = x->strides,
          .offset = x->offset,
          .device = x->device,
          .layout = x->layout,
          .number = x->number};
}

int64_t bytes_of(const Type& type) {
  return span_elements(type.sizes, type.strides) * static_cast<int64_t>(size_of(type.dtype));
}

ValueId Graph::add_value(Type type, ValueId memory, int32_t producer) {
  auto id = static_cast<ValueId>(values.size());
  values.push_back({std::move(type), memory == kNone ? id : memory, producer});
  return id;
}

const Input* Graph::input_of(ValueId v) const {
  for (const Input& in : inputs)
    if (in.value == v) return &in;
  return nullptr;
}

size_t Graph::count(const char* operator_name) const {
  return static_cast<size_t>(std::count_if(
      nodes.begin(), nodes.end(), [&](const Node& n) { return n.op && std::strcmp(n.op->name, operator_name) == 0; }));
}

std::vector<bool> written_memories(const Graph& graph) {
  std::vector<bool> written(graph.values.size());
  auto mark = [&](ValueId v) { written[static_cast<size_t>(graph.memory_of(v))] = true; };
  for (const Node& n : graph.nodes) {
    for (size_t i = 0; i < n.outputs.size(); ++i)
      if (n.is_written(i)) mark(n.outputs[i]);
    if (n.kind == Kind::resize || n.kind == Kind::set_data) mark(n.inputs[0]);
  }
  return written;
}

std::vector<std::string> collectives(const Graph& graph) {
  std::vector<std::string> list;
  for (const Node& n : graph.nodes) {
    if (!n.op || !n.op->collective) continue;
    std::string shapes;
    for (ValueId v : n.inputs)
      if (v != kNone) shapes += fmt::format(" {}{}", graph.type(v).dtype, graph.type(v).sizes);
    list.push_back(fmt::format("{}({}){} at {}", n.op->name,
                               n.attributes.data ? n.attributes.type->print(n.attributes.data) : "", shapes, n.place));
  }
  return list;
}

}  // namespace tutti::graph
