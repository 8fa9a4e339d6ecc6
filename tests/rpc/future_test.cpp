// Futures, coroutines, timeouts and cancellation.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <thread>

#include "tests/rpc/support.h"

namespace tutti::test::of_future {  // functions that are called have names of their own
namespace {

class RpcFutures : public Rpc {};
INSTANTIATE_TEST_SUITE_P(Ways, RpcFutures, every_way(), testing::PrintToStringParamName());

int64_t twice(int64_t x) { return 2 * x; }
int64_t refuse(int64_t x) {
  if (x >= 0) throw ValueError("refused", "refuse");
  return x;
}

// A door that calls wait at until somebody opens it.
struct Door {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  bool pass(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [&] { return open; });
  }
  void unlock() {
    std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }
};
Door& door() {
  static Door door;
  return door;
}
int64_t wait_at_door(int64_t x) {
  door().pass(20s);
  return x;
}
void open_door() { door().unlock(); }
void close_door() {
  std::lock_guard lock(door().mutex);
  door().open = false;
}

TEST_P(RpcFutures, ThenAllAny) {
  drive(2, [] {
    auto four = rpc::async<&twice>("worker1", 2);
    EXPECT_EQ(four.then([](int64_t x) { return x + 0.5; }).wait(), 4.5);
    EXPECT_EQ(four.then([](int64_t x) { return rpc::async<&twice>("worker1", x); }).wait(), 8);
    std::atomic<int> seen = 0;
    four.then([&](int64_t x) { seen = static_cast<int>(x); }).then([&] { ++seen; }).wait();
    EXPECT_EQ(seen, 5);
    EXPECT_EQ(rpc::all(four, rpc::async<&twice>("worker0", 5)).wait(), std::make_tuple(4, 10));
    std::vector<rpc::Future<int64_t>> many;
    for (int i = 0; i < 20; ++i) many.push_back(rpc::async<&twice>("worker1", i));
    auto values = rpc::all(many).wait();
    for (size_t i = 0; i < 20; ++i) EXPECT_EQ(values[i], static_cast<int64_t>(2 * i));
    EXPECT_TRUE(rpc::all(std::vector<rpc::Future<int64_t>>{}).wait().empty());
    size_t first = rpc::any(many).wait();
    EXPECT_LT(first, 20u);
    EXPECT_THROW(rpc::any(std::vector<rpc::Future<>>{}), ValueError);
    rpc::Promise<std::string> never;  // of another type
    EXPECT_EQ(rpc::any(never.future(), four).wait(), 1u);
    EXPECT_EQ(rpc::any(four, never.future()).wait(), 0u);
    // Errors go along, and what follows them is not run.
    auto wrong = rpc::async<&refuse>("worker1", 1);
    bool run = false;
    auto after = wrong.then([&](int64_t x) { return run = x > 0; });
    EXPECT_THROW(after.wait(), ValueError);
    EXPECT_FALSE(run);
    many.push_back(wrong);
    EXPECT_THROW(rpc::all(many).wait(), ValueError);
    EXPECT_THROW(four.then([](int64_t) -> int { throw IndexError("here"); }).wait(), IndexError);
  });
}

TEST_P(RpcFutures, ContinuationsSeeTheContextOfWhoSaidSo) {
  drive(2, [] {
    NoGrad guard;
    auto grad = rpc::async<&twice>("worker1", 2).then([](int64_t) { return grad_enabled() ? -1 : rank(); });
    EXPECT_EQ(grad.wait(), 0);
  });
}

rpc::Future<int64_t> sum_of(std::vector<int64_t> numbers) {
  int64_t sum = 0;
  for (int64_t n : numbers) sum += co_await rpc::async<&twice>(next_worker(), n);
  co_return sum;
}
rpc::Future<> checks_and_fails(const std::string& text) {  // by reference, over a suspension
  co_await rpc::async<&twice>(next_worker(), 1);
  co_await rpc::async<&refuse>(next_worker(), text == std::string(100, 'x') ? 1 : -1);
}
rpc::Future<int64_t> countdown(int64_t n) {
  if (n == 0) co_return 0;
  co_return 1 + co_await rpc::async<&countdown>(next_worker(), n - 1);
}

TEST_P(RpcFutures, Coroutines) {
  drive(2, [] {
    EXPECT_EQ(rpc::sync<&sum_of>("worker1", std::vector<int64_t>{1, 2, 3}), 12);
    EXPECT_EQ(sum_of({5}).wait(), 10);  // here
    std::string text =
        text_of_error<ValueError>([] { rpc::sync<&checks_and_fails>("worker1", std::string(100, 'x')); });
    EXPECT_NE(text.find("refused"), std::string::npos);
    rpc::sync<&checks_and_fails>("worker1", "y");
    EXPECT_EQ(rpc::sync<&countdown>("worker1", 500), 500);
  });
}

TEST_P(RpcFutures, TimeoutsNameWorkerFunctionAndLine) {
  drive(2, [] {
    rpc::sync<&close_door>("worker1");
    auto begin = std::chrono::steady_clock::now();
    std::string text = text_of_error<TimeoutError>([] { rpc::sync<&wait_at_door>({"worker1", 50ms}, 1); });
    EXPECT_NE(text.find("'worker1'"), std::string::npos) << text;
    EXPECT_NE(text.find("wait_at_door"), std::string::npos) << text;
    EXPECT_NE(text.find("future_test.cpp"), std::string::npos) << text;
    // Also where nobody waits.
    auto late = rpc::async<&wait_at_door>({"worker1", 50ms}, 1);
    std::promise<std::exception_ptr> seen;
    late.core()->on_done([&] { seen.set_value(late.exception()); });
    EXPECT_TRUE(seen.get_future().get() != nullptr);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
    rpc::Future<int64_t> slow = rpc::async<&wait_at_door>("worker1", 3);
    EXPECT_FALSE(slow.wait_for(20ms));
    EXPECT_FALSE(slow.done());
    rpc::sync<&open_door>("worker1");
    EXPECT_EQ(slow.wait(), 3);
  });
}

std::atomic<bool> begun{false};
bool has_begun(bool reset) {
  if (reset) begun = false;
  auto until = std::chrono::steady_clock::now() + 20s;
  while (!reset && !begun && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  return begun;
}
bool wait_until_cancelled() {
  begun = true;
  auto until = std::chrono::steady_clock::now() + 20s;
  while (!rpc::cancelled() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  bool cancelled = rpc::cancelled();
  if (cancelled) door().unlock();
  return cancelled;
}

TEST_P(RpcFutures, Cancel) {
  drive(2, [] {
    rpc::sync<&close_door>("worker1");
    rpc::sync<&has_begun>("worker1", true);
    auto call = rpc::async<&wait_until_cancelled>("worker1");
    auto opens = rpc::async<&wait_at_door>("worker1", 1);
    EXPECT_TRUE(rpc::sync<&has_begun>("worker1", false));
    EXPECT_TRUE(call.cancel());
    EXPECT_FALSE(call.cancel());
    std::string text = text_of_error<CancelledError>([&] { call.wait(); });
    EXPECT_NE(text.find("wait_until_cancelled"), std::string::npos) << text;
    EXPECT_NE(text.find("'worker1'"), std::string::npos) << text;
    EXPECT_NE(text.find("future_test.cpp"), std::string::npos) << text;
    EXPECT_EQ(opens.wait(), 1);  // the cancelled call has noticed, and opened
    EXPECT_FALSE(rpc::cancelled());
    auto done = rpc::async<&twice>("worker1", 1);
    done.wait();
    EXPECT_FALSE(done.cancel());
  });
}

// A coroutine is the same call after it has waited, on whatever thread it goes on.
rpc::Promise<int64_t>& pause() {
  static rpc::Promise<int64_t> promise;
  return promise;
}
rpc::Future<std::pair<std::string, bool>> callers_after_a_wait() {
  co_await rpc::async<&twice>(rpc::caller(), 1);
  bool cancelled = rpc::cancelled();
  co_return std::pair(rpc::caller().name, cancelled);
}
std::atomic<int> was_cancelled{-1};
void begin_pause() {  // processes are forked from where threads had theirs
  pause() = rpc::Promise<int64_t>();
  was_cancelled = -1;
}
void end_pause() { pause().set(1); }
rpc::Future<> look_after_a_pause() {
  begun = true;
  co_await pause().future();
  was_cancelled = rpc::cancelled();
}
bool found_cancelled() {
  auto until = std::chrono::steady_clock::now() + 20s;
  while (was_cancelled < 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  return was_cancelled == 1;
}

TEST_P(RpcFutures, CoroutinesKnowTheirCallerAndThatTheyAreCancelled) {
  drive(3, [] {
    std::pair<std::string, bool> found = rpc::sync<&callers_after_a_wait>("worker1");
    EXPECT_EQ(found.first, "worker0");
    EXPECT_FALSE(found.second);
    rpc::sync<&has_begun>("worker2", true);
    rpc::sync<&begin_pause>("worker2");
    auto call = rpc::async<&look_after_a_pause>("worker2");
    EXPECT_TRUE(rpc::sync<&has_begun>("worker2", false));
    EXPECT_TRUE(call.cancel());
    rpc::sync<&end_pause>("worker2");
    EXPECT_TRUE(rpc::sync<&found_cancelled>("worker2"));
    // What follows a future of this worker's own is no part of any call.
    auto no_call = rpc::async<&twice>("worker1", 2).then([](int64_t) { return rpc::caller().name; });
    EXPECT_THROW(no_call.wait(), ValueError);
  });
}

TEST(RpcPromise, SettlesOnceFromAnyThread) {
  rpc::Promise<int> promise;
  auto doubled = promise.future().then([](int x) { return 2 * x; });
  std::thread other([&] {
    promise.set(4);
    promise.set(5);
    promise.fail(std::make_exception_ptr(ValueError("late")));
  });
  EXPECT_EQ(doubled.wait(), 8);
  other.join();
  EXPECT_EQ(promise.future().wait(), 4);
  rpc::Promise<void> never;
  EXPECT_FALSE(never.future().wait_for(1ms));
  never.set();
  never.future().wait();
}

std::atomic<int> left_behind{-1};
int64_t later(int64_t x) {
  std::this_thread::sleep_for(30ms);
  return x;
}
int64_t leave_work_behind() {
  left_behind = -1;
  (void)rpc::async<&later>(0, 1).then([](int64_t) { left_behind = rpc::cancelled(); });
  return 7;
}
int what_was_left() { return left_behind; }

// A call that was answered was not cancelled.
TEST_P(RpcFutures, WhatAHandlerLeavesBehindGoesOn) {
  drive(2, [] {
    EXPECT_EQ(rpc::sync<&leave_work_behind>(1), 7);
    int seen = -1;
    for (int i = 0; i < 1000 && (seen = rpc::sync<&what_was_left>(1)) < 0; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(seen, 0);
  });
}

// A future that nobody can settle any more ends, and does not keep who waits.
TEST(RpcPromise, TheLastThatGoesEndsTheFuture) {
  rpc::Future<int> future, after;
  {
    rpc::Promise<int> promise;
    rpc::Promise<int> copy = promise;
    future = copy.future();
    after = future.then([](int x) { return x; });
  }
  EXPECT_TRUE(future.done());
  std::string text = text_of_error<CancelledError>([&] { future.wait(); });
  EXPECT_NE(text.find("rpc::Promise"), std::string::npos) << text;
  EXPECT_THROW(after.wait(), CancelledError);
  {
    rpc::Promise<int> kept;
    future = kept.future();
    kept.set(3);
  }
  EXPECT_EQ(future.wait(), 3);
}

TEST(RpcPromise, AFutureThatIsNoneSaysSo) {
  rpc::Future<int> none;
  EXPECT_FALSE(none.defined());
  EXPECT_THROW(none.wait(), ValueError);
  EXPECT_THROW((void)none.wait_for(1ms), ValueError);
  EXPECT_THROW((void)none.done(), ValueError);
  EXPECT_THROW((void)none.cancel(), ValueError);
  EXPECT_THROW((void)none.exception(), ValueError);
  EXPECT_THROW((void)none.then([](int) {}), ValueError);
  EXPECT_THROW((void)rpc::all(std::vector<rpc::Future<int>>{none}), ValueError);
  EXPECT_THROW((void)rpc::any(none), ValueError);
}

}  // namespace
}  // namespace tutti::test::of_future
