// Calls that call, wait, nest and flood.
#include <gtest/gtest.h>

#include <thread>

#include "tests/rpc/support.h"
#include "tests/support/entries.h"

namespace tutti::test::of_handlers {  // functions that are called have names of their own
namespace {

class RpcHandlers : public Rpc {
 protected:
#if defined(TUTTI_SANITIZE_ADDRESS) || defined(TUTTI_SANITIZE_THREAD)
  int64_t many() const { return 2000; }
#else
  /// The handlers are the same however messages come, and between hosts these take a hundred times as long.
  int64_t many() const { return GetParam().name == std::string_view("threads") ? 10000 : 2000; }
#endif
};
INSTANTIATE_TEST_SUITE_P(Ways, RpcHandlers, every_way(), testing::PrintToStringParamName());

size_t threads_here() { return entries("/proc/self/task"); }

int64_t nest(int64_t depth) { return depth == 0 ? 0 : 1 + rpc::sync<&nest>(next_worker(), depth - 1); }
int64_t one() { return 1; }
int64_t call_back() { return rpc::sync<&one>(rpc::caller()) + 1; }
int64_t there_and_back() { return rpc::sync<&call_back>(next_worker()) + 1; }

TEST_P(RpcHandlers, NestToAnyDepth) {
  drive(2, [this] {
    EXPECT_EQ(rpc::sync<&nest>("worker1", many()), many());
    EXPECT_LT(rpc::sync<&threads_here>("worker1"), 400u);
  });
}

// All of them are waiting at the same time, for calls that wait for calls to where they came from.
TEST_P(RpcHandlers, ManyThatWaitForEachOther) {
  drive(2, [this] {
    std::vector<rpc::Future<int64_t>> calls;
    for (int i = 0; i < many(); ++i) calls.push_back(rpc::async<&there_and_back>(i % 2));
    for (auto& call : calls) EXPECT_EQ(call.wait(), 3);
    EXPECT_LT(rpc::sync<&threads_here>("worker1"), 400u);
  });
}

// Calls that wait for others of the same worker: all of a batch, until the last has come.
struct Batch {
  std::mutex mutex;
  int64_t come = 0;
  rpc::Promise<int64_t> full;
  rpc::Future<int64_t> join(int64_t size) {
    rpc::Promise<int64_t> mine;
    int64_t number = 0;
    {
      std::lock_guard lock(mutex);
      mine = full;
      number = ++come;
      if (come == size) come = 0, full = rpc::Promise<int64_t>();
    }
    if (number == size) mine.set(size);
    return mine.future();
  }
};
Batch& batch() {
  static Batch batch;
  return batch;
}
int64_t join_batch(int64_t size) { return batch().join(size).wait(); }
rpc::Future<int64_t> join_batch_as_coroutine(int64_t size) { co_return co_await batch().join(size); }

TEST_P(RpcHandlers, BatchesOfCallsThatWaitForTheLast) {
  drive(2, [this] {
    for (int64_t size : {int64_t{40}, many()}) {
      std::vector<rpc::Future<int64_t>> plain, coroutines;
      for (int64_t i = 0; i < size; ++i) plain.push_back(rpc::async<&join_batch>("worker1", size));
      for (auto& call : plain) EXPECT_EQ(call.wait(), size);
      for (int64_t i = 0; i < size; ++i) coroutines.push_back(rpc::async<&join_batch_as_coroutine>("worker1", size));
      for (auto& call : coroutines) EXPECT_EQ(call.wait(), size);
    }
    EXPECT_LT(rpc::sync<&threads_here>("worker1"), 400u);
  });
}

// ---- What is current inside of a call

std::tuple<int, int, bool, std::string> inside() {
  return {rank(), world_size(), grad_enabled(), rpc::this_worker().name};
}
Tensor sum_of_all() {
  Tensor x = full({2}, static_cast<double>(rank() + 1));
  all_reduce(x);
  return x;
}

TEST_P(RpcHandlers, CallsRunAsTheRankThatIsCalled) {
  drive(3, [] {
    NoGrad guard;
    EXPECT_EQ(rpc::sync<&inside>("worker2"), std::make_tuple(2, 3, true, "worker2"));
    EXPECT_FALSE(grad_enabled());
    EXPECT_EQ(rank(), 0);
  });
}

TEST_P(RpcHandlers, CallsMayUseCollectives) {
  drive(3, [] {
    std::vector<rpc::Future<Tensor>> sums;
    for (int r = 0; r < 3; ++r) sums.push_back(rpc::async<&sum_of_all>(r));
    for (auto& sum : sums) EXPECT_TRUE(sum.wait().equal(full({2}, 6.0)));
  });
}

// ---- Slow workers

std::atomic<int64_t> taken{0};
std::atomic<bool> slow{true};
void take_slowly(const Tensor& x) {
  auto until = std::chrono::steady_clock::now() + 10s;
  while (slow.load() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  taken += x.numel();
}
void be_slow(bool yes) { slow = yes; }

TEST_P(RpcHandlers, WhoCallsTooMuchWaits) {
  drive(2,
        [] {
          rpc::sync<&be_slow>("worker1", true);
          Tensor x = ones({25'000});  // 100 KB, of 1 MB
          std::vector<rpc::Future<>> calls;
          std::string text = text_of_error<TimeoutError>([&] {
            for (int i = 0; i < 100; ++i)
              calls.push_back(rpc::async<&take_slowly>({"worker1", i < 9 ? 30s : 300ms}, x));
          });
          EXPECT_NE(text.find("is slow"), std::string::npos) << text;
          EXPECT_EQ(calls.size(), 9u);
          rpc::sync<&be_slow>("worker1", false);  // which is small
          for (auto& call : calls) call.wait();
          for (int i = 0; i < 100; ++i) rpc::async<&take_slowly>("worker1", x).wait();
          Tensor larger = ones({1'000'000});  // than all that may be on its way
          rpc::sync<&take_slowly>("worker1", larger);
        },
        {.max_bytes = 1'000'000});
}

// ---- The end

TEST_P(RpcHandlers, ShutdownWaitsForAllWork) {
  run(3, [](rpc::Session& session) {
    auto chain = rpc::async<&nest>(next_worker(), 50);
    session.shutdown();
    EXPECT_TRUE(chain.done());
    EXPECT_EQ(chain.wait(), 50);
    EXPECT_THROW(rpc::sync<&one>("worker1"), ValueError);
  });
}

TEST_P(RpcHandlers, SessionsFollowEachOtherAndLeaveNothing) {
  GetParam().spawn(
      2,
      [] {
        size_t threads = 0, files = 0;
        for (int i = 0; i < 8; ++i) {
          {
            rpc::Session session({.name = "w" + std::to_string(rank()) + std::to_string(i)});
            std::vector<rpc::Future<int64_t>> calls;
            for (int k = 0; k < 30; ++k)
              calls.push_back(rpc::async<&call_back>("w" + std::to_string(1 - rank()) + std::to_string(i)));
            rpc::all(calls).wait();
          }
          barrier();
          if (i == 1) threads = threads_here(), files = entries("/proc/self/fd");
          barrier();
        }
        // A session that left one behind would have left six by now; engines come and go with some of their own.
        EXPECT_LT(threads_here(), threads + 3);
        EXPECT_LT(entries("/proc/self/fd"), files + 3);
        barrier();
      },
      {.timeout = 60s});
}

void leaves_at_once(rpc::Session& session) { session.shutdown({.graceful = false}); }

int64_t waits_long() {
  auto until = std::chrono::steady_clock::now() + 10s;
  while (!rpc::cancelled() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  return 1;
}

TEST_P(RpcHandlers, LeavingAtOnceEndsWhatWaits) {
  run(2, [](rpc::Session& session) {
    auto begin = std::chrono::steady_clock::now();
    if (rank() == 0) {
      auto call = rpc::async<&waits_long>("worker1");
      leaves_at_once(session);
      EXPECT_THROW(call.wait(), CancelledError);
    } else {
      // It learns that the other has left.
      std::string text = text_of_error<RankFailure>([] {
        auto until = std::chrono::steady_clock::now() + 10s;
        while (std::chrono::steady_clock::now() < until) rpc::sync<&one>("worker0");
      });
      EXPECT_NE(text.find("'worker0'"), std::string::npos) << text;
      leaves_at_once(session);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 9s);
  });
}

}  // namespace
}  // namespace tutti::test::of_handlers
