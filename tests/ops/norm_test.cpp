// Normalisation beyond the table: accuracy, memory orders, running statistics, threads, errors.
#include "tutti/ops/norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

Tensor norm_numbers(const Shape& sizes, double scale = 1, double shift = 0) {
  std::vector<double> list;
  for (int64_t i = 0; i < sizes.product(); ++i) {
    double x = static_cast<double>(i + 1) * 0.6180339887498949;
    list.push_back((x - std::floor(x) - 0.5) * 2 * scale + shift);
  }
  return tensor(list, {.dtype = f64}).view(sizes);
}

// The formula, in f64.
Tensor by_formula(const Tensor& x, const Shape& dims, bool centered, double eps) {
  Tensor centre = centered ? x - x.mean(dims, true) : x;
  return centre / sqrt(square(centre).mean(dims, true) + eps);
}

using NormFunction = std::function<Tensor(const Tensor& x, const Tensor& w, const Tensor& b)>;
TensorList run_norm(const NormFunction& f, Tensor x, Tensor w, Tensor b) {
  for (Tensor* t : {&x, &w, &b}) *t = t->detach().requires_grad_();
  Tensor y = f(x, w, b);
  TensorList list = grad({y}, {x, w, b}, {.allow_unused = true}, {fixed_weights(y)});
  list.insert(list.begin(), y.detach());
  return list;
}
void expect_close(const TensorList& got, const TensorList& expected, double relative) {
  const char* names[] = {"result", "gradient of x", "of the weight", "of the bias"};
  for (size_t i = 0; i < expected.size(); ++i)
    if (expected[i].defined()) {
      EXPECT_TRUE(close(got[i], expected[i], relative)) << names[i];
    }
}

const NormFunction batch = [](const Tensor& x, const Tensor& w, const Tensor& b) {
  return batch_norm(x, w, b, {}, {}, true);
};
NormFunction groups_of(int64_t n) {
  return [n](const Tensor& x, const Tensor& w, const Tensor& b) { return group_norm(x, n, w, b); };
}

TEST(Norm, RowsOfAllLengths) {
  for (int64_t length : {1, 3, 16, 65, 1000, 9001}) {
    SCOPED_TRACE(length);
    Tensor x = norm_numbers({5, length}, 3, 1), w = norm_numbers({length}, 1, 1.5), b = norm_numbers(length);
    for (bool centered : {true, false}) {
      NormFunction own = [&](const Tensor& t, const Tensor& u, const Tensor& v) {
        return centered ? layer_norm(t, length, u, v) : rms_norm(t, length, u, 1e-5) + v;
      };
      NormFunction plain = [&](const Tensor& t, const Tensor& u, const Tensor& v) {
        return by_formula(t, 1, centered, 1e-5) * u + v;
      };
      TensorList expected = run_norm(plain, x, w, b);
      if (length == 1) expected[1] = Tensor();  // zero up to rounding, divided by almost nothing
      expect_close(run_norm(own, x, w, b), expected, 1e-10);
      expect_close(run_norm(own, x.to(f32), w.to(f32), b.to(f32)), expected, 2e-5);
    }
  }
}

TEST(Norm, ChannelsInBothOrders) {
  for (const Shape& sizes : {Shape{3, 24, 5, 7}, Shape{2, 6, 40, 33}, Shape{2, 70, 3, 2}, Shape{2, 4, 3, 5, 2}}) {
    SCOPED_TRACE(to_string(sizes));
    int64_t channels = sizes[1];
    Tensor x = norm_numbers(sizes, 3, 1), w = norm_numbers(channels, 1, 1.5), b = norm_numbers(channels);
    Shape table = Shape::filled(sizes.size(), 1), all{0};
    table[1] = channels;
    for (size_t d = 2; d < sizes.size(); ++d) all.push_back(static_cast<int64_t>(d));
    NormFunction plain_batch = [&](const Tensor& t, const Tensor& u, const Tensor& v) {
      return by_formula(t, all, true, 1e-5) * u.view(table) + v.view(table);
    };
    NormFunction plain_groups = [&](const Tensor& t, const Tensor& u, const Tensor& v) {
      Tensor grouped = by_formula(t.reshape({sizes[0], 2, -1}), 2, true, 1e-5);
      return grouped.reshape(sizes) * u.view(table) + v.view(table);
    };
    for (auto [own, plain] : {std::pair(batch, plain_batch), std::pair(groups_of(2), plain_groups)}) {
      TensorList expected = run_norm(plain, x, w, b);
      for (MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        TensorList got = run_norm(own, x.contiguous(format), w, b);
        expect_close(got, expected, 1e-10);
        EXPECT_TRUE(got[0].is_contiguous(format));
        EXPECT_TRUE(got[1].is_contiguous(format));
        expect_close(run_norm(own, x.to(f32).contiguous(format), w.to(f32), b.to(f32)), expected, 2e-5);
      }
    }
  }
}

// The variance of numbers far from zero is that of their differences.
TEST(Norm, LargeMeansCostNoAccuracy) {
  Tensor x = norm_numbers({4, 8, 16, 16}, 1, 4096).to(f32), exact = x.to(f64);
  for (MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    Tensor y = batch_norm(x.contiguous(format), {}, {}, {}, {}, true);
    EXPECT_TRUE(close(y, by_formula(exact, {0, 2, 3}, true, 1e-5), 1e-5));
  }
  Tensor rows = x.view({32, 256});
  EXPECT_TRUE(close(layer_norm(rows, 256), by_formula(exact.view({32, 256}), 1, true, 1e-5), 1e-5));
}

TEST(Norm, HalfTypesHaveStatisticsInFloat) {
  for (DType dtype : {bf16, f16}) {
    Tensor x = norm_numbers({4, 6, 5, 5}, 2, 3).to(dtype), mean = zeros(6), var = ones(6);
    Tensor w = norm_numbers(6, 1, 2).to(f32), y = batch_norm(x, w, {}, mean, var, true, 1);
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_TRUE(close(mean, x.to(f64).mean({0, 2, 3}), 1e-6));
    EXPECT_TRUE(close(var, x.to(f64).var({0, 2, 3}), 1e-6));
    EXPECT_EQ(batch_norm_statistics(x).mean.dtype(), f32);
    Tensor leaf = w.detach().requires_grad_();
    layer_norm(x, 5, norm_numbers(5).to(f32).requires_grad_(), norm_numbers(5).to(f32)).sum().backward();
    batch_norm(x, leaf, {}, {}, {}, true).sum().backward();
    EXPECT_EQ(leaf.grad().dtype(), f32);
    EXPECT_THROW(batch_norm(x, w.to(f64), {}, {}, {}, true), DTypeError);
  }
}

TEST(Norm, RunningStatisticsMoveInTrainingOnly) {
  Tensor x = norm_numbers({3, 2, 4}), mean = zeros(2, {f64}), var = ones(2, {f64});
  x.requires_grad_();
  batch_norm(x, {}, {}, mean, var, false);
  EXPECT_EQ(values(mean), (Doubles{0, 0}));
  batch_norm(x, {}, {}, mean, var, true, 0.5);
  EXPECT_FALSE(mean.requires_grad());
  EXPECT_TRUE(close(mean, x.detach().mean({0, 2}) * 0.5, 1e-14));
  EXPECT_TRUE(close(var, x.detach().var({0, 2}) * 0.5 + 0.5, 1e-14));
  // An empty batch says nothing about them.
  Tensor before = mean.clone();
  EXPECT_EQ(batch_norm(zeros({0, 2, 4}, {f64}), {}, {}, mean, var, true).sizes(), (Shape{0, 2, 4}));
  EXPECT_TRUE(equal(mean, before));
}

// Statistics and application apart, as ranks that share statistics use them, give what the whole gives.
TEST(Norm, PartsOfBatchNormMakeTheWhole) {
  Tensor x = norm_numbers({4, 3, 5}, 2, 1), w = norm_numbers(3, 1, 2), b = norm_numbers(3);
  NormFunction parts = [](const Tensor& t, const Tensor& u, const Tensor& v) {
    BatchStatistics s = batch_norm_statistics(t);
    EXPECT_EQ(s.count, 20);
    return batch_norm_apply(t, s.mean, s.var, u, v);
  };
  expect_close(run_norm(parts, x, w, b), run_norm(batch, x, w, b), 1e-12);
}

TEST(Norm, ThreadsDoNotChangeTheBits) {
  Tensor x = norm_numbers({8, 48, 33, 31}, 2).to(f32), w = norm_numbers(48).to(f32), b = norm_numbers(48).to(f32);
  Tensor rows = x.view({-1, 31}), row_w = norm_numbers(31).to(f32), row_b = norm_numbers(31).to(f32);
  auto everything = [&](int threads) {
    ThreadsGuard guard(threads);
    TensorList list;
    auto add = [&](const TensorList& more) { list.insert(list.end(), more.begin(), more.end()); };
    for (MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      add(run_norm(batch, x.contiguous(format), w, b));
      add(run_norm(groups_of(4), x.contiguous(format), w, b));
    }
    add(run_norm([](auto& t, auto& u, auto& v) { return layer_norm(t, 31, u, v); }, rows, row_w, row_b));
    return list;
  };
  TensorList one = everything(1), three = everything(3);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(identical(one[i], three[i])) << i;
}

TEST(Norm, NanStaysInItsRowOrChannel) {
  Tensor x = norm_numbers({2, 3, 4});
  x[0][1][2].fill_(NAN);
  EXPECT_EQ(layer_norm(x, 4).isnan().sum().item<int>(), 4);
  EXPECT_EQ(group_norm(x, 3).isnan().sum().item<int>(), 4);
  Tensor y = batch_norm(x, {}, {}, {}, {}, true);
  EXPECT_EQ(y.isnan().sum().item<int>(), 8);
  EXPECT_TRUE(y.isnan().select(1, 1).all().item<bool>());
}

TEST(Norm, Errors) {
  Tensor x = zeros({2, 4, 3});
  auto shape = [](auto&& f) { return message_of<ShapeError>(f); };
  auto number = [](auto&& f) { return message_of<ValueError>(f); };
  EXPECT_THAT(shape([&] { layer_norm(x, 4); }),
              HasSubstr("the last dims of f32[2, 4, 3] on cpu:0 are not of the sizes [4]"));
  EXPECT_THAT(shape([&] { layer_norm(x, Shape{}); }), HasSubstr("[]"));
  EXPECT_THAT(shape([&] { layer_norm(x, 3, zeros(4)); }), HasSubstr("must have the sizes [3]"));
  EXPECT_THAT(shape([&] { group_norm(x, 3); }), HasSubstr("the 4 channels of f32[2, 4, 3] on cpu:0 cannot be divided"));
  EXPECT_THAT(shape([&] { group_norm(zeros(3), 1); }), HasSubstr("at least 2 dims"));
  EXPECT_THAT(shape([&] { batch_norm(x, zeros(3), {}, {}, {}, true); }), HasSubstr("each of the 4 channels"));
  EXPECT_THAT(number([&] { batch_norm(x, {}, {}, {}, {}, false); }), HasSubstr("needs a running mean"));
  EXPECT_THAT(number([&] { batch_norm(zeros({1, 4}), {}, {}, {}, {}, true); }), HasSubstr("more than one value"));
  EXPECT_THAT(number([&] { instance_norm(zeros({2, 4, 1})); }), HasSubstr("more than one spatial element"));
  EXPECT_THROW(layer_norm(x.to(i64), 3), DTypeError);
}

}  // namespace
}  // namespace tutti::test
