#include "graph/contract.h"

#include <algorithm>

#include "base/check.h"
#include "comm/functional/attributes.h"
#include "comm/group/call.h"
#include "tutti/comm/objects.h"
#include "tutti/context.h"

namespace tutti::graph {
namespace {

struct Line {
  std::string call, place;
  TUTTI_FIELDS(call, place)
};

const fn::Collective* collective(const Node& n) {
  static const AttributeType* type = fn::attributes(fn::Collective{}).type;
  return n.op && n.op->collective && n.attributes.type == type ? static_cast<const fn::Collective*>(n.attributes.data)
                                                               : nullptr;
}

// What must be the same on all ranks; sizes may differ where each rank has its own part.
std::string call_text(const Graph& graph, const Node& n, const fn::Collective& c) {
  const Type& t = graph.type(n.inputs[0]);
  return fmt::format("{}({}{}, reduction {}, root {})", n.op->name, t.dtype,
                     n.op->same_shapes ? to_string(t.sizes) : "", static_cast<int>(c.op), c.root);
}

std::string place_text(const Place& place) {
  std::string file = place.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), place.line());
}

void compare(const std::string& name, const Group& group, const std::vector<Line>& mine) {
  comm::PurposeGuard purpose(comm::lasting(fmt::format("comparing what ranks call in the compiled '{}'", name),
                                           "comparing what ranks call in a compiled function"));
  auto all = all_gather_object(mine, {.group = group});
  auto line = [](const std::vector<Line>& list, size_t i) {
    return i < list.size() ? list[i].call + " at " + list[i].place : std::string("nothing more");
  };
  for (size_t r = 1; r < all.size(); ++r)
    for (size_t i = 0; i < std::max(all[0].size(), all[r].size()); ++i) {
      bool same = i < all[0].size() && i < all[r].size() && all[0][i].call == all[r][i].call;
      check<MismatchError>(same, "compile",
                           "ranks {} and {} would call different collectives in '{}': number {} is {} on the first and "
                           "{} on the second",
                           group.ranks()[0], group.ranks()[r], name, i, line(all[0], i), line(all[r], i));
    }
}

}  // namespace

void check_contract(const Graph& graph) {
  std::vector<Group> groups;
  for (const Node& n : graph.nodes)
    if (const auto* c = collective(n); c && std::find(groups.begin(), groups.end(), c->group) == groups.end())
      groups.push_back(c->group);
  for (const Group& group : groups) {
    if (group.size() < 2) continue;
    std::vector<Line> mine;
    for (const Node& n : graph.nodes)
      if (const auto* c = collective(n); c && c->group == group)
        mine.push_back({call_text(graph, n, *c), place_text(c->place)});
    compare(graph.name, group, mine);
  }
}

}  // namespace tutti::graph
