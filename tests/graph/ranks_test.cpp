// Collectives in compiled functions, on every transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/comm/ways.h"
#include "tests/support/compare.h"
#include "tutti/comm/functional.h"
#include "tutti/compile.h"
#include "tutti/nn.h"
#include "tutti/ops.h"
#include "tutti/optim.h"
#include "tutti/parallel.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using test::identical;
using test::Way;
using testing::HasSubstr;

class CompiledRanks : public testing::TestWithParam<Way> {
 protected:
  /// Four times, of which two or three run from the graph: values and gradients have eager's bits.
  template <class F, class Compiled>
  static void expect_eagers_bits(const F& f, const Compiled& compiled, const Shape& sizes) {
    for (uint64_t i = 0; i < 4; ++i) {
      manual_seed(10 * i + static_cast<uint64_t>(rank()));
      Tensor x = randn({4}, f64).requires_grad_(), w = randn(sizes, f64).requires_grad_();
      Tensor x2 = x.detach().clone().requires_grad_(), w2 = w.detach().clone().requires_grad_();
      Tensor wanted = f(x, w), got = compiled(x2, w2);
      EXPECT_TRUE(identical(got, wanted));
      wanted.backward();
      got.backward();
      EXPECT_TRUE(identical(x2.grad(), x.grad()));
      EXPECT_TRUE(identical(w2.grad(), w.grad()));
    }
    // Where all_reduces may become one call, ranks trace the second call too: Note [Arguments that are captured].
    EXPECT_GE(compiled.stats().runs, 2);
    EXPECT_EQ(compiled.stats().runs + compiled.stats().traces, 4);
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, CompiledRanks, testing::ValuesIn(test::all_ways()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CompiledRanks, CollectivesAreNodesAndGiveEagersBits) {
  GetParam().spawn(3,
                   [] {
                     auto f = [](const Tensor& x, const Tensor& w) {
                       Tensor a = fn::all_reduce(x * w), b = fn::all_reduce(w.sin());
                       return (a * b).sum() + fn::all_gather_single(x).cos().sum();
                     };
                     auto compiled = compile(f);
                     expect_eagers_bits(f, compiled, {4});
                     EXPECT_EQ(compiled.graphs()[0]->count("all_reduce"), 1u) << "two in one bucket\n"
                                                                              << compiled.print();
                   },
                   {});
}

// What begins early is waited for where it is needed, and nothing of it can be seen but in the graph.
TEST_P(CompiledRanks, CollectivesOverlapWithWhatNeedsThemNot) {
  for (int ranks : {2, 3, 4})
    GetParam().spawn(ranks,
                     [] {
                       auto f = [](const Tensor& x, const Tensor& w) {
                         Tensor busy = matmul(w, w), large = x.expand({2'000, 4}).contiguous();
                         Tensor sum = fn::all_reduce(large), all = fn::all_gather_single(w),
                                part = fn::reduce_scatter(all * 2);
                         busy = matmul(busy, w);
                         Tensor swapped = fn::all_to_all_single(all), first = fn::broadcast(w.sin());
                         return sum.mean() + (busy * part).sum() + (swapped * 3).sum() + (first * w).sum();
                       };
                       auto compiled = compile(f);
                       expect_eagers_bits(f, compiled, {4, 4});
                       EXPECT_THAT(compiled.print({.code = false}),
                                   testing::AllOf(HasSubstr("= start all_reduce("), HasSubstr("= start all_gather("),
                                                  HasSubstr("  wait(%")));
                     },
                     {});
}

// A collective that has begun and that another rank will never join ends at its wait.
TEST_P(CompiledRanks, ARankThatFailsEndsTheWaitsOfOthers) {
  EXPECT_THROW(GetParam().spawn(2,
                                [] {
                                  Tensor w = ones({64, 64});
                                  auto f = compile([&](const Tensor& x) {
                                    Tensor sum = fn::all_reduce(x * 2);
                                    Tensor busy = matmul(w, w);
                                    return busy + sum.sum();
                                  });
                                  for (int i = 0; i < 2; ++i) f(ones({2'000}));
                                  if (rank() == 1) throw ValueError("enough");
                                  for (int i = 0; i < 20; ++i) f(ones({2'000}));
                                },
                                {}),
               ValueError);
}

TEST_P(CompiledRanks, RanksThatWouldCallOthersLearnItAtOnce) {
  try {
    GetParam().spawn(2,
                     [] {
                       auto f = compile([](const Tensor& x) {
                         Tensor y = fn::all_reduce(x);
                         return rank() == 0 ? fn::all_reduce(y * 2) : y;
                       });
                       f(ones({2}));
                     },
                     {});
    FAIL() << "ranks disagree";
  } catch (const MismatchError& e) {
    EXPECT_THAT(e.what(), HasSubstr("all_reduce"));
    EXPECT_THAT(e.what(), HasSubstr("ranks_test.cpp"));
  }
}

// One that calls none at all is not waited for in silence: the error says what the others were about.
TEST_P(CompiledRanks, ARankWithoutCollectivesMakesAnErrorThatSaysWhy) {
  for (bool comes : {true, false}) try {
      GetParam().spawn(2,
                       [=] {
                         auto f = compile([](const Tensor& x) { return rank() == 0 ? fn::all_reduce(x) : x * 2; },
                                          {.name = "lopsided"});
                         f(ones({2}));
                         if (rank() == 0) return;
                         if (comes) barrier();
                         std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // has other things to do
                       },
                       {.timeout = std::chrono::milliseconds(comes ? 30'000 : 500)});
      FAIL() << "ranks disagree";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::AllOf(HasSubstr("all_reduce(f32[2], sum) at ranks_test.cpp:"),
                                           HasSubstr("(for the first run of the compiled 'lopsided')")));
    }
}

TEST_P(CompiledRanks, CollectivesThatWriteTheirArgumentsAreRefused) {
  GetParam().spawn(2,
                   [] {
                     auto f = compile([](Tensor x) {
                       all_reduce(x);
                       return x;
                     });
                     EXPECT_THROW(f(ones({2})), TraceError);
                     EXPECT_THROW(compile([](const Tensor& x) { return barrier(), x; })(ones({2})), TraceError);
                   },
                   {});
}

struct Mlp : nn::Module<Mlp> {
  nn::Linear first{8, 64}, second{64, 64}, last{64, 4};  // one that is large enough to be made in its bucket
  nn::Linear unused{3, 3};
  nn::Parameter scale = full({64}, 1.5);
  TUTTI_FIELDS(first, second, last, unused, scale)
  Tensor forward(const Tensor& x) {
    Tensor h = gelu(first(x)) * scale;
    return last(gelu(second(h)) + h * last.weight.narrow(0, 0, 1));  // used twice
  }
};

// Hooks of leaves are steps of the graph, collectives begin from within it, and the end of the pass is the reducer's.
TEST_P(CompiledRanks, PassesThroughDdpRunAsOneGraph) {
  for (bool static_graph : {false, true})
    GetParam().spawn(
        2,
        [=] {
          manual_seed(5);
          Mlp net;
          parallel::DdpOptions options{.bucket_bytes = 512, .static_graph = static_graph};
          parallel::DistributedDataParallel plain(net.clone(), options), compiled(net.clone(), options);
          auto values = [](auto& ddp) { return ddp.named_parameters(); };
          CompiledBackward backward;
          for (uint64_t i = 0; i < 6; ++i) {
            manual_seed(10 * i + static_cast<uint64_t>(rank()));
            Tensor x = randn({5, 8});
            std::optional<parallel::NoSync> quiet[2];
            if (i == 3) {
              quiet[0].emplace(plain.no_sync());
              quiet[1].emplace(compiled.no_sync());
            }
            plain(x).square().mean().backward();
            backward(compiled(x).square().mean());
            auto wanted = values(plain), got = values(compiled);
            for (size_t k = 0; k < wanted.size(); ++k) {
              ASSERT_EQ(got[k].second.grad().defined(), wanted[k].second.grad().defined()) << wanted[k].first;
              if (!got[k].second.grad().defined()) continue;
              EXPECT_TRUE(identical(got[k].second.grad(), wanted[k].second.grad())) << wanted[k].first << ' ' << i;
              if (i == 3) continue;  // the next adds up
              NoGrad guard;
              for (auto* list : {&wanted, &got}) {
                Tensor p = (*list)[k].second;
                p.sub_(p.grad() * 0.1);
                p.set_grad({});
              }
            }
          }
          EXPECT_EQ(backward.graph_count(), 1) << backward.explain();
          EXPECT_EQ(backward.stats().runs, 5) << backward.explain();
          EXPECT_EQ(backward.stats().fallbacks, 0);
          EXPECT_GE(backward.graphs()[0]->count("mm"), 3u) << backward.print();
          compiled.check_equal();
          EXPECT_EQ(compiled.unused_parameters().here, plain.unused_parameters().here);
          EXPECT_GT(compiled.buckets().size(), 1u);
        },
        {});
}

// Weights are gathered and freed by hooks in between: each node must run where it is.
TEST_P(CompiledRanks, PassesThroughShardedModulesRunAsUsual) {
  GetParam().spawn(2,
                   [] {
                     manual_seed(5);
                     Mlp net;
                     Mlp plain = net.clone(), compiled = net.clone();
                     for (Mlp* m : {&plain, &compiled}) {
                       parallel::fully_shard(m->second);
                       parallel::fully_shard(*m);
                     }
                     CompiledBackward backward;
                     for (uint64_t i = 0; i < 4; ++i) {
                       manual_seed(10 * i + static_cast<uint64_t>(rank()));
                       Tensor x = randn({5, 8});
                       plain(x).square().mean().backward();
                       backward(compiled(x).square().mean());
                       auto wanted = plain.named_parameters(), got = compiled.named_parameters();
                       for (size_t k = 0; k < wanted.size(); ++k) {
                         if (!wanted[k].second.grad().defined()) continue;
                         EXPECT_TRUE(identical(got[k].second.grad(), wanted[k].second.grad())) << wanted[k].first;
                       }
                     }
                     EXPECT_EQ(backward.stats().fallbacks, 4) << backward.explain();
                   },
                   {});
}

// Graphs that ranks have lost with their hooks are each rank's own: all go on compiling at the same call.
TEST(CompiledThreads, HooksComeToRestOnAllRanksAtOnce) {
  std::vector<std::unique_ptr<nn::Linear>> nets;
  for (int i = 0; i < 2; ++i) {
    manual_seed(1);
    nets.push_back(std::make_unique<nn::Linear>(4, 4));
  }
  auto f = compile([&](const Tensor& x) {
    Tensor y = (*nets[static_cast<size_t>(rank())])(x);
    return fn::all_reduce(y) * fn::all_reduce(x.sin());
  });
  spawn_ranks(2, [&] {
    NoGrad guard;
    auto& net = *nets[static_cast<size_t>(rank())];
    auto times = [](double k) {
      return [k](nn::ModuleBase&, const TensorList&, TensorList& out) { out[0] = out[0] * k; };
    };
    for (int i = 0; i < 4; ++i) {
      HookHandle hook = net.register_forward_hook(times(2));
      f(full({3, 4}, 0.1 * i));
      hook.remove();
      barrier();
    }
    net.register_forward_hook(times(3));
    for (int i = 0; i < 6; ++i) f(full({3, 4}, 0.1 * i));
  });
  EXPECT_GT(f.stats().runs, 0);
}

}  // namespace
}  // namespace tutti
