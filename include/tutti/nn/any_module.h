// AnyModule holds a module of any type, for lists of different modules and for code that is not a template.
#pragma once

#include <any>
#include <span>

#include "tutti/nn/module.h"

namespace tutti::nn {

namespace detail {

/// One argument on its way to a module whose type is not known here. Numbers travel as int64 or double; an int64 is
/// taken where a double is wanted, as it would be in a call.
struct Argument {
  const void* value;
  const std::type_info* type;
};

/// The last `wanted.size() - needed` arguments have defaults and may be left out.
void check_arguments(const ModuleBase& module, std::span<const std::type_info* const> wanted, size_t needed,
                     std::span<const Argument> given);
[[noreturn]] void wrong_result(const ModuleBase& module, const std::type_info& is, const std::type_info& wanted);
[[noreturn]] void wrong_module(const ModuleBase* module, const std::type_info& wanted);

template <class T>
using Passed = std::conditional_t<tree::IsTensor<T>, Tensor,
                                  std::conditional_t<std::is_integral_v<T> && !std::same_as<T, bool>, int64_t,
                                                     std::conditional_t<std::is_floating_point_v<T>, double, T>>>;

class Holder {
 public:
  virtual ~Holder() = default;
  virtual ModuleBase& module() = 0;
  virtual std::unique_ptr<Holder> copy() const = 0;
  virtual std::any invoke(std::span<const Argument> arguments) = 0;
};

/// A module that runs another with whatever arguments it is given names that one's type, `using Wrapped = M;`: what it
/// takes is what the other's forward does.
template <class M>
struct Innermost {
  using type = M;
};
template <class M>
  requires requires { typename M::Wrapped; }
struct Innermost<M> : Innermost<typename M::Wrapped> {};

template <class M>
class HolderOf final : public Holder {
 public:
  explicit HolderOf(M module) : module_(std::move(module)) {}
  ModuleBase& module() override { return module_; }
  std::unique_ptr<Holder> copy() const override { return std::make_unique<HolderOf>(module_); }
  std::any invoke(std::span<const Argument> arguments) override {
    if constexpr (requires { &Inner::forward; })
      return invoke_as(&Inner::forward, arguments);
    else  // forward is overloaded or a template
      return invoke_as(static_cast<Tensor (*)(const Tensor&)>(nullptr), arguments);
  }

 private:
  using Inner = typename Innermost<M>::type;
  template <class R, class Base, class... A>  // Base: Inner, or what it has forward from
  std::any invoke_as(R (Base::*)(A...), std::span<const Argument> arguments) {
    return invoke_as(static_cast<R (*)(A...)>(nullptr), arguments);
  }
  template <class R, class Base, class... A>
  std::any invoke_as(R (Base::*)(A...) const, std::span<const Argument> arguments) {
    return invoke_as(static_cast<R (*)(A...)>(nullptr), arguments);
  }
  template <class R, class... A>
  std::any invoke_as(R (*)(A...), std::span<const Argument> arguments) {
    using List = std::tuple<std::decay_t<A>...>;
    constexpr size_t needed = fewest<List, sizeof...(A)>();
    const std::type_info* const wanted[] = {&typeid(Passed<std::decay_t<A>>)..., nullptr};
    check_arguments(module_, {wanted, sizeof...(A)}, needed, arguments);
    return invoke_first<R, List, needed>(arguments);
  }
  // How few of its arguments forward can be called with, the rest having defaults.
  template <class List, size_t count>
  static constexpr size_t fewest() {
    if constexpr (count > 0)
      if constexpr (takes<List>(std::make_index_sequence<count - 1>())) return fewest<List, count - 1>();
    return count;
  }
  template <class List, size_t... i>
  static constexpr bool takes(std::index_sequence<i...>) {
    return requires(Inner& m) { m.forward(std::declval<std::tuple_element_t<i, List>&>()...); };
  }
  // Calls with the first `count` arguments, or with more if more are given.
  template <class R, class List, size_t count>
  std::any invoke_first(std::span<const Argument> arguments) {
    if constexpr (count < std::tuple_size_v<List>)
      if (arguments.size() > count) return invoke_first<R, List, count + 1>(arguments);
    return [&]<size_t... i>(std::index_sequence<i...>) -> std::any {
      auto run = [&] { return module_(argument<std::tuple_element_t<i, List>>(arguments[i])...); };
      if constexpr (std::is_void_v<R>) {
        run();
        return {};
      } else {
        return std::any(run());
      }
    }(std::make_index_sequence<count>());
  }
  template <class T>
  static T argument(const Argument& given) {
    if constexpr (std::same_as<Passed<T>, double>)
      if (*given.type == typeid(int64_t)) return static_cast<T>(*static_cast<const int64_t*>(given.value));
    return static_cast<T>(*static_cast<const Passed<T>*>(given.value));
  }
  M module_;
};

}  // namespace detail

class AnyModule {
 public:
  AnyModule() = default;
  template <class M>
    requires std::derived_from<M, ModuleBase>
  AnyModule(M module) : holder_(std::make_unique<detail::HolderOf<M>>(std::move(module))) {}  // NOLINT
  AnyModule(const AnyModule& other) : holder_(other.holder_ ? other.holder_->copy() : nullptr) {}
  AnyModule(AnyModule&&) noexcept = default;
  AnyModule& operator=(const AnyModule& other) {
    if (this != &other) holder_ = other.holder_ ? other.holder_->copy() : nullptr;
    return *this;
  }
  AnyModule& operator=(AnyModule&&) noexcept = default;

  bool defined() const { return holder_ != nullptr; }
  /// Runs the module, which returns a tensor.
  template <class... Args>
  Tensor operator()(const Args&... args) {
    return call<Tensor>(args...);
  }
  /// Runs the module, which returns an R. Argument types must be those of its forward (those at the end that have
  /// defaults may be left out); a ValueError names both.
  template <class R, class... Args>
  R call(const Args&... args) {
    const std::tuple<detail::Passed<Args>...> passed(args...);
    return std::apply(
        [&](const auto&... p) {
          const detail::Argument list[] = {{&p, &typeid(p)}..., {nullptr, nullptr}};
          std::any result = get_holder().invoke({list, sizeof...(Args)});
          if constexpr (!std::is_void_v<R>) {
            if (R* value = std::any_cast<R>(&result)) return std::move(*value);
            detail::wrong_result(module(), result.type(), typeid(R));
          }
        },
        passed);
  }

  ModuleBase& module() const { return get_holder().module(); }
  /// The module itself, which must be an M.
  template <class M>
  M& get() const {
    auto* m = holder_ ? dynamic_cast<M*>(&holder_->module()) : nullptr;
    if (!m) detail::wrong_module(holder_ ? &holder_->module() : nullptr, typeid(M));
    return *m;
  }
  AnyModule clone() const {
    AnyModule result(*this);
    unshare(result.module());
    return result;
  }

 private:
  detail::Holder& get_holder() const {
    if (!holder_) detail::wrong_module(nullptr, typeid(ModuleBase));
    return *holder_;
  }
  std::unique_ptr<detail::Holder> holder_;
};

}  // namespace tutti::nn
