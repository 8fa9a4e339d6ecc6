// Indexing: values against plain loops, corners, errors. Gradients of every operator are checked by the table.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tests/ops/numbers.h"
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

Tensor list(const Ints& values) { return tensor(values); }
Tensor random_ints(std::mt19937& engine, const Shape& sizes, int64_t low, int64_t high) {
  Ints values(static_cast<size_t>(sizes.product()));
  for (auto& v : values) v = low + static_cast<int64_t>(engine() % static_cast<uint64_t>(high - low));
  return tensor(values).reshape(sizes);
}

// ---- index

TEST(Index, BasicEntriesAreViews) {
  Tensor x = counting({3, 4, 5});
  Tensor y = x.index({Slice(1, {}), 2, Slice({}, {}, 2)});
  EXPECT_TRUE(y.shares_storage(x));
  EXPECT_EQ(y.sizes(), Shape({2, 3}));
  EXPECT_EQ(ints(y), (Ints{30, 32, 34, 50, 52, 54}));
  EXPECT_EQ(x.index({Ellipsis, NewAxis, -1}).sizes(), Shape({3, 4, 1}));
  EXPECT_EQ(x.index({NewAxis, Ellipsis}).sizes(), Shape({1, 3, 4, 5}));
  EXPECT_EQ(x.index({}).sizes(), x.sizes());
  EXPECT_EQ(x.index({1, 2, 3}).item<int64_t>(), 33);
  x.index({0}).fill_(-1);
  EXPECT_EQ(x.index({0, 3, 4}).item<int64_t>(), -1);
}

TEST(Index, TensorsMatchALoop) {
  Tensor x = counting({4, 5, 6});
  Tensor i = list({3, 0, -1}), j = list({1, -5, 4});
  auto at = [](int64_t a, int64_t b, int64_t c) { return ((a + 4) % 4 * 5 + (b + 5) % 5) * 6 + (c + 6) % 6; };
  Ints adjacent, apart, rows;
  for (int64_t k = 0; k < 3; ++k)
    for (int64_t c = 0; c < 6; ++c) adjacent.push_back(at(ints(i)[size_t(k)], ints(j)[size_t(k)], c));
  EXPECT_EQ(ints(x.index({i, j})), adjacent);
  for (int64_t k = 0; k < 3; ++k)
    for (int64_t b = 0; b < 5; ++b) apart.push_back(at(ints(i)[size_t(k)], b, ints(j)[size_t(k)]));
  Tensor y = x.index({i, Slice(), j});
  EXPECT_EQ(y.sizes(), Shape({3, 5}));
  EXPECT_EQ(ints(y), apart);
  for (int64_t a = 0; a < 4; ++a)
    for (int64_t k = 0; k < 3; ++k) rows.push_back(at(a, ints(j)[size_t(k)], 2));
  EXPECT_EQ(ints(x.index({Slice(), j, 2})), rows);
}

TEST(Index, TensorsBroadcastAndStandInPlace) {
  Tensor x = counting({2, 3, 4, 5});
  Tensor i = list({2, 0}).reshape({2, 1}), j = list({0, 3, 1});
  Tensor y = x.index({Slice(), i, j});
  EXPECT_EQ(y.sizes(), Shape({2, 2, 3, 5}));
  EXPECT_EQ(y.index({1, 0, 1, 4}).item<int64_t>(), x.index({1, 2, 3, 4}).item<int64_t>());
  EXPECT_EQ(x.index({Ellipsis, i.to(i32), j}).sizes(), Shape({2, 3, 2, 3}));
  EXPECT_EQ(x.index({i % 2, Slice(), j}).sizes(), Shape({2, 3, 3, 5}));
  EXPECT_EQ(x.index({tensor(1), Slice(), tensor(2)}).sizes(), Shape({3, 5}));
  EXPECT_EQ(x.index({Slice(), NewAxis, j % 3}).sizes(), Shape({2, 1, 3, 4, 5}));
  EXPECT_EQ(x.index({zeros({0}, {i64})}).sizes(), Shape({0, 3, 4, 5}));
  EXPECT_EQ(x.index({zeros({2, 0}, {i64}), Slice(), 1}).sizes(), Shape({2, 0, 3, 5}));
}

TEST(Index, Masks) {
  Tensor x = counting({2, 3, 4});
  Tensor two = x.index({Slice(), Slice(), 0}) > 3;
  EXPECT_EQ(ints(x.index({two})), (Ints{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
  Tensor last = tensor({true, false, false, true});
  EXPECT_EQ(x.index({Ellipsis, last}).sizes(), Shape({2, 3, 2}));
  EXPECT_EQ(ints(x.index({0, list({2, 0}), last})), (Ints{8, 3}));
  EXPECT_EQ(ints(x.index({x > 21})), (Ints{22, 23}));
  EXPECT_EQ(x.index({tensor(true)}).sizes(), Shape({1, 2, 3, 4}));
  EXPECT_EQ(x.index({tensor(false)}).sizes(), Shape({0, 2, 3, 4}));
  EXPECT_EQ(counting({}).index({tensor(true)}).sizes(), Shape({1}));
  EXPECT_EQ(x.index({zeros({2}, {boolean})}).sizes(), Shape({0, 3, 4}));
}

TEST(Index, StridedAndExpandedInputs) {
  Tensor x = counting({6, 7, 5});
  Tensor t = x.permute({2, 0, 1});
  Tensor i = list({4, 0, 0, -1}), j = list({6, 1, 3, 3});
  EXPECT_TRUE(equal(t.index({i}), t.contiguous().index({i})));
  EXPECT_TRUE(equal(t.index({i, Slice(), j}), t.contiguous().index({i, Slice(), j})));
  EXPECT_TRUE(equal(t.index({Slice(), i, j}), t.contiguous().index({Slice(), i, j})));
  Tensor e = counting({1, 7}).expand({3, 7});
  EXPECT_TRUE(equal(e.index({list({2, 0}), list({1, 6})}), list({1, 6}).to(f32)));
  EXPECT_TRUE(equal(x.index({i.unsqueeze(1).expand({4, 2})}), x.index({i.unsqueeze(1).expand({4, 2}).contiguous()})));
}

TEST(Index, AllDtypes) {
  Tensor base = counting({4, 3});
  for (DType dtype : kAllDTypes) {
    Tensor x = base.to(dtype), i = list({3, 1, 3});
    EXPECT_TRUE(equal(x.index({i}), base.index({i}).to(dtype))) << name(dtype);
    EXPECT_TRUE(equal(x.index({Slice(), list({2, 0})}), base.index({Slice(), list({2, 0})}).to(dtype))) << name(dtype);
    EXPECT_TRUE(equal(gather(x, 1, list({2, 0, 0, 1}).reshape({4, 1})),
                      gather(base, 1, list({2, 0, 0, 1}).reshape({4, 1})).to(dtype)));
    EXPECT_TRUE(equal(masked_select(x, base > 4), masked_select(base, base > 4).to(dtype)));
    EXPECT_TRUE(equal(index_put(x, {i}, tensor({1, 0, 1}).to(dtype)),
                      index_put(base, {i}, tensor({1, 0, 1}).to(f32)).to(dtype)));
  }
}

TEST(Index, ErrorsSayWhatAndWhere) {
  Tensor x = counting({3, 4});
  EXPECT_EQ(message_of<IndexError>([&] { x.index({Slice(), list({0, 4})}); }),
            "index: index 4 is out of range for dim 1 of size 4: use -4 to 3 (it is at [1] of indices [2])");
  EXPECT_EQ(message_of<IndexError>([&] { x.index({-4}); }),
            "index: index -4 is out of range for dim 0 of f32[3, 4] on cpu:0: use -3 to 2");
  EXPECT_THAT(message_of<DTypeError>([&] { x.index({zeros({3}, {u8})}); }), HasSubstr("cast it to bool"));
  EXPECT_THAT(message_of<DTypeError>([&] { x.index({zeros({3})}); }), HasSubstr("must be i64 or i32, not f32[3]"));
  EXPECT_THAT(message_of<IndexError>([&] { x.index({ones({4}, {boolean})}); }), HasSubstr("the mask bool[4]"));
  EXPECT_THAT(message_of<IndexError>([&] { x.index({0, 0, 0}); }), HasSubstr("3 dims are indexed, but f32[3, 4]"));
  EXPECT_THAT(message_of<IndexError>([&] { x.index({Ellipsis, 0, Ellipsis}); }), HasSubstr("only one Ellipsis"));
  EXPECT_THAT(message_of<IndexError>([&] { x.index({list({0, 1}), list({0, 1, 2})}); }), HasSubstr("[2], [3]"));
  EXPECT_THROW(counting({}).index({0}), IndexError);
  EXPECT_THROW(x.index({Slice(0, 2, -1)}), ValueError);
}

// ---- index_put

TEST(IndexPut, LastOfDuplicatesRemains) {
  Tensor x = zeros({4});
  x.index_put_({list({1, 3, 1, 1})}, tensor({10., 20., 30., 40.}));
  EXPECT_EQ(values(x), (Doubles{0, 40, 0, 20}));
  x.index_put_({list({1, -1, 1, 1})}, tensor({1., 2., 3., 4.}), true);
  EXPECT_EQ(values(x), (Doubles{0, 48, 0, 22}));
}

TEST(IndexPut, ValuesBroadcastAndNumbersConvert) {
  Tensor x = zeros({3, 4}, {i32});
  x.index_put_({list({0, 2})}, 7);
  x.index_put_({Slice(), 1}, tensor({1, 2, 3}));
  x.index_put_({1, Slice(2, {})}, ones({1, 1, 2}, {i32}));
  x.index_put_({x == 7}, tensor(9));
  EXPECT_EQ(ints(x), (Ints{9, 1, 9, 9, 0, 2, 1, 1, 9, 3, 9, 9}));
  x.index_put_({Ellipsis}, 0);
  EXPECT_EQ(ints(x), Ints(12, 0));
  EXPECT_THROW(x.index_put_({list({0})}, 1.5), DTypeError);
  EXPECT_THROW(x.index_put_({list({0})}, ones({3}, {i32})), ShapeError);
  Tensor y = index_put(x, {0}, 5);
  EXPECT_EQ(ints(x), Ints(12, 0));
  EXPECT_EQ(ints(y.sum({1})), (Ints{20, 0, 0}));
}

TEST(IndexPut, IntoViews) {
  Tensor x = zeros({3, 4}), columns = x.t();
  columns.index_put_({list({3, 0})}, tensor({{1., 2., 3.}, {4., 5., 6.}}));
  EXPECT_EQ(values(x), (Doubles{4, 0, 0, 1, 5, 0, 0, 2, 6, 0, 0, 3}));
  x.index({Slice({}, {}, 2)}).index_put_({Slice(), list({1, 1})}, 1, true);
  EXPECT_EQ(values(x), (Doubles{4, 2, 0, 1, 5, 0, 0, 2, 6, 2, 0, 3}));
  // With the index and value in the storage that is written.
  Tensor i = list({2, 0, 1, 0});
  i.index_put_({i}, i);
  EXPECT_EQ(ints(i), (Ints{0, 1, 2, 0}));
}

TEST(IndexPut, NothingIsWrittenIfAnIndexIsWrong) {
  Tensor x = zeros({3, 2});
  EXPECT_EQ(message_of<IndexError>([&] { x.index_put_({list({0, 1, 3})}, 1); }),
            "index_put: index 3 is out of range for dim 0 of size 3: use -3 to 2 (it is at [2] of indices [3])");
  EXPECT_THROW(x.index_put_({list({0, 1}), list({1, 2})}, 1), IndexError);
  EXPECT_THROW(index_add_(x, 0, list({0, -4}), ones({2, 2})), IndexError);
  EXPECT_THROW(scatter_(x, 0, list({0, 3}).reshape({1, 2}), 1), IndexError);
  Tensor t = x.t();
  EXPECT_THROW(scatter_add_(t, 1, list({0, 1, 3}).reshape({1, 3}), 1), IndexError);
  EXPECT_EQ(values(x), Doubles(6, 0));
  EXPECT_TRUE(t.shares_storage(x));
}

TEST(IndexPut, GradientOfOverwrittenValuesIsZero) {
  Tensor x = zeros({3}, {f64, {}, true}), v = tensor({1., 2., 3.}, {f64, {}, true});
  Tensor w = tensor({5., 7., 11.}, {f64});
  (index_put(x, {list({1, 0, 1})}, v) * w).sum().backward();
  EXPECT_EQ(values(x.grad()), (Doubles{0, 0, 11}));
  EXPECT_EQ(values(v.grad()), (Doubles{0, 5, 7}));
  v.zero_grad();
  (scatter(x, 0, list({2, 2, 0}), v) * w).sum().backward();
  EXPECT_EQ(values(v.grad()), (Doubles{0, 11, 5}));
}

TEST(IndexPut, GradientsThroughMasksAndSlices) {
  Tensor x = tensor({{1., 2., 3.}, {4., 5., 6.}}, {f64, {}, true}), v = tensor(2., {f64, {}, true});
  auto f = [](const TensorList& in) -> TensorList {
    Tensor y = in[0] * 2;
    y.index_put_({in[0] > 3.5}, in[1]);
    y.index({Slice(), 1}).index_put_({list({0})}, in[1] * in[1]);
    return {y, index_put(in[0], {Slice(0, 1), list({2, 2})}, in[1] * 3, true), in[0].index({in[0] > 2.5, NewAxis})};
  };
  EXPECT_TRUE(gradcheck(f, {x, v}));
  EXPECT_TRUE(gradgradcheck(f, {x, v}));
}

TEST(IndexPut, LargeMatchesALoopWithAnyThreads) {
  std::mt19937 engine(1);
  for (int64_t width : {1, 3, 48, 300}) {
    int64_t rows = 40, n = 3000;
    Tensor i = random_ints(engine, {n}, -rows, rows), v = random_ints(engine, {n, width}, -9, 9);
    std::vector<int64_t> put(static_cast<size_t>(rows * width)), added(put);
    auto at = ints(i), from = ints(v);
    for (int64_t k = 0; k < n; ++k)
      for (int64_t c = 0; c < width; ++c) {
        auto to = static_cast<size_t>((at[size_t(k)] + rows) % rows * width + c);
        put[to] = from[size_t(k * width + c)];
        added[to] += from[size_t(k * width + c)];
      }
    for (int threads : {1, 4})
      for (DType dtype : {f32, i32, bf16, c64}) {
        ThreadsGuard guard(threads);
        Tensor x = zeros({rows, width}, {dtype});
        EXPECT_EQ(ints(index_put(x, {i}, v.to(dtype))), put) << name(dtype) << " " << width;
        if (dtype == bf16) continue;
        EXPECT_EQ(ints(index_put(x, {i}, v.to(dtype), true)), added) << name(dtype) << " " << width;
        EXPECT_EQ(ints(index_add(x, 0, i, v.to(dtype))), added) << name(dtype) << " " << width;
      }
  }
}

// ---- gather, scatter, index_select, index_add

TEST(Gather, MatchesALoopAlongEveryDim) {
  std::mt19937 engine(2);
  Tensor x = counting({5, 6, 7}, f64);
  for (int64_t dim = 0; dim < 3; ++dim) {
    Shape sizes{4, 3, 6};
    sizes[size_t(dim)] = 9;
    Tensor i = random_ints(engine, sizes, -x.size(dim), x.size(dim));
    Tensor strided = i.transpose(0, 2).contiguous().transpose(0, 2);
    Tensor got = gather(x, dim, i), put = scatter(x, dim, i, got * 2), added = scatter_add(x, dim - 3, i, got);
    Tensor expected_put = x.clone(), expected_added = x.clone();
    for (int64_t a = 0; a < sizes[0]; ++a)
      for (int64_t b = 0; b < sizes[1]; ++b)
        for (int64_t c = 0; c < sizes[2]; ++c) {
          Shape at{a, b, c};
          at[size_t(dim)] = i.index({a, b, c}).item<int64_t>();
          Tensor source = x.index({at[0], at[1], at[2]});
          ASSERT_EQ(got.index({a, b, c}).item<double>(), source.item<double>());
          expected_put.index({at[0], at[1], at[2]}).copy_(source * 2);
          expected_added.index({at[0], at[1], at[2]}).add_(source);
        }
    EXPECT_TRUE(equal(put, expected_put));
    EXPECT_TRUE(equal(added, expected_added));
    EXPECT_TRUE(equal(gather(x.permute({2, 1, 0}).contiguous().permute({2, 1, 0}), dim, strided.to(i32)), got));
    Tensor t = x.transpose(0, 2).contiguous().transpose(0, 2);
    EXPECT_TRUE(equal(scatter_add_(t, dim, strided, got), expected_added));
  }
}

TEST(Gather, ExpandedIndicesMoveRows) {
  std::mt19937 engine(3);
  Tensor x = counting({10, 4, 3}), i = random_ints(engine, {20}, 0, 10);
  for (int64_t dim : {0, 1, 2}) {
    Tensor y = x.transpose(0, dim);
    Shape one{1, 1, 1}, sizes = y.sizes();
    one[size_t(dim)] = 20;
    sizes[size_t(dim)] = 20;
    Tensor wide = i.reshape(one).expand(sizes), dense = wide.contiguous();
    EXPECT_TRUE(equal(gather(y, dim, wide), gather(y, dim, dense)));
    EXPECT_TRUE(equal(gather(y, dim, wide), index_select(y, dim, i)));
    Tensor source = counting(sizes);
    EXPECT_TRUE(equal(scatter(y, dim, wide, source), scatter(y, dim, dense, source)));
    EXPECT_TRUE(equal(scatter_add(y, dim, wide, source), scatter_add(y, dim, dense, source)));
    EXPECT_TRUE(equal(scatter_add(y, dim, wide, source), index_add(y, dim, i, source)));
  }
}

TEST(Gather, ZeroDimensionalAndEmpty) {
  Tensor x = tensor(5.);
  EXPECT_EQ(gather(x, 0, tensor(0)).sizes(), Shape());
  EXPECT_EQ(scatter_add(x, -1, tensor(0), tensor(2.)).item<double>(), 7);
  EXPECT_EQ(index_select(x, 0, list({0})).sizes(), Shape());
  EXPECT_EQ(index_add(x, 0, tensor(0), tensor(1.)).item<double>(), 6);
  EXPECT_EQ(gather(counting({2, 3}), 1, zeros({2, 0}, {i64})).sizes(), Shape({2, 0}));
  EXPECT_EQ(index_select(zeros({0, 3}), 1, list({2, 2})).sizes(), Shape({0, 2}));
  EXPECT_EQ(values(scatter(counting({3}), 0, zeros({0}, {i64}), zeros({0}))), (Doubles{0, 1, 2}));
  EXPECT_THROW(index_select(zeros({0, 3}), 0, list({0})), IndexError);
}

TEST(Gather, SourceMayBeLargerOrANumber) {
  Tensor x = zeros({2, 3}), i = list({2, 0}).reshape({1, 2});
  EXPECT_EQ(values(scatter(x, 1, i, ones({2, 3}) * 4)), (Doubles{4, 0, 4, 0, 0, 0}));
  EXPECT_EQ(values(scatter(x, 1, i, 3)), (Doubles{3, 0, 3, 0, 0, 0}));
  scatter_add_(x, 1, i, x + 1);
  EXPECT_EQ(values(x), (Doubles{1, 0, 1, 0, 0, 0}));
  scatter_add_(x, 1, list({0, 0, 0, 1, 1, 1}).reshape({2, 3}), x);  // x is its own source
  EXPECT_EQ(values(x), (Doubles{3, 0, 1, 0, 0, 0}));
}

TEST(IndexAdd, OfATensorWithoutDims) {
  Tensor x = tensor(2.0, {.dtype = f64, .requires_grad = true}), one = tensor({0}), number = tensor(0);
  Tensor source = tensor({3.0}, {.dtype = f64, .requires_grad = true});
  for (const Tensor& i : {one, number}) {
    EXPECT_EQ(index_add(x, 0, i, source).item<double>(), 5);
    EXPECT_EQ(index_add(x, -1, i, tensor(4.0, f64)).item<double>(), 6);
  }
  TensorList g = grad({index_add(x, 0, one, source) * 7}, {x, source});
  EXPECT_EQ(g[0].item<double>(), 7);
  EXPECT_EQ(g[1].sizes(), (Shape{1}));
  EXPECT_EQ(g[1].item<double>(), 7);
  Tensor changed = tensor(1.0, f64);
  EXPECT_EQ(changed.index_add_(0, one, source.detach()).item<double>(), 4);
  EXPECT_THAT(message_of<ShapeError>([&] { index_add(x, 0, tensor({0, 0}), source); }), HasSubstr("takes one index"));
}

TEST(Gather, Errors) {
  Tensor x = counting({2, 3});
  EXPECT_EQ(message_of<IndexError>([&] { gather(x, 1, list({0, 3}).reshape({1, 2})); }),
            "gather: index 3 is out of range for dim 1 of size 3: use -3 to 2 (it is at [0, 1] of indices [1, 2])");
  EXPECT_THAT(message_of<ShapeError>([&] { gather(x, 1, list({0})); }), HasSubstr("as many dims"));
  EXPECT_THAT(message_of<ShapeError>([&] { gather(x, 1, zeros({3, 1}, {i64})); }), HasSubstr("in dim 0"));
  EXPECT_THAT(message_of<DTypeError>([&] { gather(x, 1, x); }), HasSubstr("i64 or i32"));
  EXPECT_THAT(message_of<ShapeError>([&] { scatter(x, 1, zeros({2, 2}, {i64}), ones({2, 1})); }),
              HasSubstr("larger than the source"));
  EXPECT_THAT(message_of<ShapeError>([&] { index_select(x, 0, zeros({1, 1}, {i64})); }), HasSubstr("list"));
  EXPECT_THAT(message_of<ShapeError>([&] { index_add(x, 0, list({0}), ones({2, 3})); }), HasSubstr("shape [1, 3]"));
  EXPECT_THROW(gather(x, 2, x.to(i64)), IndexError);
  EXPECT_THROW(index_add(x.to(i64), 0, list({0}), ones({1, 3})), DTypeError);
}

TEST(IndexSelect, EveryDimOfEveryLayout) {
  Tensor base = counting({4, 5, 6}), i = list({3, 0, -1, 3});
  for (const Shape& order : {Shape{0, 1, 2}, Shape{2, 0, 1}, Shape{1, 2, 0}})
    for (int64_t dim = 0; dim < 3; ++dim) {
      Tensor x = base.permute(order), y = index_select(x, dim, i);
      for (int64_t k = 0; k < 4; ++k) EXPECT_TRUE(equal(y.select(dim, k), x.select(dim, ints(i)[size_t(k)])));
      Tensor z = x.clone();
      index_add_(z, dim, i, y);
      Tensor expected = x.clone();
      for (int64_t k = 0; k < 4; ++k) expected.select(dim, ints(i)[size_t(k)]).add_(y.select(dim, k));
      EXPECT_TRUE(equal(z, expected));
    }
  Tensor wide = counting({3, 2}, bf16);  // rows of 4 bytes move as one
  EXPECT_EQ(ints(index_select(wide, 0, list({2, 0}))), (Ints{4, 5, 0, 1}));
}

TEST(IndexAdd, HalfTypesAddInFloat) {
  // 256 + 1 is 256 in bf16: only sums in f32 arrive.
  Tensor x = full({2, 3}, 256, {bf16}), ones_ = ones({512, 3}, {bf16});
  Tensor i = zeros({512}, {i64});
  EXPECT_EQ(values(index_add(x, 0, i, ones_)), (Doubles{768, 768, 768, 256, 256, 256}));
  EXPECT_EQ(values(index_put(x, {i}, ones_, true)), (Doubles{768, 768, 768, 256, 256, 256}));
  EXPECT_EQ(values(scatter_add(x.t().contiguous(), 1, zeros({3, 512}, {i64}), ones_.t())),
            (Doubles{768, 256, 768, 256, 768, 256}));
  EXPECT_EQ(values(index_add(x.t(), 1, i, ones_.t())), (Doubles{768, 256, 768, 256, 768, 256}));
}

TEST(IndexAdd, SameBitsWithAnyThreads) {
  std::mt19937 engine(4);
  Tensor i = random_ints(engine, {5000}, 0, 100);
  for (DType dtype : {f32, bf16, f16, c64}) {
    Tensor source = sin(counting({5000, 64})).to(dtype), x = zeros({100, 64}, {dtype});
    Tensor results[2];
    for (int t : {0, 1}) {
      ThreadsGuard guard(t ? 4 : 1);
      results[t] = index_add(x, 0, i, source);
    }
    EXPECT_TRUE(equal(results[0], results[1])) << name(dtype);
    if (dtype != f32) continue;
    std::vector<float> sums(6400);
    auto from = source.to_vector<float>();
    auto at = ints(i);
    for (size_t k = 0; k < 5000; ++k)
      for (size_t c = 0; c < 64; ++c) sums[size_t(at[k]) * 64 + c] += from[k * 64 + c];
    EXPECT_EQ(results[0].to_vector<float>(), sums);
  }
}

// ---- masks

TEST(Masks, Nonzero) {
  Tensor x = tensor({{0., 2., 0.}, {std::nan(""), 0., -0.5}});
  EXPECT_EQ(ints(nonzero(x)), (Ints{0, 1, 1, 0, 1, 2}));
  EXPECT_EQ(ints(nonzero(x.t())), (Ints{0, 1, 1, 0, 2, 1}));
  EXPECT_EQ(nonzero(tensor(3)).sizes(), Shape({1, 0}));
  EXPECT_EQ(nonzero(tensor(0)).sizes(), Shape({0, 0}));
  EXPECT_EQ(nonzero(zeros({0, 4})).sizes(), Shape({0, 2}));
  EXPECT_EQ(ints(nonzero(tensor({0, 1}, {c64}))), (Ints{1}));
  EXPECT_EQ(nonzero(x).dtype(), i64);
  Tensor large = arange(100000) % 7 == 0;
  Tensor places = nonzero(large.reshape({100, 10, 100}));
  EXPECT_EQ(places.sizes(), Shape({14286, 3}));
  Tensor flat = places.select(1, 0) * 1000 + places.select(1, 1) * 100 + places.select(1, 2);
  EXPECT_TRUE(equal(flat, arange(14286) * 7));
  EXPECT_THROW(nonzero(zeros({3}, {.device = "meta"})), DeviceError);
}

TEST(Masks, SelectBroadcasts) {
  Tensor x = counting({2, 3});
  EXPECT_EQ(ints(masked_select(x, tensor({true, false, true}))), (Ints{0, 2, 3, 5}));
  EXPECT_EQ(ints(masked_select(tensor({7, 8}), tensor({{true, true}, {false, true}}))), (Ints{7, 8, 8}));
  EXPECT_EQ(masked_select(x, x < 0).sizes(), Shape({0}));
  EXPECT_THAT(message_of<DTypeError>([&] { masked_select(x, x); }), HasSubstr("bool"));
  EXPECT_THAT(message_of<ShapeError>([&] { masked_select(x, ones({4}, {boolean})); }), HasSubstr("bool[4]"));
  Tensor v = tensor({1., 2.}, {f64, {}, true});
  masked_select(v, tensor({{true, true}, {false, true}})).sum().backward();
  EXPECT_EQ(values(v.grad()), (Doubles{1, 2}));
}

TEST(Masks, Fill) {
  Tensor x = counting({2, 2}), m = tensor({{true, false}, {false, true}});
  EXPECT_EQ(values(masked_fill(x, m, -std::numeric_limits<double>::infinity()))[0],
            -std::numeric_limits<double>::infinity());
  EXPECT_EQ(masked_fill(x, m, 2.5).dtype(), f32);
  EXPECT_EQ(masked_fill(x.to(bf16), m, tensor(2.5, {f64})).dtype(), bf16);
  x.masked_fill_(m, 9);
  EXPECT_EQ(values(x), (Doubles{9, 1, 2, 9}));
  EXPECT_EQ(masked_fill(tensor({1., 2.}), m, 0).sizes(), Shape({2, 2}));
  EXPECT_THROW(masked_fill(x.to(i64), m, 1.5), DTypeError);
  EXPECT_THROW(masked_fill(x, x, 1), DTypeError);
  EXPECT_THROW(masked_fill(x, m, ones({2})), ShapeError);
  Tensor narrow = ones({2});
  EXPECT_THROW(narrow.masked_fill_(m, 0), ShapeError);
  Tensor leaf = ones({2, 2}, {f64, {}, true}), value = tensor(3., {f64, {}, true});
  masked_fill(leaf, m, value).sum().backward();
  EXPECT_EQ(values(leaf.grad()), (Doubles{0, 1, 1, 0}));
  EXPECT_EQ(value.grad().item<double>(), 2);
}

// ---- sort, topk

template <class T>
Ints reference_order(const std::vector<T>& v, bool descending) {
  Ints order(v.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  auto less = [](T a, T b) { return a < b || (!std::isnan(double(a)) && std::isnan(double(b))); };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return descending ? less(v[size_t(b)], v[size_t(a)]) : less(v[size_t(a)], v[size_t(b)]);
  });
  return order;
}

TEST(Sort, StableForAllRealDtypes) {
  std::mt19937 engine(5);
  for (int64_t n : {1, 2, 300, 5000}) {
    Tensor base = random_ints(engine, {n}, -60, 60);
    for (DType dtype : kAllDTypes) {
      if (is_complex(dtype)) continue;
      Tensor x = base.to(dtype);
      auto v = x.to_vector<double>();
      for (bool descending : {false, true}) {
        auto [sorted, order] = sort(x, 0, descending);
        EXPECT_EQ(ints(order), reference_order(v, descending)) << name(dtype) << " " << n;
        EXPECT_TRUE(equal(sorted, gather(x, 0, order)));
      }
    }
  }
}

TEST(Sort, SpecialValues) {
  double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  Tensor x = tensor({1., nan, -inf, inf, -0., 0., -nan, -1.});
  for (DType dtype : {f32, f64, bf16, f16}) {
    auto [up, up_order] = sort(x.to(dtype));
    EXPECT_EQ(ints(up_order), (Ints{2, 7, 4, 5, 0, 3, 1, 6})) << name(dtype);
    EXPECT_TRUE(std::signbit(up[2].item<double>()));
    EXPECT_EQ(ints(sort(x.to(dtype), -1, true).indices), (Ints{1, 6, 3, 0, 4, 5, 7, 2}));
    EXPECT_EQ(ints(topk(x.to(dtype), 4).indices), (Ints{1, 6, 3, 0}));
    EXPECT_EQ(ints(topk(x.to(dtype), 3, 0, false).indices), (Ints{2, 7, 4}));
  }
  Tensor whole = list({INT64_MAX, INT64_MIN, 0, -1, INT64_MAX});
  EXPECT_EQ(ints(argsort(whole)), (Ints{1, 3, 2, 0, 4}));
  EXPECT_EQ(ints(argsort(tensor({255, 0, 128}, {u8}))), (Ints{1, 2, 0}));
}

TEST(Sort, AnyDimAndLayout) {
  std::mt19937 engine(6);
  Tensor base = random_ints(engine, {7, 5, 6}, 0, 20).to(f32);
  for (Tensor x : {base, base.permute({2, 0, 1}), base.slice(0, 0, {}, 2)})
    for (int64_t dim = -3; dim < 3; ++dim) {
      auto [sorted, order] = sort(x, dim);
      EXPECT_TRUE(equal(gather(x, dim, order), sorted));
      Tensor low = sorted.narrow(dim, 0, sorted.size(dim) - 1), high = sorted.narrow(dim, 1, sorted.size(dim) - 1);
      EXPECT_TRUE(all(low <= high).item<bool>());
      auto top = topk(x, 2, dim);
      auto down = sort(x, dim, true);
      EXPECT_TRUE(equal(top.values, down.values.narrow(dim, 0, 2)));
      EXPECT_TRUE(equal(top.indices, down.indices.narrow(dim, 0, 2)));
    }
  EXPECT_EQ(sort(tensor(3.)).indices.sizes(), Shape());
  EXPECT_EQ(sort(zeros({2, 0})).values.sizes(), Shape({2, 0}));
  EXPECT_EQ(sort(zeros({0, 3})).values.sizes(), Shape({0, 3}));
  EXPECT_THAT(message_of<DTypeError>([&] { sort(zeros({2}, {c64})); }), HasSubstr("no order"));
}

TEST(Sort, LongListsWithAnyThreads) {
  int64_t n = 200000;
  Tensor x = sin(arange(n).to(f64) * 1.7);
  for (DType dtype : {f32, f64, i16}) {
    Tensor y = dtype == i16 ? (x * 100).to(i16) : x.to(dtype);
    ValuesIndices results[2];
    for (int t : {0, 1}) {
      ThreadsGuard guard(t ? 4 : 1);
      results[t] = sort(y);
    }
    EXPECT_TRUE(equal(results[0].indices, results[1].indices));
    EXPECT_EQ(ints(results[0].indices), reference_order(y.to_vector<double>(), false)) << name(dtype);
    EXPECT_TRUE(equal(topk(y, 777).indices, sort(y, 0, true).indices.narrow(0, 0, 777)));
    EXPECT_TRUE(equal(topk(y, 100000, 0, false).indices, results[0].indices.narrow(0, 0, 100000)));
  }
  Tensor rising = arange(n);  // the worst order for keeping the best so far
  EXPECT_EQ(ints(topk(rising, 3).indices), (Ints{n - 1, n - 2, n - 3}));
}

TEST(Topk, Corners) {
  Tensor x = tensor({{3, 1, 3, 2}, {0, 0, 0, 0}});
  EXPECT_EQ(ints(topk(x, 2).indices), (Ints{0, 2, 0, 1}));
  EXPECT_EQ(ints(topk(x, 3, -1, false).indices), (Ints{1, 3, 0, 0, 1, 2}));
  EXPECT_EQ(topk(x, 0).values.sizes(), Shape({2, 0}));
  EXPECT_EQ(topk(tensor(4.), 1).values.item<double>(), 4);
  EXPECT_THAT(message_of<ValueError>([&] { topk(x, 5); }), HasSubstr("k = 5"));
  EXPECT_THROW(topk(x, -1), ValueError);
  Tensor leaf = tensor({1., 4., 2.}, {f64, {}, true});
  auto top = topk(leaf, 2);
  EXPECT_FALSE(top.indices.requires_grad());
  (top.values * tensor({10., 20.}, {f64})).sum().backward();
  EXPECT_EQ(values(leaf.grad()), (Doubles{0, 10, 20}));
}

// ---- one_hot, equal, allclose

TEST(OneHot, ValuesAndRange) {
  EXPECT_EQ(ints(one_hot(list({2, 0}), 3)), (Ints{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(one_hot(list({2, 0})).sizes(), Shape({2, 3}));
  EXPECT_EQ(one_hot(zeros({2, 2}, {i32}).t(), 5).sizes(), Shape({2, 2, 5}));
  EXPECT_EQ(ints(one_hot(tensor(1), 3)), (Ints{0, 1, 0}));
  EXPECT_EQ(one_hot(zeros({0}, {i64}), 3).sizes(), Shape({0, 3}));
  EXPECT_THAT(message_of<IndexError>([&] { one_hot(list({0, 3}), 3); }), HasSubstr("class 3"));
  EXPECT_THAT(message_of<IndexError>([&] { one_hot(list({-1}), 3); }), HasSubstr("class -1"));
  EXPECT_THROW(one_hot(list({-1})), IndexError);
  EXPECT_THROW(one_hot(zeros({0}, {i64})), ValueError);
  EXPECT_THROW(one_hot(zeros({2}), 3), DTypeError);
  EXPECT_THROW(one_hot(list({0}), -2), ValueError);
}

TEST(Equal, ShapesDtypesValues) {
  for (DType dtype : kAllDTypes) {
    Tensor x = (counting({3, 4}) > 5).to(dtype), y = x.t().contiguous().t();
    EXPECT_TRUE(equal(x, y)) << name(dtype);
    y.index_put_({2, 3}, 0);
    EXPECT_FALSE(equal(x, y)) << name(dtype);
  }
  EXPECT_FALSE(equal(ones({2}), ones({2}, {f64})));
  EXPECT_FALSE(equal(ones({2}), ones({1, 2})));
  EXPECT_TRUE(equal(zeros({0, 3}), zeros({0, 3})));
  EXPECT_TRUE(equal(tensor({0.}), tensor({-0.})));
  EXPECT_FALSE(equal(tensor({std::nan("")}), tensor({std::nan("")})));
  EXPECT_THROW(equal(zeros({1}, {.device = "meta"}), zeros({1})), DeviceError);
}

TEST(Equal, Close) {
  double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  EXPECT_TRUE(allclose(tensor({1., 2.}), tensor({1. + 1e-6, 2.})));
  EXPECT_FALSE(allclose(tensor({1., 2.}), tensor({1.001, 2.})));
  EXPECT_TRUE(allclose(tensor({1., 2.}), tensor({1.001, 2.}), 1e-2));
  EXPECT_TRUE(allclose(tensor({inf, -inf}), tensor({inf, -inf})));
  EXPECT_FALSE(allclose(tensor({inf}), tensor({-inf})));
  EXPECT_FALSE(allclose(tensor({1e300}, {f64}), tensor({inf}, {f64})));
  EXPECT_FALSE(allclose(tensor({nan}), tensor({nan})));
  EXPECT_TRUE(allclose(tensor({nan}), tensor({nan}), 1e-5, 1e-8, true));
  EXPECT_TRUE(allclose(tensor({{1, 1}}), 1));
  EXPECT_TRUE(allclose(ones({2}, {bf16}), ones({3, 2}, {f64})));
  EXPECT_FALSE(allclose(list({1LL << 60}), list({(1LL << 60) + (1LL << 50)})));
  EXPECT_TRUE(allclose(tensor(std::complex<double>(1, 2)), tensor(std::complex<double>(1, 2 + 1e-7))));
  EXPECT_THROW(allclose(ones({2}), ones({3})), ShapeError);
  EXPECT_THROW(allclose(ones({2}), ones({2}), -1), ValueError);
  Tensor x = tensor({nan, nan, 1.0, inf}), y = tensor({nan, 1.0, 1.0, inf});
  EXPECT_EQ(values(isclose(x, y)), (Doubles{0, 0, 1, 1}));
  EXPECT_EQ(values(isclose(x, y, 1e-5, 1e-8, true)), (Doubles{1, 0, 1, 1}));
  EXPECT_EQ(values(x.isclose(nan, 1e-5, 1e-8, true)), (Doubles{1, 1, 0, 0}));
  EXPECT_EQ(values(isclose(tensor({1, 2}), tensor({{1, 3}}), 0, 0, true)), (Doubles{1, 0}));
}

TEST(Index, ResultsOfGradientsOfEmptySelections) {
  Tensor x = ones({2, 3}, {f64, {}, true});
  Tensor nothing = x.index({zeros({0}, {i64})}).sum() + masked_select(x, x < 0).sum() + topk(x, 0).values.sum();
  nothing.backward();
  EXPECT_EQ(values(x.grad()), Doubles(6, 0));
}

}  // namespace
}  // namespace tutti
