#include "graph/backends/native/loop.h"

#include <algorithm>
#include <numeric>

#include "base/parallel.h"
#include "base/stream.h"
#include "tensor/convert.h"

namespace tutti::graph::native {
namespace {

constexpr int64_t kTile = 512;         // elements of a tile
constexpr int64_t kGrain = 32768;      // elements a thread takes at a time, of one operator
constexpr int64_t kStream = 16 << 20;  // bytes

std::vector<int64_t> broadcast_strides(const Type& t, const Shape& sizes) {
  std::vector<int64_t> strides(sizes.size());
  size_t missing = sizes.size() - t.sizes.size();
  for (size_t d = missing; d < sizes.size(); ++d)
    strides[d] = t.sizes[d - missing] == 1 && sizes[d] != 1 ? 0 : t.strides[d - missing];
  return strides;
}

}  // namespace

Loop::Loop(const Shape& sizes, std::vector<Type> types, size_t outputs, size_t nodes)
    : inputs_(types.size() - outputs), operands_(types.size()) {
  for (size_t k = 0; k < types.size(); ++k) {
    operands_[k].dtype = types[k].dtype;
    operands_[k].size = static_cast<int64_t>(size_of(types[k].dtype));
  }
  for (int64_t s : sizes) total_ *= s;
  grain_ = std::max<int64_t>(4096, kGrain / static_cast<int64_t>(std::max<size_t>(1, nodes)) / 512 * 512);
  merge(sizes, types);
  int64_t largest = 0;
  for (size_t k = 0; k < operands_.size(); ++k) {
    Operand& o = operands_[k];
    bool output = k >= inputs_;
    o.gathered = o.stride[0] != o.size && (output || o.stride[0] != 0);
    tiled_ = tiled_ || o.gathered;
    if (output) largest = std::max(largest, total_ * o.size);
    row_strides_.push_back(o.stride.size() > 1 ? o.stride[1] : 0);
  }
  streamed_ = largest >= kStream && !tiled_ && sizes_.size() == 1;
  if (streamed_) grain_ = kGrain;
}

// Dims in the order of the first output's memory; those that all operands walk as one are one.
void Loop::merge(const Shape& sizes, const std::vector<Type>& types) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  const Shape& first = types[inputs_].strides;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return first[a] < first[b]; });
  std::vector<std::vector<int64_t>> strides;
  for (const Type& t : types) strides.push_back(broadcast_strides(t, sizes));
  for (size_t d : order) {
    if (sizes[d] == 1) continue;
    std::vector<int64_t> by_operand;
    for (size_t k = 0; k < types.size(); ++k) by_operand.push_back(strides[k][d] * operands_[k].size);
    add_dim(sizes[d], by_operand);
  }
  if (!sizes_.empty()) return;
  std::vector<int64_t> one;
  for (const Operand& o : operands_) one.push_back(o.size);
  add_dim(1, one);
}

void Loop::add_dim(int64_t size, const std::vector<int64_t>& strides) {
  bool merges = !sizes_.empty();
  for (size_t k = 0; k < operands_.size() && merges; ++k)
    merges = strides[k] == operands_[k].stride.back() * sizes_.back();
  if (merges) {
    sizes_.back() *= size;
    return;
  }
  sizes_.push_back(size);
  for (size_t k = 0; k < operands_.size(); ++k) operands_[k].stride.push_back(strides[k]);
}

void Loop::run(Entry entry, std::byte* const* data) const {
  if (total_ == 0) return;
  if (total_ <= grain_ && !tiled_ && sizes_.size() <= 2) {
    entry(data, row_strides_.data(), sizes_.size() == 2 ? sizes_[1] : 1, sizes_[0]);
    return;
  }
  parallel_for(total_, grain_, [&](int64_t begin, int64_t end) {
    if (tiled_)
      tiles(entry, data, begin, end);
    else
      range(entry, data, begin, end);
    if (streamed_) stream_fence();
  });
}

void Loop::locate(std::byte* const* data, int64_t index, std::byte** at) const {
  std::copy_n(data, operands_.size(), at);
  for (size_t d = 0; d < sizes_.size(); ++d) {
    int64_t i = d + 1 < sizes_.size() ? index % sizes_[d] : index;
    index /= sizes_[d];
    if (i == 0) continue;
    for (size_t k = 0; k < operands_.size(); ++k) at[k] += i * operands_[k].stride[d];
  }
}

void Loop::range(Entry entry, std::byte* const* data, int64_t begin, int64_t end) const {
  std::byte* at[kMaxOperands];
  int64_t inner = sizes_[0];
  while (begin < end) {
    int64_t start = begin % inner, rows = 1, count = std::min(inner - start, end - begin);
    if (start == 0 && end - begin >= 2 * inner && sizes_.size() > 1) {
      int64_t row = begin / inner % sizes_[1];
      rows = std::min(sizes_[1] - row, (end - begin) / inner);
    }
    locate(data, begin, at);
    entry(at, row_strides_.data(), rows, count);
    begin += rows * count;
  }
}

// A tile at a time: what is not a row of neighbours is gathered and scattered.
void Loop::tiles(Entry entry, std::byte* const* data, int64_t begin, int64_t end) const {
  std::byte *at[kMaxOperands], *given[kMaxOperands];
  size_t gathered = 0;
  for (const Operand& o : operands_) gathered += o.gathered;
  std::vector<std::byte> memory(gathered * kTile * 8 + 64);
  int64_t inner = sizes_[0];
  while (begin < end) {
    int64_t count = std::min({inner - begin % inner, end - begin, kTile});
    locate(data, begin, at);
    auto* next = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    for (size_t k = 0; k < operands_.size(); ++k) {
      const Operand& o = operands_[k];
      given[k] = o.gathered ? std::exchange(next, next + kTile * 8) : at[k];
      if (o.gathered && k < inputs_) converter(o.dtype, o.dtype)(given[k], 1, at[k], o.stride[0] / o.size, count);
    }
    entry(given, row_strides_.data(), 1, count);
    for (size_t k = inputs_; k < operands_.size(); ++k)
      if (const Operand& o = operands_[k]; o.gathered)
        converter(o.dtype, o.dtype)(at[k], o.stride[0] / o.size, given[k], 1, count);
    begin += count;
  }
}

}  // namespace tutti::graph::native
