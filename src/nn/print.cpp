// The tree of modules as text.
#include <ostream>
#include <set>

#include "base/check.h"
#include "nn/visit.h"
#include "tutti/nn/module.h"

namespace tutti::nn {
namespace {

std::string with_commas(int64_t n) {
  std::string digits = std::to_string(n);
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

// What one module has of its own: numbers as text, tensors as shapes, children.
struct Parts final : detail::FieldVisitor {
  explicit Parts(std::set<TensorImpl*>& seen) : seen(seen) {}
  std::set<TensorImpl*>& seen;  // in this module and those before it
  std::string text;
  std::vector<std::pair<std::string, ModuleBase*>> children;

  std::set<std::string> names;

  // Tensors that another module has too are marked: copies of a module share theirs, which is not always meant.
  std::string shape_of(const Tensor& t) {
    return to_string(t.sizes()) + (seen.insert(t.impl()).second ? "" : " shared");
  }
  void add(const std::string& name, const std::string& value) {
    if (!name.empty() && !names.insert(name).second) return;  // an option that a tensor shows already, as "bias"
    text += (text.empty() ? "" : ", ") + name + (name.empty() ? "" : "=") + value;
  }
  void parameter(const std::string& name, Parameter& p) override {
    add(name, p.defined() ? shape_of(p) : p.awaited ? "awaited" : "none");
  }
  void buffer(const std::string& name, Buffer& b) override { add(name, b.defined() ? shape_of(b) : "none"); }
  void module(const std::string& name, ModuleBase& m) override { children.emplace_back(name, &m); }
  void other(const std::string& name, const std::function<std::string()>& value) override { add(name, value()); }
};

void print(std::string& out, ModuleBase& module, const std::string& name, const std::string& indent,
           std::set<TensorImpl*>& seen) {
  Parts parts(seen);
  module.visit_fields(parts);
  out += indent + (name.empty() ? "" : name + ": ") + module.type_name() + "(" + parts.text + ")";
  // That of the whole is the last line.
  if (int64_t count = module.parameter_count(); count && !(name.empty() && indent.empty()))
    out += "  " + with_commas(count);
  out += "\n";
  for (auto& [child_name, child] : parts.children) print(out, *child, child_name, indent + "  ", seen);
}

}  // namespace

std::string to_string(const ModuleBase& module) {
  std::string out;
  std::set<TensorImpl*> seen;
  print(out, const_cast<ModuleBase&>(module), "", "", seen);
  seen.clear();
  int64_t trained = 0;
  detail::walk(
      module,
      [&](const std::string&, Parameter& p) {
        if (p.requires_grad() && seen.insert(p.impl()).second) trained += p.numel();
      },
      detail::nothing, detail::nothing);
  int64_t all = module.parameter_count();
  out += with_commas(all) + " parameters" + (trained == all ? "" : ", " + with_commas(trained) + " trained") + "\n";
  return out;
}

std::ostream& operator<<(std::ostream& out, const ModuleBase& module) { return out << to_string(module); }

}  // namespace tutti::nn
