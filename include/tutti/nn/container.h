// Modules made of modules, and lists and maps of parameters. A struct with members, or a std::vector<Linear> as a
// field, often says it better; these are for modules of different types and for paths as other frameworks name them.
#pragma once

#include "tutti/nn/any_module.h"

namespace tutti::nn {

namespace detail {
/// IndexError if there is no entry i.
void check_entry(const ModuleBase& module, size_t i, size_t size);
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

struct ModuleDict : Module<ModuleDict> {
  static constexpr bool anonymous_fields = true;
  std::map<std::string, AnyModule> items;
  TUTTI_FIELDS(items)

  ModuleDict() = default;
  ModuleDict(std::initializer_list<std::pair<const std::string, AnyModule>> modules) : items(modules) {}
  size_t size() const { return items.size(); }
  bool contains(const std::string& name) const { return items.contains(name); }
  AnyModule& operator[](const std::string& name) { return items[name]; }
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

struct ParameterDict : Module<ParameterDict> {
  static constexpr bool anonymous_fields = true;
  std::map<std::string, Parameter> items;
  TUTTI_FIELDS(items)

  ParameterDict() = default;
  ParameterDict(std::initializer_list<std::pair<const std::string, Parameter>> parameters) : items(parameters) {}
  size_t size() const { return items.size(); }
  bool contains(const std::string& name) const { return items.contains(name); }
  Parameter& operator[](const std::string& name) { return items[name]; }
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

}  // namespace tutti::nn
