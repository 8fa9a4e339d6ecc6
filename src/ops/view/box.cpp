#include "ops/view/box.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "base/stream.h"
#include "tensor/impl.h"

namespace tutti {
namespace {

constexpr size_t kStream = size_t{16} << 20;  // boxes from this size on go past the caches

// Drops dims of size 1, puts the rest in the order in which they lie at `to`, and merges those that both sides walk as
// one. The last dim is the innermost.
BoxDims simplify(const BoxDims& dims) {
  BoxDims kept, merged;
  for (auto& d : dims)
    if (d.size != 1) kept.push_back(d);
  std::stable_sort(kept.begin(), kept.end(), [](const BoxDim& a, const BoxDim& b) { return a.to > b.to; });
  for (auto& d : kept) {
    BoxDim* outer = merged.empty() ? nullptr : &merged[merged.size() - 1];
    if (outer && outer->to == d.to * d.size && outer->from == d.from * d.size)
      *outer = {outer->size * d.size, d.to, d.from};
    else
      merged.push_back(d);
  }
  if (merged.empty()) merged.push_back({1, 1, 1});
  return merged;
}

template <class B>
void move_run(B* to, int64_t to_stride, const B* from, int64_t from_stride, int64_t count, bool stream) {
  if (to_stride == 1 && from_stride == 1) {
    size_t bytes = static_cast<size_t>(count) * sizeof(B);
    if (stream)
      stream_copy(to, from, bytes);
    else
      shifted_copy(to, from, bytes);
  } else if (to_stride == 1 && from_stride == 0) {
    std::fill(to, to + count, *from);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

template <class B>
void move_range(B* to, const B* from, const BoxDims& dims, int64_t begin, int64_t end, bool stream) {
  size_t outer = dims.size() - 1;
  const BoxDim& run = dims[outer];
  SmallVector<int64_t, 8> at(outer);
  int64_t rest = begin / run.size, start = begin % run.size;
  int64_t to_row = 0, from_row = 0;
  for (size_t d = outer; d-- > 0;) {
    at[d] = rest % dims[d].size;
    rest /= dims[d].size;
    to_row += at[d] * dims[d].to;
    from_row += at[d] * dims[d].from;
  }
  while (begin < end) {
    int64_t count = std::min(run.size - start, end - begin);
    move_run(to + to_row + start * run.to, run.to, from + from_row + start * run.from, run.from, count, stream);
    begin += count;
    start = 0;
    for (size_t d = outer; d-- > 0;) {
      to_row += dims[d].to;
      from_row += dims[d].from;
      if (++at[d] < dims[d].size) break;
      to_row -= dims[d].to * dims[d].size;
      from_row -= dims[d].from * dims[d].size;
      at[d] = 0;
    }
  }
  if (stream) stream_fence();
}

}  // namespace

void move_box(std::byte* to, const std::byte* from, size_t element, BoxDims dims) {
  int64_t total = 1;
  for (auto& d : dims) total *= d.size;
  if (total == 0) return;
  dims = simplify(dims);
  const BoxDim& run = dims[dims.size() - 1];
  bool long_runs = run.to == 1 && run.from == 1 && run.size * static_cast<int64_t>(element) >= 512;
  bool stream = long_runs && static_cast<size_t>(total) * element >= kStream;
  with_bytes(element, [&]<class B>() {
    parallel_for(total, kBoxGrain, [&](int64_t begin, int64_t end) {
      move_range(reinterpret_cast<B*>(to), reinterpret_cast<const B*>(from), dims, begin, end, stream);
    });
  });
}

std::byte* bytes_of(const Tensor& x) { return impl(x)->storage->data ? impl(x)->data() : nullptr; }

}  // namespace tutti
