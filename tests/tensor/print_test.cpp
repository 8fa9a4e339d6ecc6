#include <cmath>
#include <sstream>

#include "tests/support/expect_ops.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

TEST(Print, Scalars) {
  EXPECT_EQ(to_string(tensor(3.14159)), "3.1416");
  EXPECT_EQ(to_string(tensor(3)), "3");
  EXPECT_EQ(to_string(tensor(true)), "true");
  EXPECT_EQ(to_string(tensor(2.0)), "2.");
  EXPECT_EQ(to_string(Tensor(-2.5)), "-2.5000");
  EXPECT_EQ(to_string(tensor(1e-9)), "1.0000e-09");
  EXPECT_EQ(to_string(tensor(2.0, {f64})), "2. (f64)");
  EXPECT_EQ(to_string(tensor(std::complex<double>(1, -2))), "1.-2.i");
  EXPECT_EQ(to_string(Tensor()), "undefined");
}

TEST(Print, ColumnsAreAligned) {
  EXPECT_EQ(to_string(tensor({1.0, 2.0, 3.0})), "[1., 2., 3.]");
  EXPECT_EQ(to_string(tensor({1.5, -2.25, 1000.0})), "[   1.5000,   -2.2500, 1000.0000]");
  EXPECT_EQ(to_string(tensor({{1, -20}, {300, 4}})), "[[  1, -20],\n [300,   4]]");
  EXPECT_EQ(to_string(tensor({{true, false}, {false, true}})), "[[ true, false],\n [false,  true]]");
  EXPECT_EQ(to_string(tensor({std::complex<double>(1, 2), std::complex<double>(-3, 0.5)})),
            "[ 1.+2.0000i, -3.+0.5000i]");
  EXPECT_EQ(to_string(arange(6).view({2, 3}).t()), "[[0, 3],\n [1, 4],\n [2, 5]]");
  EXPECT_EQ(to_string(zeros({2, 1, 2})), "[[[0., 0.]],\n\n [[0., 0.]]]");
}

TEST(Print, StyleFollowsTheRange) {
  EXPECT_EQ(to_string(tensor({1e10, 1.0, -2e-7})), "[ 1.0000e+10,  1.0000e+00, -2.0000e-07]");
  EXPECT_EQ(to_string(tensor({NAN, INFINITY, -INFINITY, 1.5})), "[   nan,    inf,   -inf, 1.5000]");
  EXPECT_EQ(to_string(tensor({NAN, 2.0})), "[nan,  2.]");
  EXPECT_EQ(to_string(tensor({0.0001, 0.5})), "[0.0001, 0.5000]");
  EXPECT_EQ(to_string(tensor(std::vector<int64_t>{INT64_MIN, INT64_MAX})),
            "[-9223372036854775808,  9223372036854775807]");
}

TEST(Print, LargeTensorsAreSummarised) {
  EXPECT_EQ(to_string(arange(2000)), "[   0,    1,    2, ..., 1997, 1998, 1999]");
  std::string text = to_string(arange(2000).view({200, 10}));
  EXPECT_THAT(text, HasSubstr("[[   0,    1,    2, ...,    7,    8,    9],\n"));
  EXPECT_THAT(text, HasSubstr(",\n ...,\n"));
  EXPECT_THAT(to_string(arange(2000).view({400, 5})), HasSubstr("[[   0,    1,    2,    3,    4],\n"));
  EXPECT_EQ(to_string(zeros({1 << 20})).size(), std::string("[0., 0., 0., ..., 0., 0., 0.]").size());
  EXPECT_THAT(to_string(arange(1000)), testing::Not(HasSubstr("...")));
}

TEST(Print, LinesAreBroken) {
  std::istringstream lines(to_string(arange(100)));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_LE(line.size(), 120u);
    EXPECT_EQ(line[0], count ? ' ' : '[');
  }
  EXPECT_EQ(count, 4);
}

TEST(Print, WhatIsUnusualIsSaid) {
  EXPECT_EQ(to_string(tensor({1, 2}, {i32})), "[1, 2] (i32)");
  EXPECT_EQ(to_string(ones({1}, {.dtype = bf16, .requires_grad = true})), "[1.] (bf16, requires_grad)");
  EXPECT_EQ(to_string(ones({1}, {c128})), "[1.+0.i] (c128)");
  EXPECT_EQ(to_string(zeros({0})), "[]");
  EXPECT_EQ(to_string(zeros({0, 3})), "[] (f32[0, 3])");
  EXPECT_EQ(to_string(zeros({0}, {i64})), "[] (i64[0])");
  EXPECT_EQ(to_string(zeros({2, 3}, {.device = "meta"})), "f32[2, 3] (meta)");
  Devices two(2);
  EXPECT_EQ(to_string(ones({1}, {.device = "cpu:1"})), "[1.] (cpu:1)");
  Tensor freed = ones({300});
  freed.resize_storage(0);
  EXPECT_EQ(to_string(freed), "f32[300] (storage freed)");
  std::ostringstream out;
  out << tensor({1, 2});
  EXPECT_EQ(out.str(), "[1, 2]");
}

TEST(Print, Sparse) {
  Tensor x = sparse_coo(tensor({{0, 1}, {1, 0}}), tensor({1.0, 2.5}, {f64}), {3, 3});
  EXPECT_EQ(to_string(x),
            "sparse f64[3, 3] with 2 entries\n"
            "  indices: [[0, 1],\n"
            "            [1, 0]]\n"
            "  values:  [1.0000, 2.5000]");
  EXPECT_THAT(to_string(x.requires_grad_()), HasSubstr("entries (requires_grad)\n"));
}

}  // namespace
}  // namespace tutti
