#include "comm/group/facts.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tutti::comm {
namespace {

bool is_list(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::broadcast; }

int64_t bytes_of(const Piece& p, DType dtype) { return p.count * static_cast<int64_t>(size_of(dtype)); }

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
           "only";
  if (!is_list(a.kind)) return {};
  if (a.tensors != b.tensors) return fmt::format("one has {} tensors, the other {}", a.tensors, b.tensors);
  if (a.dims != b.dims || !std::equal(a.shape, a.shape + CallHeader::kDims, b.shape)) return "the shapes differ";
  if (a.sizes != b.sizes) return "the sizes of their tensors differ";
  return {};
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
    for (const Piece& p : call.out)
      h.sizes = (h.sizes ^ static_cast<uint64_t>(p.count)) * 0x9E3779B97F4A7C15u + (h.sizes >> 29);
  } else if (call.kind != Kind::barrier) {
    // One piece stands for all ranks; a rank that is not the root of a gather or scatter has none on one side.
    auto n = static_cast<size_t>(size);
    facts.in.assign(n, 0);
    facts.out.assign(n, 0);
    for (size_t k = 0; k < n; ++k) {
      if (!call.in.empty()) facts.in[k] = call.in[call.in.size() == 1 ? 0 : k].count;
      if (!call.out.empty()) facts.out[k] = call.out[call.out.size() == 1 ? 0 : k].count;
    }
  }
  return facts;
}

void CallFacts::write(std::byte* to, int size) const {
  std::memcpy(to, &header, sizeof header);
  auto n = static_cast<size_t>(size) * sizeof(int64_t);
  if (!in.empty()) std::memcpy(to + sizeof header, in.data(), n);
  if (!out.empty()) std::memcpy(to + sizeof header + n, out.data(), n);
}

CallFacts CallFacts::read(const std::byte* from, int size) {
  CallFacts facts;
  std::memcpy(&facts.header, from, sizeof facts.header);
  auto n = static_cast<size_t>(size);
  facts.in.resize(n);
  facts.out.resize(n);
  std::memcpy(facts.in.data(), from + sizeof facts.header, n * sizeof(int64_t));
  std::memcpy(facts.out.data(), from + sizeof facts.header + n * sizeof(int64_t), n * sizeof(int64_t));
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

// "\n  ranks 0-2, 5: all_reduce(f32[4], sum) at a.cpp:10\n  rank 3: barrier at a.cpp:12", by the first rank of each.
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
  constexpr size_t most = 16;  // lines: where all ranks differ, these are enough to see it
  std::string text;
  for (size_t k = 0; k < std::min(groups.size(), most); ++k) {
    std::sort(groups[k].ranks.begin(), groups[k].ranks.end());
    text += fmt::format("\n  {}: {}", name_ranks(groups[k].ranks), groups[k].text);
  }
  if (groups.size() > most) text += fmt::format("\n  and {} more kinds of calls", groups.size() - most);
  return text;
}

// What a rank gives another, or itself, and is not as much as that one takes; empty: everything is.
std::string find_uneven(const std::vector<CallFacts>& calls, const std::vector<int>& ranks) {
  size_t n = calls.size(), root = static_cast<size_t>(calls[0].header.root);
  std::string found;
  auto compare = [&](size_t a, size_t b) {
    int64_t given = calls[a].in[b], taken = calls[b].out[a];
    if (given == taken || !found.empty()) return;
    found = a == b
                ? fmt::format("rank {} gives {} elements and has room for {} as its own part", ranks[a], given, taken)
                : fmt::format("rank {} gives {} elements where rank {} takes {}", ranks[a], given, ranks[b], taken);
  };
  for (size_t a = 0; a < n; ++a) switch (calls[0].header.kind) {
      case Kind::gather:
        compare(a, root);
        break;
      case Kind::scatter:
        compare(root, a);
        break;
      case Kind::all_gather:
      case Kind::reduce_scatter:
      case Kind::all_to_all:
        for (size_t b = 0; b < n; ++b) compare(a, b);
        break;
      default:
        break;
    }
  return found;
}

}  // namespace

std::optional<std::string> find_mismatch(const std::vector<CallFacts>& calls, const std::vector<int>& ranks,
                                         uint64_t sequence) {
  std::string why;
  for (size_t k = 1; k < calls.size() && why.empty(); ++k) why = difference(calls[0].header, calls[k].header);
  bool nothing = why.empty() && calls[0].header.weighted && reduces_something(calls[0].header.kind) &&
                 std::all_of(calls.begin(), calls.end(), [](const CallFacts& c) { return c.header.factor == 0; });
  if (nothing)
    return fmt::format(
        "the weights of all ranks are 0 in collective {} of their group, so there is nothing to average: {}", sequence,
        describe(calls[0]));
  if (why.empty()) why = find_uneven(calls, ranks);
  if (why.empty()) return {};
  return fmt::format("ranks disagree in collective {} of their group: {}{}", sequence, why, list_calls(calls, ranks));
}

}  // namespace tutti::comm
