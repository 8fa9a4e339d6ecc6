// Note [Sparse all_reduce]
// Ranks exchange which rows they have, sorted; each lays its values out by the union of all rows, zeros where it has
// none, and those are reduced as any dense tensor is. So the order of additions is the canonical one, and only rows
// that some rank has are moved.
#include "comm/group/sparse.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "tensor/impl.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::comm {
namespace {

constexpr const char* kName = "all_reduce";

// How many there are of the sparse dims' positions; a row is one of them.
int64_t count_rows(const Tensor& x) {
  int64_t rows = 1;
  for (int64_t d = 0; d < x.sparse_dim(); ++d)
    check<ValueError>(!__builtin_mul_overflow(rows, x.size(d), &rows), kName, "{} has too many rows to number", x);
  return rows;
}

std::vector<int64_t> row_numbers(const Tensor& x) {
  Tensor indices = x.indices();
  auto columns = static_cast<size_t>(indices.size(1));
  std::vector<int64_t> flat = indices.to_vector<int64_t>(), rows(columns, 0);
  for (int64_t d = 0; d < x.sparse_dim(); ++d)
    for (size_t k = 0; k < columns; ++k) rows[k] = rows[k] * x.size(d) + flat[static_cast<size_t>(d) * columns + k];
  return rows;
}

Tensor indices_of(const std::vector<int64_t>& rows, const Tensor& x) {
  auto count = rows.size();
  std::vector<int64_t> flat(static_cast<size_t>(x.sparse_dim()) * count), rest = rows;
  for (int64_t d = x.sparse_dim() - 1; d >= 0; --d)
    for (size_t k = 0; k < count; ++k) {
      flat[static_cast<size_t>(d) * count + k] = rest[k] % x.size(d);
      rest[k] /= x.size(d);
    }
  return tensor(flat, {.dtype = DType::i64}).view({x.sparse_dim(), count});
}

// What must agree between ranks, as numbers, and how many rows this one has.
std::vector<int64_t> header_of(const Tensor& x, size_t rows) {
  std::vector<int64_t> header{static_cast<int64_t>(rows), x.dim(), x.sparse_dim()};
  uint64_t hash = 1469598103934665603u;
  for (int64_t s : x.sizes()) hash = (hash ^ static_cast<uint64_t>(s)) * 1099511628211u;
  header.push_back(static_cast<int64_t>(hash));
  return header;
}

// Every rank's rows; all have looked at all shapes before.
std::vector<int64_t> union_of_rows(const Tensor& x, const std::vector<int64_t>& mine, const CollectiveOptions& o) {
  int n = o.group.size();
  TensorList headers, rooms;
  for (int k = 0; k < n; ++k) headers.push_back(zeros({4}, {.dtype = DType::i64}));
  std::vector<int64_t> header = header_of(x, mine.size());
  all_gather(headers, tensor(header, {.dtype = DType::i64}), o);
  for (int k = 0; k < n; ++k) {
    auto theirs = headers[static_cast<size_t>(k)].to_vector<int64_t>();
    check<MismatchError>(std::equal(theirs.begin() + 1, theirs.end(), header.begin() + 1), kName,
                         "{}, with {} sparse dims, is of another shape than rank {}'s tensor, which has {} dims, {} of "
                         "them sparse",
                         x, x.sparse_dim(), o.group.ranks()[static_cast<size_t>(k)], theirs[1], theirs[2]);
    rooms.push_back(zeros({theirs[0]}, {.dtype = DType::i64}));
  }
  all_gather(rooms, tensor(mine, {.dtype = DType::i64}), o);
  std::vector<int64_t> all = cat(rooms).to_vector<int64_t>();
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace

void all_reduce_sparse(const Tensor& x, const ReduceOptions& options) {
  check<ValueError>(options.op == Reduce::sum || options.op == Reduce::average, kName,
                    "sparse tensors are summed or averaged; {} would need its zeros: to_dense() it first", x);
  check<DeviceError>(x.device().is_cpu(), kName, "cannot take {}", x);
  check<GradError>(!grad_enabled() || !x.requires_grad(), kName,
                   "{} requires a gradient and would be overwritten: use NoGrad", x);
  NoGrad guard;
  ReduceOptions o = options;
  if (!o.group.defined()) o.group = world();
  count_rows(x);
  Tensor mine = coalesce(x.detach());
  std::vector<int64_t> rows = row_numbers(mine),
                       all = union_of_rows(x, rows, {.group = o.group, .timeout = o.timeout, .place = o.place});
  Shape sizes = mine.values().sizes();
  sizes[0] = static_cast<int64_t>(all.size());
  Tensor values = zeros(sizes, {.dtype = x.dtype(), .device = x.device()});
  if (!rows.empty()) {
    for (int64_t& r : rows) r = std::lower_bound(all.begin(), all.end(), r) - all.begin();
    values.index_copy_(0, tensor(rows, {.dtype = DType::i64}), mine.values());
  }
  all_reduce(values, o);
  x.set_data(make_sparse(indices_of(all, x), values, x.sizes(), true));
}

}  // namespace tutti::comm
