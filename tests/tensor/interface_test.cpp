// What a program's author meets first: numbers in and out, handles, options, guards, printing.
#include <array>
#include <functional>
#include <sstream>
#include <thread>

#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/operator.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace test;  // NOLINT

// ---- Handles

// A temporary handle cannot be made to mean something else; a variable, and a class derived from Tensor, can.
struct Derived : Tensor {
  Derived() = default;
  Derived(Tensor t) : Tensor(std::move(t)) {}  // NOLINT
};
template <class T>
concept CanBeReset = requires(T&& t) { std::forward<T>(t).reset(); };
static_assert(!std::is_assignable_v<Tensor, Tensor>);
static_assert(!std::is_assignable_v<Tensor, int>);
static_assert(!std::is_assignable_v<Tensor, const Tensor&>);
static_assert(std::is_assignable_v<Tensor&, int>);
static_assert(std::is_copy_assignable_v<Tensor> && std::is_nothrow_move_assignable_v<Tensor>);
static_assert(std::is_copy_assignable_v<Derived> && std::is_assignable_v<Derived&, Tensor>);
static_assert(CanBeReset<Tensor&> && !CanBeReset<Tensor>);

TEST(Handle, TemporariesAreWrittenNotAssigned) {
  Tensor x = zeros({2, 2});
  x[0] += 5;
  x.index({1, 1}).fill_(7);
  EXPECT_THAT(values(x), ElementsAre(5, 5, 0, 7));
  Derived d;
  d = x;
  Derived e = d;
  d = Derived();
  EXPECT_FALSE(d.defined());
  EXPECT_TRUE(e.is_same(x));
  x.swap(e);
  x.reset();
  EXPECT_FALSE(x.defined());
}

TEST(Handle, CompoundOperators) {
  Tensor x = tensor({5, 6, 7});
  x %= 4;
  EXPECT_THAT(values(x), ElementsAre(1, 2, 3));
  x |= 4;
  EXPECT_THAT(values(x), ElementsAre(5, 6, 7));
  x &= 3;
  x ^= 1;
  EXPECT_THAT(values(+x), ElementsAre(0, 3, 2));
  EXPECT_TRUE((+x).is_same(x));
}

// ---- Numbers out

TEST(Item, HoldsWhatTheTypeCanHold) {
  EXPECT_EQ(tensor(-128).item<int8_t>(), -128);
  EXPECT_EQ(tensor(255).item<uint8_t>(), 255);
  EXPECT_EQ(tensor(2.75).item<int>(), 2);
  EXPECT_EQ(tensor(-0.5, {f64}).item<unsigned>(), 0u);
  EXPECT_EQ(tensor(INT64_MIN).item<int64_t>(), INT64_MIN);
  EXPECT_EQ(tensor(INT64_MAX).item<uint64_t>(), static_cast<uint64_t>(INT64_MAX));
  EXPECT_EQ(tensor(0x1p63, {f64}).item<uint64_t>(), uint64_t{1} << 63);
  EXPECT_EQ(tensor(INFINITY).item<float>(), INFINITY);
  EXPECT_TRUE(std::isnan(tensor(NAN).item<double>()));
  EXPECT_EQ(tensor(std::complex<double>(3, 0)).item<double>(), 3);
  EXPECT_TRUE(tensor(std::complex<double>(0, 1)).item<bool>());
}

TEST(Item, RefusesTheRest) {
  EXPECT_THAT(message_of<ValueError>([] { tensor(1e30).item<int>(); }), HasSubstr("-2147483648 to 2147483647"));
  EXPECT_THROW(tensor(NAN).item<int>(), ValueError);
  EXPECT_THROW(tensor(INFINITY).item<int64_t>(), ValueError);
  EXPECT_THROW(tensor(0x1p63, {f64}).item<int64_t>(), ValueError);
  EXPECT_THROW(tensor(0x1p64, {f64}).item<uint64_t>(), ValueError);
  EXPECT_THAT(message_of<ValueError>([] { tensor(-1).item<unsigned>(); }), HasSubstr("-1 does not lie in 0 to"));
  EXPECT_THROW(tensor(-1.0).item<size_t>(), ValueError);
  EXPECT_THROW(tensor(256).item<uint8_t>(), ValueError);
  EXPECT_THROW(tensor(128).item<int8_t>(), ValueError);
  EXPECT_THROW(tensor(int64_t{1} << 31).item<int>(), ValueError);
  EXPECT_THROW(tensor(1e300, {f64}).item<float>(), ValueError);
  EXPECT_THAT(message_of<ValueError>([] { tensor(std::complex<double>(1, 2)).item<double>(); }),
              HasSubstr("1+2i has an imaginary part"));
  EXPECT_THROW(tensor(std::complex<double>(1, 2)).item<int>(), ValueError);
}

TEST(Item, VectorsOfAnyNumbers) {
  Tensor x = tensor({1, 0, 200});
  EXPECT_THAT(x.to_vector<unsigned>(), ElementsAre(1u, 0u, 200u));
  EXPECT_THAT(x.to_vector<size_t>(), ElementsAre(1u, 0u, 200u));
  EXPECT_THAT(x.to_vector<uint16_t>(), ElementsAre(1, 0, 200));
  EXPECT_THAT(x.to_vector<long long>(), ElementsAre(1, 0, 200));
  EXPECT_THAT(x.to_vector<int16_t>(), ElementsAre(1, 0, 200));
  EXPECT_THAT(x.to_vector<bool>(), ElementsAre(true, false, true));
  EXPECT_THAT(tensor({65, 66}).to_vector<char>(), ElementsAre('A', 'B'));
  EXPECT_EQ(float(x.to_vector<Half>()[2]), 200.f);
  EXPECT_EQ(zeros({2, 0}).to_vector<unsigned>().size(), 0u);
  EXPECT_THAT(message_of<ValueError>([] { tensor({1, -1}).to_vector<unsigned>(); }), HasSubstr("-1 does not lie in"));
  EXPECT_THROW(tensor({70000}).to_vector<uint16_t>(), ValueError);
}

// ---- Numbers in

TEST(FromNumbers, OfAnyType) {
  EXPECT_EQ(tensor(3u).dtype(), i64);
  EXPECT_EQ(tensor(size_t{3}).item<int>(), 3);
  EXPECT_EQ(tensor(short{-3}).item<int>(), -3);
  EXPECT_EQ(tensor(1LL).dtype(), i64);
  EXPECT_EQ(tensor('a').item<int>(), 97);
  EXPECT_EQ(tensor(true).dtype(), boolean);
  EXPECT_EQ(tensor(1.5f).dtype(), f32);
  EXPECT_THAT(message_of<ValueError>([] { tensor(UINT64_MAX); }), HasSubstr("18446744073709551615 is larger"));
  EXPECT_THROW((void)(ones({1}, i64) + UINT64_MAX), ValueError);
}

TEST(FromNumbers, RangesOfAnyType) {
  std::vector<float> v{1, 2};
  float raw[] = {1, 2, 3};
  EXPECT_EQ(tensor(v).dtype(), f32);
  EXPECT_EQ(tensor(std::span<float>(v)).dtype(), f32);
  EXPECT_EQ(tensor(std::span<const float>(v), {f64}).dtype(), f64);
  EXPECT_THAT(values(tensor(raw)), ElementsAre(1, 2, 3));
  EXPECT_THAT(values(tensor(std::array<double, 2>{4, 5})), ElementsAre(4, 5));
  EXPECT_EQ(tensor(std::array<double, 2>{4, 5}).dtype(), f64);
  EXPECT_EQ(tensor(std::vector<unsigned>{1, UINT32_MAX}).dtype(), i64);
  EXPECT_THAT(values(tensor(std::vector<unsigned>{1, UINT32_MAX})), ElementsAre(1, 4294967295.0));
  EXPECT_THAT(values(tensor(std::vector<size_t>{7, 8})), ElementsAre(7, 8));
  EXPECT_EQ(tensor(std::vector<uint16_t>{65535}).dtype(), i32);
  EXPECT_EQ(tensor(std::vector<long long>{7, 8}).dtype(), i64);
  EXPECT_EQ(tensor(std::vector<char>{'a'}).dtype(), i8);
  EXPECT_EQ(tensor(std::vector<bool>{true, false, true}).dtype(), boolean);
  EXPECT_THAT(values(tensor(std::vector<bool>{true, false, true})), ElementsAre(1, 0, 1));
  EXPECT_THAT(values(tensor(Shape{2, 3})), ElementsAre(2, 3));
  EXPECT_EQ(tensor(std::vector<float>{}).sizes(), (Shape{0}));
  EXPECT_THROW(tensor(std::vector<size_t>{SIZE_MAX}), ValueError);
}

// What item() refuses to read, no function writes: each is given a number and a dtype that it is to become.
TEST(FromNumbers, RefuseWhatTheDTypeCannotHold) {
  using C = std::complex<double>;
  struct Way {
    const char* name;
    std::function<Tensor(const Tensor& number, DType dtype)> write;
  };
  Tensor mask = tensor({true, false}), index = tensor({0});
  const std::vector<Way> ways{
      {"full", [](const Tensor& v, DType d) { return full({2}, v, d); }},
      {"full_like", [](const Tensor& v, DType d) { return full_like(ones({2}), v, d); }},
      {"fill_", [](const Tensor& v, DType d) { return zeros({2}, d).fill_(v); }},
      {"fill_diagonal_", [](const Tensor& v, DType d) { return zeros({2, 2}, d).fill_diagonal_(v).diagonal(); }},
      {"copy_", [](const Tensor& v, DType d) { return zeros({2}, d).copy_(v); }},
      {"masked_fill", [&](const Tensor& v, DType d) { return masked_fill(zeros({2}, d), mask, v); }},
      {"masked_fill_", [&](const Tensor& v, DType d) { return zeros({2}, d).masked_fill_(mask, v); }},
      {"index_fill", [&](const Tensor& v, DType d) { return index_fill(zeros({2}, d), 0, index, v); }},
      {"index_fill_", [&](const Tensor& v, DType d) { return zeros({2}, d).index_fill_(0, index, v); }},
      {"index_put_", [&](const Tensor& v, DType d) { return zeros({2}, d).index_put_({0}, v); }},
      {"scatter", [&](const Tensor& v, DType d) { return scatter(zeros({2}, d), 0, index, v); }},
  };
  for (auto& way : ways) {
    auto refused = [&](const Tensor& number, DType dtype, const char* why) {
      std::string text = message_of<ValueError>([&] { way.write(number, dtype); });
      EXPECT_THAT(text, testing::StartsWith(std::string(way.name) + ": ")) << number << dtype;
      EXPECT_THAT(text, HasSubstr(why));
    };
    auto first = [&](const Tensor& number, DType dtype) { return way.write(number, dtype)[0].item<double>(); };
    refused(300, u8, "300 does not lie in 0 to 255, which u8 can hold");
    refused(-1, u8, "-1 does not lie in 0 to 255");
    refused(-129, i8, "-128 to 127");
    refused(40000, i16, "-32768 to 32767");
    refused(int64_t{1} << 31, i32, "-2147483648 to 2147483647");
    refused(70000, f16, "70000 is too large for f16");
    refused(1e39, f32, "1e+39 is too large for f32");
    refused(3.4e38, bf16, "is too large for bf16");
    refused(C(1, 1e39), c64, "is too large for c64");
    EXPECT_EQ(first(255, u8), 255);
    EXPECT_EQ(first(-128, i8), -128);
    EXPECT_EQ(first(65504, f16), 65504);
    EXPECT_EQ(first(3.4028235e38, f32), static_cast<double>(std::numeric_limits<float>::max()));  // when rounded
    EXPECT_EQ(first(-INFINITY, f16), -INFINITY);
    EXPECT_TRUE(std::isnan(first(NAN, bf16)));
    EXPECT_EQ(first(7, boolean), 1);
  }
  // These also take a number to a lower kind.
  for (size_t i = 0; i < 3; ++i) {
    auto& write = ways[i].write;
    EXPECT_THROW(write(NAN, i64), ValueError);
    EXPECT_THROW(write(INFINITY, i64), ValueError);
    EXPECT_THROW(write(0x1p63, i64), ValueError);
    EXPECT_THROW(write(1e30, i32), ValueError);
    EXPECT_THAT(message_of<ValueError>([&] { write(C(1, 2), f32); }), HasSubstr("1+2i has an imaginary part"));
    EXPECT_EQ(write(C(1, 0), f32)[0].item<double>(), 1);
    EXPECT_EQ(write(1.75, i64)[0].item<double>(), 1);
    EXPECT_EQ(write(-0.5, u8)[0].item<double>(), 0);
    EXPECT_EQ(write(-0x1p63, i64)[0].item<int64_t>(), INT64_MIN);
    EXPECT_EQ(write(C(0, 1), boolean)[0].item<double>(), 1);
  }
  // A tensor is no number: it is converted as cast() does.
  EXPECT_EQ(full({1}, tensor(300), u8).item<int>(), 44);
  EXPECT_EQ(cast(300, u8).item<int>(), 44);
}

TEST(FromNumbers, ListsRefuseItToo) {
  EXPECT_THAT(message_of<ValueError>([] { tensor({300, -1}, u8); }), HasSubstr("tensor: 300 does not lie in 0 to 255"));
  EXPECT_THROW(tensor(300, u8), ValueError);
  EXPECT_THROW(tensor({1, -1}, u8), ValueError);
  EXPECT_THROW(tensor({NAN}, i64), ValueError);
  EXPECT_THROW(tensor({std::complex<double>(1, 2)}, f32), ValueError);
  EXPECT_THROW(tensor(std::vector<int64_t>{1, 70000}, i16), ValueError);
  EXPECT_THROW(tensor(std::vector<double>{1e300}, f32), ValueError);
  EXPECT_THROW(arange(250, 260, 1, {u8}), ValueError);
  EXPECT_THROW(arange(3, -3, -1, {u8}), ValueError);
  EXPECT_EQ(arange(250, 256, 1, {u8}).numel(), 6);
  EXPECT_THAT(message_of<ValueError>([] { linspace(0, 300, 3, u8); }), HasSubstr("linspace: 300"));
  EXPECT_THAT(message_of<ValueError>([] { pad(ones({2}, u8), {1, 1}, PadMode::constant, 300); }),
              HasSubstr("pad: 300"));
  EXPECT_THAT(values(tensor({255, 0}, u8)), ElementsAre(255, 0));
  EXPECT_THAT(values(tensor({INFINITY, 1.0}, f16)), ElementsAre(INFINITY, 1));
}

// A bound beyond the dtype does no harm where it does not bind, and cannot be kept where it does.
TEST(FromNumbers, BoundsOfClamp) {
  Tensor x = tensor({-100, 100}, i8), y = tensor({0, 200}, u8), h = tensor({-2.0, 2.0}, f16);
  EXPECT_THAT(message_of<ValueError>([&] { clamp(x, 200, 300); }),
              HasSubstr("clamp: no number of i8 is as large as 200"));
  EXPECT_THAT(message_of<ValueError>([&] { clamp(x, -300, -200); }), HasSubstr("as small as -200"));
  EXPECT_THAT(message_of<ValueError>([&] { clamp_min(x, 128); }), HasSubstr("clamp_min:"));
  EXPECT_THAT(message_of<ValueError>([&] { clamp_max(y, -1); }), HasSubstr("clamp_max:"));
  EXPECT_THROW(x.clamp_(200, 300), ValueError);
  EXPECT_THROW(clamp_min(h, 1e6), ValueError);
  EXPECT_THAT(values(clamp(x, -1000, 1000)), ElementsAre(-100, 100));
  EXPECT_THAT(values(clamp(y, -5, 100)), ElementsAre(0, 100));
  EXPECT_THAT(values(clamp(h, -1e6, 1)), ElementsAre(-2, 1));
  EXPECT_THAT(values(clamp_max(h, INFINITY)), ElementsAre(-2, 2));
  EXPECT_EQ(clamp(x, 0.5, 200.5).dtype(), f32);
}

TEST(FromNumbers, ReadOnlyMemory) {
  static const float constants[] = {1, 2, 3, 4};
  EXPECT_EQ(sum(from_blob(constants, {2, 2})).item<double>(), 10);
}

TEST(Shapes, FromAnyInteger) {
  size_t n = 3;
  std::vector<int> v(4);
  EXPECT_EQ(zeros(n).sizes(), (Shape{3}));
  EXPECT_EQ(zeros({v.size(), 2}).sizes(), (Shape{4, 2}));
  EXPECT_EQ(zeros({short{2}, 3u, 4LL}).sizes(), (Shape{2, 3, 4}));
  EXPECT_EQ(sum(ones({2, 3}), size_t{1}).sizes(), (Shape{2}));
  Shape s = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(s.size(), 8u);
  EXPECT_EQ(s[7], 8);
}

// ---- Indices

TEST(Indices, OfAnyIntegerAndDots) {
  Tensor x = arange(24).view({2, 3, 4});
  size_t i = 1;
  EXPECT_THAT(values(x.index({i, 2u, short{3}})), ElementsAre(23));
  EXPECT_EQ(x.index({"...", 1}).sizes(), (Shape{2, 3}));
  EXPECT_TRUE(equal(x.index({"..."}), x));
  EXPECT_TRUE(equal(x.index({1, "...", 0}), x.index({1, Ellipsis, 0})));
  EXPECT_EQ(x.index({true}).sizes(), (Shape{1, 2, 3, 4}));
  EXPECT_EQ(x.index({1}).sizes(), (Shape{3, 4}));
  EXPECT_THAT(message_of<IndexError>([&] { x.index({":"}); }), HasSubstr("':' is no index"));
  EXPECT_THROW(x.index({SIZE_MAX}), ValueError);  // not -1
  static_assert(!std::is_constructible_v<Index, double*> && !std::is_convertible_v<void*, Index>);
}

// ---- Options

TEST(OptionsOf, OneThing) {
  Devices devices(2);
  EXPECT_EQ(zeros({2}, f64).dtype(), f64);
  EXPECT_EQ(ones({2}, Device("cpu:1")).device(), Device("cpu:1"));
  EXPECT_EQ(full({2}, 3, i32).dtype(), i32);
  EXPECT_EQ(empty({2}, bf16).dtype(), bf16);
  EXPECT_EQ(rand({2}, f64).dtype(), f64);
  EXPECT_EQ(randn({2}, f64).dtype(), f64);
  EXPECT_EQ(arange(3, f64).dtype(), f64);
  EXPECT_EQ(randint(9, {2}, i32).dtype(), i32);
  EXPECT_EQ(randint(3, 9, {2}, Device("cpu:1")).device(), Device("cpu:1"));
  EXPECT_EQ(randperm(3, i32).dtype(), i32);
  EXPECT_EQ(empty_strided({2}, {3}, f64).dtype(), f64);
  Tensor x = ones({2});
  EXPECT_EQ(rand_like(x, f64).dtype(), f64);
  EXPECT_EQ(randn_like(x, f64).dtype(), f64);
  EXPECT_EQ(empty_like(x, Device("cpu:1")).device(), Device("cpu:1"));
  EXPECT_EQ(full_like(x, 3, i32).dtype(), i32);
  DefaultDTypeGuard guard(f64);
  EXPECT_EQ(zeros({2}, {}).dtype(), f64);
}

TEST(OptionsOf, ToMakesALeafOnRequest) {
  Tensor x = ones({2});
  Tensor y = x.to({.dtype = f64, .requires_grad = true});
  EXPECT_TRUE(y.requires_grad() && y.is_leaf());
  EXPECT_EQ(y.dtype(), f64);
  Tensor same = x.to({.requires_grad = true});
  EXPECT_TRUE(same.requires_grad() && same.shares_storage(x));
  EXPECT_FALSE(x.requires_grad());
  EXPECT_EQ(y.type_as(x).dtype(), f32);
}

TEST(Defaults, OfTheThread) {
  EXPECT_EQ(default_dtype(), f32);
  {
    DefaultDTypeGuard guard(f64);
    EXPECT_EQ(zeros({1}).dtype(), f64);
    EXPECT_EQ(tensor({1.5}).dtype(), f64);
  }
  EXPECT_EQ(zeros({1}).dtype(), f32);
  EXPECT_THROW(set_default_dtype(i64), DTypeError);
  set_default_dtype(f64);
  EXPECT_EQ(default_dtype(), f64);
  set_default_dtype(f32);
  set_num_threads(1);
  EXPECT_EQ(context().threads, 1);
  set_num_threads(0);
  EXPECT_THROW(set_num_threads(-1), ValueError);
}

// ---- Text

TEST(Text, OfShapesDTypesAndDevices) {
  std::ostringstream out;
  out << Shape{2, 3} << ' ' << bf16 << ' ' << Device("cpu:1") << ' ' << boolean;
  EXPECT_EQ(out.str(), "[2, 3] bf16 cpu:1 bool");
  EXPECT_EQ(to_string(Shape{}) + to_string(f32) + to_string(Device("meta")), "[]f32meta");
}

// ---- Autograd

TEST(Autograd, OneTensorAtATime) {
  Tensor x = tensor({1.0, 2.0}, {.requires_grad = true});
  Tensor y = sum(x * x);
  Tensor g = grad(y, x, {.create_graph = true});
  EXPECT_THAT(values(g), ElementsAre(2, 4));
  EXPECT_THAT(values(grad(sum(g), x)), ElementsAre(2, 2));
  EXPECT_EQ(grad({sum(x * x)}, {x}).size(), 1u);  // braces stay lists
  Tensor z = sum(x * 3);
  z.backward({.retain_graph = true});
  z.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(6, 6));
}

// ---- Threads

TEST(Threads, DrawTheirOwnNumbers) {
  std::vector<double> drawn[3];
  for (auto& d : drawn) std::thread([&] { d = values(rand({8})); }).join();
  EXPECT_NE(drawn[0], drawn[1]);
  EXPECT_NE(drawn[1], drawn[2]);
  std::thread([&] { EXPECT_NE(generator().state().seed, 0u); }).join();
  std::vector<double> seeded[2];
  for (auto& d : seeded)
    std::thread([&] {
      manual_seed(3);
      d = values(rand({8}));
    }).join();
  EXPECT_EQ(seeded[0], seeded[1]);
  ContextGuard fresh{Context()};  // as at the start of the program
  EXPECT_EQ(generator().state().seed, 0u);
}

// ---- The operator that operator.h gives as an example

struct Power {
  int64_t n;
  TUTTI_FIELDS(n)
};
const Operator power_op{
    .name = "power",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          if (c.input(0).dtype() != f32) throw DTypeError("power: takes f32 only", "power");
          out[0] = {.sizes = c.input(0).sizes(), .dtype = f32, .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          Tensor x = c.input(0).detach().contiguous();
          const float* from = x.data<float>();
          float* to = c.output().data<float>();
          for (int64_t i = 0; i < x.numel(); ++i) to[i] = std::pow(from[i], static_cast<float>(c.as<Power>().n));
        },
    .gradient =
        [](GradientCall& c) {
          Tensor x = c.input(0);
          Power less{c.as<Power>().n - 1};
          c.set(0, c.grad() * (less.n + 1) * call(power_op, {&x}, attributes(less)));
        },
    .saves_inputs = 1,
};
Tensor power(const Tensor& x, int64_t n) {
  Power a{n};
  return call(power_op, {&x}, attributes(a));
}

TEST(OwnOperator, HasGradientsOfAnyOrder) {
  Tensor x = tensor({{1.0, 2.0}, {3.0, 4.0}}, {.requires_grad = true});
  EXPECT_THAT(values(power(x.t(), 3)), ElementsAre(1, 27, 8, 64));
  Tensor g = grad(sum(power(x, 3)), x, {.create_graph = true});
  EXPECT_THAT(values(g), ElementsAre(3, 12, 27, 48));
  EXPECT_THAT(values(grad(sum(g), x)), ElementsAre(6, 12, 18, 24));
  EXPECT_EQ(power(zeros({2, 3}, Device("meta")), 2).sizes(), (Shape{2, 3}));
  EXPECT_THROW(power(ones({2}, f64), 2), DTypeError);
}

TEST(Geometry, ChannelsLastIgnoresDimsOfSizeOne) {
  EXPECT_TRUE(ones({2, 1, 3, 4}).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(ones({2, 3, 1, 1}).is_contiguous(MemoryFormat::channels_last));
  EXPECT_FALSE(ones({2, 3, 2, 1}).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(ones({0, 3, 2, 2}).is_contiguous(MemoryFormat::channels_last));
  EXPECT_FALSE(ones({2, 1, 3}).is_contiguous(MemoryFormat::channels_last));
}

}  // namespace
}  // namespace tutti
