// Calls to other workers. A function is named by its template argument: there is no list to keep and no text to
// mistype, and what no program text calls this way cannot be called by any message.
//
//   Tensor y = rpc::sync<&forward>("server", x);                      // waits
//   rpc::Future<Tensor> later = rpc::async<&forward>("server", x);    // does not
//   rpc::sync<&forward>({"server", 5s}, x);                           // with a timeout of its own
//
//   auto net = rpc::remote<Net>("server", 784, 10);                   // an object there: made by Net(784, 10)
//   Tensor y = net.call<&Net::forward>(x);
//   rpc::sync<&train>("trainer", net);                                // references can be passed on
//   Net mine = net.to_here();
//
// Arguments and results are what value.h names. What a function throws is thrown by the call, with worker and line in
// its text: Tutti's errors as their own classes, others as RemoteError. A function may itself call, and wait.
#pragma once

#include <source_location>
#include <typeinfo>

#include "tutti/error.h"
#include "tutti/rpc/future.h"
#include "tutti/rpc/located.h"
#include "tutti/rpc/session.h"
#include "tutti/rpc/value.h"

namespace tutti::rpc {

/// A function that was called elsewhere threw something that is not one of Tutti's errors.
struct RemoteError : Error {
  using Error::Error;
  RemoteError(const std::string& text, std::string operation, std::string type)
      : Error(text, std::move(operation)), type_(std::move(type)) {}
  /// The class of what was thrown, as C++ spells it: "std::out_of_range", "my::Error".
  const std::string& type() const { return type_; }

 private:
  std::string type_;
};

/// Whom to call. Made from a name, a rank in the world or a Worker, and where wanted a timeout; it knows the line of
/// the call.
struct To {
  using Where = std::source_location;
  using Time = std::chrono::nanoseconds;
  To(const char* name, Time timeout = {}, Where where = Where::current())  // NOLINT
      : name(name), timeout(timeout), where(where) {}
  To(std::string_view name, Time timeout = {}, Where where = Where::current())  // NOLINT
      : name(name), timeout(timeout), where(where) {}
  To(const std::string& name, Time timeout = {}, Where where = Where::current())  // NOLINT
      : name(name), timeout(timeout), where(where) {}
  To(int rank, Time timeout = {}, Where where = Where::current())  // NOLINT
      : rank(rank), timeout(timeout), where(where) {}
  To(const Worker& worker, Time timeout = {}, Where where = Where::current())  // NOLINT
      : rank(worker.rank), timeout(timeout), where(where) {}

  std::string_view name = {};
  int rank = -1;
  Time timeout;  // zero: the session's
  Where where;
};

namespace detail {

/// The answer to a call, on its way to being made. Whoever lets go of the last copy unsent fails the call.
class Answer {
 public:
  struct State;
  explicit Answer(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Writer writer() const;
  void send() const;
  void fail(const std::exception_ptr& error) const;
  /// Keeps an object here, for references to lead to.
  void keep(std::shared_ptr<void> object, const std::type_info& type) const;
  /// The object that the reference, the next argument, leads to; waits until it is made.
  std::shared_ptr<void> object(Reader& in, const std::type_info& type) const;

 private:
  std::shared_ptr<State> state_;
};

/// A function that messages can name. Made before main() by mentioning it, see `function`.
struct Function {
  using Run = void (*)(Reader& in, const Answer& answer);
  Function(const char* key, Run run) noexcept;
  const char* const key;
  const Run run;
  const uint64_t id;
  const Function* const next;
};

template <auto F>
struct Key {};

template <class F>
struct Signature;
template <class R, class... P>
struct Signature<R (*)(P...)> {
  using Result = R;
  using Arguments = std::tuple<std::remove_cvref_t<P>...>;
};
template <class R, class... P>
struct Signature<R (*)(P...) noexcept> : Signature<R (*)(P...)> {};
#define TUTTI_RPC_METHOD(qualifiers)      \
  template <class R, class C, class... P> \
  struct Signature<R (C::*)(P...) qualifiers> : Signature<R (*)(P...)> {};
TUTTI_RPC_METHOD()
TUTTI_RPC_METHOD(const)
TUTTI_RPC_METHOD(noexcept)
TUTTI_RPC_METHOD(const noexcept)
#undef TUTTI_RPC_METHOD

template <class T>
struct Unwrapped {
  using Type = std::remove_cvref_t<T>;
};
template <>
struct Unwrapped<void> {
  using Type = void;
};
template <class T>
struct Unwrapped<Future<T>> {
  using Type = T;
};
/// What a call of F gives: without references, and without the future where it returns one.
template <auto F>
using Result = typename Unwrapped<typename Signature<decltype(F)>::Result>::Type;
template <auto F>
using Arguments = typename Signature<decltype(F)>::Arguments;

template <class T>
class CallResult final : public FutureValue<T> {
 public:
  void take(Reader& in) override {
    if constexpr (std::is_void_v<T>)
      this->value.emplace();
    else
      this->value.emplace(read<T>(in));
  }
};

template <class T>
T read_all(Reader& in) {
  T values = read<T>(in);
  in.end();
  return values;
}

/// Runs f(arguments) and gives its result to use(answer, value...), now or, where it is a future, when that is done.
template <class A, class F, class Use>
void answer_by(Reader& in, const Answer& answer, F f, Use use) {
  using R = decltype(std::apply(f, std::declval<A&>()));
  if constexpr (is_future<R>) {
    // Coroutines may have taken them by reference.
    auto arguments = std::make_shared<A>(read_all<A>(in));
    R future = std::apply(f, *arguments);
    future.core()->on_done([answer, use, core = future.core(), arguments] {
      if (core->error()) return answer.fail(core->error());
      try {
        if constexpr (std::is_void_v<typename R::Value>)
          use(answer);
        else
          use(answer, *core->value);
      } catch (...) {
        answer.fail(std::current_exception());
      }
    });
  } else {
    A arguments = read_all<A>(in);
    if constexpr (std::is_void_v<R>)
      std::apply(f, arguments), use(answer);
    else
      use(answer, std::apply(f, arguments));
  }
}
struct Send {
  template <class... T>
  void operator()(const Answer& answer, const T&... value) const {
    [[maybe_unused]] Writer out = answer.writer();
    (write(out, value), ...);
    answer.send();
  }
};
struct Keep {
  template <class T>
  void operator()(const Answer& answer, T&& value) const {
    answer.keep(std::make_shared<std::remove_cvref_t<T>>(std::forward<T>(value)), typeid(std::remove_cvref_t<T>));
    answer.send();
  }
};

// The kinds of functions that messages can name: F; F with its result kept; a method of an object; the making of an
// object; its way here.
template <auto F>
struct Calling {
  static void run(Reader& in, const Answer& answer) { answer_by<Arguments<F>>(in, answer, F, Send()); }
};
template <auto F>
struct Keeping {
  static void run(Reader& in, const Answer& answer) { answer_by<Arguments<F>>(in, answer, F, Keep()); }
};
template <class T, auto M>
struct Method {
  static void run(Reader& in, const Answer& answer) {
    auto object = std::static_pointer_cast<T>(answer.object(in, typeid(T)));
    // The object outlives a coroutine of its own.
    answer_by<Arguments<M>>(
        in, answer, [&](auto&... arguments) -> decltype(auto) { return ((*object).*M)(arguments...); },
        [object](const Answer& to, const auto&... value) { Send()(to, value...); });
  }
};
template <class T, class... A>
struct Making {
  static void run(Reader& in, const Answer& answer) {
    auto arguments = read_all<std::tuple<A...>>(in);
    answer.keep(std::apply([](auto&... a) { return std::make_shared<T>(std::move(a)...); }, arguments), typeid(T));
    answer.send();
  }
};
template <class T>
struct Fetching {
  static void run(Reader& in, const Answer& answer) {
    auto object = std::static_pointer_cast<T>(answer.object(in, typeid(T)));
    in.end();
    Send()(answer, *object);
  }
};

// Keys are the names of types, which compilers agree on. See docs/rpc.md for functions of libraries.
template <class Kind>
inline const Function function{typeid(Kind).name(), &Kind::run};

/// A call that is being made.
class Outgoing {
 public:
  /// `reference`: to the object whose method it is; it goes to that object's owner.
  Outgoing(const To& to, const Function& function);
  Outgoing(const std::shared_ptr<RefHandle>& reference, To::Time timeout, const To::Where& where,
           const Function& function);
  ~Outgoing();
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;
  Writer writer() const;
  /// Off it goes. `waits`: the caller does nothing else until the result is there.
  void start(const std::shared_ptr<FutureCore>& result, bool waits);
  /// The same, where the object that it makes is to stay there.
  std::shared_ptr<RefHandle> start_making(const std::shared_ptr<FutureCore>& result, const std::type_info& type);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

template <class Wanted, class Given>
void write_as(Writer& out, const Given& given) {
  if constexpr (std::same_as<Wanted, Given> || (tree::IsTensor<Wanted> && tree::IsTensor<Given>)) {
    write(out, given);
  } else {
    const Wanted& converted = given;
    write(out, converted);
  }
}
template <class... Wanted, class... Given>
void write_arguments([[maybe_unused]] Writer out, std::type_identity<std::tuple<Wanted...>>, const Given&... given) {
  static_assert(sizeof...(Wanted) == sizeof...(Given), "the function takes another number of arguments");
  (write_as<Wanted>(out, given), ...);
}
template <class A, class R, class... Given>
Future<R> start(Outgoing& call, bool waits, const Given&... given) {
  write_arguments(call.writer(), std::type_identity<A>(), given...);
  auto result = std::make_shared<CallResult<R>>();
  call.start(result, waits);
  return Future<R>(result);
}

/// How an argument of a constructor travels.
template <class T>
using Passed = std::conditional_t<std::convertible_to<T, std::string_view>, std::string, std::decay_t<T>>;

}  // namespace detail

/// Calls a function on another worker, or on this one. Waits for its result.
template <auto F, class... A>
detail::Result<F> sync(const To& to, const A&... arguments) {
  detail::Outgoing call(to, detail::function<detail::Calling<F>>);
  return detail::start<detail::Arguments<F>, detail::Result<F>>(call, true, arguments...).wait();
}
/// The same without waiting.
template <auto F, class... A>
Future<detail::Result<F>> async(const To& to, const A&... arguments) {
  detail::Outgoing call(to, detail::function<detail::Calling<F>>);
  return detail::start<detail::Arguments<F>, detail::Result<F>>(call, false, arguments...);
}
/// Lets others call a function that this program does not call itself: where callers and called are not the same
/// program.
template <auto F>
void expose() {
  (void)detail::function<detail::Calling<F>>.id;
}

/// A reference to an object that lives on some worker. A cheap handle; copies are the same reference. The object lives
/// as long as there are references to it on workers that live.
template <class T>
class RemoteRef {
 public:
  RemoteRef() = default;
  explicit RemoteRef(std::shared_ptr<detail::RefHandle> handle) : handle_(std::move(handle)) {}
  bool defined() const { return handle_ != nullptr; }

  const Worker& owner() const;
  bool is_mine() const;
  /// Until the object is made; rethrows what its making threw, as all calls do.
  void wait(To::Where where = To::Where::current()) const;

  /// Calls a method: ref.call<&Net::forward>(x). The same without waiting: ref.async<&Net::forward>(x), a Future.
  template <auto M>
  detail::Result<M> call(To::Where where = To::Where::current()) const {
    return begin<M>(true, where).wait();
  }
  template <auto M>
  Future<detail::Result<M>> async(To::Where where = To::Where::current()) const {
    return begin<M>(false, where);
  }
#define TUTTI_RPC_OVERLOADS(n)                                                                        \
  template <auto M, TUTTI_RPC_CLASSES(n)>                                                             \
  detail::Result<M> call(TUTTI_RPC_GIVEN(n), To::Where where = To::Where::current()) const {          \
    return begin<M>(true, where, TUTTI_RPC_NAMES(n)).wait();                                          \
  }                                                                                                   \
  template <auto M, TUTTI_RPC_CLASSES(n)>                                                             \
  Future<detail::Result<M>> async(TUTTI_RPC_GIVEN(n), To::Where where = To::Where::current()) const { \
    return begin<M>(false, where, TUTTI_RPC_NAMES(n));                                                \
  }
  TUTTI_RPC_COUNTS(TUTTI_RPC_OVERLOADS)
#undef TUTTI_RPC_OVERLOADS
  // Of more arguments than that. Errors say where the object was made, not where it was called.
  template <auto M, TUTTI_RPC_CLASSES(6), class A7, class... More>
  detail::Result<M> call(TUTTI_RPC_GIVEN(6), const A7& a7, const More&... more) const {
    return begin<M>(true, To::Where(), TUTTI_RPC_NAMES(6), a7, more...).wait();
  }
  template <auto M, TUTTI_RPC_CLASSES(6), class A7, class... More>
  Future<detail::Result<M>> async(TUTTI_RPC_GIVEN(6), const A7& a7, const More&... more) const {
    return begin<M>(false, To::Where(), TUTTI_RPC_NAMES(6), a7, more...);
  }
  /// The same reference, whose calls have this timeout: ref.within(5s).call<&Net::forward>(x)
  RemoteRef within(To::Time timeout) const {
    RemoteRef other = *this;
    other.timeout_ = timeout;
    return other;
  }
  /// A copy of the object.
  T to_here(To::Where where = To::Where::current()) const {
    detail::Outgoing call(handle_, timeout_, where, detail::function<detail::Fetching<T>>);
    return detail::start<std::tuple<>, T>(call, true).wait();
  }
  /// The object itself, where it is this worker's: ValueError elsewhere.
  T& local_value() const;

  const std::shared_ptr<detail::RefHandle>& handle() const { return handle_; }

 private:
  template <auto M, class... A>
  Future<detail::Result<M>> begin(bool waits, const To::Where& where, const A&... arguments) const {
    detail::Outgoing call(handle_, timeout_, where, detail::function<detail::Method<T, M>>);
    return detail::start<detail::Arguments<M>, detail::Result<M>>(call, waits, arguments...);
  }
  std::shared_ptr<detail::RefHandle> handle_;
  To::Time timeout_{};
};

namespace detail {
const Worker& owner_of(const std::shared_ptr<RefHandle>& handle);
bool is_mine(const std::shared_ptr<RefHandle>& handle);
void wait_for_object(const std::shared_ptr<RefHandle>& handle, const To::Where& where);
std::shared_ptr<void> local_object(const std::shared_ptr<RefHandle>& handle, const std::type_info& type);
std::shared_ptr<RefHandle> share_object(std::shared_ptr<void> object, const std::type_info& type,
                                        const To::Where& where);
}  // namespace detail

template <class T>
const Worker& RemoteRef<T>::owner() const {
  return detail::owner_of(handle_);
}
template <class T>
bool RemoteRef<T>::is_mine() const {
  return detail::is_mine(handle_);
}
template <class T>
void RemoteRef<T>::wait(To::Where where) const {
  detail::wait_for_object(handle_, where);
}
template <class T>
T& RemoteRef<T>::local_value() const {
  return *static_cast<T*>(detail::local_object(handle_, typeid(T)).get());
}

/// Makes an object on a worker, and a reference to it: T(arguments...), there. Does not wait.
template <class T, class... A>
RemoteRef<T> remote(const To& to, const A&... arguments) {
  detail::Outgoing call(to, detail::function<detail::Making<T, detail::Passed<A>...>>);
  detail::write_arguments(call.writer(), std::type_identity<std::tuple<detail::Passed<A>...>>(), arguments...);
  return RemoteRef<T>(call.start_making(std::make_shared<detail::CallResult<void>>(), typeid(T)));
}
/// The same from the result of a function that is called there.
template <auto F, class... A>
RemoteRef<detail::Result<F>> remote(const To& to, const A&... arguments) {
  detail::Outgoing call(to, detail::function<detail::Keeping<F>>);
  detail::write_arguments(call.writer(), std::type_identity<detail::Arguments<F>>(), arguments...);
  return RemoteRef<detail::Result<F>>(
      call.start_making(std::make_shared<detail::CallResult<void>>(), typeid(detail::Result<F>)));
}
/// A reference to an object of this worker.
template <class T>
RemoteRef<T> share(std::shared_ptr<T> object, To::Where where = To::Where::current()) {
  return RemoteRef<T>(detail::share_object(std::move(object), typeid(T), where));
}

}  // namespace tutti::rpc
