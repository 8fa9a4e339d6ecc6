#include "ops/sparse/sparse.h"

#include <cmath>

#include "ops/sparse/arithmetic.h"
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/ops/embedding.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

// [[0, 5, 0], [1, 0, 0]], its 5 in two parts, out of order.
Tensor example(DType dtype = f64) {
  return sparse_coo(tensor({{1, 0, 0}, {0, 1, 1}}), tensor({1.0, 2.0, 3.0}, {dtype}), {2, 3});
}
const Doubles kExample{0, 5, 0, 1, 0, 0};

TEST(Sparse, MadeAndTakenApart) {
  Tensor x = example();
  EXPECT_TRUE(x.is_sparse());
  EXPECT_FALSE(x.is_coalesced());
  EXPECT_EQ(x.sizes(), (Shape{2, 3}));
  EXPECT_EQ(x.sparse_dim(), 2);
  EXPECT_EQ(x.dense_dim(), 0);
  EXPECT_EQ(values(x.values()), (Doubles{1, 2, 3}));
  EXPECT_EQ(values(x.indices()), (Doubles{1, 0, 0, 0, 1, 1}));
  EXPECT_EQ(values(x.to_dense()), kExample);
  EXPECT_EQ(values(x), kExample);
  EXPECT_EQ(describe(x), "sparse f64[2, 3] on cpu:0");
}

TEST(Sparse, EveryDType) {
  for (DType dtype : {f32, f64, bf16, f16, i8, u8, i16, i32, i64, c64, c128}) {
    Tensor x = example(dtype);
    EXPECT_EQ(values(x.to_dense()), kExample) << name(dtype);
    EXPECT_EQ(x.to_dense().dtype(), dtype);
    Tensor c = x.coalesce();
    EXPECT_EQ(values(c.values()), (Doubles{5, 1})) << name(dtype);
    EXPECT_EQ(values(x.to_dense().to_sparse().values()), (Doubles{5, 1})) << name(dtype);
    EXPECT_EQ(values(add(x, x).to_dense()), (Doubles{0, 10, 0, 2, 0, 0})) << name(dtype);
    EXPECT_EQ(values(mm(x, ones({3, 2}, {dtype}))), (Doubles{5, 5, 1, 1})) << name(dtype);
  }
  Tensor b = sparse_coo(tensor({{1, 1}}), tensor({true, true}), {3});
  EXPECT_EQ(values(b.to_dense()), (Doubles{0, 1, 0}));
}

TEST(Sparse, CoalesceSortsAndAdds) {
  Tensor c = example().coalesce();
  EXPECT_TRUE(c.is_coalesced());
  EXPECT_EQ(values(c.indices()), (Doubles{0, 1, 1, 0}));
  EXPECT_EQ(values(c.values()), (Doubles{5, 1}));
  EXPECT_TRUE(c.coalesce().is_same(c));
  // Many entries: the radix sort; bf16 is summed in f32.
  manual_seed(1);
  int64_t n = 20000;
  Tensor indices = stack({randint(0, 50, {n}), randint(0, 3000, {n})});
  Tensor v = randint(-4, 5, {n}, {f64});
  Tensor big = sparse_coo(indices, v, {50, 3000});
  Doubles expected(150000, 0);
  auto i = values(indices), w = values(v);
  for (size_t k = 0; k < w.size(); ++k) expected[static_cast<size_t>(i[k] * 3000 + i[k + w.size()])] += w[k];
  EXPECT_EQ(values(big.to_dense()), expected);
  Tensor sorted = big.coalesce();
  EXPECT_EQ(values(sorted.to_dense()), expected);
  auto position = entry_positions(sorted.indices(), sorted.sizes());
  for (size_t k = 1; k < position.size(); ++k) ASSERT_LT(position[k - 1], position[k]);
  Tensor small = sparse_coo(zeros({1, 257}, {i64}), cat({tensor({256.0}, {bf16}), ones({256}, {bf16})}), {1});
  EXPECT_EQ(values(small.to_dense()), (Doubles{512}));  // in bf16 alone, 256 + 1 would stay 256
}

TEST(Sparse, HybridDims) {
  Tensor v = tensor({{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}});
  Tensor x = sparse_coo(tensor({{2, 0, 2}}), v, {4, 2});
  EXPECT_EQ(x.sparse_dim(), 1);
  EXPECT_EQ(x.dense_dim(), 1);
  EXPECT_EQ(values(x.to_dense()), (Doubles{3, 4, 0, 0, 6, 8, 0, 0}));
  EXPECT_EQ(values(x.coalesce().values()), (Doubles{3, 4, 6, 8}));
  Tensor back = to_sparse(x.to_dense(), 1);
  EXPECT_EQ(values(back.indices()), (Doubles{0, 2}));
  EXPECT_EQ(values(back.values()), (Doubles{3, 4, 6, 8}));
  EXPECT_EQ(values(mul(x, tensor({{1.0, 10.0}})).to_dense()), (Doubles{3, 40, 0, 0, 6, 80, 0, 0}));
  EXPECT_EQ(values(add(x, back).to_dense()), (Doubles{6, 8, 0, 0, 12, 16, 0, 0}));
  EXPECT_EQ(to_sparse(x, 2).sparse_dim(), 2);
}

TEST(Sparse, Empty) {
  Tensor x = sparse_coo(zeros({2, 0}, {i64}), zeros({0}), {2, 3});
  EXPECT_EQ(values(x.to_dense()), Doubles(6, 0));
  EXPECT_EQ(x.coalesce().values().numel(), 0);
  EXPECT_EQ(zeros({2, 3}).to_sparse().values().numel(), 0);
  EXPECT_EQ(values(add(x, example(f32))), kExample);
  EXPECT_EQ(values(mm(x, ones({3, 2}))), Doubles(4, 0));
  EXPECT_EQ(values(mul(x, 2)), Doubles(6, 0));
  Tensor none = sparse_coo(zeros({1, 0}, {i64}), zeros({0, 4}), {0, 4});
  EXPECT_EQ(none.to_dense().sizes(), (Shape{0, 4}));
  EXPECT_EQ(mm(sparse_coo(zeros({2, 0}, {i64}), zeros({0}), {3, 0}), zeros({0, 2})).sizes(), (Shape{3, 2}));
  Tensor scalar = tensor(3.0).to_sparse();
  EXPECT_EQ(scalar.sparse_dim(), 0);
  EXPECT_EQ(scalar.item<double>(), 3);
}

TEST(Sparse, ToSparseKeepsWhatIsNotZero) {
  Tensor x = tensor({{0.0, NAN}, {-0.0, INFINITY}});
  Tensor s = x.to_sparse();
  EXPECT_EQ(values(s.indices()), (Doubles{0, 1, 1, 1}));
  EXPECT_TRUE(s.is_coalesced());
  Tensor t = arange(6).view({2, 3}).t();
  EXPECT_EQ(values(t.to_sparse().to_dense()), values(t));
  EXPECT_EQ(values(t.to_sparse().indices()), (Doubles{0, 1, 1, 2, 2, 1, 0, 1, 0, 1}));
}

TEST(Sparse, SaysWhatIsWrong) {
  Tensor i = tensor({{0, 1}});
  auto error = [](auto... args) { return message_of<Error>([&] { sparse_coo(args...); }); };
  EXPECT_THAT(error(i, ones({2}), Shape{1}), HasSubstr("index 1 of entry 1 is out of range for dim 0 of [1]"));
  EXPECT_THAT(error(tensor({{-1}}), ones({1}), Shape{1}), HasSubstr("index -1"));
  EXPECT_THAT(error(i, ones({3}), Shape{2}), HasSubstr("each of the 2 columns"));
  EXPECT_THAT(error(i, ones({2}), Shape{2, 2}), HasSubstr("do not fit"));
  EXPECT_THAT(error(i, ones({2, 3}), Shape{2, 4}), HasSubstr("then [3]"));
  EXPECT_THAT(error(i.to(i32), ones({2}), Shape{2}), HasSubstr("needs i64 indices"));
  EXPECT_THAT(error(tensor({{0}, {0}, {0}}), ones({1}), Shape{1 << 30, 1 << 30, 1 << 30}), HasSubstr("2^62"));
  EXPECT_THAT(message_of<ValueError>([] { coalesce(ones({2})); }), HasSubstr("is not sparse"));
  EXPECT_THAT(message_of<ValueError>([] { ones({2}).values(); }), HasSubstr("is not sparse"));
  EXPECT_THAT(message_of<ValueError>([] { to_sparse(ones({2}), 2); }), HasSubstr("2 of them"));
  Tensor x = example();
  EXPECT_THAT(message_of<ValueError>([&] { x.fill_(1); }), HasSubstr("to_dense()"));
  EXPECT_THAT(message_of<ValueError>([&] { view(x, {6}); }), HasSubstr("view: sparse f64[2, 3] on cpu:0 is sparse"));
  EXPECT_THAT(message_of<ValueError>([&] { exp(x); }), HasSubstr("sparse"));
  EXPECT_THAT(message_of<ShapeError>([&] { mm(x, ones({2, 2}, {f64})); }), HasSubstr("inner sizes 3 and 2 differ"));
  EXPECT_THAT(message_of<ShapeError>([&] { add(x, sparse_coo(i, ones({2}), {2})); }), HasSubstr("same shape"));
  EXPECT_THAT(message_of<ValueError>([&] { div(x, ones({2, 3})); }), HasSubstr("divided by numbers only"));
  EXPECT_THAT(message_of<ShapeError>([&] { mul(x, ones({5, 2, 3})); }), HasSubstr("not broadcast"));
}

TEST(Sparse, CopiesAndCasts) {
  Tensor x = example();
  Tensor c = x.clone();
  c.values().fill_(0);
  EXPECT_EQ(values(x), kExample);
  EXPECT_EQ(x.to(f32).dtype(), f32);
  EXPECT_TRUE(x.coalesce().to(f32).is_coalesced());
  Devices two(2);
  EXPECT_EQ(x.to("cpu:1").device(), Device("cpu:1"));
  EXPECT_EQ(values(x.to("cpu:1").to("cpu:0")), kExample);
  Tensor dense = zeros({2, 3});
  EXPECT_EQ(values(dense.copy_(x)), kExample);
}

TEST(Sparse, Arithmetic) {
  Tensor x = example(), d = arange(6, {f64}).view({2, 3});
  Tensor y = sparse_coo(tensor({{0, 1}, {1, 2}}), tensor({10.0, 20.0}, {f64}), {2, 3});
  Tensor sum = add(x, y);
  EXPECT_TRUE(sum.is_sparse() && sum.is_coalesced());
  EXPECT_EQ(values(sum), (Doubles{0, 15, 0, 1, 0, 20}));
  EXPECT_EQ(values(sub(x, y)), (Doubles{0, -5, 0, 1, 0, -20}));
  EXPECT_FALSE(add(x, d).is_sparse());
  EXPECT_EQ(values(add(x, d)), (Doubles{0, 6, 2, 4, 4, 5}));
  EXPECT_EQ(values(add(d, x)), (Doubles{0, 6, 2, 4, 4, 5}));
  EXPECT_EQ(values(add(d.t().contiguous().t(), x)), (Doubles{0, 6, 2, 4, 4, 5}));
  EXPECT_EQ(values(sub(d, x)), (Doubles{0, -4, 2, 2, 4, 5}));
  EXPECT_EQ(values(sub(x, d)), (Doubles{0, 4, -2, -2, -4, -5}));
  EXPECT_EQ(values(add(x, 1)), (Doubles{1, 6, 1, 2, 1, 1}));
  EXPECT_EQ(values(add(x, tensor({1.0, 2.0, 3.0}))), (Doubles{1, 7, 3, 2, 2, 3}));
  EXPECT_EQ(values(mul(x, 2)), (Doubles{0, 10, 0, 2, 0, 0}));
  EXPECT_EQ(values(mul(tensor(2.0), x)), (Doubles{0, 10, 0, 2, 0, 0}));
  EXPECT_EQ(values(div(x, 2)), (Doubles{0, 2.5, 0, 0.5, 0, 0}));
  EXPECT_EQ(values(mul(x, d + 1)), (Doubles{0, 10, 0, 4, 0, 0}));
  EXPECT_TRUE(mul(d, x).is_sparse());
  EXPECT_EQ(values(mul(x, y)), (Doubles{0, 50, 0, 0, 0, 0}));
  EXPECT_EQ(add(x, example(f32)).dtype(), f64);
  EXPECT_EQ(mul(example(f32), 2.5).dtype(), f32);
  EXPECT_EQ(values(neg(x)), (Doubles{0, -5, 0, -1, 0, 0}));
  EXPECT_EQ(values(square(x)), (Doubles{0, 25, 0, 1, 0, 0}));
  EXPECT_THAT(message_of<ValueError>([&] { exp(x); }), HasSubstr("takes no sparse tensors here"));
  EXPECT_THAT(message_of<ValueError>([&] { pow(x, d); }), HasSubstr("takes no sparse tensors here"));
}

TEST(Sparse, ValuesMayLieInWhatIsAddedTo) {
  Tensor w = ones({4}, {f64});
  w.add_(sparse_coo(tensor({{1, 2, 3}}), w.narrow(0, 0, 3), {4}));
  EXPECT_EQ(values(w), (Doubles{1, 2, 2, 2}));
}

TEST(Sparse, InPlace) {
  Tensor x = example(), d = ones({2, 3}, {f64});
  const void* memory = d.raw_data();
  d.add_(x);
  EXPECT_EQ(d.raw_data(), memory);
  EXPECT_EQ(values(d), (Doubles{1, 6, 1, 2, 1, 1}));
  d.sub_(x);
  EXPECT_EQ(values(d), Doubles(6, 1));
  Tensor t = ones({3, 2}).t();  // strides, and another dtype
  t.add_(x);
  EXPECT_EQ(values(t), (Doubles{1, 6, 1, 2, 1, 1}));
  Tensor s = example(f32);
  s.mul_(2);
  EXPECT_EQ(values(s), (Doubles{0, 10, 0, 2, 0, 0}));
  EXPECT_EQ(s.dtype(), f32);
  s.add_(x);
  EXPECT_EQ(values(s), (Doubles{0, 15, 0, 3, 0, 0}));
  EXPECT_EQ(s.dtype(), f32);
  EXPECT_THAT(message_of<ShapeError>([&] { s.add_(ones({2, 3})); }), HasSubstr("out-of-place"));
  Tensor leaf = example().requires_grad_();
  EXPECT_THAT(message_of<GradError>([&] { leaf.mul_(2); }), HasSubstr("autograd"));
}

TEST(Sparse, Products) {
  manual_seed(3);
  Tensor a = randn({7, 9}, {f64});
  a = a * cast(rand({7, 9}) < 0.3, f64);
  for (int64_t width : {1, 5, 8, 40}) {
    Tensor b = randn({9, width}, {f64});
    auto got = values(mm(a.to_sparse(), b)),
         other = values(mm(b.t(), a.to_sparse().is_sparse() ? sparse_transpose(a.to_sparse()) : a));
    auto av = values(a), bv = values(b);
    for (int64_t r = 0; r < 7; ++r)
      for (int64_t j = 0; j < width; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < 9; ++k)
          sum += av[static_cast<size_t>(r * 9 + k)] * bv[static_cast<size_t>(k * width + j)];
        EXPECT_NEAR(got[static_cast<size_t>(r * width + j)], sum, 1e-12);
        EXPECT_NEAR(other[static_cast<size_t>(j * 7 + r)], sum, 1e-12);
      }
  }
  EXPECT_EQ(values(mm(example(), sparse_transpose(example()))), (Doubles{25, 0, 0, 1}));
  EXPECT_EQ(mm(example(f32), ones({3, 1}, {f64})).dtype(), f64);
  EXPECT_EQ(mm(example(bf16), ones({3, 1}, {bf16})).dtype(), bf16);
  Tensor one, four;
  Tensor big = sparse_coo(stack({randint(0, 2000, {9000}), randint(0, 300, {9000})}), randn({9000}), {2000, 300}),
         d = randn({300, 70});
  {
    ThreadsGuard guard(1);
    one = mm(big, d);
  }
  {
    ThreadsGuard guard(4);
    four = mm(big, d);
  }
  EXPECT_TRUE(equal(one, four));
}

// ---- Gradients

// Both checks of f as a function of the values of a sparse tensor with duplicates, and of dense tensors.
void check_gradients(const std::function<Tensor(const Tensor& sparse, const TensorList& x)>& f,
                     const TensorList& others = {}, DType dtype = f64) {
  manual_seed(4);
  TensorList inputs{randn({4}, {.dtype = dtype, .requires_grad = true})};
  for (auto& x : others) inputs.push_back(x);
  auto g = [&](const TensorList& x) -> TensorList {
    Tensor s = sparse_coo(tensor({{1, 0, 0, 1}, {0, 1, 1, 2}}), x[0], {2, 3});
    return {f(s, TensorList(x.begin() + 1, x.end()))};
  };
  EXPECT_TRUE(gradcheck(g, inputs));
  EXPECT_TRUE(gradgradcheck(g, inputs));
}
Tensor leaf(const Shape& sizes, DType dtype = f64) { return randn(sizes, {.dtype = dtype, .requires_grad = true}); }

TEST(Sparse, GradientsOfConversions) {
  check_gradients([](const Tensor& s, auto&) { return square(to_dense(s)); });
  check_gradients([](const Tensor& s, auto&) { return square(sparse_values(coalesce(s))); });
  check_gradients([](const Tensor& s, auto&) { return square(to_dense(coalesce(s))); });
  check_gradients([](const Tensor& s, auto&) { return square(to_dense(clone(s))); });
  check_gradients([](const Tensor& s, auto&) { return square(to_dense(to_sparse(to_dense(s)))); });
  check_gradients([](const Tensor& s, auto&) { return square(to_dense(sparse_transpose(s))); });
  check_gradients([](const Tensor& s, auto&) { return square(sparse_gather(s, tensor({{0, 1, 1}, {1, 1, 2}}))); });
  check_gradients(
      [](const Tensor& s, auto& x) { return to_dense(s) * sparse_gather(x[0], tensor({{0, 1, 1}, {1, 1, 1}})); },
      {leaf({2, 3})});
}

TEST(Sparse, GradientsOfArithmetic) {
  check_gradients([](const Tensor& s, auto&) { return square(to_dense(add(s, mul(s, 3)))); });
  check_gradients([](const Tensor& s, auto& x) { return square(sub(s, x[0])); }, {leaf({2, 3})});
  check_gradients([](const Tensor& s, auto& x) { return to_dense(mul(s, x[0])); }, {leaf({2, 3})});
  check_gradients([](const Tensor& s, auto& x) { return to_dense(mul(s, x[0])); }, {leaf({3})});
  check_gradients([](const Tensor& s, auto& x) { return to_dense(div(s, x[0] + 5)); }, {leaf({})});
  check_gradients([](const Tensor& s, auto&) { return to_dense(mul(s, s)); });
}

TEST(Sparse, GradientsOfProducts) {
  check_gradients([](const Tensor& s, auto& x) { return mm(s, x[0]); }, {leaf({3, 4})});
  check_gradients([](const Tensor& s, auto& x) { return mm(x[0], s); }, {leaf({4, 2})});
  check_gradients([](const Tensor& s, auto& x) { return mm(s, x[0]); }, {leaf({3, 2}, c128)}, c128);
}

TEST(Sparse, GradientsOfSparseLeaves) {
  Tensor x = example().requires_grad_(), d = ones({3, 2}, {f64});
  sum(mm(x, d)).backward();
  EXPECT_TRUE(x.grad().is_sparse());
  EXPECT_EQ(values(x.grad()), (Doubles{0, 2, 0, 2, 0, 0}));
  Tensor y = example().requires_grad_();
  sum(square(to_dense(y))).backward();
  EXPECT_FALSE(y.grad().is_sparse());
  EXPECT_EQ(values(y.grad()), (Doubles{0, 10, 0, 2, 0, 0}));
  // values() of duplicates have no gradient of their own.
  Tensor z = example().requires_grad_();
  Tensor total = sum(z.values());
  EXPECT_THAT(message_of<GradError>([&] { total.backward(); }), HasSubstr("coalesce()"));
  EXPECT_FALSE(z.indices().requires_grad());
  EXPECT_TRUE(z.values().requires_grad());
}

TEST(Sparse, WritesAreNoticed) {
  Tensor w = ones({3, 1}, {.dtype = f64, .requires_grad = true});
  Tensor x = example(), y = sum(mm(x, w));
  x.mul_(2);
  EXPECT_THAT(message_of<VersionError>([&] { y.backward(); }), HasSubstr("'mul' wrote to it in place"));
  Tensor z = example(), total = sum(mm(z, w));
  z.values().fill_(0);
  EXPECT_THAT(message_of<VersionError>([&] { total.backward(); }), HasSubstr("sparse f64[2, 3]"));
}

TEST(Sparse, GradientsThroughCasts) {
  Tensor v = tensor({1.0, 2.0}, {.dtype = f32, .requires_grad = true});
  Tensor s = sparse_coo(tensor({{0, 0}}), v, {2});
  sum(square(to_dense(s.to(f64)))).backward();
  EXPECT_EQ(values(v.grad()), (Doubles{6, 6}));
  EXPECT_EQ(v.grad().dtype(), f32);
}

// A gradient that is sparse, of a dense tensor: what an embedding table gets.
struct Rows : Function<Rows> {
  Tensor rows;
  Shape sizes;
  Tensor forward(const Tensor& table, const Tensor& index) {
    rows = index;
    sizes = table.sizes();
    return sparse_gather(table, index.unsqueeze(0));
  }
  TensorList backward(const TensorList& g) { return {sparse_coo(rows.unsqueeze(0), g[0], sizes), {}}; }
};

TEST(Sparse, GradientsAccumulate) {
  Tensor index = tensor({1, 1, 2}), dense_part = tensor({{1.0}, {0.0}, {0.0}});
  Tensor table = ones({3, 1}, {.requires_grad = true});
  sum(Rows::apply(table, index)).backward();
  EXPECT_TRUE(table.grad().is_sparse());
  EXPECT_EQ(values(table.grad()), (Doubles{0, 2, 1}));
  sum(Rows::apply(table, index)).backward();  // sparse + sparse
  EXPECT_TRUE(table.grad().is_sparse());
  EXPECT_EQ(values(table.grad()), (Doubles{0, 4, 2}));
  sum(table * dense_part).backward();  // sparse + dense
  EXPECT_FALSE(table.grad().is_sparse());
  EXPECT_EQ(values(table.grad()), (Doubles{1, 4, 2}));
  Tensor grad = table.grad();
  sum(Rows::apply(table, index)).backward();  // dense + sparse, in place
  EXPECT_TRUE(table.grad().is_same(grad));
  EXPECT_EQ(values(table.grad()), (Doubles{1, 6, 3}));
  // In one pass, and through an operator that knows nothing of sparse gradients.
  Tensor leaf = ones({3, 1}, {.requires_grad = true});
  sum(Rows::apply(leaf * 2, index) + leaf).backward();
  EXPECT_EQ(values(leaf.grad()), (Doubles{1, 5, 3}));
}

TEST(Sparse, LeafGradientsShareNothing) {
  Tensor table = ones({3, 1}, {.requires_grad = true}), other = ones({3, 1}, {.requires_grad = true});
  Tensor index = tensor({0, 1, 2});
  (Rows::apply(table, index) + other).backward(ones({3, 1}));
  Tensor g = table.grad();
  ASSERT_TRUE(g.is_sparse());
  g.mul_(5);
  EXPECT_EQ(values(other.grad()), Doubles(3, 1));
  EXPECT_EQ(values(table.grad()), Doubles(3, 5));
}

// The public functions know sparse tensors.
TEST(Sparse, PublicOperators) {
  Tensor x = example(), d = ones({2, 3}, {f64});
  EXPECT_TRUE((x + x).is_sparse());
  EXPECT_EQ(values(x + x), (Doubles{0, 10, 0, 2, 0, 0}));
  EXPECT_EQ(values(x - d), (Doubles{-1, 4, -1, 0, -1, -1}));
  EXPECT_EQ(values(-x * 2), (Doubles{0, -10, 0, -2, 0, 0}));
  EXPECT_EQ(values(x / 2), (Doubles{0, 2.5, 0, 0.5, 0, 0}));
  d += x;
  EXPECT_EQ(values(d), (Doubles{1, 6, 1, 2, 1, 1}));
  EXPECT_EQ(values(mm(x, ones({3, 1}, {f64}))), (Doubles{5, 1}));
}

TEST(Sparse, SumsWithAFactor) {
  Tensor x = example(), d = ones({2, 3}, {f64});
  EXPECT_TRUE(add(x, x, 3).is_sparse());
  EXPECT_EQ(values(add(x, x, 3)), (Doubles{0, 20, 0, 4, 0, 0}));
  EXPECT_EQ(values(sub(x, x, 2)), (Doubles{0, -5, 0, -1, 0, 0}));
  EXPECT_EQ(values(add(d, x, 2)), (Doubles{1, 11, 1, 3, 1, 1}));
  EXPECT_EQ(values(sub(d, x, 2)), (Doubles{1, -9, 1, -1, 1, 1}));
  EXPECT_EQ(values(add(x, d, -1)), (Doubles{-1, 4, -1, 0, -1, -1}));
  const void* memory = d.raw_data();
  d.add_(x, 0.5);
  EXPECT_EQ(d.raw_data(), memory);
  EXPECT_EQ(values(d), (Doubles{1, 3.5, 1, 1.5, 1, 1}));
  Tensor s = example();
  s.sub_(x, 3);
  EXPECT_TRUE(s.is_sparse());
  EXPECT_EQ(values(s), (Doubles{0, -10, 0, -2, 0, 0}));
  Tensor leaf = example().requires_grad_();
  EXPECT_EQ(values(grad(sum(add(ones({2, 3}, f64), leaf, 4)), leaf).to_dense()), (Doubles{0, 4, 0, 4, 0, 0}));
}

TEST(Sparse, ProductsWithVectors) {
  Tensor x = example(), v = tensor({1.0, 2.0, 3.0}, f64), w = tensor({1.0, 10.0}, f64);
  EXPECT_EQ(values(mv(x, v)), (Doubles{10, 1}));
  EXPECT_EQ(mv(x, v).sizes(), (Shape{2}));
  EXPECT_EQ(values(x.mv(v)), values(mv(x.to_dense(), v)));
  EXPECT_EQ(values(matmul(x, v)), (Doubles{10, 1}));
  EXPECT_EQ(values(matmul(w, x)), (Doubles{10, 5, 0}));
  EXPECT_EQ(values(matmul(x, v.unsqueeze(1))), (Doubles{10, 1}));
  EXPECT_EQ(values(matmul(x, v.to_sparse())), (Doubles{10, 1}));
  Tensor out = empty({2}, f64);
  EXPECT_EQ(values(mv_out(out, x, v)), (Doubles{10, 1}));
  EXPECT_EQ(values(addmm(ones({2, 1}, f64), x, v.unsqueeze(1), 2, 3)), (Doubles{32, 5}));
  Tensor into = ones({2, 1}, f64);
  EXPECT_EQ(values(into.addmm_(x, v.unsqueeze(1))), (Doubles{11, 2}));
  EXPECT_EQ(values(addmm(full({2, 1}, NAN, {f64}), x, v.unsqueeze(1), 0, 1)), (Doubles{10, 1}));
  Tensor leaf = v.clone().requires_grad_();
  EXPECT_EQ(values(grad(sum(mv(x, leaf)), leaf)), (Doubles{1, 5, 0}));
  EXPECT_THAT(message_of<ShapeError>([&] { mv(x, w); }), testing::StartsWith("mv: inner sizes 3 and 2"));
  EXPECT_THAT(message_of<ShapeError>([&] { matmul(x, w); }), testing::StartsWith("matmul: inner sizes 3 and 2"));
}

TEST(Sparse, FilledCopiedAndTransposed) {
  Tensor x = example(), zero = zeros_like(x);
  EXPECT_TRUE(zero.is_sparse());
  EXPECT_EQ(zero.values().numel(), 0);
  EXPECT_EQ(values(zero), Doubles(6, 0));
  EXPECT_EQ(zeros_like(x, f32).dtype(), f32);
  Tensor y = example(), saved = y.values();
  uint64_t version = y.version();
  y.zero_();
  EXPECT_GT(y.version(), version);
  EXPECT_EQ(values(y), Doubles(6, 0));
  EXPECT_EQ(values(saved), (Doubles{1, 2, 3})) << "another's values were changed";
  y.copy_(x);
  EXPECT_EQ(values(y), kExample);
  y.mul_(2);
  EXPECT_EQ(values(x), kExample) << "a copy shares its values with the original";
  y.copy_(tensor({{0.0, 0.0, 7.0}, {0.0, 0.0, 0.0}}));  // dense, and of another dtype
  EXPECT_TRUE(y.is_sparse());
  EXPECT_EQ(y.dtype(), f64);
  EXPECT_EQ(values(y), (Doubles{0, 0, 7, 0, 0, 0}));
  EXPECT_THROW(y.copy_(ones({3})), ShapeError);
  EXPECT_EQ(values(x.t()), (Doubles{0, 1, 5, 0, 0, 0}));
  EXPECT_TRUE(x.t().is_sparse());
  EXPECT_EQ(x.transpose(1, 0).sizes(), (Shape{3, 2}));
  Tensor leaf = example().requires_grad_();
  EXPECT_THROW(leaf.zero_(), GradError);
  EXPECT_THROW(leaf.copy_(x), GradError);
  EXPECT_EQ(values(grad(sum(leaf.t().to_dense() * tensor({{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}}, f64)), leaf).to_dense()),
            (Doubles{1, 3, 5, 2, 4, 6}));
  Tensor hybrid = to_sparse(ones({2, 3}, f64), 1);
  EXPECT_EQ(zeros_like(hybrid).values().sizes(), (Shape{0, 3}));
  EXPECT_EQ(values(hybrid.zero_()), Doubles(6, 0));
}

// What is known without values: sizes, dtype, layout, and entries where they do not depend on values.
TEST(Sparse, MetaTensors) {
  Tensor x = example(), dense = ones({2, 3}, {f64}), wide = ones({3, 4}, {f64});
  Tensor mx = copy_to(x, "meta"), mdense = copy_to(dense, "meta"), mwide = copy_to(wide, "meta");
  EXPECT_TRUE(mx.is_sparse());
  auto alike = [](const Tensor& real, const Tensor& meta) {
    EXPECT_TRUE(meta.device().is_meta());
    EXPECT_EQ(meta.sizes(), real.sizes());
    EXPECT_EQ(meta.dtype(), real.dtype());
    ASSERT_EQ(meta.is_sparse(), real.is_sparse());
    if (!real.is_sparse()) return;
    EXPECT_EQ(meta.sparse_dim(), real.sparse_dim());
    EXPECT_GE(entries_of(meta), entries_of(real));
  };
  alike(x, sparse_coo(empty({2, 3}, {.dtype = i64, .device = "meta"}), empty({3}, {.dtype = f64, .device = "meta"}),
                      {2, 3}));
  alike(x, mx);
  alike(x.to(f32), mx.to(f32));
  alike(to_dense(x), to_dense(mx));
  alike(coalesce(x), coalesce(mx));
  alike(sparse_values(x), sparse_values(mx));
  alike(sparse_indices(x), sparse_indices(mx));
  alike(x + x, mx + mx);
  alike(x.to(f32) - x, mx.to(f32) - mx);
  alike(x + dense, mx + mdense);
  alike(x * 2, mx * 2);
  alike(x / 2, mx / 2);
  alike(x * dense, mx * mdense);
  alike(x * x, mx * mx);
  alike(-x, -mx);
  alike(mm(x, wide), mm(mx, mwide));
  alike(mm(dense.t(), x), mm(mdense.t(), mx));
  EXPECT_EQ(entries_of(mx + mx), 6);
  EXPECT_THAT(to_string(mx), HasSubstr("meta"));
  EXPECT_THROW(to_sparse(mdense), DeviceError);  // how many are not zero nobody knows
  EXPECT_THROW(mx.to(Device("cpu")), DeviceError);
}

Tensor first_of_two(const Tensor& value) { return sparse_coo(tensor({{0}}, {i64}), value, {2}); }

// As dense tensors do: narrow integers become the common dtype before anything is done with them.
TEST(Sparse, PromotesBeforeItComputes) {
  Tensor one = first_of_two(tensor({1}, {u8})), low = first_of_two(tensor({-128}, {i8}));
  Tensor five = first_of_two(tensor({5.0}, {f32})), hundred = first_of_two(tensor({100}, {i8}));
  EXPECT_EQ(values(ones({2}) - one), (Doubles{0, 1}));
  EXPECT_EQ(values(five - one), (Doubles{4, 0}));
  EXPECT_EQ(values(five - tensor({1, 0}, {u8})), (Doubles{4, 0}));
  EXPECT_EQ(values(five - low), (Doubles{133, 0}));
  EXPECT_EQ(values(full({2}, 100, {i32}) - one), (Doubles{99, 100}));
  EXPECT_EQ(values(five - first_of_two(tensor({true}))), (Doubles{4, 0}));
  EXPECT_EQ(values(add(ones({2}), hundred, 2)), (Doubles{201, 1}));
  EXPECT_EQ(values(add(ones({2}), one, -1)), (Doubles{0, 1}));
  EXPECT_EQ(values(sub(five, one, 2)), (Doubles{3, 0}));
  EXPECT_EQ(values(add(zeros({2}, {f64}), first_of_two(tensor({1.0}, {f32})), 0.1))[0], 0.1);
  Tensor d = zeros({2});
  d -= one;
  EXPECT_EQ(values(d), (Doubles{-1, 0}));
  Tensor half = full({2}, 0.5, {f16});
  half += first_of_two(tensor({1.0}, {f32}));
  EXPECT_EQ(values(half), (Doubles{1.5, 0.5}));
}

TEST(Sparse, ZeroDimensionalTensorsMatterByTheirCategory) {
  Tensor s = first_of_two(tensor({1.0}, {f32}));
  EXPECT_EQ((s + tensor(1.0, {f64})).dtype(), f32);
  EXPECT_EQ((s - tensor(1.0, {f64})).dtype(), f32);
  EXPECT_EQ((first_of_two(tensor({1}, {i8})) + tensor(1, {i64})).dtype(), i8);
  EXPECT_EQ((s + tensor(std::complex<double>(0, 1), {c128})).dtype(), c64);
  EXPECT_EQ((s * tensor(2.0, {f64})).dtype(), f32);
  EXPECT_THROW(sub(first_of_two(tensor({true})), tensor({true, true})), DTypeError);
}

// What several entries of one position are is their sum, in the dtype that they have.
TEST(Sparse, DuplicatesAreAddedBeforeTheyAreConverted) {
  auto twice = [](const Tensor& values) { return sparse_coo(tensor({{0, 0}}, {i64}), values, {2}); };
  Tensor bools = twice(tensor({true, true})), halves = twice(tensor({0.5, 0.5})),
         small = twice(tensor({100, 100}, {i8}));
  for (bool before : {false, true}) {
    auto form = [&](const Tensor& x) { return before ? coalesce(x) : x; };
    EXPECT_EQ(values(form(bools) * 2), (Doubles{2, 0}));
    EXPECT_EQ(values(form(bools).to(f32)), (Doubles{1, 0}));
    EXPECT_EQ(values(form(bools) + first_of_two(tensor({1.0}))), (Doubles{2, 0}));
    EXPECT_EQ(values(form(halves).to(i64)), (Doubles{1, 0}));
    EXPECT_EQ(values(form(small).to(i32)), (Doubles{-56, 0}));
    EXPECT_EQ(values(form(small) * 0.5), (Doubles{-28, 0}));
    EXPECT_EQ(values(form(small) / 2), (Doubles{-28, 0}));
  }
}

TEST(Sparse, UnaryOperatorsInPlace) {
  Tensor x = example();
  x.neg_();
  EXPECT_EQ(values(x), (Doubles{0, -5, 0, -1, 0, 0}));
  x.abs_();
  uint64_t version = x.version();
  x.sqrt_();
  EXPECT_EQ(values(x * x), (Doubles{0, 5.000000000000001, 0, 1, 0, 0}));
  EXPECT_GT(x.version(), version);
  EXPECT_THAT(message_of<ValueError>([&] { x.exp_(); }), HasSubstr("exp: takes no sparse tensors"));
  Tensor leaf = example().requires_grad_();
  EXPECT_THAT(message_of<GradError>([&] { leaf.neg_(); }), HasSubstr("takes part in autograd"));
}

TEST(Sparse, WhoseMemoryWasFreed) {
  for (bool of_values : {true, false}) {
    Tensor v = ones({400, 2}), i = arange(400).view({1, 400}), s = sparse_coo(i, v, {400, 2}), d = s.clone();
    (of_values ? v : i).resize_storage(0);
    EXPECT_THROW(s + s, ValueError);
    EXPECT_THROW((void)s.clone(), ValueError);
    EXPECT_THROW((void)s.to(f64), ValueError);
    EXPECT_THROW((void)to_dense(s), ValueError);
    EXPECT_THROW(d.copy_(s), ValueError);
    EXPECT_THAT(message_of<ValueError>([&] { s * 2; }), HasSubstr("resize it back first"));
  }
}

TEST(Sparse, ErrorsNameWhatWasCalled) {
  Tensor q = zeros({2}, {i64}), leaf = ones({2}, {.requires_grad = true}), s = first_of_two(tensor({1.0}));
  EXPECT_THAT(message_of<DTypeError>([&] { q += s; }), testing::StartsWith("add: "));
  EXPECT_THAT(message_of<DTypeError>([&] { q -= s; }), testing::StartsWith("sub: "));
  EXPECT_THAT(message_of<GradError>([&] { leaf += s; }), testing::StartsWith("add: "));
}

}  // namespace
}  // namespace tutti
