// Collectives of ranks that are threads: values, orders, failures.
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "comm/transport/transport.h"
#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using namespace test;  // NOLINT

class Ranks : public EveryWorld {
 protected:
  double total = n * (n - 1) / 2.0;  // of all ranks
};
INSTANTIATE_TEST_SUITE_P(Worlds, Ranks, every_world(), name_world);

class Groups : public EveryWay {};
INSTANTIATE_TEST_SUITE_P(Ways, Groups, every_way(), name_way);

constexpr DType kAll[] = {DType::f32, DType::f64, DType::bf16, DType::f16,     DType::i8,  DType::u8,
                          DType::i16, DType::i32, DType::i64,  DType::boolean, DType::c64, DType::c128};

TEST_P(Ranks, KnowWhoTheyAre) {
  spawn([&] {
    EXPECT_EQ(world_size(), n);
    EXPECT_EQ(context().rank, rank());
    std::string transport = std::get<0>(GetParam()).name;
    if (transport.starts_with("shm_")) {  // on two hosts
      std::string engine = transport.substr(4);
      transport = n == 1 ? "shm" : n == 2 ? engine : "shm+" + engine;
    }
    EXPECT_EQ(world().transport(), transport);
    Tensor all = zeros({n}, {i64});
    all_gather(all, tensor({rank()}));
    EXPECT_TRUE(equal(all, arange(n)));
  });
}

// No two numbers near each other, or of two ranks, or of two rounds, are the same; sums are exact.
Tensor numbers(int64_t count, int of_rank, int round) {
  return (arange(count) * (2 * of_rank + 3) + 17 * of_rank + 101 * round).remainder(1009).to(f32);
}

TEST_P(Ranks, LargeOnesMoveEveryNumberToItsPlace) {
  spawn([&] {
    int64_t rows = n > 4 ? 40'001 : 130'001, count = rows * n;
    int me = rank();
    for (int round = 0; round < 4; ++round) {
      Tensor mine = numbers(count, me, round), sum = zeros({count});
      std::vector<Tensor> all;
      for (int r = 0; r < n; ++r) {
        all.push_back(numbers(count, r, round));
        sum += all.back();
      }
      Tensor x = mine.clone();
      all_reduce(x);
      ASSERT_TRUE(equal(x, sum));
      Tensor part = empty({rows});
      reduce_scatter(part, mine);
      ASSERT_TRUE(equal(part, sum.narrow(0, me * rows, rows)));
      x.zero_();
      all_gather(x, mine.narrow(0, 0, rows));
      for (int r = 0; r < n; ++r)
        ASSERT_TRUE(equal(x.narrow(0, r * rows, rows), all[static_cast<size_t>(r)].narrow(0, 0, rows)));
      all_to_all(x, mine);
      for (int r = 0; r < n; ++r)
        ASSERT_TRUE(equal(x.narrow(0, r * rows, rows), all[static_cast<size_t>(r)].narrow(0, me * rows, rows)));
      x = mine.clone();
      broadcast(x, {.root = round % n});
      ASSERT_TRUE(equal(x, all[static_cast<size_t>(round % n)]));
      x = mine.clone();
      reduce(x, {.root = round % n});
      ASSERT_TRUE(equal(x, me == round % n ? sum : mine));
      int to = (me + 1) % n, from = (me + n - 1) % n;
      if (n == 1) continue;
      Work sent = send_async(mine, to);
      recv(x, from);
      sent.wait();
      ASSERT_TRUE(equal(x, all[static_cast<size_t>(from)]));
    }
  });
}

TEST_P(Ranks, AllReduceEveryDtypeAndSize) {
  spawn([&] {
    for (DType dtype : kAll)
      for (int64_t size : {0, 1, 3, 17, 1000, 50'001}) {
        Tensor x = full({size}, rank() % 3, {.dtype = dtype});
        all_reduce(x);
        double expected = 0;
        for (int r = 0; r < n; ++r) expected += r % 3;
        if (dtype == DType::boolean) expected = expected > 0;
        ASSERT_TRUE(equal(x, full({size}, expected, {.dtype = dtype}))) << describe(x);
      }
  });
}

TEST_P(Ranks, AllReduceOps) {
  spawn([&] {
    auto reduced = [&](double mine, Reduce op, DType dtype, ReduceOptions o = {}) {
      Tensor x = full({5}, mine, {.dtype = dtype});
      o.op = op;
      all_reduce(x, o);
      return x[4].item<double>();
    };
    double r = rank();
    EXPECT_EQ(reduced(r, Reduce::sum, f32), total);
    EXPECT_EQ(reduced(r, Reduce::average, f64), total / n);
    EXPECT_EQ(reduced(2, Reduce::product, f32), std::pow(2, n));
    EXPECT_EQ(reduced(r, Reduce::min, f32), 0);
    EXPECT_EQ(reduced(r, Reduce::max, i32), n - 1);
    EXPECT_EQ(reduced(r < n - 1 ? 7 : 5, Reduce::band, i64), 5);
    EXPECT_EQ(reduced(static_cast<double>(1 << rank()), Reduce::bor, u8), (1 << n) - 1);
    EXPECT_EQ(reduced(1, Reduce::bxor, i16), n % 2);
    EXPECT_EQ(reduced(1, Reduce::sum, f64, {.factor = r}), total);
    // Rank r has r+1 rows of value r: the average over rows, not over ranks.
    double rows = 0, sum = 0;
    for (int k = 0; k < n; ++k) rows += k + 1, sum += (k + 1) * k;
    EXPECT_DOUBLE_EQ(reduced(r, Reduce::average, f64, {.weight = r + 1}), sum / rows);
    EXPECT_TRUE(std::isnan(reduced(rank() == n / 2 ? NAN : 1, Reduce::max, f32)));
  });
}

// The first operation of a group, many times: ranks that help begin while it is being started.
TEST_P(Groups, TheFirstCollectiveIsRight) {
  spawn(3, [] {
    for (int round = 0; round < 300; ++round) {
      Group group = world().subgroup({0, 1, 2});
      Tensor x = full({20'000}, rank() + 1);
      all_reduce(x, {.group = group});
      ASSERT_TRUE(equal(x, full({20'000}, 6)));
    }
  });
}

// What Note [Canonical order] says, by hand.
float tree(const std::vector<float>& x, size_t lo, size_t hi) {
  if (hi - lo == 1) return x[lo];
  size_t half = 1;
  while (half * 2 < hi - lo) half *= 2;
  return tree(x, lo, lo + half) + tree(x, lo + half, hi);
}

TEST_P(Ranks, SumsAreInCanonicalOrderWhateverTheSize) {
  manual_seed(5);
  std::vector<std::vector<float>> data;
  for (int r = 0; r < n; ++r) data.push_back((randn({70'000}) * 1e3).to_vector<float>());
  std::vector<float> expected;
  for (size_t i = 0; i < 70'000; ++i) {
    std::vector<float> column;
    for (auto& d : data) column.push_back(d[i]);
    expected.push_back(tree(column, 0, column.size()));
  }
  spawn([&] {
    Tensor mine = tensor(data[static_cast<size_t>(rank())]), wanted = tensor(expected);
    Tensor whole = mine.clone();
    all_reduce(whole);
    ASSERT_TRUE(equal(whole, wanted));
    TensorList parts = mine.clone().split(12'345);
    all_reduce(parts);
    ASSERT_TRUE(equal(cat(parts), wanted));
    Tensor small = mine.narrow(0, 7, 3).clone();
    all_reduce(small);
    ASSERT_TRUE(equal(small, wanted.narrow(0, 7, 3)));
  });
}

TEST_P(Ranks, BroadcastGatherScatter) {
  spawn([&] {
    int me = rank();
    for (int root = 0; root < n; ++root) {
      Tensor x = full({2, 3}, me);
      broadcast(x, {.root = root});
      EXPECT_TRUE(equal(x, full({2, 3}, root)));

      TensorList all;
      if (me == root)
        for (int k = 0; k < n; ++k) all.push_back(zeros({k + 1}));
      gather(all, full({me + 1}, me + 1.0), {.root = root});
      for (size_t k = 0; k < all.size(); ++k) EXPECT_EQ(all[k].sum().item<double>(), double((k + 1) * (k + 1)));

      TensorList parts;
      if (me == root)
        for (int k = 0; k < n; ++k) parts.push_back(full({2}, k * 10 + root));
      Tensor mine = zeros({2}, {i64});
      scatter(mine, parts, {.root = root});
      EXPECT_TRUE(equal(mine, full({2}, me * 10 + root)));

      Tensor y = full({4}, me, {f32});
      reduce(y, {.root = root});
      EXPECT_EQ(y[0].item<double>(), me == root ? total : me);
    }
  });
}

TEST_P(Ranks, AllGatherReduceScatterAllToAll) {
  spawn([&] {
    int me = rank();
    TensorList uneven;
    for (int k = 0; k < n; ++k) uneven.push_back(zeros({k, 2}, {i32}));
    all_gather(uneven, full({me, 2}, me, {i32}));
    for (int k = 0; k < n; ++k) EXPECT_TRUE(equal(uneven[static_cast<size_t>(k)], full({k, 2}, k, {i32})));

    Tensor whole = zeros({2 * n, 3});
    all_gather(whole, full({2, 3}, me, {f32}));
    for (int k = 0; k < n; ++k) EXPECT_EQ(whole[2 * k + 1][2].item<int>(), k);

    Tensor part = zeros({2}), input = arange(2 * n).to(f32) + me;
    reduce_scatter(part, input);
    EXPECT_EQ(values(part), (Doubles{total + n * 2.0 * me, total + n * (2.0 * me + 1)}));
    TensorList lists;
    for (int k = 0; k < n; ++k) lists.push_back(full({k + 1}, me + k, {f64}));
    Tensor mine = zeros({me + 1}, {f64});
    reduce_scatter(mine, lists);
    EXPECT_EQ(mine[me].item<double>(), total + n * me);

    Tensor out = zeros({n}, {i64});
    all_to_all(out, arange(n) + 100 * me);
    for (int k = 0; k < n; ++k) EXPECT_EQ(out[k].item<int>(), 100 * k + me);
    // Rank a sends b rows of a to rank b; rank 0 gets nothing.
    std::vector<int64_t> sends, takes;
    int64_t sent = 0;
    for (int k = 0; k < n; ++k) sends.push_back(k), takes.push_back(me), sent += k;
    Tensor rows = zeros({me * n}, {i64});
    all_to_all(rows, full({sent}, me), Shape(takes), Shape(sends));
    for (int k = 0; k < n; ++k)
      for (int i = 0; i < me; ++i) EXPECT_EQ(rows[k * me + i].item<int>(), k);
    Tensor again = zeros({me * n}, {i64});
    all_to_all(again, full({sent}, me), tensor(takes), tensor(sends));
    EXPECT_TRUE(equal(again, rows));
    Tensor same = arange(n) + 100 * me;
    all_to_all(same, same);
    EXPECT_TRUE(equal(same, out));
  });
}

// Into one tensor, and of one: rank k's part has k + 1 rows, and that of every third rank none.
TEST_P(Ranks, UnevenPartsOfOneTensor) {
  spawn([&] {
    int me = rank();
    Shape rows;
    int64_t sum = 0, before = 0;
    for (int k = 0; k < n; ++k) {
      if (k == me) before = sum;
      rows.push_back(k % 3 == 2 ? 0 : k + 1);
      sum += rows.back();
    }
    int64_t mine = rows[static_cast<size_t>(me)];
    TensorList expected;
    for (int k = 0; k < n; ++k) expected.push_back(full({rows[static_cast<size_t>(k)], 2}, k, {f32}));
    Tensor whole = zeros({sum, 2}), again = zeros({2, sum}).t();
    all_gather(whole, full({mine, 2}, me, {f32}), rows);
    EXPECT_TRUE(equal(whole, cat(expected)));
    all_gather_async(again, full({mine, 2}, me, {f32}), rows).wait();  // not contiguous
    EXPECT_TRUE(equal(again, whole));
    Tensor input = arange(2 * sum).view({sum, 2}).to(f64) + me, part = zeros({mine, 2}, {f64});
    Tensor wanted = (arange(2 * sum).view({sum, 2}).to(f64) * n + total).narrow(0, before, mine);
    reduce_scatter(part, input, rows);
    EXPECT_TRUE(equal(part, wanted));
    part.zero_();
    reduce_scatter_async(part, input, rows, {.op = Reduce::average}).wait();
    EXPECT_TRUE(equal(part, wanted / n));
    Shape wrong = Shape::filled(static_cast<size_t>(n), sum + 1);
    EXPECT_THROW(all_gather(whole, full({mine, 2}, me, {f32}), wrong), ShapeError);
    EXPECT_THROW(reduce_scatter(part, input, wrong), ShapeError);
    barrier();
  });
}

TEST_P(Ranks, NonContiguousTensors) {
  spawn([&] {
    Tensor base = zeros({4, 6});
    Tensor view = base.t().narrow(0, 1, 4);
    view.copy_(arange(16).to(f32).view({4, 4}));
    all_reduce(view);
    EXPECT_TRUE(equal(view, arange(16).to(f32).view({4, 4}) * n));
    EXPECT_EQ(base[0][0].item<double>(), 0);
    Tensor last = randn({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
    broadcast(last);
    EXPECT_TRUE(last.is_contiguous(MemoryFormat::channels_last));
  });
}

TEST_P(Ranks, AsynchronousWorkKeepsItsOrder) {
  spawn([&] {
    std::vector<Work> works;
    Tensor x = full({100'000}, 1.0, {f32});
    std::atomic<int> called = 0;
    for (int i = 0; i < 40; ++i) {
      works.push_back(all_reduce_async(x, {.op = i % 2 ? Reduce::average : Reduce::sum}));
      works.back().then([&] { ++called; });
    }
    for (auto& w : works) w.wait();
    EXPECT_EQ(called, 40);
    EXPECT_NEAR(x[99'999].item<double>() / std::pow(n, 20), 1, 1e-5);
    EXPECT_TRUE(works[3].done());
    EXPECT_EQ(works[3].exception(), nullptr);
    Tensor small = ones({4});
    Work dropped = all_reduce_async(small);
    dropped = {};
    barrier();
  });
}

TEST_P(Ranks, MessagesArriveInOrder) {
  spawn([&] {
    int me = rank(), next = (me + 1) % n, last = (me + n - 1) % n;
    for (int64_t size : {1, 1000, 100'000}) {
      Tensor out = full({size}, me, {f32}), in = zeros({size});
      if (n == 1) continue;
      if (me % 2 == 0) {
        send(out, next, {.tag = size});
        EXPECT_EQ(recv(in, last, {.tag = size}), last);
      } else {
        EXPECT_EQ(recv(in, last, {.tag = size}), last);
        send(out, next, {.tag = size});
      }
      EXPECT_TRUE(equal(in, full({size}, last, {f32})));
    }
    if (me > 0) send(tensor({me}), 0, {.tag = 7});
    if (me == 0) {
      int sum = 0;
      for (int k = 1; k < n; ++k) {
        Tensor got = zeros({1}, {i64});
        int from = recv(got, -1, {.tag = 7});
        EXPECT_EQ(got.item<int>(), from);
        sum += from;
      }
      EXPECT_EQ(sum, total);
    }
  });
}

TEST_P(Groups, SubgroupsWorkAtTheSameTime) {
  spawn(8, [] {
    int me = rank();
    for (int round = 0; round < 50; ++round) {
      Group half = world().split(me % 2, -me);
      EXPECT_EQ(half.size(), 4);
      EXPECT_EQ(half.rank(), 3 - me / 2);
      Tensor x = full({10}, me, {f32});
      all_reduce(x, {.group = half});
      EXPECT_EQ(x[0].item<double>(), me % 2 ? 16 : 12);
      Group pair = half.subgroup(half.rank() < 2 ? std::vector{1, 0} : std::vector{2, 3});
      Tensor y = full({3}, me, {i64});
      broadcast(y, {.group = pair});
      EXPECT_EQ(y[0].item<int>(), pair.ranks()[0]);
    }
  });
}

TEST_P(Groups, ARankOutsideGetsAClearError) {
  spawn(3, [] {
    Group two = world().subgroup({0, 2});
    Tensor x = ones({1});
    if (rank() == 1)
      EXPECT_THAT(message_of<ValueError>([&] { all_reduce(x, {.group = two}); }),
                  testing::StartsWith("[rank 1] all_reduce: rank 1 is not a member of this group of ranks [0, 2] (at "
                                      "collectives_test.cpp:"));
    else
      all_reduce(x, {.group = two});
  });
}

TEST_P(Groups, AreUsedFromAnotherThreadOfTheRank) {
  spawn(4, [] {
    Tensor x = full({10}, rank(), {f32});
    Context mine = context();
    std::thread helper([&] {
      ContextGuard guard(mine);
      all_reduce(x);
    });
    helper.join();
    EXPECT_EQ(x[3].item<double>(), 6);
  });
}

struct Summed : Function<Summed> {
  int seen = -1;
  Tensor forward(const Tensor& x) {
    seen = rank();
    Tensor y = x.clone();
    all_reduce(y);
    return y;
  }
  TensorList backward(const TensorList& g) {
    EXPECT_EQ(seen, rank());
    EXPECT_EQ(world_size(), 4);
    Tensor y = g[0].clone();
    all_reduce(y);
    return {y};
  }
};

TEST_P(Groups, BackwardSeesTheGroupOfForward) {
  spawn(4, [] {
    Tensor x = full({3}, rank() + 1.0).requires_grad_();
    (Summed::apply(x) * (rank() + 1)).sum().backward();
    EXPECT_EQ(values(x.grad()), (Doubles{10, 10, 10}));
  });
}

// ---- What goes wrong

TEST(Failures, TheFirstErrorIsTheOneThatIsSeen) {
  for (int culprit : {0, 2}) {
    std::atomic<int> others = 0;
    auto text = message_of<IndexError>([&] {
      spawn_ranks(4, [&] {
        Tensor x = ones({4});
        all_reduce(x);
        if (rank() == culprit) throw IndexError("this one");
        try {
          all_reduce(x);
        } catch (const RankFailure& e) {
          std::string mine = std::to_string(rank());
          EXPECT_THAT(e.what(),
                      testing::StartsWith("[rank " + mine + "] rank " + std::to_string(culprit) +
                                          " failed: this one\n  met by rank " + mine +
                                          " in collective 1, all_reduce(f32[4], sum) at collectives_test.cpp:"));
          ++others;
          throw;
        }
      });
    });
    EXPECT_EQ(text, "[rank " + std::to_string(culprit) + "] this one");
    EXPECT_EQ(others, 3);
  }
  try {
    spawn_ranks(3, [] {
      if (rank() > 0) throw std::out_of_range("plain");
      barrier();
    });
    ADD_FAILURE();
  } catch (const RankFailure& e) {
    EXPECT_THAT(e.what(), testing::ContainsRegex("rank [12] failed: plain"));
    EXPECT_THROW(std::rethrow_if_nested(e), std::out_of_range);
  }
}

TEST(Failures, MismatchesNameBothCalls) {
  auto run = [](const std::function<void()>& one, const std::function<void()>& two) {
    std::atomic<int> threw = 0;
    std::string text;
    spawn_ranks(2, [&] {
      try {
        rank() == 0 ? one() : two();
      } catch (const MismatchError& e) {
        if (rank() == 0) text = e.what();
        ++threw;
      }
    });
    EXPECT_EQ(threw, 2);
    return text;
  };
  EXPECT_THAT(run([] { all_reduce(ones({2, 3})); }, [] { broadcast(ones({2, 3})); }),
              testing::MatchesRegex(
                  "\\[rank 0\\] all_reduce: ranks disagree in collective 0 of their group: they are different "
                  "collectives\n  rank 0: all_reduce\\(f32\\[2, 3\\], sum\\) at collectives_test.cpp:.*\n"
                  "  rank 1: broadcast\\(f32\\[2, 3\\], root 0\\) at collectives_test.cpp:.*"));
  EXPECT_THAT(run([] { all_reduce(ones({2})); }, [] { all_reduce(ones({3})); }), HasSubstr("the shapes differ"));
  EXPECT_THAT(run([] { all_reduce(ones({2})); }, [] { all_reduce(ones({2}, {f64})); }), HasSubstr("the dtypes differ"));
  EXPECT_THAT(run([] { broadcast(ones({2})); }, [] { broadcast(ones({2}), {.root = 1}); }),
              HasSubstr("the roots differ: 0 and 1"));
  EXPECT_THAT(run([] { all_reduce(ones({2})); }, [] { all_reduce(ones({2}), {.op = Reduce::max}); }),
              HasSubstr("the reductions differ"));
  EXPECT_THAT(run([] { all_gather(TensorList{ones({2}), ones({2})}, ones({2})); },
                  [] { all_gather(TensorList{ones({2}), ones({3})}, ones({3})); }),
              HasSubstr("rank 1 gives 3 elements where rank 0 takes 2"));
}

// A rank that is no member may ask long after the members' group is gone: nothing of that is kept for others.
TEST(Subgroups, AskedForByANonMemberAreFreed) {
  spawn_ranks(3, [] {
    Group g = world().split(0);
    std::weak_ptr<comm::Transport> made;
    if (rank() == 0) made = g.subgroup({0}).handle()->group;
    EXPECT_TRUE(made.expired());
    barrier({.group = g});
    if (rank() != 0) {
      Group s = g.subgroup({0});
      EXPECT_EQ(s.size(), 1);
      EXPECT_EQ(s.rank(), -1);
      made = s.handle()->group;
      EXPECT_FALSE(made.expired());
    }
    barrier({.group = g});
    EXPECT_TRUE(made.expired());
    Group again = g.subgroup({0, 1});  // by a non-member, too, before or after the members
    if (rank() < 2) {
      Tensor x = ones({3});
      all_reduce(x, {.group = again});
      EXPECT_EQ(x[0].item<double>(), 2);
    }
  });
}

// Numbers that the library exchanges by itself are on the host, whatever the user's tensors are on.
TEST(Devices, TheCurrentOneIsOfTheUsersTensorsOnly) {
  spawn_ranks(2, [] {
    Device host;
    Tensor x = full({3}, rank() + 1, {.dtype = DType::f64, .device = host}).requires_grad_();
    Tensor a = ones({2}, {.dtype = DType::f32, .device = host}), b = ones({3}, {.dtype = DType::f32, .device = host});
    DeviceGuard guard(Device("meta"));
    Group halves = world().split(rank());
    EXPECT_EQ(halves.size(), 1);
    Tensor memory = group_empty({4});
    EXPECT_TRUE(memory.device().is_cpu());
    memory.fill_(1);
    all_reduce(memory);
    EXPECT_EQ(memory[0].item<double>(), 2);
    all_reduce(TensorList{a, b});
    EXPECT_EQ(b[0].item<double>(), 2);
    fn::all_reduce(x, {.op = Reduce::average, .weight = rank() + 1.0}).sum().backward();
    EXPECT_NEAR(x.grad()[0].item<double>(), 2 * (rank() + 1) / 3.0, 1e-12);
  });
}

TEST(Failures, ATimeoutSaysWhoDidNotCome) {
  auto text = message_of<TimeoutError>([] {
    spawn_ranks(3, [] {
      barrier();
      if (rank() == 2) {
        try {
          recv(ones({1}), 0, {.timeout = 5s});
        } catch (const RankFailure&) {
        }
      } else {
        all_reduce(ones({4}), {.timeout = 100ms});
      }
    });
  });
  EXPECT_THAT(text, testing::ContainsRegex("rank [01] waited 0.1 s in collective 1, all_reduce\\(f32\\[4\\], sum\\) at "
                                           "collectives_test.cpp:"));
  EXPECT_THAT(text,
              HasSubstr("rank 2 did not come; its last call here was collective 0, barrier at collectives_test.cpp"));
}

TEST(Failures, ARankThatEndsIsNotWaitedFor) {
  auto text = message_of<RankFailure>([] {
    spawn_ranks(3, [] {
      if (rank() != 1) barrier();
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 1 failed: it ended without taking part in collective 0 of a group of 3"));
  text = message_of<RankFailure>([] {
    spawn_ranks(2, [] {
      if (rank() == 0) recv(ones({1}), 1);
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 1 failed: it ended without sending what rank 0 waits for: recv(f32[1]) at"));
}

TEST(Failures, TooManyCallsOnTheirWayIsATimeout) {
  auto text = message_of<TimeoutError>([] {
    spawn_ranks(2, [] {
      if (rank() == 0) {
        for (int i = 0; i < 17; ++i) all_reduce_async(ones({4}), {.timeout = i < 16 ? 60'000ms : 50ms});
        ADD_FAILURE() << "nobody came";
      }
      try {
        recv(ones({1}), 0, {.timeout = 5s});
      } catch (const RankFailure& e) {
        EXPECT_THAT(e.what(), HasSubstr("rank 0 could not begin all_reduce(f32[4], sum)"));
      }
    });
  });
  EXPECT_THAT(text, HasSubstr("16 calls of its group are on their way"));
  EXPECT_THAT(text, HasSubstr("rank 1 did not come"));
}

TEST(Failures, MessagesTimeOut) {
  auto text = message_of<TimeoutError>([] {
    spawn_ranks(2, [] {
      if (rank() == 0) send(ones({100'000}), 1, {.timeout = 50ms});  // too large to be left lying
      if (rank() == 1) recv(ones({1}), 0, {.tag = 5, .timeout = 5s});
    });
  });
  EXPECT_THAT(text, HasSubstr("rank 0 waited 0.05 s for rank 1 to receive what it sends: send(f32[100000]) at"));
}

TEST(Failures, WrongArguments) {
  spawn_ranks(2, [] {
    EXPECT_THROW(all_reduce(ones({2}), {.op = Reduce::band}), DTypeError);
    EXPECT_THROW(all_reduce(ones({2}, {i64}), {.op = Reduce::average}), DTypeError);
    EXPECT_THROW(all_reduce(ones({2}, {c64}), {.op = Reduce::max}), DTypeError);
    EXPECT_THROW(broadcast(ones({2}), {.root = 2}), ValueError);
    EXPECT_THROW(all_reduce(Tensor()), ValueError);
    EXPECT_THROW(all_gather(TensorList{ones({2})}, ones({2})), ValueError);
    EXPECT_THROW(reduce_scatter(ones({1}), ones({3})), ShapeError);
    EXPECT_THROW(all_reduce(ones({2}).requires_grad_()), GradError);
    barrier();
  });
}

#if !defined(TUTTI_SANITIZE_THREAD) && !defined(TUTTI_SANITIZE_ADDRESS)  // which have no room for so many threads
TEST(ScaleSlow, FourThousandRanks) {
  std::atomic<int> right = 0;
  spawn_ranks(4096, [&] {
    Tensor x = ones({3});
    all_reduce(x);
    std::vector<int> ranks(64);
    std::iota(ranks.begin(), ranks.end(), rank() / 64 * 64);
    Group row = world().subgroup(ranks);
    Tensor y = full({1}, rank(), {i64});
    all_reduce(y, {.op = Reduce::max, .group = row});
    int next = (rank() + 1) % 4096, last = (rank() + 4095) % 4096;
    Tensor z = zeros({1}, {i64});
    for (Work& work : batch_messages({send_op(full({1}, rank()), next), recv_op(z, last)})) work.wait();
    right += x[2].item<double>() == 4096 && y.item<int>() == rank() / 64 * 64 + 63 && z.item<int>() == last;
  });
  EXPECT_EQ(right, 4096);
}
#endif

TEST(Scale, AThousandRanksOnFewCores) {
  spawn_ranks(1024, [] {
    Tensor x = ones({1});
    for (int i = 0; i < 3; ++i) all_reduce(x, {.op = Reduce::max});
    all_reduce(x);
    EXPECT_EQ(x.item<double>(), 1024);
  });
}

}  // namespace
}  // namespace tutti
