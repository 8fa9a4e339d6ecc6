// Modules that are moved between devices while they are trained.
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tutti/nn.h"
#include "tutti/optim.h"

namespace tutti::test {
namespace {

using namespace optim;

template <class O>
void expect_same_when_moved(auto options) {
  manual_seed(1);
  nn::Linear moved(3, 2), stays = moved.clone();
  O one(moved.parameters(), options), two(stays.parameters(), options);
  Tensor x = randn({4, 3}), y = randn({4, 2});
  auto step = [&](nn::Linear& net, O& optimizer) {
    Device device = net.weight.device();
    optimizer.zero_grad();
    mse_loss(net(x.to(device)), y.to(device)).backward();
    optimizer.step();
  };
  for (const char* device : {"cpu:0", "cpu:1", "cpu:1", "cpu:0"}) {
    moved.to(device);
    step(moved, one);
    step(stays, two);
    EXPECT_EQ(moved.weight.device(), Device(device));
    EXPECT_TRUE(identical(moved.weight.detach().to("cpu:0"), stays.weight.detach())) << device;
  }
  // A state of one device is loaded on another.
  moved.to("cpu:1");
  one.load_state(two.state());
  step(moved, one);
  step(stays, two);
  EXPECT_TRUE(identical(moved.weight.detach().to("cpu:0"), stays.weight.detach()));
}

TEST(Optimizer, StatesFollowTheDeviceOfTheParameters) {
  Devices guard(2);
  expect_same_when_moved<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9});
  expect_same_when_moved<Adam>(AdamOptions{.lr = 0.1, .amsgrad = true});
  expect_same_when_moved<AdamW>(AdamWOptions{.lr = 0.1});
  expect_same_when_moved<Adagrad>(AdagradOptions{.lr = 0.1, .initial = 0.5});
  expect_same_when_moved<RMSprop>(RMSpropOptions{.lr = 0.1, .momentum = 0.5, .centered = true});
  expect_same_when_moved<Lion>(LionOptions{.lr = 0.1});
}

}  // namespace
}  // namespace tutti::test
