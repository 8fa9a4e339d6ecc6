// DistributedDataParallel against one process that has the batches of all ranks; which parameters are used, and how.
#include "tests/parallel/support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::BufferPolicy;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

struct Ddp : QuickTest<1, 2, 3> {};

Tensor squared_loss(const Tensor& y, const Tensor& target) { return mse_loss(y, target); }

TUTTI_RANK_TEST(Ddp, EqualsOneProcessWithAllBatches) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.bucket_bytes = 300});
  optim::Adam adam(ddp.parameters(), {.lr = 0.01}), alone(whole.parameters(), {.lr = 0.01});
  for (uint64_t step = 0; step < 4; ++step) {
    Tensor x = numbers({4 * world_size(), 6}, step), y = numbers({4 * world_size(), 3}, 100 + step);
    adam.zero_grad();
    alone.zero_grad();
    squared_loss(ddp(mine(x, 4)), mine(y, 4)).backward();
    squared_loss(whole(x), y).backward();
    expect_same_gradients(ddp, whole);
    adam.step();
    alone.step();
  }
  expect_same_values(net, whole);
  EXPECT_GE(ddp.buckets().size(), 3u);
  EXPECT_EQ(ddp.buckets()[0][0].substr(0, 5), "last.");  // backward begins there
  ddp.check_equal();
}

// Declared in another order than it is used.
struct Backwards : nn::Module<Backwards> {
  nn::Linear third{8, 3}, first{6, 8}, second{8, 8};
  TUTTI_FIELDS(third, first, second)
  Tensor forward(const Tensor& x) { return third(relu(second(relu(first(x))))); }
};
TUTTI_RANK_TEST(Ddp, BucketsFollowTheOrderOfBackward) {
  DistributedDataParallel ddp(Backwards{}, {.bucket_bytes = 1});
  for (int i = 0; i < 2; ++i) ddp(numbers({2, 6}, 1).to(DType::f32)).sum().backward();
  std::vector<std::string> layers;
  for (const auto& bucket : ddp.buckets())
    for (const std::string& name : bucket)
      if (layers.empty() || layers.back() != name.substr(0, name.find('.')))
        layers.push_back(name.substr(0, name.find('.')));
  EXPECT_EQ(layers, (std::vector<std::string>{"third", "second", "first"}));
}

TUTTI_RANK_TEST(Ddp, TellsHowLongItTook) {
  DistributedDataParallel ddp(seeded<Mlp>(), {.bucket_bytes = 300});
  EXPECT_EQ(ddp.communication_time().total, 0);
  for (int i = 0; i < 2; ++i) ddp(numbers({2, 6}, 1)).sum().backward();
  auto time = ddp.communication_time();
  EXPECT_GT(time.total, 0);
  EXPECT_GT(time.exposed, 0);
  EXPECT_LT(time.total + time.exposed, 60);
}
// With create_graph averages are made when backward is through: all of the time is exposed.
TUTTI_RANK_TEST(Ddp, TellsHowLongItTookWithGraphs) {
  Mlp net = seeded<Mlp>();
  DistributedDataParallel ddp(net);
  ddp(numbers({2, 6}, 1)).sum().backward({.create_graph = true});
  auto time = ddp.communication_time();
  EXPECT_GT(time.total, 0);
  EXPECT_EQ(time.total, time.exposed);
  net.zero_grad();
}

TUTTI_RANK_TEST(Ddp, GradientsAreViewsOfBuckets) {
  Mlp net = seeded<Mlp>();
  DistributedDataParallel ddp(net);
  for (uint64_t step = 0; step < 3; ++step) {
    net.zero_grad();
    ddp(numbers({2, 6}, step)).sum().backward();
    EXPECT_TRUE(net.first.weight.grad().shares_storage(net.last.bias.grad()));
    EXPECT_EQ(net.first.weight.grad().strides(), net.first.weight.strides());
  }
  Tensor before = net.first.weight.grad();
  ddp(numbers({2, 6}, 7)).sum().backward();  // adds
  EXPECT_TRUE(net.first.weight.grad().is_same(before));
}

TUTTI_RANK_TEST(Ddp, AddsToGradientsThatAreThere) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net);
  for (uint64_t step = 0; step < 3; ++step) {
    Tensor x = numbers({2 * world_size(), 6}, step);
    ddp(mine(x, 2)).square().mean().backward();
    whole(x).square().mean().backward();
    expect_same_gradients(ddp, whole);
  }
}

TUTTI_RANK_TEST(Ddp, BeginsWithTheRootsParameters) {
  manual_seed(static_cast<uint64_t>(rank()));
  Mlp net;
  Tensor own = net.first.weight.detach().clone();
  DistributedDataParallel ddp(net, {.root = world_size() - 1});
  if (rank() == world_size() - 1) {
    EXPECT_TRUE(equal(own, net.first.weight));
  } else {
    EXPECT_FALSE(equal(own, net.first.weight));
  }
  ddp.check_equal();
}

// ---- What is used

struct Choosy : nn::Module<Choosy> {
  std::vector<nn::Linear> layers;
  TUTTI_FIELDS(layers)
  Choosy() {
    for (int i = 0; i < 5; ++i) layers.emplace_back(4, 4);
  }
  Tensor forward(const Tensor& x, const std::vector<size_t>& which) {
    Tensor y = x;
    for (size_t i : which) y = tanh(layers[i](y));
    return y;
  }
};

// Layers that rank r uses in a step: none, the same one twice, all; another choice each time.
std::vector<size_t> chosen(size_t rank, uint64_t step) {
  std::vector<size_t> list;
  uint64_t random = (step * 7 + rank * 3 + 1) * 0x9E3779B97F4A7C15u;
  for (size_t i = 0; i < 5; ++i)
    for (uint64_t n = (random >> (8 * i)) % 3; n > 0; --n) list.push_back(i);
  return list;
}

TUTTI_RANK_TEST(Ddp, GraphsChangeEveryStepAndDifferBetweenRanks) {
  Choosy net = seeded<Choosy>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.bucket_bytes = 200});
  auto n = static_cast<size_t>(world_size());
  for (uint64_t step = 0; step < 12; ++step) {
    net.zero_grad();
    whole.zero_grad();
    Tensor x = numbers({2 * world_size(), 4}, step);
    x.requires_grad_();  // a rank that uses no layer runs backward all the same
    std::vector<bool> used(5, false);
    for (size_t r = 0; r < n; ++r) {
      for (size_t i : chosen(r, step)) used[i] = true;
      (whole(x.narrow(0, static_cast<int64_t>(2 * r), 2), chosen(r, step)).square().mean() / world_size()).backward();
    }
    ddp(mine(x, 2) * 1.0, chosen(static_cast<size_t>(rank()), step)).square().mean().backward();
    expect_same_gradients(ddp, whole);
    EXPECT_EQ(ddp.unused_parameters().everywhere.size(),
              2 * static_cast<size_t>(std::count(used.begin(), used.end(), false)));
  }
}

TUTTI_RANK_TEST(Ddp, NamesParametersThatAreNotUsed) {
  Choosy net = seeded<Choosy>();
  DistributedDataParallel ddp(net);
  for (int step = 0; step < 3; ++step) {
    net.zero_grad();
    ddp(numbers({2, 4}, 1), std::vector<size_t>{0, static_cast<size_t>(rank() == 0 ? 1 : 2)}).sum().backward();
    auto unused = ddp.unused_parameters();
    EXPECT_THAT(unused.here, testing::Contains(rank() == 0 ? "layers.2.weight" : "layers.1.weight"));
    EXPECT_EQ(unused.here.size(), 6u);
    EXPECT_THAT(unused.everywhere, testing::IsSupersetOf({"layers.3.weight", "layers.3.bias", "layers.4.bias"}));
    EXPECT_FALSE(net.layers[4].weight.grad().defined());
    EXPECT_TRUE(net.layers[1].weight.grad().defined());
  }
}

TUTTI_RANK_TEST(Ddp, GradientsOfUnusedParametersStay) {
  Choosy net = seeded<Choosy>();
  DistributedDataParallel ddp(net);
  Tensor kept = full({4, 4}, 3, {f64});
  for (int step = 0; step < 3; ++step) {
    net.layers[3].weight.set_grad(kept);
    ddp(numbers({2, 4}, 1), std::vector<size_t>{0}).sum().backward();
    EXPECT_TRUE(net.layers[3].weight.grad().is_same(kept));
    EXPECT_TRUE(equal(kept, full({4, 4}, 3, {f64})));
  }
}

// The gradient lies in a bucket, which is averaged with the others of it all the same.
TUTTI_RANK_TEST(Ddp, GradientsOfUnusedParametersStayInTheirBucketsToo) {
  for (bool hook : {false, true}) {
    Choosy net = seeded<Choosy>();
    parallel::DdpOptions options;
    if (hook) options.hook = parallel::compress(bf16);
    DistributedDataParallel ddp(net, options);
    ddp(numbers({2, 4}, 1), std::vector<size_t>{0, 3}).sum().backward();
    {
      NoGrad guard;
      net.layers[3].bias.grad().zero_().add_(1.0 / 3 + rank());  // not the same on all
    }
    Tensor kept = net.layers[3].bias.grad().clone();
    for (int step = 0; step < 2; ++step) {
      net.layers[0].zero_grad();
      ddp(numbers({2, 4}, 1), std::vector<size_t>{0}).sum().backward();
      EXPECT_TRUE(equal(net.layers[3].bias.grad(), kept));
      EXPECT_EQ(ddp.unused_parameters().everywhere.size(), 8u);
    }
  }
}

TUTTI_RANK_TEST(Ddp, CheckpointedActivationsAndSharedLayers) {
  Choosy net = seeded<Choosy>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.bucket_bytes = 200});
  // Layer 0 is inside of both pieces and outside of them: its gradient comes three times.
  auto run = [](auto& m, Choosy& inner, const Tensor& x, bool keep) {
    auto piece = [&inner](size_t i) {
      return [&inner, i](const Tensor& h) { return tanh(inner.layers[0](tanh(inner.layers[i](h)))); };
    };
    Tensor h = m(x, std::vector<size_t>{0});
    for (size_t i : {1, 2}) h = keep ? piece(i)(h) : checkpoint(piece(i), h);
    return h.square().mean();
  };
  for (uint64_t step = 0; step < 4; ++step) {
    net.zero_grad();
    whole.zero_grad();
    Tensor x = numbers({2 * world_size(), 4}, step);
    run(ddp, ddp.module, mine(x, 2), false).backward();
    run(whole, whole, x, true).backward();
    expect_same_gradients(ddp, whole);
  }
}

TUTTI_RANK_TEST(Ddp, SeveralForwardsAndSeveralBackwards) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.bucket_bytes = 300});
  for (uint64_t step = 0; step < 3; ++step) {
    net.zero_grad();
    whole.zero_grad();
    Tensor x = numbers({2 * world_size(), 6}, step), z = numbers({2 * world_size(), 6}, 50 + step);
    auto run = [](auto& m, const Tensor& a, const Tensor& b) {
      return (m(a) * m(b)).mean() + m(a + b).square().mean();
    };
    run(ddp, mine(x, 2), mine(z, 2)).backward();
    run(whole, x, z).backward();
    expect_same_gradients(ddp, whole);
    Tensor y = ddp(mine(x, 2)).mean(), w = whole(x).mean();
    for (bool again : {true, false}) {
      y.backward({.retain_graph = again});
      w.backward({.retain_graph = again});
      expect_same_gradients(ddp, whole);
    }
  }
}

TUTTI_RANK_TEST(Ddp, NoSyncAddsUpBeforeAveraging) {
  Choosy net = seeded<Choosy>(), whole = net.clone();
  DistributedDataParallel ddp(net);
  for (uint64_t step = 0; step < 4; ++step) {
    net.zero_grad();
    whole.zero_grad();
    for (uint64_t part = 0; part < 3; ++part) {
      Tensor x = numbers({2 * world_size(), 4}, 10 * step + part);
      std::vector<size_t> which{part, 3};  // layers 0 and 1 are used without averaging only
      auto run = [&] { ddp(mine(x, 2), which).square().mean().backward(); };
      if (part < 2) {
        auto guard = ddp.no_sync();
        run();
      } else {
        run();
      }
      whole(x, which).square().mean().backward();
    }
    expect_same_gradients(ddp, whole);
  }
}

TUTTI_RANK_TEST(Ddp, WhatIsThrownAwayAfterNoSyncIsForgotten) {
  Choosy net = seeded<Choosy>();
  DistributedDataParallel ddp(net);
  for (int step = 0; step < 2; ++step) {
    {
      auto guard = ddp.no_sync();
      ddp(numbers({2, 4}, 1), std::vector<size_t>{0, 1}).sum().backward();
    }
    net.zero_grad();
    ddp(numbers({2, 4}, 1), std::vector<size_t>{0}).sum().backward();
    EXPECT_FALSE(net.layers[1].bias.grad().defined());
    EXPECT_EQ(ddp.unused_parameters().everywhere.size(), 8u);
  }
}

// Two wrapped modules, which ranks run in different orders.
TUTTI_RANK_TEST(Ddp, TwoModulesInAnyOrder) {
  Choosy one = seeded<Choosy>(), two = seeded<Choosy>(), first = one.clone(), second = two.clone();
  DistributedDataParallel a(one, {.bucket_bytes = 100}), b(two, {.bucket_bytes = 100});
  auto run = [](auto& f, auto& g, const Tensor& x, int who) {
    std::vector<size_t> which{0, 1, 2, 3};
    return (who % 2 == 0 ? f(g(x, which), which) : g(f(x, which), which)).square().mean();
  };
  for (uint64_t step = 0; step < 3; ++step) {
    for (nn::ModuleBase* m : std::initializer_list<nn::ModuleBase*>{&one, &two, &first, &second}) m->zero_grad();
    Tensor x = numbers({2 * world_size(), 4}, step);
    run(a, b, mine(x, 2), rank()).backward();
    for (int r = 0; r < world_size(); ++r) (run(first, second, x.narrow(0, 2 * r, 2), r) / world_size()).backward();
    expect_same_gradients(a, first);
    expect_same_gradients(b, second);
  }
}

// More buckets than transports hold at a time, on ranks whose graphs differ, while batch norms in between wait for each
// other: nobody may wait for a bucket in the middle of backward.
struct Deep : nn::Module<Deep> {
  std::vector<nn::Linear> layers, extra;
  std::vector<parallel::SyncBatchNorm> norms;
  TUTTI_FIELDS(layers, extra, norms)
  Deep() {
    for (int i = 0; i < 24; ++i) {
      layers.emplace_back(4, 4);
      extra.emplace_back(4, 4);
      norms.emplace_back(4);
    }
  }
  Tensor forward(const Tensor& x, uint64_t choice) {
    Tensor y = x;
    for (size_t i = 0; i < layers.size(); ++i) {
      y = norms[i](layers[i](y));
      if (choice >> i & 1) y = y + tanh(extra[i](y));
    }
    return y;
  }
};

TUTTI_RANK_TEST(Ddp, ManyBucketsAndOtherCollectivesInBetween) {
  Deep net = seeded<Deep>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.bucket_bytes = 16});
  auto choice = [](uint64_t step, int r) { return (step * 3 + static_cast<uint64_t>(r) + 1) * 0x9E3779B97F4A7C15u; };
  for (uint64_t step = 0; step < 6; ++step) {
    net.zero_grad();
    whole.zero_grad();
    Tensor x = numbers({3 * world_size(), 4}, step);
    ddp(mine(x, 3), choice(step, rank())).square().mean().backward();
    // One process: the norms see all rows, and each rank's rows go their own ways in between.
    Tensor y = x;
    for (size_t i = 0; i < whole.layers.size(); ++i) {
      Tensor h = whole.layers[i](y), away = h - h.mean(0);
      y = away / sqrt(away.square().mean(0) + whole.norms[i].options.eps) * whole.norms[i].weight + whole.norms[i].bias;
      TensorList parts;
      for (int r = 0; r < world_size(); ++r) {
        Tensor part = y.narrow(0, 3 * r, 3);
        parts.push_back(choice(step, r) >> i & 1 ? part + tanh(whole.extra[i](part)) : part);
      }
      y = cat(parts);
    }
    y.square().mean().backward();
    expect_same_gradients(ddp, whole, 1e-9);
  }
  EXPECT_GT(ddp.buckets().size(), 100u);
}

// ---- Gradients of gradients

TUTTI_RANK_TEST(Ddp, GradientPenalty) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net);
  for (uint64_t step = 0; step < 3; ++step) {
    net.zero_grad();
    whole.zero_grad();
    Tensor x = numbers({2 * world_size(), 6}, step);
    auto run = [](auto& m, const Tensor& input) {
      Tensor in = input.detach().clone().requires_grad_();
      Tensor y = m(in);
      Tensor g = grad(y.sum(), in, {.create_graph = true});
      return y.mean() + g.square().sum(1).mean();
    };
    run(ddp, mine(x, 2)).backward();
    run(whole, x).backward();
    expect_same_gradients(ddp, whole, 1e-11);
  }
}

TUTTI_RANK_TEST(Ddp, BackwardThroughAveragedGradients) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net);
  for (uint64_t step = 0; step < 3; ++step) {
    Tensor x = numbers({2 * world_size(), 6}, step);
    auto run = [](auto& m, nn::ModuleBase& module, const Tensor& input) {
      module.zero_grad();
      m(input).square().mean().backward({.create_graph = true});
      Tensor size = zeros({}, {f64});
      for (const Tensor& p : module.parameters()) size = size + p.grad().square().sum();
      module.zero_grad();
      size.backward();
    };
    run(ddp, ddp, mine(x, 2));
    run(whole, whole, x);
    expect_same_gradients(ddp, whole, 1e-11);
  }
}

// ---- Averages, sparse gradients

TUTTI_RANK_TEST(Ddp, UnevenBatchesBySamples) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.average = parallel::Average::samples});
  int64_t all = 0, first = 0;
  for (int r = 0; r < world_size(); ++r) {
    if (r == rank()) first = all;
    all += r + 1;
  }
  for (uint64_t step = 0; step < 3; ++step) {
    net.zero_grad();
    whole.zero_grad();
    Tensor x = numbers({all, 6}, step);
    EXPECT_THAT(message_of<ValueError>([&] {
                  auto guard = ddp.no_sync();
                  ddp.set_samples(-1);
                }),
                HasSubstr("a batch cannot have -1 samples"));
    ddp.set_samples(rank() + 1.0);
    ddp(x.narrow(0, first, rank() + 1)).square().mean().backward();
    whole(x).square().mean().backward();
    expect_same_gradients(ddp, whole);
  }
}

TUTTI_RANK_TEST(Ddp, ARankWithoutSamplesCountsForNothing) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.bucket_bytes = 300, .average = parallel::Average::samples});
  for (uint64_t step = 0; step < 3 && world_size() > 1; ++step) {
    net.zero_grad();
    whole.zero_grad();
    ddp.set_samples(rank() == 0 ? 0 : 2);
    Tensor x = numbers({2 * world_size(), 6}, step);
    // The mean of no numbers is none.
    ddp(mine(x, 2).narrow(0, 0, rank() == 0 ? 0 : 2)).square().mean().backward();
    whole(x.narrow(0, 2, 2 * (world_size() - 1))).square().mean().backward();
    expect_same_gradients(ddp, whole);
  }
  ddp.set_samples(0);
  EXPECT_THAT(message_of<Error>([&] { ddp(numbers({2, 6}, 1)).square().mean().backward(); }),
              HasSubstr("the weights of all ranks are 0"));
}

// Several parts without averaging, of other sizes on every rank: all samples count the same.
TUTTI_RANK_TEST(Ddp, SamplesOfSeveralPartsAddUp) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.average = parallel::Average::samples});
  auto rows = [](int r, int part) { return int64_t{1} + r * (part + 1) + part % 2; };
  for (uint64_t step = 0; step < 3; ++step) {
    net.zero_grad();
    whole.zero_grad();
    if (step == 1) {  // what is thrown away does not count
      auto guard = ddp.no_sync();
      ddp.set_samples(100);
      ddp(numbers({1, 6}, 1)).sum().backward();
      net.zero_grad();
    }
    int64_t own = 0, all = 0, first = 0;
    for (int r = 0; r < world_size(); ++r)
      for (int part = 0; part < 3; ++part) {
        own += r == rank() ? rows(r, part) : 0;
        first += r < rank() ? rows(r, part) : 0;
        all += rows(r, part);
      }
    Tensor x = numbers({all, 6}, step);
    for (int part = 0; part < 3; ++part) {
      std::optional<parallel::NoSync> guard;
      if (part < 2) guard.emplace(ddp.no_sync());
      ddp.set_samples(1000);  // the last word counts
      ddp.set_samples(static_cast<double>(rows(rank(), part)));
      (ddp(x.narrow(0, first, rows(rank(), part))).square().mean(1).sum() / own).backward();
      first += rows(rank(), part);
    }
    whole(x).square().mean().backward();
    expect_same_gradients(ddp, whole);
  }
}

struct Tables : nn::Module<Tables> {
  nn::Embedding words{50, 4, {.sparse = true}}, rare{50, 4, {.sparse = true}};
  nn::Linear head{4, 2};
  TUTTI_FIELDS(words, rare, head)
  Tensor forward(const Tensor& x, bool use_rare) {
    Tensor h = words(x);
    if (use_rare) h = h + rare(x);
    return head(h);
  }
};

TUTTI_RANK_TEST(Ddp, SparseGradientsStaySparse) {
  Tables net = seeded<Tables>(), whole = net.clone();
  DistributedDataParallel ddp(net);
  for (uint64_t step = 0; step < 5; ++step) {
    net.zero_grad();
    whole.zero_grad();
    manual_seed(step);
    Tensor x = randint(0, 50, {3 * world_size()});
    bool rare = step >= 2;  // seen first when buckets have been made; on rank 0 only
    ddp(mine(x, 3), rare && rank() == 0).square().mean().backward();
    for (int r = 0; r < world_size(); ++r)
      (whole(x.narrow(0, 3 * r, 3), rare && r == 0).square().mean() / world_size()).backward();
    EXPECT_TRUE(net.words.weight.grad().is_sparse());
    EXPECT_EQ(net.rare.weight.grad().defined(), rare);
    if (rare) {
      EXPECT_TRUE(net.rare.weight.grad().is_sparse());
    }
    expect_same_gradients(ddp, whole);
    if (step == 4) {
      EXPECT_EQ(ddp.buckets().size(), 1u);
      EXPECT_THAT(ddp.buckets()[0], UnorderedElementsAre("head.weight", "head.bias"));
    }
  }
}

TUTTI_RANK_TEST(Ddp, SparseAndDenseGradientsOfOneTable) {
  Tables net = seeded<Tables>(), whole = net.clone();
  DistributedDataParallel ddp(net);
  for (uint64_t step = 0; step < 6; ++step) {
    net.zero_grad();
    whole.zero_grad();
    manual_seed(step);
    Tensor x = randint(0, 50, {3 * world_size()});
    auto run = [&](auto& m, Tables& inner, const Tensor& words, int who) {
      Tensor loss = m(words, true).square().mean();
      // Another rank each step uses all rows of the table: a dense gradient.
      if (static_cast<uint64_t>(who) == step % static_cast<uint64_t>(world_size()))
        loss = loss + inner.rare.weight.square().sum();
      return loss;
    };
    run(ddp, ddp.module, mine(x, 3), rank()).backward();
    for (int r = 0; r < world_size(); ++r) (run(whole, whole, x.narrow(0, 3 * r, 3), r) / world_size()).backward();
    expect_same_gradients(ddp, whole);
  }
}

}  // namespace
}  // namespace tutti
