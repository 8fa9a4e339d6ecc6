// Forms of operators: results written into given tensors, methods, default arguments, short names.
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace test;  // NOLINT

// Writes into an undefined tensor, a fresh one, a transposed one and one of a wider dtype; refuses a wrong shape.
template <class F>
void expect_out_form(const Tensor& expected, F&& write) {
  Tensor undefined;
  write(undefined);
  EXPECT_TRUE(equal(undefined, expected));
  Tensor given = empty_like(expected), alias = given;
  write(given);
  EXPECT_TRUE(equal(alias, expected)) << "the result is not in the given tensor";
  if (expected.dim() == 2) {
    Tensor turned = empty({expected.size(1), expected.size(0)}, {expected.dtype()}).t(), view = turned;
    write(view);
    EXPECT_TRUE(equal(turned, expected));
  }
  if (expected.dtype() == f32) {
    Tensor wide = empty(expected.sizes(), f64), same = wide;
    write(wide);
    EXPECT_TRUE(equal(same, expected.to(f64)));
  }
  Tensor wrong = empty({7, 7, 7}, {expected.dtype()});
  EXPECT_THROW(write(wrong), ShapeError);
}

TEST(OutForms, Products) {
  manual_seed(1);
  Tensor a = randn({2, 3}), b = randn({3, 4}), c = randn({2, 4}), v = randn({3});
  Tensor p = randn({2, 2, 3}), q = randn({2, 3, 2});
  expect_out_form(mm(a, b), [&](Tensor& out) { mm_out(out, a, b); });
  expect_out_form(bmm(p, q), [&](Tensor& out) { bmm_out(out, p, q); });
  expect_out_form(matmul(a, b), [&](Tensor& out) { matmul_out(out, a, b); });
  expect_out_form(matmul(a, v), [&](Tensor& out) { matmul_out(out, a, v); });
  expect_out_form(matmul(p, b), [&](Tensor& out) { matmul_out(out, p, b); });
  expect_out_form(matmul(a, q), [&](Tensor& out) { matmul_out(out, a, q); });
  expect_out_form(matmul(v, q), [&](Tensor& out) { matmul_out(out, v, q); });
  expect_out_form(addmm(c, a, b, 2, 3), [&](Tensor& out) { addmm_out(out, c, a, b, 2, 3); });
  expect_out_form(addmm(1, a, b), [&](Tensor& out) { addmm_out(out, 1, a, b); });
  // Into one of the operands.
  Tensor square = randn({3, 3}), expected = mm(square, square);
  mm_out(square, square, square);
  EXPECT_TRUE(equal(square, expected));
  Tensor integers = empty({2, 4}, i64);
  EXPECT_THROW(mm_out(integers, a, b), DTypeError);
}

TEST(OutForms, ReductionsAndJoins) {
  manual_seed(2);
  Tensor x = randn({3, 4}), y = randn({2, 4});
  expect_out_form(sum(x, 1), [&](Tensor& out) { sum_out(out, x, 1); });
  expect_out_form(mean(x, 0, true), [&](Tensor& out) { mean_out(out, x, 0, true); });
  expect_out_form(cat({x, y}), [&](Tensor& out) { cat_out(out, {x, y}); });
  expect_out_form(stack({x, x}, 1), [&](Tensor& out) { stack_out(out, {x, x}, 1); });
  expect_out_form(softmax(x, 1), [&](Tensor& out) { softmax_out(out, x, 1); });
  expect_out_form(softmax(x[0][0], 0), [&](Tensor& out) { softmax_out(out, x[0][0], 0); });
  expect_out_form(cumsum(x, 0), [&](Tensor& out) { cumsum_out(out, x, 0); });
  expect_out_form(cumsum(x[0][0], 0), [&](Tensor& out) { cumsum_out(out, x[0][0], 0); });
  expect_out_form(argmax(x, 1), [&](Tensor& out) { argmax_out(out, x, 1); });
  EXPECT_THROW(
      {
        Tensor out;
        mean_out(out, tensor({1, 2}));
      },
      DTypeError);
}

TEST(OutForms, CarryGradients) {
  Tensor a = randn({2, 3}, {.requires_grad = true}), b = randn({3, 2}), out = empty({2, 2});
  mm_out(out, a, b);
  EXPECT_TRUE(equal(grad(sum(out), a), grad(sum(mm(a, b)), a)));
}

TEST(Defaults, OfActivations) {
  Tensor x = tensor({-2.0, -0.25, 0.0, 0.25, 3.0}, f64);
  auto same = [](const Tensor& a, const Tensor& b) { EXPECT_TRUE(equal(a, b)) << a << b; };
  same(leaky_relu(x), leaky_relu(x, 0.01));
  same(elu(x), elu(x, 1));
  same(celu(x), x.celu(1));
  same(x.softplus(), softplus(x, 1));
  same(hardtanh(x), clamp(x, -1, 1));
  same(hardtanh(x, -0.5), hardtanh(x, -0.5, 1));
  same(x.hardshrink(), hardshrink(x, 0.5));
  same(softshrink(x), softshrink(x, 0.5));
  same(addcmul(x, x, x), x + x * x);
  same(addcdiv(x, x, full_like(x, 2)), x + x / 2);
  same(isclose(x, x + 1e-9), x == x);
  same(isclose(x, x + 0.1), x != x);
  Tensor y = x.clone();
  y.elu_();
  same(y, elu(x, 1));
}

TEST(Defaults, OfNanToNum) {
  for (DType dtype : {f32, f64, bf16, f16}) {
    Tensor x = tensor({NAN, INFINITY, -INFINITY, 1.5}, {dtype});
    Tensor y = nan_to_num(x);
    double most = dtype == f64    ? std::numeric_limits<double>::max()
                  : dtype == f16  ? 65504
                  : dtype == bf16 ? 0x1.fep127
                                  : static_cast<double>(std::numeric_limits<float>::max());
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_THAT(values(y), ElementsAre(0, most, -most, 1.5)) << dtype;
    EXPECT_EQ(x.nan_to_num(2)[0].item<double>(), 2);
  }
  EXPECT_TRUE(equal(nan_to_num(tensor({1, 2})), tensor({1, 2})));
}

TEST(Short, SumsWithAFactor) {
  Tensor x = tensor({1.0, 2.0}, {.dtype = f64, .requires_grad = true}), y = tensor({3.0, 5.0}, f64);
  EXPECT_THAT(values(add(x, y, 2)), ElementsAre(7, 12));
  EXPECT_THAT(values(sub(x, y, 2)), ElementsAre(-5, -8));
  EXPECT_THAT(values(x.add(y, 0.5)), ElementsAre(2.5, 4.5));
  EXPECT_THAT(values(x.sub(y, 0.5)), ElementsAre(-0.5, -0.5));
  Tensor z = y.clone();
  z.add_(y, -1);
  EXPECT_THAT(values(z), Each(0));
  z.sub_(y, 2);
  EXPECT_THAT(values(z), ElementsAre(-6, -10));
  EXPECT_THAT(values(add(tensor({1, 2}), tensor({3, 4}), 2)), ElementsAre(7, 10));
  EXPECT_EQ(add(tensor({1, 2}), tensor({3, 4}), 2).dtype(), i64);
  EXPECT_THAT(values(grad(sum(add(y, x, 3)), x)), Each(3));
}

TEST(Short, MaxAndMinOfTwo) {
  Tensor x = tensor({1.0, 4.0}), y = tensor({3.0, 2.0});
  EXPECT_THAT(values(max(x, y)), ElementsAre(3, 4));
  EXPECT_THAT(values(min(x, y)), ElementsAre(1, 2));
  EXPECT_THAT(values(max(x, 2.5)), ElementsAre(2.5, 4));
  EXPECT_THAT(values(min(x, 2.5f)), ElementsAre(1, 2.5));
  EXPECT_EQ(max(x, 0).indices.item<int>(), 1);  // a dim
  EXPECT_THAT(values(clamp_min(x, 2).clamp_max(3)), ElementsAre(2, 3));
}

TEST(Short, RandomIntegersAndInPlace) {
  manual_seed(4);
  Tensor x = randint(3, {1000});
  EXPECT_EQ(min(x).item<int>(), 0);
  EXPECT_EQ(max(x).item<int>(), 2);
  x.random_(5, 7);
  EXPECT_EQ(min(x).item<int>(), 5);
  EXPECT_EQ(max(x).item<int>(), 6);
  EXPECT_THROW(x.random_(7, 5), ValueError);
  for (DType dtype : {f32, f64, bf16}) {
    Tensor e = empty({40000}, dtype).exponential_(4);
    EXPECT_NEAR(mean(e.to(f64)).item<double>(), 0.25, 0.01);
    EXPECT_NEAR(e.to(f64).std().item<double>(), 0.25, 0.015);
    EXPECT_GE(min(e).item<double>(), 0);
  }
  EXPECT_THROW(empty({2}).exponential_(0), ValueError);
  EXPECT_THROW(empty({2}, i64).exponential_(), DTypeError);
}

TEST(Methods, AreTheFunctionsOfTheirNames) {
  Tensor x = tensor({{3.0, 1.0, 2.0}, {6.0, 5.0, 4.0}}, f64), i = tensor({{0, 2}, {1, 1}}), list = tensor({1, 0});
  Tensor mask = x > 2;
  auto same = [](const Tensor& a, const Tensor& b) { EXPECT_TRUE(equal(a, b)) << a << b; };
  same(x.gather(1, i), gather(x, 1, i));
  same(x.scatter(1, i, 9), scatter(x, 1, i, 9));
  same(x.clone().scatter_(1, i, 9), scatter(x, 1, i, 9));
  same(x.scatter_add(1, i, x), scatter_add(x, 1, i, x));
  same(x.clone().scatter_add_(1, i, x), scatter_add(x, 1, i, x));
  same(x.index_select(1, list), index_select(x, 1, list));
  same(x.index_add(0, list, x), index_add(x, 0, list, x));
  same(x.clone().index_add_(0, list, x), index_add(x, 0, list, x));
  same(x.index_copy(0, list, x), flip(x, 0));
  same(x.clone().index_copy_(0, list, x), flip(x, 0));
  same(x.index_fill(1, list, 7), index_fill(x, 1, list, 7));
  same(x.clone().index_fill_(1, list, 7), index_fill(x, 1, list, 7));
  same(x.masked_select(mask), masked_select(x, mask));
  same(x.masked_fill(mask, 0), masked_fill(x, mask, 0));
  same(x.where(mask, -1), where(mask, x, -1));
  same(mask.nonzero(), nonzero(mask));
  same(x.sort().values, sort(x).values);
  same(x.argsort(0, true), argsort(x, 0, true));
  same(x.topk(2).indices, topk(x, 2).indices);
  same(x.cumsum(0), cumsum(x, 0));
  same(x.cumprod(1, f32), cumprod(x.to(f32), 1));
  same(x.softmax(1, f32), softmax(x.to(f32), 1));
  same(x.logsumexp(1), logsumexp(x, 1));
  same(x.flip(0), flip(x, 0));
  same(x.roll(1, 1), roll(x, 1, 1));
  same(x.repeat({2, 2}), repeat(x, {2, 2}));
  same(x.tile(2), repeat(x, {1, 2}));
  same(x.unfold(1, 2, 1), unfold(x, 1, 2, 1));
  same(x.unsqueeze(0).bmm(x.t().unsqueeze(0)), bmm(x.unsqueeze(0), x.t().unsqueeze(0)));
  same(x.mv(ones({3}, f64)), sum(x, 1));
  same(list.one_hot(3), one_hot(list, 3));
  same(x.count_nonzero(1), count_nonzero(x, 1));
  same(x.tril() + x.triu(1), x);
  same(x.diag(), tensor({3.0, 5.0}, f64));
  same(x.trace(), tensor(8.0, f64));
  same(x.median(), tensor(3.0, f64));
  same(x.median(1).values, tensor({2.0, 5.0}, f64));
  same(x.movedim(0, 1), x.t());
  EXPECT_EQ(x.split({1, 2}, 1)[1].sizes(), (Shape{2, 2}));
  EXPECT_EQ(split(x, {1, 1}).size(), 2u);
  EXPECT_EQ(ones({1, 3}).expand_as(x).sizes(), x.sizes());
  EXPECT_EQ(arange(6).view_as(x).sizes(), x.sizes());
  EXPECT_TRUE(x.equal(x.clone()) && x.allclose(x + 1e-10) && !x.equal(x + 1));
}

TEST(Methods, FillDiagonal) {
  Tensor x = zeros({2, 3});
  EXPECT_THAT(values(x.fill_diagonal_(5)), ElementsAre(5, 0, 0, 0, 5, 0));
  Tensor cube = zeros({2, 2, 2}).fill_diagonal_(1);
  EXPECT_THAT(values(cube), ElementsAre(1, 0, 0, 0, 0, 0, 0, 1));
  EXPECT_THROW(zeros({2, 2, 3}).fill_diagonal_(1), ShapeError);
  EXPECT_THROW(zeros({3}).fill_diagonal_(1), ShapeError);
}

TEST(Unique, SortedWithInverseAndCounts) {
  Tensor x = tensor({{3, 1, 3}, {2, 1, 3}});
  Unique u = unique(x);
  EXPECT_THAT(values(u.values), ElementsAre(1, 2, 3));
  EXPECT_EQ(u.values.dtype(), i64);
  EXPECT_THAT(values(u.counts), ElementsAre(2, 1, 3));
  EXPECT_EQ(u.inverse.sizes(), x.sizes());
  EXPECT_TRUE(equal(index_select(u.values, 0, u.inverse.view({6})).view({2, 3}), x));
  EXPECT_EQ(unique(tensor({NAN, NAN, 1.0})).values.numel(), 3);
  EXPECT_THAT(values(unique(tensor({true, false, true})).counts), ElementsAre(1, 2));
  EXPECT_EQ(unique(zeros({0, 2})).values.numel(), 0);
  EXPECT_EQ(unique(zeros({0, 2})).inverse.sizes(), (Shape{0, 2}));
  EXPECT_THAT(values(unique(tensor(4)).values), ElementsAre(4));
  EXPECT_THROW(unique(ones({2}, c64)), DTypeError);
  EXPECT_THROW(unique(ones({2}, Device("meta"))), DeviceError);
}

TEST(Counts, OfBins) {
  EXPECT_THAT(values(bincount(tensor({2, 0, 2}))), ElementsAre(1, 0, 2));
  EXPECT_THAT(values(bincount(tensor({1, 1}, {u8}), tensor({3, 4}))), ElementsAre(0, 7));
  Tensor w = tensor({0.5, 2.0, 4.0}, {.requires_grad = true});
  EXPECT_THAT(values(bincount(tensor({3, 0, 3}), w)), ElementsAre(2, 0, 0, 4.5));
  EXPECT_THAT(values(grad(sum(bincount(tensor({3, 0, 3}), w) * arange(4)), w)), ElementsAre(3, 0, 3));
  EXPECT_EQ(bincount(zeros({0}, i64), {}, 2).sizes(), (Shape{2}));
  EXPECT_THAT(message_of<ValueError>([] { bincount(tensor({1, -2})); }), HasSubstr("-2"));
  EXPECT_THROW(bincount(tensor({1.0})), DTypeError);
  EXPECT_THROW(bincount(ones({2, 2}, i64)), ShapeError);
  EXPECT_THROW(bincount(tensor({1, 2}), tensor({1.0})), ShapeError);
}

TEST(Order, MedianAndKthValue) {
  EXPECT_TRUE(std::isnan(median(tensor({1.0, NAN, 2.0})).item<double>()));
  EXPECT_EQ(median(tensor({4, 1, 3, 2})).item<int>(), 2);  // the lower of the two
  EXPECT_THROW(median(zeros({0})), ValueError);
  EXPECT_THROW(kthvalue(ones({3}), 0), ValueError);
  EXPECT_THROW(kthvalue(ones({3}), 4), ValueError);
  Tensor x = tensor({5.0, 1.0, 3.0}, {.requires_grad = true});
  EXPECT_THAT(values(grad(median(x), x)), ElementsAre(0, 0, 1));
}

// Operators of C++ are short for functions. They are called by their names, which the test of completeness looks for.
TEST(Forms, OperatorsOfCpp) {
  Tensor x = tensor({5.5, -2.25, 3.0}), y = tensor({2.0, -2.25, -4.0});
  auto same = [](const Tensor& found, const Tensor& wanted) { EXPECT_TRUE(equal(found, wanted)) << found << wanted; };
  same(operator+(x, y), add(x, y));
  same(operator-(x, y), sub(x, y));
  same(operator*(x, y), mul(x, y));
  same(operator/(x, y), div(x, y));
  same(operator%(x, y), remainder(x, y));
  same(operator==(x, y), eq(x, y));
  same(operator!=(x, y), ne(x, y));
  same(operator<(x, y), lt(x, y));
  same(operator<=(x, y), le(x, y));
  same(operator>(x, y), gt(x, y));
  same(operator>=(x, y), ge(x, y));
  same(operator-(x), neg(x));
  EXPECT_TRUE(operator+(x).is_same(x));
  Tensor a = tensor({12, 7, -3}), b = tensor({10, 2, 1});
  same(operator&(a, b), bitwise_and(a, b));
  same(operator|(a, b), bitwise_or(a, b));
  same(operator^(a, b), bitwise_xor(a, b));
  same(operator~(a), bitwise_not(a));
  same(operator<<(a, 3), a * 8);
  same(operator>>(a, 1), tensor({6, 3, -2}));
}

}  // namespace
}  // namespace tutti
