// The passes, one by one, on graphs that were traced: what they do, and that a broken graph is noticed.
#include "graph/passes/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/record.h"
#include "tests/support/compare.h"
#include "tutti/compile.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::graph {
namespace {

using testing::HasSubstr;

Graph traced(const std::function<TensorList(const TensorList&)>& f, const TensorList& inputs) {
  Recorder recorder("test");
  for (size_t i = 0; i < inputs.size(); ++i) recorder.argument(inputs[i], i);
  TensorList outputs;
  {
    NoGrad no_grad;
    TraceGuard tracing(recorder);
    outputs = f(inputs);
  }
  for (const Tensor& t : outputs) recorder.output(t);
  Graph graph = recorder.graph();
  verify(graph, "tracing");
  return graph;
}

Tensor x() { return ones({4, 3}); }

TEST(Passes, DeadCodeGoesAndEffectsStay) {
  Graph g = traced(
      [](const TensorList& in) {
        Tensor t = in[0];
        t.exp();  // nobody uses it
        Tensor own = t * 2;
        own.add_(1);  // nor this
        rand({2});    // but others' numbers depend on this
        t.add_(1);    // and everybody sees this
        return TensorList{t.sin()};
      },
      {x()});
  remove_dead_code(g);
  verify(g, "dead code");
  EXPECT_EQ(g.count("exp"), 0u);
  EXPECT_EQ(g.count("mul"), 0u);
  EXPECT_EQ(g.count("add"), 1u);
  EXPECT_EQ(g.count("sin"), 1u);
  EXPECT_EQ(g.nodes.size(), 3u) << to_string(g);
}

TEST(Passes, TheSameIsComputedOnce) {
  Graph g = traced([](const TensorList& in) { return TensorList{in[0].exp() * 2 + in[0].exp() * 2}; }, {x()});
  merge_common(g);
  verify(g, "common");
  EXPECT_EQ(g.count("exp"), 1u);
  EXPECT_EQ(g.count("mul"), 1u);
  // Random numbers are not the same twice, nor is a value after it was written.
  Graph r = traced(
      [](const TensorList& in) {
        Tensor a = in[0].exp();
        in[0].detach().add_(1);
        return TensorList{a + in[0].exp(), dropout(in[0], 0.5) + dropout(in[0], 0.5)};
      },
      {x()});
  size_t nodes = r.nodes.size();
  merge_common(r);
  verify(r, "common");
  EXPECT_EQ(r.nodes.size(), nodes);
}

TEST(Passes, ResultsThatLeaveStayTwo) {
  Graph g = traced([](const TensorList& in) { return TensorList{in[0].exp(), in[0].exp()}; }, {x()});
  merge_common(g);
  EXPECT_EQ(g.count("exp"), 2u);
}

TEST(Passes, WritesToMemoryOfTheGraphsOwnBecomeValues) {
  Graph g = traced(
      [](const TensorList& in) {
        Tensor y = in[0] * 2;
        y.add_(1).tanh_();
        return TensorList{y};
      },
      {x()});
  functionalise(g);
  verify(g, "functionalisation");
  for (const Node& n : g.nodes) EXPECT_EQ(n.writes, 0u) << to_string(g);
  // With a view of it about, or memory from outside, they stay.
  Graph v = traced(
      [](const TensorList& in) {
        Tensor y = in[0] * 2, part = y[0];
        y.add_(1);
        in[0].detach().mul_(3);
        return TensorList{part};
      },
      {x()});
  functionalise(v);
  verify(v, "functionalisation");
  EXPECT_EQ(std::count_if(v.nodes.begin(), v.nodes.end(), [](const Node& n) { return n.writes != 0; }), 2);
}

TEST(Passes, PointwiseOperatorsFormGroupsThatMayEndInAReduction) {
  Graph g = traced(
      [](const TensorList& in) {
        Tensor a = in[0].exp() + 1, m = matmul(a, in[1]);
        return TensorList{(m.tanh() * 2).sum(), a};
      },
      {x(), ones({3, 3})});
  find_groups(g);
  verify(g, "fusion");
  ASSERT_EQ(g.groups.size(), 2u) << to_string(g);
  EXPECT_EQ(g.groups[0].nodes.size(), 2u);
  EXPECT_FALSE(g.groups[0].reduces);
  EXPECT_EQ(g.groups[1].nodes.size(), 3u);
  EXPECT_TRUE(g.groups[1].reduces);
  EXPECT_EQ(g.groups[1].outputs.size(), 1u);
}

// a → matmul → b, and a used beside b: a and b must not be one loop around the matmul.
TEST(Passes, AGroupIsNeverAroundSomethingElse) {
  Graph g = traced(
      [](const TensorList& in) {
        Tensor a = in[0].exp();
        return TensorList{matmul(a, in[0]) + a};
      },
      {ones({3, 3})});
  find_groups(g);
  EXPECT_TRUE(g.groups.empty()) << to_string(g);
}

TEST(Passes, ValuesWhoseLivesDoNotMeetShareMemory) {
  Graph g = traced(
      [](const TensorList& in) {
        Tensor t = in[0];
        for (int i = 0; i < 8; ++i) t = t.exp();
        return TensorList{t};
      },
      {x()});
  plan_memory(g);
  EXPECT_EQ(g.plan.without_reuse, 8 * 48);
  EXPECT_EQ(g.plan.peak, 2 * 48) << to_string(g);
  // Nobody's buffer is taken while it is in use.
  for (size_t k = 0; k + 1 < g.nodes.size(); ++k)
    EXPECT_NE(g.plan.buffer[at(g.nodes[k].outputs[0])], g.plan.buffer[at(g.nodes[k + 1].outputs[0])]);
}

TEST(Passes, VerifyNoticesWhatIsBroken) {
  Graph good = traced([](const TensorList& in) { return TensorList{in[0].exp().sin()}; }, {x()});
  auto expect_broken = [&](auto change, const char* text) {
    Graph g = good;
    change(g);
    try {
      verify(g, "a pass");
      ADD_FAILURE() << "not noticed: " << text;
    } catch (const InternalError& e) {
      EXPECT_THAT(e.what(), HasSubstr("a pass"));
      EXPECT_THAT(e.what(), HasSubstr(text));
    }
  };
  expect_broken([](Graph& g) { std::swap(g.nodes[0], g.nodes[1]); }, "before it is made");
  expect_broken([](Graph& g) { g.outputs = {99}; }, "never made");
  expect_broken([](Graph& g) { g.nodes[1].writes = 1; }, "made twice");
  expect_broken([](Graph& g) { g.values[1].memory = 77; }, "memory");
  expect_broken([](Graph& g) { g.nodes[0].op = nullptr; }, "operator");
  expect_broken([](Graph& g) { g.nodes[0].kind = Kind::alias; }, "operator");
}

TEST(Passes, ViewsThatUndoEachOtherGo) {
  Graph g = traced(
      [](const TensorList& in) {
        Tensor y = in[0].exp(), back = y.t().t();
        return TensorList{back + in[0].t().t(), y.t().t()};
      },
      {x()});
  fold_layouts(g);
  remove_dead_code(g);
  verify(g, "layout");
  EXPECT_EQ(g.count("permute"), 0u) << to_string(g);
  EXPECT_EQ(g.nodes.size(), 2u) << to_string(g);
}

TEST(Passes, AResultIsNeverAnArgumentsOwnHandle) {
  Graph g = traced([](const TensorList& in) { return TensorList{in[0].t().t()}; }, {x()});
  fold_layouts(g);
  remove_dead_code(g);
  EXPECT_EQ(g.count("permute"), 2u) << to_string(g);
}

TEST(Passes, CopiesForProductsGo) {
  Graph g = traced(
      [](const TensorList& in) {
        Tensor transposed = in[0].t().contiguous(), used_twice = in[0].sin().t().contiguous();
        return TensorList{matmul(transposed, in[0]), matmul(used_twice, in[0]) * used_twice.sum()};
      },
      {x()});
  fold_layouts(g);
  remove_dead_code(g);
  verify(g, "layout");
  EXPECT_EQ(g.count("copy"), 1u) << "the one that a sum reads stays\n" << to_string(g);
}

TEST(Passes, CopiesOfWhatIsWrittenLaterStay) {
  Graph g = traced(
      [](const TensorList& in) {
        Tensor t = in[0] * 1, before = t.clone(), given = in[0].clone();
        t.add_(1);
        return TensorList{before + t, given};
      },
      {x()});
  fold_layouts(g);
  remove_dead_code(g);
  EXPECT_EQ(g.count("copy"), 2u) << to_string(g);
}

// Products of matrices take any layout and add in the same order whatever it is; the others keep their copies.
TEST(Passes, ProductsOfFoldedLayoutsAreTheSameBits) {
  auto f = [](const Tensor& a, const Tensor& b) {
    return TensorList{matmul(a.t().contiguous(), b), matmul(b.t().contiguous(), a), matmul(b.t(), a.contiguous())};
  };
  for (DType dtype : {DType::f32, DType::f64})
    for (auto [m, k, n] : {std::tuple(1, 7, 5), std::tuple(64, 1, 3), std::tuple(3, 64, 1), std::tuple(17, 33, 65),
                           std::tuple(128, 256, 96), std::tuple(300, 5, 300), std::tuple(1, 1000, 1),
                           std::tuple(40, 4095, 50), std::tuple(40, 9000, 50)}) {
      manual_seed(static_cast<uint64_t>(m * 1000 + n));
      Tensor a = randn({k, m}, {.dtype = dtype}), b = randn({k, n}, {.dtype = dtype});
      auto compiled = compile(f);
      TensorList wanted = f(a, b);
      compiled(a, b);
      TensorList got = compiled(a, b);
      if (m > 1 && n > 1 && k < 4096) {
        EXPECT_EQ(compiled.graphs()[0]->count("copy"), 0u) << compiled.print({.code = false});
      }
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_TRUE(test::identical(got[i], wanted[i])) << i << ": " << m << " " << k << " " << n << " " << name(dtype);
    }
}

}  // namespace
}  // namespace tutti::graph
