// Section E: DistributedDataParallel. The CUDA halves of the rows come with CUDA devices.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/support/expect.h"
#include "tutti/testing.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT
using parallel::DistributedDataParallel;

// A module and its wrapped twin make ten steps with the same inputs.
template <class M>
void compare(M net, const Tensor& input) {
  M wrapped = net.clone();
  DistributedDataParallel ddp(wrapped);
  optim::Adam own(net.parameters(), {.lr = 0.001}), theirs(ddp.parameters(), {.lr = 0.001});
  for (int step = 0; step < 10; ++step) {
    Tensor x = input.index_select(0, randperm(input.size(0)));
    own.zero_grad();
    theirs.zero_grad();
    Tensor y = net(x), z = ddp(x);
    EXPECT_TRUE(equal(y, z));
    y.sum().backward();
    z.sum().backward();
    own.step();
    theirs.step();
  }
  auto a = net.named_parameters(), b = ddp.named_parameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_TRUE(equal(a[i].second, b[i].second)) << a[i].first;
    EXPECT_TRUE(a[i].second.allclose(b[i].second)) << a[i].first;
  }
}

// As a process that a starter made rank 0 of 1, which meets itself by a file.
void in_world_of_one(const std::function<void()>& body) {
  pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "1", 1);
    ::setenv("TUTTI_JOB", ("parity-" + std::to_string(::getpid())).c_str(), 1);
    try {
      set_num_threads(1);
      EXPECT_EQ(world_size(), 1);
      EXPECT_EQ(world().transport(), "shm");
      body();
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
    std::fflush(nullptr);
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

struct RnnNet : nn::Module<RnnNet> {
  nn::LSTM lstm;
  TUTTI_FIELDS(lstm)
  RnnNet() : lstm(256, 256, {.layers = 3, .batch_first = true}) {}
  Tensor forward(const Tensor& x) { return lstm(x).output; }
};

#ifndef TUTTI_SANITIZE_THREAD  // which does not follow a process that has threads into its children
TEST(ParityEFileStore, Cpu) {
  in_world_of_one([] { compare(nn::Linear(2, 2), randn({30, 2})); });
}
TEST(ParityEFileStore, Rnn) {
  in_world_of_one([] { compare(RnnNet(), randn({12, 100, 256})); });
}
#endif

struct ParityEDdp : harness::TransportTest<1, 2> {};
TUTTI_RANK_TEST(ParityEDdp, Cpu) {
  manual_seed(1);
  compare(nn::Linear(2, 2), randn({30, 2}));
}

}  // namespace
}  // namespace tutti
