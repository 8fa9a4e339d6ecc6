#include "comm/transport/streams.h"

namespace tutti::comm {

Pieces given_by(const Call& call, int rank) {
  Pieces pieces;
  if (call.kind != Kind::broadcast || rank == call.root)
    for (const Piece& p : call.kind == Kind::broadcast ? call.out : call.in) pieces.push_back(p);
  return pieces;
}

Streams plan_streams(const Call& call, int rank, const std::vector<CallFacts>& calls) {
  Streams s;
  auto n = calls.size(), me = static_cast<size_t>(rank);
  auto element = static_cast<int64_t>(size_of(call.dtype));
  s.give = given_by(call, rank);
  for (const CallFacts& c : calls) s.bytes.push_back(c.header.bytes);

  s.reduction = {.dtype = call.dtype, .op = call.op};
  if (reduces_something(call.kind)) {
    bool scaled = call.weighted;
    double total = 0;
    for (const CallFacts& c : calls) {
      scaled = scaled || c.header.factor != 1;
      total += c.header.factor;
      s.factors.push_back(c.header.factor);
    }
    if (!scaled) s.factors.clear();
    if (call.op == Reduce::average) s.reduction.scale = 1 / (call.weighted ? total : static_cast<double>(n));
  }

  auto at = [](const Piece& p) { return static_cast<std::byte*>(p.data); };
  auto copy = [&](size_t from, int64_t offset, const Piece& to) {
    if (to.count > 0) s.copies.push_back({static_cast<int>(from), offset, to.count * element, at(to)});
  };
  // Where the part for this rank begins in another's stream of parts.
  auto before_me = [&](size_t from) {
    int64_t sum = 0;
    for (size_t k = 0; k < me; ++k) sum += calls[from].in[k];
    return sum * element;
  };
  int64_t offset = 0;
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      if (call.kind == Kind::reduce && rank != call.root) break;
      for (size_t t = 0; t < call.out.size(); ++t) {
        if (call.out[t].count > 0) s.combines.push_back({offset, call.out[t].count, at(call.out[t]), at(call.in[t])});
        offset += bytes_of(call.out[t], call.dtype);
      }
      break;
    case Kind::reduce_scatter:
      if (call.out[0].count > 0)
        s.combines.push_back({before_me(me), call.out[0].count, at(call.out[0]), at(call.in[me])});
      break;
    case Kind::broadcast:
      if (rank == call.root) break;
      for (const Piece& p : call.out) {
        copy(static_cast<size_t>(call.root), offset, p);
        offset += bytes_of(p, call.dtype);
      }
      break;
    case Kind::all_gather:
    case Kind::gather:
      for (size_t k = 0; k < call.out.size(); ++k) copy(k, 0, call.out[k]);
      break;
    case Kind::scatter:
      copy(static_cast<size_t>(call.root), before_me(static_cast<size_t>(call.root)), call.out[0]);
      break;
    case Kind::all_to_all:
      for (size_t k = 0; k < n; ++k) copy(k, before_me(k), call.out[k]);
      break;
    default:
      break;
  }
  return s;
}

}  // namespace tutti::comm
