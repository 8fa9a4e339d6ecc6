// Cheaper ways to the same result: powers that have formulas of their own, and logic on elements as they lie.
#include <cmath>

#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using testing::ElementsAre;
using testing::Eq;
using namespace test;  // NOLINT

struct Power {
  double exponent;
  Tensor (*formula)(const Tensor&);
};
const Power powers[] = {
    {1, [](const Tensor& x) { return x.clone(); }}, {2, [](const Tensor& x) { return x * x; }},
    {3, [](const Tensor& x) { return x * x * x; }}, {0.5, [](const Tensor& x) { return sqrt(x); }},
    {-1, [](const Tensor& x) { return 1 / x; }},
};

TEST(Pow, OfCommonExponentsHasTheBitsOfTheFormula) {
  manual_seed(8);
  for (DType dtype : {f32, f64, c64, c128})
    for (const Power& p : powers) {
      // Enough elements that a general power would differ from a product somewhere.
      Tensor x = is_complex(dtype) ? complex(rand({2000}, to_real(dtype)) + 0.1, rand({2000}, to_real(dtype)))
                                   : rand({20000}, dtype) * 9 + 0.1;
      EXPECT_TRUE(equal(pow(x, p.exponent), p.formula(x))) << p.exponent << ' ' << name(dtype);
      EXPECT_TRUE(equal(pow(x, tensor(p.exponent, to_real(dtype))), p.formula(x))) << p.exponent;
      Tensor same = x.clone();
      EXPECT_TRUE(equal(same.pow_(p.exponent), p.formula(x)));
      EXPECT_TRUE(allclose(pow(x, full({x.numel()}, p.exponent, dtype)), p.formula(x), 1e-5)) << p.exponent;
    }
}

TEST(Pow, OfCommonExponentsHasTheirGradients) {
  manual_seed(9);
  for (const Power& p : powers) {
    Tensor x = (rand({64}, f64) * 4 + 0.25).requires_grad_(), y = x.detach().clone().requires_grad_();
    Tensor g = grad(sum(pow(x, p.exponent)), x, {.create_graph = true}),
           wanted = grad(sum(p.formula(y)), y, {.create_graph = true});
    EXPECT_TRUE(allclose(g, wanted, 1e-13)) << p.exponent;
    EXPECT_TRUE(gradcheck([&](const TensorList& in) { return TensorList{pow(in[0], p.exponent)}; }, {x}));
    EXPECT_TRUE(gradgradcheck([&](const TensorList& in) { return TensorList{pow(in[0], p.exponent)}; }, {x}));
    // The exponent's own gradient is that of a power.
    Tensor e = tensor(p.exponent, {.dtype = f64, .requires_grad = true});
    Tensor base = x.detach();
    EXPECT_TRUE(allclose(grad(sum(pow(base, e)), e), sum(pow(base, p.exponent) * log(base)), 1e-10));
  }
}

TEST(Pow, OfIntegersAndSmallFloats) {
  Tensor whole = tensor({-3, 0, 1, 2});
  EXPECT_THAT(values(pow(whole, 2)), ElementsAre(9, 0, 1, 4));
  EXPECT_THAT(values(pow(whole, 3)), ElementsAre(-27, 0, 1, 8));
  EXPECT_THAT(values(pow(whole, 1)), ElementsAre(-3, 0, 1, 2));
  EXPECT_THAT(values(pow(whole, -1)), ElementsAre(0, 0, 1, 0));
  EXPECT_EQ(pow(whole, 2).dtype(), i64);
  EXPECT_EQ(pow(tensor({true, false}), 2).dtype(), i64);
  EXPECT_EQ(pow(whole, 0.5).dtype(), f32);
  EXPECT_TRUE(equal(pow(tensor({1.5, -2.0}, bf16), 2), tensor({2.25, 4.0}, bf16)));
  EXPECT_TRUE(std::isnan(pow(tensor({-1.0}), 0.5).item<double>()));
  EXPECT_EQ(pow(ones({2}, Device("meta")), 2).sizes(), (Shape{2}));
}

// Every operator on small elements against the same on i64, whatever the layout and the output.
template <class F>
void expect_as_wide(const Tensor& x, const Tensor& y, F f) {
  Tensor narrow = f(x, y), wide = f(x.to(i64), y.to(i64));
  EXPECT_EQ(narrow.dtype(), x.dtype());
  EXPECT_TRUE(equal(narrow, wide.to(x.dtype()))) << name(x.dtype());
  Tensor a = x.view({10, 100}), b = y.view({10, 100});
  EXPECT_TRUE(equal(f(a.t(), b.t()), wide.to(x.dtype()).view({10, 100}).t()));
  EXPECT_TRUE(equal(f(a.slice(1, 3, 90, 2), b[0][7]), f(a.to(i64).slice(1, 3, 90, 2), b.to(i64)[0][7]).to(x.dtype())));
}

TEST(SmallElements, BitwiseAsWide) {
  manual_seed(10);
  for (DType dtype : {u8, i8, i16, i32}) {
    Tensor x = randint(-40000, 40000, {1000}).to(dtype), y = randint(-40000, 40000, {1000}).to(dtype);
    expect_as_wide(x, y, [](const Tensor& a, const Tensor& b) { return a & b; });
    expect_as_wide(x, y, [](const Tensor& a, const Tensor& b) { return a | b; });
    expect_as_wide(x, y, [](const Tensor& a, const Tensor& b) { return a ^ b; });
    expect_as_wide(x, y, [](const Tensor& a, const Tensor&) { return ~a; });
    EXPECT_EQ((x & tensor({1}, i64)).dtype(), i64);
    EXPECT_TRUE(equal(bitwise_or(x, 3), bitwise_or(x.to(i64), 3).to(dtype)));
    Tensor wide = empty({1000}, i64);
    EXPECT_TRUE(equal(bitwise_and_out(wide, x, y), (x & y).to(i64)));
  }
}

TEST(SmallElements, TruthValues) {
  Tensor x = tensor({false, false, true, true}), y = tensor({false, true, false, true});
  EXPECT_THAT(values(x & y), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(values(x | y), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(values(x ^ y), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(values(~x), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(values(x == y), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(values(x != y), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(values(logical_and(x, y)), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(values(logical_or(x, y)), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(values(logical_xor(x, y)), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(values(logical_not(x)), ElementsAre(1, 1, 0, 0));
  for (auto& r : {x & y, ~x, x == y, x & true, x | false}) EXPECT_EQ(r.dtype(), boolean);
  EXPECT_THAT(values(x & true), ElementsAre(0, 0, 1, 1));
  Tensor f = empty({4});
  EXPECT_THAT(values(bitwise_not_out(f, x)), ElementsAre(1, 1, 0, 0));
  Tensor many = rand({3, 70000}) > 0.5;
  EXPECT_EQ(count_nonzero(many & ~many).item<int64_t>(), 0);
  EXPECT_TRUE(equal((~many).t(), ~(many.t())));
}

TEST(SmallElements, CopiesKeepEveryBit) {
  // A NaN of bf16 with a payload, and bytes of each dtype, through strided copies.
  for (DType dtype : {u8, i8, boolean, i16, bf16, f16, i32, f32}) {
    Tensor bits = randint(0, 2, {6, 10}).to(dtype);
    Tensor copy = bits.t().slice(0, 1, 9, 3).clone();
    EXPECT_TRUE(equal(copy, bits.to(f64).t().slice(0, 1, 9, 3).to(dtype))) << name(dtype);
  }
  Tensor payload = tensor({0x7fc1, 0x7f81, 0x3f80}, i16).view_dtype(bf16);
  Tensor spread = empty({3, 2}, bf16).select(1, 0);
  spread.copy_(payload);
  EXPECT_THAT(values(spread.clone().view_dtype(i16)), ElementsAre(0x7fc1, 0x7f81, 0x3f80));
}

TEST(Complex, LerpAndIsclose) {
  using C = std::complex<double>;
  Tensor x = tensor({C(1, 2), C(0, -1)}, c128), y = tensor({C(3, 0), C(1, 1)}, c128);
  EXPECT_TRUE(allclose(lerp(x, y, 0.25), x + 0.25 * (y - x)));
  EXPECT_TRUE(allclose(lerp(x, y, C(0.5, 0.5)), x + tensor(C(0.5, 0.5), c128) * (y - x)));
  EXPECT_TRUE(equal(lerp(x, y, 1), y));
  EXPECT_TRUE(equal(lerp(x, y, 0), x));
  auto f = [](const TensorList& in) { return TensorList{lerp(in[0], in[1], in[2])}; };
  TensorList inputs{x.clone().requires_grad_(), y.clone().requires_grad_(),
                    tensor({C(0.2, 0.1), C(0.9, -0.3)}, {.dtype = c128, .requires_grad = true})};
  EXPECT_TRUE(gradcheck(f, inputs));
  EXPECT_TRUE(gradgradcheck(f, inputs));
  EXPECT_THAT(values(isclose(x, x + C(1e-9, -1e-9))), ElementsAre(1, 1));
  EXPECT_THAT(values(isclose(x, tensor({C(1, 2.1), C(0, -1)}, c128))), ElementsAre(0, 1));
  EXPECT_THAT(values(isclose(x, x + C(0, 0.005), 0.01, 0)), ElementsAre(1, 1));
  double infinity = std::numeric_limits<double>::infinity();
  Tensor far = tensor({C(infinity, 0), C(NAN, 0)}, c128);
  EXPECT_THAT(values(isclose(far, far)), ElementsAre(1, 0));
  EXPECT_THAT(values(isclose(far, x)), ElementsAre(0, 0));
  EXPECT_TRUE(allclose(x, x + C(0, 1e-10)));
}

TEST(Roll, IsIndexingModuloTheSizes) {
  auto rolled = [](const Tensor& x, int64_t s0, int64_t s1, int64_t s2) {
    auto places = [](int64_t n, int64_t shift) { return remainder(arange(n) - shift, n); };
    return index_select(index_select(index_select(x, 0, places(x.size(0), s0)), 1, places(x.size(1), s1)), 2,
                        places(x.size(2), s2));
  };
  for (DType dtype : {u8, f32, c128}) {
    Tensor x = arange(5 * 7 * 6).view({5, 7, 6}).to(dtype);
    EXPECT_TRUE(equal(roll(x, {2, -3, 5}, {0, 1, 2}), rolled(x, 2, -3, 5)));
    EXPECT_TRUE(equal(roll(x, {2, 1}, {0, 1}), rolled(x, 2, 1, 0)));
    EXPECT_TRUE(equal(roll(x, {4, 3}, {0, 2}), rolled(x, 4, 0, 3)));
    EXPECT_TRUE(equal(roll(x, 1, 2), rolled(x, 0, 0, 1)));
    EXPECT_TRUE(equal(roll(x, 6, 0), rolled(x, 1, 0, 0)));
    EXPECT_TRUE(equal(roll(x.transpose(0, 2), {1, 2}, {0, 2}), rolled(x, 2, 0, 1).transpose(0, 2)));
  }
  // Rows that are long enough to be moved in boxes.
  Tensor long_rows = arange(3 * 40000).view({3, 40000, 1});
  EXPECT_TRUE(equal(roll(long_rows, {1, 39999}, {0, 1}), rolled(long_rows, 1, 39999, 0)));
}

TEST(ChannelsLast, IsKeptByFlipAndRoll) {
  Tensor x = arange(2 * 3 * 4 * 5).view({2, 3, 4, 5}).to(f32), last = x.contiguous(MemoryFormat::channels_last);
  EXPECT_TRUE(flip(last, {1, 3}).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(roll(last, {1, 2}, {1, 3}).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(equal(flip(last, {1, 3}), flip(x, {1, 3})));
  EXPECT_TRUE(equal(roll(last, {1, 2}, {1, 3}), roll(x, {1, 2}, {1, 3})));
  // Contiguous, as in the field: the order of what is copied is a new one.
  for (const Tensor& y : {repeat(last, {1, 1, 1, 1}), cumsum(last, 1), index_select(last, 0, tensor({1, 0})),
                          stack({last, last}), gather(last, 0, zeros({1, 3, 4, 5}, i64))})
    EXPECT_TRUE(y.is_contiguous());
}

}  // namespace
}  // namespace tutti
