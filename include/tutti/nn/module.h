// Modules: plain structs whose parameters, buffers and children are their data members, named once by TUTTI_FIELDS.
//
//   struct Net : nn::Module<Net> {
//     nn::Linear fc1{784, 256}, fc2{256, 10};
//     TUTTI_FIELDS(fc1, fc2)
//     Tensor forward(const Tensor& x) { return fc2(relu(fc1(x))); }
//   };
//   Net net;
//   Tensor y = net(x);
//
// A module is a value. Copying it shares its tensors, as copying a tensor does; clone() copies the tensors too. A field
// may be a Parameter, a Buffer, a module, an AnyModule, or a vector, map, optional, tuple or array of those; and
// numbers, strings and shapes, which are shown when the module is printed (of a struct of options: those that are not
// as by default).
#pragma once

#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tutti/context.h"
#include "tutti/error.h"
#include "tutti/operator.h"
#include "tutti/tree.h"

namespace tutti::nn {

/// A tensor that training changes. Made from any tensor: a leaf that requires a gradient, sharing the tensor's memory.
struct Parameter : Tensor {
  /// Of a lazy module that has not run: what the value is to be when it comes.
  struct Awaited {
    Shape sizes = {};  // -1 where not known
    std::optional<DType> dtype = {};
    std::optional<Device> device = {};
    bool requires_grad = true;
    Tensor value = {};  // once it came, to whichever copy
  };
  std::shared_ptr<Awaited> awaited;  // copies wait for one value

  Parameter() = default;
  Parameter(const Tensor& data, bool requires_grad = true);  // NOLINT: weight = zeros({2}) should read well
  /// lazy({.sizes = {out, -1}}): a matrix of `out` rows.
  static Parameter lazy(const Awaited& awaited) {
    Parameter p;
    p.awaited = std::make_shared<Awaited>(awaited);
    return p;
  }
  /// The awaited value comes; for all copies.
  void arrive(const Tensor& value);
  /// Takes over the value if it came to a copy of this one.
  void catch_up() {
    if (!defined() && awaited) take_over();
  }

 private:
  void take_over();
};

/// A tensor that belongs to the module but is not trained, like a running mean. One that is not persistent is left out
/// of state_dict().
struct Buffer : Tensor {
  bool persistent = true;
  Buffer() = default;
  Buffer(const Tensor& data, bool persistent = true) : Tensor(data), persistent(persistent) {}  // NOLINT
};

using StateDict = std::map<std::string, Tensor>;
struct LoadOptions {
  bool strict = true;  // missing and unexpected entries are errors
};
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};
/// What to convert a module to; what is not named stays. The dtype is for floating-point tensors only.
struct ModuleOptions {
  std::optional<DType> dtype = {};
  std::optional<Device> device = {};
  std::optional<MemoryFormat> format = {};
};

class ModuleBase;
/// Before forward; may replace the tensors of the arguments, listed in order.
using ForwardPreHook = std::function<void(ModuleBase&, TensorList& inputs)>;
/// After forward; may replace the tensors of the result.
using ForwardHook = std::function<void(ModuleBase&, const TensorList& inputs, TensorList& outputs)>;
/// When forward, or a hook around it, has thrown: puts back what a hook before forward has changed. What it throws
/// itself is lost.
using ForwardFailureHook = std::function<void(ModuleBase&)>;
/// When the gradients of the result are known, before they go through the module; may replace them. Gradients are
/// listed as forward hooks list the tensors, undefined where none flows. Backward hooks get
/// a copy of the module, made in forward, since the module itself may be elsewhere or gone by then: it shares tensors
/// with it, but what a hook changes of its plain members (or replaces of its tensors) only that copy sees.
using BackwardPreHook = std::function<void(ModuleBase&, TensorList& grad_outputs)>;
/// When the gradients of the arguments are known; may replace them.
using BackwardHook = std::function<void(ModuleBase&, TensorList& grad_inputs, const TensorList& grad_outputs)>;

namespace detail {
class FieldVisitor;
struct Hooks;
template <class Function>
class HookList;
class Setting;
struct FieldPlace {
  const void* at;
  size_t size, align;
};

/// A call with hooks around it, for one result and one list of argument tensors at a time.
class HookedCall {
 public:
  HookedCall(ModuleBase& module, TensorList& inputs);
  void finish(TensorList& outputs);
  /// Puts back what the caller gave, where it is still what the hooks made of it.
  void restore(TensorList& tensors) const;

 private:
  ModuleBase& module_;
  TensorList given_, inputs_;
  std::shared_ptr<void> state_;
};
}  // namespace detail

class ModuleBase {
 public:
  ModuleBase();
  ModuleBase(const ModuleBase& other);
  ModuleBase(ModuleBase&&) noexcept;
  ModuleBase& operator=(const ModuleBase& other);
  ModuleBase& operator=(ModuleBase&&) noexcept;
  virtual ~ModuleBase();

  // ---- What is in it. Names are paths ("encoder.layers.0.weight"); what is shared is listed once, under its first
  // name.
  std::vector<std::pair<std::string, Tensor>> named_parameters() const;
  TensorList parameters() const;
  std::vector<std::pair<std::string, Tensor>> named_buffers() const;
  TensorList buffers() const;
  /// This module ("") and all below it, parents first.
  std::vector<std::pair<std::string, ModuleBase*>> named_modules() const;
  std::vector<std::pair<std::string, ModuleBase*>> named_children() const;
  int64_t parameter_count() const;

  // ---- What is done to all of it
  /// Calls f on all modules below, then on this one.
  void apply(const std::function<void(ModuleBase&)>& f);
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const {
    look();
    return training_;
  }
  /// Converts in place: tensors keep their identity, so that optimizers go on working.
  void to(const ModuleOptions& options);
  void to(DType dtype) { to(ModuleOptions{.dtype = dtype}); }
  void to(Device device) { to(ModuleOptions{.device = device}); }
  void to(const char* device) { to(Device(device)); }
  void to(MemoryFormat format) { to(ModuleOptions{.format = format}); }
  void zero_grad();
  void requires_grad_(bool value = true);

  // ---- State
  /// All parameters and persistent buffers by their paths. The tensors are the module's own, as its users know it from
  /// elsewhere: training goes on changing them. To keep the best weights so far, keep copies:
  ///   best = tree::map(net.state_dict(), [](const Tensor& t) { return t.clone(); });
  StateDict state_dict() const;
  /// Copies the values in, converted to the dtypes here. All that is missing, unexpected, of another shape or complex
  /// where it is real here is named in one ValueError, and then nothing has been changed.
  LoadReport load_state_dict(const StateDict& state, const LoadOptions& options = {});

  // ---- Hooks. They are copied with the module; removing one removes it from the copies too (not from clones).
  HookHandle register_forward_pre_hook(ForwardPreHook hook);
  HookHandle register_forward_hook(ForwardHook hook);
  HookHandle register_forward_failure_hook(ForwardFailureHook hook);
  HookHandle register_backward_pre_hook(BackwardPreHook hook);
  HookHandle register_backward_hook(BackwardHook hook);

  /// "Linear": the type's name without its namespace.
  std::string type_name() const;

  // ---- For Module<Derived> and the library
  virtual void visit_fields(detail::FieldVisitor& visitor) = 0;
  virtual std::unique_ptr<ModuleBase> copy() const = 0;
  /// Its parameters are those of another module, as seen from a device: gradients arrive there.
  void set_replica() { replica_ = true; }

 protected:
  bool has_hooks() const {
    look();
    return hooks_ != nullptr;
  }
  friend class detail::HookedCall;
  friend void unshare(ModuleBase& module);

 private:
  // Somebody looks whether it trains or has hooks: what is traced meanwhile is for a module that is set so.
  void look() const {
    if (context().modes & kTraceMode) [[unlikely]]
      tell_tracer();
  }
  void tell_tracer() const;
  void was_set();
  template <class Function>
  HookHandle add_hook(detail::HookList<Function> detail::Hooks::* list, Function hook);
  std::unique_ptr<detail::Hooks> hooks_;
  mutable std::shared_ptr<detail::Setting> setting_;  // once a tracer was told; this object's alone
  bool training_ = true;
  bool replica_ = false;
};

/// The tree of modules with sizes and parameter counts.
std::string to_string(const ModuleBase& module);
std::ostream& operator<<(std::ostream& out, const ModuleBase& module);
/// Gives the module tensors and hooks of its own, equal to those it shares; what it shares with itself stays shared.
void unshare(ModuleBase& module);

class AnyModule;

namespace detail {
class FieldVisitor {
 public:
  virtual void parameter(const std::string& name, Parameter& parameter) = 0;
  virtual void buffer(const std::string& name, Buffer& buffer) = 0;
  virtual void module(const std::string& name, ModuleBase& module) = 0;
  virtual void other(const std::string&, const std::function<std::string()>&) {}

 protected:
  ~FieldVisitor() = default;
};

template <class T>
inline constexpr bool printable = requires(const T& v) { tutti::detail::print_field(v); };
template <class T>
inline constexpr bool printable<std::vector<T>> = printable<T>;
template <class T>
inline constexpr bool printable<std::optional<T>> = printable<T>;
template <class T>
concept IsAnyModule = std::same_as<T, AnyModule>;
template <class T>
concept IsModule = std::derived_from<T, ModuleBase>;
template <class T>
inline constexpr bool is_module_pointer = false;
template <class T>
inline constexpr bool is_module_pointer<std::shared_ptr<T>> = IsModule<T>;
template <class T>
inline constexpr bool is_module_pointer<std::unique_ptr<T>> = IsModule<T>;
template <class T>
inline constexpr bool is_module_pointer<T*> = IsModule<T>;

/// A struct whose fields are all shown as text, and which has defaults.
template <class T>
concept IsOptions = tree::HasFields<T> && std::default_initializable<T> &&
                    []<class... F>(std::type_identity<tutti::detail::Fields<F...>>) {
                      return (printable<std::remove_const_t<F>> && ...);
                    }(std::type_identity<decltype(std::declval<T&>().fields())>());

/// Enumerators that have names (to_string) are shown by them.
template <class T>
std::string print_option(const T& value) {
  if constexpr (std::is_enum_v<T> && requires { std::string(to_string(value)); })
    return std::string(to_string(value));
  else
    return tutti::detail::print_field(value);
}
template <class T>
void visit_options(FieldVisitor& visitor, const T& options) {
  const T usual{};
  int64_t i = 0;
  std::apply(
      [&](const auto&... now) {
        std::apply(
            [&](const auto&... before) {
              auto one = [&](const auto& value, const auto& other) {
                std::string text = print_option(value);
                if (text != print_option(other))
                  visitor.other(tree::Key{.fields = T::field_names(), .index = i}.text(), [&] { return text; });
                ++i;
              };
              (one(now, before), ...);
            },
            usual.fields().tuple());
      },
      options.fields().tuple());
}

template <class T>
void visit_field(FieldVisitor& visitor, const std::string& name, T& field) {
  static_assert(!is_module_pointer<T>, "hold modules by value, or as nn::AnyModule");
  static_assert(!std::same_as<T, Tensor>, "a tensor of a module is an nn::Parameter or an nn::Buffer: say which");
  if constexpr (std::derived_from<T, Parameter>) {
    field.catch_up();
    visitor.parameter(name, field);
  } else if constexpr (std::derived_from<T, Buffer>) {
    visitor.buffer(name, field);
  } else if constexpr (IsModule<T>) {
    visitor.module(name, field);
  } else if constexpr (IsAnyModule<T>) {
    if (field.defined()) visitor.module(name, field.module());
  } else if constexpr (printable<T>) {
    visitor.other(name, [&field] { return print_option(field); });
  } else if constexpr (IsOptions<T>) {
    // Only what is not as by default is worth a reader's time.
    visit_options(visitor, std::as_const(field));
  } else if constexpr (tree::Composite<T>) {
    tree::for_each_child(field, [&](const tree::Key& key, auto& child) {
      // An optional's or a variant's content has the name of the field itself.
      if constexpr (tree::detail::is_optional<T> || tree::detail::is_variant<T>)
        visit_field(visitor, name, child);
      else
        visit_field(visitor, name.empty() ? key.text() : name + "." + key.text(), child);
    });
  }
}

/// Writes into the error where it happened: in this module, or in the one below it that it came from.
void failed_in(const ModuleBase& module, Error& error) noexcept;
/// Throws when the object is of another type than the one that is a Module<> of itself, or has members that are not
/// named.
void check_declared(const ModuleBase& module, const std::type_info& declared);
void check_layout(const std::type_info& type, const void* object, size_t base, size_t size, const char* names,
                  std::span<const FieldPlace> fields);
template <class T>
concept OtherMembers = requires { requires T::other_members; };
template <class T>
concept AnonymousFields = requires { requires T::anonymous_fields; };
}  // namespace detail

/// See the top of this file. Two constants change what is asked of the fields:
///   static constexpr bool other_members = true;     there are members that TUTTI_FIELDS does not name
///   static constexpr bool anonymous_fields = true;  names of the fields are left out of paths (containers use it)
template <class Derived>
class Module : public ModuleBase {
 public:
  /// Runs forward with the hooks around it. An Error on its way out learns which module it was: Error::module().
  template <class... Args>
  auto operator()(Args&&... args) {
    check_type();
    auto& self = static_cast<Derived&>(*this);
    try {
      if (!has_hooks()) return self.forward(std::forward<Args>(args)...);
      return hooked(self, std::index_sequence_for<Args...>(), std::forward<Args>(args)...);
    } catch (Error& error) {
      detail::failed_in(*this, error);
      throw;
    }
  }

  /// A module with tensors of its own.
  Derived clone() const {
    check_type();
    Derived result(static_cast<const Derived&>(*this));
    unshare(result);
    return result;
  }

  void visit_fields(detail::FieldVisitor& visitor) override;
  std::unique_ptr<ModuleBase> copy() const override;

 private:
  // Of something derived from Derived only what Derived has would be seen: its own forward would never run.
  void check_type() const { detail::check_declared(*this, typeid(Derived)); }
  static std::string name_of(int64_t i) {
    if constexpr (detail::AnonymousFields<Derived>) return {};
    return tree::Key{.fields = Derived::field_names(), .index = i}.text();
  }

  // Hooks may replace tensors, which the caller's must not become: forward gets copies of what can hold some. All else
  // it gets as the caller gave it, and what it wrote into a copy goes back.
  template <size_t... i, class... Args>
  auto hooked(Derived& self, std::index_sequence<i...>, Args&&... args) {
    std::tuple<Kept<Args>...> inputs(std::forward<Args>(args)...);
    TensorList list = tree::tensors(inputs);
    detail::HookedCall call(*this, list);
    tree::assign_tensors(inputs, list);
    auto run = [&] { return self.forward(std::get<i>(inputs)...); };
    auto give_back = [&] { (this->template give_back<i, Args...>(call, args, std::get<i>(inputs)), ...); };  // NOLINT
    if constexpr (std::is_void_v<decltype(run())>) {
      run();
      give_back();
      TensorList none;
      call.finish(none);
    } else {
      auto result = run();
      give_back();
      TensorList outputs = tree::tensors(result);
      call.finish(outputs);
      tree::assign_tensors(result, outputs);
      return result;
    }
  }

  template <class A>
  using Kept = std::conditional_t<std::is_lvalue_reference_v<A> && !tree::may_hold_tensors<A>(), A, std::decay_t<A>>;
  // Whether forward takes argument i as one that it only reads.
  template <size_t i, class... Args, size_t... k>
  static constexpr bool reads(std::index_sequence<k...>) {
    return requires(Derived& self, Kept<Args>&... kept) {
      self.forward(static_cast<std::conditional_t<k == i, const Kept<Args>&, Kept<Args>&>>(kept)...);
    };
  }
  template <size_t i, class... Args, class A, class T>
  static void give_back(const detail::HookedCall& call, A& argument, T& copy) {
    if constexpr (tree::may_hold_tensors<A>() && std::is_same_v<std::tuple_element_t<i, std::tuple<Args...>>, T&>)
      if constexpr (!reads<i, Args...>(std::index_sequence_for<Args...>())) {
        TensorList left = tree::tensors(copy);
        call.restore(left);
        tree::assign_tensors(copy, left);
        argument = std::move(copy);
      }
  }

  void check_layout();
};

// Not inline: those of the library's own layers are compiled there (src/nn/layers.cpp), and an inline function would
// be compiled by every file all the same.
template <class Derived>
void Module<Derived>::visit_fields(detail::FieldVisitor& visitor) {
  static_assert(tree::HasFields<Derived>, "a module names its members: TUTTI_FIELDS(...), empty if it has none");
  check_type();
  if constexpr (!detail::OtherMembers<Derived>) {
    static const bool checked = (check_layout(), true);
    (void)checked;
  }
  auto& self = static_cast<Derived&>(*this);
  auto fields = self.fields().tuple();
  std::apply(
      [&](auto&... field) {
        [[maybe_unused]] int64_t i = 0;
        (detail::visit_field(visitor, name_of(i++), field), ...);
      },
      fields);
}

template <class Derived>
std::unique_ptr<ModuleBase> Module<Derived>::copy() const {
  check_type();
  return std::make_unique<Derived>(static_cast<const Derived&>(*this));
}

template <class Derived>
void Module<Derived>::check_layout() {
  auto& self = static_cast<Derived&>(*this);
  [&]<class... T>(const tutti::detail::Fields<T...>& fields) {
    const void* const* at = fields.at;
    const detail::FieldPlace places[] = {{*at++, sizeof(T), alignof(T)}..., {}};
    detail::check_layout(typeid(Derived), &self, sizeof(Module), sizeof(Derived), Derived::field_names(),
                         {places, sizeof...(T)});
  }(self.fields());
}

}  // namespace tutti::nn
