// The cheapest cut between two ends of a network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::graph {

class Network {
 public:
  static constexpr int64_t kNever = int64_t{1} << 60;  // of edges that are not to be cut

  explicit Network(size_t nodes) : edges_(nodes) {}
  void add(size_t from, size_t to, int64_t capacity);
  /// By node: whether it is on `from`'s side of a cut whose edges cost least; of those, the one nearest to `to`.
  std::vector<bool> cut(size_t from, size_t to);

 private:
  struct Edge {
    size_t to, back;  // `back`: its place among the edges of `to` the other way round
    int64_t room;
  };
  bool find_levels(size_t from, size_t to);
  bool push(size_t from, size_t to);

  std::vector<std::vector<Edge>> edges_;
  std::vector<int32_t> level_;
  std::vector<size_t> next_;
};

}  // namespace tutti::graph
