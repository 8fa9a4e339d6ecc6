#include "tutti/nn/any_module.h"

#include "base/check.h"
#include "base/names.h"
#include "tutti/nn/container.h"

namespace tutti::nn::detail {
namespace {
bool passes(const std::type_info& given, const std::type_info& wanted) {
  return given == wanted || (given == typeid(int64_t) && wanted == typeid(double));
}
}  // namespace

void check_entry(const ModuleBase& module, size_t i, size_t size) {
  check<IndexError>(i < size, "module", "{} has no entry {}: it has {}, counted from 0", module.type_name(), i, size);
}

void no_entry(const ModuleBase& module, const std::string& name) {
  struct Names final : FieldVisitor {
    std::vector<std::string> list;
    void parameter(const std::string& n, Parameter&) override { list.push_back(n); }
    void buffer(const std::string& n, Buffer&) override { list.push_back(n); }
    void module(const std::string& n, ModuleBase&) override { list.push_back(n); }
  } names;
  const_cast<ModuleBase&>(module).visit_fields(names);
  fail<IndexError>("module", "{} has no entry '{}': it has {}; insert(\"{}\", ...) adds one", module.type_name(), name,
                   names.list.empty() ? "none" : fmt::format("{}", fmt::join(names.list, ", ")), name);
}

void check_name(const ModuleBase& module, const std::string& name, bool taken) {
  check<ValueError>(!taken, "module", "{} has an entry '{}' already: assign to it to replace it", module.type_name(),
                    name);
  check<ValueError>(!name.empty() && name.find('.') == std::string::npos, "module",
                    "an entry of {} cannot be called '{}': names are joined to paths by dots", module.type_name(),
                    name);
}

void check_arguments(const ModuleBase& module, std::span<const std::type_info* const> wanted, size_t needed,
                     std::span<const Argument> given) {
  bool fits = given.size() >= needed && given.size() <= wanted.size();
  for (size_t i = 0; fits && i < given.size(); ++i) fits = passes(*given[i].type, *wanted[i]);
  if (fits) return;
  std::string takes, got;
  for (size_t i = 0; i < wanted.size(); ++i)
    takes += std::string(i == needed ? "[" : "") + (i ? ", " : "") + short_name(*wanted[i]);
  if (needed < wanted.size()) takes += "]";
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
