#include "tutti/io/state.h"

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>

#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tests/support/scratch.h"
#include "tutti/io.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using io::State;
using io::Value;
using io::ValueList;
using testing::HasSubstr;

State round_trip(const State& state) { return io::state_from_bytes(io::state_to_bytes(state), "memory"); }

TEST(State, IsAnOrderedMap) {
  State state;
  state["z"] = 3;
  state["a"] = 0.5;
  state["z"] = "text";
  EXPECT_EQ(state.size(), 2u);
  EXPECT_EQ(state.entries[0].name, "z");
  EXPECT_EQ(state["z"].as<std::string>(), "text");
  const State& constant = state;
  EXPECT_THAT(message_of<FileError>([&] { constant["b"]; }), HasSubstr("'b'"));
  EXPECT_THAT(message_of<FileError>([&] { constant["a"].as<int64_t>(); }),
              HasSubstr("an integer is wanted and a double is there"));
  EXPECT_EQ(Value(3).as<double>(), 3.0);
}

TEST(State, GivesBackEveryKindOfValue) {
  double payload = std::bit_cast<double>(0x7ff8000000001234);
  State state{{"int", INT64_MIN},
              {"seed", static_cast<int64_t>(0xdeadbeefcafef00d)},
              {"double", 0.1},
              {"whole", 2.0},
              {"tiny", 5e-324},
              {"minus", -0.0},
              {"infinity", -std::numeric_limits<double>::infinity()},
              {"nan", payload},
              {"flag", true},
              {"text", "ü \"\n\\ \x01"},
              {"$tensor", 3},
              {"$$x", State{{"$double", "a"}}},
              {"empty", State()},
              {"list", ValueList{1, 2.5, "x", ValueList{}, State{{"y", tensor({1, 2})}}}},
              {"none", Tensor()},
              {"a/b", tensor({1.5})},
              {"a", State{{"b", tensor({2.5})}}}};
  State got = round_trip(state);
  ASSERT_EQ(got.size(), state.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got.entries[i].name, state.entries[i].name);
  EXPECT_EQ(got["int"].as<int64_t>(), INT64_MIN);
  EXPECT_EQ(static_cast<uint64_t>(got["seed"].as<int64_t>()), 0xdeadbeefcafef00d);
  for (const char* name : {"double", "whole", "tiny", "minus", "infinity", "nan"})
    EXPECT_EQ(std::bit_cast<uint64_t>(got[name].as<double>()), std::bit_cast<uint64_t>(state[name].as<double>()))
        << name;
  EXPECT_TRUE(got["whole"].is<double>());
  EXPECT_TRUE(got["flag"].as<bool>());
  EXPECT_EQ(got["text"].as<std::string>(), "ü \"\n\\ \x01");
  EXPECT_EQ(got["$tensor"].as<int64_t>(), 3);
  EXPECT_EQ(got["$$x"].as<State>()["$double"].as<std::string>(), "a");
  EXPECT_EQ(got["empty"].as<State>().size(), 0u);
  auto& list = got["list"].as<ValueList>();
  ASSERT_EQ(list.size(), 5u);
  EXPECT_EQ(list[1].as<double>(), 2.5);
  EXPECT_TRUE(list[3].as<ValueList>().empty());
  EXPECT_EQ(values(list[4].as<State>()["y"].as<Tensor>()), (Doubles{1, 2}));
  EXPECT_FALSE(got["none"].as<Tensor>().defined());
  EXPECT_EQ(values(got["a/b"].as<Tensor>()), Doubles{1.5});
  EXPECT_EQ(values(got["a"].as<State>()["b"].as<Tensor>()), Doubles{2.5});
}

TEST(State, GivesBackEveryDtype) {
  State state;
  for (int i = 0; i < kDTypes; ++i) {
    auto dtype = static_cast<DType>(i);
    state[name(dtype)] = (arange(12) - 5).reshape({3, 4}).to(dtype).transpose(0, 1);
  }
  state["number"] = Tensor(std::complex<double>(1, 2)).to(c128);
  state["nothing"] = zeros({0, 3}, {c64});
  State got = round_trip(state);
  for (auto& [name, value] : state.entries)
    EXPECT_TRUE(identical(got[name].as<Tensor>(), value.as<Tensor>().contiguous())) << name;
}

enum class Colour : uint8_t { red, green = 200 };
struct Inner {
  int16_t small = 0;
  Tensor tensor = {};
  TUTTI_FIELDS(small, tensor)
};
struct Everything {
  std::optional<double> some = {}, none = {};
  std::optional<Tensor> undefined = {};
  std::optional<std::optional<int>> nested = {};
  std::pair<int, std::string> pair = {};
  std::tuple<bool, float, std::vector<Inner>> tuple = {};
  std::array<double, 2> array = {};
  std::variant<int, std::string, Inner> variant = {}, other = {};
  std::map<int, Tensor> numbered = {};
  std::unordered_map<std::string, Inner> named = {};
  std::vector<bool> flags = {};
  uint64_t seed = 0;
  Colour colour = Colour::red;
  Value any = {};
  TUTTI_FIELDS(some, none, undefined, nested, pair, tuple, array, variant, other, numbered, named, flags, seed, colour,
               any)
};

TEST(State, KeepsAnyTree) {
  Everything e{.some = 0.5,
               .undefined = Tensor(),
               .nested = std::optional<int>(),
               .pair = {7, "x"},
               .tuple = {true, 1.5f, {{.small = -3, .tensor = tensor({1, 2})}, {}}},
               .array = {1, -2},
               .variant = Inner{.small = 9, .tensor = tensor({3})},
               .other = "text",
               .numbered = {{-5, tensor({4})}, {12, tensor({5})}},
               .named = {{"k", {.small = 4}}},
               .flags = {true, false, true},
               .seed = 0xfedcba9876543210u,
               .colour = Colour::green,
               .any = State{{"y", 1}}};
  auto got = io::from_state<Everything>(round_trip(io::to_state(e)));
  EXPECT_EQ(got.some, 0.5);
  EXPECT_FALSE(got.none.has_value());
  ASSERT_TRUE(got.undefined.has_value());
  EXPECT_FALSE(got.undefined->defined());
  ASSERT_TRUE(got.nested.has_value());
  EXPECT_FALSE(got.nested->has_value());
  EXPECT_EQ(got.pair, e.pair);
  EXPECT_EQ(std::get<1>(got.tuple), 1.5f);
  ASSERT_EQ(std::get<2>(got.tuple).size(), 2u);
  EXPECT_EQ(std::get<2>(got.tuple)[0].small, -3);
  EXPECT_EQ(values(std::get<2>(got.tuple)[0].tensor), (Doubles{1, 2}));
  EXPECT_EQ(got.array, e.array);
  EXPECT_EQ(std::get<Inner>(got.variant).small, 9);
  EXPECT_EQ(std::get<std::string>(got.other), "text");
  EXPECT_EQ(values(got.numbered.at(-5)), Doubles{4});
  EXPECT_EQ(got.numbered.size(), 2u);
  EXPECT_EQ(got.named.at("k").small, 4);
  EXPECT_EQ(got.flags, e.flags);
  EXPECT_EQ(got.seed, e.seed);
  EXPECT_EQ(got.colour, Colour::green);
  EXPECT_EQ(got.any.as<State>()["y"].as<int64_t>(), 1);
}

TEST(State, RefusesWhatDoesNotFitTheTree) {
  auto refused = [](const char* name, Value value, const char* text) {
    State state = io::to_state(Everything{});
    state[name] = std::move(value);
    EXPECT_THAT(message_of<FileError>([&] { io::from_state<Everything>(state); }), HasSubstr(text)) << name;
  };
  refused("some", ValueList{1.0, 2.0}, "a list of 1 is wanted and one of 2");
  refused("some", 1.0, "a list is wanted");
  refused("pair", ValueList{1}, "a list of 2");
  refused("array", ValueList{1, 2, 3}, "a list of 2");
  refused("tuple", ValueList{}, "a list of 3");
  refused("variant", ValueList{3, 1}, "no alternative 3 of 3");
  refused("variant", ValueList{-1, 1}, "no alternative -1");
  refused("variant", ValueList{1, 1}, "a string is wanted");
  refused("variant", ValueList{1}, "a list of 2");
  refused("numbered", State{{"x", Tensor()}}, "'x' is no number");
  refused("numbered", State{{"99999999999", Tensor()}}, "does not fit");
  refused("numbered", State{{"99999999999999999999", Tensor()}}, "no number");
  refused("colour", 256, "256 does not fit");
  refused("colour", -1, "does not fit");
  refused("pair", ValueList{int64_t{1} << 40, "x"}, "does not fit");
  refused("flags", ValueList{1}, "a bool is wanted");
}

TEST(State, ClonesHaveTensorsOfTheirOwn) {
  Tensor x = zeros({2});
  State live{{"a", x}, {"list", ValueList{x, State{{"b", x}}}}, {"none", Tensor()}, {"n", 3}};
  State kept = io::clone(live);
  x.add_(1);
  EXPECT_EQ(values(live["a"].as<Tensor>()), (Doubles{1, 1}));
  EXPECT_EQ(values(kept["a"].as<Tensor>()), (Doubles{0, 0}));
  EXPECT_EQ(values(kept["list"].as<ValueList>()[1].as<State>()["b"].as<Tensor>()), (Doubles{0, 0}));
  EXPECT_FALSE(kept["none"].as<Tensor>().defined());
  EXPECT_EQ(kept["n"].as<int64_t>(), 3);
}

TEST(State, IsASafetensorsFile) {
  Scratch scratch;
  io::save_state(scratch / "f", {{"model", State{{"weight", ones({2})}}}, {"epoch", 3}});
  EXPECT_EQ(io::SafeTensors(scratch / "f").names(), std::vector<std::string>{"model/weight"});
  EXPECT_EQ(io::load_state(scratch / "f")["epoch"].as<int64_t>(), 3);
  io::save_safetensors(scratch / "g", {{"x", ones({1})}});
  EXPECT_THAT(message_of<FileError>([&] { io::load_state(scratch / "g"); }), HasSubstr("holds no state"));
}

TEST(State, RefusesWhatItCannotKeep) {
  EXPECT_THROW(io::state_to_bytes({{"a", "\xff"}}), ValueError);
  EXPECT_THROW(io::state_to_bytes({{"\xff", 1}}), ValueError);
  EXPECT_THROW(io::state_to_bytes({{"a", 1}, {"a", 2}}), ValueError);
  State deep;
  for (int i = 0; i < 100; ++i) deep = State{{"x", deep}};
  EXPECT_THAT(message_of<ValueError>([&] { io::state_to_bytes(deep); }), HasSubstr("nested"));
  State fine;
  for (int i = 0; i < 50; ++i) fine = State{{"x", fine}};
  EXPECT_EQ(round_trip(fine).size(), 1u);
}

TEST(State, RefusesEveryTruncationAndSurvivesEveryDamage) {
  Scratch scratch;
  std::string path = scratch / "f";
  io::save_state(path, {{"x", arange(3)}, {"n", ValueList{1, 0.5, std::nan("")}}, {"z", zeros({1}, {c64})}});
  std::string whole = io::read_file(path);
  for (size_t length = 0; length < whole.size(); ++length) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, length);
    EXPECT_THROW(io::load_state(path), FileError) << length;
  }
  for (size_t i = 0; i < whole.size(); ++i)
    for (int value : {0, 1, 0x7f, 0x80, 0xff, int{'"'}, int{'{'}, int{'9'}}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(value);
      try {
        io::state_from_bytes(damaged, "memory");
      } catch (const FileError&) {
      } catch (const DTypeError&) {  // a dtype that Tutti lacks
      }
    }
}

}  // namespace
}  // namespace tutti
