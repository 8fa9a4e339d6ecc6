#include <cmath>

#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT
using C = std::complex<double>;
using Complexes = std::vector<C>;

Complexes complexes(const Tensor& t) { return t.to_vector<C>(); }
Tensor complex_numbers() { return tensor({C(1, 2), C(-3, 4), C(0, -5)}, {c128}); }

TEST(Complex, PartsAreViews) {
  for (DType dtype : {c64, c128}) {
    Tensor z = complex_numbers().to(dtype);
    EXPECT_EQ(values(real(z)), (Doubles{1, -3, 0}));
    EXPECT_EQ(values(imag(z)), (Doubles{2, 4, -5}));
    EXPECT_TRUE(real(z).shares_storage(z));
    EXPECT_EQ(real(z).dtype(), to_real(dtype));
    imag(z).fill_(7);
    EXPECT_EQ(complexes(z), (Complexes{C(1, 7), C(-3, 7), C(0, 7)}));
  }
  Tensor x = ones({2});
  EXPECT_TRUE(real(x).is_same(x));
  EXPECT_THAT(message_of<DTypeError>([&] { imag(x); }), HasSubstr("imag: f32[2] on cpu:0 is real"));
}

TEST(Complex, ViewAsRealAndBack) {
  Tensor z = complex(arange(6, {f64}), arange(6, {f64}) + 10).view({2, 3});
  Tensor t = z.t().slice(0, 1, 3);  // strides, and an offset
  Tensor r = view_as_real(t);
  EXPECT_EQ(r.sizes(), (Shape{2, 2, 2}));
  EXPECT_EQ(values(r), (Doubles{1, 11, 4, 14, 2, 12, 5, 15}));
  EXPECT_TRUE(r.shares_storage(z));
  Tensor back = view_as_complex(r);
  EXPECT_TRUE(equal(back, t));
  EXPECT_EQ(back.strides(), t.strides());
  EXPECT_EQ(back.storage_offset(), t.storage_offset());
  EXPECT_EQ(view_as_real(tensor(C(1, 2))).sizes(), (Shape{2}));
  EXPECT_EQ(view_as_complex(zeros({0, 2})).sizes(), (Shape{0}));
  EXPECT_EQ(view_as_real(zeros({3, 0}, {c64})).sizes(), (Shape{3, 0, 2}));
}

TEST(Complex, ViewsThatCannotBe) {
  EXPECT_THAT(message_of<ShapeError>([] { view_as_complex(zeros({4, 3})); }), HasSubstr("last dim of size 2"));
  EXPECT_THAT(message_of<ShapeError>([] { view_as_complex(zeros({})); }), HasSubstr("last dim of size 2"));
  EXPECT_THAT(message_of<ShapeError>([] { view_as_complex(zeros({4, 3}).slice(1, 0, 2)); }),
              HasSubstr("not made of pairs"));
  EXPECT_THAT(message_of<ShapeError>([] { view_as_complex(zeros({2, 4}).t()); }), HasSubstr("not made of pairs"));
  EXPECT_THAT(message_of<ShapeError>([] { view_as_complex(zeros({4, 4}).slice(1, 1, 3)); }), HasSubstr("offset 1"));
  EXPECT_THAT(message_of<DTypeError>([] { view_as_complex(zeros({2}, {i64})); }), HasSubstr("f32 or f64"));
  EXPECT_THAT(message_of<DTypeError>([] { view_as_real(zeros({2})); }), HasSubstr("needs a complex tensor"));
}

TEST(Complex, FromParts) {
  Tensor re = tensor({1.0, 2.0}), im = tensor({3.0, 4.0});
  EXPECT_EQ(complexes(complex(re, im)), (Complexes{C(1, 3), C(2, 4)}));
  EXPECT_EQ(complex(re, im).dtype(), c64);
  EXPECT_EQ(complex(re.to(f64), im).dtype(), c128);
  EXPECT_EQ(complex(re.to(bf16), im.to(f16)).dtype(), c64);
  EXPECT_EQ(complexes(complex(re.unsqueeze(1), im)), (Complexes{C(1, 3), C(1, 4), C(2, 3), C(2, 4)}));
  EXPECT_EQ(complexes(complex(re, 0)), (Complexes{C(1, 0), C(2, 0)}));
  EXPECT_EQ(complex(0, re.to(f64)).dtype(), c128);
  EXPECT_EQ(complex(zeros({0}), zeros({0})).numel(), 0);
  EXPECT_THAT(message_of<DTypeError>([&] { complex(arange(2), im); }), HasSubstr("floating-point parts, not i64[2]"));
  EXPECT_THAT(message_of<DTypeError>([&] { complex(complex_numbers(), im); }), HasSubstr("floating-point parts"));
  EXPECT_THAT(message_of<ShapeError>([&] { complex(re, zeros({3})); }), HasSubstr("f32[2] on cpu:0 and f32[3]"));
}

TEST(Complex, Angle) {
  Tensor z = tensor({C(1, 1), C(-1, 0), C(0, -2), C(0, 0), C(-1, -0.0)}, {c128});
  Doubles expected{M_PI / 4, M_PI, -M_PI / 2, 0, -M_PI}, got = values(angle(z));
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(got[i], expected[i], 1e-15) << i;
  EXPECT_EQ(angle(z.to(c64)).dtype(), f32);
  for (DType dtype : {f32, f64, bf16, f16}) {
    auto a = values(angle(tensor({2.0, -3.0, 0.0, -INFINITY}, {dtype})));
    double pi = dtype == bf16 || dtype == f16 ? 3.140625 : M_PI;
    EXPECT_EQ(a[0], 0);
    EXPECT_NEAR(a[1], pi, 1e-6) << name(dtype);
    EXPECT_EQ(a[2], 0);
    EXPECT_NEAR(a[3], pi, 1e-6);
  }
  EXPECT_TRUE(std::isnan(angle(tensor({NAN})).item<double>()));
  EXPECT_EQ(angle(tensor({-2, 2})).dtype(), f32);
  EXPECT_NEAR(values(angle(tensor({-2, 2})))[0], M_PI, 1e-6);
  EXPECT_EQ(values(angle(tensor({true}))), (Doubles{0}));
}

TEST(Complex, Gradients) {
  manual_seed(1);
  auto leaf = [](const Shape& sizes, DType dtype) { return randn(sizes, {.dtype = dtype, .requires_grad = true}); };
  auto both = [](const std::function<TensorList(const TensorList&)>& f, const TensorList& inputs) {
    EXPECT_TRUE(gradcheck(f, inputs));
    EXPECT_TRUE(gradgradcheck(f, inputs));
  };
  both([](const TensorList& x) -> TensorList { return {real(x[0]) * imag(x[0])}; }, {leaf({3}, c128)});
  both([](const TensorList& x) -> TensorList { return {square(view_as_real(x[0].t()))}; }, {leaf({2, 3}, c128)});
  both([](const TensorList& x) -> TensorList { return {square(view_as_complex(x[0]))}; }, {leaf({3, 2}, f64)});
  both([](const TensorList& x) -> TensorList { return {square(complex(x[0], x[1]))}; },
       {leaf({3, 1}, f64), leaf({2}, f64)});
  both([](const TensorList& x) -> TensorList { return {angle(x[0])}; }, {leaf({4}, c128)});
  both([](const TensorList& x) -> TensorList { return {abs(x[0])}; }, {leaf({4}, c128)});
  both([](const TensorList& x) -> TensorList { return {conj(x[0]) * x[0] * x[0]}; }, {leaf({4}, c128)});
}

TEST(Complex, GradientsAtTheEdges) {
  Tensor z = tensor({C(0, 0), C(2, 0)}, {.dtype = c128, .requires_grad = true});
  Tensor g = grad({sum(angle(z))}, {z}, {.create_graph = true})[0];
  EXPECT_EQ(complexes(g), (Complexes{C(0, 0), C(0, 0.5)}));
  Tensor second = grad({sum(real(g) + imag(g))}, {z})[0];
  EXPECT_FALSE(std::isnan(complexes(second)[0].real()));
  Tensor x = tensor({-1.0, 1.0}, {.requires_grad = true});
  sum(angle(x)).backward();
  EXPECT_EQ(values(x.grad()), (Doubles{0, 0}));
}

TEST(Complex, ConjugateAndAbsoluteValue) {
  Tensor z = complex_numbers();
  EXPECT_EQ(complexes(conj(z)), (Complexes{C(1, -2), C(-3, -4), C(0, 5)}));
  EXPECT_EQ(conj(z).dtype(), c128);
  EXPECT_EQ(abs(z).dtype(), f64);
  auto a = values(abs(z));
  EXPECT_NEAR(a[0], std::sqrt(5), 1e-15);
  EXPECT_EQ(a[1], 5);
  EXPECT_EQ(a[2], 5);
  EXPECT_EQ(values(conj(tensor({1.0, -2.0}))), (Doubles{1, -2}));
}

// Writing a part in place is seen by the history of the whole.
TEST(Complex, PartsWrittenInPlace) {
  Tensor x = randn({3}, {.dtype = c128, .requires_grad = true});
  Tensor z = x * 2;
  imag(z).zero_();
  sum(real(z * conj(z))).backward();
  auto g = complexes(x.grad()), v = complexes(x);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(g[i].real(), 8 * v[i].real(), 1e-12);
    EXPECT_EQ(g[i].imag(), 0);
  }
}

}  // namespace
}  // namespace tutti
