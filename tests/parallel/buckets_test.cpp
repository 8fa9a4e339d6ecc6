// Where gradients lie, and what becomes of those that do not go by the buckets.
#include <gmock/gmock.h>

#include <fstream>

#include "tests/parallel/support.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using namespace std::chrono_literals;

struct DdpBuckets : QuickTest<2, 4> {};

struct Heads : nn::Module<Heads> {
  nn::Linear first{6, 8}, last{8, 3};
  std::vector<nn::Linear> heads;
  TUTTI_FIELDS(first, last, heads)
  Heads() {
    for (int i = 0; i < 10; ++i) heads.emplace_back(6, 3);
  }
  // What is used first gets its gradient last.
  Tensor forward(const Tensor& x, bool all) {
    Tensor y = zeros({x.size(0), 3}, {x.dtype()});
    for (size_t i = 0; all && i < heads.size(); ++i) y = y + heads[i](x).square();
    return y + last(tanh(first(x)));
  }
};

// How many calls of this rank are in its record.
int64_t calls() {
  std::string record = flight_record();
  int64_t count = 0;
  for (size_t at = 0; (at = record.find("\"begin\":", at)) != std::string::npos; ++at) ++count;
  return count;
}

// Nobody expects the gradients of ten heads, so their bucket has left when they come.
TUTTI_RANK_TEST(DdpBuckets, WhatComesLateGoesTogether) {
  for (int64_t bytes : {int64_t{300}, int64_t{1} << 20}) {
    Heads net = seeded<Heads>(), whole = net.clone();
    DistributedDataParallel ddp(net, {.bucket_bytes = bytes});
    auto step = [&](uint64_t seed, bool all) {
      net.zero_grad();
      whole.zero_grad();
      Tensor x = numbers({2 * world_size(), 6}, seed);
      int64_t before = calls();
      ddp(mine(x, 2), all).mean().backward();
      int64_t made = calls() - before;
      whole(x, all).mean().backward();
      expect_same_gradients(ddp, whole);
      return made;
    };
    step(0, true);  // so that they have their places
    step(1, false);
    int64_t usual = step(2, false), late = step(3, true), next = step(4, true);
    // 20 gradients of 1680 bytes together: in as many collectives as they fill buckets, the last maybe half.
    EXPECT_LE(late, usual + (1680 + bytes - 1) / bytes) << bytes;
    EXPECT_GT(late, usual);
    EXPECT_EQ(next, usual);  // now they are expected
  }
}

// What nobody used in the first step is not sent, and needs no memory; when it is used after all, it is as the others.
TUTTI_RANK_TEST(DdpBuckets, WhatNobodyUsesHasNoPlace) {
  Heads net = seeded<Heads>(), whole = net.clone();
  DistributedDataParallel ddp(net);
  auto step = [&](uint64_t seed, bool mine_all, bool others_all) {
    net.zero_grad();
    whole.zero_grad();
    for (int r = 0; r < world_size(); ++r)
      (whole(numbers({2, 6}, seed + static_cast<uint64_t>(r)), r == 1 ? mine_all : others_all).mean() / world_size())
          .backward();
    ddp(numbers({2, 6}, seed + static_cast<uint64_t>(rank())), rank() == 1 ? mine_all : others_all).mean().backward();
    expect_same_gradients(ddp, whole);
    size_t count = 0;
    for (const auto& bucket : ddp.buckets()) count += bucket.size();
    return count;
  };
  EXPECT_EQ(step(1, false, false), 4u);
  EXPECT_EQ(step(2, false, false), 4u);
  EXPECT_FALSE(net.heads[0].weight.grad().defined());
  EXPECT_EQ(step(3, true, false), 24u);  // by one rank
  EXPECT_EQ(step(4, false, true), 24u);
  EXPECT_EQ(step(5, false, false), 24u);
  EXPECT_FALSE(net.heads[0].weight.grad().defined());
  EXPECT_EQ(step(6, true, true), 24u);
  ddp.check_equal();
}

TUTTI_RANK_TEST(DdpBuckets, TheTimeIncludesWhatComesLate) {
  DistributedDataParallel ddp(seeded<Heads>());
  Tensor x = numbers({2, 6}, 1);
  for (int i = 0; i < 2; ++i) ddp(x, false).sum().backward();
  // The third all_reduce, after the bucket and who used what, is that of the late ones.
  InjectFaults guard({{.kind = Fault::delay, .call = 2, .collective = "all_reduce", .time = 100ms}});
  ddp(x, true).sum().backward();
  EXPECT_GE(ddp.communication_time().exposed, 0.1);
  EXPECT_GE(ddp.communication_time().total, 0.1);
}

// Whether this address lies in memory that processes share.
bool is_shared(const void* address) {
  std::ifstream maps("/proc/self/maps");
  auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2 || wanted < begin || wanted >= end) continue;
    return line.find("/dev/shm/tutti-") != std::string::npos;
  }
  return false;
}

struct Large : nn::Module<Large> {
  nn::Linear first{64, 64}, second{64, 64};
  TUTTI_FIELDS(first, second)
  Tensor forward(const Tensor& x) { return second(tanh(first(x))); }
};

// Gradients are made in the bucket, averaged there, and stay there: nothing is copied on the way.
TUTTI_RANK_TEST(DdpBuckets, LieInTheMemoryOfTheGroup) {
  Large net = seeded<Large>();
  std::vector<const void*> made;  // where gradients were when backward had just made them
  for (Tensor p : {Tensor(net.second.weight), Tensor(net.first.weight)})
    p.register_post_accumulate_hook([&](const Tensor& p) { made.push_back(p.grad().data<double>()); });
  Tensor buffer;
  auto hook = [&](parallel::GradientBucket& b) {
    buffer = b.buffer;
    return all_reduce_async(b.buffer, b.average);
  };
  DistributedDataParallel ddp(net, {.hook = hook});
  for (uint64_t step = 0; step < 3; ++step) {
    net.zero_grad();
    made.clear();
    ddp(numbers({2, 64}, step)).square().mean().backward();
  }
  ASSERT_EQ(ddp.buckets().size(), 1u);
  auto* begin = buffer.data<double>();
  for (const Tensor& p : net.parameters()) {
    auto* at = p.grad().data<double>();
    EXPECT_TRUE(p.grad().shares_storage(buffer));
    EXPECT_GE(at, begin);
    EXPECT_LE(at + p.numel(), begin + buffer.numel());
    if (world().transport() == "shm") {
      EXPECT_TRUE(is_shared(at));
    }
  }
  EXPECT_EQ(made, (std::vector<const void*>{net.second.weight.grad().data<double>(),
                                            net.first.weight.grad().data<double>()}));
}

// ---- Gradients of gradients

struct Words : nn::Module<Words> {
  nn::Embedding words{50, 4, {.sparse = true}};
  nn::Linear head{4, 2};
  TUTTI_FIELDS(words, head)
  Tensor forward(const Tensor& x) { return head(words(x)); }
};

// Nobody looked up words in the first steps: then some ranks do.
TUTTI_RANK_TEST(DdpBuckets, SparseGradientsThatComeLater) {
  Words net = seeded<Words>(), whole = net.clone();
  DistributedDataParallel ddp(net);
  auto run = [](Words& words, const Tensor& x, bool with) {
    return with ? words(x) : words.head(zeros({1, 4}, {f64}));
  };
  for (int step = 0; step < 6; ++step) {
    net.zero_grad();
    whole.zero_grad();
    auto with = [&](int r) { return step >= 2 && (r > 0 || step != 3); };
    auto words = [&](int r) { return full({3}, 7 * step + r, {i64}); };
    ddp(words(rank()));  // a forward without a backward changes nothing
    run(ddp.module, words(rank()), with(rank())).square().mean().backward();
    for (int r = 0; r < world_size(); ++r) (run(whole, words(r), with(r)).square().mean() / world_size()).backward();
    expect_same_gradients(ddp, whole);
    EXPECT_EQ(net.words.weight.grad().defined(), step >= 2);
    if (step >= 2) {
      EXPECT_TRUE(net.words.weight.grad().is_sparse());
    }
    ASSERT_EQ(ddp.buckets().size(), 1u);
    EXPECT_EQ(ddp.buckets()[0].size(), 2u);  // the head's
  }
}

// A second backward goes through averages of dense gradients; where none can come, sparse ones stay so.
TUTTI_RANK_TEST(DdpBuckets, SparseGradientsWithAGraph) {
  for (bool curved : {false, true}) {
    Words net = seeded<Words>(), whole = net.clone();
    if (!curved)
      for (Words* w : {&net, &whole}) w->head.weight.requires_grad_(false);
    DistributedDataParallel ddp(net);
    manual_seed(3);
    Tensor x = randint(0, 50, {3 * world_size()});
    for (int step = 0; step < 2; ++step) {
      auto run = [&](auto& m, nn::ModuleBase& module, const Tensor& input) {
        module.zero_grad();
        Tensor y = m(input);
        (curved ? y.square().mean() : y.mean()).backward({.create_graph = true});
        Tensor g = module.named_parameters()[0].second.grad();
        EXPECT_EQ(g.requires_grad(), curved);
        if (!curved) return;
        Tensor size = g.is_sparse() ? g.to_dense().square().sum() : g.square().sum();
        module.zero_grad();
        size.backward();
      };
      run(ddp, ddp, mine(x, 3));
      run(whole, whole, x);
      EXPECT_EQ(ddp.module.words.weight.grad().is_sparse(), whole.words.weight.grad().is_sparse());
      expect_same_gradients(ddp, whole);
    }
  }
}

}  // namespace
}  // namespace tutti
