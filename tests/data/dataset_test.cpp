#include "tutti/data/dataset.h"

#include <set>

#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tutti/data.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using testing::ElementsAre;
using testing::HasSubstr;

data::TensorDataset<Tensor, Tensor> pairs(int64_t rows) {
  return data::TensorDataset(arange(rows * 2).reshape({rows, 2}), arange(rows) * 10);
}

TEST(Dataset, Tensors) {
  auto dataset = pairs(3);
  EXPECT_EQ(dataset.size(), 3u);
  auto [x, y] = dataset.get(1);
  EXPECT_EQ(values(x), (Doubles{2, 3}));
  EXPECT_EQ(y.item<int>(), 10);
  EXPECT_THROW(dataset.get(3), IndexError);
  EXPECT_THROW(data::TensorDataset(ones({2}), ones({3})), ShapeError);
  EXPECT_THROW(data::TensorDataset(tensor(1.)), ShapeError);
  EXPECT_EQ(data::TensorDataset(arange(3)).get(2).item<int>(), 2);
}

TEST(Dataset, MapSubsetConcat) {
  auto doubled = data::map(pairs(4), [](auto sample) { return std::get<1>(sample) * 2; });
  EXPECT_EQ(doubled.get(3).item<int>(), 60);
  data::Subset some(doubled, {3, 0});
  EXPECT_EQ(some.size(), 2u);
  EXPECT_EQ(some.get(0).item<int>(), 60);
  EXPECT_THROW(some.get(2), IndexError);
  EXPECT_THROW(data::Subset(doubled, {4}), IndexError);
  EXPECT_THROW(data::Subset(doubled, {-1}), IndexError);
  auto both = data::concat(some, data::TensorDataset(arange(3)), doubled);
  EXPECT_EQ(both.size(), 9u);
  EXPECT_EQ(both.get(1).item<int>(), 0);
  EXPECT_EQ(both.get(4).item<int>(), 2);
  EXPECT_EQ(both.get(8).item<int>(), 60);
  EXPECT_THROW(both.get(9), IndexError);
}

TEST(Dataset, RandomSplit) {
  auto parts = data::random_split(data::TensorDataset(arange(10)), {7, 3}, 5);
  std::multiset<int64_t> seen;
  for (auto& part : parts)
    for (size_t i = 0; i < part.size(); ++i) seen.insert(part.get(i).item<int64_t>());
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 10u);
  EXPECT_THROW(data::random_split(data::TensorDataset(arange(10)), {7, 4}), ValueError);
}

TEST(Sampler, Permutation) {
  auto order = data::permutation(1000, 1, 2);
  EXPECT_EQ(order, data::permutation(1000, 1, 2));
  EXPECT_NE(order, data::permutation(1000, 1, 3));
  EXPECT_NE(order, data::permutation(1000, 2, 2));
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(sorted[static_cast<size_t>(i)], i);
  // The same on every machine, for ever: checkpoints rely on it.
  EXPECT_THAT(data::permutation(8, 42, 0), ElementsAre(0, 7, 4, 5, 2, 1, 6, 3));
  // Every order of three is equally likely.
  std::map<std::vector<int64_t>, int> counts;
  for (uint64_t seed = 0; seed < 6000; ++seed) ++counts[data::permutation(3, seed)];
  EXPECT_EQ(counts.size(), 6u);
  for (auto& [unused, count] : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Sampler, Weighted) {
  auto sampler = data::weighted_sampler(tensor({1., 0., 3.}), 40000, true, 1);
  std::map<int64_t, int> counts;
  for (int64_t i : sampler.indices(0)) ++counts[i];
  EXPECT_EQ(counts.count(1), 0u);
  EXPECT_NEAR(counts[0], 10000, 400);
  EXPECT_NE(sampler.indices(0), sampler.indices(1));
  EXPECT_EQ(sampler.indices(3), sampler.indices(3));
  std::map<int64_t, int> first;
  auto without = data::weighted_sampler(tensor({1., 3., 0., 4.}), 3, false);
  for (uint64_t epoch = 0; epoch < 8000; ++epoch) {
    auto drawn = without.indices(epoch);
    EXPECT_EQ(std::set<int64_t>(drawn.begin(), drawn.end()), (std::set<int64_t>{0, 1, 3}));
    ++first[drawn[0]];
  }
  EXPECT_NEAR(first[0], 1000, 150);
  EXPECT_NEAR(first[1], 3000, 250);
  EXPECT_THROW(data::weighted_sampler(tensor({1., 3., 0.}), 3, false), ValueError);
  EXPECT_THROW(data::weighted_sampler(tensor({0., 0.}), 1), ValueError);
  EXPECT_THAT(message_of<ValueError>([] { data::weighted_sampler(tensor({1., -1.}), 1); }),
              HasSubstr("weight 1 is -1"));
  EXPECT_THROW(data::weighted_sampler(ones({2, 2}), 1), ShapeError);
}

TEST(Sampler, Distributed) {
  for (bool drop : {false, true})
    for (bool shuffle : {false, true})
      for (size_t size : {0, 1, 7, 8, 9}) {
        if (size < 3 && size > 0 && drop) continue;
        std::multiset<int64_t> seen;
        size_t each = drop ? size / 3 : (size + 2) / 3;
        for (int rank = 0; rank < 3; ++rank) {
          auto sampler = data::distributed_sampler(
              size, {.rank = rank, .world_size = 3, .shuffle = shuffle, .drop_last = drop, .seed = 1});
          EXPECT_EQ(sampler.size(), each);
          for (int64_t i : sampler.indices(4)) seen.insert(i);
        }
        EXPECT_EQ(seen.size(), each * 3);
        std::set<int64_t> different(seen.begin(), seen.end());
        EXPECT_EQ(different.size(), drop ? each * 3 : size);
      }
  EXPECT_THAT(data::distributed_sampler(5, {.rank = 1, .world_size = 2, .shuffle = false}).indices(0),
              ElementsAre(1, 3, 0));
  EXPECT_THROW(data::distributed_sampler(5, {.rank = 2, .world_size = 2}), ValueError);
  EXPECT_EQ(data::distributed_sampler(5).size(), 5u);  // outside of a world
}

TEST(Sampler, Batches) {
  data::BatchSampler sampler(data::sequential_sampler(5), 2);
  EXPECT_EQ(sampler.size(), 3u);
  EXPECT_THAT(sampler.batches(0), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  EXPECT_EQ(data::BatchSampler(data::sequential_sampler(5), 2, true).batches(0).size(), 2u);
  EXPECT_THROW(data::BatchSampler(data::sequential_sampler(5), 0), ValueError);
  EXPECT_THROW(data::Sampler(2, [](uint64_t) { return std::vector<int64_t>{1}; }).indices(0), ValueError);
}

struct Tensors {
  Tensor image;
  std::pair<Tensor, Tensor> more;
  TUTTI_FIELDS(image, more)
};
struct Labelled {
  Tensor image;
  int label;
  std::string name;
  TUTTI_FIELDS(image, label, name)
};

TEST(Collate, EveryKindOfTree) {
  using S = std::tuple<Tensor, int, float, double, bool, std::string, std::map<std::string, Tensor>, std::array<int, 2>,
                       std::vector<Tensor>, std::optional<Tensor>, std::pair<uint8_t, Tensor>>;
  auto sample = [](int n) {
    Tensor t = full({2}, n);
    return S{t, n, 0.5f, 0.5, n > 1, "s" + std::to_string(n), {{"k", t}}, {n, n + 1}, {t, t}, t, {n, t}};
  };
  auto batch = data::collate(std::vector<S>{sample(1), sample(2), sample(3)});
  EXPECT_EQ(std::get<0>(batch).sizes(), Shape({3, 2}));
  EXPECT_EQ(values(std::get<1>(batch)), (Doubles{1, 2, 3}));
  EXPECT_EQ(std::get<1>(batch).dtype(), i64);
  EXPECT_EQ(std::get<2>(batch).dtype(), f32);
  EXPECT_EQ(std::get<3>(batch).dtype(), f64);
  EXPECT_EQ(std::get<4>(batch).dtype(), boolean);
  EXPECT_EQ(values(std::get<4>(batch)), (Doubles{0, 1, 1}));
  EXPECT_THAT(std::get<5>(batch), ElementsAre("s1", "s2", "s3"));
  EXPECT_EQ(std::get<6>(batch)["k"].sizes(), Shape({3, 2}));
  EXPECT_EQ(values(std::get<7>(batch)[1]), (Doubles{2, 3, 4}));
  EXPECT_EQ(std::get<8>(batch)[1].sizes(), Shape({3, 2}));
  EXPECT_EQ(std::get<9>(batch)->sizes(), Shape({3, 2}));
  EXPECT_EQ(values(std::get<10>(batch).first), (Doubles{1, 2, 3}));
}

TEST(Collate, Structs) {
  auto same =
      data::collate(std::vector<Tensors>{{ones({2}), {ones({1}), zeros({1})}}, {ones({2}), {ones({1}), zeros({1})}}});
  static_assert(std::same_as<decltype(same), Tensors>);
  EXPECT_EQ(same.more.second.sizes(), Shape({2, 1}));
  auto [image, label, name] = data::collate(std::vector<Labelled>{{ones({2}), 3, "a"}, {ones({2}), 4, "b"}});
  EXPECT_EQ(image.sizes(), Shape({2, 2}));
  EXPECT_EQ(values(label), (Doubles{3, 4}));
  EXPECT_THAT(name, ElementsAre("a", "b"));
}

TEST(Collate, SaysWhatDiffers) {
  EXPECT_THAT(message_of<ShapeError>([] { data::collate(TensorList{ones({2}), ones({2}), ones({3})}); }),
              HasSubstr("samples 0 and 2 of a batch have f32[2]"));
  EXPECT_THROW(data::collate(TensorList{ones({2}), ones({2}, {f64})}), ShapeError);
  EXPECT_THROW(data::collate(std::vector<std::vector<int>>{{1}, {1, 2}}), ShapeError);
  EXPECT_THROW(data::collate(std::vector<std::map<int, int>>{{{1, 1}}, {{2, 1}}}), ShapeError);
  EXPECT_THROW(data::collate(std::vector<std::optional<int>>{{1}, {}}), ShapeError);
  EXPECT_FALSE(data::collate(std::vector<std::optional<int>>{{}, {}}).has_value());
  EXPECT_THROW(data::collate(std::vector<int>{}), ShapeError);
}

}  // namespace
}  // namespace tutti
