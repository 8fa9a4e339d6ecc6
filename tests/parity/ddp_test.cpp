// Section E: DistributedDataParallel. The CUDA halves of the rows come with CUDA devices.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/support/expect.h"
#include "tutti/testing.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::DistributedDataParallel;

// A module and its wrapped twin make some steps: the wrapped one with this rank's inputs, the other with those of all.
template <class M>
void compare(M net, const Shape& sizes, int steps = 10) {
  M wrapped = net.clone();
  DistributedDataParallel ddp(wrapped);
  auto input = [&](int step, int rank) {
    manual_seed(static_cast<uint64_t>(100 * step + rank));
    return randn(sizes);
  };
  optim::Adam own(net.parameters(), {.lr = 0.001}), theirs(ddp.parameters(), {.lr = 0.001});
  auto a = net.named_parameters(), b = ddp.named_parameters();
  ASSERT_EQ(a.size(), b.size());
  auto same = [&](const Tensor& x, const Tensor& y) {
    return world_size() == 1 ? equal(x, y) : allclose(x, y, 1e-4, 1e-5);
  };
  for (int step = 0; step < steps; ++step) {
    own.zero_grad();
    theirs.zero_grad();
    Tensor z = ddp(input(step, rank()));
    for (int r = 0; r < world_size(); ++r) {
      Tensor y = net(input(step, r));
      if (r == rank()) {
        EXPECT_TRUE(same(y, z)) << step;
      }
      (y.sum() / world_size()).backward();
    }
    z.sum().backward();
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same(a[i].second.grad(), b[i].second.grad())) << a[i].first;
    own.step();
    theirs.step();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_TRUE(same(a[i].second, b[i].second)) << a[i].first;
  }
}

// As processes that a starter made ranks, which meet by a file.
void meet_by_a_file(int ranks, const std::string& transport, const std::function<void()>& body) {
  static int jobs = 0;
  std::string job = "parity-" + std::to_string(::getpid()) + "-" + std::to_string(++jobs);
  std::vector<pid_t> processes;
  void* shared = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* through = new (shared) std::atomic<int>(0);
  for (int r = 0; r < ranks; ++r) {
    processes.push_back(::fork());
    if (processes.back() != 0) continue;
    for (const char* other : {"MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(other);  // without them it is a file
    ::setenv("RANK", std::to_string(r).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
    ::setenv("TUTTI_JOB", job.c_str(), 1);
    ::setenv("TUTTI_TRANSPORT", transport.c_str(), 1);
    try {
      set_num_threads(1);
      EXPECT_EQ(world_size(), ranks);
      EXPECT_EQ(world().transport(), transport);
      body();
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
    std::fflush(nullptr);
    ++*through;  // who ends before others are through would be missed by them
    for (int i = 0; i < 6000 && *through < ranks; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::_exit(testing::Test::HasFailure() ? 1 : 0);  // threads that other tests started are not in this process
  }
  for (pid_t process : processes) {
    int status = 0;
    ::waitpid(process, &status, 0);
    EXPECT_EQ(status, 0);
  }
  ::munmap(shared, sizeof(std::atomic<int>));
}

struct RnnNet : nn::Module<RnnNet> {
  nn::LSTM lstm;
  TUTTI_FIELDS(lstm)
  RnnNet() : lstm(256, 256, {.layers = 3, .batch_first = true}) {}
  Tensor forward(const Tensor& x) { return lstm(x).output; }
};

#ifndef TUTTI_SANITIZE_THREAD  // which does not follow a process that has threads into its children
struct ParityEFileStore : testing::TestWithParam<std::tuple<const char*, int>> {
  void run(const std::function<void()>& body) {
    auto [transport, ranks] = GetParam();
    if (transport != std::string("shm") && !comm::has_engine(transport)) GTEST_SKIP() << "not in this build";
    meet_by_a_file(ranks, transport, body);
  }
};
TEST_P(ParityEFileStore, Cpu) {
  run([] {
    manual_seed(1);
    compare(nn::Linear(2, 2), {30, 2});
  });
}
TEST_P(ParityEFileStore, Rnn) {
  run([] {
    manual_seed(1);
    compare(RnnNet(), {12, world_size() == 1 && world().transport() == "shm" ? 100 : 10, 256});
  });
}
INSTANTIATE_TEST_SUITE_P(Ways, ParityEFileStore,
                         testing::Combine(testing::Values("shm", "ucx", "gloo"), testing::Values(1, 2)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + ("_" + std::to_string(std::get<1>(info.param)));
                         });
#endif

struct ParityEDdp : harness::TransportTest<1, 2> {};
TUTTI_RANK_TEST(ParityEDdp, Cpu) {
  manual_seed(1);
  compare(nn::Linear(2, 2), {30, 2});
}
struct ParityEDdpRnn : harness::TransportTest<2> {};
TUTTI_RANK_TEST(ParityEDdpRnn, Rnn) {
  manual_seed(1);
  compare(RnnNet(), {12, 100, 256}, 2);
}

}  // namespace
}  // namespace tutti
