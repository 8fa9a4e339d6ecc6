// What the rows of attention (tests/ops/table) leave: many blocks, queries without keys, dropout, memory, threads,
// errors.
#include "tutti/ops/attention.h"

#include <cmath>
#include <limits>

#include "base/memory.h"
#include "tests/ops/numbers.h"
#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

// The formula, with all weights at once.
Tensor plain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& allowed) {
  Tensor scores = matmul(q, transpose(k, -2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
  return matmul(softmax(where(allowed, scores, -kInf), -1), v);
}

TEST(Attention, HasManyBlocksRight) {
  for (auto [t, s] : {std::pair<int64_t, int64_t>{64, 64}, {200, 600}, {130, 257}, {65, 129}, {300, 70}, {1, 300}})
    for (int form = 0; form < 4; ++form) {
      SCOPED_TRACE(testing::Message() << t << " queries, " << s << " keys, form " << form);
      TensorList in{scattered({2, t, 9}, f64, 1, -3, 3), scattered({2, s, 9}, f64, 2, -3, 3),
                    scattered({2, s, 5}, f64, 3)};
      for (Tensor& x : in) x.requires_grad_();
      Tensor allowed = ones({t, s}, {boolean});
      AttentionOptions o{.causal = form == 1};
      if (form == 1) allowed = tril(allowed);
      if (form >= 2) {
        allowed = (scattered({t, s}, f64, 7) < 0.2) | (arange(s) == 0);
        o.mask = form == 2 ? allowed : where(allowed, zeros({}, {f64}), -kInf);
      }
      Tensor y = scaled_dot_product_attention(in[0], in[1], in[2], o), z = plain(in[0], in[1], in[2], allowed);
      EXPECT_TRUE(close(y, z, 1e-12));
      TensorList g = grad({y}, in, {}, {fixed_weights(y)}), h = grad({z}, in, {}, {fixed_weights(z)});
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(g[i], h[i], 1e-11)) << i;
      // The kernels of f32, against f64 of the same numbers.
      TensorList low;
      for (const Tensor& x : in) low.push_back(x.detach().to(f32).requires_grad_());
      {
        NoGrad guard;
        for (size_t i = 0; i < 3; ++i) in[i].copy_(low[i].detach());
      }
      y = scaled_dot_product_attention(low[0], low[1], low[2], o), z = plain(in[0], in[1], in[2], allowed);
      EXPECT_TRUE(close(y, z, 1e-5));
      g = grad({y}, low, {}, {fixed_weights(y)}), h = grad({z}, in, {}, {fixed_weights(z)});
      for (size_t i = 0; i < 3; ++i) {
        if (h[i].abs().max().item<double>() > 1e-12)
          EXPECT_TRUE(close(g[i], h[i], 1e-5)) << i;
        else  // a single key: nothing depends on the scores
          EXPECT_LT(g[i].abs().max().item<double>(), 1e-7) << i;
      }
    }
}

// Gradients must not be counted twice.
TEST(Attention, InputsMayShareTheirHistory) {
  auto shared = [](const TensorList& x) {
    return TensorList{scaled_dot_product_attention(x[0] * 2, x[0] * x[0], sin(x[0]))};
  };
  EXPECT_TRUE(gradgradcheck(shared, {scattered({3, 2}).requires_grad_()}));
}

TEST(Attention, QueriesWithoutKeysGiveZeros) {
  Tensor allowed = reshape(tensor({1, 0, 0, 0}), {2, 2}) == 1;
  for (bool added : {false, true})
    for (int order : {1, 2}) {
      TensorList in{scattered({2, 3}).requires_grad_(), scattered({2, 3}, f64, 2).requires_grad_(),
                    scattered({2, 3}, f64, 3).requires_grad_()};
      Tensor mask = added ? where(allowed, zeros({}, {f64}), -kInf) : allowed;
      Tensor y = scaled_dot_product_attention(in[0], in[1], in[2], {.mask = mask});
      EXPECT_EQ(values(y[1]), (Doubles{0, 0, 0}));
      EXPECT_TRUE(close(y[0], in[2][0], 1e-15));
      TensorList g = grad({y.sum()}, in, {.create_graph = order == 2});
      EXPECT_EQ(values(g[0]), Doubles(6, 0));
      EXPECT_EQ(values(g[2]), (Doubles{1, 1, 1, 0, 0, 0}));
    }
  EXPECT_EQ(values(scaled_dot_product_attention(ones({2, 3}), ones({0, 3}), ones({0, 2}))), (Doubles{0, 0, 0, 0}));
}

TEST(Attention, TakesAnyLayout) {
  // [B, T, 3, H, D] as it comes out of one product, seen as heads.
  Tensor qkv = scattered({2, 70, 3, 4, 8}).requires_grad_();
  auto part = [&](const Tensor& x, int64_t i) { return transpose(select(x, 2, i), 1, 2); };
  Tensor y = scaled_dot_product_attention(part(qkv, 0), part(qkv, 1), part(qkv, 2), {.causal = true});
  EXPECT_TRUE(transpose(y, 1, 2).is_contiguous());
  Tensor q = part(qkv, 0).detach().contiguous(), k = part(qkv, 1).detach().contiguous(),
         v = part(qkv, 2).detach().contiguous();
  EXPECT_TRUE(identical(y.contiguous(), scaled_dot_product_attention(q, k, v, {.causal = true})));
  Tensor across = transpose(transpose(q, 2, 3).contiguous(), 2, 3);
  EXPECT_TRUE(close(scaled_dot_product_attention(across, k, v, {.causal = true}), y, 1e-14));
  y.backward(fixed_weights(y));
  Tensor other = qkv.detach().clone().requires_grad_();
  Tensor z = plain(part(other, 0), part(other, 1), part(other, 2), tril(ones({70, 70}, {boolean})));
  z.backward(fixed_weights(z));
  EXPECT_TRUE(close(qkv.grad(), other.grad(), 1e-12));
}

TEST(Attention, TakesOtherDtypesAndEmptyInput) {
  for (DType dtype : {bf16, f16}) {
    Tensor q = scattered({4, 3}, dtype).requires_grad_(), v = scattered({4, 3}, dtype, 2);
    Tensor y = scaled_dot_product_attention(q, q, v), wide = q.detach().to(f32);
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_TRUE(close(y, scaled_dot_product_attention(wide, wide, v.to(f32)), 0.02));
    y.sum().backward();
    EXPECT_EQ(q.grad().dtype(), dtype);
  }
  Tensor none = zeros({0, 4, 3}).requires_grad_();
  Tensor y = scaled_dot_product_attention(none, none, none);
  EXPECT_EQ(y.sizes(), (Shape{0, 4, 3}));
  y.sum().backward();
  EXPECT_EQ(none.grad().sizes(), (Shape{0, 4, 3}));
  Tensor q = zeros({2, 0, 3}).requires_grad_(), k = ones({2, 5, 3}).requires_grad_();
  scaled_dot_product_attention(q, k, k).sum().backward();
  EXPECT_EQ(values(k.grad()), Doubles(30, 0));
  Tensor flat = ones({2, 0}).requires_grad_(), rows = reshape(tensor({1.0, 3.0}), {2, 1}).requires_grad_();
  Tensor even = scaled_dot_product_attention(flat, flat, rows);
  EXPECT_EQ(values(even), (Doubles{2, 2}));
  even.sum().backward();
  EXPECT_EQ(values(rows.grad()), (Doubles{1, 1}));
  Tensor meta = zeros({2, 5, 3}, {.device = "meta"});
  EXPECT_EQ(scaled_dot_product_attention(meta, meta, meta).sizes(), (Shape{2, 5, 3}));
}

TEST(Attention, KeepsNaNInItsRow) {
  Tensor q = zeros({3, 2}, {f64});
  q.index_put_({1, 0}, NAN);
  Doubles y = values(scaled_dot_product_attention(q, ones({4, 2}, {f64}), ones({4, 1}, {f64})));
  EXPECT_EQ(y[0], 1);
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_EQ(y[2], 1);
}

TEST(Attention, DropsWeights) {
  Tensor q = scattered({3, 40, 8}), v = ones({3, 40, 2}, {f64});
  manual_seed(3);
  Tensor y = scaled_dot_product_attention(q, q, v, {.dropout = 0.5});
  manual_seed(3);
  EXPECT_TRUE(identical(y, scaled_dot_product_attention(q, q, v, {.dropout = 0.5})));
  EXPECT_NEAR(y.mean().item<double>(), 1, 0.1);
  EXPECT_GT(y.std().item<double>(), 0.05);
}

// What dropout leaves of the weights: the result for values of which each is a direction of its own.
Tensor dropped_weights(const Tensor& q, const Tensor& k, const AttentionOptions& o) {
  return scaled_dot_product_attention(q, k, eye(k.size(-2), k.size(-2), {q.dtype()}), o);
}

TEST(Attention, DropsEachWeightByItself) {
  // Equal scores: what is kept is 1 / (S·(1 - p)).
  int64_t t = 150, s = 300;
  Tensor q = zeros({2, 3, t, 4}, {f64}), k = zeros({2, 3, s, 4}, {f64});
  for (double p : {0.1, 0.5}) {
    manual_seed(7);
    Tensor w = dropped_weights(q, k, {.dropout = p});
    Tensor kept = w != 0;
    EXPECT_TRUE(
        close(w, where(kept, full({}, 1 / (static_cast<double>(s) * (1 - p)), {f64}), zeros({}, {f64})), 1e-13));
    Tensor share = cast(kept, f64);
    double n = static_cast<double>(share.numel()), deviation = std::sqrt(p * (1 - p));
    EXPECT_NEAR(share.mean().item<double>(), 1 - p, 4 * deviation / std::sqrt(n));
    // No row, column or matrix is like another or has more than its share.
    EXPECT_LT((share.mean(-1) - (1 - p)).abs().max().item<double>(), 5 * deviation / std::sqrt(s));
    EXPECT_LT((share.mean(-2) - (1 - p)).abs().max().item<double>(), 5 * deviation / std::sqrt(t));
    Tensor centred = share - (1 - p);
    auto correlation = [&](const Tensor& a, const Tensor& b) {
      return std::abs((a * b).mean().item<double>()) / (p * (1 - p)) * std::sqrt(static_cast<double>(a.numel()));
    };
    EXPECT_LT(correlation(centred.narrow(-1, 1, s - 1), centred.narrow(-1, 0, s - 1)), 4.5);
    EXPECT_LT(correlation(centred.narrow(-2, 1, t - 1), centred.narrow(-2, 0, t - 1)), 4.5);
    EXPECT_LT(correlation(centred.select(1, 0), centred.select(1, 2)), 4.5);
    Tensor again = dropped_weights(q, k, {.dropout = p});
    EXPECT_FALSE(identical(w, again));
  }
  EXPECT_EQ(dropped_weights(q, k, {.dropout = 1}).abs().max().item<double>(), 0);
}

// With the mask found as above, the formula gives the same result and gradients.
TEST(Attention, DropsTheSameInBackward) {
  for (DType dtype : {f64, f32})
    for (auto [t, s, causal] :
         {std::tuple<int64_t, int64_t, bool>{70, 300, false}, {150, 150, true}, {40, 129, true}}) {
      SCOPED_TRACE(testing::Message() << t << " queries, " << s << " keys in " << to_string(dtype));
      TensorList in{scattered({2, 2, t, 5}, dtype, 1), scattered({2, 2, s, 5}, dtype, 2),
                    scattered({2, 2, s, 3}, dtype, 3)};
      AttentionOptions o{.dropout = 0.3, .causal = causal};
      manual_seed(11);
      Tensor kept = dropped_weights(zeros_like(in[0]), zeros_like(in[1]), o) != 0;
      for (Tensor& x : in) x.requires_grad_();
      manual_seed(11);
      Tensor y = scaled_dot_product_attention(in[0], in[1], in[2], o);
      TensorList wide;
      for (const Tensor& x : in) wide.push_back(x.detach().to(f64).requires_grad_());
      Tensor allowed = causal ? tril(ones({t, s}, {boolean})) : ones({t, s}, {boolean});
      Tensor scores = matmul(wide[0], transpose(wide[1], -2, -1)) / std::sqrt(5.0);
      Tensor weights = softmax(where(allowed, scores, -kInf), -1) * cast(kept, f64) / 0.7;
      Tensor z = matmul(weights, wide[2]);
      double allow = dtype == f64 ? 1e-12 : 1e-5;
      EXPECT_TRUE(close(y, z, allow));
      TensorList g = grad({y}, in, {}, {fixed_weights(y)}), h = grad({z}, wide, {}, {fixed_weights(z)});
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(g[i], h[i], allow)) << i;
    }
}

// Training with dropout keeps no matrix of T×S numbers, nor even bytes.
TEST(Attention, NeedsLittleMemory) {
  int64_t t = 4096;
  Tensor q = scattered({t, 8}, f32, 1).requires_grad_(), k = scattered({t, 8}, f32, 2).requires_grad_();
  memory::empty_cache();
  auto held = [] {
    memory::Statistics s = memory::statistics();
    return s.bytes_in_use + s.bytes_cached;  // what is freed stays in the cache: the peak
  };
  int64_t before = held();
  scaled_dot_product_attention(q, k, k, {.dropout = 0.1, .causal = true}).sum().backward();
  EXPECT_GT(held(), before);
  EXPECT_LT(held() - before, t * t / 4);
}

TEST(Attention, IsRightInBf16) {
  TensorList in{scattered({2, 70, 8}, bf16, 1), scattered({2, 300, 8}, bf16, 2), scattered({2, 300, 4}, bf16, 3)}, wide;
  for (Tensor& x : in) {
    x.requires_grad_();
    wide.push_back(x.detach().to(f32).requires_grad_());
  }
  AttentionOptions o{.mask = scattered({70, 300}, f32, 4)};
  Tensor y = scaled_dot_product_attention(in[0], in[1], in[2], o),
         z = scaled_dot_product_attention(wide[0], wide[1], wide[2], o);
  EXPECT_EQ(y.dtype(), bf16);
  EXPECT_TRUE(identical(y.detach(), z.detach().to(bf16)));
  TensorList g = grad({y}, in, {}, {fixed_weights(y)}), h = grad({z}, wide, {}, {fixed_weights(z)});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(g[i].dtype(), bf16);
    EXPECT_TRUE(close(g[i].to(f32), h[i], 0.02)) << i;
  }
}

TEST(Attention, HasTheSameBitsOnAnyThreads) {
  auto run = [&](int threads, double dropout = 0) {
    ThreadsGuard guard(threads);
    manual_seed(9);
    TensorList in{scattered({3, 2, 150, 16}, f32), scattered({3, 2, 300, 16}, f32, 2),
                  scattered({3, 2, 300, 24}, f32, 3)};
    for (Tensor& x : in) x.requires_grad_();
    Tensor y = scaled_dot_product_attention(in[0], in[1], in[2], {.dropout = dropout, .causal = true});
    TensorList all = grad({y}, in, {}, {fixed_weights(y)});
    all.push_back(y.detach());
    return all;
  };
  for (double dropout : {0.0, 0.2}) {
    TensorList one = run(1, dropout), four = run(4, dropout);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(identical(one[i], four[i])) << i;
  }
}

TEST(Attention, RefusesWhatItCannotTake) {
  Tensor q = zeros({2, 4, 3});
  auto text = [&](auto error, const Tensor& k, const Tensor& v, AttentionOptions o = {}) {
    return message_of<decltype(error)>([&] { scaled_dot_product_attention(q, k, v, o); });
  };
  EXPECT_THAT(text(ShapeError(""), zeros({2, 4, 2}), q), HasSubstr("last dim"));
  EXPECT_THAT(text(ShapeError(""), zeros({2, 5, 3}), q), HasSubstr("one value for each key"));
  EXPECT_THAT(text(ShapeError(""), zeros({3, 5, 3}), zeros({3, 5, 3})), HasSubstr("divide"));
  EXPECT_THAT(text(DTypeError(""), q.to(f64), q), HasSubstr("one floating-point dtype"));
  EXPECT_THAT(text(ShapeError(""), q, q, {.mask = zeros({3, 3})}),
              HasSubstr("attention: the mask f32[3, 3] on cpu:0 cannot be broadcast to the scores [2, 4, 4]"));
  EXPECT_THAT(text(ShapeError(""), q, q, {.mask = zeros({1, 2, 4, 4})}), HasSubstr("the mask f32[1, 2, 4, 4]"));
  EXPECT_THAT(message_of<ShapeError>([] {
                Tensor four = zeros({4, 5, 3}), two = zeros({2, 5, 3});
                scaled_dot_product_attention(four, two, two, {.mask = zeros({3, 5, 5})});
              }),
              HasSubstr("attention: the mask f32[3, 5, 5] on cpu:0 is not for 4 heads"));
  EXPECT_THAT(text(DTypeError(""), q, q, {.mask = zeros({4, 4}, {i64})}), HasSubstr("mask"));
  EXPECT_THAT(text(ValueError(""), q, q, {.dropout = 2}), HasSubstr("[0, 1]"));
  EXPECT_THAT(text(DeviceError(""), q, q, {.mask = zeros({4, 4}, {.device = "meta"})}), HasSubstr("different devices"));
}

}  // namespace
}  // namespace tutti::test
