// Section A: ranks as threads. Every behaviour on every transport that ranks can be run by (see tutti/testing.h),
// except where a row is about threads.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/parity/support.h"
#include "tests/support/entries.h"
#include "tests/support/expect.h"
#include "tests/support/shared.h"
#include "tutti/comm.h"
#include "tutti/testing.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using namespace test;  // NOLINT

struct ParityA : harness::TransportTest<1, 2, 3, 4, 8> {};

double sum_of_ranks() { return world_size() * (world_size() - 1) / 2.0; }
size_t count_threads() { return entries("/proc/self/task"); }

// ---- Two ways of running ranks

struct Config {
  std::string name;
  std::vector<int64_t> sizes;
  Tensor weights;
  TUTTI_FIELDS(name, sizes, weights)
};

void broadcast_object_list() {
  for (int root = 0; root < world_size(); ++root) {
    std::vector<Config> list;
    if (rank() == root)
      for (int i = 0; i < 3; ++i) list.push_back({"config " + std::to_string(i + root), {root, i}, full({i}, root)});
    broadcast_object(list, {.root = root});
    ASSERT_EQ(list.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(list[at(i)].name, "config " + std::to_string(i + root));
      EXPECT_EQ(list[at(i)].sizes, (std::vector<int64_t>{root, i}));
      EXPECT_TRUE(equal(list[at(i)].weights, full({i}, root)));
    }
    io::ValueList mixed;
    if (rank() == root) mixed = {root, "text", 0.5, tensor({1, 2}), io::ValueList{}};
    broadcast_object(mixed, {.root = root});
    ASSERT_EQ(mixed.size(), 5u);
    EXPECT_EQ(mixed[0].as<int64_t>(), root);
    EXPECT_EQ(mixed[3].as<Tensor>().numel(), 2);
  }
}

TEST(ParityAWrapper, SpawnAsAWrapper) {
  for (int n : {1, 4, 16}) {
    std::vector<std::atomic<int>> seen(at(n));
    spawn_ranks(n, [&] {
      EXPECT_EQ(world_size(), n);
      ++seen[at(rank())];
      barrier();
    });
    for (auto& s : seen) EXPECT_EQ(s, 1);
  }
}
TEST(ParityAWrapper, BroadcastObjectList) { harness::run_ranks(4, broadcast_object_list); }

TUTTI_RANK_TEST(ParityA, SpawnAsABaseClass) {
  Tensor ranks = zeros({world_size()}, {i64});
  all_gather(ranks, full({1}, rank()));
  EXPECT_TRUE(equal(ranks, arange(world_size())));
}
TUTTI_RANK_TEST(ParityA, BroadcastObjectList) { broadcast_object_list(); }

// ---- Errors

// Ranks for which `culprit` holds throw between two collectives.
void expect_first_error(const harness::Runner& runner, int n, const std::function<bool(int)>& culprit) {
  SCOPED_TRACE(runner.name + " " + std::to_string(n));
  auto before = count_threads();
  auto started = std::chrono::steady_clock::now();
  Shared<std::atomic<int>> between, followed;
  auto body = [&] {
    try {
      Tensor x = ones({10});
      all_reduce(x);
      ++*between;
      wait_until(between, n);  // who is still in the first one when another throws is a follower too
      if (culprit(rank())) throw ValueError("wrong on " + std::to_string(rank()));
      all_reduce(x);
    } catch (const RankFailure&) {
      ++*followed;
      throw;
    }
  };
  try {
    runner.run(n, body, {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ValueError& e) {
    EXPECT_TRUE(culprit(e.rank())) << e.rank();
    EXPECT_EQ(e.what(), "[rank " + std::to_string(e.rank()) + "] wrong on " + std::to_string(e.rank()));
  }
  int culprits = 0;
  for (int r = 0; r < n; ++r) culprits += culprit(r);
  EXPECT_EQ(*followed, n - culprits);
  EXPECT_LT(std::chrono::steady_clock::now() - started, 60s);  // no time-out
  EXPECT_LE(count_threads(), before + 1);                      // none left behind (the library may keep one)
}
void expect_first_error(const std::vector<int>& sizes, const std::function<bool(int)>& culprit) {
  for (const harness::Runner& runner : harness::every_transport())
    for (int n : sizes) expect_first_error(runner, n, culprit);
}

TEST(ParityAWrapper, CollectiveErrorOnRankZero) {
  expect_first_error({1, 2, 3, 4, 8}, [](int r) { return r == 0; });
}
TEST(ParityAWrapper, CollectiveErrorOnRankNonZero) {
  expect_first_error({2, 3, 4, 8}, [](int r) { return r == 1; });
}
TEST(ParityAWrapper, CollectiveErrorOnRankNonZeroAll) {
  expect_first_error({2, 3, 4, 8}, [](int r) { return r > 0; });
}

// ---- Skipping and assertions: what the harness reports is itself caught and looked at

struct Caught {
  testing::TestPartResultArray results;
  explicit Caught(const std::function<void()>& run) {
    testing::ScopedFakeTestPartResultReporter reporter(&results);
    run();
  }
  int size() const { return results.size(); }
  const testing::TestPartResult& operator[](int i) const { return results.GetTestPartResult(i); }
};

// A fixture's test that skips, run from inside another so that this one can look at the result.
struct Skips : harness::RankTest<4> {
  void body() override {
    if (rank() == 3) GTEST_SKIP() << "from a fixture";
    barrier();
    ADD_FAILURE() << "the last rank never comes to the barrier";
  }
  void run(const harness::Runner& runner) {
    configure(runner, 4);
    TestBody();
  }
};

TEST(ParityAWrapper, SkipInAFixture) {
  for (const harness::Runner& runner : harness::every_transport()) {
    Caught caught([&] { Skips().run(runner); });
    ASSERT_EQ(caught.size(), 1) << runner.name;
    EXPECT_TRUE(caught[0].skipped());
    EXPECT_THAT(caught[0].message(), HasSubstr("[rank 3 of 4] from a fixture"));
  }
}

TEST(ParityAWrapper, Skip) {
  std::atomic<int> ended = 0;
  Caught all([&] {
    harness::run_ranks(4, [&] {
      ++ended;
      GTEST_SKIP() << "everyone";
    });
  });
  ASSERT_EQ(all.size(), 1);
  EXPECT_TRUE(all[0].skipped());
  EXPECT_THAT(all[0].message(), HasSubstr("[rank 0 of 4] everyone"));
  EXPECT_EQ(ended, 4);

  Caught one([&] {
    harness::run_ranks(4, [&] {
      if (rank() == 2) GTEST_SKIP() << "not here";
      for (int i = 0; i < 3; ++i) barrier();  // must not wait for the one that skipped
      ADD_FAILURE();
    });
  });
  ASSERT_EQ(one.size(), 1);
  EXPECT_TRUE(one[0].skipped());
  EXPECT_THAT(one[0].message(), HasSubstr("[rank 2 of 4] not here"));

  Caught both([&] {  // a failure is not hidden by a skip
    harness::run_ranks(2, [&] {
      EXPECT_EQ(rank(), 0) << "real";
      if (rank() == 0) GTEST_SKIP();
    });
  });
  ASSERT_EQ(both.size(), 1);
  EXPECT_TRUE(both[0].nonfatally_failed());
}

TUTTI_RANK_TEST(ParityA, AssertEqualOnRank) {
  Tensor x = full({2}, rank());
  int last = world_size() - 1;
  ON_RANK(0) EXPECT_EQ(x[0].item<int>(), 0);
  ON_RANK(last) EXPECT_EQ(x[1].item<int>(), last);
  ON_RANK(world_size()) ADD_FAILURE() << "there is no such rank";
  barrier();
}

TEST(ParityAWrapper, AssertEqualOnRank) {
  Caught caught([] {
    harness::run_ranks(4, [] {
      ON_RANK(3) EXPECT_EQ(rank(), 0) << "on purpose";
      ON_RANK(1) EXPECT_EQ(rank(), 1);
      barrier();
    });
  });
  ASSERT_EQ(caught.size(), 1);
  EXPECT_TRUE(caught[0].nonfatally_failed());
  EXPECT_THAT(caught[0].message(), testing::AllOf(HasSubstr("[rank 3 of 4]"), HasSubstr("on purpose")));
  EXPECT_THAT(caught[0].file_name(), HasSubstr("threads_test.cpp"));
  EXPECT_GT(caught[0].line_number(), 0);

  Caught fatal([] {
    harness::run_ranks(4, [] {
      ASSERT_NE(rank(), 2);
      barrier();  // ends at once for the others, without a failure of their own
    });
  });
  ASSERT_EQ(fatal.size(), 1);
  EXPECT_TRUE(fatal[0].fatally_failed());
  EXPECT_THAT(fatal[0].message(), HasSubstr("[rank 2 of 4]"));

  EXPECT_EQ(message_of<IndexError>([] {
              Caught thrown([] {
                harness::run_ranks(3, [] {
                  if (rank() == 1) throw IndexError("real");
                  barrier();
                });
              });
            }),
            "[rank 1] real");
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TUTTI_TEST_CANNOT_FORK
#endif
#endif
#ifndef TUTTI_TEST_CANNOT_FORK
// What ranks that share no memory with the test assert comes back all the same.
TEST(ParityAWrapper, AssertionsOfOtherProcesses) {
  harness::Runner forked{"forked",
                         [](int n, const std::function<void()>& body, const SpawnOptions& o) {
                           pid_t child = fork();
                           if (child == 0) {
                             bool threw = false;
                             try {
                               spawn_ranks(n, body, o);
                             } catch (...) {
                               threw = true;
                             }
                             _exit(threw);
                           }
                           int status = 0;
                           waitpid(child, &status, 0);
                           if (status != 0)
                             throw RankFailure(std::string("rank 0 failed: ") + harness::detail::kStopped);
                         },
                         false};
  Caught caught([&] {
    harness::run_ranks(
        3,
        [] {
          EXPECT_EQ(rank(), 0) << "line one\nline two 3 4";
          barrier();
          ON_RANK(2) FAIL() << "the end";
        },
        {}, forked);
  });
  ASSERT_EQ(caught.size(), 3);
  EXPECT_THAT(caught[0].message(), testing::AllOf(HasSubstr("[rank 1 of 3]"), HasSubstr("line two 3 4")));
  EXPECT_THAT(caught[2].message(), HasSubstr("[rank 2 of 3] Failed\nthe end"));
  EXPECT_TRUE(caught[2].fatally_failed());
}
#endif

// ---- Values

TUTTI_RANK_TEST(ParityA, Allgather) {
  int n = world_size();
  TensorList outputs;
  for (int k = 0; k < n; ++k) outputs.push_back(zeros({3, 3}));
  all_gather(outputs, full({3, 3}, rank(), {f32}));
  for (int k = 0; k < n; ++k) EXPECT_TRUE(equal(outputs[at(k)], full({3, 3}, k, {f32})));
  Tensor one = zeros({3 * n, 3});
  all_gather(one, full({3, 3}, rank(), {f32}));
  EXPECT_TRUE(equal(one, cat(outputs)));
}

TUTTI_RANK_TEST(ParityA, Broadcast) {
  for (int root = 0; root < world_size(); ++root)
    for (int64_t size : {0, 1, 7, 10'001}) {
      Tensor x = full({size, 2}, rank(), {f32});
      broadcast(x, {.root = root});
      EXPECT_TRUE(equal(x, full({size, 2}, root, {f32})));
    }
}

TUTTI_RANK_TEST(ParityA, Scatter) {
  for (int root = 0; root < world_size(); ++root) {
    TensorList parts;
    if (rank() == root)
      for (int k = 0; k < world_size(); ++k) parts.push_back(full({3, 3}, 10 * root + k, {f32}));
    Tensor x = zeros({3, 3});
    scatter(x, parts, {.root = root});
    EXPECT_TRUE(equal(x, full({3, 3}, 10 * root + rank(), {f32})));
  }
}

TUTTI_RANK_TEST(ParityA, Gather) {
  for (int root = 0; root < world_size(); ++root) {
    TensorList all;
    if (rank() == root)
      for (int k = 0; k < world_size(); ++k) all.push_back(zeros({3, 3}));
    gather(all, full({3, 3}, rank(), {f32}), {.root = root});
    for (size_t k = 0; k < all.size(); ++k) EXPECT_TRUE(equal(all[k], full({3, 3}, k, {f32})));
  }
}

TUTTI_RANK_TEST(ParityA, ReduceScatter) {
  int n = world_size();
  TensorList inputs;
  for (int k = 0; k < n; ++k) inputs.push_back(full({3, 3}, rank() + k, {f32}));
  Tensor x = zeros({3, 3}), y = zeros({3, 3});
  reduce_scatter(x, inputs);
  EXPECT_TRUE(equal(x, full({3, 3}, sum_of_ranks() + n * rank(), {f32})));
  reduce_scatter(y, cat(inputs));
  EXPECT_TRUE(equal(x, y));
}

TUTTI_RANK_TEST(ParityA, AllReduce) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i8, DType::u8, DType::i16, DType::i32,
                      DType::i64, DType::c64, DType::c128})
    for (int64_t size : {0, 1, 5, 4097}) {
      Tensor x = full({size}, rank(), {.dtype = dtype});
      all_reduce(x);
      EXPECT_TRUE(equal(x, full({size}, sum_of_ranks(), {.dtype = dtype}))) << describe(x);
    }
}

TUTTI_RANK_TEST(ParityA, AllReduceOps) {
  int n = world_size(), r = rank();
  auto reduced = [](double mine, ReduceOptions o, DType dtype) {
    Tensor x = full({3, 3}, mine, {.dtype = dtype});
    all_reduce(x, o);
    EXPECT_TRUE(equal(x, full({3, 3}, x[0][0].item<double>(), {.dtype = dtype})));
    return x[0][0].item<double>();
  };
  double product = 1, weights = 0, weighted = 0;
  int bits_and = -1, bits_or = 0, bits_xor = 0;
  for (int k = 0; k < n; ++k) {
    product *= k + 1;
    weights += k + 1, weighted += (k + 1.0) * k;
    bits_and &= k + 1, bits_or |= k + 1, bits_xor ^= k + 1;
  }
  for (DType dtype : {DType::f32, DType::f64, DType::i32, DType::i64}) {
    EXPECT_EQ(reduced(r, {.op = Reduce::sum}, dtype), sum_of_ranks());
    EXPECT_EQ(reduced(r + 1, {.op = Reduce::product}, dtype), product);
    EXPECT_EQ(reduced(r + 3, {.op = Reduce::min}, dtype), 3);
    EXPECT_EQ(reduced(r + 3, {.op = Reduce::max}, dtype), n + 2);
  }
  for (DType dtype : {DType::i8, DType::u8, DType::i16, DType::i32, DType::i64}) {
    EXPECT_EQ(reduced(r + 1, {.op = Reduce::band}, dtype), bits_and);
    EXPECT_EQ(reduced(r + 1, {.op = Reduce::bor}, dtype), bits_or);
    EXPECT_EQ(reduced(r + 1, {.op = Reduce::bxor}, dtype), bits_xor);
  }
  EXPECT_DOUBLE_EQ(reduced(r, {.op = Reduce::average}, f64), sum_of_ranks() / n);
  EXPECT_DOUBLE_EQ(reduced(r, {.factor = 0.5}, f64), sum_of_ranks() / 2);
  EXPECT_DOUBLE_EQ(reduced(r, {.op = Reduce::average, .weight = r + 1.0}, f64), weighted / weights);
}

TUTTI_RANK_TEST(ParityA, AllToAll) {
  int n = world_size();
  TensorList inputs, outputs;
  for (int k = 0; k < n; ++k) {
    inputs.push_back(full({k + 1, rank()}, 100 * rank() + k, {f32}));  // uneven; rank 0 gives nothing
    outputs.push_back(zeros({rank() + 1, k}));
  }
  all_to_all(outputs, inputs);
  for (int k = 0; k < n; ++k) EXPECT_TRUE(equal(outputs[at(k)], full({rank() + 1, k}, 100 * k + rank(), {f32})));
}

TUTTI_RANK_TEST(ParityA, AllToAllSingleNone) {
  int n = world_size();
  Tensor x = full({2 * n, 2}, rank(), {f32}), y = zeros({2 * n, 2});
  all_to_all(y, x);
  for (int k = 0; k < n; ++k) EXPECT_TRUE(equal(y.narrow(0, 2 * k, 2), full({2, 2}, k, {f32})));
}

// Rank a gives rank b a·b rows: uneven, many of them empty.
Shape products_of_ranks() {
  Shape rows;
  for (int k = 0; k < world_size(); ++k) rows.push_back(rank() * k);
  return rows;
}
void check_single(const std::function<void(Tensor, const Tensor&, const Shape&)>& exchange) {
  Shape rows = products_of_ranks();
  int64_t total = static_cast<int64_t>(rank() * sum_of_ranks()), start = 0;
  Tensor x = full({total, 2}, rank(), {f32}), y = zeros({total, 2});
  exchange(y, x, rows);
  for (int k = 0; k < world_size(); start += rows[at(k++)])
    EXPECT_TRUE(equal(y.narrow(0, start, rows[at(k)]), full({rows[at(k)], 2}, k, {f32})));
}
TUTTI_RANK_TEST(ParityA, AllToAllSingleList) {
  check_single([](Tensor y, const Tensor& x, const Shape& rows) { all_to_all(y, x, rows, rows); });
}
TUTTI_RANK_TEST(ParityA, AllToAllSingleTensor) {
  check_single([](Tensor y, const Tensor& x, const Shape& rows) {
    Tensor splits = tensor(std::vector<int64_t>(rows.begin(), rows.end()));
    all_to_all(y, x, splits, splits);
  });
}

TUTTI_RANK_TEST(ParityA, AllReduceCoalesced) {
  TensorList xs;
  for (int64_t size : {3, 0, 1, 5000}) xs.push_back(full({size}, rank() + double(size), {f32}));
  xs.push_back(full({4, 2}, rank(), {f32}).t());
  all_reduce(xs);
  double n = world_size();
  for (size_t i : {0u, 1u, 2u, 3u})
    EXPECT_TRUE(equal(xs[i], full(xs[i].sizes(), sum_of_ranks() + n * double(xs[i].numel()), {f32})));
  EXPECT_TRUE(equal(xs[4], full({2, 4}, sum_of_ranks(), {f32})));
}

TUTTI_RANK_TEST(ParityA, Subpg) {
  int n = world_size(), r = rank();
  Group half = world().split(r % 2);
  EXPECT_EQ(half.rank(), r / 2);
  EXPECT_EQ(half.ranks()[at(half.rank())], r);
  for (int i = 0; i < 10; ++i) {
    Tensor x = full({3}, r, {f32});
    all_reduce(x, {.group = half});
    double expected = 0;
    for (int k = r % 2; k < n; k += 2) expected += k;
    EXPECT_EQ(x[0].item<double>(), expected);
  }
  if (n == 1) return;
  Group others = world().subgroup({n - 1, 0});  // renumbered in the order given
  if (r == 0 || r == n - 1) {
    Tensor x = full({1}, r, {i64});
    broadcast(x, {.root = 0, .group = others});
    EXPECT_EQ(x.item<int>(), n - 1);
  } else {
    EXPECT_EQ(others.rank(), -1);
    EXPECT_THAT(message_of<ValueError>([&] { barrier({.group = others}); }),
                HasSubstr("barrier: rank " + std::to_string(r) + " is not a member of this group of ranks [" +
                          std::to_string(n - 1) + ", 0]"));
  }
}

TUTTI_RANK_TEST(ParityA, UsingPgFromAnotherThread) {
  Tensor x = full({3}, rank() + 1, {f32});
  Group group = world();
  Context mine = context();
  std::thread by_handle([&] { all_reduce(x, {.group = group}); });  // the handle is enough
  by_handle.join();
  EXPECT_EQ(x[0].item<double>(), sum_of_ranks() + world_size());
  int seen = -1;
  std::thread by_context([&] {
    ContextGuard guard(mine);
    seen = rank();
    broadcast(x);
  });
  by_context.join();
  EXPECT_EQ(seen, rank());
}

struct MyFunc : Function<MyFunc> {
  int rank_seen = -1, size_seen = -1;
  Group group;
  Tensor forward(const Tensor& x) {
    rank_seen = rank();
    size_seen = world_size();
    group = world();
    Tensor y = x.clone();
    all_reduce(y);
    return y;
  }
  TensorList backward(const TensorList& g) {
    EXPECT_EQ(rank(), rank_seen);
    EXPECT_EQ(world_size(), size_seen);
    EXPECT_TRUE(world() == group);
    Tensor y = g[0].clone();
    all_reduce(y);
    return {y};
  }
};

TUTTI_RANK_TEST(ParityA, BwdSeesFwdPg) {
  Tensor x = full({3}, rank() + 1, {f32}).requires_grad_();
  Tensor y = MyFunc::apply(x);
  EXPECT_EQ(y[0].item<double>(), sum_of_ranks() + world_size());
  (y * (rank() + 1)).sum().backward();
  EXPECT_EQ(x.grad()[2].item<double>(), sum_of_ranks() + world_size());
}

}  // namespace
}  // namespace tutti
