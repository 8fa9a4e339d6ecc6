// batch_norm in blocks that does what its neighbours would: eager's bits, and fewer passes over memory. See Note [Norms
// and their neighbours].
#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "tests/graph/support.h"
#include "tests/support/compare.h"
#include "tutti/tutti.h"

namespace tutti::test {
namespace {

// What stands around norms in networks, and some things that only look like it.
struct Parts {
  nn::Conv2d stem{3, 32, 3, {.padding = 1}}, first{32, 32, 3, {.padding = 1}};
  nn::Conv2d second{32, 32, 3, {.padding = 1, .bias = false}}, side{32, 32, 1}, last{32, 16, 3};
  nn::BatchNorm2d norm1{32}, norm2{32, {.affine = false}}, norm3{32};
};
using Body = Tensor (*)(Parts&, const Tensor&);
struct NormNetwork : nn::Module<NormNetwork>, Parts {
  static constexpr bool other_members = true;
  Body body;
  explicit NormNetwork(Body body) : body(body) {}
  TUTTI_FIELDS(stem, first, second, side, last, norm1, norm2, norm3)
  Tensor forward(const Tensor& x) { return last(body(*this, relu(stem(x)))); }
};

struct NormCase {
  const char* name;
  Body body;
  size_t relus, adds, relu_gradients, sums;  // that are left between convolutions
};
std::ostream& operator<<(std::ostream& out, const NormCase& c) { return out << c.name; }
const NormCase kCases[] = {
    {"relu", [](Parts& p, const Tensor& x) { return relu(p.norm1(p.first(x))); }, 0, 0, 0, 0},
    {"without a bias", [](Parts& p, const Tensor& x) { return relu(p.norm2(p.second(x))); }, 0, 0, 0, 0},
    {"alone", [](Parts& p, const Tensor& x) { return p.norm1(p.first(x)); }, 0, 0, 0, 0},
    {"shortcut", [](Parts& p, const Tensor& x) { return relu(x + p.norm1(p.first(x))); }, 0, 0, 0, 0},
    {"shortcut behind", [](Parts& p, const Tensor& x) { return relu(p.norm1(p.first(x)) + x); }, 0, 0, 0, 0},
    {"shortcut without relu", [](Parts& p, const Tensor& x) { return p.norm1(p.first(x)) + x; }, 0, 0, 0, 0},
    {"two in a row", [](Parts& p, const Tensor& x) { return relu(x + p.norm2(p.second(relu(p.norm1(p.first(x)))))); },
     0, 0, 0, 0},
    // The later one adds what the other gives; of their gradients, that which comes first is relu's too.
    {"shortcut with a norm",
     [](Parts& p, const Tensor& x) {
       Tensor a = p.norm1(p.first(x)), b = p.norm3(p.side(x));
       return relu(a + b);
     },
     0, 0, 0, 0},
    {"shortcut that is made later",
     [](Parts& p, const Tensor& x) {
       Tensor a = p.norm1(p.first(x)), b = p.side(x);
       return relu(a + b);
     },
     1, 1, 1, 1},
    {"norm that is read twice",
     [](Parts& p, const Tensor& x) {
       Tensor a = p.norm1(p.first(x));
       return relu(a) * a;
     },
     1, 0, 1, 0},
    {"added to itself",
     [](Parts& p, const Tensor& x) {
       Tensor a = p.norm1(p.first(x));
       return relu(a + a);
     },
     1, 1, 1, 0},
    {"a number is added", [](Parts& p, const Tensor& x) { return relu(p.norm1(p.first(x)) + 0.25); }, 1, 1, 0, 0},
    {"a row is added",
     [](Parts& p, const Tensor& x) { return relu(p.norm1(p.first(x)) + p.norm3.weight.reshape({32, 1, 1})); }, 1, 1, 1,
     1},
    {"relu that is read twice",
     [](Parts& p, const Tensor& x) {
       Tensor a = relu(p.norm1(p.first(x)));
       return a + p.side(a);
     },
     0, 1, 0, 1},
    // relu's gradient is taken of the pool's results.
    {"pool", [](Parts& p, const Tensor& x) { return max_pool2d(relu(p.norm1(p.first(x))), 2); }, 0, 0, 1, 0},
    {"shortcut and pool",
     [](Parts& p, const Tensor& x) {
       return max_pool2d(relu(x + p.norm1(p.first(x))), 3, {.stride = 2, .padding = 1});
     },
     0, 0, 1, 0},
    {"pool that is dilated",
     [](Parts& p, const Tensor& x) {
       return max_pool2d(relu(p.norm1(p.first(x))), 2, {.stride = 1, .padding = 1, .dilation = 3});
     },
     0, 0, 0, 0},
    {"pool of what is read twice",
     [](Parts& p, const Tensor& x) {
       Tensor a = relu(p.norm1(p.first(x)));
       return max_pool2d(a, 3, {.stride = 1, .padding = 1}) * a;
     },
     0, 0, 0, 0},
    {"relu that is written",
     [](Parts& p, const Tensor& x) {
       Tensor a = relu(p.norm1(p.first(x)));
       a.mul_(2);
       return p.side(a);
     },
     1, 0, 0, 1},
};

TensorList run_step(auto& f, NormNetwork& net, const Tensor& x) {
  net.zero_grad();
  Tensor in = x.clone().requires_grad_(), out = f(in);
  (out * out).sum().backward();
  TensorList found{out, in.grad()};
  for (const Tensor& p : net.parameters()) found.push_back(p.grad());
  for (const Tensor& b : net.buffers()) found.push_back(b);
  return found;
}

void expect_same_bits(const TensorList& got, const TensorList& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << i;
    if (got[i].defined()) {
      EXPECT_TRUE(identical(got[i], expected[i])) << i;
    }
  }
}

class Norms : public testing::TestWithParam<NormCase> {};
std::string case_name(const testing::TestParamInfo<NormCase>& info) {
  std::string name = info.param.name;
  for (char& c : name) c = c == ' ' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, Norms, testing::ValuesIn(kCases), case_name);

TEST_P(Norms, HaveEagersBits) {
  std::pair<Shape, int> forms[] = {{{2, 3, 13, 10}, 1}, {{4, 3, 16, 16}, 2}, {{1, 3, 9, 9}, 1}, {{2, 3, 50, 49}, 3}};
  for (const auto& [sizes, threads] : forms) {
    SCOPED_TRACE(testing::Message() << sizes[2] << "x" << sizes[3] << " threads " << threads);
    ThreadsGuard guard(threads);
    manual_seed(1);
    NormNetwork net(GetParam().body);
    manual_seed(1);
    NormNetwork other(GetParam().body);
    auto step = compile([&](const Tensor& x) { return other(x); });
    for (uint64_t turn = 0; turn < 3; ++turn) {
      Tensor x = images(sizes, turn);
      expect_same_bits(run_step(step, other, x), run_step(net, net, x));
    }
  }
}

TEST_P(Norms, InfinityNaNAndZeros) {
  for (float odd : {INFINITY, -INFINITY, NAN, 3e38F, 0.0F, -0.0F}) {
    SCOPED_TRACE(odd);
    ThreadsGuard guard(1);
    manual_seed(1);
    NormNetwork net(GetParam().body);
    manual_seed(1);
    NormNetwork other(GetParam().body);
    for (NormNetwork* n : {&net, &other}) {
      NoGrad no_grad;
      Tensor(n->norm1.weight).slice(0, 0, 8).fill_(0);  // zeros of both signs come to relu
      Tensor(n->norm1.bias).slice(0, 0, 4).fill_(-0.0F);
    }
    auto step = compile([&](const Tensor& x) { return other(x); });
    for (uint64_t turn = 0; turn < 2; ++turn) {
      Tensor x = images({2, 3, 13, 11}, turn);
      x.index({0, 1}).fill_(odd);
      expect_same_bits(run_step(step, other, x), run_step(net, net, x));
    }
  }
}

TEST_P(Norms, LeaveNothingToTheirNeighbours) {
  if (!has_blocks()) GTEST_SKIP() << "oneDNN has blocks of 16 channels with AVX-512 only";
  NormNetwork net(GetParam().body);
  auto step = compile([&](const Tensor& x) { return net(x); });
  for (uint64_t turn = 0; turn < 2; ++turn) run_step(step, net, images({4, 3, 16, 16}, turn));
  auto graphs = step.graphs();
  ASSERT_EQ(graphs.size(), 2u);
  // Of images in blocks.
  auto count = [&](const graph::Graph& g, std::string_view name, bool reads) {
    size_t found = 0;
    for (const graph::Node& n : g.nodes)
      if (n.op && name == n.op->name) found += g.type(reads ? n.inputs[0] : n.outputs[0]).sizes.size() == 5;
    return found;
  };
  EXPECT_EQ(count(*graphs[0], "relu", false), GetParam().relus + 1) << step.print({.code = false});  // and the stem's
  EXPECT_EQ(count(*graphs[0], "add", false), GetParam().adds);
  EXPECT_EQ(count(*graphs[1], "relu_gradient0", false), GetParam().relu_gradients + 1);
  EXPECT_EQ(count(*graphs[1], "sum_blocked", true), GetParam().sums + 1);
}

// A result that the caller gets may be written before backward, which eager allows: relu keeps its input.
TEST(NormsBeside, ResultsThatAreWrittenBeforeBackward) {
  nn::Conv2d conv{3, 32, 3, {.padding = 1}};
  nn::BatchNorm2d norm{32};
  auto f = [&](const Tensor& x) {
    Tensor y = relu(norm(conv(x)));
    return TensorList{y, (y * 3).sum()};
  };
  auto step = compile(f);
  for (uint64_t turn = 0; turn < 3; ++turn) {
    TensorList outcome[2];
    auto run = [&](auto& g, TensorList& kept) {
      conv.zero_grad(), norm.zero_grad();
      TensorList y = g(images({2, 3, 12, 12}, turn));
      {
        NoGrad no_grad;
        y[0].detach().zero_();
      }
      y[1].backward();
      for (const Tensor& p : conv.parameters()) kept.push_back(p.grad());
      for (const Tensor& p : norm.parameters()) kept.push_back(p.grad());
    };
    run(f, outcome[0]), run(step, outcome[1]);
    for (size_t i = 0; i < outcome[0].size(); ++i) EXPECT_TRUE(identical(outcome[1][i], outcome[0][i])) << turn << i;
  }
}

// What relu gives is read by the next product, so its input need not be kept beside it.
TEST(NormsBeside, ReluIsKeptByItsResults) {
  nn::Linear first{32, 64}, second{64, 8};
  auto step = compile([&](const Tensor& x) { return second(relu(first(x))); });
  for (uint64_t turn = 0; turn < 2; ++turn) {
    manual_seed(turn);
    step(randn({16, 32})).sum().backward();
  }
  EXPECT_EQ(step.stats().saved_bytes, 16 * 64 * 4) << step.print({.code = false});
}

// The second relu reads what has been written since the first; what that gave says nothing of it.
TEST(NormsBeside, ReluOfAValueThatIsWrittenBetweenTwo) {
  auto watched = [](const Tensor& x) {
    Tensor h = x * 2, before = relu(h).detach();
    h.mul_(-1);
    return (before * 3).sum() + relu(h).square().sum();
  };
  auto twice = [](const Tensor& x) { return (relu(relu(x * 2)) * 3).square().sum(); };
  auto expect_same = [](auto f) {
    auto compiled = compile(f);
    for (uint64_t turn = 0; turn < 3; ++turn) {
      manual_seed(turn);
      Tensor x = randn({50}), a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
      f(a).backward();
      compiled(b).backward();
      EXPECT_TRUE(identical(b.grad(), a.grad())) << turn;
    }
  };
  expect_same(watched);
  expect_same(twice);
}

TEST(NormsBeside, ReluOfRelu) {
  nn::Linear first{8, 8}, second{8, 4};
  auto f = [&](const Tensor& x) { return second(relu(relu(first(x)))); };
  auto step = compile(f);
  for (uint64_t turn = 0; turn < 3; ++turn) {
    manual_seed(turn);
    Tensor x = randn({4, 8});
    first.zero_grad();
    f(x).sum().backward();
    Tensor expected = first.weight.grad().clone();
    first.zero_grad();
    step(x).sum().backward();
    EXPECT_TRUE(identical(first.weight.grad(), expected)) << turn;
  }
}

// Of what is pooled, the places and the results are kept, and not what was pooled.
TEST(NormsBeside, ReluBeforeAPoolIsNotKept) {
  nn::Linear first{64, 64}, second{16, 8};
  auto f = [&](const Tensor& x) {
    return second(max_pool2d(relu(first(x).reshape({16, 1, 8, 8})), 2).reshape({16, 16}));
  };
  auto step = compile(f);
  for (uint64_t turn = 0; turn < 3; ++turn) {
    manual_seed(turn);
    Tensor x = randn({16, 64});
    TensorList outcome[2];
    auto run = [&](auto& h, TensorList& kept) {
      first.zero_grad(), second.zero_grad();
      kept.push_back(h(x));
      (kept[0] * kept[0]).sum().backward();
      for (const Tensor& p : first.parameters()) kept.push_back(p.grad());
    };
    run(f, outcome[0]), run(step, outcome[1]);
    expect_same_bits(outcome[1], outcome[0]);
  }
  int64_t pooled = 16 * 16;
  EXPECT_EQ(step.stats().saved_bytes, pooled * 4 + pooled * 8) << step.print({.code = false});
}

// A compiled function that is part of another, or whose backward pass is captured, has norms with neighbours in them
// already.
TEST(NormsBeside, ThatWereFusedBefore) {
  Parts p;
  // The second relu's gradient is beside a norm's that has the first one's in it.
  auto twice = [&](const Tensor& x) { return p.second(relu(relu(p.norm3(p.side(x)) + x))); };
  auto shortcut = [&](const Tensor& x) { return p.norm1(p.first(x)) + x; };
  auto f = [&](const Tensor& x, auto& g, auto& h) { return p.last(relu(g(relu(h(x))) + x)); };
  auto g = compile(twice);
  auto h = compile(shortcut);
  auto outer = compile([&](const Tensor& x) { return p.last(relu(h(x) + x)); });
  CompiledBackward captured;
  TensorList weights;
  for (auto list :
       {p.first.parameters(), p.side.parameters(), p.last.parameters(), p.norm1.parameters(), p.norm3.parameters()})
    weights.insert(weights.end(), list.begin(), list.end());
  auto run = [&](auto&& f, auto&& backward, uint64_t turn) {
    for (Tensor w : weights) w.zero_grad();
    Tensor x = images({2, 32, 8, 8}, turn).requires_grad_(), y = f(x), loss = (y * y).sum();
    backward(loss);
    TensorList found{y.detach(), x.grad()};
    for (const Tensor& w : weights) found.push_back(w.grad());
    return found;
  };
  auto plainly = [](const Tensor& loss) { loss.backward(); };
  auto by_graph = [&](const Tensor& loss) { captured(loss); };
  for (uint64_t turn = 0; turn < 4; ++turn) {
    TensorList wanted = run([&](const Tensor& x) { return f(x, twice, shortcut); }, plainly, turn);
    expect_same_bits(run([&](const Tensor& x) { return f(x, g, h); }, by_graph, turn), wanted);
    wanted = run([&](const Tensor& x) { return p.last(relu(shortcut(x) + x)); }, plainly, turn);
    expect_same_bits(run(outer, plainly, turn), wanted);
  }
  EXPECT_GT(captured.stats().runs, 0);
  EXPECT_GT(outer.stats().runs, 0);
}

}  // namespace
}  // namespace tutti::test
