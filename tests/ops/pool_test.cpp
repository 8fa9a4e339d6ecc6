// Pooling beyond the table: ties, NaN, memory orders, large and odd sizes, errors.
#include "tutti/ops/pool.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

// Few different values, so that there are ties.
Tensor steps(const Shape& sizes) {
  std::vector<double> list;
  for (int64_t i = 0; i < sizes.product(); ++i) list.push_back(static_cast<double>(i * 7919 % 13));
  return tensor(list, {.dtype = f32}).view(sizes);
}

struct PoolCase {
  Shape sizes, kernel;
  MaxPoolOptions options = {};
};

// A plain loop over windows, for two spatial dims.
ValuesIndices by_loops(const Tensor& x, const PoolCase& c, const Shape& out) {
  Shape kernel = c.kernel.size() == 1 ? Shape{c.kernel[0], c.kernel[0]} : c.kernel;
  auto both = [](const Shape& s) { return s.size() == 1 ? Shape{s[0], s[0]} : s; };
  Shape stride = c.options.stride.empty() ? kernel : both(c.options.stride), padding = both(c.options.padding),
        dilation = both(c.options.dilation);
  std::vector<float> from = x.to_vector<float>(), best;
  std::vector<int64_t> indices;
  int64_t H = x.size(2), W = x.size(3);
  for (int64_t plane = 0; plane < x.size(0) * x.size(1); ++plane)
    for (int64_t i = 0; i < out[2]; ++i)
      for (int64_t j = 0; j < out[3]; ++j) {
        float top = -INFINITY;
        int64_t place = -1;
        for (int64_t k = 0; k < kernel[0] * kernel[1]; ++k) {
          int64_t h = i * stride[0] - padding[0] + k / kernel[1] * dilation[0];
          int64_t w = j * stride[1] - padding[1] + k % kernel[1] * dilation[1];
          if (h < 0 || h >= H || w < 0 || w >= W) continue;
          float v = from[static_cast<size_t>((plane * H + h) * W + w)];
          if (place >= 0 && !(v > top) && !std::isnan(v)) continue;
          top = v;
          place = h * W + w;
        }
        best.push_back(top);
        indices.push_back(place);
      }
  return {tensor(best).view(out), tensor(indices).view(out)};
}

class PoolShapes : public testing::TestWithParam<PoolCase> {};

TEST_P(PoolShapes, MaximaAndTheirPlaces) {
  const PoolCase& c = GetParam();
  for (bool nan : {false, true}) {
    Tensor x = steps(c.sizes);
    if (nan) x = where(x == 5, NAN, x);
    for (DType dtype : {f32, f64})
      for (MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        ValuesIndices got = max_pool2d_with_indices(x.to(dtype).contiguous(format), c.kernel, c.options);
        ValuesIndices expected = by_loops(x, c, got.values.sizes());
        EXPECT_TRUE(got.values.is_contiguous(format));
        EXPECT_TRUE(close(got.values, expected.values, 0));
        EXPECT_TRUE(equal(got.indices, expected.indices)) << "NaN: " << nan << ", " << name(dtype);
      }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PoolShapes,
    testing::Values(PoolCase{{2, 3, 7, 9}, 2}, PoolCase{{2, 37, 6, 5}, 3, {.stride = 1, .padding = 1}},
                    PoolCase{{1, 16, 9, 70}, {3, 2}, {.stride = {2, 3}, .padding = {1, 0}, .dilation = {2, 1}}},
                    PoolCase{{2, 5, 8, 7}, 3, {.stride = 2, .padding = 1, .ceil_mode = true}},
                    PoolCase{{1, 2, 4, 100}, {2, 5}, {.stride = 1, .dilation = {1, 3}}}, PoolCase{{1, 1, 1, 1}, 1}));

TEST(Pool, AveragesInBothOrders) {
  Tensor x = steps({2, 19, 9, 35}).to(f64);
  Tensor last = x.contiguous(MemoryFormat::channels_last);
  AvgPoolOptions options{.stride = {2, 3}, .padding = {1, 2}, .ceil_mode = true, .count_include_pad = false};
  auto gradient = [&](Tensor t) {
    t = t.detach().requires_grad_();
    Tensor y = avg_pool2d(t, {3, 5}, options);
    return grad({y}, {t}, {}, {fixed_weights(y)})[0];
  };
  EXPECT_TRUE(avg_pool2d(last, {3, 5}, options).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(close(avg_pool2d(x, {3, 5}, options), avg_pool2d(last, {3, 5}, options), 1e-14));
  EXPECT_TRUE(close(gradient(x), gradient(last), 1e-14));
  EXPECT_TRUE(gradient(last).is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(close(adaptive_avg_pool2d(x, 1), x.mean({2, 3}, true), 1e-13));
}

TEST(Pool, ThreadsDoNotChangeTheBits) {
  Tensor x = steps({4, 64, 40, 40}).requires_grad_();
  auto everything = [&](int threads) {
    ThreadsGuard guard(threads);
    TensorList list;
    for (MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      Tensor y = x.detach().contiguous(format).requires_grad_();
      Tensor m = max_pool2d(y, 3, {.stride = 2, .padding = 1}), a = avg_pool2d(y, 3, {.stride = 2, .padding = 1});
      list.insert(list.end(), {m, a});
      for (auto& t : {m, a}) list.push_back(grad({t}, {y}, {}, {fixed_weights(t)})[0]);
    }
    return list;
  };
  TensorList one = everything(1), three = everything(3);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(identical(one[i], three[i])) << i;
}

// Windows that have no place in common are gone through by vectors of channels where these lie last.
TEST(Pool, GradientsOfMaximaInBothOrders) {
  auto compare = [](const Shape& sizes, const Shape& kernel, const MaxPoolOptions& options, DType dtype) {
    SCOPED_TRACE(testing::Message() << sizes[1] << " channels " << sizes[2] << "x" << sizes[3] << " kernel "
                                    << kernel[0]);
    manual_seed(3);
    Tensor x = randint(7, sizes).to(dtype);  // many are equal
    x.index({0, 0, 1, 1}).fill_(NAN), x.index({0, 1, 2}).fill_(-INFINITY), x.index({0, 2, 0, 0}).fill_(INFINITY);
    auto gradient = [&](MemoryFormat format) {
      Tensor y = x.clone().contiguous(format).requires_grad_(), m = max_pool2d(y, kernel, options);
      manual_seed(4);
      Tensor g = randint(3, m.sizes()).to(dtype) - 1;
      g = where(g == 0, full({}, -0.0).to(dtype), g);
      g.index({0, 0, 0, 0}).fill_(INFINITY);
      return grad({m}, {y}, {}, {g})[0].contiguous();
    };
    EXPECT_TRUE(identical(gradient(MemoryFormat::channels_last), gradient(MemoryFormat::contiguous)));
  };
  for (DType dtype : {f32, f64})
    for (int64_t channels : {3, 16, 33, 70}) {
      compare({2, channels, 8, 6}, {2, 2}, {}, dtype);
      compare({2, channels, 9, 11}, {2, 3}, {}, dtype);                                // some are in no window
      compare({2, channels, 9, 11}, {2, 2}, {.stride = {3, 4}}, dtype);                // apart
      compare({2, channels, 9, 11}, {2, 2}, {.stride = 3, .dilation = 2}, dtype);      // with holes
      compare({2, channels, 9, 11}, {2, 2}, {.stride = 2, .dilation = 2}, dtype);      // into each other
      compare({2, channels, 9, 11}, {3, 3}, {.stride = 2}, dtype);                     // with a place in common
      compare({2, channels, 9, 11}, {2, 2}, {.stride = 2, .padding = 1}, dtype);       // not whole
      compare({2, channels, 9, 11}, {2, 2}, {.stride = 2, .ceil_mode = true}, dtype);  // not whole at the end
    }
}

TEST(Pool, EmptyBatches) {
  Tensor x = zeros({0, 3, 4, 4}).requires_grad_();
  Tensor y = max_pool2d(x, 2) + avg_pool2d(x, 2) + adaptive_max_pool2d(x, 2);
  EXPECT_EQ(y.sizes(), (Shape{0, 3, 2, 2}));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

TEST(Pool, Errors) {
  Tensor x = zeros({2, 3, 5, 5});
  auto shape = [](auto&& f) { return message_of<ShapeError>(f); };
  auto number = [](auto&& f) { return message_of<ValueError>(f); };
  EXPECT_THAT(shape([&] { max_pool2d(x, 6); }), HasSubstr("max_pool2d: the kernel [6, 6] (dilation [1, 1]) is larger"));
  EXPECT_THAT(shape([&] { max_pool2d(zeros({5, 5}), 2); }), HasSubstr("f32[5, 5]"));
  EXPECT_THAT(shape([&] { avg_pool1d(x, {2, 2}); }), HasSubstr("not f32[2, 3, 5, 5]"));
  EXPECT_THAT(shape([&] { adaptive_avg_pool2d(x, {1, 2, 3}); }), HasSubstr("one entry or 2"));
  EXPECT_THAT(shape([&] { max_pool2d(zeros({2, 3, 0, 5}), 2); }), HasSubstr("must not be empty"));
  EXPECT_THAT(number([&] { max_pool2d(x, 2, {.padding = 2}); }), HasSubstr("at most half of the kernel"));
  EXPECT_THAT(number([&] { max_pool2d(x, 0); }), HasSubstr("kernel [0] must be at least 1"));
  EXPECT_THAT(number([&] { max_pool2d(x, 2, {.stride = 0}); }), HasSubstr("stride"));
  EXPECT_THAT(number([&] { avg_pool2d(x, 2, {.divisor_override = 0}); }), HasSubstr("must not be 0"));
  EXPECT_THROW(max_pool2d(x.to(i64), 2), DTypeError);
}

}  // namespace
}  // namespace tutti::test
