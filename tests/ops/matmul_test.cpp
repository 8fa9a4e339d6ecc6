// Matrix products against plain loops: dtypes, memory layouts, shapes, special values, threads, gradients, errors;
// einsum.
#include <array>
#include <cmath>
#include <limits>

#include "ops/matmul/gemm.h"
#include "tests/ops/numbers.h"
#include "tests/support/expect_ops.h"
#include "tutti/amp.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"
#include "tutti/ops/attention.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;
using Complex = std::complex<double>;
using Complexes = std::vector<Complex>;

// Numbers without a pattern, the same each time; whole ones for integers, zeros and ones for bools.
Tensor matmul_numbers(const Shape& sizes, DType dtype = f64, uint64_t seed = 1) {
  std::vector<double> v(static_cast<size_t>(sizes.product())), w(v.size());
  auto fill = [&](std::vector<double>& to) {
    for (double& x : to) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      auto bits = static_cast<double>(seed >> 40);
      x = dtype == boolean    ? bits > 12e6
          : is_integer(dtype) ? std::floor(bits / 16777216.0 * 200) - 60
                              : bits / 8388608.0 - 1;
    }
  };
  fill(v);
  fill(w);
  Tensor t = reshape(tensor(v, {f64}), sizes);
  return is_complex(dtype) ? complex(t, reshape(tensor(w, {f64}), sizes)).to(dtype) : t.to(dtype);
}

// The same values in another layout: as they are, transposed, with gaps between rows, with gaps everywhere.
Tensor laid_out(const Tensor& x, int layout) {
  if (layout == 0) return x;
  if (layout == 1) return transpose(transpose(x, -2, -1).contiguous(), -2, -1);
  Shape sizes = x.sizes();
  size_t last = sizes.size() - 1;
  sizes[last] = layout == 2 ? sizes[last] + 3 : sizes[last] * 2;
  Tensor room = zeros(sizes, {x.dtype()});
  Tensor part = layout == 2 ? room.narrow(-1, 1, x.size(-1)) : room.slice(-1, 0, {}, 2);
  return part.copy_(x);
}

// What a@b should be, element by element, for matrices; `size` gets the sum of the terms' absolute values.
Complexes plain_product(const Tensor& a, const Tensor& b, Doubles& size) {
  auto x = a.to_vector<Complex>(), y = b.to_vector<Complex>();
  auto rows = static_cast<size_t>(a.size(0)), depth = static_cast<size_t>(a.size(1)),
       columns = static_cast<size_t>(b.size(1));
  Complexes result(rows * columns);
  size.assign(rows * columns, 0);
  for (size_t i = 0; i < rows; ++i)
    for (size_t k = 0; k < depth; ++k)
      for (size_t j = 0; j < columns; ++j) {
        Complex p = x[i * depth + k], q = y[k * columns + j];
        Complex term(p.real() * q.real() - p.imag() * q.imag(), p.real() * q.imag() + p.imag() * q.real());
        result[i * columns + j] += term;
        size[i * columns + j] += std::abs(term.real()) + std::abs(term.imag());
      }
  return result;
}

double rounding_of(DType dtype) {
  return dtype == bf16 ? 0x1p-8 : dtype == f16 ? 0x1p-11 : dtype == f32 || dtype == c64 ? 1e-7 : 1e-15;
}

void expect_product(const Tensor& result, const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_EQ(result.dtype(), a.dtype()) << what;
  ASSERT_EQ(result.sizes(), (Shape{a.size(0), b.size(1)})) << what;
  Doubles size;
  Complexes expected = plain_product(a, b, size);
  auto actual = result.to_vector<Complex>();
  for (size_t i = 0; i < expected.size(); ++i) {
    Complex e = expected[i];
    double tolerance = 0;
    if (a.dtype() == boolean)
      e = e != 0.0;
    else if (is_integer(a.dtype()))  // wraps to the dtype
      e = tensor(static_cast<int64_t>(e.real()), {i64}).to(a.dtype()).item<Complex>();
    else
      tolerance = size_of(a.dtype()) == 2 ? std::abs(e) * rounding_of(a.dtype()) + size[i] * 1e-6
                                          : size[i] * 4 * rounding_of(a.dtype());
    ASSERT_LE(std::abs(actual[i] - e), tolerance) << what << ", element " << i << ": " << actual[i] << ", not " << e;
  }
}

std::string name_of(const Tensor& a, const Tensor& b) { return describe(a) + " @ " + describe(b); }

TEST(Matmul, EveryDTypeAndLayout) {
  for (DType dtype : kAllDTypes)
    for (int la = 0; la < 4; ++la)
      for (int lb = 0; lb < 4; ++lb) {
        Tensor a = laid_out(matmul_numbers({11, 13}, dtype), la), b = laid_out(matmul_numbers({13, 19}, dtype, 2), lb);
        expect_product(mm(a, b), a, b, name_of(a, b) + " in layouts " + std::to_string(la) + std::to_string(lb));
      }
}

// Sizes around those of tiles, vectors and blocks, and those that other kernels take.
TEST(Matmul, ManySizes) {
  for (auto [rows, depth, columns] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                         {1, 7, 9},
                                                                         {1, 300, 65},
                                                                         {9, 40, 1},
                                                                         {2, 30, 3},
                                                                         {8, 384, 48},
                                                                         {9, 385, 20},
                                                                         {8, 70, 64},
                                                                         {8, 64, 64},
                                                                         {3, 100, 48},
                                                                         {17, 33, 100},
                                                                         {33, 400, 52},
                                                                         {70, 5, 200},
                                                                         {40, 3, 1100},

                                                                         {1, 4000, 1}})
    for (DType dtype : {f32, f64, i32, c64})
      for (int layout = 0; layout < 4; ++layout) {
        Tensor a = laid_out(matmul_numbers({rows, depth}, dtype), layout / 2),
               b = laid_out(matmul_numbers({depth, columns}, dtype, 2), layout % 2);
        expect_product(mm(a, b), a, b, name_of(a, b));
      }
}

// Small results of long sums are cut along the sum.
TEST(Matmul, DeepSums) {
  for (DType dtype : {f32, bf16}) {
    Tensor a = matmul_numbers({9, 70000}, dtype), b = matmul_numbers({70000, 5}, dtype, 2),
           c = matmul_numbers({5}, dtype, 3);
    Tensor product = mm(a, b);
    expect_product(product, a, b, name_of(a, b));
    Tensor wide = mm(a.to(f64), b.to(f64)) * 2 + c.to(f64) * 3;
    EXPECT_TRUE(allclose(addmm(c, a, b, 3, 2).to(f64), wide, dtype == bf16 ? 0x1p-8 : 1e-4, 1e-2));
  }
}

TEST(Matmul, ExpandedAndOverlappingOperands) {
  Tensor a = expand(matmul_numbers({1, 6}), {5, 6}), b = expand(matmul_numbers({6, 1}, f64, 2), {6, 20});
  expect_product(mm(a, b), a, b, "expanded");
  Tensor windows = as_strided(matmul_numbers({40}), {7, 20}, {2, 1});
  expect_product(mm(windows, windows.t()), windows, windows.t(), "overlapping");
  expect_product(mm(windows.t(), windows), windows.t(), windows, "overlapping, transposed");
}

TEST(Matmul, IntegersWrap) {
  Tensor a = full({2, 3}, 100, {i8}), b = full({3, 2}, 2, {i8});
  EXPECT_EQ(values(mm(a, b)), Doubles(4, 600 - 512));
  Tensor big = full({1, 4}, int64_t{1} << 62, {i64}), four = full({4, 1}, 2, {i64});
  EXPECT_EQ(mm(big, four).item<int64_t>(), 0);
  Tensor wide = full({1, 3}, 1 << 30, {i32});
  EXPECT_EQ(mm(wide, full({3, 1}, 2, {i32})).item<int64_t>(), static_cast<int32_t>(6442450944));
}

TEST(Matmul, HalfTypesRoundOnce) {
  for (DType dtype : {bf16, f16}) {
    Tensor a = matmul_numbers({5, 500}, dtype), b = matmul_numbers({500, 70}, dtype, 2);
    EXPECT_TRUE(equal(mm(a, b), mm(a.to(f32), b.to(f32)).to(dtype)));
    Tensor c = matmul_numbers({70}, dtype, 3);
    EXPECT_TRUE(equal(addmm(c, a, b, 0.5, 2), addmm(c.to(f32), a.to(f32), b.to(f32), 0.5, 2).to(dtype)));
  }
}

TEST(Matmul, EmptyMatrices) {
  for (DType dtype : {f32, i64, c128, bf16}) {
    Options o{dtype};
    EXPECT_EQ(mm(zeros({0, 3}, o), zeros({3, 2}, o)).sizes(), (Shape{0, 2}));
    EXPECT_EQ(mm(zeros({2, 3}, o), zeros({3, 0}, o)).sizes(), (Shape{2, 0}));
    EXPECT_EQ(values(mm(zeros({2, 0}, o), zeros({0, 3}, o))), Doubles(6, 0));
    EXPECT_EQ(values(addmm(ones({3}, o), zeros({2, 0}, o), zeros({0, 3}, o), 5)), Doubles(6, 5));
    EXPECT_EQ(values(bmm(zeros({2, 2, 0}, o), zeros({2, 0, 1}, o))), Doubles(4, 0));
    EXPECT_EQ(bmm(zeros({0, 2, 3}, o), zeros({0, 3, 4}, o)).sizes(), (Shape{0, 2, 4}));
    EXPECT_EQ(dot(zeros({0}, o), zeros({0}, o)).item<double>(), 0);
    EXPECT_EQ(values(mv(zeros({2, 0}, o), zeros({0}, o))), Doubles(2, 0));
    EXPECT_EQ(outer(zeros({0}, o), zeros({3}, o)).sizes(), (Shape{0, 3}));
    EXPECT_EQ(matmul(zeros({4, 0, 3}, o), zeros({3, 2}, o)).sizes(), (Shape{4, 0, 2}));
    EXPECT_EQ(matmul(zeros({4, 5, 0}, o), zeros({0, 2}, o)).sizes(), (Shape{4, 5, 2}));
  }
}

TEST(Matmul, NaNAndInfinity) {
  for (int64_t columns : {1, 40}) {
    Tensor a = ones({3, 20}, {f64}), b = ones({20, columns}, {f64});
    a.index_put_({1, 4}, kNaN);
    a.index_put_({2, 7}, kInf);
    auto r = values(mm(a, b));
    EXPECT_EQ(r[0], 20);
    EXPECT_TRUE(std::isnan(r[static_cast<size_t>(columns)]));
    EXPECT_EQ(r[static_cast<size_t>(2 * columns)], kInf);
    Tensor zero = zeros({20, columns}, {f64});
    EXPECT_TRUE(std::isnan(values(mm(a, zero))[static_cast<size_t>(2 * columns)]));  // inf·0
  }
  Tensor nan = full({2, 2}, kNaN), one = ones({2, 2});
  EXPECT_EQ(values(addmm(nan, one, one, 0)), Doubles(4, 2));  // not read
  EXPECT_TRUE(std::isnan(values(addmm(nan, one, one, 1))[0]));
  EXPECT_EQ(values(addmm(nan, zeros({2, 0}), zeros({0, 2}), 0)), Doubles(4, 0));
}

// ---- The same bits whatever the threads and the instruction set

TEST(Matmul, ThreadsDoNotChangeBits) {
  struct Case {
    Shape a, b;
  };
  for (auto& [x, y] : std::vector<Case>{{{70, 600}, {600, 500}},
                                        {{40, 20000}, {20000, 30}},
                                        {{1, 2000}, {2000, 900}},
                                        {{900, 2000}, {2000, 1}},
                                        {{1, 270000}, {270000, 1}},
                                        {{9, 64, 64}, {9, 64, 64}},
                                        {{700, 128}, {128, 40}}})
    for (DType dtype : {f32, c128, bf16}) {
      Tensor a = matmul_numbers(x, dtype), b = matmul_numbers(y, dtype, 2), one;
      for (int threads : {1, 2, 3}) {
        ThreadsGuard guard(threads);
        Tensor r = matmul(a, b);
        if (!one.defined()) one = r;
        EXPECT_TRUE(equal(one, r)) << name_of(a, b) << " on " << threads << " threads";
      }
    }
}

// One thread takes as one what several cut, but for pieces at the end that are too narrow for tiles.
TEST(Matmul, OneThreadSumsAsSeveralDo) {
  for (auto [rows, depth, columns] : std::vector<std::array<int64_t, 3>>{
           {300, 300, 385}, {385, 200, 300}, {257, 300, 769}, {769, 64, 257}, {200, 900, 386}, {391, 100, 391}})
    for (DType dtype : {f32, f64})
      for (int turned : {0, 1, 2}) {
        Tensor a = matmul_numbers({rows, depth}, dtype), b = matmul_numbers({depth, columns}, dtype, 2), one;
        if (turned == 1) a = a.t().contiguous().t();
        if (turned == 2) b = b.t().contiguous().t();
        for (int threads : {1, 2, 3}) {
          ThreadsGuard guard(threads);
          Tensor r = mm(a, b);
          if (!one.defined()) one = r;
          EXPECT_TRUE(equal(one, r)) << name_of(a, b) << " on " << threads << " threads, turned " << turned;
        }
      }
}

template <class T>
void expect_same_on_every_isa(void (*const kernels[])(const products::Product&), int count, int64_t rows,
                              int64_t columns, int64_t depth, bool transposed) {
  Tensor a = matmul_numbers({rows, depth}, dtype_of<T>), b = matmul_numbers({depth, columns}, dtype_of<T>, 2),
         d = matmul_numbers({columns}, dtype_of<T>, 3), first;
  if (transposed) b = laid_out(b, 1);
  for (int i = 0; i < count; ++i) {
    Tensor c = zeros({rows, columns}, {dtype_of<T>});
    kernels[i]({.dtype = dtype_of<T>,
                .rows = rows,
                .columns = columns,
                .depth = depth,
                .a = {a.raw_data(), a.stride(0), a.stride(1)},
                .b = {b.raw_data(), b.stride(0), b.stride(1)},
                .c = c.raw_data(),
                .c_row = columns,
                .d = d.raw_data(),
                .d_row = 0,
                .alpha = 1.25,
                .beta = 0.75});
    if (i == 0) first = c;
    EXPECT_TRUE(equal(first, c)) << name_of(a, b) << ", instruction set " << i;
  }
}

TEST(Matmul, InstructionSetsDoNotChangeBits) {
  using Kernel = void (*)(const products::Product&);
  std::vector<Kernel> tiles{&kernels_base::multiply_tiles}, dots{&kernels_base::multiply_dots},
      row{&kernels_base::multiply_row};
  TUTTI_IF_V3(if (best_isa() >= Isa::v3) {
    tiles.push_back(&kernels_v3::multiply_tiles);
    dots.push_back(&kernels_v3::multiply_dots);
    row.push_back(&kernels_v3::multiply_row);
  })
  TUTTI_IF_V4(if (best_isa() >= Isa::v4) {
    tiles.push_back(&kernels_v4::multiply_tiles);
    dots.push_back(&kernels_v4::multiply_dots);
    row.push_back(&kernels_v4::multiply_row);
  })
  auto count = static_cast<int>(tiles.size());
  for (bool transposed : {false, true}) {
    expect_same_on_every_isa<float>(tiles.data(), count, 37, 53, 500, transposed);
    expect_same_on_every_isa<double>(tiles.data(), count, 37, 53, 500, transposed);
    expect_same_on_every_isa<Complex>(tiles.data(), count, 11, 13, 200, transposed);
  }
  // One row of tiles and whole vectors: what takes b as it lies where it is transposed. 400: two blocks of the sum.
  for (int64_t rows = 1; rows <= 8; ++rows)
    for (int64_t depth : {8, 64, 400}) {
      expect_same_on_every_isa<float>(tiles.data(), count, rows, 48, depth, true);
      expect_same_on_every_isa<double>(tiles.data(), count, rows, 48, depth, true);
    }
  expect_same_on_every_isa<float>(dots.data(), count, 6, 7, 333, true);
  expect_same_on_every_isa<double>(dots.data(), count, 6, 7, 333, true);
  expect_same_on_every_isa<float>(row.data(), count, 1, 77, 333, false);
  expect_same_on_every_isa<double>(row.data(), count, 1, 77, 333, false);
}

// ---- The operators

TEST(Matmul, ByNumberOfDims) {
  Tensor v = matmul_numbers({3}), m = matmul_numbers({3, 4}), s = matmul_numbers({2, 3}),
         batch = matmul_numbers({5, 2, 3}), right = matmul_numbers({5, 3, 4}, f64, 2);
  EXPECT_EQ(matmul(v, v).sizes(), Shape{});
  EXPECT_TRUE(allclose(matmul(v, v), sum(v * v)));
  EXPECT_TRUE(allclose(matmul(s, v), sum(s * v, 1)));
  EXPECT_TRUE(allclose(matmul(v, m), sum(v.unsqueeze(1) * m, 0)));
  EXPECT_TRUE(equal(matmul(s, m), mm(s, m)));
  EXPECT_EQ(matmul(batch, m).sizes(), (Shape{5, 2, 4}));
  EXPECT_TRUE(equal(matmul(batch, m)[3], mm(batch[3], m)));
  EXPECT_TRUE(allclose(matmul(batch, v), sum(batch * v, 2)));
  EXPECT_TRUE(allclose(matmul(v, right), sum(v.unsqueeze(1) * right, 1)));
  EXPECT_TRUE(equal(matmul(s, right)[4], mm(s, right[4])));
  EXPECT_TRUE(equal(bmm(batch, right)[2], mm(batch[2], right[2])));
}

TEST(Matmul, BatchesBroadcast) {
  Tensor a = matmul_numbers({2, 1, 3, 4, 5}), b = matmul_numbers({6, 1, 5, 2}, f64, 2);
  Tensor c = matmul(a, b);
  ASSERT_EQ(c.sizes(), (Shape{2, 6, 3, 4, 2}));
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 6; ++j)
      for (int64_t k = 0; k < 3; ++k) EXPECT_TRUE(equal(c[i][j][k], mm(a[i][0][k], b[j][0])));
  Tensor heads = matmul_numbers({2, 7, 3, 4}).transpose(1, 2);  // [2, 3, 7, 4], as attention has them
  Tensor scores = matmul(heads, heads.transpose(-2, -1));
  EXPECT_TRUE(equal(scores[1][2], mm(heads[1][2], heads[1][2].t())));
  EXPECT_TRUE(equal(matmul(heads, matmul_numbers({4, 2}))[0][1], mm(heads[0][1], matmul_numbers({4, 2}))));
}

TEST(Matmul, SummandsBroadcast) {
  for (DType dtype : {f32, f64, i32, c64, bf16})
    for (const Shape& sizes : std::vector<Shape>{{}, {1}, {4}, {1, 4}, {3, 1}, {3, 4}}) {
      Tensor c = matmul_numbers(sizes, dtype, 3), a = matmul_numbers({3, 2}, dtype),
             b = matmul_numbers({2, 4}, dtype, 2);
      DType wide = is_complex(dtype) ? c128 : f64;
      Tensor expected = expand(c.to(wide), {3, 4}) * 2 - mm(a.to(wide), b.to(wide)) * 3;
      EXPECT_TRUE(allclose(addmm(c, a, b, 2, -3).to(wide), expected.to(dtype).to(wide), 0.02, 0.05))
          << name(dtype) << to_string(sizes);
      if (sizes.size() < 2) continue;
      Tensor turned = laid_out(c, 1);
      EXPECT_TRUE(equal(addmm(turned, a, b, 2, -3), addmm(c, a, b, 2, -3)));
    }
  Tensor a = matmul_numbers({5, 3, 2}), b = matmul_numbers({5, 2, 4}, f64, 2);
  for (const Shape& sizes : std::vector<Shape>{{}, {4}, {3, 1}, {3, 4}, {5, 1, 1}, {5, 3, 4}}) {
    Tensor c = matmul_numbers(sizes, f64, 3);
    EXPECT_TRUE(allclose(baddbmm(c, a, b, 0.5, 2), c * 0.5 + bmm(a, b) * 2)) << to_string(sizes);
  }
  EXPECT_TRUE(allclose(addmm(1, a[0], b[0]), mm(a[0], b[0]) + 1));  // a number
}

TEST(Matmul, ComplexDotDoesNotConjugate) {
  Tensor z = tensor({Complex(1, 2), Complex(0, 1)}, {c128});
  EXPECT_EQ(dot(z, z).item<Complex>(), Complex(-4, 4));
  EXPECT_EQ(outer(z, z).to_vector<Complex>(),
            (Complexes{Complex(-3, 4), Complex(-2, 1), Complex(-2, 1), Complex(-1, 0)}));
}

TEST(Matmul, StridedVectors) {
  Tensor a = matmul_numbers({6, 10}), x = matmul_numbers({20}, f64, 2).slice(0, 0, {}, 2);
  EXPECT_TRUE(equal(mv(a, x), mv(a, x.contiguous())));
  EXPECT_TRUE(allclose(mv(laid_out(a, 1), x), mv(a, x)));
  EXPECT_TRUE(equal(dot(x, a.select(0, 2)), dot(x.contiguous(), a.select(0, 2))));
  EXPECT_TRUE(
      allclose(dot(a.select(1, 1), expand(matmul_numbers({1}), {6})), sum(a.select(1, 1)) * matmul_numbers({1})[0]));
}

TEST(Matmul, Meta) {
  Options meta{.device = Device("meta")};
  EXPECT_EQ(matmul(empty({7, 2, 3}, meta), empty({3, 5}, meta)).sizes(), (Shape{7, 2, 5}));
  EXPECT_TRUE(addmm(empty({5}, meta), empty({2, 3}, meta), empty({3, 5}, meta)).device().is_meta());
  EXPECT_EQ(einsum("bij,bjk->ik", {empty({2, 3, 4}, meta), empty({2, 4, 5}, meta)}).sizes(), (Shape{3, 5}));
}

TEST(Matmul, Autocast) {
  ModeGuard guard(kAutocastMode, 0);
  Tensor a = matmul_numbers({2, 3}, f32), b = matmul_numbers({3, 4}, f32);
  EXPECT_EQ(mm(a, b).dtype(), bf16);
  EXPECT_EQ(addmm(matmul_numbers({4}, f32), a, b).dtype(), bf16);
  EXPECT_EQ(matmul(a.unsqueeze(0), b.unsqueeze(0)).dtype(), bf16);
  EXPECT_EQ(baddbmm(matmul_numbers({4}, f32), a.unsqueeze(0), b.unsqueeze(0)).dtype(), bf16);
  EXPECT_EQ(mv(a, matmul_numbers({3}, bf16)).dtype(), bf16);
  EXPECT_EQ(mm(a.to(f64), b.to(f64)).dtype(), f64);
}

TEST(Matmul, Gradients) {
  using In = const TensorList&;
  for (DType dtype : {f64, c128}) {
    auto input = [&](const Shape& sizes, uint64_t seed) { return matmul_numbers(sizes, dtype, seed).requires_grad_(); };
    auto both = [&](const std::function<TensorList(In)>& f, const TensorList& inputs) {
      EXPECT_TRUE(gradcheck(f, inputs));
      EXPECT_TRUE(gradgradcheck(f, inputs));
    };
    both([](In x) -> TensorList { return {addmm(x[0], x[1], x[2], 0.5, -2)}; },
         {input({3}, 1), input({2, 2}, 2), input({2, 3}, 3)});
    both([](In x) -> TensorList { return {baddbmm(x[0], x[1], x[2], 2, 0.5)}; },
         {input({2, 1}, 1), input({2, 2, 2}, 2), input({2, 2, 3}, 3)});
    both([](In x) -> TensorList { return {matmul(x[0], x[1])}; }, {input({2, 1, 2, 2}, 1), input({3, 2, 2}, 2)});
    both([](In x) -> TensorList { return {matmul(x[0], x[1])}; }, {input({2, 2}, 1), input({2, 2, 3}, 2)});
    both([](In x) -> TensorList { return {matmul(x[0], x[1])}; }, {input({2}, 1), input({2, 3}, 2)});
    both([](In x) -> TensorList { return {mv(x[0], x[1]), dot(x[1], x[0].select(0, 1)), outer(x[1], x[1])}; },
         {input({2, 3}, 1), input({3}, 2)});
    both([](In x) -> TensorList { return {einsum("aab,bc,c->ca", x)}; },
         {input({2, 2, 3}, 1), input({3, 2}, 2), input({2}, 3)});
  }
}

TEST(Matmul, GradientsOnlyWhereNeeded) {
  Tensor a = matmul_numbers({2, 3}).requires_grad_(), b = matmul_numbers({3, 4}, f64, 2);
  mm(a, b).backward(ones({2, 4}, {f64}));
  EXPECT_TRUE(allclose(a.grad(), expand(sum(b, 1), {2, 3})));
  EXPECT_FALSE(b.grad().defined());
  Tensor c = matmul_numbers({4}).requires_grad_();
  addmm(c, a.detach(), b, 0).backward(ones({2, 4}, {f64}));
  EXPECT_EQ(values(c.grad()), Doubles(4, 0));
}

TEST(Matmul, Errors) {
  Tensor a = zeros({2, 3}), b = zeros({4, 5}), v = zeros({3});
  auto shape_error = [](auto f) { return message_of<ShapeError>(f); };
  EXPECT_THAT(shape_error([&] { mm(a, b); }),
              HasSubstr("mm: inner sizes 3 and 4 differ: f32[2, 3] on cpu:0, f32[4, 5]"));
  EXPECT_THAT(shape_error([&] { mm(a, v); }), HasSubstr("mm: takes a tensor of 2 dims and one of 2, not f32[2, 3]"));
  EXPECT_THAT(shape_error([&] { mv(b, v); }), HasSubstr("mv: inner sizes 5 and 3 differ"));
  EXPECT_THAT(shape_error([&] { dot(v, zeros({4})); }), HasSubstr("dot: inner sizes 3 and 4 differ"));
  EXPECT_THAT(shape_error([&] { outer(a, v); }), HasSubstr("outer: takes a tensor of 1 dims"));
  EXPECT_THAT(shape_error([&] { matmul(a, b); }), HasSubstr("matmul: inner sizes 3 and 4 differ"));
  EXPECT_THAT(shape_error([&] { matmul(a, zeros({})); }), HasSubstr("use * for numbers"));
  EXPECT_THAT(shape_error([&] { matmul(zeros({2, 1, 3}), zeros({3, 3, 1})); }),
              HasSubstr("matmul: the batches of f32[2, 1, 3]"));
  EXPECT_THAT(shape_error([&] { bmm(zeros({2, 1, 3}), zeros({3, 3, 1})); }), HasSubstr("batches of 2 and 3 matrices"));
  EXPECT_THAT(shape_error([&] { addmm(zeros({3}), a, zeros({3, 5})); }),
              HasSubstr("cannot be broadcast to the product's shape [2, 5]"));
  EXPECT_THAT(shape_error([&] { baddbmm(v, a, b); }), HasSubstr("baddbmm: takes a tensor of 3 dims"));
  EXPECT_THAT(message_of<DTypeError>([&] { mm(a, zeros({3, 2}, {f64})); }),
              HasSubstr("must have the same dtype, not f32[2, 3]"));
  EXPECT_THAT(message_of<DeviceError>([&] { mm(a, empty({3, 2}, {.device = Device("meta")})); }),
              HasSubstr("different devices"));
  EXPECT_THAT(message_of<ValueError>([&] { mm(a, Tensor()); }), HasSubstr("undefined"));
  Tensor i = zeros({2, 2}, {i64});
  EXPECT_THAT(message_of<ValueError>([&] { addmm(i, i, i, 1, 0.5); }), HasSubstr("must be whole numbers"));
}

// ---- einsum

TEST(Einsum, Values) {
  Tensor a = matmul_numbers({3, 4}), b = matmul_numbers({4, 5}, f64, 2), t = matmul_numbers({2, 3, 4}),
         u = matmul_numbers({2, 4, 5}, f64, 2), v = matmul_numbers({4}, f64, 3);
  EXPECT_TRUE(allclose(einsum("ij,jk->ik", {a, b}), mm(a, b)));
  EXPECT_TRUE(allclose(einsum(" i j , j k -> k i ", {a, b}), mm(a, b).t()));
  EXPECT_TRUE(allclose(einsum("ij,jk", {a, b}), mm(a, b)));
  EXPECT_TRUE(allclose(einsum("ij,jk->", {a, b}), sum(mm(a, b))));
  EXPECT_TRUE(allclose(einsum("bij,bjk->bik", {t, u}), bmm(t, u)));
  EXPECT_TRUE(allclose(einsum("bij,bjk->ik", {t, u}), sum(bmm(t, u), 0)));
  EXPECT_TRUE(allclose(einsum("bij,j->bi", {t, v}), matmul(t, v)));
  EXPECT_TRUE(allclose(einsum("ij,ij->i", {a, a}), sum(a * a, 1)));
  EXPECT_TRUE(allclose(einsum("ij,ij", {a, a}), sum(a * a)));
  EXPECT_TRUE(allclose(einsum("i,j->ij", {v, v}), outer(v, v)));
  EXPECT_TRUE(allclose(einsum("ij,j->ij", {a, v}), a * v));
  EXPECT_TRUE(
      allclose(einsum("ij,kl,jk->il", {a, b.t(), matmul_numbers({4, 5})}), mm(mm(a, matmul_numbers({4, 5})), b.t())));
  EXPECT_TRUE(allclose(einsum("i,i,i->", {v, v, v}), sum(v * v * v)));
  EXPECT_TRUE(allclose(einsum("ij,kl->", {a, b}), sum(a) * sum(b)));
}

TEST(Einsum, OneOperand) {
  Tensor a = matmul_numbers({3, 3}), t = matmul_numbers({2, 3, 3});
  EXPECT_TRUE(equal(einsum("ij->ji", {a}), a.t()));
  EXPECT_TRUE(equal(einsum("ji", {a}), a.t()));  // implicit: alphabetical
  EXPECT_TRUE(allclose(einsum("ii", {a}), sum(diagonal(a))));
  EXPECT_TRUE(equal(einsum("ii->i", {a}), diagonal(a)));
  EXPECT_TRUE(equal(einsum("bii->ib", {t}), diagonal(t, 0, 1, 2).t()));
  EXPECT_TRUE(allclose(einsum("...ij->...", {t}), sum(t, {1, 2})));
  EXPECT_TRUE(allclose(einsum("ij->", {a}), sum(a)));
  EXPECT_TRUE(equal(einsum("bB->Bb", {a}), a.t()));
  EXPECT_TRUE(equal(einsum("bB", {a}), a.t()));  // capitals first
  EXPECT_EQ(einsum("", {tensor(2.0, {f64})}).item<double>(), 2);
  EXPECT_EQ(einsum(",->", {tensor(2.0, {f64}), tensor(3.0, {f64})}).item<double>(), 6);
  EXPECT_EQ(einsum("iii->i", {matmul_numbers({2, 2, 2})}).to_vector<double>()[1],
            matmul_numbers({2, 2, 2}).to_vector<double>()[7]);
}

TEST(Einsum, EllipsisAndBroadcasting) {
  Tensor a = matmul_numbers({2, 3, 4, 5}), b = matmul_numbers({3, 5, 2}, f64, 2),
         one = matmul_numbers({1, 5, 2}, f64, 3);
  EXPECT_TRUE(allclose(einsum("...ij,...jk->...ik", {a, b}), matmul(a, b)));
  EXPECT_TRUE(allclose(einsum("...ij,...jk", {a, b}), matmul(a, b)));
  EXPECT_TRUE(allclose(einsum("...ij,...jk->ik...", {a, b}), permute(matmul(a, b), {2, 3, 0, 1})));
  EXPECT_TRUE(allclose(einsum("...ij,...jk->ik", {a, b}), sum(matmul(a, b), {0, 1})));
  EXPECT_TRUE(allclose(einsum("abij,bjk->abik", {a, one}), matmul(a, one)));  // b is 3 and 1
  EXPECT_TRUE(allclose(einsum("ij,ij->i", {matmul_numbers({3, 4}), matmul_numbers({3, 1})}),
                       sum(matmul_numbers({3, 4}) * matmul_numbers({3, 1}), 1)));
  EXPECT_TRUE(allclose(einsum("i...,i...->...", {a, a}), sum(a * a, 0)));
}

TEST(Einsum, OtherDTypes) {
  for (DType dtype : {i64, i8, f16, c64}) {
    Tensor a = matmul_numbers({3, 4}, dtype), b = matmul_numbers({4, 2}, dtype, 2);
    EXPECT_TRUE(equal(einsum("ij,jk->ik", {a, b}), mm(a, b)));
    EXPECT_EQ(einsum("ij->j", {a}).dtype(), dtype);
  }
  EXPECT_EQ(einsum("ij,jk->ik", {zeros({0, 3}), zeros({3, 2})}).sizes(), (Shape{0, 2}));
  EXPECT_EQ(values(einsum("ij,jk->ik", {zeros({2, 0}), zeros({0, 2})})), Doubles(4, 0));
}

TEST(Einsum, Errors) {
  Tensor a = zeros({2, 3}), b = zeros({4, 5});
  auto value_error = [](auto f) { return message_of<ValueError>(f); };
  auto shape_error = [](auto f) { return message_of<ShapeError>(f); };
  EXPECT_THAT(shape_error([&] { einsum("ij,jk->ik", {a, b}); }),
              HasSubstr("label 'j' has size 3 in operand 0 and 4 in operand 1"));
  EXPECT_THAT(shape_error([&] { einsum("ijk->i", {a}); }), HasSubstr("operand 0 is f32[2, 3] on cpu:0, but 'ijk'"));
  EXPECT_THAT(shape_error([&] { einsum("...ijk->i", {a}); }), HasSubstr("at least 3 dims"));
  EXPECT_THAT(shape_error([&] { einsum("ii->i", {a}); }), HasSubstr("label 'i' stands for sizes 2 and 3 of operand 0"));
  EXPECT_THAT(value_error([&] { einsum("ij,jk->ik", {a}); }), HasSubstr("names 2 operands, but 1 are given"));
  EXPECT_THAT(value_error([&] { einsum("ij->ik", {a}); }), HasSubstr("label 'k' of the output is in no operand"));
  EXPECT_THAT(value_error([&] { einsum("ij->ii", {a}); }), HasSubstr("label 'i' is more than once in the output"));
  EXPECT_THAT(value_error([&] { einsum("i1->i", {a}); }), HasSubstr("'1' in \"i1->i\" is not a label"));
  EXPECT_THAT(value_error([&] { einsum("i..->i", {a}); }), HasSubstr("an ellipsis is three dots"));
  EXPECT_THAT(value_error([&] { einsum("......->", {a}); }), HasSubstr("once an operand"));
  EXPECT_THAT(value_error([&] { einsum("i->i->i", {zeros({2})}); }), HasSubstr("is not a label"));
  EXPECT_THAT(value_error([&] { einsum("", {}); }), HasSubstr("at least one operand"));
  EXPECT_THAT(value_error([&] { einsum("i", {Tensor()}); }), HasSubstr("operand 0 of \"i\" is undefined"));
}

// A weight goes to its product transposed. Its gradient comes back as it lies, and is not copied.
TEST(Matmul, GradientsAreLaidOutAsTheirOperands) {
  Tensor x = matmul_numbers({5, 3}), w = matmul_numbers({4, 3}, f64, 2), b = matmul_numbers({4}, f64, 3);
  Tensor turned = w.t().detach().requires_grad_();
  Tensor left = x.t().contiguous().t().detach().requires_grad_();
  for (const Tensor& y : {addmm(b, left, turned), mm(left, turned)}) {
    TensorList g = grad({(y * y).sum()}, {left, turned});
    EXPECT_EQ(g[0].strides(), left.strides());
    EXPECT_EQ(g[1].strides(), turned.strides());
  }
}

}  // namespace
}  // namespace tutti::test
