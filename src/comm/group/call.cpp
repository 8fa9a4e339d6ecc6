#include "comm/group/call.h"

#include <mutex>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/per_process.h"

namespace tutti::comm {
namespace {

constinit thread_local Marks marks_here;

constexpr std::string_view kAdvice =
    "\n  All ranks must run forward and backward equally often: if they have different numbers of batches, "
    "each must run its loop inside of parallel::join()";

struct Texts {
  static constexpr size_t kMost = 4096;
  std::mutex mutex;
  std::set<std::string> texts;
};

}  // namespace

const Marks& marks() { return marks_here; }

RecordingGuard::RecordingGuard(bool recorded) : outer_(std::exchange(marks_here.recorded, recorded)) {}
RecordingGuard::~RecordingGuard() { marks_here.recorded = outer_; }

PurposeGuard::PurposeGuard(const char* purpose) : outer_(marks_here.purpose) {
  if (!outer_) marks_here.purpose = purpose;
}
PurposeGuard::~PurposeGuard() { marks_here.purpose = outer_; }

std::string advice(const char* purpose) { return std::string(purpose && *purpose == kEachBatch ? kAdvice : ""); }

std::string advised(std::string text, const char* purpose) {
  bool any = !advice(purpose).empty();
  for (size_t at = 0; (at = text.find(kAdvice)) != text.npos; any = true) text.erase(at, kAdvice.size());
  return any ? text.append(kAdvice) : text;
}

const char* lasting(const std::string& text, const char* otherwise) {
  auto& all = per_process<Texts, true>();
  std::lock_guard lock(all.mutex);
  auto found = all.texts.find(text);
  if (found == all.texts.end() && all.texts.size() >= Texts::kMost) return otherwise;
  return (found == all.texts.end() ? all.texts.insert(text).first : found)->c_str();
}

const char* name(Kind kind) {
  constexpr const char* names[] = {"all_reduce",     "reduce",     "broadcast", "all_gather", "gather", "scatter",
                                   "reduce_scatter", "all_to_all", "barrier",   "send",       "recv"};
  return names[static_cast<size_t>(kind)];
}

bool reduces_something(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}
bool has_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::gather || kind == Kind::scatter;
}

namespace {

std::string file_name(const char* path) {
  std::string text = path;
  return text.substr(text.rfind('/') + 1);
}

}  // namespace

Brief brief(const Call& c) {
  return {c.kind,         c.dtype,  c.op, c.root, std::max(c.in.size(), c.out.size()), c.shape, c.place.file_name(),
          c.place.line(), c.purpose};
}

std::string to_string(const Place& place) { return fmt::format("{}:{}", file_name(place.file_name()), place.line()); }

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += i ? ", " : " ";
    text += std::to_string(ranks[i]);
    if (end - i > 2) text += "-" + std::to_string(ranks[end - 1]);
    i = end - i > 2 ? end : i + 1;
  }
  return text;
}

std::string list_callers(std::vector<std::pair<std::string, std::vector<int>>> calls) {
  constexpr size_t most = 16;  // lines: where all ranks differ, these are enough to see it
  std::string text;
  for (size_t k = 0; k < std::min(calls.size(), most); ++k) {
    std::sort(calls[k].second.begin(), calls[k].second.end());
    text += fmt::format("\n  {}: {}", name_ranks(calls[k].second), calls[k].first);
  }
  if (calls.size() > most) text += fmt::format("\n  and {} more kinds of calls", calls.size() - most);
  return text;
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
  text += fmt::format(" at {}:{}", file_name(call.file), call.line);
  return call.purpose && *call.purpose ? fmt::format("{} (for {})", text, shown(call.purpose)) : text;
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
