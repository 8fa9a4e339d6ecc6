// What fully_shard promises beside numbers of whole models: what is visible when, and what may go wrong.
#include "tests/parallel/fsdp_support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::full_state_dict;
using parallel::fully_shard;
using parallel::FullyShardOptions;

struct Fsdp : QuickTest<1, 2, 3> {};

TUTTI_RANK_TEST(Fsdp, ParametersAreParts) {
  Mlp net = seeded<Mlp>();
  int64_t total = net.parameter_count();
  Tensor before = net.first.weight;
  std::vector<std::string> names;
  for (auto& [name, p] : net.named_parameters()) names.push_back(name);
  shard(net);
  EXPECT_TRUE(before.is_same(net.first.weight)) << "who held the parameter holds its part";
  size_t i = 0;
  for (auto& [name, p] : net.named_parameters()) {
    EXPECT_EQ(name, names[i++]);
    EXPECT_EQ(p.dim(), 1);
    EXPECT_TRUE(p.requires_grad() && p.is_leaf());
  }
  Tensor count = tensor({net.parameter_count()}, {i64});
  if (world_size() > 1) {
    EXPECT_LT(net.parameter_count(), total);
  }
  all_reduce(count);
  EXPECT_EQ(count.item<int64_t>(), total);
  expect_full_values(net, seeded<Mlp>(), 0);
}

struct Watch : nn::Module<Watch> {
  nn::Linear inner{4, 4};
  nn::Buffer seen = zeros({}, i64);
  TUTTI_FIELDS(inner, seen)
  Tensor forward(const Tensor& x) {
    seen = nn::Buffer(tensor({inner.weight.dim() * 1000 + static_cast<int64_t>(inner.weight.storage_bytes())}, {i64}));
    return inner(x);
  }
};
struct Two : nn::Module<Two> {
  Watch a, b;
  Tensor kept;
  static constexpr bool other_members = true;
  TUTTI_FIELDS(a, b)
  Tensor forward(const Tensor& x) {
    Tensor y = a(x);
    kept = a.inner.weight;
    return b(y);
  }
};
TUTTI_RANK_TEST(Fsdp, WholeOnlyWhileUsed) {
  Two net = seeded<Two>();
  Tensor whole;
  net.a.inner.register_forward_hook(
      [&](nn::ModuleBase& m, const TensorList&, TensorList&) { whole = dynamic_cast<nn::Linear&>(m).weight; });
  fully_shard(net.a, {.buffers = parallel::BufferPolicy::none});
  fully_shard(net.b, {.buffers = parallel::BufferPolicy::none});
  fully_shard(net, {.buffers = parallel::BufferPolicy::none});
  Tensor y = net(numbers({2, 4}, 1)).sum();
  EXPECT_GT(net.a.seen.item<int64_t>(), 2000) << "two dims, with memory";
  EXPECT_EQ(net.kept.dim(), 1) << "a's forward is over";
  ASSERT_EQ(whole.sizes(), Shape({4, 4}));
  EXPECT_EQ(whole.storage_bytes(), 0u) << "freed until backward";
  y.backward();
  EXPECT_EQ(whole.storage_bytes(), 0u);
  EXPECT_FALSE(whole.grad().defined());
  EXPECT_EQ(net.a.inner.weight.dim(), 1);
  EXPECT_TRUE(net.a.inner.weight.grad().defined());
}

TUTTI_RANK_TEST(Fsdp, OptimizerMadeBefore) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  optim::SGD sgd(net.parameters(), {.lr = 0.1}), alone(whole.parameters(), {.lr = 0.1});
  shard(net);
  Tensor x = numbers({2 * world_size(), 6}, 3);
  loss_of(net(mine(x, 2)), mine(x, 2)).backward();
  loss_of(whole(x), x).backward();
  expect_full_gradients(net, whole);
  sgd.step();
  alone.step();
  expect_full_values(net, whole);
}

TUTTI_RANK_TEST(Fsdp, Accumulates) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  for (uint64_t i = 0; i < 5; ++i) {
    Tensor x = numbers({2 * world_size(), 6}, i);
    loss_of(whole(x), x).backward();
    // Averaged each time, or together: sums are the same.
    std::optional<parallel::ShardNoSync> guard;
    if (i == 1 || i == 2 || i == 3) guard.emplace(parallel::no_sync(net));
    loss_of(net(mine(x, 2)), mine(x, 2)).backward();
  }
  expect_full_gradients(net, whole);
}

TUTTI_RANK_TEST(Fsdp, ClearedBeforeItWasAveraged) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  Tensor x = numbers({2 * world_size(), 6}, 1);
  {
    auto guard = parallel::no_sync(net);
    loss_of(net(mine(x, 2)), mine(x, 2)).backward();
  }
  net.zero_grad();
  loss_of(net(mine(x, 2)), mine(x, 2)).backward();
  loss_of(whole(x), x).backward();
  expect_full_gradients(net, whole);
}

TUTTI_RANK_TEST(Fsdp, ForwardsBeforeBackward) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  Tensor x = numbers({2 * world_size(), 6}, 1), z = numbers({2 * world_size(), 6}, 2), kept;
  for (int step = 0; step < 3; ++step) {  // a graph that is alive while the next is made
    Tensor a = loss_of(net(mine(x, 2)), mine(x, 2)), b = loss_of(net(mine(z, 2)), mine(z, 2));
    if (step == 0) b.backward();
    if (step == 0) a.backward();
    if (step == 1) (a + b * 2).backward();
    if (step == 2) b.backward();  // the other graph is thrown away
    Tensor c = loss_of(whole(x), x), d = loss_of(whole(z), z);
    (step == 0 ? c + d : step == 1 ? c + d * 2 : d).backward();
    kept = a;
  }
  expect_full_gradients(net, whole);
}

// A unit that is used twice, and a layer that is used in two branches.
// Three steps of a sharded net on each rank's rows, and of the whole one on all of them.
template <class Net>
void expect_same_training(Net& net, Net& whole) {
  optim::SGD sgd(net.parameters(), {.lr = 0.1}), alone(whole.parameters(), {.lr = 0.1});
  for (uint64_t step = 0; step < 3; ++step) {
    Tensor x = numbers({2 * world_size(), 6}, step);
    net.zero_grad();
    whole.zero_grad();
    loss_of(net(mine(x, 2)), mine(x, 2)).backward();
    loss_of(whole(x), x).backward();
    expect_full_gradients(net, whole);
    sgd.step();
    alone.step();
  }
}

struct Twice : nn::Module<Twice> {
  nn::Linear in{6, 8}, body{8, 8}, out{8, 3};
  TUTTI_FIELDS(in, body, out)
  Tensor forward(const Tensor& x) {
    Tensor h = in(x);
    h = tanh(body(tanh(body(h))));
    return out(body(h) + body(h * 2));
  }
};
TUTTI_RANK_TEST(Fsdp, UnitsUsedSeveralTimes) {
  Twice net = seeded<Twice>(), whole = net.clone();
  fully_shard(net.body);
  fully_shard(net);
  expect_same_training(net, whole);
}

TUTTI_RANK_TEST(Fsdp, Checkpointed) {
  struct Net : nn::Module<Net> {
    Mlp a, b;
    nn::Linear between{3, 6};
    bool again = false;
    TUTTI_FIELDS(a, b, between, again)
    Tensor forward(const Tensor& x) {
      if (!again) return b(between(a(x)));
      Tensor h = checkpoint([&](const Tensor& t) { return between(a(t)); }, x);
      return checkpoint([&](const Tensor& t) { return b(t); }, h);
    }
  };
  Net net = seeded<Net>(), whole = net.clone();
  net.again = true;
  fully_shard(net.a.second);
  fully_shard(net.a);
  fully_shard(net.b);
  fully_shard(net);
  expect_same_training(net, whole);
}

TUTTI_RANK_TEST(Fsdp, FrozenAndUnused) {
  struct Net : nn::Module<Net> {
    nn::Linear base{6, 8}, out{8, 3}, often{8, 3}, never{2, 2};
    nn::ReLU nothing;
    TUTTI_FIELDS(base, out, often, never, nothing)
    Tensor forward(const Tensor& x, bool more) {
      Tensor h = nothing(base(x));
      return more ? out(h) + often(h) : out(h);
    }
  };
  Net net = seeded<Net>(), whole = net.clone();
  for (Net* m : {&net, &whole}) m->base.weight.requires_grad_(false);
  fully_shard(net.nothing);
  fully_shard(net.base);
  fully_shard(net);
  bool last = rank() == world_size() - 1;
  Tensor x = numbers({2 * world_size(), 6}, 1);
  loss_of(net(mine(x, 2), last), mine(x, 2)).backward();
  for (int r = 0; r < world_size(); ++r) {
    Tensor part = x.narrow(0, 2 * r, 2);
    (loss_of(whole(part, r == world_size() - 1), part) / world_size()).backward();
  }
  EXPECT_FALSE(net.base.weight.grad().defined());
  EXPECT_FALSE(net.never.weight.grad().defined()) << "nobody used it";
  ASSERT_TRUE(net.often.weight.grad().defined()) << "the last rank used it";
  for (auto* m : {&net, &whole}) {
    m->base.weight.set_grad(zeros_like(m->base.weight.detach()));
    for (Tensor p : m->never.parameters()) p.set_grad(zeros_like(p.detach()));
  }
  expect_full_gradients(net, whole);
  // Thawed, it takes part.
  for (Net* m : {&net, &whole}) {
    m->zero_grad();
    m->base.weight.requires_grad_(true);
    for (Tensor p : m->never.parameters()) p.set_grad(zeros_like(p.detach()));
  }
  loss_of(net(mine(x, 2), true), mine(x, 2)).backward();
  loss_of(whole(x, true), x).backward();
  expect_full_gradients(net, whole);
}

TUTTI_RANK_TEST(Fsdp, WithoutGradients) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  Tensor x = numbers({2, 6}, 1);
  {
    NoGrad guard;
    expect_close(net(x), whole(x), "no_grad");
  }
  {
    InferenceMode guard;
    expect_close(net(x), whole(x), "inference");
  }
  net.eval();
  expect_close(net(x), whole(x), "eval");  // recorded, and thrown away
  expect_close(net(x), whole(x), "again");
  expect_close(net.second(numbers({2, 8}, 2)), whole.second(numbers({2, 8}, 2)), "a unit by itself");
  Tensor y = x.clone().requires_grad_(), z = x.clone().requires_grad_();
  expect_close(grad(net(y).sum(), y), grad(whole(z).sum(), z), "of the input");
  net(y).sum().backward();
  whole(z).sum().backward();
  expect_close(y.grad(), z.grad(), "by backward");
}

TUTTI_RANK_TEST(Fsdp, ForwardThrows) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  auto hook =
      net.second.register_forward_pre_hook([](nn::ModuleBase&, TensorList&) { throw ValueError("not now", ""); });
  Tensor x = numbers({2 * world_size(), 6}, 1);
  EXPECT_THROW(net(mine(x, 2)), ValueError);
  for (const Tensor& p : net.parameters()) EXPECT_EQ(p.dim(), 1);
  EXPECT_THROW(net(numbers({2, 5}, 1)), ShapeError);
  for (const Tensor& p : net.parameters()) EXPECT_EQ(p.dim(), 1);
  hook.remove();
  loss_of(net(mine(x, 2)), mine(x, 2)).backward();
  loss_of(whole(x), x).backward();
  expect_full_gradients(net, whole);
}

TUTTI_RANK_TEST(Fsdp, BackwardThrows) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  Tensor x = numbers({2 * world_size(), 6}, 1);
  {
    Tensor h = mine(x, 2).clone().requires_grad_();
    h.register_hook([](const Tensor&) -> Tensor { throw ValueError("not now", ""); });
    Tensor y = h * 1;
    y.register_hook([](const Tensor&) -> Tensor { throw ValueError("not now", ""); });
    EXPECT_THROW(net(y).sum().backward(), ValueError);
  }
  net.zero_grad();
  loss_of(net(mine(x, 2)), mine(x, 2)).backward();
  loss_of(whole(x), x).backward();
  expect_full_gradients(net, whole);
}

TUTTI_RANK_TEST(Fsdp, CopiesAndMoves) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  Mlp copy = net, moved = std::move(copy);
  Tensor x = numbers({2 * world_size(), 6}, 1);
  loss_of(moved(mine(x, 2)), mine(x, 2)).backward();
  loss_of(whole(x), x).backward();
  expect_full_gradients(net, whole);
  Mlp clone = net.clone();
  std::string text = message_of<ValueError>([&] { clone(x); });
  EXPECT_NE(text.find("clone"), std::string::npos) << text;
  expect_close(net(x), whole(x), "after that");
}

TUTTI_RANK_TEST(Fsdp, SharedParameters) {
  struct Tied : nn::Module<Tied> {
    nn::Embedding tokens{9, 4};
    nn::Linear body{4, 4}, head{4, 9};
    TUTTI_FIELDS(tokens, body, head)
    Tensor forward(const Tensor& x) { return head(tanh(body(tokens(x)))); }
  };
  auto make = [] {
    Tied net = seeded<Tied>();
    net.head.weight = net.tokens.weight;
    return net;
  };
  Tied net = make(), whole = net.clone(), wrong = make(), sibling = make();
  fully_shard(net.body);
  fully_shard(net);  // has both
  manual_seed(4);
  Tensor x = randint(0, 9, {2 * world_size(), 5});
  cross_entropy(net(mine(x, 2)).flatten(0, 1), mine(x, 2).flatten()).backward();
  cross_entropy(whole(x).flatten(0, 1), x.flatten()).backward();
  expect_full_gradients(net, whole);
  fully_shard(wrong.tokens);
  std::string text = message_of<ValueError>([&] { fully_shard(wrong); });
  EXPECT_NE(text.find("shared"), std::string::npos) << text;
  fully_shard(sibling.head);
  EXPECT_THROW(fully_shard(sibling.tokens), ValueError);
}

TUTTI_RANK_TEST(Fsdp, WrongUse) {
  Mlp net = seeded<Mlp>();
  shard(net);
  Tensor x = numbers({2, 6}, 1);
  {
    Tensor y = net(x).sum();
    NoGrad guard;
    for (Tensor p : net.parameters()) p.add_(1);
    EXPECT_THROW(y.backward(), VersionError);
  }
  {
    Tensor y = net(x).sum();
    EXPECT_THROW(y.backward({.create_graph = true}), ValueError);
  }
  EXPECT_THROW(net.load_state_dict(seeded<Mlp>().state_dict()), ValueError);
  EXPECT_THROW(net.last(numbers({2, 8}, 1)), ValueError) << "part of the unit that is the whole net";
  EXPECT_THROW(std::ignore = parallel::no_sync(seeded<Mlp>()), ValueError);
  EXPECT_THROW(fully_shard(net, {.prefetch = -1}), ValueError);
  EXPECT_THROW(fully_shard(net, {.mixed = {.parameters = i64}}), DTypeError);
  net.to(f32);
  std::string text = message_of<ValueError>([&] { net(x.to(f32)); });
  EXPECT_NE(text.find("before they are sharded"), std::string::npos) << text;
}

TUTTI_RANK_TEST(Fsdp, Norms) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  Tensor x = numbers({2 * world_size(), 6}, 1);
  loss_of(net(mine(x, 2)), mine(x, 2)).backward();
  loss_of(whole(x), x).backward();
  for (double p : {1.0, 2.0, 3.5, std::numeric_limits<double>::infinity()})
    EXPECT_NEAR(parallel::grad_norm(net.parameters(), p), optim::grad_norm(whole.parameters(), p), 1e-12) << p;
  Tensor other = ones({3}, {f64}).requires_grad_();  // of every rank, and counted once
  other.set_grad(full({3}, 2.0, {f64}));
  TensorList all = net.parameters(), wanted = whole.parameters();
  all.push_back(other);
  Tensor twin = other.detach().clone().requires_grad_();
  twin.set_grad(other.grad().clone());
  wanted.push_back(twin);
  EXPECT_NEAR(parallel::clip_grad_norm_(all, 0.5), optim::clip_grad_norm_(wanted, 0.5), 1e-12);
  expect_full_gradients(net, whole);
  expect_close(other.grad(), twin.grad(), "other");
  if (net.last.bias.numel()) net.last.bias.grad().fill_(NAN);
  EXPECT_TRUE(std::isnan(parallel::grad_norm(net.parameters())));
  EXPECT_THROW(parallel::clip_grad_norm_(net.parameters(), 1, {.error_if_nonfinite = true}), ValueError);
}

// The norms of optim would be those of each rank's parts.
TUTTI_RANK_TEST(Fsdp, NormsOfPartsAreRefused) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  shard(net);
  Tensor x = numbers({2, 6}, 1);
  for (Mlp* m : {&net, &whole}) loss_of((*m)(x), x).backward();
  std::string text = message_of<ValueError>([&] { optim::clip_grad_norm_(net.parameters(), 1e-3); });
  EXPECT_NE(text.find("parallel::clip_grad_norm_"), std::string::npos) << text;
  text = message_of<ValueError>([&] { optim::grad_norm(net.parameters()); });
  EXPECT_NE(text.find("parallel::grad_norm"), std::string::npos) << text;
  expect_full_gradients(net, whole);
  EXPECT_NO_THROW(optim::clip_grad_norm_(whole.parameters(), 1));
  EXPECT_NO_THROW(optim::clip_grad_value_(net.parameters(), 1));
}

TUTTI_RANK_TEST(Fsdp, OverflowReachesAll) {
  Mlp net = seeded<Mlp>();
  shard(net);
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  amp::GradScaler scaler({.scale = 4});
  Tensor x = numbers({2, 6}, 1);
  for (bool overflow : {false, true, false}) {
    sgd.zero_grad();
    scaler.scale(loss_of(net(x), x)).backward();
    // On the rank that has the first weight.
    if (overflow && rank() == 0) net.first.weight.grad()[0].fill_(INFINITY);
    parallel::spread_overflow(net.parameters());
    EXPECT_EQ(scaler.step(sgd), !overflow);
    scaler.update();
  }
  EXPECT_EQ(scaler.scale(), 2) << "on every rank";
}

// ---- Options

// What one process does by hand: parameters in bf16 for a step in bf16, and f32 ones that are stepped.
TUTTI_RANK_TEST(Fsdp, MixedPrecision) {
  set_num_threads(1);
  Mlp net = seeded<Mlp>();
  net.to(f32);
  Mlp whole = net.clone(), half = net.clone();
  half.to(bf16);
  DType seen = f64;
  net.second.register_forward_hook(
      [&](nn::ModuleBase& m, const TensorList&, TensorList&) { seen = dynamic_cast<nn::Linear&>(m).weight.dtype(); });
  shard(net, {.mixed = {.parameters = bf16, .gradients = f32}});
  Tensor x = numbers({2 * world_size(), 6}, 1).to(f32);
  Tensor y = net(mine(x, 2));
  EXPECT_EQ(y.dtype(), bf16);
  loss_of(y, mine(x, 2)).backward();
  EXPECT_EQ(seen, bf16);
  for (const Tensor& p : net.parameters()) {
    EXPECT_EQ(p.dtype(), f32);
    EXPECT_EQ(p.grad().dtype(), f32);
  }
  for (int r = 0; r < world_size(); ++r) {
    half.zero_grad();
    Tensor part = x.narrow(0, 2 * r, 2);
    loss_of(half(part.to(bf16)), part).backward();
    auto to = whole.parameters(), from = half.parameters();
    for (size_t i = 0; i < to.size(); ++i) {
      Tensor g = from[i].grad().to(f32) / world_size();
      to[i].set_grad(to[i].grad().defined() ? to[i].grad() + g : g);
    }
  }
  expect_full_gradients(net, whole, 1e-6);
}

struct FsdpHybrid : QuickTest<4> {};
TUTTI_RANK_TEST(FsdpHybrid, EqualsOneProcess) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  FullyShardOptions options{.group = world().split(rank() / 2), .replicas = world().split(rank() % 2)};
  if (rank() > 0)
    for (Tensor p : net.parameters()) p.detach().zero_();  // rank 0's count
  shard(net, options);
  Tensor count = tensor({net.parameter_count()}, {i64});
  all_reduce(count);
  EXPECT_EQ(count.item<int64_t>(), 2 * whole.parameter_count());
  optim::Adam adam(net.parameters(), {.lr = 0.05}), alone(whole.parameters(), {.lr = 0.05});
  for (uint64_t step = 0; step < 3; ++step) {
    Tensor x = numbers({8, 6}, step);
    adam.zero_grad();
    alone.zero_grad();
    loss_of(net(mine(x, 2)), mine(x, 2)).backward();
    loss_of(whole(x), x).backward();
    EXPECT_NEAR(parallel::clip_grad_norm_(net.parameters(), 0.1), optim::clip_grad_norm_(whole.parameters(), 0.1),
                1e-12);
    adam.step();
    alone.step();
  }
  expect_full_values(net, whole);
}

// Two models together, one cut over all ranks and one over pairs.
TUTTI_RANK_TEST(FsdpHybrid, NormsOverSeveralGroups) {
  Mlp everywhere = seeded<Mlp>(), whole = everywhere.clone();
  nn::Linear pairs = seeded<nn::Linear>(6, 3), whole_pairs = pairs.clone();
  shard(everywhere);
  fully_shard(pairs, {.group = world().split(rank() / 2), .replicas = world().split(rank() % 2)});
  Tensor x = numbers({8, 6}, 1);
  auto joined = [](const nn::ModuleBase& a, const nn::ModuleBase& b) {
    TensorList all = a.parameters();
    for (const Tensor& p : b.parameters()) all.push_back(p);
    return all;
  };
  auto backward = [&] {
    for (nn::ModuleBase* m : std::initializer_list<nn::ModuleBase*>{&everywhere, &whole, &pairs, &whole_pairs})
      m->zero_grad();
    loss_of(everywhere(mine(x, 2)), mine(x, 2)).backward();
    pairs(mine(x, 2)).pow(2).mean().backward();
    loss_of(whole(x), x).backward();
    whole_pairs(x).pow(2).mean().backward();
  };
  for (bool turned : {false, true}) {
    backward();
    TensorList found = turned ? joined(pairs, everywhere) : joined(everywhere, pairs);
    TensorList wanted = turned ? joined(whole_pairs, whole) : joined(whole, whole_pairs);
    for (double p : {2.0, std::numeric_limits<double>::infinity()})
      EXPECT_NEAR(parallel::grad_norm(found, p), optim::grad_norm(wanted, p), 1e-12) << p;
    EXPECT_NEAR(parallel::clip_grad_norm_(found, 0.1), optim::clip_grad_norm_(wanted, 0.1), 1e-12);
    expect_full_gradients(everywhere, whole);
    expect_full_gradients(pairs, whole_pairs);
    backward();
    if (rank() == 0) everywhere.first.weight.grad()[0].fill_(INFINITY);
    parallel::spread_overflow(found);
    TensorList numbers;
    for (const Tensor& p : found)
      if (p.numel()) numbers.push_back(p.grad());
    ASSERT_FALSE(numbers.empty());
    for (const Tensor& g : numbers) EXPECT_FALSE(isfinite(g).any().item<bool>()) << "on every rank";
  }
}

// Ranks with other numbers of rows, cut over all ranks or over pairs.
TUTTI_RANK_TEST(FsdpHybrid, AveragesBySamples) {
  for (bool hybrid : {false, true}) {
    Mlp net = seeded<Mlp>(), whole = net.clone();
    FullyShardOptions options{.average = parallel::Average::samples};
    if (hybrid) options.group = world().split(rank() / 2), options.replicas = world().split(rank() % 2);
    shard(net, options);
    Tensor x = numbers({20, 6}, 1);
    int64_t first = rank() * (rank() + 1), rows = 2 * (rank() + 1);  // 2, 4, 6 and 8 of them
    for (int64_t half = 0; half < 2; ++half) {
      std::optional<parallel::ShardNoSync> guard;
      if (half == 0) guard.emplace(parallel::no_sync(net));
      Tensor part = x.narrow(0, first + half * rows / 2, rows / 2);
      parallel::set_samples(net, static_cast<double>(rows) / 2);
      (loss_of(net(part), part) / 2).backward();
    }
    loss_of(whole(x), x).backward();
    expect_full_gradients(net, whole);
    EXPECT_THROW(net(x).sum().backward(), ValueError) << "of how many samples?";
    EXPECT_THROW(parallel::set_samples(net, -1), ValueError);
  }
}

// Batch norms see their own rank's rows: what DistributedDataParallel makes of that, with its buffers.
struct Normed : nn::Module<Normed> {
  nn::Conv2d conv{1, 4, 3, {.padding = 1}};
  nn::BatchNorm2d norm{4};
  nn::Linear out{4 * 16, 3};
  TUTTI_FIELDS(conv, norm, out)
  Tensor forward(const Tensor& x) { return out(relu(norm(conv(x))).flatten(1)); }
};
TUTTI_RANK_TEST(Fsdp, BatchNormAsInDdp) {
  for (auto policy :
       {parallel::BufferPolicy::broadcast, parallel::BufferPolicy::average, parallel::BufferPolicy::none}) {
    Normed net = seeded<Normed>(), other = net.clone();
    net.conv.to(MemoryFormat::channels_last);
    fully_shard(net.conv);
    fully_shard(net, {.buffers = policy});
    DistributedDataParallel ddp(other, {.buffers = policy});
    optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9}),
        alone(ddp.parameters(), {.lr = 0.1, .momentum = 0.9});
    for (uint64_t step = 0; step < 3; ++step) {
      Tensor x = mine(numbers({3 * world_size(), 1, 4, 4}, step), 3);
      sgd.zero_grad();
      alone.zero_grad();
      net(x).pow(2).mean().backward();
      ddp(x).pow(2).mean().backward();
      sgd.step();
      alone.step();
    }
    expect_full_values(net, other);
    expect_close(net.norm.running_mean, other.norm.running_mean, "running_mean");
  }
}

// ---- Ranks that do not agree, or fail

struct FsdpFailure : QuickTest<2, 3> {};
TUTTI_RANK_TEST(FsdpFailure, RanksDisagree) {
  struct Net : nn::Module<Net> {
    nn::Linear fc;
    TUTTI_FIELDS(fc)
    explicit Net(int64_t n) : fc(n, 4) {}
    Tensor forward(const Tensor& x) { return fc(x); }
  };
  Net net(rank() == 1 ? 3 : 2);
  std::string text = message_of<MismatchError>([&] { fully_shard(net); });
  EXPECT_NE(text.find("fc.weight"), std::string::npos) << text;
  Net same(2);
  EXPECT_THROW(fully_shard(same, {.prefetch = rank()}), MismatchError);
}

TEST(FsdpFailures, OneRankThrows) {
  for (const auto& runner : harness::every_transport())
    for (int when : {0, 1, 2}) {  // before forward, between, after backward has begun
      SCOPED_TRACE(runner.name);
      auto body = [when] {
        Mlp net = seeded<Mlp>();
        shard(net);
        Tensor x = numbers({2, 6}, 1).requires_grad_();
        net(x).sum().backward();
        if (rank() == 1 && when == 0) throw ValueError("enough", "");
        Tensor y = net(x).sum();
        if (rank() == 1 && when == 1) throw ValueError("enough", "");
        if (rank() == 1)
          net.second.register_forward_hook(
              [](nn::ModuleBase&, const TensorList&, TensorList&) { throw ValueError("enough", ""); });
        y.backward();
        net(x).sum().backward();
      };
      std::string text = message_of<Error>([&] { runner.run(3, body, {.timeout = std::chrono::seconds(60)}); });
      EXPECT_NE(text.find("enough"), std::string::npos) << text;
    }
}

}  // namespace
}  // namespace tutti
