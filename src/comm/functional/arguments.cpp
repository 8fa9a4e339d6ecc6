#include "comm/functional/arguments.h"

#include "autograd/homes.h"
#include "comm/group/call.h"
#include "comm/group/check_call.h"
#include "tutti/context.h"

namespace tutti::fn {

using comm::check_at;

bool is_own_call() { return !homes_of_pass() && !comm::marks().purpose; }

void check_member(const Group& group, const Place& place, const char* name) {
  const auto& ranks = group.ranks();
  check_at<ValueError>(place, group.rank() >= 0, name, "rank {} is not a member of this group of ranks {}",
                       context().rank, Shape(std::vector<int64_t>(ranks.begin(), ranks.end())));
}
Collective begin_rooted(const RootOptions& o, const char* name) {
  Collective a = begin(o, name);
  a.root = o.root;
  check_at<ValueError>(a.place, o.root >= 0 && o.root < a.group.size(), name, "root {} is not in a group of {}", o.root,
                       a.group.size());
  return a;
}
Collective begin_reduce(const ReduceOptions& o, const char* name, bool rooted) {
  Collective a = begin(o, name);
  if (rooted) a = begin_rooted({.root = o.root, .group = a.group, .timeout = o.timeout, .place = o.place}, name);
  a.op = o.op;
  a.factor = o.factor;
  a.weight = o.weight;
  a.order = o.order;
  check_at<ValueError>(a.place, !o.factor || o.op == Reduce::sum, name, "factors are for sums");
  check_at<ValueError>(a.place, !o.weight || o.op == Reduce::average, name, "weights are for averages");
  return a;
}

void check_defined(const Tensor& x, const Collective& a, const char* name) {
  check_at<ValueError>(a.place, x.defined(), name, "an argument is undefined");
}
void check_list(const TensorList& xs, const Collective& a, const char* name) {
  check_at<ValueError>(a.place, xs.size() == a.size(), name, "{} tensors were given for a group of {}", xs.size(),
                       a.size());
  for (const Tensor& x : xs) {
    check_defined(x, a, name);
    check_at<DTypeError>(a.place, x.dtype() == xs[0].dtype(), name, "{} does not have the dtype of {}", x, xs[0]);
    check_at<DeviceError>(a.place, x.device() == xs[0].device(), name, "{} is not on the device of {}", x, xs[0]);
  }
}
std::vector<Shape> shapes_for(const Tensor& x, const std::vector<Shape>& given, const Collective& a, const char* name) {
  check_defined(x, a, name);
  if (given.empty()) return std::vector<Shape>(a.size(), x.sizes());
  check_at<ValueError>(a.place, given.size() == a.size(), name, "{} shapes were given for a group of {}", given.size(),
                       a.size());
  check_at<ShapeError>(a.place, given[a.rank()] == x.sizes(), name,
                       "the shape given for rank {}, {}, is not that of {}", a.rank(), given[a.rank()], x);
  return given;
}
void check_rows(const Tensor& x, const Collective& a, const char* name) {
  check_defined(x, a, name);
  check_at<ShapeError>(a.place, x.dim() >= 1, name, "{} has no dim to cut", x);
}
Shape rows_of(const Tensor& x, const Shape& given, const Collective& a, const char* name) {
  check_rows(x, a, name);
  auto n = static_cast<int64_t>(a.size());
  if (given.empty()) {
    check_at<ShapeError>(a.place, x.size(0) % n == 0, name, "the first dim of {} does not divide into {} parts", x, n);
    return Shape::filled(a.size(), x.size(0) / n);
  }
  int64_t sum = 0;
  for (int64_t r : given) {
    check_at<ValueError>(a.place, r >= 0, name, "a part cannot have {} rows", r);
    sum += r;
  }
  check_at<ShapeError>(a.place, given.size() == a.size() && sum == x.size(0), name,
                       "splits {} do not cut {} into {} parts", given, x, n);
  return given;
}

int64_t total(const Shape& rows) {
  int64_t sum = 0;
  for (int64_t r : rows) sum += r;
  return sum;
}
Shape with_rows(Shape sizes, int64_t rows) {
  sizes[0] = rows;
  return sizes;
}

}  // namespace tutti::fn
