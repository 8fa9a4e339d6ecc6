// Gradients of gradients through what fully_shard has cut.
#include "tests/parallel/fsdp_support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::fully_shard;

struct FsdpSecond : QuickTest<1, 2, 3> {};

// Units are gathered for what differentiates their backward, too; forwards that come between free them.
TUTTI_RANK_TEST(FsdpSecond, PenaltiesOfGradients) {
  for (int order : {2, 3}) {
    SCOPED_TRACE("order " + std::to_string(order));
    Mlp net = seeded<Mlp>(), whole = net.clone();
    shard(net);
    auto loss = [&](Mlp& m, Tensor x, const Tensor& others) {
      x.requires_grad_();
      Tensor y = m(x), g = y.pow(2).sum();
      for (int k = 1; k < order; ++k) {
        g = grad(g, x, {.create_graph = true});
        if (k + 1 < order) g = g.pow(2).sum();
      }
      return (g.pow(2).sum({1}) - 1).pow(2).mean() + loss_of(m(others), others) + y.mean();
    };
    for (uint64_t step = 0; step < 3; ++step) {
      Tensor x = numbers({2 * world_size(), 6}, step), others = numbers({2 * world_size(), 6}, step + 100);
      loss(net, mine(x, 2).clone(), mine(others, 2)).backward();
      loss(whole, x, others).backward();
      expect_full_gradients(net, whole, 1e-10);
    }
    Tensor x = numbers({2, 6}, 1).requires_grad_();
    Tensor g = grad(net(x).pow(2).sum(), x, {.create_graph = true}).sum();
    NoGrad guard;
    for (Tensor p : net.parameters()) p.add_(1);
    EXPECT_THROW(g.backward(), VersionError) << "other values than those that were differentiated";
  }
}

// What a model of forces does: its result is a gradient, and its units' backwards are part of its forward.
struct Forces : nn::Module<Forces> {
  Mlp net;
  TUTTI_FIELDS(net)
  Tensor forward(Tensor x) {
    x = x.detach().requires_grad_();
    return grad(net(x).pow(2).sum(), x, {.create_graph = true});
  }
};

TUTTI_RANK_TEST(FsdpSecond, GradientsThatForwardTakes) {
  Forces net = seeded<Forces>(), whole = net.clone();
  fully_shard(net.net.first);
  fully_shard(net.net.second);
  fully_shard(net);
  for (uint64_t step = 0; step < 3; ++step) {
    Tensor x = numbers({2 * world_size(), 6}, step);
    net(mine(x, 2)).sin().mean().backward();
    whole(x).sin().mean().backward();
    expect_full_gradients(net, whole, 1e-10);
  }
}

}  // namespace
}  // namespace tutti
