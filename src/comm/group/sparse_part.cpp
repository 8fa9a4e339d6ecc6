#include "comm/group/sparse_part.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "comm/group/call.h"
#include "comm/group/check_call.h"
#include "tensor/impl.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::comm {
namespace {

constexpr const char* kName = "all_reduce";

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

// "\n  ranks 0, 1: all_reduce(f32[4, 3], 1 dim sparse) at a.cpp:10, waited for\n  rank 2: ...".
std::string list_calls(const std::vector<SparsePart::Header>& all, const std::vector<int>& ranks) {
  std::vector<std::pair<std::string, std::vector<int>>> calls;
  for (size_t k = 0; k < all.size(); ++k) {
    const SparsePart::Header& h = all[k];
    auto dims = static_cast<size_t>(std::clamp<int64_t>(h.dims, 0, std::size(h.sizes)));
    std::string text =
        fmt::format("{}({}{}, {} sparse) at {}:{}, {}waited for", kName, static_cast<DType>(h.dtype),
                    Shape(std::span(h.sizes, dims)), h.sparse_dims, h.file, h.line, h.waits ? "" : "not ");
    auto same = [&](const auto& call) { return call.first == text; };
    auto found = std::find_if(calls.begin(), calls.end(), same);
    if (found == calls.end()) found = calls.emplace(calls.end(), std::move(text), std::vector<int>());
    found->second.push_back(ranks[k]);
  }
  return list_callers(std::move(calls));
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

void SparsePart::add_header(std::vector<int64_t>& to, bool waits, const Place& place) const {
  uint64_t hash = 1469598103934665603u;
  for (int64_t s : x_.sizes()) hash = (hash ^ static_cast<uint64_t>(s)) * 1099511628211u;
  Header h{.rows = static_cast<int64_t>(rows_.size()),
           .waits = waits,
           .dims = x_.dim(),
           .sparse_dims = x_.sparse_dim(),
           .hash = static_cast<int64_t>(hash),
           .dtype = static_cast<int64_t>(x_.dtype()),
           .line = place.line()};
  std::copy_n(x_.sizes().begin(), std::min<size_t>(x_.sizes().size(), std::size(h.sizes)), h.sizes);
  std::string file = place.file_name();
  file.substr(file.rfind('/') + 1).copy(h.file, sizeof h.file - 1);
  std::array<int64_t, kHeader> numbers;
  std::memcpy(numbers.data(), &h, sizeof h);
  to.insert(to.end(), numbers.begin(), numbers.end());
}

void SparsePart::take_headers(const TensorList& headers, size_t at, const ReduceOptions& o, uint64_t sequence) {
  std::vector<Header> all(headers.size());
  for (size_t k = 0; k < headers.size(); ++k) {
    std::vector<int64_t> numbers = headers[k].to_vector<int64_t>();
    std::memcpy(static_cast<void*>(&all[k]), numbers.data() + at, sizeof(Header));
    all[k].file[sizeof Header::file - 1] = 0;
  }
  const std::vector<int>& ranks = o.group.ranks();
  std::string why;
  for (size_t k = 1; k < all.size() && why.empty(); ++k) {
    if (all[k].waits != all[0].waits)
      why = "all ranks must wait for a sparse all_reduce, or none";
    else if (!all[k].fits(all[0]))
      why = fmt::format("the tensor of rank {} is of another shape than rank {}'s", ranks[k], ranks[0]);
  }
  check_at<MismatchError>(o.place, why.empty(), kName, "ranks disagree in collective {} of their group: {}{}", sequence,
                          why, why.empty() ? "" : list_calls(all, ranks));
  for (const Header& h : all) rooms.push_back(zeros({h.rows}, kNumbers));
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
  for (int64_t& r : rows_) {
    auto it = std::lower_bound(all_.begin(), all_.end(), r);
    check<MismatchError>(it != all_.end() && *it == r, kName,
                         "ranks disagree: row {} of this rank is not among those that came from all ranks", r);
    r = it - all_.begin();
  }
  values.index_copy_(0, tensor(rows_, kNumbers), mine_.values());
}

void SparsePart::finish() const { x_.set_data(make_sparse(indices_of(all_, x_), values, x_.sizes(), true)); }

}  // namespace tutti::comm
