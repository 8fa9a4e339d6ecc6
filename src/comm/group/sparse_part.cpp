#include "comm/group/sparse_part.h"

#include <algorithm>

#include "comm/group/check_call.h"
#include "tensor/impl.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::comm {
namespace {

constexpr const char* kName = "all_reduce";
constexpr Options kNumbers{.dtype = DType::i64, .device = Device()};

// There are as many rows as positions of the sparse dims: each must have a number.
void check_numbers(const Tensor& x, const Place& place) {
  int64_t rows = 1;
  for (int64_t d = 0; d < x.sparse_dim(); ++d)
    check_at<ValueError>(place, !__builtin_mul_overflow(rows, x.size(d), &rows), kName,
                         "{} has too many rows to number", x);
}

std::vector<int64_t> numbers_of(const Tensor& x) {
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
  return tensor(flat, kNumbers).view({x.sparse_dim(), count});
}

}  // namespace

TensorList header_rooms(int64_t numbers, int ranks) {
  TensorList rooms;
  for (int k = 0; k < ranks; ++k) rooms.push_back(zeros({numbers}, kNumbers));
  return rooms;
}

SparsePart::SparsePart(const Tensor& x, const ReduceOptions& o) : x_(x) {
  check_at<ValueError>(o.place, o.op == Reduce::sum || o.op == Reduce::average, kName,
                       "sparse tensors are summed or averaged; {} would need its zeros: to_dense() it first", x);
  check_at<DeviceError>(o.place, x.device().is_cpu(), kName, "cannot take {}", x);
  check_at<GradError>(o.place, !grad_enabled() || !x.requires_grad(), kName,
                      "{} requires a gradient and would be overwritten: use NoGrad", x);
  NoGrad guard;
  check_numbers(x, o.place);
  mine_ = coalesce(x.detach());
  rows_ = numbers_of(mine_);
}

void SparsePart::add_header(std::vector<int64_t>& to, bool waits) const {
  uint64_t hash = 1469598103934665603u;
  for (int64_t s : x_.sizes()) hash = (hash ^ static_cast<uint64_t>(s)) * 1099511628211u;
  to.insert(to.end(),
            {static_cast<int64_t>(rows_.size()), waits, x_.dim(), x_.sparse_dim(), static_cast<int64_t>(hash)});
}

void SparsePart::take_headers(const TensorList& headers, size_t at, bool waits, const ReduceOptions& o) {
  std::vector<int64_t> mine;
  add_header(mine, waits);
  for (size_t k = 0; k < headers.size(); ++k) {
    std::vector<int64_t> all = headers[k].to_vector<int64_t>();
    const int64_t* theirs = all.data() + at;
    int rank = o.group.ranks()[k];
    check_at<MismatchError>(o.place, theirs[1] == mine[1], kName,
                            "all ranks must wait for a sparse all_reduce, or none: this one {}, and rank {} {}",
                            waits ? "does" : "does not", rank, waits ? "does not" : "does");
    check_at<MismatchError>(o.place, std::equal(mine.begin() + 2, mine.end(), theirs + 2), kName,
                            "{}, with {} sparse dims, is of another shape than rank {}'s tensor, which has {} dims, {} "
                            "of them sparse",
                            x_, x_.sparse_dim(), rank, theirs[2], theirs[3]);
    rooms.push_back(zeros({theirs[0]}, kNumbers));
  }
}

Tensor SparsePart::row_numbers() const { return tensor(rows_, kNumbers); }

void SparsePart::lay_out() {
  all_ = cat(rooms).to_vector<int64_t>();
  rooms.clear();
  std::sort(all_.begin(), all_.end());
  all_.erase(std::unique(all_.begin(), all_.end()), all_.end());
  Shape sizes = mine_.values().sizes();
  sizes[0] = static_cast<int64_t>(all_.size());
  values = zeros(sizes, {.dtype = x_.dtype(), .device = x_.device()});
  if (rows_.empty()) return;
  for (int64_t& r : rows_) r = std::lower_bound(all_.begin(), all_.end(), r) - all_.begin();
  values.index_copy_(0, tensor(rows_, kNumbers), mine_.values());
}

void SparsePart::finish() const { x_.set_data(make_sparse(indices_of(all_, x_), values, x_.sizes(), true)); }

}  // namespace tutti::comm
