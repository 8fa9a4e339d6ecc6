// Walking a module's tree with lambdas.
#pragma once

#include <string>
#include <utility>

#include "tutti/nn/module.h"

namespace tutti::nn::detail {

/// A wrapper that wants to leave no trace in paths gives what it wraps no name.
inline std::string join(const std::string& path, const std::string& name) {
  return path.empty() || name.empty() ? path + name : path + "." + name;
}

/// Calls on_parameter(path, Parameter&), on_buffer(path, Buffer&) for the module and all below, in the order of their
/// fields, and on_module(path, module) before what is inside of each.
template <class P, class B, class M>
class Walk final : public FieldVisitor {
 public:
  Walk(P& on_parameter, B& on_buffer, M& on_module)
      : parameter_(on_parameter), buffer_(on_buffer), module_(on_module) {}
  void parameter(const std::string& name, Parameter& p) override { parameter_(join(path_, name), p); }
  void buffer(const std::string& name, Buffer& b) override { buffer_(join(path_, name), b); }
  void module(const std::string& name, ModuleBase& m) override {
    std::string saved = std::exchange(path_, join(path_, name));
    module_(std::as_const(path_), m);
    m.visit_fields(*this);
    path_ = std::move(saved);
  }

 private:
  std::string path_;
  P& parameter_;
  B& buffer_;
  M& module_;
};

inline constexpr auto nothing = [](const std::string&, auto&) {};

template <class P, class B, class M>
void walk(const ModuleBase& module, P on_parameter, B on_buffer, M on_module) {
  Walk<P, B, M> walk(on_parameter, on_buffer, on_module);
  // Walking changes nothing by itself; what it finds are handles, which a const module gives out too.
  walk.module("", const_cast<ModuleBase&>(module));
}

}  // namespace tutti::nn::detail
