// Compiled functions in anomaly mode, and after a pass that failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/compile.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

// Looking for NaN reads values, which is no part of what is computed.
TEST(CompiledAnomaly, OfGradientsWithoutNaN) {
  Tensor x = full({4}, 0.5, {.requires_grad = true}), y = full({4}, 0.5, {.requires_grad = true});
  auto f = [](const Tensor& t) { return tanh(t * 2) + t; };
  auto compiled = compile(f);
  AnomalyMode guard;
  compiled(x).sum().backward();
  f(y).sum().backward();
  EXPECT_TRUE(equal(x.grad(), y.grad()));
}

// A pass that failed at the node, before it ran, was not its last.
TEST(CompiledAnomaly, RetainedPassesAfterOneThatFailed) {
  Tensor x = full({4}, 0.5, {.requires_grad = true});
  auto compiled = compile([](const Tensor& t) { return tanh(t * 2) * t; });
  compiled(x).sum().backward();  // so that the next call runs the graph
  Tensor expected = x.grad().clone(), y = compiled(x);
  auto handle = y.register_hook([](const Tensor&) -> Tensor { throw ValueError("stopped"); });
  EXPECT_THROW(y.sum().backward(), ValueError);
  handle.remove();
  for (int pass = 0; pass < 2; ++pass) {
    x.zero_grad();
    y.sum().backward({.retain_graph = true});
    EXPECT_TRUE(equal(x.grad(), expected)) << pass;
  }
}

}  // namespace
}  // namespace tutti
