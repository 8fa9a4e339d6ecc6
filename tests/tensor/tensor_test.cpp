#include "tests/support/expect_ops.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT
using std::complex;

TEST(DType, PromotionByCategory) {
  EXPECT_EQ(promote(f32, i64), f32);
  EXPECT_EQ(promote(i8, u8), i16);
  EXPECT_EQ(promote(u8, i16), i16);
  EXPECT_EQ(promote(bf16, f16), f32);
  EXPECT_EQ(promote(f16, f32), f32);
  EXPECT_EQ(promote(f64, c64), c128);
  EXPECT_EQ(promote(boolean, i8), i8);
  EXPECT_EQ(promote(c64, i64), c64);
  for (int a = 0; a < kDTypes; ++a)
    for (int b = 0; b < kDTypes; ++b) {
      auto x = static_cast<DType>(a), y = static_cast<DType>(b);
      EXPECT_EQ(promote(x, y), promote(y, x));
      EXPECT_EQ(promote(x, promote(x, y)), promote(x, y));
    }
}

TEST(DType, NumbersGiveWay) {
  EXPECT_EQ((ones({2}, {f16}) * 2.5).dtype(), f16);
  EXPECT_EQ((ones({2}, {i32}) * 2).dtype(), i32);
  EXPECT_EQ((ones({2}, {i32}) * 2.5).dtype(), f32);
  EXPECT_EQ((ones({2}, {u8}) + 1).dtype(), u8);
  EXPECT_EQ((ones({2}, {boolean}) + 1).dtype(), i64);
  EXPECT_EQ((ones({2}, {f32}) * complex<double>(0, 1)).dtype(), c64);
  EXPECT_EQ((ones({2}, {f64}) * complex<double>(0, 1)).dtype(), c128);
  // A zero-dimensional tensor gives way within its category only.
  EXPECT_EQ((ones({2}, {f32}) * ones({}, {f64})).dtype(), f32);
  EXPECT_EQ((ones({2}, {i32}) * ones({}, {f64})).dtype(), f64);
  EXPECT_EQ((Tensor(1) + Tensor(2.0)).dtype(), f32);
  EXPECT_EQ((ones({2}, {i64}) / 2).dtype(), f32);
}

TEST(DType, HalfTypesRoundToNearestEven) {
  EXPECT_EQ(float(BFloat16(1.00390625f)), 1.0f);
  EXPECT_EQ(float(BFloat16(1.01171875f)), 1.015625f);
  EXPECT_EQ(float(Half(65520.0f)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(float(Half(65519.0f)), 65504.0f);
  EXPECT_EQ(float(Half(5.96e-8f)), 0x1p-24f);
  EXPECT_EQ(float(Half(2.9e-8f)), 0.0f);
  EXPECT_TRUE(std::isnan(float(Half(NAN))));
  EXPECT_TRUE(std::isnan(float(BFloat16(NAN))));
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    Half h;
    h.bits = static_cast<uint16_t>(bits);
    if (!std::isnan(float(h))) {
      EXPECT_EQ(Half(float(h)).bits, bits);
    }
  }
}

TEST(Tensor, FromNestedLists) {
  Tensor t = tensor({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(t.dtype(), i64);
  EXPECT_TRUE(t.sizes() == Shape({2, 3}));
  EXPECT_EQ(t.to_vector<int64_t>(), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(tensor({1.5, 2}).dtype(), f32);
  EXPECT_EQ(tensor({true, false}).dtype(), boolean);
  EXPECT_EQ(tensor({complex<double>(1, 2), 3}).dtype(), c64);
  EXPECT_EQ(tensor({{{1.0}, {2.0}}}).sizes().size(), 3u);
  EXPECT_EQ(tensor({1, 2}, {f16}).dtype(), f16);
  EXPECT_EQ(tensor({}).numel(), 0);
  EXPECT_EQ(tensor({INT64_MAX})[0].item<int64_t>(), INT64_MAX);
  EXPECT_THAT(message_of<ShapeError>([] { tensor({{1, 2}, {3}}); }), HasSubstr("uneven"));
  EXPECT_THAT(message_of<ShapeError>([] { tensor({{1, 2}, 3}); }), HasSubstr("uneven"));
  EXPECT_EQ(tensor({{}, {}}).sizes(), (Shape{2, 0}));
  EXPECT_EQ(tensor({{}, {}}).dtype(), f32);
  // An empty list in front must not hide what comes after it.
  EXPECT_THAT(message_of<ShapeError>([] { tensor({{}, {1.0}}); }), HasSubstr("uneven"));
  EXPECT_THAT(message_of<ShapeError>([] { tensor({{}, 1.0}); }), HasSubstr("uneven"));
  EXPECT_THAT(message_of<ShapeError>([] { tensor({{{}}, {{1.0, 2.0}}}); }), HasSubstr("uneven"));
  EXPECT_THAT(message_of<ShapeError>([] { tensor({{}, {{1.0, 2.0}, {3.0, 4.0}}}); }), HasSubstr("uneven"));
  EXPECT_EQ(tensor(std::vector<float>{1, 2, 3}).dtype(), f32);
}

TEST(Tensor, UndefinedIsNamedNotCrashedOn) {
  Tensor t;
  EXPECT_FALSE(t.defined());
  EXPECT_THROW((void)t.sizes(), ValueError);
  EXPECT_THAT(message_of<ValueError>([&] { (void)(t + 1); }), HasSubstr("undefined"));
  EXPECT_EQ(describe(t), "undefined");
  EXPECT_THAT(message_of<ValueError>([&] { t.set_version(3); }), HasSubstr("set_version: the tensor is undefined"));
}

TEST(Tensor, ItemAndData) {
  EXPECT_EQ(tensor({{7}}).item<int>(), 7);
  EXPECT_EQ(tensor(int64_t{1} << 62).item<int64_t>(), int64_t{1} << 62);
  EXPECT_THAT(message_of<ShapeError>([] { (void)ones({2}).item<double>(); }), HasSubstr("2 elements"));
  EXPECT_THAT(message_of<DTypeError>([] { (void)ones({2}).data<double>(); }), HasSubstr("holds f32, not f64"));
  EXPECT_TRUE(tensor(2.5).item<bool>());
}

TEST(Tensor, ViewsShareStorage) {
  Tensor x = arange(12).view({3, 4});
  Tensor v = x.t().slice(0, 1, 4, 2);
  EXPECT_TRUE(v.shares_storage(x));
  EXPECT_TRUE(v.is_view());
  EXPECT_EQ(v.to_vector<int64_t>(), (std::vector<int64_t>{1, 5, 9, 3, 7, 11}));
  v.fill_(0);
  EXPECT_EQ(x.sum().item<int64_t>(), 66 - 36);
  EXPECT_THAT(message_of<ShapeError>([&] { (void)x.t().view({12}); }), HasSubstr("use reshape"));
  EXPECT_FALSE(x.t().reshape({12}).shares_storage(x));
  EXPECT_TRUE(x.reshape({-1, 6}).shares_storage(x));
}

TEST(Tensor, MemoryFormats) {
  Tensor x = randn({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
  EXPECT_TRUE(x.is_contiguous(MemoryFormat::channels_last));
  EXPECT_FALSE(x.is_contiguous());
  EXPECT_TRUE(relu(x + 1).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE((x * randn({3, 1, 1})).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(x.clone().is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(zeros_like(x).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(equal(x.contiguous(), x));
}

TEST(Tensor, FromBlobReleases) {
  std::vector<float> data{1, 2, 3, 4, 5, 6};
  int released = 0;
  {
    Tensor t = from_blob(data.data(), {3, 2}, {f32}, [&] { ++released; }, Shape{1, 3});
    Tensor v = t[0];
    t.reset();
    EXPECT_EQ(released, 0);
    EXPECT_EQ(values(v), (Doubles{1, 4}));
    v.mul_(10);
    EXPECT_EQ(data[3], 40);
    EXPECT_THROW(v.resize_storage(1000), ValueError);
  }
  EXPECT_EQ(released, 1);
}

TEST(Tensor, MetaHasShapesOnly) {
  Tensor m = empty({2, 3}, {.device = "meta"});
  Tensor y = tanh(m.t() + 1).sum(0);
  EXPECT_TRUE(y.device().is_meta());
  EXPECT_TRUE(y.sizes() == Shape({2}));
  EXPECT_THAT(message_of<DeviceError>([&] { (void)y[0].item<double>(); }), HasSubstr("no values to read"));
  EXPECT_THROW((void)y.raw_data(), DeviceError);
  EXPECT_THROW((void)y.to("cpu"), DeviceError);
  Tensor huge = empty({1 << 20, 1 << 20}, {.device = "meta"});
  EXPECT_EQ((huge * 2).numel(), int64_t{1} << 40);
}

TEST(Tensor, DevicesDoNotMixSilently) {
  Devices two(2);
  Tensor a = ones({2}), b = ones({2}, {.device = "cpu:1"});
  EXPECT_THAT(message_of<DeviceError>([&] { (void)(a + b); }), HasSubstr("f32[2] on cpu:0, f32[2] on cpu:1"));
  EXPECT_EQ((b * 2).device(), Device("cpu:1"));
  EXPECT_EQ(values(a + b.to("cpu:0")), (Doubles{2, 2}));
  DeviceGuard guard("cpu:1");
  EXPECT_EQ(zeros({1}).device(), Device("cpu:1"));
}

TEST(Tensor, SetDataKeepsTheHandle) {
  Tensor w = ones({2}, {.requires_grad = true}), other = w;
  w.set_data(full({2}, 5.0));
  EXPECT_EQ(values(other), (Doubles{5, 5}));
  EXPECT_TRUE(other.requires_grad());
  EXPECT_THROW((other * 2).set_data(ones({2})), GradError);
}

TEST(Tensor, PreservedVersionsAreThoseOfSparseTensorsToo) {
  Tensor s = sparse_coo(tensor({{0}, {1}}, {i64}), ones({1}), {2, 2}), before = s.clone();
  uint64_t version = s.version();
  {
    PreserveVersion guard;
    s.mul_(2);
    s.add_(before);
    s.copy_(before);
    s.zero_();
  }
  EXPECT_EQ(s.version(), version);
  s.mul_(2);
  EXPECT_EQ(s.version(), version + 1);
}

TEST(Tensor, SetDataIsNoticedByWhatWasSaved) {
  for (Tensor fresh : {full({3}, 5.0), zeros({3}).add_(1), ones({2})}) {  // whatever their versions
    Tensor x = ones({3}).requires_grad_(), y = x * x;
    x.set_data(fresh);
    EXPECT_THAT(message_of<VersionError>([&] { y.sum().backward(); }), HasSubstr("set_data()"));
  }
  Tensor x = ones({3}).requires_grad_();
  EXPECT_THAT(message_of<DTypeError>([&] { x.set_data(ones({3}, {i64})); }), HasSubstr("requires a gradient"));
}

TEST(Tensor, SetDataDropsAGradientThatDoesNotFit) {
  Tensor x = ones({3}).requires_grad_();
  x.set_grad(ones({3}));
  x.set_data(zeros({3}));
  EXPECT_TRUE(x.grad().defined());
  x.set_data(zeros({5}));
  EXPECT_FALSE(x.grad().defined());
  sum(x * 2).backward();
  EXPECT_EQ(x.grad().sizes(), (Shape{5}));
}

TEST(Create, Sequences) {
  EXPECT_EQ(values(arange(5)), (Doubles{0, 1, 2, 3, 4}));
  EXPECT_EQ(values(arange(5, 0, -2)), (Doubles{5, 3, 1}));
  EXPECT_EQ(values(arange(0.0, 1.0, 0.25)), (Doubles{0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(arange(3, 3).numel(), 0);
  // Counted without a sum or a rounding that could make another number of it.
  EXPECT_EQ(arange(0, INT64_MAX, INT64_MAX - 1).to_vector<int64_t>(), (std::vector<int64_t>{0, INT64_MAX - 1}));
  EXPECT_EQ(arange(INT64_MIN, INT64_MAX, INT64_MAX).numel(), 3);
  EXPECT_EQ(arange(INT64_MAX, INT64_MIN, INT64_MIN).numel(), 2);
  EXPECT_THROW(arange((int64_t{1} << 62) + 1, int64_t{1} << 62), ValueError);
  EXPECT_THROW(arange(0.0, -0.5), ValueError);
  EXPECT_THAT(message_of<ShapeError>([] { arange(INT64_MIN, INT64_MAX); }), HasSubstr("too many numbers"));
  EXPECT_THAT(message_of<ShapeError>([] { arange(0.0, 1e30); }), HasSubstr("arange: from 0 to 1e+30"));
  EXPECT_THROW(arange(0, 5, -1), ValueError);
  EXPECT_THROW(arange(0, 5, 0), ValueError);
  EXPECT_EQ(values(linspace(0, 1, 5)), (Doubles{0, 0.25, 0.5, 0.75, 1}));
  EXPECT_EQ(values(linspace(3, 7, 1)), (Doubles{3}));
  EXPECT_EQ(values(eye(2, 3)), (Doubles{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(values(tril(ones({2, 3}))), (Doubles{1, 0, 0, 1, 1, 0}));
  EXPECT_EQ(values(triu(ones({2, 3}), 1)), (Doubles{0, 1, 1, 0, 0, 1}));
  EXPECT_EQ(values(tril_indices(2, 2)), (Doubles{0, 1, 1, 0, 0, 1}));
  EXPECT_THROW(zeros({-1}), ShapeError);
  EXPECT_THROW(zeros({int64_t{1} << 40, int64_t{1} << 40}), ShapeError);
}

// Freeing and refilling the memory of what backward needs is no write; writing into it is.
TEST(Tensor, ResizedStorageKeepsItsVersion) {
  Tensor x = tensor({1.0, 2.0, 3.0}, f64), w = tensor({2.0, 2.0, 2.0}, {.dtype = f64, .requires_grad = true});
  Tensor y = w * x;
  uint64_t version = x.version();
  size_t bytes = x.storage_bytes();
  x.resize_storage(0);
  EXPECT_EQ(x.version(), version);
  EXPECT_THROW((void)(x + 1), ValueError);
  x.resize_storage(bytes);
  EXPECT_EQ(x.version(), version);
  {
    PreserveVersion refill;
    x.copy_(tensor({1.0, 2.0, 3.0}, f64));
  }
  EXPECT_EQ(x.version(), version);
  y.sum().backward();
  EXPECT_EQ(values(w.grad()), (Doubles{1, 2, 3}));
  Tensor z = w * x;
  x.copy_(ones({3}, f64));
  EXPECT_GT(x.version(), version);
  EXPECT_THROW(z.sum().backward(), VersionError);
}

}  // namespace
}  // namespace tutti
