// Uneven inputs.
#include "tests/parallel/support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::Communication;
using parallel::GradientBucket;
using parallel::join;
using parallel::Joinable;
using testing::HasSubstr;
using namespace std::chrono_literals;

struct Join : QuickTest<1, 2, 4> {};

TUTTI_RANK_TEST(Join, CollectivesOfOnesOwn) {
  std::vector<double> sums;
  int finished = -1;
  Joinable sum([] { all_reduce(zeros({2}, {f64})); }, [&](int last) { finished = last; });
  // The rank in the middle has the most, and rank 0 nothing.
  int inputs = rank() == 0 ? 0 : rank() == 1 ? 5 : 2;
  int last = join({sum}, [&] {
    for (int i = 0; i < inputs; ++i) {
      Tensor x = full({2}, rank() + i, {f64});
      sum.announce();
      all_reduce(x);
      sums.push_back(x[0].item<double>());
    }
  });
  EXPECT_EQ(last, world_size() > 1 ? 1 : 0);
  EXPECT_EQ(finished, world_size() > 1 ? 1 : -1);
  if (world_size() == 2) {
    EXPECT_EQ(sums.size(), static_cast<size_t>(inputs));
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    double wanted = 0;
    for (int r = 0; r < world_size(); ++r)
      if (static_cast<int>(i) < (r == 0 ? 0 : r == 1 ? 5 : 2))
        wanted += static_cast<double>(r) + static_cast<double>(i);
    EXPECT_EQ(sums[i], wanted);
  }
  sum.announce();  // outside it is nothing
  barrier();
}

TUTTI_RANK_TEST(Join, PartsInTheOrderOfTheirUse) {
  Joinable one([] { all_reduce(zeros({1}, {f64})); }),
      two([] { broadcast(zeros({3}, {f64}), {.root = world_size() - 1}); });
  join({one, two}, [&] {
    for (int i = 0; i <= rank(); ++i) {
      Tensor count = ones({1}, {f64}), x = full({3}, rank(), {f64});
      if (i % 2 == 0) {
        one.announce();
        all_reduce(count);
        EXPECT_EQ(count.item<double>(), world_size() - i);
      }
      two.announce();
      broadcast(x, {.root = world_size() - 1});
      EXPECT_EQ(x[2].item<double>(), world_size() - 1);
    }
  });
}

// Each rank has as many batches as its number says; a rank that counts zeros divides by all ranks.
void train_unevenly(bool count_joined, bool static_graph) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.bucket_bytes = 300, .static_graph = static_graph});
  optim::SGD sgd(ddp.parameters(), {.lr = 0.1}), alone(whole.parameters(), {.lr = 0.1});
  auto steps = [](int r) { return r == 0 ? 0 : 5 - r; };
  auto batch = [](int step, int r) { return numbers({2, 6}, static_cast<uint64_t>(10 * step + r)); };
  int last = join({ddp},
                  [&] {
                    for (int step = 0; step < steps(rank()); ++step) {
                      sgd.zero_grad();
                      ddp(batch(step, rank())).square().mean().backward();
                      sgd.step();
                    }
                  },
                  {.count_joined = count_joined});
  for (int step = 0; step < 5; ++step) {
    alone.zero_grad();
    int active = 0;
    for (int r = 0; r < world_size(); ++r) active += step < steps(r);
    if (!active) break;
    for (int r = 0; r < world_size(); ++r)
      if (step < steps(r)) (whole(batch(step, r)).square().mean() / (count_joined ? world_size() : active)).backward();
    alone.step();
  }
  expect_same_values(net, whole);
  EXPECT_EQ(last, world_size() > 1 ? 1 : 0);
  ddp.check_equal();
  // And then as if nothing had been.
  net.zero_grad();
  whole.zero_grad();
  ddp(batch(7, rank())).square().mean().backward();
  for (int r = 0; r < world_size(); ++r) (whole(batch(7, r)).square().mean() / world_size()).backward();
  expect_same_gradients(ddp, whole);
}

TUTTI_RANK_TEST(Join, AveragesOverThoseThatHaveInputs) { train_unevenly(false, false); }
TUTTI_RANK_TEST(Join, OrOverAll) { train_unevenly(true, false); }
TUTTI_RANK_TEST(Join, WithAStaticGraph) { train_unevenly(false, true); }

TUTTI_RANK_TEST(Join, TwoModels) {
  Mlp one = seeded<Mlp>(), two = one.clone();
  DistributedDataParallel a(one), b(two);
  Mlp first = one.clone(), second = two.clone();
  auto both = [](const Mlp& x, const Mlp& y) {
    TensorList all = x.parameters();
    for (const Tensor& p : y.parameters()) all.push_back(p);
    return all;
  };
  optim::SGD sgd(both(one, two), {.lr = 0.1}), alone(both(first, second), {.lr = 0.1});
  auto steps = [](int r) { return 1 + r % 3; };
  auto run = [](auto& f, auto& g, int r, int step, double weight) {
    auto batch = [&](int k) { return numbers({2, 6}, static_cast<uint64_t>(100 * r + 10 * step + k)); };
    (f(batch(1)).square().mean() * weight).backward();
    (g(batch(2)).square().mean() * f(batch(3)).square().mean() * weight).backward();
  };
  join({a, b}, [&] {
    for (int i = 0; i < steps(rank()); ++i) {
      sgd.zero_grad();
      run(a, b, rank(), i, 1);
      sgd.step();
    }
  });
  for (int i = 0; i < std::min(3, world_size()); ++i) {
    int active = 0;
    for (int r = 0; r < world_size(); ++r) active += i < steps(r);
    alone.zero_grad();
    for (int r = 0; r < world_size(); ++r)
      if (i < steps(r)) run(first, second, r, i, 1.0 / active);
    alone.step();
  }
  expect_same_values(one, first);
  expect_same_values(two, second);
}

TUTTI_RANK_TEST(Join, BackwardThroughAveragesIsRefused) {
  Mlp net = seeded<Mlp>();
  DistributedDataParallel ddp(net);
  EXPECT_THAT(message_of<ValueError>([&] {
                join({ddp}, [&] {
                  ddp(numbers({2, 6}, 1)).sum().backward({.create_graph = true});
                  Tensor g = net.last.bias.grad();
                  net.zero_grad();
                  (g * g).sum().backward();
                });
              }),
              HasSubstr("backward through averaged gradients (create_graph) would wait for ranks"));
}

// Early ranks have missed steps. Optimizers, and what else counts steps, go on as one that missed none.
TUTTI_RANK_TEST(Join, WhatOptimizersKeepComesAlong) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net);
  optim::Adam adam(ddp.parameters(), {.lr = 0.01}), alone(whole.parameters(), {.lr = 0.01});
  optim::Schedule slower = [](int64_t step) { return 1.0 / static_cast<double>(1 + step); };
  optim::Scheduler schedule(adam, slower), other(alone, slower);
  amp::GradScaler scaler({.scale = 8, .growth_interval = 2});
  auto steps = [](int r) { return r == 0 ? 0 : 5 - r; };
  auto batch = [](int epoch, int step, int r) {
    return numbers({2, 6}, static_cast<uint64_t>(100 * epoch + 10 * step + r));
  };
  int most = world_size() > 1 ? 4 : 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    join({ddp, adam, schedule, scaler}, [&] {
      for (int step = 0; step < steps(rank()); ++step) {
        adam.zero_grad();
        scaler.scale(ddp(batch(epoch, step, rank())).square().mean()).backward();
        scaler.step(adam);
        scaler.update();
        schedule.step();
      }
    });
    for (int step = 0; step < most; ++step) {
      alone.zero_grad();
      int active = 0;
      for (int r = 0; r < world_size(); ++r) active += step < steps(r);
      for (int r = 0; r < world_size(); ++r)
        if (step < steps(r)) (whole(batch(epoch, step, r)).square().mean() / active).backward();
      alone.step();
      other.step();
    }
    ddp.check_equal();
  }
  EXPECT_EQ(schedule.steps(), 3 * most);
  EXPECT_EQ(scaler.scale(), world_size() > 1 ? 8 * 64 : 8);
  expect_same_values(net, whole, 1e-9);
  // The next step of all shows what they kept.
  adam.zero_grad();
  alone.zero_grad();
  ddp(batch(7, 0, rank())).square().mean().backward();
  for (int r = 0; r < world_size(); ++r) (whole(batch(7, 0, r)).square().mean() / world_size()).backward();
  adam.step();
  alone.step();
  ddp.check_equal();
  expect_same_values(net, whole, 1e-9);
}

struct JoinOfTwo : QuickTest<2, 4> {};

// As long as all ranks have inputs; those that have none are not expected to have the same.
TUTTI_RANK_TEST(JoinOfTwo, ChecksumsAreTakenWhileAllHaveInputs) {
  Mlp net = seeded<Mlp>();
  DistributedDataParallel ddp(net, {.checksum_every = 2});
  optim::SGD sgd(ddp.parameters(), {.lr = 0.1});
  auto step = [&] {
    sgd.zero_grad();
    ddp(numbers({2, 6}, 1)).sum().backward();
    sgd.step();
  };
  join({ddp}, [&] {
    for (int i = 0; i < (rank() == 0 ? 1 : 6); ++i) step();
  });
  ddp.check_equal();
  int done = 0;
  EXPECT_THAT(message_of<MismatchError>([&] {
                join({ddp}, [&] {
                  for (int i = 0; i < 6; ++i, ++done) {
                    step();
                    if (i == 2 && rank() == 1) {
                      NoGrad guard;
                      net.second.bias.add_(1);
                    }
                  }
                });
              }),
              HasSubstr("ranks have drifted apart: second.bias is the first parameter whose bits differ"));
  EXPECT_EQ(done, 3);
}

struct WithOwn : nn::Module<WithOwn> {
  nn::Linear fc{2, 2};
  nn::Buffer own{zeros({1})}, shared{zeros({1})};
  TUTTI_FIELDS(fc, own, shared)
  Tensor forward(const Tensor& x) { return fc(x); }
};
TUTTI_RANK_TEST(JoinOfTwo, BuffersOfOnesOwnStay) {
  DistributedDataParallel ddp(WithOwn{}, {.buffer_policy = {{"own", parallel::BufferPolicy::none}}});
  join({ddp}, [&] {
    for (int i = 0; i < 1 + rank(); ++i) {
      ddp(ones({1, 2})).sum().backward();
      NoGrad guard;
      ddp.module.own.fill_(rank() + 1.0);
      ddp.module.shared.fill_(rank() + 1.0);
    }
  });
  EXPECT_EQ(ddp.module.own.item<double>(), rank() + 1.0);
  EXPECT_EQ(ddp.module.shared.item<double>(), world_size());
}

struct Thrown : testing::TestWithParam<int> {};

// The rank with number GetParam() throws: before its first step, or between two.
TEST_P(Thrown, InsideOfJoinEndsTheOthers) {
  for (const auto& runner : harness::every_transport())
    for (int when : {0, 1}) {
      auto text = message_of<IndexError>([&] {
        harness::run_ranks(
            3,
            [&] {
              Mlp net = seeded<Mlp>();
              DistributedDataParallel ddp(net);
              join({ddp}, [&] {
                for (int i = 0; i < rank() + 2; ++i) {
                  if (rank() == GetParam() && i == when) throw IndexError("no such file");
                  ddp(numbers({2, 6}, 1)).sum().backward();
                }
              });
              ADD_FAILURE() << "nobody gets here";
            },
            {}, runner);
      });
      EXPECT_THAT(text, HasSubstr("[rank " + std::to_string(GetParam()) + "] no such file")) << runner.name;
    }
}
INSTANTIATE_TEST_SUITE_P(Join, Thrown, testing::Values(0, 2));

struct JoinOfSeveral : QuickTest<2, 4> {};
TUTTI_RANK_TEST(JoinOfSeveral, ACaughtErrorIsToldToTheOthers) {
  Joinable sum([] { all_reduce(zeros({2})); });
  std::string text;
  try {
    join({sum},
         [&] {
           if (rank() == 1) throw IndexError("no such file");
           sum.announce();
           ADD_FAILURE() << "rank 1 did not announce it";
         },
         {.patience = std::chrono::minutes(1)});
  } catch (const Error& e) {
    text = e.what();
  }
  EXPECT_THAT(text, HasSubstr(rank() == 1 ? "no such file" : "rank 1 threw inside of join"));
  barrier();
}

// A rank that throws where the others wait for it in a collective, and goes on by itself: they hear of it all the same.
struct ThrownBetween : testing::TestWithParam<bool> {};
TEST_P(ThrownBetween, AnAnnouncementAndItsCollectiveEndsTheOthers) {
  for (const auto& runner : harness::every_transport())
    harness::run_ranks(
        3,
        [&] {
          Mlp net = seeded<Mlp>();
          Group other = world().subgroup({0, 1, 2});
          DistributedDataParallel ddp(net, {.hook = [&](GradientBucket& b) -> Communication {
                                        if (GetParam() && rank() == 1) throw IndexError("no such file");
                                        return all_reduce_async(b.buffer, b.average);
                                      }});
          Joinable sum([&] { all_reduce(zeros({2}), {.group = other}); });
          auto body = [&] {
            if (GetParam()) return ddp(numbers({2, 6}, 1)).sum().backward();  // its first pass sends when all have come
            sum.announce();
            if (rank() == 1) throw IndexError("no such file");
            all_reduce(zeros({2}), {.group = other});
          };
          std::string text;
          try {
            join({ddp, sum}, body, {.patience = 50ms});
          } catch (const IndexError& e) {
            text = e.what();
          } catch (const RankFailure& e) {
            text = e.what();
          }
          EXPECT_THAT(text, HasSubstr("no such file"));
          EXPECT_THAT(text, HasSubstr(rank() == 1 ? "" : "rank 1 failed: it threw inside of join"));
          EXPECT_THAT(message_of<RankFailure>([] { barrier(); }), HasSubstr("no such file"));  // nor any later
        },
        {.timeout = std::chrono::minutes(5)}, runner);
}
INSTANTIATE_TEST_SUITE_P(Join, ThrownBetween, testing::Bool());

TUTTI_RANK_TEST(Join, WrongUse) {
  EXPECT_THAT(message_of<ValueError>([&] { join({}, [] {}, {.patience = -1ms}); }), HasSubstr("cannot be negative"));
  Joinable sum([] { all_reduce(zeros({2})); });
  EXPECT_THAT(message_of<ValueError>([&] { Joinable(std::function<void()>()); }), HasSubstr("needs a function"));
  auto inner = [&] { join({sum}, [] {}); };
  EXPECT_THAT(message_of<ValueError>([&] { join({sum}, inner); }), HasSubstr("part 0 is being joined already"));
}

// All learn of it, whichever they announced.
TUTTI_RANK_TEST(Join, PartsThatDiffer) {
  if (world_size() == 1) return;
  Joinable sum([] { all_reduce(zeros({2})); }), other([] { all_reduce(zeros({3})); });
  std::vector<Joinable> parts{sum};
  if (rank() == 0) parts.push_back(other);
  EXPECT_THAT(message_of<MismatchError>([&] { join(parts, [] {}); }), HasSubstr("parts: 1 on rank"));
  auto turned = [&] { join({sum, other}, [&] { (rank() == 0 ? sum : other).announce(); }); };
  EXPECT_THAT(message_of<MismatchError>(turned), HasSubstr("different ones of the joined parts: part 0 and part 1"));
}

}  // namespace
}  // namespace tutti
