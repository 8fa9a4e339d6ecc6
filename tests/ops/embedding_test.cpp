// Embeddings against PyTorch, dense and sparse gradients, and what they do with odd input.
#include "tutti/ops/embedding.h"

#include "tests/ops/family.h"
#include "tutti/autograd.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

const Npz& golden_embeddings() {
  static const Npz file("tests/golden/embedding.npz");
  return file;
}

void expect(const std::string& key, const EmbeddingOptions& o, int orders) {
  expect_golden(
      golden_embeddings(), key, [&](const TensorList& x) { return TensorList{embedding(x[0], x[1], o)}; }, orders);
}

TEST(Embedding, AgreesWithPyTorch) {
  expect("embedding", {}, 2);
  expect("embedding.scalar", {}, 2);
  expect("embedding.padding", {.padding_idx = 4}, 2);
  expect("embedding.frequency", {.scale_grad_by_freq = true}, 1);
  expect("embedding.sparse", {.padding_idx = -3, .sparse = true}, 1);
  expect("embedding.max_norm", {.max_norm = 1.5, .norm_type = 3}, 0);
}

TEST(EmbeddingBag, AgreesWithPyTorch) {
  for (auto [mode, value] : {std::pair{"sum", BagMode::sum}, {"mean", BagMode::mean}, {"max", BagMode::max}}) {
    auto check = [&](const std::string& form, const EmbeddingBagOptions& o) {
      expect_golden(
          golden_embeddings(), "embedding_bag." + std::string(mode) + form,
          [&](const TensorList& x) { return TensorList{embedding_bag(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), o)}; },
          1);
    };
    check("", {.mode = value});
    check(".last", {.mode = value, .include_last_offset = true});
    check(".padding", {.mode = value, .padding_idx = 4});
    check(".matrix", {.mode = value});
    if (value == BagMode::max) continue;
    check(".sparse", {.mode = value, .sparse = true});
  }
  for (std::string form : {"", ".padding"}) {
    EmbeddingBagOptions o{.mode = BagMode::sum};
    if (!form.empty()) o.padding_idx = 1;
    expect_golden(
        golden_embeddings(), "embedding_bag.weights" + form,
        [&](const TensorList& x) {
          o.per_sample_weights = x[3];
          return TensorList{embedding_bag(x[0], x[1], x[2], o)};
        },
        1);
  }
}

TEST(Embedding, PassesGradcheck) {
  Tensor index = reshape(tensor({1, 4, 1, 0, 6, 4}), {2, 3});
  Tensor weight = scattered({7, 3}).requires_grad_();
  auto plain = [&](const TensorList& x) { return TensorList{square(embedding(x[0], index))}; };
  EXPECT_TRUE(gradcheck(plain, {weight}));
  EXPECT_TRUE(gradgradcheck(plain, {weight}));
}

TEST(EmbeddingBag, PassesGradcheck) {
  Tensor index = tensor({1, 4, 1, 0, 6, 4, 2}), offsets = tensor({0, 3, 3, 6});
  TensorList in{scattered({7, 3}).requires_grad_(), scattered({7}, f64, 5).requires_grad_()};
  for (BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
    auto f = [&](const TensorList& x) {
      EmbeddingBagOptions o{.mode = mode};
      if (mode == BagMode::sum) o.per_sample_weights = x[1];
      return TensorList{square(embedding_bag(x[0], index, offsets, o)) + sum(x[1])};
    };
    EXPECT_TRUE(gradcheck(f, in));
    EXPECT_TRUE(gradgradcheck(f, in));
  }
}

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
  embedding(weight, index, {.sparse = true}).sum().backward();  // sparse gradients accumulate
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
