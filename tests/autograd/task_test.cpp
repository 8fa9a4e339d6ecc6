// A GraphTask that is continued whenever gradients come, and never waits.
#include <algorithm>

#include "autograd/engine.h"
#include "autograd/meta.h"
#include "tests/support/expect_ops.h"

namespace tutti {
namespace {

using namespace test;  // NOLINT

TEST(OpenTask, GoesAsFarAsItCan) {
  Tensor x = ones({2}, {.requires_grad = true}), z = ones({2}, {.requires_grad = true});
  Tensor y = x * 2, loss = (z * 3).sum();
  GraphTask task({});
  task.add_root(gradient_edge(loss), ones({}));
  Edge edge = gradient_edge(y);
  task.expect(edge.node);
  task.open();
  EXPECT_FALSE(task.proceed());
  EXPECT_EQ(z.grad().to_vector<float>(), (std::vector<float>{3, 3}));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(task.proceed());
  task.deliver(edge, ones({2}) * 10);
  EXPECT_TRUE(task.proceed());
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{20, 20}));
}

TEST(OpenTask, AddsGroupByGroupWhateverComesFirst) {
  std::vector<float> values = {1e8f, 1.f, -1e8f};  // whose sum depends on the order: the first two, then the last, is 0
  std::vector<size_t> order = {0, 1, 2};
  do {
    Tensor x = ones({1}, {.requires_grad = true});
    TensorList ys = {x * 1, x * 1, x * 1};  // the last has the highest number
    GraphTask task({});
    for (uint32_t k = 0; k < 3; ++k) task.expect(gradient_edge(ys[k]).node, k + 1);
    task.open();
    for (size_t k : order) {
      task.deliver(gradient_edge(ys[k]), tensor({values[k]}));
      task.proceed();
    }
    EXPECT_EQ(x.grad().item<float>(), 0);
  } while (std::next_permutation(order.begin(), order.end()));
  // Of one group the highest numbers come first: -1e8, 1, 1e8.
  Tensor x = ones({1}, {.requires_grad = true});
  TensorList ys = {x * 1, x * 1, x * 1};
  GraphTask task({});
  for (const Tensor& y : ys) task.expect(gradient_edge(y).node);
  task.open();
  for (size_t k : {1, 0, 2}) task.deliver(gradient_edge(ys[k]), tensor({values[k]}));
  EXPECT_TRUE(task.proceed());
  EXPECT_EQ(x.grad().item<float>(), (-1e8f + 1.f) + 1e8f);
}

TEST(OpenTask, ErrorsEndIt) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = x * 2, z = x * 3;
  y.register_hook([](const Tensor&) -> Tensor { throw ValueError("on purpose"); });
  GraphTask task({});
  task.expect(gradient_edge(y).node);
  task.expect(gradient_edge(z).node);
  bool told = false, well = true;
  z.register_hook([&](const Tensor& g) {
    after_backward([&](bool w) {
      told = true;
      well = w;
    });
    return g;
  });
  task.open();
  task.deliver(gradient_edge(z), ones({2}));
  EXPECT_FALSE(task.proceed());
  EXPECT_FALSE(told);
  task.deliver(gradient_edge(y), ones({2}));
  EXPECT_THROW(task.proceed(), ValueError);
  EXPECT_TRUE(told);
  EXPECT_FALSE(well);
  EXPECT_FALSE(x.grad().defined());

  GraphTask other({});
  other.expect(gradient_edge(z).node);
  other.open();
  other.cancel(std::make_exception_ptr(CancelledError("enough")));
  EXPECT_THROW(other.proceed(), CancelledError);
}

}  // namespace
}  // namespace tutti
