// state_dict and its way back.
#include <set>

#include "base/check.h"
#include "nn/visit.h"
#include "tutti/context.h"
#include "tutti/nn/module.h"
#include "tutti/ops.h"

namespace tutti::nn {
namespace {

using detail::nothing;
using detail::walk;

// Calls f(path, handle) for all that belongs into a state dict, parameters that still await their value too.
template <class F>
void for_each_entry(const ModuleBase& module, F f) {
  walk(
      module,
      [&](const std::string& path, Parameter& p) {
        if (p.defined() || p.awaited) f(path, p);
      },
      [&](const std::string& path, Buffer& b) {
        if (b.persistent && b.defined()) f(path, b);
      },
      nothing);
}

bool fits(const Shape& known, const Shape& sizes) {
  bool same = known.size() == sizes.size();
  for (size_t d = 0; same && d < known.size(); ++d) same = known[d] == sizes[d] || known[d] < 0;
  return same;
}

// The shape that a value must have, -1 where any will do.
Shape wanted_sizes(const Tensor& t) { return t.sizes(); }
Shape wanted_sizes(const Parameter& p) { return p.defined() ? p.sizes() : p.awaited->sizes; }

// Whether values of `there` can be those of `here`. A lazy parameter that was told no dtype gets it from there: it must
// be one that has gradients.
bool of_a_kind(const Tensor& here, const Tensor& there) {
  return !there.is_sparse() && (here.is_complex() || !there.is_complex());
}
bool of_a_kind(const Parameter& here, const Tensor& there) {
  if (here.defined()) return of_a_kind(static_cast<const Tensor&>(here), there);
  DType dtype = here.awaited->dtype.value_or(there.dtype());
  return !there.is_sparse() && is_differentiable(dtype) && (is_complex(dtype) || !there.is_complex());
}

// NaN is like NaN here: what was saved twice is the same.
bool equal_values(const Tensor& a, const Tensor& b) {
  NoGrad guard;
  if (a.is_same(b) || a.device().is_meta() || b.device().is_meta()) return true;
  Tensor there = b.to(a.device());
  return a.dtype() == b.dtype() && ((a == there) | ((a != a) & (there != there))).all().item<bool>();
}

void load(Tensor& here, const Tensor& there) { here.copy_(there); }
// A lazy module gets its shapes from here, and what it was not told.
void load(Parameter& here, const Tensor& there) {
  if (here.defined()) return load(static_cast<Tensor&>(here), there);
  const Parameter::Awaited& a = *here.awaited;
  here.arrive(
      empty(there.sizes(), {.dtype = a.dtype.value_or(there.dtype()), .device = a.device.value_or(there.device())})
          .copy_(there));
}

void list_entries(std::string& text, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += fmt::format("\n  {}: ", what);
  for (size_t i = 0; i < names.size(); ++i) text += (i ? ", " : "") + names[i];
}

}  // namespace

StateDict ModuleBase::state_dict() const {
  StateDict state;
  std::vector<std::string> awaited;
  for_each_entry(*this, [&](const std::string& path, const Tensor& t) {
    if (t.defined())
      state[path] = t.detach();
    else
      awaited.push_back(path);
  });
  check<ValueError>(
      awaited.empty(), "state_dict",
      "{} of this {} {} no value yet: lazy modules must run once, or load a state, before theirs is taken",
      fmt::join(awaited, ", "), type_name(), awaited.size() == 1 ? "has" : "have");
  return state;
}

LoadReport ModuleBase::load_state_dict(const StateDict& state, const LoadOptions& options) {
  LoadReport report;
  std::vector<std::string> misshaped, other_kind, torn;
  std::set<std::string> known;
  std::map<TensorImpl*, std::pair<std::string, Tensor>> tied;  // what is to be the value of each tensor here
  for_each_entry(*this, [&](const std::string& path, const auto& t) {
    known.insert(path);
    auto entry = state.find(path);
    if (entry == state.end() || !entry->second.defined())
      report.missing.push_back(path);
    else if (!fits(wanted_sizes(t), entry->second.sizes()))
      misshaped.push_back(fmt::format("{} (is {} here, {} there)", path, wanted_sizes(t), entry->second.sizes()));
    else if (!of_a_kind(t, entry->second))
      other_kind.push_back(
          fmt::format("{} (is {} here, {} there)", path, static_cast<const Tensor&>(t), entry->second));
    else if (auto [same, first] = tied.try_emplace(t.impl(), path, entry->second);
             t.defined() && !first && !equal_values(same->second.second, entry->second))
      torn.push_back(fmt::format("{} and {}", same->second.first, path));
  });
  for (const auto& [path, t] : state)
    if (!known.contains(path)) report.unexpected.push_back(path);

  std::string problems;
  if (options.strict) list_entries(problems, "missing", report.missing);
  if (options.strict) list_entries(problems, "unexpected", report.unexpected);
  list_entries(problems, "of another shape", misshaped);
  list_entries(problems, "of a dtype or layout that does not fit", other_kind);
  list_entries(problems, "one tensor here, and of different values there", torn);
  check<ValueError>(problems.empty(), "load_state_dict", "the state does not fit this {}; nothing was loaded{}",
                    type_name(), problems);

  NoGrad guard;
  for_each_entry(*this, [&](const std::string& path, auto& t) {
    auto entry = state.find(path);
    if (entry == state.end() || !entry->second.defined()) return;
    load(t, entry->second.detach());
  });
  return report;
}

}  // namespace tutti::nn
