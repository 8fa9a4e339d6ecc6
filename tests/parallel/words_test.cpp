// What users read when collectives that they never called go wrong: those of wrappers, and of join().
#include "tests/comm/ways.h"
#include "tests/parallel/support.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using namespace test;  // NOLINT
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class WrapperWords : public testing::TestWithParam<Way> {
 protected:
  static void spawn(const std::function<void()>& body, std::chrono::milliseconds timeout = 60s) {
    GetParam().spawn(2, body, {.timeout = timeout});
  }
  /// Until the other rank has failed.
  static void do_nothing() {
    Work never = recv_async(ones({5}), 1 - rank());
    while (!never.wait_for(10ms)) {
    }
  }
};

TEST_P(WrapperWords, ABucketThatOthersDoNotAverageIsNamed) {
  auto text = message_of<TimeoutError>([] {
    spawn([] {
      DistributedDataParallel ddp(Mlp(), {.static_graph = true, .timeout = 3s});
      ddp(ones({2, 6})).sum().backward();
      if (rank() == 1) do_nothing();
      ddp(ones({2, 6})).sum().backward();
    });
  });
  EXPECT_THAT(text, AllOf(HasSubstr("rank 0 waited 3 s in collective"),
                          ContainsRegex("all_reduce.* at words_test.cpp:[0-9]+ \\(for bucket 0 of a "
                                        "DistributedDataParallel in backward: gradients of [a-z.]+ .. [a-z.]+\\)"),
                          HasSubstr("rank 1 did not come; its last call")));
}

constexpr const char* kAdvice =
    "if they have different numbers of batches, each must run its loop inside of parallel::join()";

void uneven_batches(const std::function<void()>& after) {
  DistributedDataParallel ddp(Mlp(), {});
  for (int i = 0; i < 4 - rank(); ++i) ddp(ones({2, 6})).sum().backward();
  after();
}
TEST_P(WrapperWords, RanksWithFewerBatchesAreToldOfJoin) {
  auto text = message_of<RankFailure>([] { spawn([] { uneven_batches([] {}); }); });
  EXPECT_THAT(text, AllOf(HasSubstr("rank 1 failed: it ended without taking part"), HasSubstr(kAdvice)));
}
TEST_P(WrapperWords, AlsoWhereTheyWaitElsewhere) {
  // Whichever rank's time is over first, or a circle that is found before.
  auto text = message_of<Error>([] { spawn([] { uneven_batches([] { barrier(); }); }, 3s); });
  EXPECT_THAT(text, AllOf(HasSubstr("barrier at words_test.cpp"), HasSubstr(kAdvice)));
  EXPECT_EQ(text.find(kAdvice), text.rfind(kAdvice)) << text;
}
TEST_P(WrapperWords, AndInForwardOfBatchNormsOverRanks) {
  auto text = message_of<RankFailure>([] {
    spawn([] {
      DistributedDataParallel ddp(parallel::SyncBatchNorm(6), {});
      for (int i = 0; i < 4 - rank(); ++i) ddp(numbers({2, 6}, 1).to(f32)).sum().backward();
    });
  });
  EXPECT_THAT(text, AllOf(HasSubstr("(for SyncBatchNorm: the statistics"), HasSubstr(kAdvice)));
}
TEST_P(WrapperWords, ARankThatThrowsIsNoMatterOfBatches) {
  auto text = message_of<ValueError>([] {
    spawn([] {
      try {
        uneven_batches([] { throw ValueError("on purpose"); });
      } catch (const RankFailure& e) {
        EXPECT_THAT(e.what(), AllOf(HasSubstr("on purpose"), Not(HasSubstr(kAdvice))));
      }
    });
  });
  EXPECT_THAT(text, HasSubstr("on purpose"));
}

TEST_P(WrapperWords, DifferentUsesOfAWrapperAreNamed) {
  spawn([] {
    DistributedDataParallel ddp(Mlp(), {.static_graph = true});
    ddp(ones({2, 6})).sum().backward();
    auto text =
        message_of<MismatchError>([&] { rank() == 0 ? ddp.check_equal() : ddp(ones({2, 6})).sum().backward(); });
    EXPECT_THAT(text, AllOf(ContainsRegex("rank 0: all_gather.*for check_equal\\(\\) of a DistributedDataParallel"),
                            ContainsRegex("rank 1: all_reduce.*for bucket 0 of a DistributedDataParallel"),
                            HasSubstr(kAdvice)));
  });
}

TEST_P(WrapperWords, ARankOutsideOfJoinIsSaid) {
  auto text = message_of<Error>([] {
    spawn(
        [] {
          DistributedDataParallel ddp(Mlp(), {});
          auto step = [&] { ddp(ones({2, 6})).sum().backward(); };
          parallel::JoinOptions options;
          options.count_joined = true;
          rank() == 0 ? (void)parallel::join({ddp}, step, options) : step();
        },
        3s);
  });
  EXPECT_THAT(text, AllOf(ContainsRegex("at words_test.cpp:[0-9]+ \\(for join\\(\\): all ranks of its group must be "
                                        "inside until all are through"),
                          HasSubstr("DistributedDataParallel")));
}

TEST_P(WrapperWords, AUnitThatOthersDoNotGatherIsNamed) {
  // The next unit is fetched meanwhile: which of the two waits is over first is chance, and the other ends by its
  // failure.
  auto text = message_of<Error>([] {
    spawn([] {
      Mlp net;
      parallel::FullyShardOptions options;  // which are not where the call is
      options.timeout = 3s;
      parallel::fully_shard(net.first, options);
      parallel::fully_shard(net, options);
      net(ones({2, 6}));
      if (rank() == 1) do_nothing();
      net(ones({2, 6}));
    });
  });
  EXPECT_THAT(text,
              AllOf(HasSubstr("rank 0 waited 3 s in collective"),
                    ContainsRegex("all_gather.* at words_test.cpp:[0-9]+ \\(for fully_shard: the parameters of ")));
}

std::vector<Way> few_ways() {
  std::vector<Way> ways = one_host_ways();
#ifndef TUTTI_SANITIZE_THREAD
  if (comm::has_ucx()) ways.push_back(kUcx);
  if (comm::has_gloo()) ways.push_back(kGloo);
#endif
  return ways;
}
INSTANTIATE_TEST_SUITE_P(Ways, WrapperWords, testing::ValuesIn(few_ways()), testing::PrintToStringParamName());

struct StaticGraph : QuickTest<2> {};

TUTTI_RANK_TEST(StaticGraph, TakesSeveralForwardsBeforeABackward) {
  Mlp net = seeded<Mlp>(), whole = net.clone();
  DistributedDataParallel ddp(net, {.static_graph = true});
  for (uint64_t step = 0; step < 3; ++step) {
    net.zero_grad();
    whole.zero_grad();
    Tensor a = numbers({4, 6}, step), b = numbers({4, 6}, step + 10);
    Tensor one = ddp(mine(a, 2)), two = ddp(mine(b, 2));
    (one.pow(2).mean() + two.mean()).backward();
    (whole(a).pow(2).mean() + whole(b).mean()).backward();
    expect_same_gradients(net, whole);
  }
}

TUTTI_RANK_TEST(StaticGraph, SaysWhatIsNotAsInTheFirstStep) {
  DistributedDataParallel ddp(Mlp(), {.static_graph = true});
  Tensor x = ones({2, 6});
  ddp(x).sum().backward();
  Tensor one = ddp(x), two = ddp(x);
  // Two backwards of one kind each are two steps; what one backward goes through twice is added up before it counts.
  EXPECT_NO_THROW((one.sum() + two.sum()).backward());
  EXPECT_THAT(message_of<ValueError>([&] { ddp.module.last(ones({2, 8})).sum().backward(); }),
              AllOf(HasSubstr("the graph is said to be static"),
                    HasSubstr("first.weight: a gradient came never, in the first step once"),
                    HasSubstr("Run the same forwards before every backward, or leave static_graph away (at ")));
}

// Where the wrapper was made, wherever its options were.
TUTTI_RANK_TEST(StaticGraph, ErrorsNameTheLineOfTheWrapper) {
  auto place_of = [](auto& ddp) {
    ddp(ones({2, 6})).sum().backward();
    auto text = message_of<ValueError>([&] { ddp.module.last(ones({2, 8})).sum().backward(); });
    auto from = text.find("(at ");
    return text.substr(from, text.find(')', from) - from);
  };
  auto here = [](int line) { return "(at words_test.cpp:" + std::to_string(line); };
  parallel::DdpOptions declared;
  declared.static_graph = true;
  parallel::DdpOptions given{.static_graph = true};
  DistributedDataParallel one(Mlp(), declared);
  EXPECT_EQ(place_of(one), here(__LINE__ - 1));
  DistributedDataParallel two(Mlp(), given);
  EXPECT_EQ(place_of(two), here(__LINE__ - 1));
  DistributedDataParallel three(Mlp(), {.static_graph = true});
  EXPECT_EQ(place_of(three), here(__LINE__ - 1));
  // What makes it is not in the program, so that all it knows of that is where the options are from.
  using Wrapper = DistributedDataParallel<Mlp>;
  auto four = std::make_unique<Wrapper>(Mlp(), parallel::DdpOptions{.static_graph = true});
  EXPECT_EQ(place_of(*four), here(__LINE__ - 1));
}

}  // namespace
}  // namespace tutti
