// The words for parts of graphs, which text and pages share.
#pragma once

#include "tutti/graph/ir.h"

namespace tutti::graph {

std::string list_text(const std::vector<ValueId>& values);
std::string node_text(const Graph& graph, const Node& node);
std::string input_text(const Graph& graph, const Input& input);
std::string group_text(const Graph& graph, size_t group);
std::string life_text(const Graph& graph, const MemoryPlan::Life& life);

}  // namespace tutti::graph
