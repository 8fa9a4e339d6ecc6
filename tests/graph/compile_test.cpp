// compile(): forward, backward, guards, what cannot be traced.
#include "tutti/compile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/memory.h"
#include "tests/graph/support.h"
#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using test::identical;
using test::leaf;
using testing::HasSubstr;

TEST(Compile, RunsTheGraphAfterTheFirstCall) {
  auto f = compile([](const Tensor& x, const Tensor& y) { return tanh(x * 2 + y).sum(); });
  Tensor x = leaf({3, 4}, 1).detach(), y = leaf({4}, 2).detach();
  for (int i = 0; i < 3; ++i) {
    Tensor wanted = tanh(x * 2 + y).sum();
    EXPECT_TRUE(identical(f(x, y), wanted));
    x.add_(1);
  }
  EXPECT_EQ(f.stats().traces, 1);
  EXPECT_EQ(f.stats().runs, 2);
  EXPECT_EQ(f.stats().forward_graphs, 1);
  EXPECT_EQ(f.stats().recompilations, 0);
}

TEST(Compile, GradientsAreEagers) {
  auto f = [](const Tensor& x, const Tensor& w) { return gelu(matmul(x, w)).sin().mean(); };
  auto compiled = compile(f);
  for (uint64_t i = 0; i < 4; ++i) {
    Tensor x = leaf({5, 3}, i), w = leaf({3, 2}, i + 10), x2 = x.detach().clone().requires_grad_(),
           w2 = w.detach().clone().requires_grad_();
    Tensor a = f(x, w), b = compiled(x2, w2);
    EXPECT_TRUE(identical(b, a));
    a.backward();
    b.backward();
    EXPECT_TRUE(identical(x2.grad(), x.grad()));
    EXPECT_TRUE(identical(w2.grad(), w.grad()));
  }
  EXPECT_EQ(compiled.stats().traces, 1);
  EXPECT_EQ(compiled.stats().backward_graphs, 1);
  EXPECT_EQ(compiled.stats().fallbacks, 0);
}

// The trace of such a call says nothing of others.
TEST(Compile, AnArgumentMayBeWhatIsWatched) {
  Tensor all = leaf({9}, 1).detach(), w = all.narrow(0, 2, 3), other = leaf({3}, 2).detach();
  auto f = [&](const Tensor& x) { return x * w; };
  for (const Tensor& first : {w, w.detach(), all.narrow(0, 1, 3)}) {
    auto compiled = compile(f, {.watch = [&] { return TensorList{w}; }});
    for (const Tensor& x :
         {first, other, all.narrow(0, 1, 3), all.narrow(0, 4, 3), w, other.clone(), w.detach(), first})
      EXPECT_TRUE(identical(compiled(x), f(x)));
  }
}

TEST(Compile, ACallBeforeTheFirstBackwardCanStillBeDifferentiated) {
  Tensor w = leaf({3}, 1);
  auto f = compile([&](const Tensor& x) { return (x * w).exp().sum(); });
  Tensor x = leaf({3}, 2);
  Tensor first = f(x), second = f(x);
  second.backward();
  EXPECT_EQ(f.stats().fallbacks, 1);
  Tensor wanted = grad((x * w).exp().sum(), w);
  EXPECT_TRUE(identical(w.grad(), wanted));
  w.zero_grad();
  first.backward();
  EXPECT_TRUE(identical(w.grad(), wanted));
  w.zero_grad();
  f(x).backward();
  EXPECT_TRUE(identical(w.grad(), wanted));
  EXPECT_EQ(f.stats().fallbacks, 1);
}

TEST(Compile, GradientsOfGradients) {
  auto f = [](const Tensor& x) { return (x * x * x).sin().sum(); };
  auto compiled = compile(f);
  for (uint64_t i = 0; i < 3; ++i) {
    Tensor x = leaf({4}, i);
    auto second = [&](auto& g) {
      Tensor first = grad(g(x), x, {.create_graph = true});
      return grad((first * first).sum(), x);
    };
    EXPECT_TRUE(identical(second(compiled), second(f)));
    compiled(x).backward();
  }
  EXPECT_TRUE(gradgradcheck([&](const TensorList& xs) { return TensorList{compiled(xs[0])}; }, {leaf({3}, 9)}));
}

TEST(Compile, TakesAndGivesTrees) {
  struct Pair {
    Tensor a;
    double scale = 1;
    TUTTI_FIELDS(a, scale)
  };
  auto f = compile([](const std::vector<Tensor>& xs, const Pair& p) {
    std::map<std::string, Tensor> result;
    result["sum"] = xs[0] + xs[1] * p.scale;
    result["a"] = p.a;
    return result;
  });
  Tensor x = ones({2}), y = full({2}, 3.0), a = zeros({1});
  for (int i = 0; i < 2; ++i) {
    auto r = f(std::vector{x, y}, Pair{a, 2});
    EXPECT_TRUE(identical(r["sum"], full({2}, 7.0)));
    EXPECT_TRUE(r["a"].is_same(a)) << "an argument that is returned is itself";
  }
  EXPECT_TRUE(identical(f(std::vector{x, y}, Pair{a, 3})["sum"], full({2}, 10.0)));
  EXPECT_EQ(f.stats().recompilations, 1) << "another number is another graph";
}

TEST(Compile, GuardsShapesDtypesGradientsAndModes) {
  auto f = compile([](const Tensor& x) { return x.exp() + 1; });
  f(ones({2}));
  f(ones({2}));
  EXPECT_EQ(f.stats().forward_graphs, 1);
  f(ones({3}));
  EXPECT_EQ(f.stats().forward_graphs, 2);
  f(ones({3}, f64));
  EXPECT_EQ(f.stats().forward_graphs, 3);
  f(ones({3}, f64).requires_grad_());
  EXPECT_EQ(f.stats().forward_graphs, 4);
  {
    NoGrad no_grad;
    f(ones({3}, f64).requires_grad_());
    EXPECT_EQ(f.stats().forward_graphs, 5);
  }
  f(ones({3, 2}, f64).t());
  EXPECT_EQ(f.stats().forward_graphs, 6);
  EXPECT_THAT(f.explain(), HasSubstr("argument 0: f32[3]"));
  EXPECT_THAT(f.explain(), HasSubstr("requires a gradient"));
  EXPECT_EQ(f.stats().recompilations, 5);
}

TEST(Compile, CapturedTensorsKeepTheirIdentityAndMayChangeTheirValues) {
  Tensor w = ones({2}), other = full({2}, 5.0);
  Tensor* now = &w;
  auto f = compile([&](const Tensor& x) { return x * *now; }, {.watch = [&] { return TensorList{*now}; }});
  Tensor x = full({2}, 3.0);
  f(x);
  w.add_(1);
  EXPECT_TRUE(identical(f(x), full({2}, 6.0)));
  now = &other;
  EXPECT_TRUE(identical(f(x), full({2}, 15.0)));
  EXPECT_EQ(f.stats().forward_graphs, 2);
}

TEST(Compile, ReadingAValueIsAnErrorThatNamesTheLine) {
  auto f = compile([](const Tensor& x) { return x.sum().item<float>() > 0 ? x : -x; });
  try {
    f(ones({2}));
    FAIL() << "a value was read";
  } catch (const TraceError& e) {
    EXPECT_THAT(e.what(), HasSubstr("item()"));
#ifdef TUTTI_TEST_EXPECTS_LINES
    EXPECT_THAT(e.what(), HasSubstr("compile_test.cpp:"));
#endif
  }
  EXPECT_THROW(compile([](const Tensor& x) { return nonzero(x); })(ones({2})), TraceError);
  EXPECT_THROW(compile([](const Tensor& x) { return manual_seed(1), x + rand({2}); })(ones({2})), TraceError);
  EXPECT_THROW(compile([](const Tensor& x) { return to_string(x), x; })(ones({2})), TraceError);
  EXPECT_THROW(compile([](const Tensor& x) { return x.data<float>()[0] = 1, x; })(ones({2})), TraceError);
  EXPECT_THROW(compile([](const Tensor& x) { return x; }, {.backend = "nothing"}), ValueError);
}

// The number would stay what it was, and gradients would be divided by another.
TEST(Compile, ScalersScaleOutside) {
  amp::GradScaler scaler, none({.enabled = false});
  auto inside = compile([&](const Tensor& x) { return scaler.scale(x.sum()); });
  EXPECT_THAT(test::message_of<TraceError>([&] { inside(ones({2})); }), HasSubstr("GradScaler::scale()"));
  auto disabled = compile([&](const Tensor& x) { return none.scale(x.sum()); });
  EXPECT_EQ(disabled(ones({2})).item<double>(), 2);
}

TEST(Compile, RandomNumbersAreDrawnEachTime) {
  auto f = compile([](const Tensor& x) { return dropout(x, 0.5) + rand({4}); });
  Tensor x = ones({4});
  for (int i = 0; i < 3; ++i) {
    manual_seed(static_cast<uint64_t>(i));
    Tensor got = f(x);
    manual_seed(static_cast<uint64_t>(i));
    EXPECT_TRUE(identical(got, dropout(x, 0.5) + rand({4})));
  }
}

TEST(Compile, WritesArgumentsAndTheirViews) {
  auto f = [](Tensor x, Tensor y) {
    x.add_(1);
    y.narrow(0, 1, 2).mul_(x.narrow(0, 0, 2));
    Tensor z = x * 2;
    z[0].fill_(7);
    return z;
  };
  auto compiled = compile(f);
  Tensor x = ones({3}), y = full({4}, 2.0), x2 = x.clone(), y2 = y.clone();
  for (int i = 0; i < 3; ++i) {
    uint64_t before = x2.version();
    EXPECT_TRUE(identical(compiled(x2, y2), f(x, y)));
    EXPECT_TRUE(identical(x2, x));
    EXPECT_TRUE(identical(y2, y));
    EXPECT_EQ(x2.version(), before + 1);
  }
  EXPECT_EQ(compiled.stats().runs, 2);
}

TEST(Compile, WritesWithGradientsAreFeltOutside) {
  auto f = [](Tensor x, const Tensor& w) {
    x.mul_(w);
    return x.sum();
  };
  auto compiled = compile(f);
  for (uint64_t i = 0; i < 3; ++i) {
    auto run = [&](auto& g) {
      Tensor a = leaf({3}, i), w = leaf({3}, i + 5);
      Tensor x = a * 3;
      Tensor sum = g(x, w);
      (x * x + sum).sum().backward();
      return TensorList{a.grad(), w.grad(), x.detach()};
    };
    TensorList wanted = run(f), got = run(compiled);
    for (size_t k = 0; k < 3; ++k) EXPECT_TRUE(identical(got[k], wanted[k])) << k;
  }
}

TEST(Compile, AViewOfAnArgumentIsOneOutsideToo) {
  auto f = compile([](const Tensor& x) { return x.t().narrow(0, 0, 1); });
  for (int i = 0; i < 3; ++i) {
    Tensor a = leaf({2, 3}, 1), x = a * 2;
    Tensor v = f(x);
    v.mul_(10);
    x.sum().backward();
    Tensor wanted = full({2, 3}, 2, {f64});
    wanted.narrow(1, 0, 1).mul_(10);
    EXPECT_TRUE(identical(a.grad(), wanted));
  }
}

TEST(Compile, TheStepMayHaveItsBackwardInside) {
  Tensor w = leaf({3}, 1), w2 = w.detach().clone().requires_grad_();
  auto f = [](const Tensor& x, const Tensor& p) {
    Tensor loss = (x * p).sin().sum();
    loss.backward();
    return loss.detach();
  };
  auto step = compile(f);
  for (int i = 0; i < 4; ++i) {
    Tensor x = leaf({3}, 40 + static_cast<uint64_t>(i)).detach();
    EXPECT_TRUE(identical(step(x, w2), f(x, w)));
    EXPECT_TRUE(identical(w2.grad(), w.grad()));
  }
  EXPECT_EQ(step.stats().forward_graphs, 2) << "no gradient yet, and gradient present\n" << step.explain();
  EXPECT_EQ(step.stats().traces, 2);
}

TEST(Compile, ModulesAndWhatTheyTrain) {
  nn::Linear a(3, 2), b = a.clone();
  auto net = compile(b);
  for (int i = 0; i < 3; ++i) {
    Tensor x = rand({4, 3});
    a(x).sum().backward();
    net(x).sum().backward();
    EXPECT_TRUE(identical(b.weight.grad(), a.weight.grad()));
    EXPECT_TRUE(identical(b.bias.grad(), a.bias.grad()));
  }
  EXPECT_EQ(net.stats().traces, 1);
  net.function().eval();
  net(rand({4, 3}));
  EXPECT_EQ(net.stats().forward_graphs, 2);
}

// However the function finds the module.
TEST(Compile, ModulesThatTrainOrNotHaveAGraphEach) {
  nn::Sequential net(nn::Linear(3, 64), nn::Dropout(0.5));
  auto check = [&](auto& f, Tensor x) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      net.train();
      manual_seed(epoch);
      Tensor want = net(x);
      for (int i = 0; i < 2; ++i) {
        manual_seed(epoch);
        EXPECT_TRUE(identical(f(x), want));
      }
      net.eval();
      want = net(x);
      for (int i = 0; i < 2; ++i) EXPECT_TRUE(identical(f(x), want));
    }
    EXPECT_EQ(f.stats().forward_graphs, 2);
    EXPECT_EQ(f.stats().traces, 2);
    EXPECT_THAT(f.explain(), HasSubstr("that does not train"));
  };
  Tensor x = rand({4, 3});
  auto by_reference = compile(std::ref(net));
  check(by_reference, x);
  auto captured = compile([&](const Tensor& x) { return net(x); });
  check(captured, x);
  // One inside another, which runs it from its graph while it is traced itself.
  auto outer = compile([&](const Tensor& x) { return captured(x) * 1; });
  check(outer, x);
  // One that sets the mode itself finds it as it left it.
  auto validate = compile([&](const Tensor& x) {
    net.eval();
    Tensor y = net(x);
    net.train();
    return y;
  });
  net.train();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(identical(validate(x), validate(x)));
  EXPECT_EQ(validate.stats().traces, 1);
}

TEST(Compile, HooksThatComeAndGoAreSeen) {
  nn::Linear net(3, 2);
  auto f = compile([&](const Tensor& x) { return net(x); });
  Tensor x = rand({4, 3}), plain = net(x);
  EXPECT_TRUE(identical(f(x), plain));
  HookHandle hook = net.register_forward_hook(
      [](nn::ModuleBase&, const TensorList&, TensorList& outputs) { outputs[0] = outputs[0] * 2; });
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(identical(f(x), plain * 2));
  hook.remove();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(identical(f(x), plain));
  EXPECT_EQ(f.stats().traces, 2);
  // No hook at all and the first one, of a module that trains or not, are four things.
  auto modes = compile([&](const Tensor& x) { return net(x) * (net.is_training() ? 1.0 : 3.0); });
  for (bool training : {true, false}) {
    net.train(training);
    EXPECT_TRUE(identical(modes(x), plain * (training ? 1.0 : 3.0)));
    HookHandle twice = net.register_forward_hook(
        [](nn::ModuleBase&, const TensorList&, TensorList& outputs) { outputs[0] = outputs[0] * 2; });
    EXPECT_TRUE(identical(modes(x), plain * 2 * (training ? 1.0 : 3.0)));
    twice.remove();
  }
  EXPECT_EQ(modes.stats().forward_graphs, 4);
  net = nn::Linear(3, 2, {.bias = false});  // the tensors are captured; that there is no hook holds for it too
  net.register_forward_hook([](nn::ModuleBase&, const TensorList&, TensorList& outputs) { outputs[0] = zeros({1}); });
  EXPECT_EQ(f(x).numel(), 1);
}

// As in eager, however many calls have a hook of their own; and those that stay are compiled again.
TEST(Compile, HooksMayBeOthersInEachCall) {
  nn::Linear net(3, 2), twin = net.clone();
  auto f = compile([&](const Tensor& x) { return net(x).tanh(); });
  auto step = [&](nn::Linear& m, auto& run, int i, int64_t rows, TensorList& seen) {
    Tensor factor = full({2}, 1.0 + i), x = full({rows, 3}, 0.1 * i).requires_grad_();
    HookHandle forward = m.register_forward_hook(
        [factor](nn::ModuleBase&, const TensorList&, TensorList& outputs) { outputs[0] = outputs[0] * factor; });
    HookHandle backward = m.register_backward_pre_hook(
        [factor](nn::ModuleBase&, TensorList& gradients) { gradients[0] = gradients[0] + factor; });
    HookHandle leaf = m.weight.register_hook([factor](const Tensor& g) { return g * factor.sum(); });
    x.register_hook([factor](const Tensor& g) { return g - factor.sum(); });
    Tensor y = run(x);
    y.sum().backward();
    seen = {y.detach(), x.grad(), m.weight.grad()};
    for (HookHandle* hook : {&forward, &backward, &leaf}) hook->remove();
  };
  auto plain = [&](const Tensor& x) { return twin(x).tanh(); };
  for (int i = 0; i < 100; ++i) {
    TensorList wanted, got;
    step(twin, plain, i, 2 + i % 3, wanted);
    step(net, f, i, 2 + i % 3, got);
    for (size_t k = 0; k < wanted.size(); ++k) ASSERT_TRUE(identical(got[k], wanted[k])) << i << ' ' << k;
  }
  EXPECT_LT(f.stats().forward_graphs, 10) << "hardly worth it";
  EXPECT_THAT(f.explain(), HasSubstr("calls ran uncompiled: the hooks of modules were others each time"));
  net.register_forward_hook(
      [](nn::ModuleBase&, const TensorList&, TensorList& outputs) { outputs[0] = outputs[0] * 2; });
  Tensor x = ones({4, 3});
  int64_t before = f.stats().runs;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(identical(f(x), net(x).tanh()));
  EXPECT_GE(f.stats().runs, before + 2);
}

// An object is known by its address, so it is kept: another one cannot have it.
TEST(Compile, ObjectsAmongTheArgumentsAreKept) {
  auto f = compile([](const Tensor& x, const std::shared_ptr<double>& scale) { return x * *scale; });
  Tensor x = ones({2});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(f(x, std::make_shared<double>(i)).to_vector<double>()[0], i);
  auto same = std::make_shared<double>(3);
  f(x, same);
  int64_t traces = f.stats().traces;
  f(x, same);
  EXPECT_EQ(f.stats().traces, traces);
  struct Named {
    std::string_view name;
    Tensor x;
    TUTTI_FIELDS(name, x)
  };
  auto named = compile([](const Named& n) { return n.x * (n.name == "two" ? 2.0 : 3.0); });
  char text[] = "two";
  EXPECT_EQ(named(Named{text, x}).to_vector<double>()[0], 2);
  text[1] = 'o';
  EXPECT_EQ(named(Named{text, x}).to_vector<double>()[0], 3);
}

TEST(Compile, PrintsGraphsGroupsAndMemory) {
  auto f = compile([](const Tensor& x) { return (x.exp() * 2 + 1).tanh().sum(); });
  f(ones({8}));
  f(ones({8}));
  std::string text = f.print();
  EXPECT_THAT(text, HasSubstr("exp(%0)"));
  EXPECT_THAT(text, HasSubstr("group 0: 5 nodes"));
  EXPECT_THAT(text, HasSubstr("memory:"));
  EXPECT_THAT(f.html(), HasSubstr("<table>"));
}

TEST(Compile, FreesWhatItSaved) {
  auto f = compile([](const Tensor& x) { return (x * x).sum(); });
  Tensor x = leaf({4}, 1);
  for (int i = 0; i < 2; ++i) {
    Tensor y = f(x);
    y.backward();
    EXPECT_THROW(y.backward(), GradError);
  }
  Tensor y = f(x);
  y.backward({.retain_graph = true});
  y.backward();
  EXPECT_EQ(f.stats().fallbacks, 0);
}

TEST(Compile, ASavedArgumentThatWasWrittenIsAnError) {
  auto f = compile([](const Tensor& x) { return (x * x).sum(); });
  for (int i = 0; i < 3; ++i) {
    Tensor a = leaf({4}, 1), x = a * 1;
    Tensor y = f(x);
    x.add_(1);
    if (i == 0)
      EXPECT_THROW(y.backward(), VersionError);
    else
      EXPECT_THROW(y.backward(), GradError);
    f(leaf({4}, 2) * 1).backward();
  }
}

// Graphs, traces and nodes go with the function and the tensors that use them, whether or not backward ever ran.
TEST(Compile, LeavesNothingBehind) {
  auto work = [] {
    Tensor w = leaf({8, 8}, 1);
    auto f = compile([&](const Tensor& x) {
      Tensor h = matmul(x, w).tanh();
      // Not h itself, whose node has the hook: that would be a circle, compiled or not.
      h.register_hook([value = h.detach()](const Tensor& g) { return g * value; });
      return h.sum();
    });
    CompiledBackward backward;
    for (uint64_t i = 0; i < 4; ++i) {
      Tensor x = leaf({4, 8}, i), unused = f(x), y = f(x);
      backward(y);
      Tensor first = grad(f(x), x, {.create_graph = true});
      first.sum().backward();
    }
  };
  work();  // what is kept for good is there
  int64_t before = memory::statistics().bytes_in_use;
  work();
  EXPECT_EQ(memory::statistics().bytes_in_use, before);
}

TEST(Compile, OtherBatchSizesAreNoRecompilations) {
  nn::Linear net(3, 2);
  auto f = compile([&](const Tensor& x) { return net(x).reshape({-1}).tanh(); }, {.dynamic_batch = true});
  for (int64_t batch : {4, 2, 4, 7, 2}) {
    Tensor x = rand({batch, 3});
    EXPECT_TRUE(identical(f(x), net(x).reshape({-1}).tanh()));
  }
  EXPECT_EQ(f.stats().forward_graphs, 1);
  EXPECT_EQ(f.stats().recompilations, 0);
  EXPECT_EQ(f.stats().runs, 2);
}

TEST(Compile, TooManyGraphsAreAnErrorThatSaysWhy) {
  auto f = compile([](const Tensor& x) { return x + 1; }, {.name = "grow", .limit = 2});
  f(ones({1}));
  f(ones({2}));
  try {
    f(ones({3}));
    FAIL() << "a third graph";
  } catch (const ValueError& e) {
    EXPECT_THAT(e.what(), HasSubstr("'grow' was traced for 2 different calls"));
    EXPECT_THAT(e.what(), HasSubstr("argument 0: f32[2]"));
  }
  f(ones({2}));
}

TEST(Compile, HooksOnTensorsFromOutsideAreRefused) {
  Tensor x = leaf({2}, 1);
  auto f = compile([](const Tensor& t) {
    t.register_hook([](const Tensor& g) { return g * 2; });
    return t * 3;
  });
  EXPECT_THROW(f(x), TraceError);
  EXPECT_THROW(f(x * 1), TraceError);
}

TEST(Compile, ThreadsMayShareAFunction) {
  Tensor w = leaf({8}, 1);
  auto f = compile([&](const Tensor& x) { return (x * w.detach()).sin().sum(); });
  spawn_ranks(4, [&] {
    for (uint64_t i = 0; i < 20; ++i) {
      Tensor x = full({8}, 0.1 * static_cast<double>(i), f64).requires_grad_(), y = x.detach().clone().requires_grad_();
      Tensor got = f(x), wanted = (y * w.detach()).sin().sum();
      EXPECT_TRUE(identical(got, wanted));
      got.backward();
      wanted.backward();
      EXPECT_TRUE(identical(x.grad(), y.grad()));
    }
  });
  EXPECT_EQ(f.stats().forward_graphs, 4) << "one for each rank";
}

// What a small transformer does, with dropout: embedding, attention, norms, a loss.
struct Small : nn::Module<Small> {
  nn::Embedding tokens{11, 16};
  nn::TransformerEncoder body{16, 2, 2, {.feedforward = 32, .dropout = 0.1, .gelu = true, .batch_first = true}};
  nn::Linear head{16, 11};
  TUTTI_FIELDS(tokens, body, head)
  Tensor forward(const Tensor& x) { return head(body(tokens(x), nn::AttendOptions{.causal = true})); }
};

TEST(Compile, ATransformerTrainsToTheSameBits) {
  manual_seed(3);
  Small a, b = a.clone();
  auto loss = [](Small& net, const Tensor& x, const Tensor& y) {
    return cross_entropy(net(x).reshape({-1, 11}), y.reshape({-1}));
  };
  auto step = compile([&](const Tensor& x, const Tensor& y) { return loss(b, x, y); });
  optim::Adam first(a.parameters(), {.lr = 0.01}), second(b.parameters(), {.lr = 0.01});
  for (uint64_t i = 0; i < 5; ++i) {
    Tensor x = randint(11, {3, 7}), y = randint(11, {3, 7});
    first.zero_grad();
    second.zero_grad();
    manual_seed(100 + i);
    Tensor wanted = loss(a, x, y);
    wanted.backward();
    manual_seed(100 + i);
    Tensor got = step(x, y);
    got.backward();
    EXPECT_TRUE(identical(got, wanted)) << i;
    first.step();
    second.step();
    auto p = a.parameters(), q = b.parameters();
    for (size_t k = 0; k < p.size(); ++k) ASSERT_TRUE(identical(q[k], p[k])) << "parameter " << k << " in step " << i;
  }
  EXPECT_EQ(step.stats().traces, 1) << step.explain();
}

TEST(Compile, AConvolutionalNetTrainsToTheSameBits) {
  manual_seed(4);
  nn::Conv2d conv(1, 4, 3), twin = conv.clone();
  nn::BatchNorm2d norm(4), norm2 = norm.clone();
  auto f = [](nn::Conv2d& c, nn::BatchNorm2d& n, const Tensor& x) {
    return max_pool2d(relu(n(c(x))), 2).flatten(1).sum({1}).mean();
  };
  auto step = compile([&](const Tensor& x) { return f(twin, norm2, x); });
  for (int i = 0; i < 4; ++i) {
    Tensor x = randn({2, 1, 8, 8});
    Tensor wanted = f(conv, norm, x), got = step(x);
    EXPECT_TRUE(identical(got, wanted));
    wanted.backward();
    got.backward();
    EXPECT_TRUE(identical(twin.weight.grad(), conv.weight.grad()));
    auto buffers = norm.buffers(), others = norm2.buffers();
    for (size_t k = 0; k < buffers.size(); ++k) EXPECT_TRUE(identical(others[k], buffers[k])) << "buffer " << k;
  }
  EXPECT_EQ(step.stats().runs, 3) << step.explain();
}

// A call that cannot be made again has its graph when it is known what backward needs.
TEST(Compile, WritersOfBuffersWaitForABackwardPass) {
  nn::BatchNorm1d norm(3), twin = norm.clone();
  auto f = compile([&](const Tensor& x) { return norm(x); });
  auto step = [&](uint64_t seed) {
    Tensor x = leaf({5, 3}, seed).to(f32).detach(), y = f(x);
    EXPECT_TRUE(identical(y, twin(x)));
    EXPECT_TRUE(identical(norm.running_var, twin.running_var));
    return y;
  };
  for (uint64_t i = 0; i < 3; ++i) step(i);
  EXPECT_EQ(f.stats().runs, 0);
  EXPECT_THAT(f.explain(), HasSubstr("until its first backward pass: it changes tensors that were made outside"));
  step(3).sum().backward();
  for (uint64_t i = 4; i < 7; ++i) step(i);
  EXPECT_EQ(f.stats().runs, 3);
  EXPECT_THAT(f.explain(), testing::Not(HasSubstr("until")));
}

TEST(Compile, CompiledFunctionsNest) {
  auto inner = compile([](const Tensor& x) { return x.sin() * 2; });
  auto f = [&](auto& g, const Tensor& x) { return (g(x) + g(x * 3)).exp().sum(); };
  auto plain = [](const Tensor& x) { return x.sin() * 2; };
  auto outer = compile([&](const Tensor& x) { return f(inner, x); });
  for (uint64_t i = 0; i < 4; ++i) {
    Tensor x = leaf({3}, i), y = x.detach().clone().requires_grad_();
    Tensor wanted = f(plain, x), got = outer(y);
    EXPECT_TRUE(identical(got, wanted));
    wanted.backward();
    got.backward();
    EXPECT_TRUE(identical(y.grad(), x.grad()));
  }
  EXPECT_EQ(outer.stats().runs, 3);
}

TEST(Compile, CheckpointsInside) {
  auto f = [](const Tensor& x) { return checkpoint([](const Tensor& t) { return (t * t).sin().exp(); }, x * 2).sum(); };
  auto compiled = compile(f);
  for (uint64_t i = 0; i < 3; ++i) {
    Tensor x = leaf({3}, i), y = x.detach().clone().requires_grad_();
    f(x).backward();
    compiled(y).backward();
    EXPECT_TRUE(identical(y.grad(), x.grad()));
  }
  EXPECT_EQ(compiled.stats().traces, 1);
}

// What was drawn the first time is kept; of dropout that is two numbers. See Note [Random numbers that are drawn
// again].
TEST(Compile, CheckpointsThatDrawRandomNumbers) {
  Tensor w = leaf({40, 40}, 7);
  auto piece = [&](const Tensor& t) {
    Tensor noise = rand(t.sizes(), {.dtype = f64});
    auto inner = [&](const Tensor& u) { return dropout(u.sin(), 0.5) * 2; };
    return dropout(matmul(t, w), 0.25) * noise + checkpoint(inner, t * noise);
  };
  auto f = [&](const Tensor& x) {
    Tensor y = checkpoint(piece, x * 2);
    return (dropout(y, 0.1) + checkpoint(piece, y)).square().sum();
  };
  auto whole = [&](const Tensor& x) {
    Tensor y = f(x);
    y.backward();
    return y.detach();
  };
  auto compiled = compile(f);
  auto compiled_whole = compile(whole);
  for (uint64_t i = 0; i < 4; ++i) {
    TensorList found[3];
    auto run = [&](auto& step, bool backward, TensorList& list) {
      Tensor x = leaf({40, 40}, i);
      w.zero_grad();
      manual_seed(i);
      Tensor y = step(x);
      if (backward) y.backward();
      list = {y.detach(), x.grad(), w.grad(), rand({4})};  // and nothing more was drawn
    };
    run(f, true, found[0]), run(compiled, true, found[1]), run(compiled_whole, false, found[2]);
    for (size_t k = 0; k < found[0].size(); ++k) {
      EXPECT_TRUE(identical(found[1][k], found[0][k])) << i << ' ' << k;
      EXPECT_TRUE(identical(found[2][k], found[0][k])) << i << ' ' << k;
    }
  }
  EXPECT_EQ(compiled.stats().traces, 1);
  // Numbers that were written since they were drawn are not those that were drawn.
  auto written = compile([](const Tensor& x) {
    return checkpoint([](const Tensor& t) { return t * rand({3}, {.dtype = f64}).mul_(2); }, x).sum();
  });
  Tensor x = leaf({3}, 1), y = written(x);
  EXPECT_THAT(test::message_of<TraceError>([&] { y.backward(); }), HasSubstr("a checkpoint that writes its random"));
}

TEST(Compile, CustomFunctionsAreTracedThrough) {
  struct Cube : Function<Cube> {
    double scale = 1;
    Tensor forward(const Tensor& x, double s) {
      scale = s;
      save(x);
      return x * x * x * s;
    }
    TensorList backward(const TensorList& g) { return {g[0] * 3 * saved(0) * saved(0) * scale}; }
  };
  auto f = [](const Tensor& x) { return Cube::apply(x.sin(), 2.0).sum(); };
  auto compiled = compile(f);
  CompiledBackward backward;
  for (uint64_t i = 0; i < 4; ++i) {
    Tensor x = leaf({3}, i), y = x.detach().clone().requires_grad_(), z = x.detach().clone().requires_grad_();
    f(x).backward();
    compiled(y).backward();
    backward(f(z));
    EXPECT_TRUE(identical(y.grad(), x.grad()));
    EXPECT_TRUE(identical(z.grad(), x.grad()));
  }
  EXPECT_EQ(backward.graph_count(), 1);
}

TEST(CompiledBackward, WholePassesWithHooksThatChange) {
  CompiledBackward backward;
  Tensor w = leaf({4}, 1), w2 = w.detach().clone().requires_grad_();
  for (uint64_t i = 0; i < 4; ++i) {
    Tensor x = leaf({4}, 50 + i).detach();
    auto loss = [&](const Tensor& p) {
      Tensor h = (x * p).tanh();
      h.register_hook([factor = static_cast<double>(i + 1)](const Tensor& g) { return g * factor; });
      return (h * h + p).sum();
    };
    loss(w).backward();
    backward(loss(w2));
    EXPECT_TRUE(identical(w2.grad(), w.grad())) << i;
  }
  EXPECT_EQ(backward.graph_count(), 2) << "no gradient yet, and gradient present";
  EXPECT_EQ(backward.stats().runs, 2);
}

TEST(CompiledBackward, FreesTheGraphAndRefusesWhatBackwardRefuses) {
  CompiledBackward backward;
  for (int i = 0; i < 3; ++i) {
    Tensor x = leaf({2}, 1), y = (x * x).sum();
    backward(y);
    EXPECT_THROW(backward(y), GradError);
    EXPECT_THROW(backward(x * 2), GradError);
    EXPECT_THROW(backward(ones({1})), GradError);
  }
}

// Lengths that never come again must not be compiled without end.
TEST(CompiledBackward, HasALimitAndSaysWhatChanged) {
  CompiledBackward backward({.limit = 3});
  Tensor w = ones({1}).requires_grad_();
  auto pass = [&](int64_t n) {
    w.zero_grad();
    backward((arange(n, {.dtype = f32}) * w).sum());
  };
  for (int i = 0; i < 2; ++i)
    for (int64_t n : {2, 3, 4}) pass(n);
  EXPECT_EQ(backward.graph_count(), 3);
  EXPECT_THAT(backward.explain(), HasSubstr("graph 0: the first pass"));
  EXPECT_THAT(backward.explain(), HasSubstr("f32[3] on cpu:0 (before: "));
  EXPECT_THAT(test::message_of<ValueError>([&] { pass(5); }), HasSubstr("captured for 3 different passes, the limit"));
  EXPECT_FALSE(w.grad().defined());
  pass(4);
  EXPECT_EQ(w.grad().item<double>(), 6);
}

// They may write or free anything that the pass reads, this time or the next.
TEST(CompiledBackward, LeafHooksRunAsUsual) {
  CompiledBackward backward;
  Tensor w = leaf({2}, 1), v = w.detach().clone().requires_grad_();
  int seen = 0;
  for (int i = 0; i < 4; ++i) {
    w.register_hook([=](const Tensor& g) { return g * (i + 1); });  // more each time
    v.register_hook([=](const Tensor& g) { return g * (i + 1); });
    HookHandle count = w.register_post_accumulate_hook([&](const Tensor&) { ++seen; });
    backward((w * w).sum());
    (v * v).sum().backward();
    EXPECT_TRUE(identical(w.grad(), v.grad()));
    count.remove();
  }
  EXPECT_EQ(seen, 4);
  EXPECT_EQ(backward.stats().fallbacks, 4);
}

// A product with a number keeps its other factor, but reads it for a gradient of the number only.
TEST(CompiledBackward, WhatNobodyReadsMayBeWritten) {
  CompiledBackward backward;
  for (uint64_t i = 0; i < 3; ++i) {
    auto loss = [](const Tensor& leaf) {
      Tensor x = leaf * 1;
      x.narrow(0, 0, 1).copy_(x.narrow(0, 2, 1) * 0.5);
      return x.square().sum();
    };
    Tensor a = leaf({3, 3}, i), b = a.detach().clone().requires_grad_();
    loss(a).backward();
    backward(loss(b));
    EXPECT_TRUE(identical(b.grad(), a.grad())) << i;
    // What is read is an error, as in backward().
    Tensor x = leaf({3}, i) * 1, y = x.square().sum();
    x.add_(1);
    EXPECT_THROW(backward(y), VersionError);
  }
}

// A write into a view is a node of its own, which hands one gradient to several.
TEST(CompiledBackward, NodesOfUsersMayGiveOneTensorTwice) {
  CompiledBackward backward;
  auto loss = [](const Tensor& a, const Tensor& b) {
    Tensor x = a * 1, y = b * 1, v = x.t();
    v.add_(y);
    v.add_(y.t());
    return (x * x).sum() + (v * v * v).sum();
  };
  for (uint64_t i = 0; i < 3; ++i) {
    Tensor a = leaf({3, 3}, i), b = leaf({3, 3}, i + 10);
    Tensor a2 = a.detach().clone().requires_grad_(), b2 = b.detach().clone().requires_grad_();
    loss(a, b).backward();
    backward(loss(a2, b2));
    EXPECT_TRUE(identical(a2.grad(), a.grad())) << i;
    EXPECT_TRUE(identical(b2.grad(), b.grad())) << i;
  }
  EXPECT_EQ(backward.stats().runs, 2) << backward.explain();
}

// One that steps in every fourth pass only, when others have been captured.
TEST(CompiledBackward, OptimizersMayStepInLeafHooks) {
  struct Model {
    Tensor a = leaf({6, 6}, 1), b = leaf({6, 6}, 2), c = leaf({6, 6}, 3);
    int count = 0;
  } eager, compiled;
  for (Model* m : {&eager, &compiled})
    m->c.register_post_accumulate_hook([m](const Tensor&) {
      if (++m->count % 4) return;
      NoGrad guard;
      m->b.sub_(m->b.grad() * 0.5);
      m->b.grad().zero_();
    });
  CompiledBackward backward;
  for (uint64_t i = 0; i < 8; ++i) {
    Tensor x = leaf({6, 6}, 10 + i).detach();
    // Backward reads b in the middle of a chain that could be one loop.
    auto loss = [&](const Model& m) {
      Tensor last = (m.b * x).sum(), then = matmul(x, m.c).square().sum();
      return ((x * m.a).sin() * m.b.detach()).sum() + then + last;
    };
    loss(eager).backward();
    backward(loss(compiled));
    EXPECT_TRUE(identical(eager.a.grad(), compiled.a.grad())) << i;
    EXPECT_TRUE(identical(eager.b, compiled.b)) << i;
  }
}

// Custom functions may give a gradient in one pass and none in another.
struct Maybe : Function<Maybe> {
  static inline bool gives = true;
  Tensor forward(const Tensor& x, const Tensor& y) { return x * 2 + y; }
  TensorList backward(const TensorList& g) { return {gives ? g[0] * 2 : Tensor(), g[0]}; }
};
TEST(CompiledBackward, GradientsThatAreNotAlwaysThere) {
  CompiledBackward backward;
  Tensor x = leaf({3}, 1), y = leaf({3}, 2);
  auto pass = [&](bool gives) {
    Maybe::gives = gives;
    x.set_grad({}), y.set_grad({});
    backward(Maybe::apply(x * 3, y).sum());
  };
  pass(true);
  EXPECT_TRUE(identical(x.grad(), full({3}, 6, {f64})));
  pass(false);
  EXPECT_TRUE(!x.grad().defined() || identical(x.grad(), zeros({3}, {f64})));
  EXPECT_TRUE(identical(y.grad(), ones({3}, {f64})));
  CompiledBackward other;
  auto pass_other = [&](bool gives) {
    Maybe::gives = gives;
    x.set_grad({}), y.set_grad({});
    other(Maybe::apply(x * 3, y).sum());
  };
  pass_other(false);
  EXPECT_THAT(test::message_of<GradError>([&] { pass_other(true); }), HasSubstr("where it gave none when this pass"));
  pass_other(true);  // captured anew
  EXPECT_TRUE(identical(x.grad(), full({3}, 6, {f64})));
}

// What hooks and custom functions compute is cast as it would be in backward().
TEST(CompiledBackward, NodesOfUsersRunUnderAutocast) {
  CompiledBackward backward;
  Tensor x = ones({4, 4}).requires_grad_();
  for (int i = 0; i < 3; ++i) {
    amp::Autocast cast(bf16);
    x.set_grad({});
    Tensor y = x * 2;
    std::optional<DType> seen;
    y.register_hook([&](const Tensor& g) {
      seen = matmul(g, g).dtype();
      return g;
    });
    backward(y.sum());
    EXPECT_EQ(seen, bf16) << i;
  }
  EXPECT_EQ(backward.stats().runs, 2);
}

// What a function writes with gradients holds the call in its history; nothing may hold it in turn.
TEST(Compile, WhatWasWrittenIsFreedWithoutABackwardPass) {
  auto compiled = compile([](Tensor x, const Tensor& w) {
    Tensor part = x.narrow(0, 0, 10);
    x.mul_(w);
    part.add_(1);
    return x.sin();
  });
  Tensor w = ones({100'000}).requires_grad_();
  auto in_use = [] { return memory::statistics().bytes_in_use; };
  auto call = [&](bool backward) {
    Tensor x = ones({100'000}), y = compiled(x, w);
    if (backward) y.sum().backward();
  };
  call(true);  // makes the backward graph
  w.set_grad({});
  int64_t before = in_use();
  for (int i = 0; i < 3; ++i) call(false);
  EXPECT_EQ(compiled.stats().runs, 3);
  EXPECT_LT(in_use() - before, 100'000);
}

// What pointwise operators alone want again is computed again; what costs more, or is read from memory anyway, is kept.
TEST(Compile, OnlyWhatIsCheapIsComputedAgain) {
  auto count_again = [](const char* name, auto f) {
    auto compiled = compile(f);
    Tensor x = leaf({4, 4}, 1), w = leaf({4, 4}, 2);
    compiled(x, w).sum().backward();
    return compiled.graphs().at(1)->count(name);
  };
  EXPECT_EQ(count_again("sub", [](const Tensor& x, const Tensor& w) { return (x - w).square(); }), 1u);
  EXPECT_EQ(count_again("sub", [](const Tensor& x, const Tensor& w) { return matmul(x - w, w); }), 0u);
  EXPECT_EQ(count_again("tanh", [](const Tensor& x, const Tensor& w) { return x.tanh().square() * w; }), 0u);
}

}  // namespace
}  // namespace tutti
