// Images in blocks of channels between convolutions: eager's bits, and no reordering. See Note [Images in blocks].
#include <gtest/gtest.h>

#include <cmath>

#include "tests/graph/programs.h"
#include "tests/graph/support.h"
#include "tests/support/compare.h"
#include "tutti/tutti.h"

namespace tutti::test {
namespace {

struct Block : nn::Module<Block> {
  nn::Conv2d first, second;
  nn::BatchNorm2d norm1, norm2;
  explicit Block(int64_t channels)
      : first(channels, channels, 3, {.padding = 1}),
        second(channels, channels, 3, {.padding = 1}),
        norm1(channels),
        norm2(channels) {}
  TUTTI_FIELDS(first, second, norm1, norm2)
  Tensor forward(const Tensor& x) { return relu(x + norm2(second(relu(norm1(first(x)))))); }
};

struct Net : nn::Module<Net> {
  nn::Conv2d stem;
  Block block1, block2;
  nn::Linear head;
  Net(int64_t given, int64_t channels)
      : stem(given, channels, 3, {.padding = 1}), block1(channels), block2(channels), head(channels, 5) {}
  TUTTI_FIELDS(stem, block1, block2, head)
  Tensor forward(const Tensor& x) { return head(block2(max_pool2d(block1(relu(stem(x))), 2)).mean({2, 3})); }
};

size_t count_all(const std::vector<std::shared_ptr<const graph::Graph>>& graphs, const char* name) {
  size_t count = 0;
  for (const auto& g : graphs) count += g->count(name);
  return count;
}

/// Steps of two networks with the same numbers, one compiled.
template <class Make>
void compare_steps(const Make& make, const Shape& sizes, bool training = true) {
  ThreadsGuard guard(1);
  SCOPED_TRACE(testing::Message() << "sizes "
                                  << testing::PrintToString(std::vector<int64_t>(sizes.begin(), sizes.end()))
                                  << (training ? " training" : ""));
  manual_seed(1);
  auto net = make();
  manual_seed(1);
  auto other = make();
  net.train(training), other.train(training);
  auto step = compile([&](const Tensor& x) { return other(x); });
  for (uint64_t turn = 0; turn < 3; ++turn) {
    net.zero_grad(), other.zero_grad();
    Tensor x = images(sizes, turn).requires_grad_(), z = images(sizes, turn).requires_grad_();
    Tensor a = net(x), b = step(z);
    ASSERT_TRUE(identical(b, a)) << turn;
    (a * a).sum().backward(), (b * b).sum().backward();
    ASSERT_TRUE(identical(z.grad(), x.grad())) << turn;
    for (size_t i = 0; i < net.parameters().size(); ++i)
      ASSERT_TRUE(identical(other.parameters()[i].grad(), net.parameters()[i].grad())) << turn << " " << i;
    for (size_t i = 0; i < net.buffers().size(); ++i)
      ASSERT_TRUE(identical(other.buffers()[i], net.buffers()[i])) << turn << " " << i;
  }
  EXPECT_GT(step.stats().runs, 0);
}

TEST(Blocks, NetworksHaveEagersBits) {
  auto compare = [](int64_t channels, const Shape& sizes, bool training = true) {
    SCOPED_TRACE(channels);
    compare_steps([&] { return Net(sizes[1], channels); }, sizes, training);
  };
  for (int64_t channels : {16, 20, 32}) compare(channels, {2, 3, 13, 10});
  compare(32, {4, 3, 16, 16});
  compare(32, {1, 3, 18, 18});
  compare(48, {2, 16, 32, 34});
  compare(16, {2, 3, 49, 50});
  compare(32, {3, 3, 16, 17}, false);
}

TEST(Blocks, InfinityNaNAndLargeNumbers) {
  for (float odd : {INFINITY, -INFINITY, NAN, 3e38F, -0.0F}) {
    SCOPED_TRACE(odd);
    ThreadsGuard guard(1);
    nn::Conv2d first{3, 16, 1}, second{16, 16, 1};
    nn::BatchNorm2d norm{16};
    auto f = [&](const Tensor& x) { return second(max_pool2d(relu(norm(first(x))), 3, {.stride = 2})); };
    auto step = compile(f);
    for (uint64_t turn = 0; turn < 2; ++turn) {
      Tensor x = images({2, 3, 13, 11}, turn);
      x.index({0, 1, 5, 7}).fill_(odd);
      TensorList outcome[2];
      auto run = [&](auto& g, TensorList& kept) {
        for (const Tensor& p : first.parameters()) Tensor(p).set_grad({});
        kept = {g(x)};
        kept[0].sum().backward();
        for (const Tensor& p : first.parameters()) kept.push_back(p.grad());
      };
      run(f, outcome[0]), run(step, outcome[1]);
      for (size_t i = 0; i < outcome[0].size(); ++i) EXPECT_TRUE(identical(outcome[1][i], outcome[0][i])) << i;
    }
  }
}

TEST(Blocks, NothingIsReorderedBetweenConvolutions) {
  if (!has_blocks()) GTEST_SKIP() << "oneDNN has blocks of 16 channels with AVX-512 only";
  Net net(3, 32);
  auto step = compile([&](const Tensor& x) { return net(x); });
  for (uint64_t turn = 0; turn < 2; ++turn) step(images({4, 3, 16, 16}, turn)).sum().backward();
  auto graphs = step.graphs();
  ASSERT_EQ(graphs.size(), 2u);
  EXPECT_EQ(graphs[0]->count("convolution_blocked"), 5u) << step.print();
  EXPECT_EQ(graphs[1]->count("conv_backward_data_blocked"), 4u);
  EXPECT_EQ(graphs[1]->count("conv_backward_weight_blocked"), 5u);
  EXPECT_EQ(graphs[0]->count("batch_norm_blocked"), 4u);
  EXPECT_EQ(graphs[1]->count("channel_norm_backward_blocked"), 4u);
  EXPECT_EQ(graphs[0]->count("max_pool_blocked"), 1u);
  EXPECT_EQ(graphs[1]->count("max_pool_backward_blocked"), 1u);
  EXPECT_EQ(graphs[1]->count("sum_blocked"), 1u);  // of the stem; those of norms are in norms_test.cpp
  // Where the last mean is taken, and where its gradient comes from.
  EXPECT_EQ(graphs[0]->count("to_blocked"), 0u) << step.print();
  EXPECT_EQ(graphs[0]->count("from_blocked"), 1u);
  EXPECT_EQ(graphs[1]->count("to_blocked"), 1u);
  EXPECT_EQ(graphs[1]->count("from_blocked"), 0u);
}

TEST(Blocks, AreNotMadeWhereNothingIsWon) {
  nn::Conv2d conv{32, 32, 3, {.padding = 1}}, odd{20, 20, 3, {.padding = 1}}, next{20, 20, 3};
  auto alone = compile([&](const Tensor& x) { return relu(conv(x)); });
  auto undivided = compile([&](const Tensor& x) { return next(relu(odd(x))); });
  auto last = compile([&](const Tensor& x) { return conv(relu(conv(x))); });
  for (uint64_t turn = 0; turn < 2; ++turn) {
    NoGrad no_grad;
    alone(images({2, 32, 16, 16}, turn)), undivided(images({2, 20, 16, 16}, turn));
    last(images({2, 32, 16, 16}, turn).contiguous(MemoryFormat::channels_last));
  }
  for (const auto& graphs : {alone.graphs(), undivided.graphs(), last.graphs()})
    EXPECT_EQ(count_all(graphs, "convolution_blocked"), 0u);
}

// Intermediate images that leave, are viewed, written, or read by operators that know no blocks.
struct Odds : nn::Module<Odds> {
  nn::Conv2d first{16, 32, 3, {.padding = 1}}, second{32, 32, 3, {.stride = 2}}, third{32, 32, 1}, fourth{32, 16, 5};
  nn::Parameter scale, shift;
  Odds() : scale(randn({32, 1, 1})), shift(randn({1, 32, 1, 1})) {}
  TUTTI_FIELDS(first, second, third, fourth, scale, shift)
  Tensor forward(const Tensor& x) {
    Tensor a = first(x), b = relu(a * scale + shift);
    Tensor c = second(b) * 2.5;
    c.add_(c.flip({3}));
    Tensor d = max_pool2d(third(c).sigmoid(), 3, {.stride = 1, .padding = 1});
    Tensor e = where(d > 0.5, d, c), f = fourth(e);
    return cat({f.reshape({-1}), a.slice(1, 3, 21).reshape({-1}), d.permute({0, 2, 3, 1}).reshape({-1}),
                b.sum({0, 2, 3}), softmax(e, 1).reshape({-1})});
  }
};

TEST(Blocks, ImagesThatAreUsedOtherwise) {
  for (const Shape& sizes : {Shape{2, 16, 17, 19}, Shape{3, 16, 40, 33}, Shape{1, 16, 12, 12}})
    compare_steps([] { return Odds(); }, sizes);
}

TEST(Blocks, ResultsThatAreImages) {
  nn::Conv2d first{16, 32, 3, {.padding = 1}}, second{32, 32, 3, {.padding = 1}};
  auto f = [&](const Tensor& x) {
    Tensor a = relu(first(x)), b = relu(second(a));
    return TensorList{a, b, a + b};
  };
  auto step = compile(f);
  for (uint64_t turn = 0; turn < 3; ++turn) {
    Tensor x = images({2, 16, 16, 16}, turn);
    TensorList outcome[2];
    auto run = [&](auto& g, TensorList& kept) {
      first.zero_grad(), second.zero_grad();
      TensorList y = g(x);
      for (const Tensor& t : y) EXPECT_EQ(t.sizes(), (Shape{2, 32, 16, 16}));
      for (const Tensor& t : y) EXPECT_TRUE(t.is_contiguous());
      ((y[0] * y[1]).sum() + y[2].sum()).backward();
      kept = y;
      for (const Tensor& p : first.parameters()) kept.push_back(p.grad());
      for (const Tensor& p : second.parameters()) kept.push_back(p.grad());
    };
    run(f, outcome[0]), run(step, outcome[1]);
    for (size_t i = 0; i < outcome[0].size(); ++i) EXPECT_TRUE(identical(outcome[1][i], outcome[0][i])) << turn << i;
  }
}

TEST(Blocks, BatchSizesThatWereNotTraced) {
  manual_seed(1);
  Net net(3, 32);
  manual_seed(1);
  Net other(3, 32);
  auto step = compile([&](const Tensor& x) { return other(x); }, {.dynamic_batch = true});
  for (int64_t n : {16, 4, 8, 5, 16, 7}) {
    net.zero_grad(), other.zero_grad();
    Tensor x = images({n, 3, 16, 16}, static_cast<uint64_t>(n)), a = net(x), b = step(x);
    EXPECT_TRUE(identical(b, a)) << n;
    a.sum().backward(), b.sum().backward();
    for (size_t i = 0; i < net.parameters().size(); ++i)
      EXPECT_TRUE(identical(other.parameters()[i].grad(), net.parameters()[i].grad())) << n << " " << i;
  }
  EXPECT_EQ(step.stats().fitted, 3) << step.explain();
}

// The primitives, and with them the layouts that they want, depend on how many threads there are.
TEST(Blocks, OtherNumbersOfThreads) {
  manual_seed(1);
  Net net(3, 32);
  manual_seed(1);
  Net other(3, 32);
  auto step = compile([&](const Tensor& x) { return other(x); });
  for (int threads : {1, 1, 2, 3, 1}) {
    ThreadsGuard guard(threads);
    net.zero_grad(), other.zero_grad();
    Tensor x = images({2, 3, 20, 20}, 3), a = net(x), b = step(x);
    EXPECT_TRUE(identical(b, a)) << threads;
    a.sum().backward(), b.sum().backward();
    for (size_t i = 0; i < net.parameters().size(); ++i)
      EXPECT_TRUE(identical(other.parameters()[i].grad(), net.parameters()[i].grad())) << threads << " " << i;
  }
}

}  // namespace
}  // namespace tutti::test
