// What functional collectives know beside their tensors.
#pragma once

#include <vector>

#include "tutti/comm/collectives.h"
#include "tutti/operator.h"

namespace tutti::fn {

/// One struct for all of them; each uses what it needs. The group is the rank's own handle, so that a backward pass
/// in whatever thread is of the same rank and group as its forward.
struct Collective {
  Group group;
  Reduce op = Reduce::sum;
  std::optional<double> factor = {}, weight = {};
  Order order = Order::canonical;
  int root = 0;
  std::vector<Shape> shapes = {};    // of the results of a list
  Shape rows = {}, input_rows = {};  // of parts along the first dim (of the result and of the input where they differ)
  std::optional<std::chrono::milliseconds> timeout = {};
  Place place = Place::current();
  bool own = false;  // Note [Undefined gradients]: the user called it, not the library, and in no backward pass

  size_t size() const { return static_cast<size_t>(group.size()); }
  size_t rank() const { return static_cast<size_t>(group.rank()); }
  bool is_root() const { return group.rank() == root; }
  /// The same group, timeout and place.
  CollectiveOptions options() const { return {.group = group, .timeout = timeout, .place = place}; }
  RootOptions root_options() const { return {.root = root, .group = group, .timeout = timeout, .place = place}; }
  ReduceOptions reduce_options() const {
    return {.op = op,
            .factor = factor,
            .weight = weight,
            .root = root,
            .order = order,
            .group = group,
            .timeout = timeout,
            .place = place};
  }
  /// A plain sum.
  ReduceOptions sum_options() const {
    return {.root = root, .order = order, .group = group, .timeout = timeout, .place = place};
  }
};

/// Group handles have no fields to print and compare one by one, hence a type of their own.
Attributes attributes(const Collective& a);

}  // namespace tutti::fn
