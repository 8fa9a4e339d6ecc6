#include "ops/sparse/coalesce.h"

#include <functional>

#include "ops/sparse/sparse.h"
#include "tutti/context.h"

namespace tutti {
namespace {

constexpr size_t kDigits = 2048;  // of the radix sort: 11 bits

template <class T>
struct Accumulator {
  using Type = T;
};
template <>
struct Accumulator<BFloat16> {
  using Type = float;
};
template <>
struct Accumulator<Half> {
  using Type = float;
};

// The rows order[begin ... end) of `from`, added up in that order.
template <class T>
void add_rows(const T* from, const int64_t* order, int64_t begin, int64_t end, int64_t width, T* to) {
  using A = typename Accumulator<T>::Type;
  constexpr int64_t strip = 256;
  A sum[strip];
  for (int64_t start = 0; start < width; start += strip) {
    int64_t n = std::min(strip, width - start);
    for (int64_t j = 0; j < n; ++j) sum[j] = static_cast<A>(from[order[begin] * width + start + j]);
    for (int64_t k = begin + 1; k < end; ++k) {
      const T* row = from + order[k] * width + start;
      for (int64_t j = 0; j < n; ++j) sum[j] = static_cast<A>(sum[j] + static_cast<A>(row[j]));
    }
    for (int64_t j = 0; j < n; ++j) to[start + j] = static_cast<T>(sum[j]);
  }
}

// Values of the runs of equal positions; runs[r] is where run r begins in `order`.
Tensor add_runs(const Tensor& values, const std::vector<int64_t>& order, const std::vector<int64_t>& runs) {
  auto n = static_cast<int64_t>(runs.size());
  Shape sizes = values.sizes();
  sizes[0] = n;
  Tensor from = values.contiguous(), sums = make_tensor(sizes, values.dtype(), values.device());
  if (sums.numel() == 0) return sums;
  int64_t width = sums.numel() / n;
  with_type(values.dtype(), [&]<class T>() {
    const T* in = from.data<T>();
    T* out = sums.data<T>();
    for_rows(n, row_bytes(values), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        int64_t stop = r + 1 < n ? runs[static_cast<size_t>(r) + 1] : static_cast<int64_t>(order.size());
        add_rows(in, order.data(), runs[static_cast<size_t>(r)], stop, width, out + r * width);
      }
    });
  });
  return sums;
}

}  // namespace

std::vector<int64_t> entry_positions(const Tensor& indices, const Shape& sizes) {
  int64_t dims = indices.size(0), n = indices.size(1), s0 = indices.stride(0), s1 = indices.stride(1);
  std::vector<int64_t> positions(static_cast<size_t>(n), 0);
  if (indices.numel() == 0) return positions;
  const auto* p = indices.data<int64_t>();
  for (int64_t d = 0; d < dims; ++d) {
    int64_t size = sizes[static_cast<size_t>(d)];
    for (int64_t i = 0; i < n; ++i)
      positions[static_cast<size_t>(i)] = positions[static_cast<size_t>(i)] * size + p[d * s0 + i * s1];
  }
  return positions;
}

void write_indices(const std::vector<int64_t>& positions, const Shape& sizes, const Tensor& indices) {
  int64_t dims = indices.size(0), n = indices.size(1);
  if (indices.numel() == 0) return;
  auto* p = indices.data<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = positions[static_cast<size_t>(i)];
    for (int64_t d = dims - 1; d >= 0; --d) {
      p[d * n + i] = rest % sizes[static_cast<size_t>(d)];
      rest /= sizes[static_cast<size_t>(d)];
    }
  }
}

// A radix sort, lowest digits first: stable, and a few passes are enough where there are few positions.
std::vector<int64_t> sorting_order(const std::vector<int64_t>& positions) {
  struct Entry {
    int64_t position, index;
  };
  size_t n = positions.size();
  std::vector<Entry> entries(n), next(n);
  for (size_t i = 0; i < n; ++i) entries[i] = {positions[i], static_cast<int64_t>(i)};
  if (n < kDigits) {
    std::stable_sort(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.position < b.position; });
  } else {
    int64_t highest = *std::max_element(positions.begin(), positions.end());
    for (int shift = 0; shift < 64 && highest >> shift; shift += 11) {
      size_t place[kDigits + 1] = {};
      auto digit = [&](const Entry& e) { return static_cast<size_t>(e.position >> shift) % kDigits; };
      for (auto& e : entries) ++place[digit(e) + 1];
      for (size_t d = 0; d < kDigits; ++d) place[d + 1] += place[d];
      for (auto& e : entries) next[place[digit(e)]++] = e;
      entries.swap(next);
    }
  }
  std::vector<int64_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = entries[i].index;
  return order;
}

Tensor coalesced(const Tensor& x) {
  const SparseParts& p = sparse_parts(x);
  if (p.coalesced) return x;
  NoGrad guard;
  // Without values nobody knows how many entries are left: at most as many as there were.
  if (x.device().is_meta()) return make_sparse(p.indices, p.values, x.sizes(), true);
  auto positions = entry_positions(p.indices, x.sizes());
  if (std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<>()) == positions.end())
    return make_sparse(p.indices, p.values, x.sizes(), true);
  auto order = sorting_order(positions);
  std::vector<int64_t> runs, distinct;
  for (size_t k = 0; k < order.size(); ++k) {
    int64_t at = positions[static_cast<size_t>(order[k])];
    if (k > 0 && at == distinct.back()) continue;
    runs.push_back(static_cast<int64_t>(k));
    distinct.push_back(at);
  }
  Tensor indices =
      make_tensor({p.indices.size(0), static_cast<int64_t>(distinct.size())}, DType::i64, p.indices.device());
  write_indices(distinct, x.sizes(), indices);
  return make_sparse(indices, add_runs(p.values.detach(), order, runs), x.sizes(), true);
}

bool has_duplicates(const Tensor& x) {
  if (sparse_parts(x).coalesced || x.device().is_meta()) return false;
  auto positions = entry_positions(sparse_parts(x).indices, x.sizes());
  std::sort(positions.begin(), positions.end());
  return std::adjacent_find(positions.begin(), positions.end()) != positions.end();
}

}  // namespace tutti
