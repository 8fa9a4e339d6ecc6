#include "tutti/tree.h"

#include "tests/support/expect_ops.h"

namespace tutti::test {
namespace {

struct Sample {
  Tensor image_;
  int64_t label = 0;
  std::optional<Tensor> mask;
  TUTTI_FIELDS(image_, label, mask)
};

using Nested = std::tuple<Tensor, std::vector<Sample>, std::map<std::string, std::pair<Tensor, double>>,
                          std::variant<int, Tensor>, std::unordered_map<int, Tensor>, std::array<Tensor, 2>>;

Nested nested() {
  return {tensor({0}),
          {{tensor({1}), 7, tensor({2})}, {tensor({3}), 8, {}}},
          {{"b", {tensor({5}), 0.5}}, {"a", {tensor({4}), 0.25}}},
          tensor({6}),
          {{3, tensor({8})}, {1, tensor({7})}},
          {tensor({9}), tensor({10})}};
}

TEST(Tree, VisitsEveryTensorInAFixedOrder) {
  Doubles seen;
  for (const Tensor& t : tree::tensors(nested())) seen.push_back(t.item<double>());
  EXPECT_EQ(seen, (Doubles{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

TEST(Tree, MapKeepsTheRestAndLeavesTheOriginal) {
  Nested from = nested();
  Nested to = tree::map(from, [](const Tensor& t) { return t * 2; });
  EXPECT_EQ(std::get<1>(to)[0].image_.item<int>(), 2);
  EXPECT_EQ(std::get<1>(from)[0].image_.item<int>(), 1);
  EXPECT_EQ(std::get<1>(to)[1].label, 8);
  EXPECT_FALSE(std::get<1>(to)[1].mask.has_value());
  EXPECT_EQ(std::get<2>(to).at("a").second, 0.25);
  Tensor alone = tree::map(tensor({1, 2}), [](const Tensor& t) { return t + 1; });
  EXPECT_EQ(values(alone), (Doubles{2, 3}));
}

TEST(Tree, AssignPutsThemBackAndCounts) {
  Nested to = nested();
  TensorList list = tree::tensors(to);
  std::reverse(list.begin(), list.end());
  tree::assign_tensors(to, list);
  EXPECT_EQ(std::get<0>(to).item<int>(), 10);
  list.pop_back();
  EXPECT_EQ(message_of<ValueError>([&] { tree::assign_tensors(to, list); }),
            "assign_tensors: 10 tensors were given for a tree that holds 11");
}

TEST(Tree, NamesChildren) {
  std::vector<std::string> names;
  Sample sample;
  tree::for_each_child(sample, [&](const tree::Key& key, auto&) { names.push_back(key.text()); });
  EXPECT_EQ(names, (std::vector<std::string>{"image", "label", "mask"}));
  names.clear();
  std::map<std::string, int> map{{"y", 1}, {"x", 2}};
  tree::for_each_child(map, [&](const tree::Key& key, auto&) { names.push_back(key.text()); });
  EXPECT_EQ(names, (std::vector<std::string>{"x", "y"}));
}

struct Unnamed {
  Tensor x;
};
struct Settings {
  std::string text;
};
struct Numbers {
  int64_t a = 0;
  double b[3] = {};
};

}  // namespace
}  // namespace tutti::test
template <>
inline constexpr bool tutti::tree::plain_leaf<tutti::test::Settings> = true;
namespace tutti::test {
namespace {

TEST(Tree, AStructThatDoesNotNameItsTensorsIsNoLeaf) {
  static_assert(!tree::Leaf<Unnamed> && !tree::Composite<Unnamed>);
  static_assert(!tree::Leaf<const std::unique_ptr<Tensor>&>);
  static_assert(tree::Leaf<Tensor> && tree::Leaf<const std::string&> && tree::Leaf<int> && tree::Leaf<DType>);
  static_assert(tree::Leaf<Device> && tree::Leaf<Shape> && tree::Leaf<std::vector<bool>> && tree::Leaf<const char*>);
  static_assert(tree::Leaf<Numbers> && tree::Leaf<Settings>);
  int leaves = 0;
  std::tuple<Numbers, Settings, Tensor> tree;
  tree::for_each_leaf(tree, [&](auto&) { ++leaves; });
  EXPECT_EQ(leaves, 3);
}

TEST(Tree, KnowsWhatMayHoldTensors) {
  static_assert(tree::may_hold_tensors<Nested>());
  static_assert(tree::may_hold_tensors<const std::vector<std::optional<Sample>>&>());
  static_assert(!tree::may_hold_tensors<std::tuple<int, std::vector<std::string>>>());
  int leaves = 0;
  tree::for_each_leaf(std::as_const(*std::make_unique<std::tuple<int, std::string>>()), [&](const auto&) { ++leaves; });
  EXPECT_EQ(leaves, 2);
}

TEST(Fields, AreReferencesToTheMembers) {
  struct Point {
    int x = 1;
    const double y = 2.5;
    std::array<int, 2> rest = {3, 4};
    TUTTI_FIELDS(x, y, rest)
  };
  static_assert(std::is_same_v<decltype(std::declval<Point&>().fields().tuple()),
                               std::tuple<int&, const double&, std::array<int, 2>&>>);
  static_assert(std::is_same_v<decltype(std::declval<const Point&>().fields().tuple()),
                               std::tuple<const int&, const double&, const std::array<int, 2>&>>);
  Point p;
  auto [x, y, rest] = p.fields().tuple();
  x = 7;
  rest[1] = 8;
  EXPECT_EQ(p.x, 7);
  EXPECT_EQ(&y, &p.y);
  EXPECT_EQ(p.rest[1], 8);
  EXPECT_STREQ(Point::field_names(), "x, y, rest");
  EXPECT_TRUE(tree::HasFields<Point>);
}

TEST(Fields, MayBeNone) {
  struct Nothing {
    TUTTI_FIELDS()
  };
  EXPECT_EQ(Nothing().fields().tuple(), std::tuple<>());
  EXPECT_TRUE(tree::HasFields<Nothing>);
}

// What is a tuple already, as a struct may have it of its own, is none of ours.
TEST(Fields, AreThoseOfTheMacro) {
  struct Other {
    int x = 1;
    auto fields() { return std::tie(x); }
    static const char* field_names() { return "x"; }
  };
  EXPECT_FALSE(tree::HasFields<Other>);
}

}  // namespace
}  // namespace tutti::test
