// What functional collectives are given, checked; errors name the caller's line.
#pragma once

#include <vector>

#include "comm/functional/attributes.h"

namespace tutti::fn {

/// See Collective::own.
bool is_own_call();
void check_member(const Group& group, const Place& place, const char* name);
template <class Options>
Collective begin(const Options& o, const char* name) {
  Collective a{.group = o.group.defined() ? o.group : world(), .timeout = o.timeout, .place = o.place};
  check_member(a.group, a.place, name);
  a.own = is_own_call();
  return a;
}
Collective begin_rooted(const RootOptions& o, const char* name);
Collective begin_reduce(const ReduceOptions& o, const char* name, bool rooted = false);
void check_defined(const Tensor& x, const Collective& a, const char* name);
void check_list(const TensorList& xs, const Collective& a, const char* name);
/// The shape of each rank's part: as given, or that of x.
std::vector<Shape> shapes_for(const Tensor& x, const std::vector<Shape>& given, const Collective& a, const char* name);
void check_rows(const Tensor& x, const Collective& a, const char* name);
/// Rows of each rank's part of x.
Shape rows_of(const Tensor& x, const Shape& given, const Collective& a, const char* name);
int64_t total(const Shape& rows);
Shape with_rows(Shape sizes, int64_t rows);

}  // namespace tutti::fn
