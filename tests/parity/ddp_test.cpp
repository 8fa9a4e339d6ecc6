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

// A module and its wrapped twin make ten steps: the wrapped one with this rank's inputs, the other with those of all.
template <class M>
void compare(M net, const Shape& sizes) {
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
  for (int step = 0; step < 10; ++step) {
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

// As a process that a starter made rank 0 of 1, which meets itself by a file.
void in_world_of_one(const std::function<void()>& body) {
  pid_t pid = ::fork();
  if (pid == 0) {
    for (const char* other : {"MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(other);  // without them it is a file
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
    ::_exit(testing::Test::HasFailure() ? 1 : 0);  // threads that other tests started are not in this process
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
  in_world_of_one([] { compare(nn::Linear(2, 2), {30, 2}); });
}
TEST(ParityEFileStore, Rnn) {
  in_world_of_one([] { compare(RnnNet(), {12, 100, 256}); });
}
#endif

struct ParityEDdp : harness::TransportTest<1, 2> {};
TUTTI_RANK_TEST(ParityEDdp, Cpu) {
  manual_seed(1);
  compare(nn::Linear(2, 2), {30, 2});
}
struct ParityEDdpRnn : harness::TransportTest<2> {};
TUTTI_RANK_TEST(ParityEDdpRnn, Rnn) {
  manual_seed(1);
  compare(RnnNet(), {12, 20, 256});
}

}  // namespace
}  // namespace tutti
