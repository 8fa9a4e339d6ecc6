// What goes wrong: modules that differ, drift, graphs that are not static, ranks that throw or are killed.
#include <signal.h>
#include <unistd.h>

#include "tests/parallel/support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct DdpFailure : QuickTest<2, 3> {};

struct Sized : nn::Module<Sized> {
  nn::Linear fc, head{4, 2};
  std::optional<nn::Linear> extra;
  TUTTI_FIELDS(fc, head, extra)
  explicit Sized(int64_t size) : fc(size, 4) {}
  Tensor forward(const Tensor& x) { return head(fc(x)); }
};

TUTTI_RANK_TEST(DdpFailure, ModulesThatDiffer) {
  Sized net(rank() == 1 ? 5 : 3);
  if (rank() == 0) net.extra.emplace(2, 2);
  if (rank() == 1) net.head.weight.requires_grad_(false);
  auto text = message_of<MismatchError>([&] { DistributedDataParallel ddp(net); });
  std::string others = world_size() == 2 ? "rank 0" : "ranks 0, 2";
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("ranks disagree:"),
            HasSubstr("parameter fc.weight: f32[4, 3] on " + others + "; f32[4, 5] on rank 1"),
            HasSubstr("parameter head.weight: f32[2, 4] on " + others + "; f32[2, 4] without a gradient on rank 1"),
            HasSubstr(world_size() == 2 ? "parameter extra.weight: f32[2, 2] on rank 0; not on rank 1"
                                        : "parameter extra.weight: f32[2, 2] on rank 0; not on ranks 1, 2"),
            Not(HasSubstr("fc.bias"))));
  text = message_of<MismatchError>([&] { DistributedDataParallel ddp(Mlp(), {.bucket_bytes = 100 + rank()}); });
  EXPECT_THAT(text, HasSubstr("bucket_bytes: 100 on rank 0; 101 on rank 1"));
  DistributedDataParallel fine{Mlp()};  // and all goes on
}

TUTTI_RANK_TEST(DdpFailure, MemoryFormatsThatDiffer) {
  nn::Conv2d conv(3, 2, 2);
  if (rank() == 1) conv.to(MemoryFormat::channels_last);
  std::string others = world_size() == 2 ? "rank 0" : "ranks 0, 2";
  EXPECT_THAT(message_of<MismatchError>([&] { DistributedDataParallel ddp(conv); }),
              AllOf(HasSubstr("parameter weight: f32[2, 3, 2, 2] on " + others +
                              "; f32[2, 3, 2, 2] in channels_last order on rank 1"),
                    Not(HasSubstr("bias"))));
  conv.to(MemoryFormat::channels_last);
  DistributedDataParallel fine(conv);
}

void expect_drift_is_noticed(const BackwardOptions& options) {
  Mlp net = seeded<Mlp>();
  DistributedDataParallel ddp(net, {.checksum_every = 2});
  auto step = [&] { ddp(numbers({2, 6}, 1)).sum().backward(options); };
  step();
  step();
  if (rank() == 1) {
    NoGrad guard;
    net.second.bias[3].add_(1e-15);
    net.last.bias[0].add_(1);
  }
  step();
  std::string others = world_size() == 2 ? "rank " : "ranks 0, 2";
  EXPECT_THAT(message_of<MismatchError>(step),
              AllOf(HasSubstr("second.bias is the first parameter whose bits differ"), HasSubstr(others)));
  EXPECT_THAT(message_of<MismatchError>([&] { ddp.check_equal(); }), HasSubstr("second.bias"));
  net.zero_grad();  // gradients with a graph hold the parameters that hold them
}
TUTTI_RANK_TEST(DdpFailure, DriftNamesAllThatDiffer) {
  Mlp net = seeded<Mlp>();
  DistributedDataParallel ddp(net);
  {
    NoGrad guard;
    net.first.bias.add_(rank());
  }
  std::string others = world_size() == 2 ? "" : " and another on rank 2";
  EXPECT_THAT(message_of<MismatchError>([&] { ddp.check_equal(); }),
              HasSubstr("first.bias is the first parameter whose bits differ; it is one thing on rank 0 and another on "
                        "rank 1" +
                        others));
}

// What a hook puts in the buffer's place would reach no gradient.
TUTTI_RANK_TEST(DdpFailure, AHookThatReplacesTheBuffer) {
  using parallel::GradientBucket;
  parallel::CommunicationHook at_once = [](GradientBucket& b) -> parallel::Communication {
    b.buffer = b.buffer / 2;
    return all_reduce_async(b.buffer, b.average);
  };
  parallel::CommunicationHook later = [](GradientBucket& b) -> parallel::Communication {
    return parallel::Communication(all_reduce_async(b.buffer, b.average),
                                   [&b] { b.gradients[0] = b.gradients[0] / 2; });
  };
  for (const auto& hook : {at_once, later}) {
    DistributedDataParallel ddp(seeded<Mlp>(), {.hook = hook});
    EXPECT_THAT(message_of<ValueError>([&] { ddp(numbers({2, 6}, 1)).sum().backward(); }),
                HasSubstr("the hook put another tensor in the place of bucket.buffer"));
  }
}

struct Throwing : nn::Module<Throwing> {
  nn::Linear a{8, 8}, b{8, 8}, c{8, 8};
  TUTTI_FIELDS(a, b, c)
  Tensor forward(const Tensor& x, int where) {
    auto hook = [=](int here) {
      return [=](const Tensor& g) -> Tensor {
        if (where == here) throw std::runtime_error("on purpose");
        return g;
      };
    };
    Tensor first = a(x) * 1, second = b(first) * 1;
    first.register_hook(hook(1));
    second.register_hook(hook(2));
    return c(second);
  }
};
// One rank had sent a bucket more than the other when they threw. Nobody will ever come to that one.
TEST(DdpFailures, ANewOneGoesOnWhenBucketsWereLeftBehind) {
  spawn_ranks(2,
              [] {
                Throwing net;
                {
                  DistributedDataParallel ddp(net, {.bucket_bytes = 256});
                  ddp(ones({2, 8}), 0).sum().backward();
                  EXPECT_THAT(message_of<std::runtime_error>([&] { ddp(ones({2, 8}), 1 + rank()).sum().backward(); }),
                              HasSubstr("on purpose"));
                }
                DistributedDataParallel ddp(net, {.bucket_bytes = 256});
                for (int i = 0; i < 15; ++i) {
                  net.zero_grad();
                  ddp(ones({2, 8}), 0).sum().backward();
                  std::this_thread::sleep_for(std::chrono::milliseconds(100));
                }
              },
              {.timeout = std::chrono::seconds(1)});
}

TUTTI_RANK_TEST(DdpFailure, PoliciesThatDifferAreNamed) {
  nn::BatchNorm1d norm(2);
  auto policy = rank() == 1 ? parallel::BufferPolicy::none : parallel::BufferPolicy::average;
  EXPECT_THAT(message_of<MismatchError>([&] { DistributedDataParallel ddp(norm, {.buffers = policy}); }),
              HasSubstr("policy of buffer running_mean: average on rank"));
}

TUTTI_RANK_TEST(DdpFailure, DriftIsNoticed) { expect_drift_is_noticed({}); }
TUTTI_RANK_TEST(DdpFailure, DriftIsNoticedWithGraphs) { expect_drift_is_noticed({.create_graph = true}); }

struct Fork : nn::Module<Fork> {
  nn::Linear a{2, 2}, b{2, 2};
  TUTTI_FIELDS(a, b)
  Tensor forward(const Tensor& x, int times) {
    Tensor y = a(x);
    for (int i = 0; i < times; ++i) y = b(y);
    return y;
  }
};

TUTTI_RANK_TEST(DdpFailure, AGraphThatIsNotStatic) {
  for (bool never_used : {false, true}) {
    DistributedDataParallel ddp(Fork(), {.static_graph = true});
    for (int i = 0; i < 3; ++i) ddp(ones({1, 2}), never_used ? 0 : 1).sum().backward();
    auto text = message_of<ValueError>([&] { ddp(ones({1, 2}), never_used ? 1 : 0).sum().backward(); });
    EXPECT_THAT(text, AllOf(HasSubstr("the graph is said to be static"),
                            HasSubstr(never_used ? "b.weight: a gradient came once, in the first step never"
                                                 : "b.weight: a gradient came never, in the first step once"),
                            HasSubstr("Run the same forwards before every backward, or leave static_graph away (at "
                                      "failure_test.cpp:"),
                            Not(HasSubstr("a.weight"))));
    EXPECT_THAT(text, HasSubstr("; this one cannot go on: make a new one of its module"));
    EXPECT_THAT(message_of<Error>([&] { ddp(ones({1, 2}), 1).sum().backward(); }),
                HasSubstr("it cannot go on after a backward pass that failed"));
    // As the text says: nothing of the old one is in the way.
    DistributedDataParallel again(ddp.module, {});
    for (const Tensor& p : again.parameters()) p.set_grad({});
    for (int i = 0; i < 2; ++i) again(ones({1, 2}), i).sum().backward();
    EXPECT_TRUE(again.module.b.weight.grad().defined());
    again.check_equal();
  }
}

struct Table2 : nn::Module<Table2> {
  nn::Embedding words{10, 3, {.sparse = true}};
  nn::Linear other{3, 3};
  TUTTI_FIELDS(words, other)
  Tensor forward(const Tensor& x, bool dense) { return dense ? words.weight * 1.0 : words(x); }
};

TUTTI_RANK_TEST(DdpFailure, AKindOfGradientThatIsNotStatic) {
  for (auto [first, in_no_sync] : {std::pair{false, false}, {false, true}, {true, false}}) {
    Table2 net;
    DistributedDataParallel ddp(net, {.static_graph = true});
    Tensor x = full({1}, rank(), {i64});
    auto step = [&](bool dense) { ddp(x, dense).sum().backward(); };
    step(first);
    net.zero_grad();
    if (in_no_sync) {
      auto guard = ddp.no_sync();
      step(!first);
    }
    auto text = message_of<ValueError>([&] { step(in_no_sync ? first : !first); });
    EXPECT_THAT(text, HasSubstr(first ? "words.weight: a sparse gradient, where all were dense in the first"
                                      : "words.weight: a dense gradient, where all were sparse in the first"));
  }
}

TUTTI_RANK_TEST(DdpFailure, WhatOnlyNoSyncUsesIsNotStatic) {
  Fork net;
  DistributedDataParallel ddp(net, {.static_graph = true});
  auto step = [&](int times) {
    {
      auto guard = ddp.no_sync();
      ddp(ones({1, 2}), times).sum().backward();
    }
    ddp(ones({1, 2}), 0).sum().backward();
    net.zero_grad();
  };
  step(0);
  step(0);
  EXPECT_THAT(
      message_of<ValueError>([&] { step(1); }),
      AllOf(HasSubstr("b.weight: used inside of no_sync(), not used in the first step"), Not(HasSubstr("a.weight"))));
}

TUTTI_RANK_TEST(DdpFailure, AWrapperThatIsGone) {
  Mlp net = seeded<Mlp>();
  Tensor y, x = numbers({2, 6}, 1).requires_grad_();
  {
    DistributedDataParallel ddp(net);
    y = ddp(x).sum();
  }
  grad(y, x, {.retain_graph = true});  // averages nothing anyway
  EXPECT_THAT(message_of<Error>([&] { y.backward(); }), HasSubstr("keep it until backward has run"));
}

TUTTI_RANK_TEST(DdpFailure, WrongOptionsAndChangedModules) {
  EXPECT_THAT(message_of<ValueError>([] { DistributedDataParallel(Mlp(), {.bucket_bytes = 0}); }),
              HasSubstr("bucket_bytes is 0"));
  EXPECT_THAT(message_of<ValueError>([] { DistributedDataParallel(Mlp(), {.root = 7}); }),
              HasSubstr("root 7 is not in a group of"));
  EXPECT_THAT(message_of<ValueError>([] { DistributedDataParallel(Mlp(), {.checksum_every = -1}); }),
              HasSubstr("checksum_every is -1"));
  DistributedDataParallel ddp{Mlp()};
  EXPECT_THAT(message_of<ValueError>([&] { ddp.set_samples(3); }), HasSubstr("averaged by ranks"));
  ddp(ones({1, 6})).sum().backward();
  ddp.module.last = nn::Linear(8, 3);
  EXPECT_THAT(message_of<ValueError>([&] { ddp(ones({1, 6})); }),
              HasSubstr("the parameter last.weight (f32[3, 8] on cpu:0) is not one of those"));
  DistributedDataParallel other(Mlp(), {.average = parallel::Average::samples});
  EXPECT_THAT(message_of<ValueError>([&] { other(ones({1, 6})).sum().backward(); }), HasSubstr("call set_samples()"));
  DistributedDataParallel converted{Mlp()};
  converted(ones({1, 6})).sum().backward();
  converted.to(f64);
  EXPECT_THAT(message_of<ValueError>([&] { converted(ones({1, 6}, {f64})); }),
              HasSubstr("convert the module before it is wrapped"));
}

TUTTI_RANK_TEST(DdpFailure, TwoWrappersOfOneModule) {
  Mlp net;
  DistributedDataParallel one(net), two(net);
  one(ones({1, 6})).sum().backward();
  EXPECT_THAT(message_of<ValueError>([&] { one(ones({1, 6})).sum().backward(); }),
              HasSubstr("another DistributedDataParallel has the same parameters"));
}

struct WithWrapper : nn::Module<WithWrapper> {
  nn::Linear before{6, 6};
  DistributedDataParallel<Mlp> inner{Mlp()};
  TUTTI_FIELDS(before, inner)
  Tensor forward(const Tensor& x) { return inner(before(x)); }
};
TUTTI_RANK_TEST(DdpFailure, AWrapperInsideOfAWrapper) {
  WithWrapper net;
  EXPECT_THAT(message_of<ValueError>([&] { DistributedDataParallel ddp(net); }),
              HasSubstr("the module has one in it already, inner: wrap that one's module instead"));
  EXPECT_THAT(message_of<ValueError>([&] { DistributedDataParallel<DistributedDataParallel<Mlp>> ddp(net.inner); }),
              HasSubstr("the module has one in it already: wrap"));
  DistributedDataParallel beside(net.before);
  for (int i = 0; i < 3; ++i) net.inner(beside(ones({2, 6}))).sum().backward();
  beside.check_equal();
}

// A node that throws in backward.
struct Trap : Function<Trap> {
  bool now;
  Tensor forward(const Tensor& x, bool n) {
    now = n;
    return x.clone();
  }
  TensorList backward(const TensorList& g) {
    if (now) throw ValueError("the trap");
    return g;
  }
};

TUTTI_RANK_TEST(DdpFailure, BackwardThatThrowsEverywhere) {
  Mlp net = seeded<Mlp>();
  DistributedDataParallel ddp(net);
  Tensor x = numbers({2, 6}, 1).requires_grad_();
  // Before anything is sent: nothing is lost.
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(message_of<ValueError>([&] { Trap::apply(ddp(x), true).sum().backward(); }), HasSubstr("the trap"));
  ddp(x).sum().backward();
  ddp.check_equal();
  // When all was sent: a new one is needed, and works.
  EXPECT_THAT(message_of<ValueError>([&] { ddp(Trap::apply(x, true)).sum().backward(); }), HasSubstr("the trap"));
  EXPECT_THAT(message_of<Error>([&] { ddp(x).sum().backward(); }), HasSubstr("make a new one"));
  DistributedDataParallel again(net);
  again(x).sum().backward();
  again.check_equal();
}

// What a failed pass has taken in hand before anything was sent is where it was, with what came on top of it: the same
// as without a wrapper. The next pass averages it, and counts its samples.
struct Kept {
  bool sink = false, samples = false;
};
void keep_what_was_taken(const Kept& how) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  using parallel::Average;
  DistributedDataParallel ddp(net, {.average = how.samples ? Average::samples : Average::ranks});
  Table table;
  if (how.sink) context().sink = &table;
  struct Restore {
    ~Restore() { context().sink = nullptr; }
  } restore;
  auto gradient = [&](const nn::Parameter& p) { return how.sink ? table.gradient(p) : p.grad(); };
  auto batch = [](int step, int r) { return numbers({2, 6}, static_cast<uint64_t>(10 * step + r)).requires_grad_(); };
  auto samples = [](int step, int r) { return 1.0 + step + r; };
  auto set = [&](int step) {
    if (how.samples) ddp.set_samples(samples(step, rank()));
  };
  auto forget = [&] {
    net.zero_grad();
    for (const Tensor& p : net.parameters()) gradient_sink().set_gradient(p, {});
  };
  for (int i = 0; i < 2; ++i) {
    forget();
    set(0);
    ddp(batch(0, rank())).sum().backward();
  }
  forget();
  {
    auto guard = ddp.no_sync();
    set(1);
    ddp(batch(1, rank())).sum().backward();
  }
  Tensor first = gradient(net.first.weight).clone(), last = gradient(net.last.weight).clone();
  for (int i = 0; i < 2; ++i) {
    set(2);
    Tensor h = Trap::apply(tanh(ddp.module.first(batch(2, rank()))), true);
    EXPECT_THAT(message_of<ValueError>([&] { ddp.module.last(h).sum().backward(); }), HasSubstr("the trap"));
  }
  // Backward had reached the last layer, twice, and not the first.
  Mlp alone = whole.clone();
  {
    Tensor h = tanh(alone.first(batch(2, rank()))).detach();
    for (int i = 0; i < 2; ++i) alone.last(h).sum().backward();
  }
  expect_close(gradient(net.first.weight), first, "first.weight");
  expect_close(gradient(net.last.weight), last + gradient(alone.last.weight), "last.weight");

  set(3);
  ddp(batch(3, rank())).sum().backward();
  double all = 0;
  for (int r = 0; r < world_size(); ++r) all += how.samples ? samples(1, r) + samples(3, r) : 1;
  for (int r = 0; r < world_size(); ++r) {
    double weight = (how.samples ? samples(1, r) + samples(3, r) : 1) / all;
    for (int step : {1, 3}) (whole(batch(step, r)).sum() * weight).backward();
  }
  expect_close(gradient(net.first.weight), gradient(whole.first.weight), "first.weight");
}
TUTTI_RANK_TEST(DdpFailure, NothingIsLostBeforeAnythingWasSent) { keep_what_was_taken({}); }
TUTTI_RANK_TEST(DdpFailure, NothingIsLostOfOtherSinks) { keep_what_was_taken({.sink = true}); }
TUTTI_RANK_TEST(DdpFailure, NorSamples) { keep_what_was_taken({.samples = true}); }

// Gradients of what was run before the failure would not be averaged, and nobody would know.
TUTTI_RANK_TEST(DdpFailure, BackwardThroughABrokenOne) {
  Mlp net = seeded<Mlp>();
  DistributedDataParallel ddp(net);
  Tensor x = numbers({2, 6}, 1).requires_grad_(), mine = numbers({2, 6}, static_cast<uint64_t>(2 + rank()));
  for (int i = 0; i < 2; ++i) ddp(x).sum().backward();
  Tensor a = ddp(Trap::apply(x, true)).sum(), b = ddp(mine).square().sum();
  EXPECT_THAT(message_of<ValueError>([&] { a.backward(); }), HasSubstr("the trap"));
  net.zero_grad();
  EXPECT_THAT(message_of<Error>([&] { b.backward({.retain_graph = true}); }), HasSubstr("make a new one"));
  grad(b, net.last.weight, {.retain_graph = true});  // averages nothing anyway
  // A module that is used directly tells its wrapper too.
  EXPECT_THAT(message_of<Error>([&] { net(mine).sum().backward(); }), HasSubstr("make a new one"));
  // One that has a part of the parameters does not speak for the others.
  net.zero_grad();
  {
    DistributedDataParallel part(net.last);
    EXPECT_THAT(message_of<Error>([&] { b.backward({.retain_graph = true}); }), HasSubstr("make a new one"));
  }
  net.zero_grad();
  DistributedDataParallel again(net);
  net(mine).square().sum().backward();
  Mlp whole = net.clone();
  for (int r = 0; r < world_size(); ++r)
    (whole(numbers({2, 6}, static_cast<uint64_t>(2 + r))).square().sum() / world_size()).backward();
  expect_same_gradients(net, whole);
}

TEST(DdpFailures, BackwardThatThrowsOnOneRankEndsTheOthers) {
  for (const auto& runner : harness::every_transport()) {
    auto text = message_of<ValueError>([&] {
      harness::run_ranks(
          3,
          [&] {
            Mlp net = seeded<Mlp>();
            DistributedDataParallel ddp(net, {.bucket_bytes = 300});
            Tensor x = numbers({2, 6}, 1).requires_grad_();
            for (int i = 0; i < 5; ++i) ddp(Trap::apply(x, i == 3 && rank() == 1)).sum().backward();
            ADD_FAILURE() << "nobody gets here";
          },
          {}, runner);
    });
    EXPECT_THAT(text, HasSubstr("[rank 1] the trap")) << runner.name;
  }
}

// One rank throws when the others had no inputs left: no rank's wrapper can go on, new ones can.
TUTTI_RANK_TEST(DdpFailure, InsideOfJoinWhenOthersAreThrough) {
  Mlp net = seeded<Mlp>();
  DistributedDataParallel ddp(net, {.bucket_bytes = 100});
  int thrower = world_size() - 1;
  EXPECT_THROW(parallel::join({ddp},
                              [&] {
                                for (int i = 0; i < (rank() == thrower ? 4 : 3); ++i)
                                  Trap::apply(ddp(numbers({2, 6}, 1)), i == 3).sum().backward();
                              }),
               Error);
  EXPECT_THAT(message_of<Error>([&] { ddp(numbers({2, 6}, 1)); }), HasSubstr("make a new one"));
  barrier();
  DistributedDataParallel again(net);
  again(numbers({2, 6}, 1)).sum().backward();
  again.check_equal();
}

#ifndef TUTTI_SANITIZE_THREAD
struct Killer : Function<Killer> {
  Tensor forward(const Tensor& x) { return x.clone(); }
  TensorList backward(const TensorList& g) {
    ::kill(::getpid(), SIGKILL);
    return g;
  }
};

TEST(DdpFailures, ARankKilledInTheMiddleOfAStep) {
  for (const auto& runner : harness::every_transport()) {
    if (runner.shares_memory) continue;  // threads cannot be killed
    for (auto [victim, when] : {std::pair{2, 5}, {2, 7}, {0, 6}}) {
      auto text = message_of<RankFailure>([&] {
        harness::run_ranks(
            4,
            [&] {
              Mlp net = seeded<Mlp>();
              DistributedDataParallel ddp(net, {.bucket_bytes = 300});
              optim::SGD sgd(ddp.parameters(), {.lr = 0.1});
              for (int i = 0; i < 20; ++i) {
                // In the middle of backward, when some buckets have left.
                Tensor h = ddp.module.first(numbers({2, 6}, 1));
                if (rank() == victim && i == when) h = Killer::apply(h);
                ddp.module.last(tanh(ddp.module.second(tanh(h)))).sum().backward();
                sgd.step();
              }
              ADD_FAILURE() << "nobody gets here";
            },
            {}, runner);
      });
      EXPECT_THAT(text,
                  AllOf(HasSubstr("rank " + std::to_string(victim) + " failed: its process"), HasSubstr("killed")))
          << runner.name;
    }
  }
}
#endif

}  // namespace
}  // namespace tutti
