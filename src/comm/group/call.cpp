#include "comm/group/call.h"

#include "base/check.h"

namespace tutti::comm {

const char* name(Kind kind) {
  constexpr const char* names[] = {"all_reduce",     "reduce",     "broadcast", "all_gather", "gather", "scatter",
                                   "reduce_scatter", "all_to_all", "barrier",   "send",       "recv"};
  return names[static_cast<size_t>(kind)];
}

namespace {

const char* name(Reduce op) {
  constexpr const char* names[] = {"sum", "average", "product", "min", "max", "band", "bor", "bxor"};
  return names[static_cast<size_t>(op)];
}

bool reduces_something(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}
bool has_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::gather || kind == Kind::scatter;
}

std::string file_name(const char* path) {
  std::string text = path;
  return text.substr(text.rfind('/') + 1);
}

// What of two calls does not fit; empty: they do. Sizes of pieces are compared where the jobs are made.
std::string difference(const Call& a, const Call& b) {
  if (a.kind != b.kind) return "they are different collectives";
  if (a.kind == Kind::barrier) return {};
  if (a.dtype != b.dtype) return "the dtypes differ";
  if (has_root(a.kind) && a.root != b.root) return fmt::format("the roots differ: {} and {}", a.root, b.root);
  if (reduces_something(a.kind) && a.op != b.op) return "the reductions differ";
  if (reduces_something(a.kind) && a.weighted != b.weighted) return "only one gives a weight";
  bool tensors = a.kind == Kind::all_reduce || a.kind == Kind::reduce || a.kind == Kind::broadcast;
  if (!tensors) return {};
  if (a.out.size() != b.out.size()) return fmt::format("one has {} tensors, the other {}", a.out.size(), b.out.size());
  if (!(a.shape == b.shape)) return "the shapes differ";
  for (size_t i = 0; i < a.out.size(); ++i)
    if (a.out[i].count != b.out[i].count)
      return fmt::format("tensor {} has {} elements in one and {} in the other", i, a.out[i].count, b.out[i].count);
  return {};
}

std::string mismatch(const std::vector<Call>& calls, const std::vector<int>& ranks, uint64_t sequence, size_t a,
                     size_t b, const std::string& why) {
  return fmt::format("ranks disagree in collective {} of their group: {}\n  rank {}: {}\n  rank {}: {}", sequence, why,
                     ranks[a], describe(calls[a]), ranks[b], describe(calls[b]));
}

}  // namespace

Brief brief(const Call& c) {
  return {c.kind, c.dtype, c.op, c.root, std::max(c.in.size(), c.out.size()), c.shape, c.place};
}

std::string describe(const Brief& call) {
  std::string text = name(call.kind);
  if (call.kind != Kind::barrier) {
    text += fmt::format("({}{}", call.dtype, call.shape);
    if (call.tensors > 1) text += fmt::format(" and {} more", call.tensors - 1);
    if (reduces_something(call.kind)) text += fmt::format(", {}", name(call.op));
    if (has_root(call.kind)) text += fmt::format(", root {}", call.root);
    text += ")";
  }
  return text + fmt::format(" at {}:{}", file_name(call.place.file_name()), call.place.line());
}

std::optional<std::string> find_mismatch(const std::vector<Call>& calls, const std::vector<int>& ranks,
                                         uint64_t sequence) {
  for (size_t k = 1; k < calls.size(); ++k)
    if (std::string why = difference(calls[0], calls[k]); !why.empty())
      return mismatch(calls, ranks, sequence, 0, k, why);
  // What one rank gives another must be as much as that one takes: in[from] of rank a and out[to] of rank b.
  auto unequal = [&](size_t a, size_t from, size_t b, size_t to) -> std::optional<std::string> {
    int64_t given = calls[a].in[from].count, taken = calls[b].out[to].count;
    if (given == taken) return {};
    return mismatch(calls, ranks, sequence, a, b,
                    fmt::format("rank {} gives {} elements where rank {} takes {}", ranks[a], given, ranks[b], taken));
  };
  size_t n = calls.size(), root = static_cast<size_t>(calls[0].root);
  Kind kind = calls[0].kind;
  std::optional<std::string> text;
  for (size_t a = 0; a < n && !text; ++a) {
    if (kind == Kind::gather) text = unequal(a, 0, root, a);
    if (kind == Kind::scatter) text = unequal(root, a, a, 0);
    for (size_t b = 0; b < n && !text; ++b) {
      if (kind == Kind::all_gather) text = unequal(a, 0, b, a);
      if (kind == Kind::reduce_scatter) text = unequal(a, b, b, 0);
      if (kind == Kind::all_to_all) text = unequal(a, b, b, a);
    }
  }
  return text;
}

Plan plan(const std::vector<Call>& calls) {
  Plan p;
  const Call& first = calls[0];
  size_t n = calls.size(), root = static_cast<size_t>(first.root);
  p.reduction = {.dtype = first.dtype, .op = first.op};
  if (reduces_something(first.kind)) {
    bool factors = first.weighted;
    double total = 0;
    for (const Call& c : calls) {
      factors = factors || c.factor != 1;
      total += c.factor;
      p.factors.push_back(c.factor);
    }
    if (!factors) p.factors.clear();
    p.reduction.factors = p.factors;
    if (first.op == Reduce::average) p.reduction.scale = 1 / (first.weighted ? total : static_cast<double>(n));
  }
  auto add = [&](Job job) {
    if (job.count > 0) p.jobs.push_back(std::move(job));
  };
  auto copy = [&](const Piece& from, std::vector<void*> to) { add({{from.data}, std::move(to), from.count}); };
  auto all = [&](size_t piece, bool in) {
    std::vector<void*> list;
    for (const Call& c : calls) list.push_back((in ? c.in : c.out)[piece].data);
    return list;
  };
  switch (first.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      for (size_t t = 0; t < first.in.size(); ++t) {
        std::vector<void*> sources = all(t, true);
        add({{sources.begin(), sources.end()},
             first.kind == Kind::reduce ? std::vector<void*>{calls[root].out[t].data} : all(t, false),
             first.in[t].count});
      }
      break;
    case Kind::reduce_scatter:
      for (size_t k = 0; k < n; ++k) {
        std::vector<void*> sources = all(k, true);
        add({{sources.begin(), sources.end()}, {calls[k].out[0].data}, calls[k].out[0].count});
      }
      break;
    case Kind::broadcast:
      for (size_t t = 0; t < first.out.size(); ++t) copy(calls[root].out[t], all(t, false));
      break;
    case Kind::all_gather:
      for (size_t k = 0; k < n; ++k) copy(calls[k].in[0], all(k, false));
      break;
    case Kind::gather:
      for (size_t k = 0; k < n; ++k) copy(calls[k].in[0], {calls[root].out[k].data});
      break;
    case Kind::scatter:
      for (size_t k = 0; k < n; ++k) copy(calls[root].in[k], {calls[k].out[0].data});
      break;
    case Kind::all_to_all:
      for (size_t a = 0; a < n; ++a)
        for (size_t b = 0; b < n; ++b) copy(calls[a].in[b], {calls[b].out[a].data});
      break;
    case Kind::barrier:
    case Kind::send:
    case Kind::recv:
      break;
  }
  return p;
}

}  // namespace tutti::comm
