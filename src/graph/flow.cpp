// Dinic's way: flow is pushed along shortest ways until there are none; what cannot be reached then is cut off.
#include "graph/flow.h"

#include <algorithm>

namespace tutti::graph {

void Network::add(size_t from, size_t to, int64_t capacity) {
  edges_[from].push_back({to, edges_[to].size(), capacity});
  edges_[to].push_back({from, edges_[from].size() - 1, 0});
}

bool Network::find_levels(size_t from, size_t to) {
  level_.assign(edges_.size(), -1);
  level_[from] = 0;
  std::vector<size_t> open{from};
  for (size_t i = 0; i < open.size(); ++i)
    for (const Edge& e : edges_[open[i]])
      if (e.room > 0 && level_[e.to] < 0) {
        level_[e.to] = level_[open[i]] + 1;
        open.push_back(e.to);
      }
  return level_[to] >= 0;
}

// Along one way, if there is one left.
bool Network::push(size_t from, size_t to) {
  std::vector<Edge*> way;
  for (size_t at = from; at != to;) {
    size_t& k = next_[at];
    while (k < edges_[at].size() && !(edges_[at][k].room > 0 && level_[edges_[at][k].to] == level_[at] + 1)) ++k;
    if (k < edges_[at].size()) {
      way.push_back(&edges_[at][k]);
      at = way.back()->to;
      continue;
    }
    if (way.empty()) return false;
    Edge* last = way.back();
    way.pop_back();
    at = edges_[last->to][last->back].to;
    ++next_[at];
  }
  int64_t most = kNever;
  for (const Edge* e : way) most = std::min(most, e->room);
  for (Edge* e : way) {
    e->room -= most;
    edges_[e->to][e->back].room += most;
  }
  return true;
}

std::vector<bool> Network::cut(size_t from, size_t to) {
  while (find_levels(from, to)) {
    next_.assign(edges_.size(), 0);
    while (push(from, to)) {
    }
  }
  // Backwards from `to`: what can still reach it is on its side, as little as possible.
  std::vector<bool> near(edges_.size(), true);
  near[to] = false;
  std::vector<size_t> open{to};
  for (size_t i = 0; i < open.size(); ++i)
    for (const Edge& e : edges_[open[i]])
      if (edges_[e.to][e.back].room > 0 && near[e.to]) {
        near[e.to] = false;
        open.push_back(e.to);
      }
  return near;
}

}  // namespace tutti::graph
