// What the rows of embeddings (tests/ops/table) leave: the form of sparse gradients, frequencies, threads, NaN, errors.
#include "tutti/ops/embedding.h"

#include "tests/ops/numbers.h"
#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/compile.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

// PyTorch 1.13 counts wrong for bags (its indices are sorted by then), so embedding is the reference.
TEST(EmbeddingBag, ScalesByFrequencyLikeEmbedding) {
  Tensor index = reshape(tensor({1, 4, 1, 0, 6, 4}), {2, 3}), weight = scattered({7, 3});
  for (BagMode mode : {BagMode::sum, BagMode::mean}) {
    Tensor a = weight.clone().requires_grad_(), b = weight.clone().requires_grad_();
    embedding_bag(a, index, {}, {.mode = mode, .scale_grad_by_freq = true}).backward(weight.narrow(0, 0, 2));
    Tensor rows = embedding(b, index, {.scale_grad_by_freq = true});
    (mode == BagMode::sum ? rows.sum(1) : rows.mean(1)).backward(weight.narrow(0, 0, 2));
    EXPECT_TRUE(close(a.grad(), b.grad(), 1e-14));
  }
}

TEST(Embedding, SparseGradientsHaveAnEntryForEachLookup) {
  Tensor weight = scattered({100, 4}).requires_grad_();
  Tensor index = tensor({7, 3, 7});
  embedding(weight, index, {.sparse = true}).sum().backward();
  Tensor g = weight.grad();
  ASSERT_TRUE(g.is_sparse());
  EXPECT_EQ(g.sizes(), (Shape{100, 4}));
  EXPECT_EQ(g.sparse_dim(), 1);
  EXPECT_EQ(g.values().sizes(), (Shape{3, 4}));
  EXPECT_EQ(values(g.indices()), (Doubles{7, 3, 7}));
  Tensor padded = grad({embedding(weight, index, {.padding_idx = 3, .sparse = true}).sum()}, {weight})[0];
  EXPECT_EQ(values(padded.values().sum(1)), (Doubles{4, 0, 4}));  // those of padding too, as zeros
  embedding(weight, index, {.sparse = true}).sum().backward();    // sparse gradients accumulate
  EXPECT_TRUE(weight.grad().is_sparse());
  EXPECT_EQ(values(to_dense(weight.grad()).sum(1))[7], 16);
  Tensor bag = scattered({100, 4}).requires_grad_();
  embedding_bag(bag, index, tensor({0, 1}), {.mode = BagMode::mean, .sparse = true}).sum().backward();
  ASSERT_TRUE(bag.grad().is_sparse());
  EXPECT_EQ(bag.grad().values().sizes(), (Shape{3, 4}));
}

TEST(Embedding, SparseGradientsCanBeDifferentiatedAgain) {
  Tensor weight = scattered({6, 2}).requires_grad_(), index = tensor({1, 4, 1});
  auto second = [&](bool sparse) {
    Tensor y = square(embedding(weight, index, {.sparse = sparse})).sum();
    Tensor g = grad({y}, {weight}, {.create_graph = true})[0];
    Tensor found = grad({square(sparse ? to_dense(g) : g).sum()}, {weight})[0];
    return found.is_sparse() ? to_dense(found) : found;
  };
  EXPECT_TRUE(close(second(true), second(false), 1e-12));
}

TEST(Embedding, ShortensRowsInPlace) {
  Tensor weight = reshape(tensor({3.0, 4.0, 0.3, 0.4, 6.0, 8.0}, {f64}), {3, 2});
  Tensor y = embedding(weight, tensor({0, 1, 0}), {.max_norm = 1.0});
  EXPECT_TRUE(close(y, reshape(tensor({0.6, 0.8, 0.3, 0.4, 0.6, 0.8}, {f64}), {3, 2}), 1e-6));
  EXPECT_EQ(values(weight)[4], 6);  // not looked up
  EXPECT_NEAR(values(weight)[0], 0.6, 1e-6);
}

// In a table that does not lie in memory as a whole, and of one that a compiled function is given.
TEST(Embedding, ShortensRowsOfAnyTable) {
  Tensor rows = scattered({4, 6}, f64, 3, 1, 2), across = rows.t().contiguous().t(), mine = rows.clone(),
         kept = rows[2].clone();
  Tensor index = tensor({0, 3});
  embedding(mine, index, {.max_norm = 1.0});
  embedding(across, index, {.max_norm = 1.0});
  EXPECT_TRUE(identical(across.contiguous(), mine));
  EXPECT_TRUE(identical(mine[2], kept));
  auto f = compile([](const Tensor& table, const Tensor& at) { return embedding(table, at, {.max_norm = 1.0}); });
  for (int i = 0; i < 2; ++i) {
    Tensor given = rows.clone();
    EXPECT_TRUE(identical(f(given, index), index_select(mine, 0, index)));
    EXPECT_TRUE(identical(given, mine));
  }
  EXPECT_EQ(f.stats().traces, 1);
}

TEST(Embedding, TakesAnyLayoutAndDtype) {
  for (DType dtype : {f32, f64, bf16, f16}) {
    Tensor weight = scattered({9, 5}, dtype), index = reshape(tensor({8, 0, 3, 3}), {2, 2});
    Tensor y = embedding(weight, index);
    EXPECT_TRUE(identical(y, reshape(index_select(weight, 0, reshape(index, {-1})), {2, 2, 5})));
    Tensor across = transpose(transpose(weight, 0, 1).contiguous(), 0, 1);
    EXPECT_TRUE(identical(embedding(across, index.t().to(i32)), transpose(y, 0, 1).contiguous()));
    for (BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
      Tensor whole = embedding_bag(weight, index, {}, {.mode = mode});
      EXPECT_EQ(whole.dtype(), dtype);
      EXPECT_TRUE(identical(embedding_bag(across, index.t().contiguous().t(), {}, {.mode = mode}), whole));
    }
  }
  EXPECT_EQ(embedding(zeros({4, 3}), zeros({0, 2}, {i64})).sizes(), (Shape{0, 2, 3}));
  EXPECT_EQ(embedding(zeros({4, 0}), zeros({2}, {i64})).sizes(), (Shape{2, 0}));
  EXPECT_EQ(embedding(zeros({4, 3}, {.device = "meta"}), zeros({2}, {i64, "meta"})).sizes(), (Shape{2, 3}));
  EXPECT_EQ(embedding_bag(zeros({4, 3}), zeros({0}, {i64}), zeros({0}, {i64})).sizes(), (Shape{0, 3}));
  EXPECT_EQ(values(embedding_bag(ones({4, 1}), zeros({0}, {i64}), tensor({0, 0}))), (Doubles{0, 0}));
}

TEST(Embedding, DenseGradientsHaveTheSameBitsOnAnyThreads) {
  Tensor index = randint(0, 50, {4000}), weight = scattered({50, 64}, f32), g = scattered({4000, 64}, f32, 9);
  auto run = [&](int threads) {
    ThreadsGuard guard(threads);
    Tensor leaf = weight.clone().requires_grad_();
    embedding(leaf, index).backward(g);
    Tensor bag = weight.clone().requires_grad_();
    Tensor y = embedding_bag(bag, reshape(index, {40, 100}));
    y.backward(g.narrow(0, 0, 40));
    return TensorList{leaf.grad(), y.detach(), bag.grad()};
  };
  TensorList one = run(1), four = run(4);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(identical(one[i], four[i])) << i;
}

TEST(Embedding, PaddingSwallowsNaN) {
  Tensor weight = zeros({3, 2}, {f64}).requires_grad_();
  Tensor y = embedding(weight, tensor({0, 1}), {.padding_idx = 1});
  y.backward(tensor({{1.0, 1.0}, {NAN, NAN}}, {f64}));
  EXPECT_EQ(values(weight.grad()), (Doubles{1, 1, 0, 0, 0, 0}));
}

TEST(Embedding, RefusesWhatItCannotTake) {
  Tensor weight = zeros({4, 3});
  EXPECT_THAT(message_of<IndexError>([&] { embedding(weight, tensor({0, 4})); }), HasSubstr("index 4 at position 1"));
  EXPECT_THAT(message_of<IndexError>([&] { embedding(weight, tensor({-1})); }), HasSubstr("index -1"));
  EXPECT_THAT(message_of<IndexError>([&] { embedding(weight, tensor({0}), {.padding_idx = 4}); }),
              HasSubstr("padding_idx 4"));
  EXPECT_THAT(message_of<DTypeError>([&] { embedding(weight, tensor({0.5})); }), HasSubstr("i64"));
  EXPECT_THAT(message_of<ShapeError>([&] { embedding(zeros({4}), tensor({0})); }), HasSubstr("[V, D]"));
  EXPECT_THAT(message_of<IndexError>([&] { embedding_bag(weight, tensor({0, 4}), tensor({0}), {.max_norm = 1}); }),
              HasSubstr("embedding_bag: index 4 at position 1"));
  EXPECT_THAT(message_of<IndexError>([&] { embedding_bag(weight, tensor({0, 1}), tensor({1})); }),
              HasSubstr("first offset"));
  EXPECT_THAT(message_of<IndexError>([&] { embedding_bag(weight, tensor({0, 1}), tensor({0, 2, 1})); }),
              HasSubstr("below"));
  EXPECT_THAT(message_of<IndexError>([&] { embedding_bag(weight, tensor({0, 1}), tensor({0, 3})); }),
              testing::AnyOf(HasSubstr("beyond"), HasSubstr("below")));
  EXPECT_THAT(message_of<ValueError>([&] { embedding_bag(weight, tensor({0, 1})); }), HasSubstr("need offsets"));
  EXPECT_THAT(message_of<ValueError>(
                  [&] { embedding_bag(weight, tensor({0}), tensor({0}), {.per_sample_weights = ones({1})}); }),
              HasSubstr("BagMode::sum"));
  EXPECT_THAT(message_of<ValueError>(
                  [&] { embedding_bag(weight, tensor({0}), tensor({0}), {.mode = BagMode::max, .sparse = true}); }),
              HasSubstr("sparse"));
}

}  // namespace
}  // namespace tutti::test
