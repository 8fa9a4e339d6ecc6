// Modules made of modules, and lists and maps of parameters. A struct with members, or a std::vector<Linear> as a
// field, often says it better; these are for modules of different types and for paths as other frameworks name them.
#pragma once

#include "tutti/nn/any_module.h"

namespace tutti::nn {

namespace detail {
/// IndexError if there is no entry i.
void check_entry(const ModuleBase& module, size_t i, size_t size);
/// IndexError, with the names that there are.
[[noreturn]] void no_entry(const ModuleBase& module, const std::string& name);
/// ValueError if an entry cannot have this name: paths are made of names.
void check_name(const ModuleBase& module, const std::string& name, bool taken);

/// The entry of this name in a map that a module has.
template <class Items>
auto& entry(const ModuleBase& module, Items& items, const std::string& name) {
  auto found = items.find(name);
  if (found == items.end()) no_entry(module, name);
  return found->second;
}
}  // namespace detail

/// Runs modules one after another: Sequential(Linear(2, 8), ReLU(), Linear(8, 1)).
struct Sequential : Module<Sequential> {
  static constexpr bool anonymous_fields = true;
  std::vector<AnyModule> items;
  TUTTI_FIELDS(items)

  Sequential() = default;
  template <class... M>
    requires(sizeof...(M) > 0 && (std::constructible_from<AnyModule, M> && ...) &&
             !(sizeof...(M) == 1 && (std::same_as<std::decay_t<M>, Sequential> && ...)))
  explicit Sequential(M&&... modules) {
    (items.push_back(AnyModule(std::forward<M>(modules))), ...);
  }
  void push_back(AnyModule module) { items.push_back(std::move(module)); }
  size_t size() const { return items.size(); }
  AnyModule& operator[](size_t i) {
    detail::check_entry(*this, i, items.size());
    return items[i];
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (AnyModule& m : items) y = m(y);
    return y;
  }
};

/// A list of modules of any types; how they are used is the parent's to say.
struct ModuleList : Module<ModuleList> {
  static constexpr bool anonymous_fields = true;
  std::vector<AnyModule> items;
  TUTTI_FIELDS(items)

  ModuleList() = default;
  ModuleList(std::initializer_list<AnyModule> modules) : items(modules) {}
  void push_back(AnyModule module) { items.push_back(std::move(module)); }
  size_t size() const { return items.size(); }
  AnyModule& operator[](size_t i) {
    detail::check_entry(*this, i, items.size());
    return items[i];
  }
  auto begin() { return items.begin(); }
  auto end() { return items.end(); }
};

/// Modules of any types by name, in the order of the names: dict["body"], dict.insert("head", Linear(8, 2)).
struct ModuleDict : Module<ModuleDict> {
  static constexpr bool anonymous_fields = true;
  std::map<std::string, AnyModule> items;
  TUTTI_FIELDS(items)

  ModuleDict() = default;
  ModuleDict(std::initializer_list<std::pair<const std::string, AnyModule>> modules) {
    for (const auto& [name, module] : modules) insert(name, module);
  }
  /// Adds an entry. One that is there is replaced by assigning to it.
  AnyModule& insert(const std::string& name, AnyModule module) {
    detail::check_name(*this, name, contains(name));
    return items[name] = std::move(module);
  }
  size_t size() const { return items.size(); }
  bool contains(const std::string& name) const { return items.contains(name); }
  /// IndexError if there is none.
  AnyModule& operator[](const std::string& name) { return detail::entry(*this, items, name); }
  const AnyModule& operator[](const std::string& name) const { return detail::entry(*this, items, name); }
  auto begin() { return items.begin(); }
  auto end() { return items.end(); }
};

struct ParameterList : Module<ParameterList> {
  static constexpr bool anonymous_fields = true;
  std::vector<Parameter> items;
  TUTTI_FIELDS(items)

  ParameterList() = default;
  ParameterList(std::initializer_list<Parameter> parameters) : items(parameters) {}
  void push_back(Parameter parameter) { items.push_back(std::move(parameter)); }
  size_t size() const { return items.size(); }
  Parameter& operator[](size_t i) {
    detail::check_entry(*this, i, items.size());
    return items[i];
  }
  auto begin() { return items.begin(); }
  auto end() { return items.end(); }
};

/// Parameters by name, in the order of the names: dict["scale"], dict.insert("shift", zeros({8})).
struct ParameterDict : Module<ParameterDict> {
  static constexpr bool anonymous_fields = true;
  std::map<std::string, Parameter> items;
  TUTTI_FIELDS(items)

  ParameterDict() = default;
  ParameterDict(std::initializer_list<std::pair<const std::string, Parameter>> parameters) {
    for (const auto& [name, parameter] : parameters) insert(name, parameter);
  }
  /// Adds an entry. One that is there is replaced by assigning to it.
  Parameter& insert(const std::string& name, Parameter parameter) {
    detail::check_name(*this, name, contains(name));
    return items[name] = std::move(parameter);
  }
  size_t size() const { return items.size(); }
  bool contains(const std::string& name) const { return items.contains(name); }
  /// IndexError if there is none.
  Parameter& operator[](const std::string& name) { return detail::entry(*this, items, name); }
  const Parameter& operator[](const std::string& name) const { return detail::entry(*this, items, name); }
  auto begin() { return items.begin(); }
  auto end() { return items.end(); }
};

struct Identity : Module<Identity> {
  TUTTI_FIELDS()
  Tensor forward(const Tensor& x) { return x; }
};

/// Dims start to end become one.
struct Flatten : Module<Flatten> {
  int64_t start_dim, end_dim;
  TUTTI_FIELDS(start_dim, end_dim)
  explicit Flatten(int64_t start_dim = 1, int64_t end_dim = -1) : start_dim(start_dim), end_dim(end_dim) {}
  Tensor forward(const Tensor& x) { return x.flatten(start_dim, end_dim); }
};

/// Dim `dim` becomes several.
struct Unflatten : Module<Unflatten> {
  int64_t dim;
  Shape sizes;
  TUTTI_FIELDS(dim, sizes)
  Unflatten(int64_t dim, Shape sizes) : dim(dim), sizes(std::move(sizes)) {}
  Tensor forward(const Tensor& x);
};

// Compiled once, in src/nn/layers.cpp.
extern template class Module<Sequential>;
extern template class Module<ModuleList>;
extern template class Module<ModuleDict>;
extern template class Module<ParameterList>;
extern template class Module<ParameterDict>;
extern template class Module<Identity>;
extern template class Module<Flatten>;
extern template class Module<Unflatten>;

}  // namespace tutti::nn
