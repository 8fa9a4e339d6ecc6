// What a rank knows before it has met the others, and what threads that it starts itself know.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <thread>

#include "tests/comm/started.h"
#include "tests/comm/ways.h"
#include "tests/support/expect_ops.h"
#include "tutti/comm.h"
#include "tutti/context.h"
#include "tutti/data.h"
#include "tutti/io.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using testing::HasSubstr;

// A starter's variables, for the lifetime of the object. Threads made meanwhile see them first.
struct StarterVariables {
  StarterVariables(const char* rank, const char* size) {
    ::setenv("RANK", rank, 1);
    ::setenv("WORLD_SIZE", size, 1);
  }
  ~StarterVariables() {
    ::unsetenv("RANK");
    ::unsetenv("WORLD_SIZE");
  }
};
void in_thread(const std::function<void()>& body) { std::thread(body).join(); }

TEST(Launched, SamplersKnowTheirShareBeforeTheWorldIsFound) {
  StarterVariables variables("1", "4");
  in_thread([] {
    EXPECT_EQ(context().rank, 1);
    EXPECT_EQ(context().world_size, 4);
    EXPECT_EQ(data::distributed_sampler(100).size(), 25u);
    EXPECT_EQ(data::distributed_sampler(100, {.shuffle = false}).indices(0)[0], 1);
  });
}

TEST(Launched, RanksDrawNumbersOfTheirOwnAsSpawnedOnesDo) {
  std::vector<float> spawned;
  spawn_ranks(4, [&] {
    if (rank() == 3) spawned = rand({5}).to_vector<float>();
  });
  StarterVariables variables("3", "4");
  in_thread([&] {
    EXPECT_EQ(rand({5}).to_vector<float>(), spawned);
    EXPECT_EQ(generator().rank(), 3);
  });
  in_thread([&] { EXPECT_NE(rand({5}).to_vector<float>(), spawned); });  // another thread: its own
}

TEST(Launched, NonsenseIsLeftToTheWorldToComplainOf) {
  for (auto [rank, size] : {std::pair{"4", "4"}, {"-1", "2"}, {"one", "2"}}) {
    StarterVariables variables(rank, size);
    in_thread([] {
      EXPECT_EQ(context().rank, -1);
      EXPECT_EQ(data::distributed_sampler(10).size(), 10u);
    });
  }
}

class ThreadsOfARank : public testing::TestWithParam<test::Way> {
 protected:
  void spawn(int n, const std::function<void()>& body) { GetParam().spawn(n, body, {}); }
};

TEST_P(ThreadsOfARank, HaveItsWorldOrAreToldThatTheyHaveNone) {
  bool threads = std::string(GetParam().name) == "threads";
  spawn(2, [&] {
    Tensor x = ones({1});
    Group all = world();
    Context mine = context();
    in_thread([&] {
      if (threads) {
        EXPECT_THAT(test::message_of<ValueError>([&] { all_reduce(x); }), HasSubstr("none of the 2 ranks"));
        EXPECT_THAT(test::message_of<ValueError>([] { rank(); }), HasSubstr("ContextGuard"));
        all_reduce(x, {.group = all});
      } else {
        EXPECT_EQ(world_size(), 2);
        EXPECT_EQ(rank(), all.rank());
        all_reduce(x);
      }
    });
    EXPECT_EQ(x.item<float>(), 2);
    in_thread([&] {
      ContextGuard guard(mine);
      all_reduce(x);
    });
    EXPECT_EQ(x.item<float>(), 4);
  });
}
INSTANTIATE_TEST_SUITE_P(Ways, ThreadsOfARank, test::every_way(),
                         [](const auto& p) { return std::string(p.param.name); });

// What a body has caught, and went on without, is its own affair.
TEST_P(ThreadsOfARank, ErrorsThatBodiesHaveCaughtAreNotThrownAgain) {
  spawn(2, [] {
    EXPECT_THROW(
        {
          if (rank() == 0) throw std::runtime_error("caught at once");
          Tensor x = ones({1});
          all_reduce(x, {.timeout = std::chrono::milliseconds(300)});
        },
        std::exception);
  });
}

TEST(Launched, OneRanksCheckpointServesAll) {
  io::State saved_loader, saved_random;
  std::vector<std::vector<int64_t>> left(2);
  std::vector<std::vector<float>> drawn(2);
  data::TensorDataset numbers(arange(40, {.dtype = i64}));
  auto make = [&] {
    return data::DataLoader(numbers, {.batch_size = 4, .sampler = data::distributed_sampler(40, {.seed = 3})});
  };
  spawn_ranks(2, [&] {
    auto loader = make();
    int batches = 0;
    for (Tensor& batch : loader) {
      if (batches++ == 2) {
        rand({3});
        if (rank() == 0) {
          saved_loader = loader.state();
          saved_random = io::state_of(generator());
        }
        drawn[static_cast<size_t>(rank())] = rand({4}).to_vector<float>();
      } else if (batches > 3) {
        for (int64_t i : batch.to_vector<int64_t>()) left[static_cast<size_t>(rank())].push_back(i);
      }
    }
  });
  ASSERT_NE(left[0], left[1]);
  ASSERT_NE(drawn[0], drawn[1]);
  spawn_ranks(2, [&] {
    auto loader = make();
    loader.load_state(saved_loader);
    io::load_into(generator(), saved_random);
    EXPECT_EQ(rand({4}).to_vector<float>(), drawn[static_cast<size_t>(rank())]);
    std::vector<int64_t> rest;
    for (Tensor& batch : loader)
      for (int64_t i : batch.to_vector<int64_t>()) rest.push_back(i);
    EXPECT_EQ(rest, left[static_cast<size_t>(rank())]);
  });
  // Chosen seeds are the same for all.
  spawn_ranks(2, [&] {
    manual_seed(7);
    io::State state = io::state_of(generator());
    std::vector<float> first = rand({3}).to_vector<float>();
    io::load_into(generator(), state);
    EXPECT_EQ(rand({3}).to_vector<float>(), first);
  });
}

TEST(Launch, StartsThreadsWhereNoLauncherDid) {
  std::atomic<int> ranks{0};
  in_thread([&] {
    launch(3, [&] {
      EXPECT_EQ(world_size(), 3);
      Tensor x = ones({2});
      all_reduce(x);
      EXPECT_EQ(x[0].item<int>(), 3);
      ++ranks;
    });
  });
  EXPECT_EQ(ranks, 3);
  EXPECT_THROW(launch(0, [] {}), ValueError);
}

TEST(Launch, IsTheRankThatALauncherStarted) {
  test::start_with(test::ranks_of(2, [](int) { return test::Variables(); }), [] {
    int calls = 0;
    launch(4, [&] {  // the launcher's number of ranks counts
      ++calls;
      EXPECT_EQ(world_size(), 2);
      Tensor x = ones({2});
      all_reduce(x);
      EXPECT_EQ(x[0].item<int>(), 2);
      EXPECT_EQ(world().transport(), "shm");
    });
    EXPECT_EQ(calls, 1);
  });
}

TEST(Launch, RefusesVariablesThatMakeNoSense) {
  StarterVariables variables("4", "4");
  in_thread([] { EXPECT_THROW(launch(2, [] { ADD_FAILURE(); }), ValueError); });
}

}  // namespace
}  // namespace tutti
