// Graphs that outlive the forward they came from: backward finds the parameters that forward had, or says that it
// cannot.
#include "tests/parallel/fsdp_support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::fully_shard;

struct FsdpVersions : QuickTest<1, 2, 3> {};

void scale(const TensorList& parameters, double by) {
  NoGrad guard;
  for (Tensor p : parameters) p.mul_(by);
}
Tensor loss_of_mine(Mlp& net, const Tensor& x) { return loss_of(net(mine(x, 2)), mine(x, 2)); }

TUTTI_RANK_TEST(FsdpVersions, ChangedBeforeAnotherForward) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  Tensor x = numbers({2 * world_size(), 6}, 1);
  Tensor before = loss_of_mine(net, x);
  scale(net.parameters(), 3);
  scale(whole.parameters(), 3);
  Tensor after = loss_of_mine(net, x);
  std::string text = message_of<VersionError>([&] { before.backward(); });
  EXPECT_NE(text.find("changed since its forward"), std::string::npos) << text;
  for (const Tensor& p : net.parameters()) EXPECT_FALSE(p.grad().defined()) << "that pass has not begun";
  after.backward();
  loss_of(whole(x), x).backward();
  expect_full_gradients(net, whole);
}

TUTTI_RANK_TEST(FsdpVersions, SteppedAfterAnotherBackward) {
  Mlp net = seeded<Mlp>();
  shard(net);
  Tensor x = numbers({2 * world_size(), 6}, 1);
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  Tensor first = loss_of_mine(net, x), second = loss_of_mine(net, x);
  second.backward();
  sgd.step();
  EXPECT_THROW(first.backward({.retain_graph = true}), VersionError);
  // Together with a graph that is not stale, whose backward has begun by then.
  Tensor fresh = loss_of_mine(net, x);
  EXPECT_THROW((first + fresh).backward(), VersionError);
  net.zero_grad();
  Mlp whole = seeded<Mlp>();
  nn::StateDict state = parallel::full_state_dict(net);
  loss_of_mine(net, x).backward();
  if (rank() == 0) {
    whole.load_state_dict(state);
    loss_of(whole(x), x).backward();
  }
  expect_full_gradients(net, whole);
}

// The parameters of one unit only, which is neither the first nor the last of the pass.
TUTTI_RANK_TEST(FsdpVersions, OfEachUnit) {
  Tensor x = numbers({2 * world_size(), 6}, 1);
  for (int which : {0, 1, 2}) {
    Mlp net = seeded<Mlp>();
    shard(net);
    Tensor before = loss_of_mine(net, x);
    nn::Linear& layer = which == 0 ? net.first : which == 1 ? net.second : net.last;
    scale({layer.bias}, 2);
    Tensor after = loss_of_mine(net, x);
    EXPECT_THROW(before.backward(), VersionError) << which;
    EXPECT_NO_THROW(after.backward()) << which;
  }
}

TUTTI_RANK_TEST(FsdpVersions, GraphsThatAreKept) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  Tensor x = numbers({2 * world_size(), 6}, 1);
  Tensor y = loss_of_mine(net, x), z = loss_of(whole(x), x);
  y.backward({.retain_graph = true});
  std::ignore = loss_of_mine(net, x);
  y.backward({.retain_graph = true});
  z.backward({.retain_graph = true});
  z.backward();
  expect_full_gradients(net, whole);

  Tensor input = mine(x, 2).clone().requires_grad_();
  y = net(input).pow(2).mean();
  y.backward({.retain_graph = true});
  sgd.step();
  std::ignore = loss_of_mine(net, x);
  EXPECT_THROW(std::ignore = grad(y, input, {.retain_graph = true}), VersionError);
  EXPECT_THROW(y.backward(), VersionError);
}

// What differentiates a pass belongs to the forward of that pass.
TUTTI_RANK_TEST(FsdpVersions, GradientsOfGradients) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  auto slope = [](Mlp& m, Tensor x) {
    x.requires_grad_();
    return grad(m(x).pow(2).sum(), x, {.create_graph = true}).pow(2).mean();
  };
  Tensor x = numbers({2 * world_size(), 6}, 1);
  Tensor first = slope(net, mine(x, 2).clone()), second = slope(net, mine(x, 2).clone());
  second.backward();
  first.backward();  // nothing has changed
  (slope(whole, x.clone()) * 2).backward();
  expect_full_gradients(net, whole, 1e-10);
  first = slope(net, mine(x, 2).clone());
  scale(net.parameters(), 2);
  second = slope(net, mine(x, 2).clone());
  EXPECT_THROW(first.backward(), VersionError);
  EXPECT_NO_THROW(second.backward());
}

// Everything here looks at parameters, gathers or frees them, and changes none.
TUTTI_RANK_TEST(FsdpVersions, WhatIsNoChange) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  Tensor x = numbers({2 * world_size(), 6}, 1);
  fully_shard(net.first);
  Tensor part = net.first(mine(x, 2)).pow(2).mean();  // before it belonged to a model
  fully_shard(net.second);
  fully_shard(net);
  Tensor a = loss_of_mine(net, x), b = loss_of_mine(net, x);
  part.backward();
  whole.first(x).pow(2).mean().backward();
  {
    NoGrad guard;
    net(mine(x, 2));
  }
  std::ignore = parallel::full_state_dict(net);
  b.backward();
  parallel::grad_norm(net.parameters());
  net.requires_grad_(false);
  net(mine(x, 2));
  net.requires_grad_(true);
  a.backward();
  for (int i = 0; i < 2; ++i) loss_of(whole(x), x).backward();
  expect_full_gradients(net, whole);
}

// A pass that is refused leaves what came before it: gradients that are not averaged yet, too.
TUTTI_RANK_TEST(FsdpVersions, RefusedPassesChangeNothing) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  Tensor x = numbers({2 * world_size(), 6}, 1);
  Tensor stale = loss_of_mine(net, x);
  scale(net.parameters(), 1);
  {
    auto guard = parallel::no_sync(net);
    loss_of_mine(net, x).backward();
    EXPECT_THROW(stale.backward({.retain_graph = true}), VersionError);
  }
  EXPECT_THROW(stale.backward(), VersionError);
  loss_of_mine(net, x).backward();
  for (int i = 0; i < 2; ++i) loss_of(whole(x), x).backward();
  expect_full_gradients(net, whole);
}

// Checkpointed pieces are not recorded, but they run again with the parameters that there are then.
TUTTI_RANK_TEST(FsdpVersions, Checkpointed) {
  struct Net : nn::Module<Net> {
    nn::Linear a{6, 8}, b{8, 3};
    TUTTI_FIELDS(a, b)
    Tensor forward(const Tensor& x) {
      Tensor h = checkpoint([&](const Tensor& t) { return tanh(a(t)); }, x);
      return checkpoint([&](const Tensor& t) { return b(t); }, h);
    }
  };
  Net net = seeded<Net>(), whole = net.clone();
  fully_shard(net.a);
  fully_shard(net.b);
  fully_shard(net);  // has no parameters of its own
  Tensor x = numbers({2 * world_size(), 6}, 1);
  auto loss = [&] { return loss_of(net(mine(x, 2)), mine(x, 2)); };
  Tensor first = loss(), second = loss();
  second.backward();
  first.backward();
  for (int i = 0; i < 2; ++i) loss_of(whole(x), x).backward();
  expect_full_gradients(net, whole);
  first = loss();
  scale(net.a.parameters(), 2);
  second = loss();
  EXPECT_THROW(first.backward(), VersionError);
  EXPECT_NO_THROW(second.backward());
}

// What forward uses without gradients, as the average of a net is, may change: backward does not need it.
TUTTI_RANK_TEST(FsdpVersions, WithoutGradients) {
  struct Net : nn::Module<Net> {
    nn::Linear learns{6, 3}, follows{6, 3};
    TUTTI_FIELDS(learns, follows)
    Tensor forward(const Tensor& x) {
      Tensor aim;
      {
        NoGrad guard;
        aim = follows(x);
      }
      return learns(x) - aim;
    }
  };
  Net net = seeded<Net>(), whole = net.clone();
  fully_shard(net.learns);
  fully_shard(net.follows);
  fully_shard(net);
  Tensor x = numbers({2 * world_size(), 6}, 1);
  Tensor y = net(mine(x, 2)).pow(2).mean();
  scale(net.follows.parameters(), 2);
  y.backward();
  whole(x).pow(2).mean().backward();
  whole.follows.requires_grad_(false);
  for (Net* m : {&net, &whole})
    for (Tensor p : m->follows.parameters()) p.set_grad(zeros_like(p.detach()));
  expect_full_gradients(net, whole);
}

// ---- compile()

struct Compiles : nn::Module<Compiles> {
  nn::Linear a{6, 8}, b{8, 3};
  std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)> piece;  // if there is one
  static constexpr bool other_members = true;
  TUTTI_FIELDS(a, b)
  Tensor forward(const Tensor& x) { return b(piece ? piece(x, a.weight, a.bias) : tanh(a(x))); }
};

TUTTI_RANK_TEST(FsdpVersions, CompiledPieces) {
  Compiles net = seeded<Compiles>(), whole = net.clone();
  auto piece =
      compile([](const Tensor& x, const Tensor& weight, const Tensor& bias) { return tanh(linear(x, weight, bias)); });
  net.piece = piece;
  fully_shard(net.b);
  fully_shard(net);
  optim::SGD sgd(net.parameters(), {.lr = 0.1}), alone(whole.parameters(), {.lr = 0.1});
  for (uint64_t step = 0; step < 4; ++step) {
    Tensor x = numbers({2 * world_size(), 6}, step);
    sgd.zero_grad();
    alone.zero_grad();
    loss_of(net(mine(x, 2)), mine(x, 2)).backward();
    loss_of(whole(x), x).backward();
    expect_full_gradients(net, whole);
    sgd.step();
    alone.step();
  }
  EXPECT_EQ(piece.stats().traces, 1);

  // A whole unit cannot be part of a compiled function.
  auto all = compile([&](const Tensor& x) { return net(x); });
  Tensor x = numbers({2, 6}, 1);
  std::string text = message_of<TraceError>([&] { all(x); });
  EXPECT_NE(text.find("fully_shard"), std::string::npos) << text;
  expect_close(net(x), whole(x), "after that");
}

}  // namespace
}  // namespace tutti
