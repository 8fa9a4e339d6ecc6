// Object collectives: values of every kind, on every way of running ranks.
#include <limits>

#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

struct Inner {
  double weight = 0;
  std::vector<std::string> names;
  TUTTI_FIELDS(weight, names)
};
struct Sample {
  int64_t id = 0;
  bool flag = false;
  std::string text;
  Tensor data;
  std::vector<Inner> inner;
  std::map<std::string, double> table;
  TUTTI_FIELDS(id, flag, text, data, inner, table)
};

Sample sample_of(int rank) {
  Sample s;
  s.id = rank;
  s.flag = rank % 2;
  s.text = std::string(static_cast<size_t>(rank) * 1000, 'x') + "ü";
  s.data = full({rank, 2}, rank, {.dtype = rank % 2 ? f32 : i64});  // nothing on rank 0
  for (int i = 0; i < rank; ++i) s.inner.push_back({i + 0.5, {"a", std::to_string(i)}});
  s.table["pi"] = rank == 0 ? std::numeric_limits<double>::infinity() : 3.14 * rank;
  return s;
}
void expect_sample(const Sample& s, int rank) {
  Sample wanted = sample_of(rank);
  EXPECT_EQ(s.id, wanted.id);
  EXPECT_EQ(s.flag, wanted.flag);
  EXPECT_EQ(s.text, wanted.text);
  EXPECT_TRUE(equal(s.data, wanted.data));
  ASSERT_EQ(s.inner.size(), wanted.inner.size());
  for (size_t i = 0; i < s.inner.size(); ++i) {
    EXPECT_EQ(s.inner[i].weight, wanted.inner[i].weight);
    EXPECT_EQ(s.inner[i].names, wanted.inner[i].names);
  }
  EXPECT_EQ(s.table, wanted.table);
}

class Objects : public EveryWorld {};
INSTANTIATE_TEST_SUITE_P(Worlds, Objects, every_world(), name_world);

TEST_P(Objects, BroadcastFromEachRoot) {
  spawn([&] {
    for (int root = 0; root < n; ++root) {
      Sample s = sample_of(rank());
      broadcast_object(s, {.root = root});
      expect_sample(s, root);
    }
    std::string text = rank() == 0 ? "" : "old";
    broadcast_object(text);
    EXPECT_EQ(text, "");
    io::ValueList list;
    if (rank() == n - 1) list = {1, 2.5, "three", tensor({4.0}), io::ValueList{true}};
    broadcast_object(list, {.root = n - 1});
    ASSERT_EQ(list.size(), 5u);
    EXPECT_EQ(list[2].as<std::string>(), "three");
    EXPECT_EQ(list[3].as<Tensor>().item<double>(), 4);
    io::Value value = rank();
    broadcast_object(value, {.root = n / 2});
    EXPECT_EQ(value.as<int64_t>(), n / 2);
  });
}

TEST_P(Objects, GatherAndScatter) {
  spawn([&] {
    auto all = all_gather_object(sample_of(rank()));
    ASSERT_EQ(all.size(), static_cast<size_t>(n));
    for (int k = 0; k < n; ++k) expect_sample(all[static_cast<size_t>(k)], k);
    for (int root : {0, n - 1}) {
      auto some = gather_object(std::vector<int>(static_cast<size_t>(rank()), rank()), {.root = root});
      EXPECT_EQ(some.size(), rank() == root ? static_cast<size_t>(n) : 0);
      for (size_t k = 0; k < some.size(); ++k) EXPECT_EQ(some[k], std::vector<int>(k, static_cast<int>(k)));
      std::vector<Sample> parts;
      if (rank() == root)
        for (int k = 0; k < n; ++k) parts.push_back(sample_of(n - k));
      expect_sample(scatter_object(parts, {.root = root}), n - rank());
    }
    EXPECT_EQ(all_gather_object(2.5f * static_cast<float>(rank())).back(), 2.5f * static_cast<float>(n - 1));
    Group half = world().split(rank() % 2);
    EXPECT_EQ(all_gather_object(rank(), {.group = half}).size(), static_cast<size_t>(half.size()));
  });
}

enum class Colour : uint8_t { red, green };
struct Everything {
  Colour colour = Colour::red;
  char letter = 0;
  uint64_t large = 0;
  float real = 0;
  std::complex<float> complex;
  std::string bytes;
  Shape shape;
  std::pair<int, std::string> pair;
  std::tuple<bool, Tensor, std::vector<bool>> tuple;
  std::array<int16_t, 3> array = {};
  std::optional<std::vector<int>> some, none;
  std::variant<int, std::string, Inner> variant;
  std::map<int, std::vector<Inner>> map;
  std::unordered_map<std::string, int> hashed;
  DType dtype = f32;
  TUTTI_FIELDS(colour, letter, large, real, complex, bytes, shape, pair, tuple, array, some, none, variant, map, hashed,
               dtype)
};

TEST_P(Objects, EveryKindOfValue) {
  spawn([&] {
    Everything e;
    if (rank() == n - 1) {
      e.colour = Colour::green;
      e.letter = 'x';
      e.large = std::numeric_limits<uint64_t>::max();
      e.real = 0.1f;
      e.complex = {1.5f, -0.25f};
      e.bytes = std::string("\0\xff\x80 text", 8);
      e.shape = {2, 0, 3};
      e.pair = {-7, "seven"};
      e.tuple = {true, tensor({1.5, 2.5}), {true, false, true}};
      e.array = {1, -2, 3};
      e.some = std::vector<int>{4, 5};
      e.none = std::nullopt;
      e.variant = Inner{0.5, {"a"}};
      e.map[-3] = {Inner{1, {}}, Inner{2, {"b", "c"}}};
      e.hashed = {{"one", 1}, {"two", 2}};
      e.dtype = DType::bf16;
    }
    broadcast_object(e, {.root = n - 1});
    EXPECT_EQ(e.colour, Colour::green);
    EXPECT_EQ(e.letter, 'x');
    EXPECT_EQ(e.large, std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(e.real, 0.1f);
    EXPECT_EQ(e.complex, std::complex<float>(1.5f, -0.25f));
    EXPECT_EQ(e.bytes, std::string("\0\xff\x80 text", 8));
    EXPECT_EQ(e.shape, Shape({2, 0, 3}));
    EXPECT_EQ(e.pair, std::make_pair(-7, std::string("seven")));
    EXPECT_TRUE(std::get<0>(e.tuple));
    EXPECT_TRUE(equal(std::get<1>(e.tuple), tensor({1.5, 2.5})));
    EXPECT_EQ(std::get<2>(e.tuple), (std::vector<bool>{true, false, true}));
    EXPECT_EQ(e.array, (std::array<int16_t, 3>{1, -2, 3}));
    EXPECT_EQ(e.some, (std::vector<int>{4, 5}));
    EXPECT_FALSE(e.none);
    ASSERT_EQ(e.variant.index(), 2u);
    EXPECT_EQ(std::get<2>(e.variant).names[0], "a");
    EXPECT_EQ(e.map.at(-3)[1].names[1], "c");
    EXPECT_EQ(e.hashed.at("two"), 2);
    EXPECT_EQ(e.dtype, DType::bf16);
  });
}

TEST_P(Objects, AsynchronousFormsOfParts) {
  spawn([&] {
    Shape rows;
    for (int k = 0; k < n; ++k) rows.push_back((rank() + k) % 3);
    int64_t total = 0;
    for (int64_t r : rows) total += r;
    Tensor x = full({total, 2}, rank(), {f32}), y = zeros({total, 2}), even = zeros({n});
    Work first = all_to_all_async(y, x, rows, rows), second = all_to_all_async(even, full({n}, rank(), {f32}));
    second.wait();
    first.wait();
    int64_t at = 0;
    for (int k = 0; k < n; at += rows[static_cast<size_t>(k++)])
      EXPECT_TRUE(
          equal(y.narrow(0, at, rows[static_cast<size_t>(k)]), full({rows[static_cast<size_t>(k)], 2}, k, {f32})));
    EXPECT_TRUE(equal(even, arange(n).to(f32)));
  });
}

TEST(ObjectErrors, ValuesThatDoNotFit) {
  auto as = [](const auto& from, auto to) {
    return message_of<FileError>(
        [&] { detail::object_from_bytes<decltype(to)>(detail::object_to_bytes(from), "here"); });
  };
  EXPECT_THAT(as(300, uint8_t{}), HasSubstr("a smaller integer than 300 is wanted"));
  EXPECT_THAT(as(-1, uint32_t{}), HasSubstr("a smaller integer than -1 is wanted"));
  EXPECT_THAT(as(std::vector<int>{1, 2}, std::array<int, 3>{}), HasSubstr("a list of 3 is wanted and one of 2"));
  EXPECT_THAT(as(std::pair(1, 2), std::tuple<int, int, int>{}), HasSubstr("a list of 3 is wanted"));
  EXPECT_THAT(as(std::pair(5, 2), std::variant<int, bool>{}), HasSubstr("one of 2 kinds is wanted"));
  EXPECT_THAT(as(tensor({1.5}), std::string()), HasSubstr("a string is wanted and f"));
  EXPECT_THAT(as(1.5, 1), HasSubstr("an integer is wanted"));
  EXPECT_THAT(as(std::vector<int>{1, 2}, std::optional<int>{}), HasSubstr("a list of 1 is wanted"));
}

TEST_P(Objects, ManyTensorsAreBroadcastInOneCall) {
  spawn([&] {
    for (int root = 0; root < n; ++root) {
      TensorList xs{full({3}, rank(), {f32}), full({0}, 1, {f32}), full({4, 2}, rank(), {f32}).t()};
      broadcast(xs, {.root = root});
      EXPECT_TRUE(equal(xs[0], full({3}, root, {f32})));
      EXPECT_TRUE(equal(xs[2], full({2, 4}, root, {f32})));
      broadcast_async(xs, {.root = root}).wait();
    }
    broadcast(TensorList{});
    if (n > 1) {
      EXPECT_THROW(broadcast(TensorList(rank() ? 1 : 2, ones({1}))), MismatchError);
    }
  });
}

TEST_P(Objects, OfAnotherTypeAreErrors) {
  struct Other {
    int64_t other = 0;
    TUTTI_FIELDS(other)
  };
  spawn([] {
    if (rank() == 0) {
      Inner inner{1, {}};
      broadcast_object(inner);
    } else {
      Other other;
      EXPECT_THAT(message_of<MismatchError>([&] { broadcast_object(other); }), HasSubstr("takes "));
    }
    int64_t number = 3;
    std::string text;
    if (rank() == 0)
      broadcast_object(number);
    else
      EXPECT_THROW(broadcast_object(text), MismatchError);
    EXPECT_THROW(scatter_object(std::vector<int>(static_cast<size_t>(world_size() + 1)), {.root = rank()}), Error);
    std::vector<int> all = all_gather_object(rank());  // and all goes on
    EXPECT_EQ(all.back(), world_size() - 1);
  });
}

TEST(ObjectErrors, MalformedBytesAreErrors) {
  std::string good = detail::object_to_bytes(sample_of(2));
  EXPECT_EQ(detail::object_from_bytes<Sample>(good, "here").id, 2);
  for (size_t length : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1})
    EXPECT_THROW(detail::object_from_bytes<Sample>(good.substr(0, length), "here"), FileError) << length;
  EXPECT_THROW(detail::object_from_bytes<Sample>(std::string(100, '\xff'), "here"), FileError);
  EXPECT_THAT(message_of<FileError>([] { detail::object_from_bytes<int>("garbage", "the object of rank 3"); }),
              HasSubstr("the object of rank 3"));
}

}  // namespace
}  // namespace tutti
