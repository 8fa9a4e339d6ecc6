// Section C of docs/parity.md: what replicas of a DataParallel keep between runs.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <system_error>
#include <thread>

#include "base/cores.h"
#include "comm/group/rank.h"
#include "comm/transport/transport.h"
#include "tests/parity/support.h"
#include "tests/support/few_threads.h"
#include "tutti/parallel/data_parallel.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using test::kTwo;

struct ParityCReplicas : testing::Test {
  void SetUp() override {
    before_ = cpu_devices();
    set_cpu_devices(2);
    manual_seed(7);
  }
  void TearDown() override { set_cpu_devices(before_); }
  int before_ = 1;
};

// Which tensors each replica had in its last run.
struct Looks : nn::Module<Looks> {
  static constexpr bool other_members = true;
  nn::Linear fc{2, 3};
  nn::Buffer scale = ones({3});
  TUTTI_FIELDS(fc, scale)
  struct Seen {
    TensorImpl *weight, *scale;
    bool training;
  };
  std::shared_ptr<std::array<Seen, 2>> seen = std::make_shared<std::array<Seen, 2>>();
  bool writes = false;
  Tensor forward(const Tensor& x) {
    auto k = static_cast<size_t>(x.device().index);
    seen->at(k) = {fc.weight.impl(), scale.impl(), is_training()};
    Tensor y = fc(x) * scale;
    NoGrad guard;
    if (writes) scale.add_(1);
    return y;
  }
};
TEST_F(ParityCReplicas, Persist) {
  Looks inner;
  parallel::DataParallel net(inner, {.devices = kTwo});
  Tensor x = randn({4, 2});
  auto run = [&] {
    Tensor wanted = net.module.fc(x) * net.module.scale.clone(), y = net(x);
    EXPECT_TRUE(allclose(y, wanted));
    return net.module.seen->at(1);
  };
  {
    NoGrad guard;
    run();  // made without gradients, they serve runs with
  }
  auto first = run(), second = run();
  EXPECT_EQ(second.weight, first.weight);
  EXPECT_EQ(second.scale, first.scale);
  EXPECT_NE(first.weight, net.module.fc.weight.impl());
  // Steps write parameters, whose memory is shared; buffers that were written are copied again, others are not.
  optim::SGD sgd(net.parameters(), {.lr = 0.5});
  net(x).sum().backward();
  EXPECT_TRUE(net.module.fc.weight.grad().defined());
  sgd.step();
  EXPECT_EQ(run().weight, first.weight);
  EXPECT_EQ(run().scale, first.scale);
  {
    NoGrad guard;
    net.module.scale.mul_(3);
  }
  auto changed = run();
  EXPECT_NE(changed.scale, first.scale);
  EXPECT_EQ(changed.weight, first.weight);
  // What a replica writes is nobody's in the next run.
  net.module.writes = true;
  for (int i = 0; i < 3; ++i) run();
  EXPECT_TRUE(equal(net.module.scale, full({3}, 6.0)));
  net.module.writes = false;
  // All else of the module is as it is now.
  net.eval();
  EXPECT_FALSE(run().training);
  net.module.fc.requires_grad_(false);
  EXPECT_FALSE(net(x).requires_grad());
  net.module.fc.requires_grad_(true);
  EXPECT_TRUE(net(x).requires_grad());
  net.to(f64);
  x = x.to(f64);
  run();
  net.module.fc = nn::Linear(2, 3);
  net.module.fc.to(f64);
  run();
  parallel::DataParallel other = net;  // has its own
  other(x);
  EXPECT_EQ(other.module.seen->at(1).scale == run().scale, false);
}

// Each replica waits in forward until all are there: one after the other they would never be.
struct Meets : nn::Module<Meets> {
  static constexpr bool other_members = true;
  nn::Linear fc{2, 3};
  TUTTI_FIELDS(fc)
  struct Hall {
    std::atomic<int> inside{0};
    std::array<std::thread::id, 2> threads;
    std::array<std::vector<int>, 2> cores;
  };
  std::shared_ptr<Hall> hall = std::make_shared<Hall>();
  Tensor forward(const Tensor& x) {
    auto k = static_cast<size_t>(x.device().index);
    hall->threads[k] = std::this_thread::get_id();
    cpu_set_t set;
    CPU_ZERO(&set);
    EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
    hall->cores[k].clear();
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) hall->cores[k].push_back(core);
    ++hall->inside;
    auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (hall->inside < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return fc(x);
  }
};
TEST_F(ParityCReplicas, RunAtTheSameTimeOnTheirDevicesCores) {
  parallel::DataParallel net(Meets{}, {.devices = kTwo});
  auto& hall = *net.module.hall;
  for (int i = 0; i < 3; ++i) {
    hall.inside = 0;
    net(randn({4, 2})).sum().backward();
    EXPECT_EQ(hall.inside, 2);
    EXPECT_NE(hall.threads[0], hall.threads[1]);
    if (process_cores().size() < 2) continue;  // there is nothing to divide
    for (int k : {0, 1}) EXPECT_EQ(hall.cores[static_cast<size_t>(k)], cores_list(kTwo[static_cast<size_t>(k)])) << k;
  }
}

// Losses that are taken where the outputs lie: each backward brings the gradient of its part, and of no other.
TEST_F(ParityCReplicas, PartsThatStayHaveGradientsOfTheirOwn) {
  nn::Linear plain(2, 3);
  parallel::DataParallel net(plain.clone(), {.devices = kTwo});
  Tensor x = randn({6, 2});
  std::vector<Tensor> outputs = net.apart(x);
  ASSERT_EQ(outputs.size(), 2u);
  TensorList sums;
  for (size_t k = 0; k < 2; ++k) {
    EXPECT_EQ(outputs[k].device(), kTwo[k]);
    net.zero_grad();
    plain.zero_grad();
    outputs[k].square().sum().backward();
    plain(x.narrow(0, 3 * static_cast<int64_t>(k), 3)).square().sum().backward();
    EXPECT_EQ(net.module.weight.grad().device(), kTwo[0]);
    EXPECT_TRUE(allclose(net.module.weight.grad(), plain.weight.grad()));
    EXPECT_TRUE(allclose(net.module.bias.grad(), plain.bias.grad()));
    sums.push_back(net.module.weight.grad().clone());
  }
  net.zero_grad();
  outputs = net.apart(x);
  for (const Tensor& y : outputs) y.square().sum().backward();
  EXPECT_TRUE(allclose(net.module.weight.grad(), sums[0] + sums[1]));
}

// Replicas of several ranks are on the same cores: Note [Waits between devices].
TEST_F(ParityCReplicas, KnowThatRanksShareTheCores) {
  spawn_ranks(3, [] { EXPECT_EQ(CoreSharers::all(), 2); });
  EXPECT_EQ(CoreSharers::all(), 0);
  spawn_processes(3, [] {
    barrier();  // all have come
    (void)std::static_pointer_cast<comm::RankGroup>(context().world)->state->spins();
    if (CoreSharers::all() != 2) throw ValueError(std::to_string(CoreSharers::all()), "sharers");
  });
  EXPECT_EQ(CoreSharers::all(), 0);
}

#ifdef TUTTI_TEST_FEW_THREADS
// Replicas that have been started end before the error comes out that says that others could not be.
TEST_F(ParityCReplicas, ThreadsThatCannotBeHadAreAnError) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  auto body = [] {
    ::alarm(60);
    parallel::Devices devices;
    for (int16_t k = 0; k < 64; ++k) devices.emplace_back(DeviceKind::cpu, k);
    set_cpu_devices(64);
    test::leave_few_threads();
    static std::atomic<int> begun{0}, ended{0};
    auto run = [](size_t) {
      ++begun;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ++ended;
    };
    try {
      parallel::detail::run_on(devices, run);
      std::_Exit(1);
    } catch (const std::system_error&) {
    }
    if (begun == 0 || begun != ended) std::_Exit(2);
    begun = ended = 0;
    parallel::detail::run_on(kTwo, run);
    std::_Exit(ended == 2 ? 0 : 3);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}
#endif

// Threads that each have a DataParallel, and threads that run the same one, do not disturb each other.
TEST_F(ParityCReplicas, ServeSeveralThreadsAtOnce) {
  parallel::DataParallel shared(nn::Linear(2, 3), {.devices = kTwo});
  auto work = [&](uint64_t seed) {
    manual_seed(seed);
    nn::Linear plain(2, 3);
    parallel::DataParallel own(plain.clone(), {.devices = kTwo});
    for (int i = 0; i < 20; ++i) {
      Tensor x = randn({4, 2});
      own.zero_grad();
      plain.zero_grad();
      own(x).square().sum().backward();
      plain(x).square().sum().backward();
      EXPECT_TRUE(allclose(own.module.weight.grad(), plain.weight.grad()));
      NoGrad guard;
      EXPECT_TRUE(allclose(shared(x), shared.module(x)));
    }
  };
  std::thread other([&] { work(2); }), third([&] { work(3); });
  work(1);
  other.join();
  third.join();
}

}  // namespace
}  // namespace tutti
