// One compiled function that several threads call: for ThreadSanitizer, and for bits.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "tests/support/compare.h"
#include "tutti/tutti.h"

namespace tutti::test {
namespace {

constexpr size_t kThreads = 4;

template <class F>
void on_threads(const F& f) {
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) threads.emplace_back([&f, t] { f(t); });
  for (auto& t : threads) t.join();
}

Tensor argument(uint64_t seed) {
  manual_seed(seed);
  return randn({3, 4}, f64).requires_grad_();
}

/// Calls and backward passes of all threads, none of which waits for another's: a backward pass that is traced puts the
/// forward graph anew while others look at it.
template <class F>
void expect_eagers_bits(const F& f) {
  for (int turn = 0; turn < 6; ++turn) {
    auto compiled = compile(f);
    std::atomic<int> wrong = 0;
    on_threads([&](size_t t) {
      for (uint64_t i = 0; i < 6; ++i) {
        Tensor x = argument(10 * t + i), x2 = x.detach().clone().requires_grad_();
        Tensor written = zeros({3, 4}, f64), written2 = zeros({3, 4}, f64);
        Tensor wanted = f(x, written), got = compiled(x2, written2);
        wanted.sum().backward();
        got.sum().backward();
        if (!identical(got, wanted) || !identical(x2.grad(), x.grad()) || !identical(written2, written)) ++wrong;
      }
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(compiled.stats().traces + compiled.stats().runs, static_cast<int64_t>(kThreads) * 6);
  }
}

TEST(CompiledThreads, FirstBackwardsComeWhileOthersCall) {
  Tensor w = argument(100).detach();
  expect_eagers_bits([w](const Tensor& x, const Tensor&) { return (x * w).tanh() * x; });
}

// Both trace, since neither finds an entry; one of the entries serves both.
TEST(CompiledThreads, CallsThatAreAlikeAreOneGraph) {
  std::latch both(2);
  auto compiled = compile(
      [&](const Tensor& x) {
        both.arrive_and_wait();
        return x.sin() * x;
      },
      {.limit = 1});
  std::atomic<int> wrong = 0;
  auto call = [&](uint64_t seed) {
    Tensor x = argument(seed), got = compiled(x);
    got.sum().backward();
    if (!identical(got, x.sin() * x)) ++wrong;
  };
  std::thread other([&] { call(1); });
  call(2);
  other.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(compiled.stats().traces, 2);
  EXPECT_EQ(compiled.stats().forward_graphs, 1) << compiled.explain();
  call(3);
  EXPECT_EQ(compiled.stats().traces, 2);
}

// Such a function runs itself until its backward graph is there, each call with a run of its own behind its node.
TEST(CompiledThreads, FunctionsThatWriteTheirArguments) {
  Tensor w = argument(100).detach();
  expect_eagers_bits([w](const Tensor& x, Tensor written) {
    written.add_(x.detach());
    return (x * w).exp().t();
  });
}

TEST(CompiledThreads, RanksMayShareAFunction) {
  Tensor w = argument(100).detach();
  auto f = [w](const Tensor& x) { return fn::all_reduce((x * w).sin()) * x; };
  auto compiled = compile(f);
  std::atomic<int> wrong = 0;
  spawn_ranks(3, [&] {
    for (uint64_t i = 0; i < 6; ++i) {
      Tensor x = argument(10 * static_cast<uint64_t>(rank()) + i), x2 = x.detach().clone().requires_grad_();
      Tensor wanted = f(x), got = compiled(x2);
      wanted.sum().backward();
      got.sum().backward();
      if (!identical(got, wanted) || !identical(x2.grad(), x.grad())) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(compiled.stats().traces, 3) << "one of each rank\n" << compiled.explain();
}

}  // namespace
}  // namespace tutti::test
