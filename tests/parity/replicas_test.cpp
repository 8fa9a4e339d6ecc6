// Section C of docs/parity.md: what replicas of a DataParallel keep between runs.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "tutti/parallel/data_parallel.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

const parallel::Devices kTwo = {"cpu:0", "cpu:1"};

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

}  // namespace
}  // namespace tutti
