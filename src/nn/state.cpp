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

void list_entries(std::string& text, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += fmt::format("\n  {}: ", what);
  for (size_t i = 0; i < names.size(); ++i) text += (i ? ", " : "") + names[i];
}

}  // namespace

StateDict ModuleBase::state_dict() const {
  StateDict state;
  for_each_entry(*this, [&](const std::string& path, const Tensor& t) {
    if (t.defined()) state[path] = t.detach();
  });
  return state;
}

LoadReport ModuleBase::load_state_dict(const StateDict& state, const LoadOptions& options) {
  LoadReport report;
  std::vector<std::string> misshaped;
  std::set<std::string> known;
  for_each_entry(*this, [&](const std::string& path, const Tensor& t) {
    known.insert(path);
    auto entry = state.find(path);
    if (entry == state.end() || !entry->second.defined())
      report.missing.push_back(path);
    else if (t.defined() && !(entry->second.sizes() == t.sizes()))
      misshaped.push_back(fmt::format("{} (is {} here, {} there)", path, t.sizes(), entry->second.sizes()));
  });
  for (const auto& [path, t] : state)
    if (!known.contains(path)) report.unexpected.push_back(path);

  std::string problems;
  if (options.strict) list_entries(problems, "missing", report.missing);
  if (options.strict) list_entries(problems, "unexpected", report.unexpected);
  list_entries(problems, "of another shape", misshaped);
  check<ValueError>(problems.empty(), "load_state_dict", "the state does not fit this {}; nothing was loaded{}",
                    type_name(), problems);

  NoGrad guard;
  for_each_entry(*this, [&](const std::string& path, auto& t) {
    auto entry = state.find(path);
    if (entry == state.end() || !entry->second.defined()) return;
    if (t.defined())
      t.copy_(entry->second);
    else  // a lazy module gets its shape from here
      t = {entry->second.detach().clone()};
  });
  return report;
}

}  // namespace tutti::nn
