// Convolution beyond the table: layouts, algorithms, sizes, threads, errors.
#include "tutti/ops/conv.h"

#include <gtest/gtest.h>

#include <thread>

#include "ops/conv/problem.h"
#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tutti/amp.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

Tensor conv_numbers(const Shape& sizes, int seed = 1) {
  std::vector<double> values;
  uint32_t state = 12345u + static_cast<uint32_t>(seed);
  for (int64_t i = 0; i < sizes.product(); ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(static_cast<double>(state >> 8) / (1 << 23) - 1);
  }
  return tensor(values, {.dtype = f32}).view(sizes);
}

Tensor last(const Tensor& x) { return x.contiguous(MemoryFormat::channels_last); }

// The largest difference as a part of the largest value.
double distance(const Tensor& got, const Tensor& expected) {
  NoGrad guard;
  return ((got.to(f64) - expected.to(f64)).abs().max() / expected.to(f64).abs().max()).item<double>();
}

struct Gradients {
  Tensor y, x, w, b;
};
Gradients run_conv(Tensor x, Tensor w, Tensor b, const ConvOptions& options) {
  for (Tensor* t : {&x, &w, &b}) *t = t->detach().requires_grad_();
  Tensor y = conv2d(x, w, b, options);
  Tensor g = conv_numbers(y.sizes(), 9).to(y.dtype());
  TensorList found = grad({y}, {x, w, b}, {}, {g});
  return {y.detach(), found[0], found[1], found[2]};
}

struct ConvCase {
  Shape x, w;
  ConvOptions options = {};
};

class ConvShapes : public testing::TestWithParam<ConvCase> {};

// f32 (oneDNN, plain and by Winograd) against f64 (matrix products), in both memory orders.
TEST_P(ConvShapes, AgreeWithDoubles) {
  const ConvCase& c = GetParam();
  Tensor x = conv_numbers(c.x), w = conv_numbers(c.w, 2), b = conv_numbers(c.w[0], 3);
  Gradients wide = run_conv(x.to(f64), w.to(f64), b.to(f64), c.options);
  for (bool channels_last : {false, true}) {
    SCOPED_TRACE(channels_last ? "channels-last" : "contiguous");
    Gradients got = run_conv(channels_last ? last(x) : x, w, b, c.options);
    EXPECT_LT(distance(got.y, wide.y), 1e-5);
    EXPECT_LT(distance(got.x, wide.x), 1e-5);
    EXPECT_LT(distance(got.w, wide.w), 1e-5);
    EXPECT_LT(distance(got.b, wide.b), 1e-5);
    if (!channels_last) continue;
    EXPECT_TRUE(got.y.is_contiguous(MemoryFormat::channels_last));
    EXPECT_TRUE(got.x.is_contiguous(MemoryFormat::channels_last));
    EXPECT_TRUE(got.w.is_contiguous());
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConvShapes,
                         testing::Values(ConvCase{{2, 3, 9, 8}, {16, 3, 3, 3}, {.padding = 1}},
                                         ConvCase{{4, 32, 12, 13}, {32, 32, 3, 3}, {.padding = 1}},  // by Winograd
                                         ConvCase{{4, 48, 16, 10}, {64, 48, 3, 3}, {.padding = 0}},  // by Winograd
                                         ConvCase{{3, 32, 7, 7}, {33, 32, 3, 3}, {.padding = 1}},
                                         ConvCase{{2, 16, 10, 11}, {32, 16, 3, 3}, {.stride = 2, .padding = 1}},
                                         ConvCase{{2, 17, 6, 7}, {5, 17, 1, 1}},
                                         ConvCase{{3, 8, 14, 14}, {8, 8, 1, 1}, {.stride = 2}},
                                         ConvCase{{2, 24, 9, 9}, {24, 24, 1, 1}, {.stride = {2, 1}}},
                                         ConvCase{{2, 24, 9, 9}, {24, 1, 3, 3}, {.padding = 1, .groups = 24}},
                                         ConvCase{{2, 32, 9, 9}, {64, 8, 3, 3}, {.padding = 1, .groups = 4}},
                                         ConvCase{{2, 4, 11, 12}, {6, 4, 3, 2}, {.padding = 2, .dilation = {2, 3}}},
                                         ConvCase{{2, 8, 6, 6}, {8, 8, 5, 5}, {.stride = {1, 3}, .padding = {4, 2}}},
                                         ConvCase{{1, 1, 5, 5}, {1, 1, 2, 2}}, ConvCase{{4, 3, 1, 1}, {2, 3, 1, 1}}));

// What serves f32 where oneDNN has nothing: the same results, in all three passes.
TEST(Conv, MatrixProductsInFloat) {
  using namespace convolution;
  Shape x{2, 4, 7, 6}, w{6, 2, 3, 2}, y{2, 6, 4, 7};
  for (Pass pass : {Pass::forward, Pass::data, Pass::weight}) {
    Problem p{pass, 2, x, w, y, {2, 1}, {1, 1}, {1, 1}};
    Operands narrow{conv_numbers(x), conv_numbers(w, 2), conv_numbers(y, 3),
                    pass == Pass::forward ? conv_numbers(6, 4) : Tensor()};
    Operands wide{narrow.x.to(f64), narrow.w.to(f64), narrow.y.to(f64),
                  narrow.bias.defined() ? narrow.bias.to(f64) : Tensor()};
    Operands fast{narrow.x.clone(), narrow.w.clone(), narrow.y.clone(), narrow.bias};
    run_columns(p, narrow);
    run_columns(p, wide);
    ASSERT_TRUE(run_onednn(p, fast));
    for (auto [got, other, expected] : {std::tuple(narrow.x, fast.x, wide.x), std::tuple(narrow.w, fast.w, wide.w),
                                        std::tuple(narrow.y, fast.y, wide.y)}) {
      EXPECT_LT(distance(got, expected), 1e-6);
      EXPECT_LT(distance(other, expected), 1e-6);
    }
  }
}

TEST(Conv, WeightInChannelsLastMakesTheResultSo) {
  Tensor x = conv_numbers({2, 8, 5, 5}), w = last(conv_numbers({6, 8, 3, 3}, 2)).requires_grad_();
  Tensor y = conv2d(x, w);
  EXPECT_TRUE(y.is_contiguous(MemoryFormat::channels_last));
  y.sum().backward();
  EXPECT_TRUE(w.grad().is_contiguous(MemoryFormat::channels_last));
  EXPECT_LT(distance(y, conv2d(x, w.detach().contiguous())), 1e-6);
}

TEST(Conv, OneChannelKeepsItsStrides) {
  Tensor x = last(conv_numbers({2, 1, 5, 5})), w = conv_numbers({3, 1, 3, 3});
  EXPECT_EQ(x.strides(), (Shape{25, 1, 5, 1}));
  EXPECT_TRUE(conv2d(x, w).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(conv2d(conv_numbers({2, 1, 5, 5}), w).is_contiguous());
}

TEST(Conv, EmptyBatchesAndChannels) {
  Tensor x = zeros({0, 3, 5, 5}).requires_grad_(), w = conv_numbers({4, 3, 3, 3}).requires_grad_(), b = conv_numbers(4);
  Tensor y = conv2d(x, w, b);
  EXPECT_EQ(y.sizes(), (Shape{0, 4, 3, 3}));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_TRUE(equal(w.grad(), zeros_like(w)));
  // Without input channels only the bias is left.
  Tensor none = conv2d(zeros({2, 0, 3, 3}), zeros({4, 0, 2, 2}), b);
  EXPECT_EQ(values(none.select(0, 1).select(1, 0).select(1, 1)), values(b));
  EXPECT_EQ(conv_transpose2d(zeros({0, 3, 2, 2}), conv_numbers({3, 2, 2, 2})).sizes(), (Shape{0, 2, 3, 3}));
}

TEST(Conv, NanReachesItsNeighboursOnly) {
  Tensor x = zeros({1, 1, 5, 5}), w = ones({1, 1, 3, 3});
  x[0][0][2][4].fill_(std::nan(""));
  Tensor y = conv2d(x, w, {}, {.padding = 1});
  EXPECT_EQ(y.isnan().sum().item<int>(), 6);
}

TEST(Conv, HalfTypesRoundOnce) {
  for (DType dtype : {bf16, f16}) {
    Tensor x = conv_numbers({2, 32, 6, 6}).to(dtype), w = conv_numbers({8, 32, 3, 3}, 2).to(dtype);
    Tensor y = conv2d(x, w);
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_TRUE(close(y, conv2d(x.to(f64), w.to(f64)), dtype == bf16 ? 0x1p-8 : 0x1p-10));
  }
}

TEST(Conv, AutocastComputesInLowPrecision) {
  Tensor x = conv_numbers({2, 3, 5, 5}), w = conv_numbers({4, 3, 3, 3}, 2).requires_grad_(),
         b = conv_numbers(4).requires_grad_();
  Tensor y;
  {
    ModeGuard autocast(kAutocastMode, 0);
    y = conv2d(x, w, b);
    EXPECT_EQ(conv_transpose2d(x, conv_numbers({3, 2, 2, 2}), conv_numbers(2)).dtype(), bf16);
  }
  EXPECT_EQ(y.dtype(), bf16);
  y.sum().backward();
  EXPECT_EQ(w.grad().dtype(), f32);
  EXPECT_EQ(values(b.grad()), Doubles(4, 18));
}

TEST(Conv, SecondDerivativeOfTheFastPath) {
  // d/dx of Σ(dL/dw)² by differences along one direction, in f32 by Winograd against f64.
  auto second = [](DType dtype) {
    Tensor x = conv_numbers({8, 32, 8, 8}).to(dtype).requires_grad_(), w = conv_numbers({32, 32, 3, 3}, 2).to(dtype);
    w.requires_grad_();
    TensorList first = grad({square(conv2d(x, w, {}, {.padding = 1})).sum()}, {x, w}, {.create_graph = true});
    TensorList found = grad({square(first[1]).sum() + square(first[0]).sum()}, {x, w});
    return found;
  };
  TensorList got = second(f32), expected = second(f64);
  EXPECT_LT(distance(got[0], expected[0]), 2e-5);
  EXPECT_LT(distance(got[1], expected[1]), 2e-5);
}

// Many threads share the cached primitives; each has its own share of cores.
TEST(Conv, ThreadsShareThePrimitives) {
  Tensor x = conv_numbers({4, 32, 12, 12}), w = conv_numbers({32, 32, 3, 3}, 2);
  ThreadsGuard one(1);
  Gradients expected = run_conv(x, w, conv_numbers(32), {.padding = 1});
  std::vector<std::thread> threads;
  std::vector<double> off(4, 1);
  for (size_t t = 0; t < off.size(); ++t)
    threads.emplace_back([&, t] {
      ThreadsGuard share(t % 2 ? 2 : 1);
      double most = 0;
      for (int i = 0; i < 10; ++i) {
        Gradients got = run_conv(x, w, conv_numbers(32), {.padding = 1});
        most = std::max({most, distance(got.y, expected.y), distance(got.x, expected.x), distance(got.w, expected.w)});
      }
      off[t] = most;
    });
  for (auto& t : threads) t.join();
  for (double d : off) EXPECT_LT(d, 1e-6);
}

TEST(Conv, SamePadsKeepTheSizes) {
  EXPECT_EQ(same_pads({3, 4}), (Shape{1, 2, 1, 1}));
  EXPECT_EQ(same_pads(3, 2), (Shape{2, 2}));
  Tensor x = conv_numbers({1, 2, 7, 6}), w = conv_numbers({3, 2, 4, 3});
  Tensor y = conv2d(pad(x, same_pads({4, 3}, {2, 1})), w, {}, {.dilation = {2, 1}});
  EXPECT_EQ(y.sizes(), (Shape{1, 3, 7, 6}));
}

TEST(Conv, ErrorsNameTheTensors) {
  Tensor x = zeros({2, 3, 5, 5}), w = zeros({4, 3, 3, 3});
  auto shape = [](auto&& f) { return message_of<ShapeError>(f); };
  EXPECT_THAT(shape([&] { conv2d(x, zeros({4, 2, 3, 3})); }), HasSubstr("takes 2 channels in each of 1 groups"));
  EXPECT_THAT(shape([&] { conv2d(x, zeros({4, 3, 3})); }),
              HasSubstr("the weight must have 4 dims, not be f32[4, 3, 3]"));
  EXPECT_THAT(shape([&] { conv2d(zeros({5, 5}), w); }), HasSubstr("f32[5, 5]"));
  EXPECT_THAT(shape([&] { conv2d(x, zeros({4, 3, 6, 3})); }), HasSubstr("reaches over 6 elements"));
  EXPECT_THAT(shape([&] { conv2d(x, w, zeros(3)); }), HasSubstr("one entry for each of the 4 out channels"));
  EXPECT_THAT(shape([&] { conv2d(x, w, {}, {.stride = {1, 1, 1}}); }), HasSubstr("stride [1, 1, 1]"));
  EXPECT_THAT(shape([&] { conv2d(x, w, {}, {.groups = 2}); }), HasSubstr("multiples of groups 2"));
  EXPECT_THAT(shape([&] { conv2d(x, zeros({4, 3, 0, 3})); }), HasSubstr("must not be empty"));
  EXPECT_THROW(conv2d(x, w, {}, {.stride = 0}), ValueError);
  EXPECT_THROW(conv2d(x, w, {}, {.padding = -1}), ValueError);
  EXPECT_THROW(conv2d(x, w, {}, {.padding = int64_t{1} << 40}), ValueError);
  EXPECT_THROW(conv2d(x, w, {}, {.groups = 0}), ValueError);
  EXPECT_THROW(conv2d(x, w.to(f64)), DTypeError);
  EXPECT_THROW(conv_transpose2d(x, zeros({3, 4, 2, 2}), {}, {.output_padding = 1}), ValueError);
  EXPECT_THROW(conv_transpose2d(zeros({1, 3, 1, 1}), zeros({3, 4, 2, 2}), {}, {.padding = 1}), ShapeError);
  EXPECT_THROW(conv_transpose2d(x, zeros({4, 4, 2, 2})), ShapeError);
  EXPECT_THROW(conv_backward_data(x, w, {2, 3, 9, 9}), ShapeError);
  EXPECT_THROW(conv_backward_weight(x, x, {3, 3}), ShapeError);
}

}  // namespace
}  // namespace tutti::test
