// Arguments of collectives that lie in each other's memory, weights, timeouts and gradients that only some ranks have.
#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"
#include "tutti/comm/functional.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using namespace test;  // NOLINT

class Arguments : public testing::TestWithParam<Way> {
 protected:
  static void spawn(int n, const std::function<void()>& body) { GetParam().spawn(n, body, {}); }
};
INSTANTIATE_TEST_SUITE_P(Ways, Arguments, every_way(), testing::PrintToStringParamName());

// What a rank gives may be any part of what it gets.
TEST_P(Arguments, AllGatherFromAPartOfItsOutput) {
  spawn(3, [] {
    for (int64_t n : {2, 100'000})
      for (int part : {rank(), (rank() + 1) % 3}) {
        Tensor out = full({3 * n}, -1, {f32}), mine = out.narrow(0, part * n, n);
        mine.fill_(rank() + 1);
        all_gather(out, mine);
        for (int k = 0; k < 3; ++k) EXPECT_TRUE(equal(out.narrow(0, k * n, n), full({n}, k + 1, {f32}))) << n << part;
        out.fill_(-1);
        mine.fill_(rank() + 1);
        TensorList outputs = rank() == 1 ? split(out, n) : TensorList{};
        gather(outputs, mine, {.root = 1});
        for (size_t k = 0; k < outputs.size(); ++k)
          EXPECT_TRUE(equal(outputs[k], full({n}, static_cast<int>(k) + 1, {f32}))) << n << part;
      }
  });
}

TEST_P(Arguments, AResultIsNotWrittenTwice) {
  spawn(2, [] {
    for (int64_t n : {2, 100'000}) {
      Tensor y = ones({n});
      EXPECT_THAT(message_of<ValueError>([&] { all_reduce({y, y}); }),
                  HasSubstr("all_reduce: two of the 2 tensors that it would write share memory"));
      EXPECT_THROW(all_reduce_async({y, y.narrow(0, 1, n - 1)}), ValueError);
      all_reduce({y.narrow(0, 0, 1), y.narrow(0, 1, n - 1)});
      EXPECT_TRUE(equal(y, full({n}, 2, {f32})));
    }
    // Nor one that is copied to its place.
    Tensor x = ones({3, 3}), y = zeros({3});
    EXPECT_THROW(all_reduce({x.t(), x.t()}), ValueError);
    EXPECT_THROW(all_reduce_async({x, x.t()}), ValueError);
    EXPECT_THROW(all_reduce({x.narrow(1, 1, 1), x.narrow(1, 1, 1)}), ValueError);
    EXPECT_THROW(all_gather(std::vector<TensorList>{{y, y}}, TensorList{y}), ValueError);
    EXPECT_THROW(all_reduce(ones({1}).expand({4})), ShapeError);
    EXPECT_THROW(recv_async(ones({1}).expand({4}), 0), ShapeError);
    all_reduce({x.narrow(1, 0, 1), x.narrow(1, 1, 1), x.narrow(1, 2, 1)});
    EXPECT_TRUE(equal(x, full({3, 3}, 2, {f32})));
  });
}

TEST_P(Arguments, AWeightOfZeroLeavesARankOut) {
  spawn(3, [] {
    for (int64_t n : {2, 100'000}) {
      Tensor x = full({n}, rank() == 1 ? NAN : rank() + 1, {f32});  // the mean of no samples
      all_reduce(x, {.op = Reduce::average, .weight = rank() == 1 ? 0 : 2});
      EXPECT_TRUE(equal(x, full({n}, 2, {f32}))) << n;
      EXPECT_THAT(message_of<MismatchError>([&] { all_reduce(x, {.op = Reduce::average, .weight = 0}); }),
                  HasSubstr("the weights of all ranks are 0"));
      EXPECT_THROW(all_reduce(x, {.op = Reduce::average, .weight = -1}), ValueError);
      for (double weight : {double{NAN}, double{INFINITY}, 1e300, 1e-300})  // whose sum, or inverse, is no number
        EXPECT_THROW(all_reduce(x, {.op = Reduce::average, .weight = weight}), ValueError) << weight;
      x.fill_(1);
      all_reduce(x, {.op = Reduce::average, .weight = rank() == 1 ? 1e18 : 1e-18});
      EXPECT_TRUE(equal(x, ones({n})));
    }
  });
}

TEST_P(Arguments, TimeoutsMayBeForEver) {
  spawn(2, [] {
    Tensor x = ones({3});
    auto for_ever = std::chrono::milliseconds::max();
    all_reduce(x, {.timeout = for_ever});
    Work work = all_reduce_async(x, {.timeout = for_ever});
    EXPECT_TRUE(work.wait_for(std::chrono::nanoseconds::max()));
    if (rank() == 0) send(x, 1, {.timeout = for_ever});
    if (rank() == 1) recv(x, 0, {.timeout = for_ever});
    EXPECT_EQ(x[0].item<double>(), 4);
  });
}

// The backward pass of one rank would meet another rank's next collective.
TEST_P(Arguments, AGradientIsWantedByAllRanksOrNone) {
  spawn(2, [] {
    for (int64_t n : {2, 100'000}) {
      Tensor x = ones({n}).requires_grad_(rank() == 0);
      EXPECT_THAT(message_of<MismatchError>([&] { fn::all_reduce(x); }),
                  HasSubstr("requires a gradient on one of the ranks only"));
      NoGrad guard;
      EXPECT_TRUE(equal(fn::all_reduce(x), full({n}, 2, {f32})));
    }
  });
}

TEST_P(Arguments, ManyTensorsInOneCall) {
  spawn(3, [] {
    for (bool wait : {true, false}) {
      TensorList xs{full({2, 3}, rank() + 1, {f64}), full({4}, 10 * (rank() + 1), {f64}).expand({4})};
      std::vector<TensorList> outputs(2);
      for (int r = 0; r < 3; ++r) {
        outputs[0].push_back(zeros({3, 2}, {.dtype = f64}).t());
        outputs[1].push_back(zeros({4}, {.dtype = f64}));
      }
      wait ? all_gather(outputs, xs) : all_gather_async(outputs, xs).wait();
      for (int r = 0; r < 3; ++r) {
        EXPECT_TRUE(equal(outputs[0][static_cast<size_t>(r)], full({2, 3}, r + 1, {f64})));
        EXPECT_TRUE(equal(outputs[1][static_cast<size_t>(r)], full({4}, 10 * (r + 1), {f64})));
      }
      std::vector<TensorList> inputs(2);
      for (int r = 0; r < 3; ++r) {
        inputs[0].push_back(full({2}, r + 10 * rank(), {f64}));
        inputs[1].push_back(full({r + 1}, r, {f64}));
      }
      TensorList mine{zeros({2}, {.dtype = f64}), zeros({rank() + 1}, {.dtype = f64})};
      wait ? reduce_scatter(mine, inputs) : reduce_scatter_async(mine, inputs).wait();
      EXPECT_TRUE(equal(mine[0], full({2}, 3 * rank() + 30, {f64})));
      EXPECT_TRUE(equal(mine[1], full({rank() + 1}, 3 * rank(), {f64})));
      wait ? reduce(xs, {.root = 2}) : reduce_async(xs, {.root = 2}).wait();
      if (rank() == 2) {
        EXPECT_TRUE(equal(xs[0], full({2, 3}, 6, {f64})));
      }
      EXPECT_THROW(all_gather(outputs, TensorList{xs[0]}), ValueError);
    }
    Tensor in = full({3}, rank(), {f32}), out = zeros({3}), ones_each = tensor({1, 1, 1}, {.dtype = DType::i64});
    all_to_all_async(out, in, ones_each, ones_each).wait();
    EXPECT_TRUE(equal(out, tensor({0.0f, 1.0f, 2.0f})));
  });
}

TEST_P(Arguments, TheFastestOrderIsASumToo) {
  spawn(4, [] {
    for (int64_t n : {3, 200'000}) {
      Tensor x = arange(n, {.dtype = f32}) * (rank() + 1), y = full({n}, rank() + 1, {f32});
      all_reduce(x, {.order = Order::fastest});
      EXPECT_TRUE(equal(x, arange(n, {.dtype = f32}) * 10));
      all_reduce(y, {.op = Reduce::average, .weight = rank() + 1, .order = Order::fastest});
      EXPECT_TRUE(equal(y, full({n}, 3, {f32})));
      EXPECT_THAT(
          message_of<MismatchError>([&] { all_reduce(y, {.order = rank() == 1 ? Order::fastest : Order::canonical}); }),
          HasSubstr("the orders differ"));
    }
  });
}

#ifndef TUTTI_SANITIZE_THREAD  // which does not follow a process that has threads into its children
// Ranks dealt out to hosts in turns: where the order matters, the two differ, and each is the same on all ranks.
TEST(FastestOrder, AddsAHostsRanksFirst) {
  if (!comm::has_ucx()) GTEST_SKIP() << "this build has no UCX";
  spawn_by("shm+ucx", {0, 1, 0, 1}, 4,
           [] {
             EXPECT_EQ(local_rank(), rank() / 2);
             EXPECT_EQ(local_size(), 2);
             // Canonical (a+b)+(c+d) = (1e8-1e8)+(1+1) = 2; by hosts (a+c)+(b+d) = (1e8+1)+(-1e8+1), where the ones go.
             float numbers[] = {1e8f, -1e8f, 1, 1};
             Tensor x = full({200'000}, numbers[rank()], {f32}), y = x.clone();
             all_reduce(x);
             all_reduce(y, {.order = Order::fastest});
             EXPECT_TRUE(equal(x, full({200'000}, 2, {f32})));
             EXPECT_TRUE(equal(y, zeros({200'000})));
           },
           {});
}
#endif

TEST(LocalRank, IsAmongThoseOfTheHost) {
  spawn_ranks(3, [] {
    EXPECT_EQ(local_rank(), rank());
    EXPECT_EQ(local_size(), 3);
  });
}

// What backward needs and a collective has overwritten is an error that names the collective.
TEST_P(Arguments, WritesAreCounted) {
  spawn(2, [] {
    Tensor w = ones({4}, {.requires_grad = true}), x = ones({4}), y = ones({4}), all = ones({8}),
           gaps = ones({4, 2}).t();
    auto culprit = [&](const Tensor& used, auto write) {
      Tensor z = (w * used).sum();
      write();
      return message_of<VersionError>([&] { z.backward(); });
    };
    EXPECT_THAT(culprit(x, [&] { all_reduce(x); }), HasSubstr("'all_reduce' wrote"));
    EXPECT_THAT(culprit(x, [&] { all_reduce_async(x).wait(); }), HasSubstr("'all_reduce' wrote"));
    EXPECT_THAT(culprit(all.narrow(0, 0, 4), [&] { all_gather(all, y); }), HasSubstr("'all_gather' wrote"));
    EXPECT_THAT(culprit(gaps[0], [&] { all_reduce(gaps); }), HasSubstr("' wrote"));
    for (bool async : {false, true}) {
      TensorList written = {x, all, gaps};
      std::vector<uint64_t> before;
      for (auto& t : written) before.push_back(t.version());
      std::vector<Work> works;
      {
        PreserveVersion guard;
        if (async)
          works = {all_reduce_async(x), all_gather_async(all, y), all_reduce_async(gaps)};
        else
          all_reduce(x), all_gather(all, y), all_reduce(gaps);
      }
      for (Work& work : works) work.wait();
      for (size_t i = 0; i < written.size(); ++i) EXPECT_EQ(written[i].version(), before[i]) << i << async;
    }
  });
}

}  // namespace
}  // namespace tutti
