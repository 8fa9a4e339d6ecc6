// Futures: results on their way.
//
//   rpc::Future<Tensor> y = rpc::async<&forward>("server", x);
//   y.wait();                                                  // the tensor, or what went wrong, as its own class
//   y.then([](Tensor y) { return y.sum(); }).wait();
//   rpc::all(futures).wait();                                  // all of their values
//
// A function that returns a Future may be a coroutine: while it waits it holds no thread.
//
//   rpc::Future<Tensor> forward(Tensor x) {
//     Tensor h = co_await rpc::async<&first_half>("a", x);
//     co_return co_await rpc::async<&second_half>("b", h);
//   }
//
// What follows a future (then, co_await) runs on a thread of the rank's session, in the context (context.h) of who said
// so; where the rank has no session, on the thread that has the result.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

namespace tutti::rpc {

class Reader;
template <class T>
class Future;

namespace detail {

class FutureCore;

/// What futures of calls come from.
class FutureOrigin {
 public:
  virtual ~FutureOrigin() = default;
  /// What it is the result of, for people: "f(int) of worker 'a', called at b.cpp:12"; empty once it has ended.
  virtual std::string name_of(const FutureCore& future) const = 0;
  /// It was cancelled; or its time is over, and this is to fail it.
  virtual void cancelled(const FutureCore& future) = 0;
  virtual void expired(FutureCore& future) = 0;
};

/// What all futures have, whatever their values are.
class FutureCore : public std::enable_shared_from_this<FutureCore> {
 public:
  using Clock = std::chrono::steady_clock;
  FutureCore() = default;
  virtual ~FutureCore();
  FutureCore(const FutureCore&) = delete;
  FutureCore& operator=(const FutureCore&) = delete;

  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  /// Whoever may set the result: once, and then finish() or fail().
  bool claim() {
    int expected = kOpen;
    return state_.compare_exchange_strong(expected, kClaimed);
  }
  void finish();
  void fail(std::exception_ptr error);
  /// Claims and fails; false: it was too late.
  bool try_fail(const std::exception_ptr& error) { return claim() && (fail(error), true); }
  const std::exception_ptr& error() const { return error_; }

  /// Calls f when it is done, on whatever thread that is; at once if it is.
  void on_done(std::function<void()> f);
  /// The same by a thread of the current session, in the current context.
  void on_done_elsewhere(std::function<void()> f);
  /// Until it is done, or then: whether it is. A thread that serves calls may serve others meanwhile.
  bool wait_until(Clock::time_point until);
  /// Until it is done, or its time is over; throws what went wrong.
  void wait();
  bool cancel();
  /// Nobody is left who could settle it.
  void abandon();

  /// The result as it came over the wire.
  virtual void take(Reader&) {}

  // Of calls; set before anybody else has the future.
  std::weak_ptr<FutureOrigin> origin;
  uint64_t number = 0;
  Clock::time_point deadline{};

 private:
  static constexpr int kOpen = 0, kClaimed = 1, kDone = 2;
  void settle();
  bool sleep_until(Clock::time_point until);
  std::atomic<int> state_{kOpen};
  std::exception_ptr error_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int sleepers_ = 0;
  std::vector<std::function<void()>> then_;
};

template <class T>
using ValueOf = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

template <class T>
class FutureValue : public FutureCore {
 public:
  using Value = T;
  void set(ValueOf<T> value) {
    if (!claim()) return;
    this->value.emplace(std::move(value));
    finish();
  }
  std::optional<ValueOf<T>> value;
};

template <class T>
inline constexpr bool is_future = false;
template <class T>
inline constexpr bool is_future<Future<T>> = true;

template <class F, class T>
struct ThenResult : std::invoke_result<F, T> {};
template <class F>
struct ThenResult<F, void> : std::invoke_result<F> {};

}  // namespace detail

/// The other end: who has one settles the future. Copies are the same promise. Where the last one goes and nothing was
/// settled, the future ends with CancelledError.
template <class T>
class Promise {
 public:
  Promise() : end_(std::make_shared<End>()) {}
  Future<T> future() const { return Future<T>(end_->core); }
  /// The first of all set and fail counts.
  template <class U = detail::ValueOf<T>>
  void set(U&& value = {}) const {
    end_->core->set(std::forward<U>(value));
  }
  void fail(const std::exception_ptr& error) const { end_->core->try_fail(error); }

 private:
  struct End {
    End() = default;
    ~End() {
      if (!core->done()) core->abandon();
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;
    const std::shared_ptr<detail::FutureValue<T>> core = std::make_shared<detail::FutureValue<T>>();
  };
  std::shared_ptr<End> end_;
};

namespace detail {
[[noreturn]] void undefined_future();
[[noreturn]] void nothing_to_wait_for();
}  // namespace detail

/// A cheap handle; copies are the same future. One that was made by Future() is none: ValueError, whatever is asked of
/// it.
template <class T = void>
class Future {
 public:
  using Value = T;
  Future() = default;
  explicit Future(std::shared_ptr<detail::FutureValue<T>> core) : core_(std::move(core)) {}
  bool defined() const { return core_ != nullptr; }

  /// The value, when it is there; rethrows what went wrong. A call that takes longer than its timeout ends with
  /// TimeoutError.
  T wait() const {
    core()->wait();
    return value();
  }
  /// Gives up waiting (not the call) after this time; says whether it is done.
  bool wait_for(std::chrono::nanoseconds time) const {
    return core()->wait_until(detail::FutureCore::Clock::now() + time);
  }
  bool done() const { return core()->done(); }
  /// What went wrong, once it is done; null: nothing.
  std::exception_ptr exception() const { return done() ? core_->error() : nullptr; }
  /// Ends it with CancelledError; false: it was done. A call that has not begun does not; one that has can look at
  /// rpc::cancelled().
  bool cancel() const { return core()->cancel(); }

  /// The future of f(value), or f() where there is none. If this fails, so does that, and f is not called. What f
  /// returns may be a future itself.
  template <class F>
  auto then(F f) const;

  const std::shared_ptr<detail::FutureValue<T>>& core() const {
    if (!core_) detail::undefined_future();
    return core_;
  }

  // Coroutines.
  struct promise_type;
  bool await_ready() const { return done(); }
  void await_suspend(std::coroutine_handle<> handle) const {
    core_->on_done_elsewhere([handle] { handle.resume(); });
  }
  T await_resume() const {
    core_->wait();  // is done
    return value();
  }

 private:
  T value() const {
    if constexpr (!std::is_void_v<T>) return *core_->value;
  }
  std::shared_ptr<detail::FutureValue<T>> core_;
};

namespace detail {
template <class T>
struct PromiseBase {
  std::shared_ptr<FutureValue<T>> core = std::make_shared<FutureValue<T>>();
  Future<T> get_return_object() { return Future<T>(core); }
  std::suspend_never initial_suspend() noexcept { return {}; }
  std::suspend_never final_suspend() noexcept { return {}; }
  void unhandled_exception() { core->try_fail(std::current_exception()); }
};
}  // namespace detail

template <class T>
struct Future<T>::promise_type : detail::PromiseBase<T> {
  void return_value(T value) { this->core->set(std::move(value)); }
};
template <>
struct Future<void>::promise_type : detail::PromiseBase<void> {
  void return_void() { core->set({}); }
};

namespace detail {
/// Settles `to` by what f(arguments) gives, or throws.
template <class R, class F, class... A>
void settle_by(const std::shared_ptr<FutureValue<R>>& to, F& f, A&... arguments) {
  try {
    if constexpr (std::is_void_v<R>) {
      f(arguments...);
      to->set({});
    } else {
      to->set(f(arguments...));
    }
  } catch (...) {
    to->try_fail(std::current_exception());
  }
}
template <class R>
void forward(const Future<R>& from, const std::shared_ptr<FutureValue<R>>& to) {
  from.core()->on_done([core = from.core(), to] {
    if (core->error())
      to->try_fail(core->error());
    else
      to->set(*core->value);
  });
}
}  // namespace detail

template <class T>
template <class F>
auto Future<T>::then(F f) const {
  using Given = typename detail::ThenResult<F, T>::type;
  auto run = [core = core(), f = std::move(f)](auto&& use) mutable {
    if constexpr (std::is_void_v<T>)
      use(f);
    else
      use(f, *core->value);
  };
  auto later = [this](const auto& to, auto body) {
    core_->on_done_elsewhere([core = core_, to, body = std::move(body)]() mutable {
      if (core->error()) return (void)to->try_fail(core->error());
      body(to);
    });
    return Future<typename std::remove_cvref_t<decltype(*to)>::Value>(to);
  };
  if constexpr (detail::is_future<Given>) {
    using R = typename Given::Value;
    return later(std::make_shared<detail::FutureValue<R>>(), [run](const auto& to) mutable {
      run([&](auto& f, auto&... value) {
        try {
          detail::forward(f(value...), to);
        } catch (...) {
          to->try_fail(std::current_exception());
        }
      });
    });
  } else {
    using R = std::remove_cvref_t<Given>;
    return later(std::make_shared<detail::FutureValue<R>>(), [run](const auto& to) mutable {
      run([&](auto& f, auto&... value) { detail::settle_by<R>(to, f, value...); });
    });
  }
}

/// All values, in the order of the futures; the first error where there is one.
template <class T>
auto all(std::vector<Future<T>> futures) {
  using R = std::conditional_t<std::is_void_v<T>, void, std::vector<detail::ValueOf<T>>>;
  auto result = std::make_shared<detail::FutureValue<R>>();
  auto left = std::make_shared<std::atomic<size_t>>(futures.size() + 1);
  auto shared = std::make_shared<std::vector<Future<T>>>(std::move(futures));
  auto one_less = [result, left, shared] {
    if (left->fetch_sub(1) > 1) return;
    if constexpr (std::is_void_v<T>) {
      result->set({});
    } else {
      if (result->done()) return;
      std::vector<T> values;
      for (const auto& future : *shared) values.push_back(*future.core()->value);
      result->set(std::move(values));
    }
  };
  for (const auto& future : *shared)
    future.core()->on_done([core = future.core(), result, one_less] {
      if (core->error()) return (void)result->try_fail(core->error());
      one_less();
    });
  one_less();
  return Future<R>(result);
}
/// The same of futures of different types: a tuple.
template <class... T>
Future<std::tuple<detail::ValueOf<T>...>> all(const Future<T>&... futures) {
  auto result = std::make_shared<detail::FutureValue<std::tuple<detail::ValueOf<T>...>>>();
  auto left = std::make_shared<std::atomic<size_t>>(sizeof...(T));
  auto watch = [&](const auto& future) {
    future.core()->on_done([core = future.core(), result, left, futures...] {
      if (core->error()) return (void)result->try_fail(core->error());
      if (left->fetch_sub(1) == 1) result->set({*futures.core()->value...});
    });
  };
  (watch(futures), ...);
  return Future<std::tuple<detail::ValueOf<T>...>>(result);
}

/// The index of the first that is done, well or not. ValueError where there is none at all.
template <class T>
Future<size_t> any(const std::vector<Future<T>>& futures) {
  if (futures.empty()) detail::nothing_to_wait_for();
  auto result = std::make_shared<detail::FutureValue<size_t>>();
  for (size_t i = 0; i < futures.size(); ++i) futures[i].core()->on_done([result, i] { result->set(i); });
  return Future<size_t>(result);
}
/// The same of futures of different types, counted from 0.
template <class T, class... More>
Future<size_t> any(const Future<T>& first, const Future<More>&... more) {
  auto result = std::make_shared<detail::FutureValue<size_t>>();
  size_t next = 0;
  auto watch = [&](const auto& future) { future.core()->on_done([result, i = next++] { result->set(i); }); };
  watch(first);
  (watch(more), ...);
  return Future<size_t>(result);
}

}  // namespace tutti::rpc
