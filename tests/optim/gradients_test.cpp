// Clipping and moving averages.
#include "tutti/optim/gradients.h"

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tests/support/npz.h"
#include "tutti/optim.h"

namespace tutti::test {
namespace {

using namespace optim;
using testing::HasSubstr;

Tensor with_grad(const Tensor& g) {
  Tensor p = zeros(g.sizes(), {g.dtype()}).requires_grad_();
  p.set_grad(g);
  return p;
}

TEST(Gradients, ClippingAgreesWithPyTorch) {
  static const Npz file("tests/golden/optim.npz");
  struct {
    std::string key;
    double limit, p;
  } cases[] = {{"two", 2, 2}, {"loose", 100, 2}, {"one", 3, 1}, {"three", 1.5, 3}, {"largest", 0.5, INFINITY}};
  for (auto& [key, limit, p] : cases)
    for (DType dtype : {f64, f32}) {
      double allowed = dtype == f64 ? 1e-12 : 1e-5;
      TensorList parameters;
      for (int i = 0; i < 3; ++i)
        parameters.push_back(with_grad(file.read("clip/in" + std::to_string(i)).to(dtype).clone()));
      parameters.push_back(zeros({3}).requires_grad_());  // without a gradient
      double expected = file.read("clip/" + key).item<double>();
      EXPECT_NEAR(grad_norm(parameters, p), expected, allowed * expected);
      EXPECT_NEAR(clip_grad_norm_(parameters, limit, {.p = p}), expected, allowed * expected) << key;
      for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(
            close(parameters[static_cast<size_t>(i)].grad(), file.read("clip/" + key + std::to_string(i)), allowed))
            << key;
      EXPECT_FALSE(parameters[3].grad().defined());
    }
}

TEST(Gradients, SparseOnesAreClippedByWhatTheyAddUpTo) {
  Tensor g = sparse_coo(tensor({{1, 1, 3}}), tensor({{1.0f}, {2.0f}, {4.0f}}), {5, 1});
  TensorList p{with_grad(zeros({5, 1})), with_grad(tensor({0.0f}))};
  p[0].set_grad(g);
  EXPECT_NEAR(clip_grad_norm_(p, 2.5), 5, 1e-6);
  EXPECT_TRUE(p[0].grad().is_sparse());
  EXPECT_TRUE(close(to_dense(p[0].grad()), tensor({0.0, 1.5, 0.0, 2.0, 0.0}).view({5, 1}), 1e-6));
  p[0].set_grad(g);
  clip_grad_value_(p, 2.5);
  EXPECT_EQ(values(to_dense(p[0].grad())), (Doubles{0, 2.5, 0, 2.5, 0}));
}

TEST(Gradients, NormsOfHalvesMayBeBeyondTheirRange) {
  for (DType dtype : {f16, bf16}) {
    TensorList p{with_grad(full({10000}, 1000, {dtype}))};
    EXPECT_NEAR(clip_grad_norm_(p, 1000), 100000, 1);
    EXPECT_TRUE(close(p[0].grad(), full({10000}, 10, {dtype}), 0.01));
  }
}

TEST(Gradients, NormsThatAreNotFinite) {
  for (double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)})
    for (double p : {2.0, static_cast<double>(INFINITY)}) {
      TensorList list{with_grad(tensor({1.0f, 2.0f})), with_grad(full({2}, bad)), with_grad(tensor({3.0f}))};
      EXPECT_THAT(message_of<ValueError>([&] { clip_grad_norm_(list, 1, {.p = p, .error_if_nonfinite = true}); }),
                  HasSubstr("overflowed"));
      EXPECT_EQ(values(list[0].grad()), (Doubles{1, 2}));
      double norm = clip_grad_norm_(list, 1, {.p = p});
      EXPECT_TRUE(std::isnan(bad) ? std::isnan(norm) : std::isinf(norm));
    }
  EXPECT_EQ(clip_grad_norm_({}, 1), 0);
  EXPECT_THROW(clip_grad_norm_({}, -1), ValueError);
  EXPECT_THROW(clip_grad_norm_({}, 1, {.p = 0}), ValueError);
  EXPECT_THROW(clip_grad_value_({}, -1), ValueError);
}

TEST(Gradients, ValuesAreClipped) {
  TensorList p{with_grad(tensor({-3.0f, 0.5f, NAN, 2.0f}))};
  clip_grad_value_(p, 1);
  Doubles v = values(p[0].grad());
  EXPECT_EQ(v[0], -1);
  EXPECT_EQ(v[1], 0.5);
  EXPECT_TRUE(std::isnan(v[2]));
  EXPECT_EQ(v[3], 1);
}

struct Net : nn::Module<Net> {
  nn::Linear linear{2, 3};
  nn::BatchNorm1d norm{3};
  TUTTI_FIELDS(linear, norm)
  Tensor forward(const Tensor& x) { return norm(linear(x)); }
};

TEST(Ema, FollowsTheModule) {
  manual_seed(1);
  Net net;
  Ema<Net> ema(net, 0.9);
  EXPECT_FALSE(ema.module.is_training());
  EXPECT_FALSE(ema.module.linear.weight.requires_grad());
  EXPECT_FALSE(ema.module.linear.weight.is_same(net.linear.weight));
  Tensor expected = net.linear.weight.detach().to(f64);
  SGD sgd(net.parameters(), {.lr = 0.1});
  for (int i = 1; i <= 120; ++i) {
    net(randn({4, 2})).square().sum().backward();
    clip_grad_norm_(net.parameters(), 1);
    sgd.step();
    ema.update(net);
    double decay = std::min(0.9, (1.0 + i) / (10.0 + i));
    expected = expected * decay + net.linear.weight.detach().to(f64) * (1 - decay);
  }
  EXPECT_EQ(ema.updates, 120);
  EXPECT_TRUE(close(ema.module.linear.weight.detach(), expected, 1e-5));
  EXPECT_TRUE(identical(ema.module.norm.running_mean, net.norm.running_mean));
  EXPECT_TRUE(identical(ema.module.norm.num_batches_tracked, net.norm.num_batches_tracked));
  EXPECT_TRUE(net.linear.weight.requires_grad());
}

TEST(Ema, KeepsItsOwnPrecision) {
  Net net;
  net.to(bf16);
  Ema<Net> ema(net, 0.999);
  ema.module.to(f32);
  ema.update(net);
  EXPECT_EQ(ema.module.linear.weight.dtype(), f32);
  nn::Linear other(2, 4);
  EXPECT_THROW(average_into(other, net, 0.5), ValueError);
  nn::Linear same_count(3, 3);
  nn::Linear wanted(2, 3);
  EXPECT_THAT(message_of<ValueError>([&] { average_into(same_count, wanted, 0.5); }), HasSubstr("weight"));
}

struct Plain : nn::Module<Plain> {
  nn::Linear linear{2, 3};
  nn::BatchNorm1d norm{3, {.track_running_stats = false}};
  TUTTI_FIELDS(linear, norm)
};

TEST(Ema, ModulesWithOtherBuffersAreAnError) {
  Net with;
  Plain without;
  Tensor before = without.linear.weight.detach().clone();
  EXPECT_THAT(message_of<ValueError>([&] { average_into(without, with, 0.5); }), HasSubstr("0 and 3 buffers"));
  EXPECT_THAT(message_of<ValueError>([&] { average_into(with, without, 0.5); }), HasSubstr("3 and 0 buffers"));
  EXPECT_TRUE(identical(without.linear.weight.detach(), before));
}

TEST(Ema, GoesOnFromAState) {
  manual_seed(1);
  Net net;
  Ema<Net> whole(net, 0.9), fresh(Net(), 0.5);
  auto train = [&](Ema<Net>& ema) {
    NoGrad guard;
    for (int i = 0; i < 5; ++i) {
      for (Tensor& p : net.parameters()) p.add_(randn(p.sizes()));
      ema.update(net);
    }
  };
  train(whole);
  fresh.load_state(io::state_from_bytes(io::state_to_bytes(whole.state()), "here"));
  EXPECT_EQ(fresh.updates, 5);
  EXPECT_EQ(fresh.decay, 0.9);
  EXPECT_FALSE(fresh.module.linear.weight.requires_grad());
  Net same = net.clone();
  manual_seed(2);
  train(whole);
  net = same;
  manual_seed(2);
  train(fresh);
  EXPECT_TRUE(identical(fresh.module.linear.weight, whole.module.linear.weight));
  io::State wrong = io::clone(whole.state());
  wrong["updates"] = -1;
  EXPECT_THROW(fresh.load_state(wrong), ValueError);
  wrong = io::clone(whole.state());
  wrong["decay"] = 1.5;
  EXPECT_THROW(fresh.load_state(wrong), ValueError);
  EXPECT_THROW(Ema<Net>(net, -1), ValueError);
}

TEST(Ema, RampsItsDecayUnlessToldNotTo) {
  Net net;
  EXPECT_THAT(message_of<ValueError>([&] { Ema<Net>(net, 1.5); }), testing::HasSubstr("between 0 and 1"));
  Ema<Net> ramped(net, 0.75), plain(net, 0.75, false);
  {
    NoGrad guard;
    net.linear.weight.fill_(0);
    for (auto* ema : {&ramped, &plain}) ema->module.linear.weight.fill_(11);
  }
  ramped.update(net);
  plain.update(net);
  EXPECT_NEAR(ramped.module.linear.weight.max().item<double>(), 2, 1e-5);  // of 11 with a decay of 2/11
  EXPECT_NEAR(plain.module.linear.weight.max().item<double>(), 8.25, 1e-5);
}

TEST(Ema, OfALazyModuleThatHasNotRunSaysSo) {
  nn::LazyLinear net(2);
  Ema ema(net);
  net(ones({3}));
  EXPECT_THAT(message_of<ValueError>([&] { ema.update(net); }), HasSubstr("after the module's first call"));
}

}  // namespace
}  // namespace tutti::test
