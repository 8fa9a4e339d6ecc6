// A wrapped module among other things: names, any type, optimizers, scalers, hooks, other sinks, buffers.
#include <map>

#include "tests/parallel/support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::BufferPolicy;
using testing::ElementsAre;
using testing::HasSubstr;

struct DdpModule : QuickTest<1, 2> {};

std::vector<std::string> names_of(const std::vector<std::pair<std::string, Tensor>>& list) {
  std::vector<std::string> names;
  for (auto& [name, t] : list) names.push_back(name);
  return names;
}

struct Outer : nn::Module<Outer> {
  nn::Linear before{6, 6};
  DistributedDataParallel<Mlp> inner;
  TUTTI_FIELDS(before, inner)
  explicit Outer(const Mlp& m) : inner(m) {}
  Tensor forward(const Tensor& x) { return inner(before(x)); }
};

TUTTI_RANK_TEST(DdpModule, NamesAreThoseOfTheModule) {
  Mlp net;
  DistributedDataParallel ddp(net);
  EXPECT_EQ(names_of(ddp.named_parameters()), names_of(net.named_parameters()));
  EXPECT_TRUE(ddp.state_dict().contains("first.weight"));
  Mlp other;
  ddp.load_state_dict(other.state_dict());
  EXPECT_TRUE(equal(net.first.weight, other.first.weight));
  EXPECT_TRUE(ddp.parameters()[0].is_same(net.first.weight));
  EXPECT_THAT(to_string(ddp), HasSubstr("DistributedDataParallel<"));
  ddp.eval();
  EXPECT_FALSE(ddp.module.is_training());
}

TUTTI_RANK_TEST(DdpModule, InsideOfAnotherModule) {
  Outer net(seeded<Mlp>());
  net.to(f64);
  EXPECT_THAT(names_of(net.named_parameters()),
              ElementsAre("before.weight", "before.bias", "inner.first.weight", "inner.first.bias",
                          "inner.second.weight", "inner.second.bias", "inner.last.weight", "inner.last.bias"));
  Tensor x = numbers({2, 6}, static_cast<uint64_t>(rank()));
  net(x).square().mean().backward();
  Tensor all = net.inner.module.first.weight.grad().clone(), own = net.before.weight.grad().clone();
  Tensor sum = all.clone(), spread = own.clone();
  all_reduce(sum, {.op = Reduce::average});
  all_reduce(spread, {.op = Reduce::max});
  expect_close(sum, all, "what is wrapped is averaged");
  if (world_size() > 1 && rank() == 0) {
    EXPECT_FALSE(equal(spread, own)) << "what is not is not";
  }
}

TUTTI_RANK_TEST(DdpModule, AnyModule) {
  nn::AnyModule any(seeded<Mlp>()), whole = any.clone();
  DistributedDataParallel ddp(any, {.bucket_bytes = 300});
  Tensor x = numbers({2 * world_size(), 6}, 1);
  for (int i = 0; i < 2; ++i) {
    ddp.zero_grad();
    whole.module().zero_grad();
    ddp(mine(x, 2)).square().mean().backward();
    whole(x).square().mean().backward();
    expect_same_gradients(ddp, whole.module());
  }
  nn::AnyModule held(ddp);
  held(mine(x, 2)).square().mean().backward();
  ddp.call<Tensor>(mine(x, 2));
}

// What the wrapper takes is what its module does: several arguments, and defaults for the last.
TUTTI_RANK_TEST(DdpModule, IsHeldAsAnyModuleWhateverItTakes) {
  manual_seed(1);
  nn::Bilinear pair(3, 3, 2);
  nn::GRU gru(3, 4);
  pair.to(f64);
  gru.to(f64);
  nn::Bilinear whole = pair.clone();
  nn::AnyModule two(DistributedDataParallel{pair}), with_default(DistributedDataParallel{gru});
  Tensor a = numbers({2 * world_size(), 3}, 1), b = numbers({2 * world_size(), 3}, 2), x = numbers({5, 2, 3}, 3);
  two(mine(a, 2), mine(b, 2)).square().mean().backward();
  whole(a, b).square().mean().backward();
  expect_same_gradients(two.module(), whole);
  Tensor hidden = numbers({1, 2, 4}, 4);
  EXPECT_TRUE(equal(with_default.call<RnnResult>(x).output, gru(x).output));
  EXPECT_TRUE(equal(with_default.call<RnnResult>(x, hidden).output, gru(x, hidden).output));
  EXPECT_THAT(message_of<ValueError>([&] { two(mine(a, 2)); }),
              HasSubstr("takes (Tensor, Tensor), but was called with (Tensor)"));
}

struct Several : nn::Module<Several> {
  nn::Linear a{2, 2}, b{2, 2};
  TUTTI_FIELDS(a, b)
  std::map<std::string, Tensor> forward(const std::pair<Tensor, Tensor>& in) {
    return {{"a", a(in.first)}, {"b", b(in.second)}, {"none", Tensor()}};
  }
};

TUTTI_RANK_TEST(DdpModule, AnyArgumentsAndResults) {
  DistributedDataParallel ddp(seeded<Several>());
  auto out = ddp(std::pair(numbers({1, 2}, 1), numbers({1, 2}, 2)));
  out["b"].sum().backward();
  EXPECT_THAT(ddp.unused_parameters().everywhere, ElementsAre("a.weight", "a.bias"));
}

TUTTI_RANK_TEST(DdpModule, ForwardHooksOfUsers) {
  DistributedDataParallel ddp(seeded<Mlp>());
  int before = 0, inside = 0;
  ddp.register_forward_pre_hook([&](nn::ModuleBase&, TensorList&) { ++before; });
  ddp.module.first.register_forward_hook([&](nn::ModuleBase&, const TensorList&, TensorList&) { ++inside; });
  ddp(numbers({2, 6}, 1)).sum().backward();
  EXPECT_EQ(before, 1);
  EXPECT_EQ(inside, 1);
}

TUTTI_RANK_TEST(DdpModule, ScalerAndClipping) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  net.to(f32);
  whole.to(f32);
  DistributedDataParallel ddp(net, {.hook = parallel::compress(f16)});
  optim::SGD sgd(ddp.parameters(), {.lr = 0.1}), alone(whole.parameters(), {.lr = 0.1});
  amp::GradScaler scaler({.scale = 1024});
  for (uint64_t step = 0; step < 4; ++step) {
    Tensor x = numbers({2 * world_size(), 6}, step).to(f32);
    // On one rank something overflows in the second step: nobody may take it.
    double factor = step == 1 && rank() == 0 ? 1e30 : 1;
    sgd.zero_grad();
    scaler.scale((ddp(mine(x, 2)) * factor).square().mean()).backward();
    scaler.unscale_(sgd);
    double norm = optim::clip_grad_norm_(ddp.parameters(), 0.05);
    EXPECT_EQ(scaler.step(sgd), step != 1);
    scaler.update();
    EXPECT_EQ(scaler.scale(), step == 0 ? 1024 : 512);
    ddp.check_equal();
    if (step == 1) continue;
    alone.zero_grad();
    whole(x).square().mean().backward();
    EXPECT_NEAR(optim::clip_grad_norm_(whole.parameters(), 0.05), norm, 2e-3 * norm);
    alone.step();
  }
  expect_same_values(net, whole, 1e-3);
}

TUTTI_RANK_TEST(DdpModule, AutocastInForward) {
  Mlp net = seeded<Mlp>();
  net.to(f32);
  DistributedDataParallel ddp(net);
  for (int i = 0; i < 2; ++i) {
    amp::Autocast cast(bf16);
    Tensor y = ddp(numbers({2, 6}, 1).to(f32));
    EXPECT_EQ(y.dtype(), bf16);
    y.to(f32).sum().backward();
  }
  EXPECT_EQ(net.first.weight.grad().dtype(), f32);
}

struct Mixed : nn::Module<Mixed> {
  nn::Linear a{4, 4}, b{4, 4}, c{4, 2};
  nn::Parameter turn{full({1}, 0.3)};
  TUTTI_FIELDS(a, b, c, turn)
  Tensor forward(const Tensor& x) { return c(b(a(x.to(f32)).to(f64)).to(f32)) * turn; }
};

TUTTI_RANK_TEST(DdpModule, DtypesAndDevicesHaveBucketsOfTheirOwn) {
  Mixed net = seeded<Mixed>(), whole = net.clone();
  for (Mixed* m : {&net, &whole}) {
    m->to(f32);
    m->b.to(f64);
  }
  DistributedDataParallel ddp(net);
  for (uint64_t step = 0; step < 3; ++step) {
    net.zero_grad();
    whole.zero_grad();
    Tensor x = numbers({2 * world_size(), 4}, step);
    ddp(mine(x, 2)).square().mean().backward();
    whole(x).square().mean().backward();
    expect_same_gradients(ddp, whole, 1e-5);
  }
  EXPECT_EQ(ddp.buckets().size(), 2u);
}

TUTTI_RANK_TEST(DdpModule, ChannelsLastKeepsItsStrides) {
  nn::Conv2d conv(3, 4, 3);
  conv.to(MemoryFormat::channels_last);
  Shape strides = conv.weight.strides();
  DistributedDataParallel ddp(conv);
  for (int i = 0; i < 3; ++i) {
    ddp.zero_grad();
    ddp(ones({1, 3, 5, 5})).sum().backward();
    EXPECT_EQ(conv.weight.grad().strides(), strides);
  }
}

TUTTI_RANK_TEST(DdpModule, SinksSideBySide) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net);
  Table tables[3];
  for (uint64_t round = 0; round < 2; ++round)
    for (uint64_t k = 0; k < 3; ++k) {
      SinkGuard guard(tables[k]);
      ddp(mine(numbers({2 * world_size(), 6}, 3 * round + k), 2)).square().mean().backward();
    }
  for (uint64_t k = 0; k < 3; ++k) {
    whole.zero_grad();
    for (uint64_t round = 0; round < 2; ++round)
      whole(numbers({2 * world_size(), 6}, 3 * round + k)).square().mean().backward();
    auto a = net.parameters(), b = whole.parameters();
    for (size_t i = 0; i < a.size(); ++i) expect_close(tables[k].gradient(a[i]), b[i].grad(), "gradient in a table");
  }
  EXPECT_FALSE(net.first.weight.grad().defined());
}

// Layers on several devices: the engine's workers bring gradients from several threads.
TEST(DdpDevices, SeveralInOneModule) {
  Devices devices(2);
  harness::run_ranks(2, [] {
    struct Split : nn::Module<Split> {
      std::vector<nn::Linear> layers;
      TUTTI_FIELDS(layers)
      Split() {
        for (int i = 0; i < 6; ++i) layers.emplace_back(4, 4);
      }
      Tensor forward(const Tensor& x) {
        TensorList parts;
        for (size_t i = 0; i < layers.size(); ++i) {
          Device device(DeviceKind::cpu, static_cast<int>(i % 2));
          parts.push_back(tanh(layers[i](x.to(device))).to("cpu:0"));
        }
        return stack(parts).sum({0});
      }
    };
    Split net = seeded<Split>(), whole = net.clone();
    for (Split* m : {&net, &whole})
      for (size_t i = 1; i < 6; i += 2) m->layers[i].to("cpu:1");
    DistributedDataParallel ddp(net, {.bucket_bytes = 200});
    for (uint64_t step = 0; step < 5; ++step) {
      net.zero_grad();
      whole.zero_grad();
      Tensor x = numbers({2 * world_size(), 4}, step);
      ddp(mine(x, 2)).square().mean().backward();
      whole(x).square().mean().backward();
      expect_same_gradients(ddp, whole);
    }
    EXPECT_EQ(net.layers[1].weight.grad().device(), Device("cpu:1"));
  });
}

// ---- Buffers

struct Counted : nn::Module<Counted> {
  nn::Linear fc{2, 2};
  nn::Buffer one{zeros({2})}, two{zeros({2})}, three{zeros({2})};
  nn::Buffer steps{full({}, 0, {.dtype = DType::i64})};
  TUTTI_FIELDS(fc, one, two, three, steps)
  Tensor forward(const Tensor& x) {
    NoGrad guard;
    for (Tensor b : {one, two, three}) b.add_(rank() + 1);
    steps.add_(rank() + 1);
    EnableGrad again;
    return fc(x);
  }
};

TUTTI_RANK_TEST(DdpModule, EachBufferHasItsPolicy) {
  Counted net;
  DistributedDataParallel ddp(net,
                              {.root = world_size() - 1,
                               .buffers = BufferPolicy::average,
                               .buffer_policy = {{"one", BufferPolicy::broadcast}, {"three", BufferPolicy::none}}});
  double n = world_size();
  for (int i = 0; i < 2; ++i) ddp(ones({1, 2})).sum().backward();
  EXPECT_EQ(net.one[0].item<double>(), 2 * n);
  EXPECT_EQ(net.two[0].item<double>(), n + 1);
  EXPECT_EQ(net.three[0].item<double>(), 2.0 * (rank() + 1));
  EXPECT_EQ(net.steps.item<int64_t>(), 2 * world_size());
  EXPECT_THAT(
      message_of<ValueError>([&] { DistributedDataParallel(net, {.buffer_policy = {{"four", BufferPolicy::none}}}); }),
      HasSubstr("buffer_policy names four, but the module has no such buffer"));
}

struct Replaced : nn::Module<Replaced> {
  nn::Linear fc{2, 2};
  nn::Buffer shared{zeros({2})}, own{zeros({2})}, again = shared;
  TUTTI_FIELDS(fc, shared, own, again)
  Tensor forward(const Tensor& x) {
    own = nn::Buffer(full({2}, rank() + 1.0));
    return fc(x);
  }
};
TUTTI_RANK_TEST(DdpModule, BuffersThatForwardReplaces) {
  Replaced net;
  DistributedDataParallel ddp(net);
  for (int i = 0; i < 2; ++i) {
    ddp(ones({1, 2})).sum().backward();
    EXPECT_EQ(ddp.module.own[0].item<double>(), 1);
  }
}

// ---- Communication hooks

TUTTI_RANK_TEST(DdpModule, HooksSeeBucketsInOrder) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  std::vector<int64_t> started, finished;
  auto hook = [&](parallel::GradientBucket& b) -> std::function<void()> {
    started.push_back(b.index);
    Work work = all_reduce_async(b.buffer, b.average);
    return [&, work]() mutable {
      finished.push_back(b.index);
      work.wait();
    };
  };
  DistributedDataParallel ddp(net, {.bucket_bytes = 300, .hook = hook});
  Tensor x = numbers({2 * world_size(), 6}, 1);
  for (int i = 0; i < 2; ++i) {
    net.zero_grad();
    started.clear();
    finished.clear();
    ddp(mine(x, 2)).square().mean().backward();
    EXPECT_EQ(started.size(), ddp.buckets().size());
    EXPECT_TRUE(std::is_sorted(started.begin(), started.end()));
    EXPECT_EQ(started, finished);
  }
  whole(x).square().mean().backward();
  expect_same_gradients(ddp, whole);
}

struct Complex : nn::Module<Complex> {
  nn::Parameter w{zeros({3, 3}, {DType::c64})};
  TUTTI_FIELDS(w)
  Tensor forward(const Tensor& x) { return matmul(x, w); }
};
TUTTI_RANK_TEST(DdpModule, CompressionOfComplexNumbers) {
  Complex net;
  DistributedDataParallel ddp(net, {.hook = parallel::compress(bf16)});
  for (int i = 0; i < 2; ++i) {
    net.zero_grad();
    Tensor y = ddp(full({1, 3}, rank() + 1.0, {.dtype = DType::c64}));
    (real(y) + imag(y) * 2).sum().backward();
    Tensor wanted = full({3, 3}, (world_size() + 1) / 2.0, {f32});
    EXPECT_TRUE(equal(real(net.w.grad()), wanted));
    EXPECT_TRUE(equal(imag(net.w.grad()), wanted * 2));
  }
}

// A hook that does nothing leaves every rank its own gradients: those that come too late for their buckets as well.
void see_late_gradients(bool used_at_first) {
  std::vector<std::string> seen;
  Several net = seeded<Several>();
  auto nothing = [&](parallel::GradientBucket& b) {
    for (const Tensor& p : b.parameters)
      for (auto& [name, q] : net.named_parameters())
        if (p.is_same(q)) seen.push_back(name);
    return parallel::Communication();
  };
  DistributedDataParallel ddp(net, {.hook = nothing});
  std::pair input(numbers({1, 2}, static_cast<uint64_t>(rank())), numbers({1, 2}, 7));
  for (int i = 0; i < 3; ++i) {
    auto out = ddp(input);
    (used_at_first && i == 0 ? out["a"].sum() + out["b"].sum() : out["b"].sum()).backward();
  }
  net.zero_grad();
  seen.clear();
  // Nobody expects those of a. Their bucket leaves without them, if they have ever been in one.
  Several alone = net.clone();
  auto out = ddp(input);
  (out["a"].square().sum() + out["b"].sum()).backward();
  auto own = alone(input);
  (own["a"].square().sum() + own["b"].sum()).backward();
  expect_same_gradients(ddp, alone);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), "a.weight"), used_at_first ? 2 : 1);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), "b.weight"), 1);
}
TUTTI_RANK_TEST(DdpModule, HooksSeeGradientsThatComeLate) { see_late_gradients(true); }
TUTTI_RANK_TEST(DdpModule, HooksSeeGradientsThatHaveNoPlace) { see_late_gradients(false); }

TUTTI_RANK_TEST(DdpModule, HooksMayCallTheWrapper) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  std::function<void()> look;
  auto hook = [&](parallel::GradientBucket& b) -> parallel::Communication {
    look();
    return {all_reduce_async(b.buffer, b.average), [&] { look(); }};
  };
  DistributedDataParallel ddp(net, {.bucket_bytes = 300, .average = parallel::Average::samples, .hook = hook});
  size_t most = 0;
  look = [&] {
    most = std::max(most, ddp.buckets().size());
    EXPECT_TRUE(ddp.unused_parameters().everywhere.empty());
    ddp.set_samples(1);  // of the next pass
  };
  Tensor x = numbers({2 * world_size(), 6}, 1);
  ddp.set_samples(1);
  for (int i = 0; i < 2; ++i) {
    net.zero_grad();
    ddp(mine(x, 2)).square().mean().backward();
  }
  whole(x).square().mean().backward();
  expect_same_gradients(ddp, whole);
  EXPECT_GE(most, 3u);
}

// More buckets than may be under way: they leave during backward if the hook says what it waits for.
TUTTI_RANK_TEST(DdpModule, BucketsOfAHookLeaveDuringBackward) {
  struct Chain : nn::Module<Chain> {
    std::vector<nn::Linear> layers;
    TUTTI_FIELDS(layers)
    Chain() {
      for (int i = 0; i < 30; ++i) layers.emplace_back(4, 4);
    }
    Tensor forward(const Tensor& x) {
      Tensor y = x;
      for (auto& layer : layers) y = tanh(layer(y));
      return y;
    }
  };
  size_t started = 0, at_the_end = 0;
  auto hook = [&](parallel::GradientBucket& b) -> parallel::Communication {
    ++started;
    Work work = all_reduce_async(b.buffer, b.average);
    work.wait();  // so that it is done, whoever is slow
    return work;
  };
  DistributedDataParallel ddp(seeded<Chain>(), {.bucket_bytes = 16, .hook = hook});
  for (int i = 0; i < 2; ++i) {
    started = 0;
    Tensor x = numbers({2, 4}, 1).requires_grad_();
    // What runs last in backward sees how many have left.
    Tensor y = x * 1.0;
    y.register_hook([&](const Tensor&) {
      at_the_end = started;
      return Tensor();
    });
    ddp(y).sum().backward();
  }
  EXPECT_EQ(started, 60u);
  EXPECT_GT(at_the_end, 50u);
}

TUTTI_RANK_TEST(DdpModule, CompressionRoundsOnce) {
  EXPECT_THAT(message_of<DTypeError>([] { parallel::compress(f64); }), HasSubstr("as bf16 or f16, not f64"));
  for (DType half : {bf16, f16}) {
    nn::Linear fc(1, 1, {.bias = false});
    DistributedDataParallel ddp(fc, {.hook = parallel::compress(half)});
    double mine = 1 + 1.0 / 3 + rank();
    ddp(full({1, 1}, mine, f32)).sum().backward();
    double sum = 0;
    for (int r = 0; r < world_size(); ++r) sum += full({}, 1 + 1.0 / 3 + r, f32).to(half).item<double>();
    double wanted = full({}, sum / world_size(), f32).to(half).item<double>();
    EXPECT_EQ(fc.weight.grad().item<double>(), wanted);
  }
}

struct DdpGroups : QuickTest<4> {};
TUTTI_RANK_TEST(DdpGroups, OfSomeRanks) {
  Group pair = world().split(rank() % 2);
  manual_seed(static_cast<uint64_t>(rank()));
  Mlp net;
  net.to(f64);
  DistributedDataParallel ddp(net, {.group = pair, .root = 1, .bucket_bytes = 300, .checksum_every = 1});
  Mlp whole = net.clone();
  auto batch = [](int r) { return numbers({2, 6}, static_cast<uint64_t>(r)); };
  for (int step = 0; step < 3; ++step) {
    net.zero_grad();
    whole.zero_grad();
    ddp(batch(rank())).square().mean().backward();
    for (int r : pair.ranks()) (whole(batch(r)).square().mean() / 2).backward();
    expect_same_gradients(ddp, whole);
  }
  // Those of the other pair began with other parameters.
  Tensor least = net.first.weight.detach().clone();
  all_reduce(least, {.op = Reduce::min});
  Tensor most = net.first.weight.detach().clone();
  all_reduce(most, {.op = Reduce::max});
  EXPECT_FALSE(equal(least, most));
}

TUTTI_RANK_TEST(DdpModule, LeavesParametersWithoutHooks) {
  Mlp net = seeded<Mlp>();
  {
    DistributedDataParallel ddp(net);
    ddp(numbers({2, 6}, 1)).sum().backward();
  }
  net.zero_grad();
  Tensor x = numbers({2, 6}, static_cast<uint64_t>(rank()));
  net(x).sum().backward();  // no collective: ranks need not agree
  Mlp other = net.clone();
  other(x).sum().backward();
  expect_same_gradients(net, other);
}

}  // namespace
}  // namespace tutti
