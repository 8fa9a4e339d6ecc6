// Gradients through calls: what they are, whatever carries them and in whatever order it arrives.
#include "tutti/rpc/autograd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "rpc/shuffle.h"
#include "tests/rpc/support.h"

namespace tutti::test::of_autograd {  // functions that are called have names of their own
namespace {

using dist_autograd::backward;
using dist_autograd::Context;
using dist_autograd::get_gradients;

class DistAutograd : public Rpc {};
INSTANTIATE_TEST_SUITE_P(Ways, DistAutograd, every_way(), testing::PrintToStringParamName());

// Parameters of each worker, by rank: threads share the memory of the test.
struct Parameters {
  std::mutex mutex;
  std::map<int, std::map<std::string, Tensor>> tensors;
};
Parameters& all_parameters() {
  static Parameters parameters;
  return parameters;
}
Tensor& parameter(const std::string& name, const Shape& sizes = {3}) {
  std::lock_guard lock(all_parameters().mutex);
  Tensor& t = all_parameters().tensors[rank()][name];
  if (!t.defined()) {
    t = (arange(1, 1 + zeros(sizes).numel()) * 0.1 + static_cast<double>(rank())).view(sizes).clone();
    t.requires_grad_();
  }
  return t;
}
void forget_parameters() {
  std::lock_guard lock(all_parameters().mutex);
  all_parameters().tensors.erase(rank());
}
/// The gradient of a worker's parameter; undefined where it has none.
Tensor gradient_of(const std::string& name) {
  auto all = get_gradients(dist_autograd::current());
  auto it = all.find(parameter(name));
  EXPECT_FALSE(parameter(name).grad().defined());
  return it == all.end() ? Tensor() : it->second;
}
size_t contexts_here() { return dist_autograd::statistics().contexts; }
/// All workers have let go of everything.
void expect_nothing_left() {
  auto until = std::chrono::steady_clock::now() + 20s;
  for (int r = 0; r < world_size(); ++r) {
    while (rpc::sync<&contexts_here>(r) > 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(rpc::sync<&contexts_here>(r), 0u) << "on rank " << r;
    rpc::sync<&forget_parameters>(r);
  }
}

Tensor times_w(const Tensor& x) { return x * parameter("w"); }
/// By way of other workers, the last first.
Tensor through(const Tensor& x, std::vector<int> ranks) {
  Tensor y = x * parameter("w");
  if (ranks.empty()) return y;
  int next = ranks.back();
  ranks.pop_back();
  return rpc::sync<&through>(next, y, ranks);
}
rpc::Future<Tensor> co_through(Tensor x, std::vector<int> ranks) {
  Tensor y = x * parameter("w");
  if (ranks.empty()) co_return y;
  int next = ranks.back();
  ranks.pop_back();
  Tensor z = co_await rpc::async<&co_through>(next, y, ranks);
  co_return z* parameter("w");
}
bool near(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return allclose(a, b);
}

// ---- What is recorded

TEST_P(DistAutograd, AGradientComesBackToBothSides) {
  drive(2, [] {
    {
      Context context;
      Tensor x = parameter("x");
      Tensor y = rpc::sync<&times_w>("worker1", x);
      EXPECT_TRUE(y.requires_grad());
      backward(context, {y.sum()});
      Tensor gx = get_gradients(context).at(x), gw = rpc::sync<&gradient_of>("worker1", "w");
      EXPECT_TRUE(near(gx, arange(1, 4) * 0.1 + 1));
      EXPECT_TRUE(near(gw, x.detach()));
      EXPECT_FALSE(x.grad().defined());
    }
    expect_nothing_left();
  });
}

TEST_P(DistAutograd, OutsideOfAContextNothingIsRecorded) {
  drive(2, [] {
    Tensor x = parameter("x");
    EXPECT_FALSE(rpc::sync<&times_w>("worker1", x).requires_grad());
    {
      Context context;
      NoGrad guard;
      EXPECT_FALSE(rpc::sync<&times_w>("worker1", x).requires_grad());
      EXPECT_EQ(rpc::sync<&contexts_here>("worker1"), 0u);
    }
    EXPECT_THROW(dist_autograd::current(), ValueError);
    expect_nothing_left();
  });
}

TEST_P(DistAutograd, ChainsOverManyWorkersAndBack) {
  drive(4, [] {
    {
      Context context;
      Tensor x = parameter("x");
      // 1, 2, 3, then home, and 1 again.
      Tensor y = rpc::sync<&through>(1, x, std::vector<int>{1, 0, 3, 2});
      backward(context, {(y * y).sum()});
      auto w = [](int r) { return arange(1, 4) * 0.1 + r; };
      Tensor product = w(1) * w(2) * w(3) * w(0) * w(1), xs = x.detach();
      EXPECT_TRUE(near(get_gradients(context).at(x), 2 * xs * product * product));
      EXPECT_TRUE(near(get_gradients(context).at(parameter("w")), 2 * xs * xs * product * product / w(0)));
      EXPECT_TRUE(near(rpc::sync<&gradient_of>(1, "w"), 4 * xs * xs * product * product / w(1)));
      EXPECT_TRUE(near(rpc::sync<&gradient_of>(2, "w"), 2 * xs * xs * product * product / w(2)));
      EXPECT_TRUE(near(rpc::sync<&gradient_of>(3, "w"), 2 * xs * xs * product * product / w(3)));
    }
    expect_nothing_left();
  });
}

TEST_P(DistAutograd, CoroutinesCarryTheContext) {
  drive(3, [] {
    {
      Context context;
      Tensor x = parameter("x");
      Tensor y = rpc::sync<&co_through>(1, x, std::vector<int>{1, 2});
      backward(context, {y.sum()});
      auto w = [](int r) { return arange(1, 4) * 0.1 + r; };
      // 1: once on the way there, once at the end and once on the way back; 2: there and back.
      Tensor product = w(1) * w(1) * w(1) * w(2) * w(2);
      EXPECT_TRUE(near(get_gradients(context).at(x), product));
      EXPECT_TRUE(near(rpc::sync<&gradient_of>(1, "w"), 3 * x.detach() * product / w(1)));
      EXPECT_TRUE(near(rpc::sync<&gradient_of>(2, "w"), 2 * x.detach() * product / w(2)));
    }
    expect_nothing_left();
  });
}

std::tuple<Tensor, int64_t, Tensor, Tensor> mixed(const Tensor& a, const Tensor& indices, const Tensor& plain) {
  EXPECT_TRUE(a.requires_grad());
  EXPECT_FALSE(plain.requires_grad());
  return {a.index_select(0, indices), 7, plain * 2, a * plain};
}
TEST_P(DistAutograd, TensorsWithoutGradientsTravelAlong) {
  drive(2, [] {
    {
      Context context;
      Tensor x = parameter("x");
      auto [picked, seven, plain, product] =
          rpc::sync<&mixed>("worker1", x, tensor({2, 2, 0}), tensor({1.f, 2.f, 3.f}));
      EXPECT_EQ(seven, 7);
      EXPECT_FALSE(plain.requires_grad());
      backward(context, {picked.sum() + product.sum()});
      EXPECT_TRUE(near(get_gradients(context).at(x), tensor({2.f, 2.f, 5.f})));
    }
    expect_nothing_left();
  });
}

std::vector<Tensor> two_results(const Tensor& x) { return {x * parameter("w"), x * parameter("v")}; }
// What was sent and does not lead to the loss gets no gradient, and nobody waits for one.
TEST_P(DistAutograd, WhatIsNotUsedIsNotWaitedFor) {
  drive(3, [] {
    {
      Context context;
      Tensor x = parameter("x");
      Tensor unused = rpc::sync<&times_w>("worker2", x);
      auto both = rpc::sync<&two_results>("worker1", x);
      Tensor half = rpc::sync<&times_w>("worker1", both[0]);
      Tensor dropped = rpc::sync<&times_w>("worker1", half);
      backward(context, {half.sum()});
      auto w = arange(1, 4) * 0.1 + 1;
      EXPECT_TRUE(near(get_gradients(context).at(x), w * w));
      EXPECT_TRUE(near(rpc::sync<&gradient_of>("worker1", "w"), 2 * x.detach() * w));
      EXPECT_FALSE(rpc::sync<&gradient_of>("worker1", "v").defined());
      EXPECT_FALSE(rpc::sync<&gradient_of>("worker2", "w").defined());
    }
    expect_nothing_left();
  });
}

// ---- Passes

TEST_P(DistAutograd, SeveralLossesAndGivenGradients) {
  drive(2, [] {
    {
      Context context;
      Tensor x = parameter("x");
      Tensor y = rpc::sync<&times_w>("worker1", x), z = rpc::sync<&times_w>("worker1", x);
      backward(context, {y.sum(), (2 * z).sum(), x.sum()});
      auto w = arange(1, 4) * 0.1 + 1;
      EXPECT_TRUE(near(get_gradients(context).at(x), 3 * w + 1));
      Tensor v = rpc::sync<&times_w>("worker1", x);
      backward(context, {v}, {.gradients = {tensor({1.f, 0.f, 2.f})}});
      EXPECT_TRUE(near(get_gradients(context).at(x), (3 + tensor({1.f, 0.f, 2.f})) * w + 1));
    }
    expect_nothing_left();
  });
}

TEST_P(DistAutograd, RetainedGraphsAddUp) {
  drive(2, [] {
    {
      Context context;
      Tensor x = parameter("x");
      Tensor loss = rpc::sync<&times_w>("worker1", x).sum();
      for (int i = 0; i < 3; ++i) backward(context, {loss}, {.retain_graph = i < 2});
      EXPECT_TRUE(near(get_gradients(context).at(x), 3 * (arange(1, 4) * 0.1 + 1)));
      EXPECT_TRUE(near(rpc::sync<&gradient_of>("worker1", "w"), 3 * x.detach()));
      std::string text = text_of_error<GradError>([&] { backward(context, {loss}); });
      EXPECT_NE(text.find("retain_graph"), std::string::npos) << text;
      EXPECT_THROW(get_gradients(context), GradError);
    }
    expect_nothing_left();
  });
}

TEST_P(DistAutograd, BackwardWithoutWaiting) {
  drive(3, [] {
    std::vector<rpc::Future<>> passes;
    {
      std::vector<std::unique_ptr<Context>> contexts;
      Tensor x = parameter("x");
      for (int i = 0; i < 5; ++i) {
        contexts.push_back(std::make_unique<Context>());
        Tensor y = rpc::sync<&through>(1, x * (i + 1), std::vector<int>{1, 0, 2});
        passes.push_back(dist_autograd::backward_async(*contexts.back(), {y.sum()}));
      }
      for (auto& pass : passes) pass.wait();
      auto w = [](int r) { return arange(1, 4) * 0.1 + r; };
      for (int i = 4; i >= 0; --i) {
        EXPECT_TRUE(near(get_gradients(*contexts.back()).at(x), (i + 1) * w(1) * w(2) * w(0) * w(1)));
        contexts.pop_back();
      }
    }
    expect_nothing_left();
  });
}

// Every worker drives, at the same time, with contexts of its own.
TEST_P(DistAutograd, ManyContextsAtOnce) {
  run(3, [](rpc::Session&) {
    for (int round = 0; round < 10; ++round) {
      Context context;
      Tensor x = ones({3}) * (rank() + 1);
      x.requires_grad_();
      int a = (rank() + 1) % 3, b = (rank() + 2) % 3;
      Tensor y = rpc::sync<&through>(a, x, std::vector<int>{rank(), b});
      backward(context, {y.sum()});
      auto w = [](int r) { return arange(1, 4) * 0.1 + r; };
      Tensor product = w(0) * w(1) * w(2);
      EXPECT_TRUE(near(get_gradients(context).at(x), product));
      EXPECT_TRUE(near(get_gradients(context).at(parameter("w")), x.detach() * product / w(rank())));
      EXPECT_TRUE(near(rpc::sync<&gradient_of>(a, "w"), x.detach() * product / w(a)));
    }
    barrier();
    if (rank() == 0) expect_nothing_left();
    barrier();
  });
}

Tensor matrix_of() { return parameter("table", {4, 2}); }
Tensor look_up(const Tensor& indices) { return embedding(parameter("table", {4, 2}), indices, {.sparse = true}); }
TEST_P(DistAutograd, SparseGradientsStaySparse) {
  drive(2, [] {
    {
      Context context;
      Tensor there = rpc::sync<&look_up>("worker1", tensor({1, 3, 1}));
      Tensor table = rpc::sync<&matrix_of>("worker1");  // whose gradient goes over the wire itself
      Tensor here = embedding(table, tensor({0, 3}), {.sparse = true});
      backward(context, {there.sum() + here.sum()});
      Tensor g = rpc::sync<&gradient_of>("worker1", "table");
      ASSERT_TRUE(g.is_sparse());
      EXPECT_TRUE(near(g.to_dense(), tensor({1.f, 1.f, 2.f, 2.f, 0.f, 0.f, 2.f, 2.f}).view({4, 2})));
    }
    expect_nothing_left();
  });
}

Tensor hooked(const Tensor& x) {
  Tensor& w = parameter("w");
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  w.register_hook([](const Tensor& g) { return g * 10; });
  w.register_post_accumulate_hook([](const Tensor& leaf) {
    Tensor g = gradient_sink().gradient(leaf);
    gradient_sink().set_gradient(leaf, g + 1);
  });
  Tensor y = x * w;
  y.register_hook([](const Tensor& g) { return g * 2; });
  return y;
}
TEST_P(DistAutograd, HooksRunWhereTheTensorsAre) {
  drive(2, [] {
    {
      Context context;
      Tensor x = parameter("x");
      Tensor y = rpc::sync<&hooked>("worker1", x);
      y.register_hook([](const Tensor& g) { return g * 3; });
      backward(context, {y.sum()});
      EXPECT_TRUE(near(get_gradients(context).at(x), 6 * (arange(1, 4) * 0.1 + 1)));
      EXPECT_TRUE(near(rpc::sync<&gradient_of>("worker1", "w"), 60 * x.detach() + 1));
    }
    expect_nothing_left();
  });
}

// The gradient of a sum is one number. It arrives as what it is without workers, and not as so many copies.
std::vector<int64_t> strides_seen;
Tensor watched(const Tensor& x) {
  Tensor y = x * parameter("w", {2, 3});
  y.register_hook([](const Tensor& g) {
    strides_seen = {g.stride(0), g.stride(1)};
    return g;
  });
  return y;
}
std::vector<int64_t> seen_there() { return strides_seen; }
TEST_P(DistAutograd, WhatIsEqualAlongADimensionTravelsOnce) {
  drive(2, [] {
    Tensor rows = arange(1, 4) * 1.5;
    for (bool all : {true, false}) {
      Context context;
      Tensor x = parameter("x", {2, 3});
      Tensor y = rpc::sync<&watched>("worker1", x);
      backward(context, {all ? y.sum() : (y.sum(0) * rows).sum()});
      EXPECT_EQ(rpc::sync<&seen_there>("worker1"), (std::vector<int64_t>{0, all ? 0 : 1}));
      Tensor g = all ? ones({2, 3}) : rows.expand({2, 3});
      EXPECT_TRUE(near(get_gradients(context).at(x), g * (arange(1, 7) * 0.1 + 1).view({2, 3})));
      EXPECT_TRUE(near(rpc::sync<&gradient_of>("worker1", "w"), g * x.detach()));
    }
    expect_nothing_left();
  });
}

// ---- The same bits

Tensor bumpy(const Tensor& x, int64_t k) {
  Tensor w = parameter("w", {7});
  Tensor y = sin(x * w) + cos(w * static_cast<double>(k)) * x;
  return k % 3 ? y : rpc::sync<&bumpy>((rank() + 1) % world_size(), y * 0.7, k + 1);
}
/// Gradients that come from many sides, of every worker, one after the other.
std::vector<std::vector<float>> many_sides() {
  Context context;
  Tensor x = parameter("x", {7});
  std::vector<rpc::Future<Tensor>> ys;
  for (int k = 0; k < 9; ++k) ys.push_back(rpc::async<&bumpy>(k % world_size(), x * (0.3 + k), int64_t{k}));
  Tensor loss = zeros({});
  for (auto& y : ys) loss = loss + (y.wait() * x).sum() / 3;
  backward(context, {loss});
  std::vector<std::vector<float>> all = {get_gradients(context).at(x).to_vector<float>()};
  for (int r = 0; r < world_size(); ++r) all.push_back(rpc::sync<&gradient_of>(r, "w").to_vector<float>());
  return all;
}
TEST_P(DistAutograd, TheSameBitsInWhateverOrderMessagesArrive) {
  std::vector<std::vector<float>> reference;  // that of threads, which others know since they are forked
  spawn_ranks(3, [&] {
    rpc::Session session;
    if (rank() == 0) {
      reference = many_sides();
      expect_nothing_left();
    }
  });
  for (uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    rpc::detail::set_shuffle(seed);
    drive(3, [&] {
      EXPECT_EQ(many_sides(), reference) << "seed " << seed;
      EXPECT_EQ(many_sides(), reference) << "seed " << seed;
      expect_nothing_left();
    });
  }
  rpc::detail::set_shuffle(0);
}

// As if all of it were local: sums are made latest first.
TEST_P(DistAutograd, TheSameBitsAsWithoutWorkers) {
  drive(2, [] {
    Tensor w = (arange(1, 4) * 0.1 + 1).clone(), x = parameter("x").detach().clone();
    w.requires_grad_();
    x.requires_grad_();
    auto run = [&](const std::function<Tensor(const Tensor&)>& f) {
      Tensor a = f(x * 0.1), b = f(x * 0.7), c = f(a * b), d = f(c + x);
      return (a / 3 + b * c + d).sum();
    };
    run([&](const Tensor& t) { return t * w; }).backward();
    {
      Context context;
      backward(context, {run([&](const Tensor& t) { return rpc::sync<&times_w>("worker1", t); })});
      EXPECT_EQ(get_gradients(context).at(x).to_vector<float>(), x.grad().to_vector<float>());
      EXPECT_EQ(rpc::sync<&gradient_of>("worker1", "w").to_vector<float>(), w.grad().to_vector<float>());
    }
    expect_nothing_left();
  });
}

Tensor doubled(const Tensor& x) { return x * 2; }
void be_busy() { std::this_thread::sleep_for(100ms); }
void take(const Tensor&) {}

// Gradients that a worker's only thread takes over must not wait there until it has done calls that come after them.
TEST_P(DistAutograd, GradientsDoNotWaitForCallsBehindThem) {
  drive(2,
        [] {
          tutti::Context outside = tutti::context();
          Context context;
          Tensor v = ones({4}).requires_grad_() * 5, x = ones({65'536}).requires_grad_();
          v.register_hook([](const Tensor& g) {
            std::this_thread::sleep_for(200ms);
            return g;
          });
          Tensor z = rpc::sync<&doubled>("worker1", x) * 3;
          z.register_hook([&](const Tensor& g) {
            ContextGuard guard(outside);
            (void)rpc::async<&be_busy>("worker1");
            std::this_thread::sleep_for(10ms);
            return g;
          });
          std::thread other([&] {
            ContextGuard guard(outside);
            std::this_thread::sleep_for(50ms);
            rpc::sync<&take>("worker1", ones({220'000}));
          });
          backward(context, {z.sum() + v.sum()});
          other.join();
          EXPECT_EQ(get_gradients(context).at(x).sum().item<double>(), 6 * 65'536);
        },
        {.timeout = 20s, .threads = 1, .max_bytes = 1 << 20});
}

}  // namespace
}  // namespace tutti::test::of_autograd
