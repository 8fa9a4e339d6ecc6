#include "tutti/nn/any_module.h"

#include "base/check.h"
#include "base/names.h"

namespace tutti::nn::detail {

void check_arguments(const ModuleBase& module, std::span<const std::type_info* const> wanted,
                     std::span<const Argument> given) {
  bool fits = wanted.size() == given.size();
  for (size_t i = 0; fits && i < wanted.size(); ++i) fits = *wanted[i] == *given[i].type;
  if (fits) return;
  std::string takes, got;
  for (const auto* type : wanted) takes += (takes.empty() ? "" : ", ") + short_name(*type);
  for (const auto& argument : given) got += (got.empty() ? "" : ", ") + short_name(*argument.type);
  fail<ValueError>("AnyModule", "{} takes ({}), but was called with ({})", module.type_name(), takes, got);
}

void wrong_result(const ModuleBase& module, const std::type_info& is, const std::type_info& wanted) {
  throw ValueError(fmt::format("{} returns {}, not {}: say so with call<type>(...)", module.type_name(), short_name(is),
                               short_name(wanted)),
                   "AnyModule");
}

void wrong_module(const ModuleBase* module, const std::type_info& wanted) {
  if (!module) fail<ValueError>("AnyModule", "holds no module");
  fail<ValueError>("AnyModule", "holds a {}, not a {}", module->type_name(), short_name(wanted));
}

}  // namespace tutti::nn::detail
