// Modules that live on other workers.
//
//   rpc::RemoteModule<nn::Linear> layer("worker1/cuda:0", 256, 64);    // nn::Linear(256, 64), made there
//   dist_autograd::Context context;
//   Tensor y = layer(x);                                               // or layer.async(x), which does not wait
//   dist_autograd::backward(context, {loss(y)});
//   dist_autograd::DistributedOptimizer<optim::SGD> sgd(layer.remote_parameters(), {.lr = 0.1});
//   sgd.step(context);
//   nn::Linear copy = layer.to_here();
#pragma once

#include <functional>
#include <optional>

#include "tutti/nn/module.h"
#include "tutti/rpc/call.h"

namespace tutti::rpc {

namespace detail {

/// "worker1/cuda:0" or "worker1", taken apart; it knows the line that says so. ValueError says what is wrong.
struct ModulePlace {
  ModulePlace(std::string_view text, To::Where where = To::Where::current());  // NOLINT
  ModulePlace(const char* text, To::Where where = To::Where::current())        // NOLINT
      : ModulePlace(std::string_view(text), where) {}
  ModulePlace(const std::string& text, To::Where where = To::Where::current())  // NOLINT
      : ModulePlace(std::string_view(text), where) {}
  std::string worker, device;
  To::Where where;
};

/// A module where it lives, whatever its type is.
class HostedBase {
 public:
  virtual ~HostedBase() = default;
  nn::StateDict state_dict();
  void load_state_dict(const nn::StateDict& state);
  std::vector<RemoteRef<Tensor>> parameters();
  void train(bool on);

 protected:
  explicit HostedBase(const std::string& device);
  virtual nn::ModuleBase& base() = 0;
  void settle();
  /// Tensors on their way in, to where the module is; and where those on their way out are to go.
  std::optional<Device> enter(TensorList& tensors) const;
  static void leave(TensorList& tensors, Device device);

 private:
  std::optional<Device> device_;
};

template <class M>
class Hosted final : public HostedBase {
 public:
  template <class... A>
  explicit Hosted(const std::string& device, A&&... arguments)
      : HostedBase(device), module_(std::forward<A>(arguments)...) {
    settle();
  }
  template <class... A>
  auto forward(const A&... given) {
    std::tuple<A...> arguments(given...);
    TensorList tensors = tree::tensors(arguments);
    std::optional<Device> back = enter(tensors);
    if (back) tree::assign_tensors(arguments, tensors);
    auto result = std::apply([this](A&... a) { return module_(a...); }, arguments);
    if (back) {
      TensorList results = tree::tensors(result);
      leave(results, *back);
      tree::assign_tensors(result, results);
    }
    return result;
  }

 private:
  nn::ModuleBase& base() override { return module_; }
  M module_;
};

template <class T>
using PassedToModule = std::conditional_t<tree::IsTensor<T>, Tensor, Passed<T>>;
template <class M, class... A>
auto forward_hosted(const RemoteRef<Hosted<M>>& module, const A&... arguments) {
  return module.local_value().forward(arguments...);
}

/// Runs f, which draws no numbers from the calling thread's generator.
void without_drawing(const std::function<void()>& f);
[[noreturn]] void cannot_make_here(const std::type_info& type);

}  // namespace detail

/// A handle on a module that lives on a worker: see the top of this file. Copies are the same module, which lives as
/// long as one of them does; they can be passed to other workers.
template <class M>
class RemoteModule {
 public:
  RemoteModule() = default;
  /// M(arguments...), made on a worker, and put on the device where one is named. Does not wait.
  template <class... A>
  explicit RemoteModule(const detail::ModulePlace& place, const A&... arguments) {
    module_ = remote<detail::Hosted<M>>(To(place.worker, {}, place.where), place.device, arguments...);
    make_ = [... a = detail::Passed<A>(arguments)] { return M(a...); };
  }
  bool defined() const { return module_.defined(); }
  const Worker& owner() const { return module_.owner(); }

  /// Runs the module there: module(x...). Arguments are moved to its device, and results to where the arguments were.
  /// The same without waiting: module.async(x...), a Future.
  auto operator()(To::Where where = To::Where::current()) const { return start(true, where).wait(); }
  auto async(To::Where where = To::Where::current()) const { return start(false, where); }
#define TUTTI_RPC_OVERLOADS(n)                                                        \
  template <TUTTI_RPC_CLASSES(n)>                                                     \
  auto operator()(TUTTI_RPC_GIVEN(n), To::Where where = To::Where::current()) const { \
    return start(true, where, TUTTI_RPC_NAMES(n)).wait();                             \
  }                                                                                   \
  template <TUTTI_RPC_CLASSES(n)>                                                     \
  auto async(TUTTI_RPC_GIVEN(n), To::Where where = To::Where::current()) const {      \
    return start(false, where, TUTTI_RPC_NAMES(n));                                   \
  }
  TUTTI_RPC_COUNTS(TUTTI_RPC_OVERLOADS)
#undef TUTTI_RPC_OVERLOADS
  // Of more arguments than that. Errors say where the object was made, not where it was called.
  template <TUTTI_RPC_CLASSES(6), class A7, class... More>
  auto operator()(TUTTI_RPC_GIVEN(6), const A7& a7, const More&... more) const {
    return start(true, To::Where(), TUTTI_RPC_NAMES(6), a7, more...).wait();
  }
  template <TUTTI_RPC_CLASSES(6), class A7, class... More>
  auto async(TUTTI_RPC_GIVEN(6), const A7& a7, const More&... more) const {
    return start(false, To::Where(), TUTTI_RPC_NAMES(6), a7, more...);
  }

  std::vector<RemoteRef<Tensor>> remote_parameters(To::Where where = To::Where::current()) const {
    return module_.template call<&detail::HostedBase::parameters>(where);
  }
  /// Copies of its tensors.
  nn::StateDict state_dict(To::Where where = To::Where::current()) const {
    return module_.template call<&detail::HostedBase::state_dict>(where);
  }
  void load_state_dict(const nn::StateDict& state, To::Where where = To::Where::current()) const {
    module_.template call<&detail::HostedBase::load_state_dict>(state, where);
  }
  void train(bool on = true, To::Where where = To::Where::current()) const {
    module_.template call<&detail::HostedBase::train>(on, where);
  }
  void eval(To::Where where = To::Where::current()) const { train(false, where); }

  /// A module of this worker's own, with the same values. Where the handle came from another worker, that knows how the
  /// module was made: say it again, to_here(arguments...).
  template <class... A>
  M to_here(const A&... arguments) const {
    std::optional<M> copy;
    detail::without_drawing([&] {
      if constexpr (sizeof...(A) > 0)
        copy.emplace(arguments...);
      else if (make_)
        copy.emplace(make_());
      else
        detail::cannot_make_here(typeid(M));
    });
    copy->load_state_dict(state_dict());
    return *std::move(copy);
  }

  TUTTI_FIELDS(module_)

 private:
  template <class... A>
  auto start(bool waits, const To::Where& where, const A&... arguments) const {
    constexpr auto f = &detail::forward_hosted<M, detail::PassedToModule<A>...>;
    detail::Outgoing call(To(owner(), {}, where), detail::function<detail::Calling<f>>);
    return detail::start<detail::Arguments<f>, detail::Result<f>>(call, waits, module_, arguments...);
  }
  RemoteRef<detail::Hosted<M>> module_;
  std::function<M()> make_;
};

}  // namespace tutti::rpc
