#include "comm/group/facts.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tutti::comm {
namespace {

bool is_list(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::broadcast; }

// What of two calls does not fit; empty: they do.
std::string difference(const CallHeader& a, const CallHeader& b) {
  if (a.kind != b.kind) return "they are different collectives";
  if (a.kind == Kind::barrier) return {};
  if (a.dtype != b.dtype) return "the dtypes differ";
  if (has_root(a.kind) && a.root != b.root) return fmt::format("the roots differ: {} and {}", a.root, b.root);
  if (reduces_something(a.kind) && a.op != b.op) return "the reductions differ";
  if (reduces_something(a.kind) && a.weighted != b.weighted) return "only one gives a weight";
  if (reduces_something(a.kind) && a.fastest != b.fastest) return "the orders differ: one asks for the fastest";
  if (a.recorded != b.recorded)
    return "one will take part in a backward pass, the other not: its tensor requires a gradient on one of the ranks "
           "only, or a compiled function is traced on one and runs from its graph on the other: ranks come to new "
           "shapes together";
  if (!is_list(a.kind)) return {};
  if (a.tensors != b.tensors) return fmt::format("one has {} tensors, the other {}", a.tensors, b.tensors);
  if (a.dims != b.dims || !std::equal(a.shape, a.shape + CallHeader::kDims, b.shape)) return "the shapes differ";
  if (a.sizes != b.sizes) return "the sizes of their tensors differ";
  return {};
}

// What the ranks of two calls that differ have to do. Nothing where the difference says so itself.
const char* remedy(const CallHeader& a, const CallHeader& b) {
  if (a.kind != b.kind) return "\n  All ranks must call the same collectives in the same order.";
  if (a.dtype != b.dtype) return "\n  All ranks must pass tensors of one dtype.";
  if (a.recorded != b.recorded) return "";
  if (a.tensors != b.tensors) return "\n  All ranks must pass equally many tensors.";
  if (a.dims != b.dims || !std::equal(a.shape, a.shape + CallHeader::kDims, b.shape) || a.sizes != b.sizes)
    return "\n  All ranks must pass tensors of one shape.";
  return "\n  All ranks must pass the same arguments.";
}

// What a Call and its Brief have in common.
template <class C>
void fill(CallHeader& h, const C& call, size_t tensors, std::string_view file, uint32_t line) {
  constexpr size_t last = CallHeader::kTextBytes - 1;
  h.kind = call.kind;
  h.dtype = call.dtype;
  h.op = call.op;
  h.root = call.root;
  h.tensors = static_cast<uint32_t>(tensors);
  h.dims = static_cast<uint32_t>(call.shape.size());
  for (size_t d = 0; d < std::min(call.shape.size(), CallHeader::kDims); ++d) h.shape[d] = call.shape[d];
  h.line = line;
  file.remove_prefix(std::min(file.size(), file.rfind('/') + 1));
  size_t length = file.copy(h.text, last);
  if (call.purpose && length < last) std::string_view(call.purpose).copy(h.text + length + 1, last - length - 1);
}

}  // namespace

const char* CallHeader::purpose() const {
  const char* end = std::find(text, text + kTextBytes - 1, '\0');
  return end + 1 < text + kTextBytes ? end + 1 : end;
}

CallHeader header_of(const Brief& call) {
  CallHeader h;
  fill(h, call, call.tensors, call.file, call.line);
  return h;
}

CallFacts facts_of(const Call& call, int rank, int size) {
  CallFacts facts;
  CallHeader& h = facts.header;
  fill(h, call, std::max(call.in.size(), call.out.size()), call.place.file_name(), call.place.line());
  h.weighted = call.weighted;
  h.recorded = call.recorded;
  h.fastest = call.fastest;
  h.factor = call.factor;
  bool gives = call.kind != Kind::broadcast || rank == call.root;
  if (gives)
    for (const Piece& p : call.kind == Kind::broadcast ? call.out : call.in) h.bytes += bytes_of(p, call.dtype);
  if (is_list(call.kind)) {
    auto add = [&](uint64_t value) { h.sizes = (h.sizes ^ value) * 0x9E3779B97F4A7C15u + (h.sizes >> 29); };
    for (const Piece& p : call.out) add(static_cast<uint64_t>(p.count));
    for (size_t t = 1; t < call.out.size(); ++t) add(call.out[t].shape);  // the first one's is in the header
  } else if (call.kind != Kind::barrier) {
    // One piece stands for all ranks; a rank that is not the root of a gather or scatter has none on one side.
    auto n = static_cast<size_t>(size);
    auto fill_in = [&](const Pieces& pieces, std::vector<int64_t>& counts, std::vector<uint32_t>& shapes) {
      counts.assign(n, 0);
      shapes.assign(n, 0);
      for (size_t k = 0; k < n && !pieces.empty(); ++k) {
        const Piece& p = pieces[pieces.size() == 1 ? 0 : k];
        counts[k] = p.count;
        shapes[k] = p.shape;
      }
    };
    fill_in(call.in, facts.in, facts.in_shapes);
    fill_in(call.out, facts.out, facts.out_shapes);
  }
  return facts;
}

void CallFacts::write(std::byte* to, int size) const {
  auto put = [&](const auto& list) {
    size_t bytes = static_cast<size_t>(size) * sizeof(list[0]);
    if (!list.empty()) std::memcpy(to, list.data(), bytes);
    to += bytes;
  };
  std::memcpy(to, &header, sizeof header);
  to += sizeof header;
  put(in);
  put(out);
  put(in_shapes);
  put(out_shapes);
}

CallFacts CallFacts::read(const std::byte* from, int size) {
  CallFacts facts;
  auto get = [&](auto& list) {
    list.resize(static_cast<size_t>(size));
    std::memcpy(list.data(), from, list.size() * sizeof(list[0]));
    from += list.size() * sizeof(list[0]);
  };
  std::memcpy(&facts.header, from, sizeof facts.header);
  facts.header.bound();
  from += sizeof facts.header;
  get(facts.in);
  get(facts.out);
  get(facts.in_shapes);
  get(facts.out_shapes);
  return facts;
}

std::string describe(const CallFacts& facts) {
  const CallHeader& h = facts.header;
  Shape shape(std::span(h.shape, std::min<size_t>(h.dims, CallHeader::kDims)));
  Brief brief{h.kind, h.dtype, h.op, h.root, h.tensors, shape, h.file(), h.line, h.purpose()};
  return describe(brief);
}

namespace {

// What of a call its description does not say, where ranks may differ in it.
std::string describe_fully(const CallFacts& facts) {
  const CallHeader& h = facts.header;
  std::string text = describe(facts);
  if (reduces_something(h.kind) && h.weighted) text += ", weighted";
  if (reduces_something(h.kind) && h.fastest) text += ", in the fastest order";
  if (h.recorded) text += ", recorded for backward";
  return text;
}

// By the first rank of each.
std::string list_calls(const std::vector<CallFacts>& calls, const std::vector<int>& ranks) {
  struct Same {
    std::string text;
    uint64_t sizes;
    std::vector<int> ranks;
  };
  std::vector<Same> groups;
  for (size_t k = 0; k < calls.size(); ++k) {
    Same mine{describe_fully(calls[k]), calls[k].header.sizes, {}};
    auto same = [&](const Same& g) { return g.text == mine.text && g.sizes == mine.sizes; };
    auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) found = groups.insert(groups.end(), std::move(mine));
    found->ranks.push_back(ranks[k]);
  }
  std::vector<std::pair<std::string, std::vector<int>>> callers;
  for (Same& g : groups) callers.emplace_back(std::move(g.text), std::move(g.ranks));
  return list_callers(std::move(callers));
}

// Calls f(a, b) wherever rank a gives rank b a part of its own.
template <class F>
void for_each_part(const std::vector<CallFacts>& calls, const F& f) {
  size_t n = calls.size(), root = static_cast<size_t>(calls[0].header.root);
  for (size_t a = 0; a < n; ++a) switch (calls[0].header.kind) {
      case Kind::gather:
        f(a, root);
        break;
      case Kind::scatter:
        f(root, a);
        break;
      case Kind::all_gather:
      case Kind::reduce_scatter:
      case Kind::all_to_all:
        for (size_t b = 0; b < n; ++b) f(a, b);
        break;
      default:
        break;
    }
}

// Whether what rank a gives rank b has the shape in which that one takes it. One that takes its own part in another
// shape than it gives it (into one flat tensor, say) means what is shaped as its own.
bool same_shape(const std::vector<CallFacts>& calls, size_t a, size_t b) {
  uint32_t given = calls[a].in_shapes[b], taken = calls[b].out_shapes[a];
  uint32_t own = calls[b].in_shapes[b], own_taken = calls[b].out_shapes[b];
  if (own && own_taken && own != own_taken) taken = calls[a].in[b] == calls[b].in[b] ? own : 0;
  return !given || !taken || given == taken;
}

// What a rank gives another, or itself, and is not as much as that one takes, or of another shape; empty: everything
// is as it should.
std::string find_uneven(const std::vector<CallFacts>& calls, const std::vector<int>& ranks) {
  std::string uneven, reshaped;
  for_each_part(calls, [&](size_t a, size_t b) {
    int64_t given = calls[a].in[b], taken = calls[b].out[a];
    if (given != taken && uneven.empty())
      uneven =
          a == b ? fmt::format("rank {} gives {} elements and has room for {} as its own part", ranks[a], given, taken)
                 : fmt::format("rank {} gives {} elements where rank {} takes {}", ranks[a], given, ranks[b], taken);
    else if (a != b && reshaped.empty() && !same_shape(calls, a, b))
      reshaped = fmt::format("the shapes differ: rank {} gives its {} elements in another shape than rank {} takes",
                             ranks[a], given, ranks[b]);
  });
  return uneven.empty() ? reshaped : uneven;
}

}  // namespace

std::optional<std::string> find_mismatch(const std::vector<CallFacts>& calls, const std::vector<int>& ranks,
                                         uint64_t sequence) {
  std::string why;
  const char* todo = "";
  for (size_t k = 1; k < calls.size() && why.empty(); ++k) {
    why = difference(calls[0].header, calls[k].header);
    if (!why.empty()) todo = remedy(calls[0].header, calls[k].header);
  }
  bool nothing = why.empty() && calls[0].header.weighted && reduces_something(calls[0].header.kind) &&
                 std::all_of(calls.begin(), calls.end(), [](const CallFacts& c) { return c.header.factor == 0; });
  if (nothing)
    return fmt::format(
        "the weights of all ranks are 0 in collective {} of their group, so there is nothing to average: {}", sequence,
        describe(calls[0]));
  if (why.empty()) why = find_uneven(calls, ranks);
  if (why.empty()) return {};
  auto each_batch = [](const CallFacts& c) { return !advice(c.header.purpose()).empty(); };
  auto one = std::find_if(calls.begin(), calls.end(), each_batch);
  bool all = std::all_of(calls.begin(), calls.end(), each_batch);
  return fmt::format("ranks disagree in collective {} of their group: {}{}{}", sequence, why, list_calls(calls, ranks),
                     one == calls.end() || all ? todo : advice(one->header.purpose()));
}

uint32_t shape_mark(const Shape& shape) {
  uint64_t hash = shape.size() + 1;
  for (int64_t size : shape) {
    hash = (hash ^ static_cast<uint64_t>(size)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return static_cast<uint32_t>(hash) | 1;
}

std::string message_misfit(const MessageEnd& sent, const MessageEnd& taken) {
  const CallHeader &s = sent.call, &t = taken.call;
  if (s.dtype == t.dtype && sent.count == taken.count) {
    if (s.dims == t.dims && std::equal(s.shape, s.shape + CallHeader::kDims, t.shape)) return {};
    return fmt::format("rank {} sent {}, but rank {} takes another shape by {}: reshape() one of them", sent.rank,
                       describe(CallFacts{s}), taken.rank, describe(CallFacts{t}));
  }
  return fmt::format("rank {} sent {} elements of {} by {}, but rank {} takes {} of {} by {}", sent.rank, sent.count,
                     s.dtype, describe(CallFacts{s}), taken.rank, taken.count, t.dtype, describe(CallFacts{t}));
}

}  // namespace tutti::comm
