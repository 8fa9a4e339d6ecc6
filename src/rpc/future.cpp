#include "tutti/rpc/future.h"

#include "base/check.h"
#include "base/names.h"
#include "comm/launch/errors.h"
#include "rpc/agent.h"
#include "tutti/context.h"

namespace tutti::rpc::detail {

namespace {

// As an object of this thread's own, where that keeps its class: see comm::rethrow_copy.
[[noreturn]] void rethrow(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& e) {
    throw RemoteError(e);
  } catch (const Error& e) {
    if (short_name(typeid(e)) != comm::class_of(error)) throw;
    Context mine = context();
    mine.rank = e.rank();  // whose error it stays
    ContextGuard guard(std::move(mine));
    comm::rethrow_copy(error);
  }
}

}  // namespace

FutureCore::~FutureCore() = default;

void FutureCore::settle() {
  std::vector<std::function<void()>> then;
  {
    std::lock_guard lock(mutex_);
    state_.store(kDone, std::memory_order_release);
    then.swap(then_);
    if (sleepers_ > 0) changed_.notify_all();
  }
  for (auto& f : then) f();
}

void FutureCore::finish() { settle(); }

void FutureCore::fail(std::exception_ptr error) {
  error_ = std::move(error);
  settle();
}

void FutureCore::on_done(std::function<void()> f) {
  {
    std::lock_guard lock(mutex_);
    if (!done()) return then_.push_back(std::move(f));
  }
  f();
}

void FutureCore::on_done_elsewhere(std::function<void()> f) {
  auto agent = Agent::find();
  Running call = running() ? *running() : Running();
  on_done([agent = std::weak_ptr(agent), call, context = context(), f = std::move(f)]() mutable {
    auto run = [agent, call, context = std::move(context), f = std::move(f)] {
      ContextGuard guard(context);
      auto alive = agent.lock();  // as long as caller() may ask it
      RunningGuard still(alive && alive.get() == call.agent ? &call : nullptr);
      f();
    };
    auto alive = agent.lock();
    if (!alive || !alive->post(run)) run();
  });
}

bool FutureCore::sleep_until(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  ++sleepers_;
  changed_.wait_until(lock, until, [&] { return done(); });
  --sleepers_;
  return done();
}

bool FutureCore::wait_until(Clock::time_point until) {
  if (done()) return true;
  auto agent = Agent::find();
  return agent ? agent->wait(*this, until) : sleep_until(until);
}

void FutureCore::wait() {
  if (!done()) {
    auto agent = Agent::find();
    auto time = agent ? agent->timeout() : std::chrono::minutes(5);
    bool is_call = deadline != Clock::time_point{};
    if (!wait_until(is_call ? deadline : Clock::now() + time)) {
      auto from = origin.lock();
      if (from) from->expired(*this);
      check<TimeoutError>(from != nullptr || done(), "rpc", "a future was not settled in {:.3g} s",
                          std::chrono::duration<double>(time).count());
      // Whoever has claimed it is about to finish.
      if (!done()) wait_until(Clock::now() + std::chrono::minutes(5));
    }
  }
  if (error_) rethrow(error_);
}

bool FutureCore::cancel() {
  auto from = origin.lock();
  std::string name = from && !done() ? from->name_of(*this) : "";
  std::string text = name.empty() ? "rpc: the future was cancelled" : "rpc: the call was cancelled: " + name;
  if (!try_fail(std::make_exception_ptr(CancelledError(text, "rpc")))) return false;
  if (from) from->cancelled(*this);
  return true;
}

void FutureCore::abandon() {
  try_fail(std::make_exception_ptr(
      CancelledError("rpc: the last rpc::Promise of this future is gone, and neither set() nor fail() was called: "
                     "keep one until then",
                     "rpc")));
}

void undefined_future() {
  tutti::fail<ValueError>("rpc::Future",
                          "this future is undefined: it was made by Future(), not by rpc::async, then() or a Promise");
}
void nothing_to_wait_for() { tutti::fail<ValueError>("rpc", "any() of no futures at all never ends"); }

}  // namespace tutti::rpc::detail
