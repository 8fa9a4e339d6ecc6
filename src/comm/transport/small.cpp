#include "comm/transport/small.h"

#include <cstring>

namespace tutti::comm {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

bool all_are(const Pieces& pieces, int64_t count) {
  for (const Piece& p : pieces)
    if (p.count != count) return false;
  return true;
}

// The number of elements of each part, where all parts of all ranks must have the same; -1: they do not.
int64_t part_of(const Call& call) {
  switch (call.kind) {
    case Kind::all_gather:
    case Kind::gather:
      return all_are(call.out, call.in[0].count) ? call.in[0].count : -1;
    case Kind::scatter:
    case Kind::reduce_scatter:
      return all_are(call.in, call.out[0].count) ? call.out[0].count : -1;
    case Kind::all_to_all:
      return all_are(call.in, call.in[0].count) && all_are(call.out, call.in[0].count) ? call.in[0].count : -1;
    default:
      return 0;
  }
}

// The shape that all parts have, and whatever has another: ranks that differ in it go the long way, which says so.
uint64_t mix_shapes(uint64_t hash, const Call& call) {
  bool gathers = call.kind == Kind::all_gather || call.kind == Kind::gather || call.kind == Kind::all_to_all;
  bool scatters = call.kind == Kind::scatter || call.kind == Kind::reduce_scatter;
  if (!gathers && !scatters) {
    for (size_t t = 1; t < call.out.size(); ++t) hash = mix(hash, call.out[t].shape);
    return hash;
  }
  uint32_t common = (gathers ? call.in : call.out)[0].shape;
  hash = mix(hash, common);
  for (const Pieces* pieces : {&call.in, &call.out})
    for (const Piece& p : *pieces)
      if (p.shape != common) hash = mix(hash, p.shape);
  return hash;
}

// What this rank gives.
const Pieces& given(const Call& call) { return call.kind == Kind::broadcast ? call.out : call.in; }

void copy(const std::byte* from, const Piece& to, size_t size) {
  if (to.count > 0) std::memcpy(to.data, from, static_cast<size_t>(to.count) * size);
}

}  // namespace

bool may_be_uneven(Kind kind) { return kind == Kind::gather || kind == Kind::scatter || kind == Kind::all_to_all; }

std::optional<SmallShape> small_shape(const Call& call, int rank, int size) {
  if (size > kSmallRanks) return {};
  int64_t elements = 0, part = part_of(call);
  for (const Piece& p : given(call)) elements += p.count;
  size_t bytes = static_cast<size_t>(elements) * size_of(call.dtype);
  if (part < 0 || bytes > kSmallBytes) return {};
  // A scatter's or an all_to_all's other ranks give less, or nothing; what they may take is bounded all the same.
  if (static_cast<size_t>(part) * static_cast<size_t>(size) * size_of(call.dtype) > kSmallBytes &&
      (call.kind == Kind::scatter || call.kind == Kind::reduce_scatter || call.kind == Kind::all_to_all))
    return {};
  uint64_t hash = mix(static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.dtype) << 8 |
                          static_cast<uint64_t>(call.op) << 16 | static_cast<uint64_t>(call.weighted) << 24 |
                          static_cast<uint64_t>(call.recorded) << 25 | static_cast<uint64_t>(call.fastest) << 26 |
                          static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 32,
                      static_cast<uint64_t>(part));
  if (call.kind == Kind::all_reduce || call.kind == Kind::reduce || call.kind == Kind::broadcast) {
    for (const Piece& p : call.out) hash = mix(hash, static_cast<uint64_t>(p.count));
    for (int64_t s : call.shape) hash = mix(hash, static_cast<uint64_t>(s));
  }
  hash = mix_shapes(hash, call);
  if (call.kind == Kind::broadcast && rank != call.root) bytes = 0;
  return SmallShape{hash, bytes};
}

void Slots::publish_small(int rank, uint64_t sequence, const Call& call, const SmallShape& shape,
                          bool may_be_cancelled) {
  SlotHeader& h = header(rank, sequence);
  h.may_be_cancelled = may_be_cancelled;
  h.signature = shape.signature;
  h.factor = call.factor;
  h.bytes = static_cast<uint32_t>(shape.bytes);
  h.small = true;
  std::byte* to = h.data;
  if (shape.bytes > SlotHeader::kInline) {
    h.buffer = static_cast<uint8_t>(slots_[rank].published++ % 2);
    to = slots_[rank].buffers[h.buffer];
  }
  if (shape.bytes > 0)
    for (const Piece& p : given(call)) {
      size_t n = static_cast<size_t>(p.count) * size_of(call.dtype);
      if (n) std::memcpy(to, p.data, n);
      to += n;
    }
  h.stamp.store(sequence + 1, std::memory_order_release);
}

void Slots::publish_long(int rank, uint64_t sequence) {
  SlotHeader& h = header(rank, sequence);
  h.small = false;
  h.may_be_cancelled = false;  // what goes the long way is decided there
  h.stamp.store(sequence + 1);
}

bool Slots::finish(int rank, uint64_t sequence, const Call& call, const SmallShape& shape) const {
  const std::byte* data[kSmallRanks];
  double factors[kSmallRanks];
  bool scaled = call.weighted;
  double total = 0;
  for (int k = 0; k < size_; ++k) {
    const SlotHeader& h = header(k, sequence);
    if (!h.small || h.signature != shape.signature) return false;
    data[k] = h.bytes <= SlotHeader::kInline ? h.data : slots_[k].buffers[h.buffer];
    factors[k] = h.factor;
    total += h.factor;
    scaled = scaled || h.factor != 1;
  }
  if (call.weighted && total == 0) return false;  // an error, which the long way tells
  auto n = static_cast<size_t>(size_), me = static_cast<size_t>(rank), element = size_of(call.dtype);
  auto reduce = [&](size_t offset, const Piece& to) {
    if (to.count == 0) return;
    const void* sources[kSmallRanks];
    for (size_t k = 0; k < n; ++k) sources[k] = data[k] + offset;
    Reduction r{.dtype = call.dtype, .op = call.op};
    if (scaled) r.factors = {factors, n};
    if (call.op == Reduce::average) r.scale = 1 / (call.weighted ? total : static_cast<double>(n));
    void* target = to.data;
    reduce_into(r, {sources, n}, {&target, 1}, to.count);
  };
  // The next call's header was last read by others: to have it back takes a while, which may pass meanwhile.
  __builtin_prefetch(&header(rank, sequence + 1), 1);
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce: {
      if (call.kind == Kind::reduce && rank != call.root) return true;
      size_t offset = 0;
      for (const Piece& p : call.out) {
        reduce(offset, p);
        offset += static_cast<size_t>(p.count) * element;
      }
      return true;
    }
    case Kind::broadcast: {
      if (rank == call.root) return true;
      const std::byte* from = data[call.root];
      for (const Piece& p : call.out) {
        copy(from, p, element);
        from += static_cast<size_t>(p.count) * element;
      }
      return true;
    }
    case Kind::all_gather:
    case Kind::gather:
      for (size_t k = 0; k < call.out.size(); ++k) copy(data[k], call.out[k], element);
      return true;
    case Kind::scatter:
      copy(data[call.root] + me * static_cast<size_t>(call.out[0].count) * element, call.out[0], element);
      return true;
    case Kind::reduce_scatter:
      reduce(me * static_cast<size_t>(call.out[0].count) * element, call.out[0]);
      return true;
    case Kind::all_to_all:
      for (size_t k = 0; k < call.out.size(); ++k)
        copy(data[k] + me * static_cast<size_t>(call.out[k].count) * element, call.out[k], element);
      return true;
    default:
      return true;
  }
}

}  // namespace tutti::comm
