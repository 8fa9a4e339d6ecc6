// Shape operators that copy: values against plain loops, layouts, errors.
#include <cmath>

#include "tests/ops/numbers.h"
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

// Products of sizes and strides that no integer holds.
TEST(Geometry, WhatReachesTooFarIsRefused) {
  constexpr int64_t far = int64_t{1} << 61;
  Tensor x = ones({4});
  EXPECT_THROW(as_strided(x, {3}, {far}), ShapeError);
  EXPECT_THROW(as_strided(x, {1}, {1}, far), ShapeError);
  EXPECT_THROW(as_strided(x, {}, {}, far), ShapeError);
  EXPECT_THROW(empty_strided({3}, {far}), ShapeError);
  EXPECT_THROW(from_blob(x.raw_data(), {3}, {}, nullptr, Shape{far}), ShapeError);
  EXPECT_THROW(x.expand({int64_t{1} << 40, int64_t{1} << 40, 4}), ShapeError);
  EXPECT_THROW(zeros({int64_t{1} << 40, int64_t{1} << 40}), ShapeError);
  EXPECT_THAT(message_of<ShapeError>([&] { zeros({int64_t{1} << 40, int64_t{1} << 40}); }), HasSubstr("zeros: "));
  EXPECT_EQ(ints(tril(ones({2, 2}), INT64_MAX)), (Ints{1, 1, 1, 1}));
  EXPECT_EQ(ints(tril(ones({2, 2}), INT64_MIN)), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(ints(triu(ones({2, 2}), INT64_MAX)), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(ints(triu(ones({2, 2}), INT64_MIN)), (Ints{1, 1, 1, 1}));
  EXPECT_THAT(message_of<IndexError>([] { tensor(1.0).unsqueeze(2); }), HasSubstr("-1 to 0"));
}

// Products and sums that wrap to something harmless, or to nothing at all.
TEST(Geometry, WhatWrapsIsRefused) {
  constexpr int64_t much = int64_t{1} << 32, most = INT64_MAX;
  Tensor x = ones({4}), none = zeros({0});
  auto too_many = HasSubstr("too many");
  EXPECT_THAT(message_of<ShapeError>([&] { view(none, {much, much}); }), HasSubstr("view: [4294967296, 4294967296]"));
  EXPECT_THAT(message_of<ShapeError>([&] { view(ones({1}), {7, 0x6DB6DB6DB6DB6DB7}); }), too_many);
  EXPECT_THAT(message_of<ShapeError>([&] { reshape(none, {much, -1, much}); }), HasSubstr("reshape:"));
  EXPECT_THAT(message_of<ShapeError>([&] { repeat(x, {int64_t{1} << 62}); }), HasSubstr("repeat:"));
  EXPECT_THAT(message_of<ShapeError>([&] { repeat(none, {much, much, 1}); }), HasSubstr("repeat:"));
  EXPECT_THAT(message_of<ShapeError>([&] { tile(x, {int64_t{1} << 62}); }), HasSubstr("tile:"));
  EXPECT_THAT(message_of<ShapeError>([&] { repeat_interleave(x, int64_t{1} << 62, 0); }),
              HasSubstr("repeat_interleave:"));
  EXPECT_THAT(message_of<ShapeError>([&] { split(x, {most, most, 6}); }), HasSubstr("do not add up"));
  EXPECT_THAT(message_of<ShapeError>([&] { pad(x, {most, most}); }), HasSubstr("pad:"));
  EXPECT_THAT(message_of<ShapeError>([&] { diag(x, most); }), HasSubstr("diag:"));
  EXPECT_THAT(message_of<ShapeError>([&] { diag(x, INT64_MIN); }), HasSubstr("diag:"));
  EXPECT_THAT(message_of<ShapeError>([&] { one_hot(zeros({0, 4}, i64), int64_t{1} << 62); }), HasSubstr("one_hot:"));
  Tensor long_one = ones({1}).expand({int64_t{1} << 58});
  EXPECT_THAT(message_of<ShapeError>([&] { cat(TensorList(64, long_one)); }), HasSubstr("cat:"));
  EXPECT_EQ(view(none, {much, 0}).sizes(), (Shape{much, 0}));
  EXPECT_EQ(unfold(ones({4, 2}), 0, 4, most).clone().sizes(), (Shape{1, 2, 4}));
  EXPECT_EQ(repeat(none, {most}).numel(), 0);
}

TEST(Chunk, OfNothing) {
  TensorList parts = chunk(zeros({0, 2}), 3);
  ASSERT_EQ(parts.size(), 3u);
  for (auto& part : parts) EXPECT_EQ(part.sizes(), (Shape{0, 2}));
  EXPECT_EQ(chunk(zeros({2, 0}), 2, 1).size(), 2u);
  EXPECT_EQ(chunk(zeros({2}), 3).size(), 2u);
}

TEST(Flip, DimsAndLayouts) {
  Tensor x = counting({2, 3});
  EXPECT_EQ(ints(flip(x, 0)), (Ints{3, 4, 5, 0, 1, 2}));
  EXPECT_EQ(ints(flip(x, {-1})), (Ints{2, 1, 0, 5, 4, 3}));
  EXPECT_EQ(ints(flip(x, {0, 1})), (Ints{5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(ints(flip(x, {})), (Ints{5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(ints(flip(x.t(), 0)), (Ints{2, 5, 1, 4, 0, 3}));
  EXPECT_EQ(ints(flip(x.slice(1, 0, {}, 2), 1)), (Ints{2, 0, 5, 3}));
  EXPECT_EQ(ints(flip(counting({1, 2}).expand({2, 2}), {1})), (Ints{1, 0, 1, 0}));
  EXPECT_EQ(flip(zeros({0, 2}), 0).sizes(), Shape({0, 2}));
  EXPECT_EQ(flip(tensor(3.), 0).item<double>(), 3);
  EXPECT_FALSE(flip(x, 0).shares_storage(x));
  EXPECT_THAT(message_of<ValueError>([&] { flip(x, {0, -2}); }), HasSubstr("twice"));
  EXPECT_THROW(flip(x, 2), IndexError);
  for (DType dtype : kAllDTypes) EXPECT_TRUE(equal(flip(x.to(dtype), 1), flip(x, 1).to(dtype))) << name(dtype);
}

TEST(Roll, ShiftsAnyWay) {
  Tensor x = counting({2, 3});
  EXPECT_EQ(ints(roll(x, 1)), (Ints{5, 0, 1, 2, 3, 4}));
  EXPECT_EQ(ints(roll(x, -1, 1)), (Ints{1, 2, 0, 4, 5, 3}));
  EXPECT_EQ(ints(roll(x, {1, 4}, {0, 1})), (Ints{5, 3, 4, 2, 0, 1}));
  EXPECT_EQ(ints(roll(x, {1, 2}, {1, -1})), ints(x));
  EXPECT_EQ(ints(roll(x.t(), {INT64_MAX, INT64_MIN}, {0, 0})), ints(roll(x.t(), -1, 0)));
  EXPECT_EQ(roll(zeros({0, 2}), {3, 1}, {0, 1}).sizes(), Shape({0, 2}));
  EXPECT_EQ(roll(tensor(3.), 2).item<double>(), 3);
  EXPECT_EQ(ints(roll(x.t(), 2)), (Ints{2, 5, 0, 3, 1, 4}));
  EXPECT_THAT(message_of<ValueError>([&] { roll(x, {1, 2}, 0); }), HasSubstr("2 shifts were given for 1 dims"));
  EXPECT_THROW(roll(x, {1, 2}), ValueError);
}

TEST(Repeat, TilesAndInterleaves) {
  Tensor x = tensor({{1, 2}, {3, 4}});
  EXPECT_EQ(ints(repeat(x, {2, 2})), (Ints{1, 2, 1, 2, 3, 4, 3, 4, 1, 2, 1, 2, 3, 4, 3, 4}));
  EXPECT_EQ(repeat(x, {3, 1, 2}).sizes(), Shape({3, 2, 4}));
  EXPECT_EQ(repeat(x, {0, 2}).sizes(), Shape({0, 4}));
  EXPECT_EQ(ints(repeat(tensor(5), {3})), (Ints{5, 5, 5}));
  EXPECT_EQ(ints(repeat(x.t(), {1, 2})), (Ints{1, 3, 1, 3, 2, 4, 2, 4}));
  EXPECT_EQ(ints(repeat_interleave(x, 2, 0)), (Ints{1, 2, 1, 2, 3, 4, 3, 4}));
  EXPECT_EQ(ints(repeat_interleave(x.t(), 2, -1)), (Ints{1, 1, 3, 3, 2, 2, 4, 4}));
  EXPECT_EQ(ints(repeat_interleave(tensor(7), 3, 0)), (Ints{7, 7, 7}));
  EXPECT_EQ(repeat_interleave(x, 0, 1).sizes(), Shape({2, 0}));
  EXPECT_THROW(repeat(x, {2}), ShapeError);
  EXPECT_THROW(repeat(x, {2, -1}), ValueError);
  EXPECT_THROW(repeat_interleave(x, -1, 0), ValueError);
  Tensor leaf = ones({2}, {f64, {}, true});
  repeat(leaf, {0}).sum().backward();
  EXPECT_EQ(values(leaf.grad()), (Doubles{0, 0}));
}

TEST(Cat, AlongEveryDim) {
  Tensor a = counting({2, 3, 2}), b = counting({2, 1, 2}) + 100;
  Tensor y = cat({a, b, a}, 1);
  EXPECT_EQ(y.sizes(), Shape({2, 7, 2}));
  EXPECT_TRUE(equal(y.narrow(1, 0, 3), a));
  EXPECT_TRUE(equal(y.narrow(1, 3, 1), b));
  EXPECT_TRUE(equal(y.narrow(1, 4, 3), a));
  EXPECT_TRUE(equal(cat({a, a}, 0), stack({a, a}).reshape({4, 3, 2})));
  EXPECT_TRUE(equal(cat({a, a}, -1).narrow(2, 2, 2), a));
}

TEST(Cat, PromotesAndSkipsEmptyLists) {
  Tensor y = cat({tensor({1, 2}, {i32}), tensor({0.5}, {bf16}), tensor({true}), zeros({0}, {f64})});
  EXPECT_EQ(y.dtype(), bf16);
  EXPECT_EQ(values(y), (Doubles{1, 2, 0.5, 1}));
  EXPECT_EQ(cat({zeros({0}), ones({2, 2})}, 1).sizes(), Shape({2, 2}));
  EXPECT_EQ(cat({zeros({0}), zeros({0})}).sizes(), Shape({0}));
  EXPECT_EQ(cat({zeros({2, 0}), ones({2, 1})}, -1).sizes(), Shape({2, 1}));
  for (DType dtype : kAllDTypes) {
    Tensor x = counting({2, 3}).to(dtype);
    EXPECT_TRUE(equal(cat({x, x}, 0), repeat(x, {2, 1}))) << name(dtype);
  }
}

TEST(Cat, Layouts) {
  Tensor x = counting({2, 3, 4, 5}), last = x.contiguous(MemoryFormat::channels_last);
  Tensor y = cat({last, last}, 1);
  EXPECT_TRUE(y.is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(equal(y, cat({x, x}, 1)));
  EXPECT_TRUE(cat({last, x}, 1).is_contiguous());
  EXPECT_TRUE(equal(cat({last, x}, 0), cat({x, x}, 0)));
  EXPECT_TRUE(equal(cat({x.transpose(0, 3), x.transpose(0, 3)}, 2), cat({x, x}, 2).transpose(0, 3)));
  Tensor e = ones({1, 2}).expand({3, 2});
  EXPECT_EQ(values(cat({e, e.narrow(0, 0, 1)})), Doubles(8, 1));
  Tensor large = arange(3000000);
  EXPECT_TRUE(equal(cat({large, large}).narrow(0, 3000000, 3000000), large));
}

TEST(Cat, Errors) {
  EXPECT_THROW(cat({}), ValueError);
  EXPECT_THAT(message_of<ShapeError>([] { cat({ones({2, 3}), ones({3, 2})}); }), HasSubstr("tensor 1, f32[3, 2]"));
  EXPECT_THAT(message_of<ShapeError>([] { cat({tensor(1.), tensor(2.)}); }), HasSubstr("stack()"));
  EXPECT_THROW(cat({ones({2})}, 1), IndexError);
  EXPECT_THROW(cat({ones({2}), Tensor()}), ValueError);
  EXPECT_THAT(message_of<ShapeError>([] { stack({ones({2}), ones({3})}); }), HasSubstr("tensor 1, f32[3]"));
  EXPECT_THROW(stack({}), ValueError);
}

TEST(Stack, MakesADim) {
  Tensor a = tensor({1, 2}), b = tensor({3, 4});
  EXPECT_EQ(ints(stack({a, b})), (Ints{1, 2, 3, 4}));
  EXPECT_EQ(ints(stack({a, b}, -1)), (Ints{1, 3, 2, 4}));
  EXPECT_EQ(stack({tensor(1.), tensor(2.)}).sizes(), Shape({2}));
  EXPECT_EQ(stack({zeros({0}), zeros({0})}, 1).sizes(), Shape({0, 2}));
}

// ---- pad

Tensor pad_by_loop(const Tensor& x, int64_t before, int64_t after, PadMode mode) {
  int64_t n = x.size(-1);
  TensorList columns;
  for (int64_t o = 0; o < n + before + after; ++o) {
    int64_t i = o - before;
    if (mode == PadMode::reflect) i = i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
    if (mode == PadMode::replicate) i = std::clamp<int64_t>(i, 0, n - 1);
    if (mode == PadMode::circular) i = (i + n) % n;
    bool inside = i >= 0 && i < n;
    columns.push_back(inside ? x.select(-1, i) : full(x.select(-1, 0).sizes(), 7, {.dtype = x.dtype()}));
  }
  return stack(columns, -1);
}

TEST(Pad, EveryModeOnSeveralDims) {
  Tensor x = counting({2, 3, 4, 5});
  for (PadMode mode : {PadMode::constant, PadMode::reflect, PadMode::replicate, PadMode::circular})
    for (const Shape& pads :
         {Shape{1, 2}, Shape{0, 3, 2, 1}, Shape{-1, 2, 2, -2}, Shape{1, 1, 0, 2, 1, 0}, Shape{-2, -2}}) {
      Tensor expected = x;
      for (size_t i = 0; i < pads.size() / 2; ++i) {
        int64_t d = 3 - static_cast<int64_t>(i);
        expected = pad_by_loop(expected.transpose(d, 3), pads[2 * i], pads[2 * i + 1], mode).transpose(d, 3);
      }
      Tensor got = pad(x, pads, mode, 7);
      EXPECT_TRUE(equal(got, expected.contiguous())) << static_cast<int>(mode) << to_string(pads);
      Tensor strided = x.permute({3, 1, 0, 2}).contiguous().permute({2, 1, 3, 0});
      EXPECT_TRUE(equal(pad(strided, pads, mode, 7), got));
      Tensor last = x.contiguous(MemoryFormat::channels_last);
      EXPECT_TRUE(equal(pad(last, pads, mode, 7), got));
      EXPECT_TRUE(pad(last, pads, mode, 7).is_contiguous(MemoryFormat::channels_last));
    }
}

TEST(Pad, Corners) {
  EXPECT_EQ(values(pad(zeros({0}), {1, 2}, PadMode::constant, 3)), (Doubles{3, 3, 3}));
  EXPECT_EQ(values(pad(counting({4}), {-5, 8})), Doubles(7, 0));
  EXPECT_EQ(values(pad(counting({4}), {8, -5})), Doubles(7, 0));
  EXPECT_EQ(values(pad(counting({4}), {2, -3})), (Doubles{0, 0, 0}));
  EXPECT_EQ(pad(counting({4}), {-2, -2}).sizes(), Shape({0}));
  EXPECT_EQ(pad(tensor(1.), {}).item<double>(), 1);
  EXPECT_EQ(values(pad(counting({1}), {2, 2}, PadMode::replicate)), Doubles(5, 0));
  EXPECT_EQ(ints(pad(tensor({1, 2}, {i8}), {2, 2}, PadMode::circular)), (Ints{1, 2, 1, 2, 1, 2}));
  EXPECT_TRUE(std::isnan(values(pad(counting({1}), {1, 0}, PadMode::constant, std::nan("")))[0]));
  Tensor x = counting({2, 3});
  EXPECT_THAT(message_of<ValueError>([&] { pad(x, {3, 0}, PadMode::reflect); }),
              HasSubstr("reflect padding of 3 at dim 1 of f32[2, 3]"));
  EXPECT_THROW(pad(x, {0, 4}, PadMode::circular), ValueError);
  EXPECT_THROW(pad(zeros({0}), {1, 0}, PadMode::replicate), ValueError);
  EXPECT_THROW(pad(x, {1}), ValueError);
  EXPECT_THROW(pad(x, {1, 1, 1, 1, 1, 1}), ValueError);
  EXPECT_THROW(pad(x, {-2, -2}), ShapeError);
}

TEST(Pad, Gradients) {
  Tensor x = sin(counting({1, 2, 3, 4}, f64)).requires_grad_();
  for (PadMode mode : {PadMode::constant, PadMode::reflect, PadMode::replicate, PadMode::circular}) {
    auto f = [mode](const TensorList& in) -> TensorList { return {sin(pad(in[0], {1, 2, -1, 1}, mode, 0.5))}; };
    EXPECT_TRUE(gradcheck(f, {x}));
    EXPECT_TRUE(gradgradcheck(f, {x}));
  }
}

// ---- view_dtype

TEST(ViewDtype, SameBytes) {
  Tensor x = tensor({1., -2., 0.5, 3.});
  Tensor bits = x.view_dtype(i32);
  EXPECT_TRUE(bits.shares_storage(x));
  EXPECT_EQ(ints(bits)[0], 0x3f800000);
  EXPECT_EQ(x.view_dtype(u8).sizes(), Shape({16}));
  EXPECT_EQ(x.view_dtype(f64).sizes(), Shape({2}));
  EXPECT_TRUE(equal(x.view_dtype(f64).view_dtype(f32), x));
  EXPECT_EQ(x.view_dtype(c64).index({1}).item<std::complex<float>>(), std::complex<float>(0.5, 3));
  Tensor rows = counting({4, 6}).narrow(1, 2, 4);
  EXPECT_TRUE(equal(rows.view_dtype(i16).view_dtype(f32), rows));
  EXPECT_TRUE(equal(rows.view_dtype(c64), rows.contiguous().view_dtype(c64)));
  EXPECT_TRUE(equal(rows.t().view_dtype(i32).view_dtype(f32), rows.t()));
  bits.zero_();
  EXPECT_EQ(values(x), Doubles(4, 0));
}

TEST(ViewDtype, Errors) {
  Tensor x = counting({4, 6});
  EXPECT_THAT(message_of<ShapeError>([&] { x.t().view_dtype(i16); }), HasSubstr("stride 6"));
  EXPECT_THAT(message_of<ShapeError>([&] { x.narrow(1, 0, 3).view_dtype(f64); }), HasSubstr("size of the last dim 3"));
  EXPECT_THAT(message_of<ShapeError>([&] { x.narrow(1, 1, 2).view_dtype(f64); }), HasSubstr("storage offset 1"));
  EXPECT_THROW(tensor(1.).view_dtype(f64), ShapeError);
  EXPECT_THROW(counting({3, 3}).narrow(1, 0, 2).view_dtype(f64), ShapeError);
  EXPECT_THAT(message_of<DTypeError>([&] { x.view_dtype(boolean); }), HasSubstr("x != 0"));
}

TEST(Shape, ViewOnAnotherDevice) {
  int before = cpu_devices();
  set_cpu_devices(2);
  Tensor x = rand({3, 4}, {.dtype = f64, .requires_grad = true}), y = view_on(x.t(), "cpu:1");
  EXPECT_EQ(y.device(), Device("cpu:1"));
  EXPECT_TRUE(y.shares_storage(x));
  EXPECT_EQ(y.strides(), x.t().strides());
  EXPECT_TRUE(view_on(x, "cpu:0").is_same(x));
  auto f = [](const TensorList& xs) { return TensorList{view_on(exp(view_on(xs[0], "cpu:1")), "cpu:0")}; };
  EXPECT_TRUE(gradcheck(f, {x}));
  EXPECT_TRUE(gradgradcheck(f, {x}));
  Tensor plain = zeros({2}), seen = view_on(plain, "cpu:1");
  seen += 1;
  EXPECT_EQ(plain[0].item<double>(), 1);
  EXPECT_EQ(plain.version(), seen.version());
  EXPECT_EQ(view_on(empty({2}, {.device = "meta"}), "meta").sizes(), Shape({2}));
  EXPECT_THROW(view_on(x, "cpu:2"), DeviceError);
  EXPECT_THROW(view_on(x, "meta"), DeviceError);
  set_cpu_devices(before);
}

// One gradient for all pieces, also of those that nobody used; writes into pieces are seen as in any view.
TEST(Shape, PiecesShareOneNode) {
  Tensor x = rand({6, 3}, {.dtype = f64, .requires_grad = true});
  for (int64_t dim : {0, 1}) {
    auto f = [&](const TensorList& xs) {
      TensorList p = split(xs[0], dim ? Shape{1, 0, 2} : Shape{2, 3, 1}, dim), u = unbind(xs[0], dim);
      return TensorList{exp(p[2]).sum() + (u[0] * u[1]).sum()};
    };
    EXPECT_TRUE(gradcheck(f, {x}));
    EXPECT_TRUE(gradgradcheck(f, {x}));
  }
  Tensor base = x * 2, first = split(base, 3)[0];
  first.mul_(5);
  base.sum().backward();
  EXPECT_EQ(x.grad()[0][0].item<double>(), 10);
  EXPECT_EQ(x.grad()[5][0].item<double>(), 2);
}

TEST(Shape, TransposedCopies) {
  for (DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64, DType::c128})
    for (Shape sizes : {Shape{70, 33}, Shape{64, 64}, Shape{5, 40, 17, 9}, Shape{8, 300}}) {
      Tensor x = arange(sizes.product()).remainder(251).view(sizes).to(dtype);
      for (int64_t d = 0; d + 1 < x.dim(); ++d) {
        Tensor t = x.transpose(d, -1), copy = t.contiguous();
        ASSERT_TRUE(copy.is_contiguous());
        ASSERT_TRUE(equal(copy.transpose(d, -1).contiguous(), x)) << to_string(sizes);
        // Against single elements.
        for (int64_t i = 0; i < t.numel(); i += 97) {
          int64_t rest = i;
          Tensor e = t;
          Shape at = Shape::filled(static_cast<size_t>(t.dim()), 0);
          for (int64_t k = t.dim() - 1; k >= 0; --k) at[static_cast<size_t>(k)] = rest % t.size(k), rest /= t.size(k);
          for (int64_t k = 0; k < t.dim(); ++k) e = e.select(0, at[static_cast<size_t>(k)]);
          ASSERT_TRUE(equal(e, copy.view({-1})[i])) << to_string(sizes) << " " << i;
        }
      }
    }
}

}  // namespace
}  // namespace tutti
