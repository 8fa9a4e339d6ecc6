// Operators on more than 2^31 elements: places beyond what 32 bits count. They run once, in the release build: Slow
// keeps them from the sanitizers. First those of one byte each, of which tests/tensor/large_test.cpp has the simpler
// ones; what makes 8 bytes of each byte (sort's indices, cumsum of integers) would need more memory than test machines
// have. Then floats, whose kernels are others; what writes as many takes longer, and is in tests/soak/large.cpp.
#include "tests/support/large.h"

#include <cmath>

#include "tests/support/expect_ops.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT

constexpr int64_t kThird = kBeyond / 3 + 1;

#define NEEDS_ROOM(tensors) \
  if (!has_room((tensors) * kBeyond)) GTEST_SKIP() << "this machine has too little memory left"

TEST(LargeOperators, GatherAndScatterSlow) {
  NEEDS_ROOM(1);
  Tensor x = zeros({kBeyond}, u8), places = tensor({kBeyond - 1, int64_t{3}, kBeyond - 4});
  scatter_(x, 0, places, tensor({7, 8, 9}, u8));
  EXPECT_EQ(x[-1].item<int>(), 7);
  EXPECT_EQ(x[3].item<int>(), 8);
  EXPECT_EQ(x[-4].item<int>(), 9);
  scatter_add_(x, 0, places, tensor({1, 1, 1}, u8));
  EXPECT_EQ(values(gather(x, 0, places)), (Doubles{8, 9, 10}));
  EXPECT_EQ(values(index_select(x, 0, places)), (Doubles{8, 9, 10}));
  index_add_(x, 0, places, tensor({1, 1, 1}, u8));
  EXPECT_EQ(values(x.index({places})), (Doubles{9, 10, 11}));
  // Rows of a matrix: the last begins beyond 2^31 bytes.
  Tensor rows = x.view({-1, 5});
  int64_t last = rows.size(0) - 1;
  EXPECT_EQ(values(gather(rows, 0, tensor({{last, last, last, last, last}}))), values(rows[-1]));
  EXPECT_EQ(values(index_select(rows, 0, tensor({last, int64_t{0}}))), (Doubles{0, 11, 0, 0, 9, 0, 0, 0, 10, 0}));
  index_fill_(rows, 0, tensor({last}), 5);
  EXPECT_EQ(x.sum().item<int64_t>(), 5 * 5 + 10);
}

TEST(LargeOperators, OrdersSlow) {
  NEEDS_ROOM(1);
  Tensor x = zeros({kBeyond}, u8);
  x[kBeyond - 1].fill_(7);
  x[kBeyond - 3].fill_(9);
  x[5].fill_(8);
  auto [largest, places] = topk(x, 3);
  EXPECT_EQ(values(largest), (Doubles{9, 8, 7}));
  EXPECT_EQ(values(places), (Doubles{static_cast<double>(kBeyond - 3), 5, static_cast<double>(kBeyond - 1)}));
}

TEST(LargeOperators, PadSlow) {
  NEEDS_ROOM(2);
  Tensor x = zeros({kBeyond}, u8);
  x[-1].fill_(3);
  Tensor padded = pad(x, {2, 3}, PadMode::constant, 1);
  EXPECT_EQ(padded.numel(), kBeyond + 5);
  EXPECT_EQ(values(padded.slice(0, 0, 3)), (Doubles{1, 1, 0}));
  EXPECT_EQ(values(padded.slice(0, kBeyond, kBeyond + 5)), (Doubles{0, 3, 1, 1, 1}));
}

TEST(LargeOperators, ProductsSlow) {
  NEEDS_ROOM(2);
  {
    Tensor x = zeros({3, kThird}, u8), y = zeros({kThird, 1}, u8);
    x[2][-1].fill_(3);
    x[0][-2].fill_(1);
    y[-1].fill_(5);
    y[-2].fill_(2);
    EXPECT_EQ(values(mm(x, y)), (Doubles{2, 0, 15}));
  }
  // A product of more than 2^31 elements.
  Tensor column = zeros({65537, 1}, u8), row = zeros({1, 32769}, u8);
  column[-1].fill_(2);
  row[0][-1].fill_(3);
  row[0][0].fill_(1);
  Tensor product = mm(column, row);
  EXPECT_EQ(product[-1][-1].item<int>(), 6);
  EXPECT_EQ(product[-1][0].item<int>(), 2);
  EXPECT_EQ(product[-1].sum().item<int64_t>(), 8);
  EXPECT_EQ(product[0].sum().item<int64_t>() + product[65535].sum().item<int64_t>(), 0);
}

// ---- Floats

TEST(LargeFloats, ReductionsSlow) {
  NEEDS_ROOM(1);
  Tensor x = untouched({kBeyond});
  x[5].fill_(2);
  x[kBeyond - 7].fill_(-1);
  x[kBeyond - 1].fill_(3);
  EXPECT_EQ(x.sum().item<float>(), 4);
  EXPECT_EQ(x.argmax().item<int64_t>(), kBeyond - 1);
  EXPECT_EQ(x.argmin().item<int64_t>(), kBeyond - 7);
  Tensor columns = x.view({-1, 4}), rows = x.view({4, -1});
  EXPECT_EQ(values(sum(columns, 0)), (Doubles{0, 1, 0, 3}));  // 5 and the place of -1 are of column 1
  auto [most, at] = max(columns, 0);
  EXPECT_EQ(values(most), (Doubles{0, 2, 0, 3}));
  EXPECT_EQ(values(at), (Doubles{0, 1, 0, static_cast<double>(kBeyond / 4 - 1)}));
  EXPECT_EQ(values(sum(rows, 1)), (Doubles{2, 0, 0, 2}));
  EXPECT_EQ(values(argmax(rows, 1)), (Doubles{5, 0, 0, static_cast<double>(kBeyond / 4 - 1)}));
}

TEST(LargeFloats, IndicesSlow) {
  NEEDS_ROOM(1);
  Tensor x = untouched({kBeyond}), places = tensor({kBeyond - 1, int64_t{3}, kBeyond - 4});
  scatter_(x, 0, places, tensor({7.0, 8.0, 9.0}));
  index_add_(x, 0, places, tensor({0.5, 0.5, 0.5}));
  EXPECT_EQ(values(gather(x, 0, places)), (Doubles{7.5, 8.5, 9.5}));
  x.index_put_({places}, tensor({1.0, 1.0, 1.0}), true);
  EXPECT_EQ(values(index_select(x, 0, places)), (Doubles{8.5, 9.5, 10.5}));
  Tensor rows = x.view({-1, 4});
  int64_t last = rows.size(0) - 1;
  EXPECT_EQ(values(index_select(rows, 0, tensor({last, int64_t{0}}))), (Doubles{10.5, 0, 0, 8.5, 0, 0, 0, 9.5}));
  EXPECT_EQ(values(gather(rows, 0, tensor({{last, last, last, last}}))), (Doubles{10.5, 0, 0, 8.5}));
  auto [largest, at] = topk(x, 3);
  EXPECT_EQ(values(largest), (Doubles{10.5, 9.5, 8.5}));
  EXPECT_EQ(values(at), (Doubles{static_cast<double>(kBeyond - 4), 3, static_cast<double>(kBeyond - 1)}));
}

TEST(LargeFloats, StridedPointwiseSlow) {
  NEEDS_ROOM(2);
  Tensor x = untouched({kBeyond});
  x[kBeyond - 1].fill_(3);
  x[kBeyond - 2].fill_(4);
  x[1].fill_(5);
  // Every fourth, from which strides lead beyond; then a transposed matrix, of which the result is not.
  Tensor fourth = x.view({-1, 4}).select(1, 3), doubled = fourth * 2;
  EXPECT_EQ(doubled[-1].item<float>(), 6);
  EXPECT_EQ(doubled.sum().item<float>(), 6);
  doubled.reset();
  Tensor turned = x.view({20, -1}).t(), positive = empty(turned.sizes(), boolean);
  gt_out(positive, turned, 3.5);
  EXPECT_EQ(sum(positive).item<int64_t>(), 2);
  EXPECT_TRUE(positive[1][0].item<bool>() && positive[-2][-1].item<bool>());
}

TEST(LargeFloats, SoftmaxSlow) {
  NEEDS_ROOM(int64_t{4});
  Tensor x = untouched({kBeyond});
  x[kBeyond - 1].fill_(20);
  x[3].fill_(20);
  softmax_out(x, x, 0);
  double whole = 2 * std::exp(20.0) + static_cast<double>(kBeyond - 2);
  EXPECT_NEAR(x[-1].item<float>(), std::exp(20.0) / whole, 1e-4);
  EXPECT_EQ(x[-1].item<float>(), x[3].item<float>());
  EXPECT_NEAR(x[-2].item<float>() * whole, 1, 1e-4);
}

}  // namespace
}  // namespace tutti
