#include "autograd/engine.h"

#include <unistd.h>

#include <atomic>
#include <system_error>
#include <thread>

#include "autograd/meta.h"
#include "base/memory.h"
#include "tests/support/expect_ops.h"
#include "tests/support/few_threads.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using namespace test;  // NOLINT

// One stack frame a node would be too many of them, even of the smallest, under sanitizers too.
TEST(Engine, AMillionNodesDeep) {
#if defined(TUTTI_SANITIZE_ADDRESS) || defined(TUTTI_SANITIZE_THREAD)
  constexpr int kNodes = 200000;
#else
  constexpr int kNodes = 1000000;
#endif
  Tensor x = ones({}, {.dtype = f64, .requires_grad = true});
  {
    Tensor y = x;
    for (int i = 0; i < kNodes; ++i) y = y + 1;
    y.backward();
    EXPECT_EQ(x.grad().item<double>(), 1);
  }
  Tensor z = x;
  for (int i = 0; i < kNodes; ++i) z = z + 1;
  z.reset();  // freed without having run
}

#ifdef TUTTI_TEST_FEW_THREADS
// What was started of a pass that cannot have all of its workers ends before the error comes out.
TEST(Engine, ThreadsThatCannotBeHadAreAnError) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  auto body = [] {
    ::alarm(60);
    set_cpu_devices(64);
    leave_few_threads();
    static std::atomic<int> begun{0}, ended{0};
    while (begun == 0) {
      Tensor x = ones({}, {.requires_grad = true}), sum;
      for (int16_t k = 1; k < 64; ++k) {
        Tensor part = view_on(view_on(x, Device(DeviceKind::cpu, k)) * 2, "cpu:1");
        sum = sum.defined() ? sum + part : part;
      }
      // By the first worker; the others wait for what it sends.
      sum.register_hook([](const Tensor& g) {
        ++begun;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        ++ended;
        return g;
      });
      try {
        sum.backward();
        std::_Exit(1);
      } catch (const std::system_error&) {
      }
      if (begun != ended) std::_Exit(2);
      if (x.grad().defined()) std::_Exit(3);
    }
    Tensor x = ones({}, {.requires_grad = true});
    (view_on(view_on(x, "cpu:1") * 2, "cpu:0") + x).backward();
    std::_Exit(x.grad().item<float>() == 3 ? 0 : 4);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}
#endif

TEST(Engine, FreesEverything) {
  auto before = memory::statistics().bytes_in_use;
  for (int round = 0; round < 3; ++round) {
    Tensor x = ones({16, 16}, {.requires_grad = true});
    Tensor y = x;
    for (int i = 0; i < 20; ++i) y = tanh(y * x) + y;
    y[0].mul_(2);
    sum(y).backward();
    Tensor g = grad({sum(exp(x * x))}, {x}, {.create_graph = true})[0];
    sum(g * g).backward();
  }
  EXPECT_EQ(memory::statistics().bytes_in_use, before);
}

struct OwnError {
  int code;
};

struct Throws : Function<Throws> {
  Tensor forward(const Tensor& x) { return x * 1; }
  TensorList backward(const TensorList&) { throw OwnError{42}; }
};

TEST(Engine, LeavesGetTheirGradientsAtOnce) {
  Tensor w = ones({2}, {.requires_grad = true}), v = ones({2}, {.requires_grad = true});
  std::string order;
  w.register_post_accumulate_hook([&](const Tensor&) { order += "w"; });
  v.register_post_accumulate_hook([&](const Tensor&) { order += "v"; });
  Tensor old = w * 2;  // of a step before, still alive: the node of w is older than all others
  Tensor between = tanh(v);
  between.register_hook([&](const Tensor&) {
    order += "-";
    return Tensor();
  });
  (between * w).sum().backward();
  EXPECT_EQ(order, "w-v");
}

TEST(Engine, ErrorsReachTheCallerUnchanged) {
  Tensor x = ones({2}, {.requires_grad = true});
  try {
    sum(Throws::apply(x)).backward();
    FAIL();
  } catch (const OwnError& e) {
    EXPECT_EQ(e.code, 42);
  }
  Tensor y = x * 2;
  y.register_hook([](const Tensor&) -> Tensor { throw OwnError{7}; });
  EXPECT_THROW(sum(y).backward(), OwnError);
  Devices two(2);
  Tensor z = sum(Throws::apply(x).to("cpu:1"));
  EXPECT_THROW(z.backward(), OwnError);
}

TEST(Engine, OneWorkerPerDevice) {
  Devices two(2);
  std::thread::id first, second, mine = std::this_thread::get_id();
  Tensor x = ones({8}, {.requires_grad = true});
  Tensor a = x * 2, b = x.to("cpu:1") * 3;
  EXPECT_EQ(b.device(), Device("cpu:1"));
  a.register_hook([&](const Tensor&) {
    first = std::this_thread::get_id();
    return Tensor();
  });
  b.register_hook([&](const Tensor&) {
    second = std::this_thread::get_id();
    EXPECT_EQ(context().device, Device("cpu:1"));
    EXPECT_EQ(context().rank, 5);
    return Tensor();
  });
  Context as_rank = context();
  as_rank.rank = 5;
  {
    ContextGuard guard(as_rank);
    sum(a + b.to("cpu:0")).backward();
  }
  EXPECT_EQ(values(x.grad()), Doubles(8, 5.0));
  EXPECT_NE(first, second);
  EXPECT_NE(second, mine);  // first may be: a thread may serve its own device
  // With one device the calling thread does it all.
  Tensor c = x * 2;
  c.register_hook([&](const Tensor&) {
    first = std::this_thread::get_id();
    return Tensor();
  });
  sum(c).backward();
  EXPECT_EQ(first, mine);
}

TEST(Engine, ManyDevicesGiveTheSameBits) {
  Devices four(4);
  manual_seed(1);
  Tensor w = randn({64, 64}), start = randn({64, 64});
  auto run = [&] {
    Tensor x = start.clone().requires_grad_();
    Tensor total;
    for (int d = 0; d < 4; ++d) {
      Tensor y = tanh(x.to(Device(DeviceKind::cpu, d)) * w.to(Device(DeviceKind::cpu, d)) * (d + 1));
      y = y.to("cpu:0");
      total = total.defined() ? total + y : y;
    }
    sum(total * total).backward();
    return values(x.grad());
  };
  auto first = run();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(run(), first);
}

TEST(Engine, TwoBackwardsAtOnceOverSharedLeaves) {
  Tensor x = ones({32}, {.dtype = f64, .requires_grad = true});
  Tensor shared = x * 2;  // one graph that both use
  constexpr int kThreads = 4, kRounds = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        sum(sin(x) * 0 + x).backward();
        sum(shared * 1).backward({}, true);
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(values(x.grad()), Doubles(32, kThreads * kRounds * 3.0));
}

struct SparseRows : Function<SparseRows> {
  Tensor forward(const Tensor& x) { return x.sum(); }
  TensorList backward(const TensorList&) { return {sparse_coo(tensor({{0, 3}}), ones({2, 2}, {f64}), {5, 2})}; }
};

// Sums that are new tensors: each is put in the place of the old one.
TEST(Engine, BackwardsAtOnceThatReplaceTheGradient) {
  constexpr int kThreads = 4, kRounds = 50;
  auto at_once = [](const auto& pass) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < kRounds; ++i) pass();
      });
    for (auto& t : threads) t.join();
  };
  Tensor x = ones({4}, {.dtype = f64, .requires_grad = true});
  at_once([&] {
    (x * x * 1.5).sum().backward({.create_graph = true});
    EXPECT_TRUE(x.grad().defined());
  });
  EXPECT_EQ(values(x.grad()), Doubles(4, kThreads * kRounds * 3.0));
  x.zero_grad();
  Tensor rows = zeros({5, 2}, {.dtype = f64, .requires_grad = true});
  at_once([&] { SparseRows::apply(rows).backward(); });
  double n = kThreads * kRounds;
  EXPECT_EQ(values(to_dense(rows.grad())), (Doubles{n, n, 0, 0, 0, 0, n, n, 0, 0}));
}

// A gradient that a hook made from another leaf takes that leaf's accumulator with it when it goes, and accumulators
// take a lock as they go: one that several leaves share.
TEST(Engine, AGradientThatGoesMayHoldAnotherLeaf) {
  Tensor x = ones({3}).requires_grad_(), other;
  TensorList others;
  do {
    other = full({3}, 5.0, {f32}).requires_grad_();
    others.push_back(other);
  } while (&autograd_mutex(impl(other)) != &autograd_mutex(impl(x)));
  x.register_hook([&](const Tensor& g) {
    EnableGrad guard;
    return g * other;
  });
  for (int i = 1; i < 3; ++i) {
    (x * 2).sum().backward();
    EXPECT_EQ(values(x.grad()), Doubles(3, 10.0 * i));
  }
  EXPECT_FALSE(x.grad().requires_grad());
}

// As a pass meets it when another thread has let go of the last handle and is about to free the tensor.
TEST(Engine, ARetainedTensorOnItsWayOutIsLeftAlone) {
  Tensor x = ones({1}).requires_grad_(), y = x * 2, z = y + 1;
  y.retain_grad();
  std::weak_ptr<Retained> alive = impl(y)->autograd->retained;
  ASSERT_EQ(impl(y)->references.fetch_sub(1), 1u);
  z.backward();
  ASSERT_FALSE(alive.expired()) << "it was taken up again, and freed";
  impl(y)->references = 1;
  EXPECT_FALSE(y.grad().defined());
  EXPECT_EQ(values(x.grad()), (Doubles{2}));
}

struct Nested : Function<Nested> {
  int depth = 0;
  Tensor forward(const Tensor& x, int d) {
    depth = d;
    save(x);
    return x * 2;
  }
  TensorList backward(const TensorList& g) {
    EnableGrad guard;
    Tensor x = saved(0).detach().requires_grad_();
    Tensor y = depth > 0 ? Nested::apply(x, depth - 1) : x * 2;
    return {grad({y}, {x}, {}, {g[0]})[0]};
  }
};

TEST(Engine, ReentrantFromFunctionsAndHooksToAnyDepth) {
  Tensor x = ones({2}, {.requires_grad = true});
  sum(Nested::apply(x, 300)).backward();
  EXPECT_EQ(values(x.grad()), (Doubles{2, 2}));
  Tensor y = ones({2}, {.requires_grad = true}), inner = ones({2}, {.requires_grad = true});
  Tensor z = y * 3;
  z.register_hook([&](const Tensor& g) {
    EnableGrad guard;
    sum(inner * inner).backward();
    return g;
  });
  sum(z).backward();
  EXPECT_EQ(values(y.grad()), (Doubles{3, 3}));
  EXPECT_EQ(values(inner.grad()), (Doubles{2, 2}));
}

TEST(Engine, ReentrantOnSeveralDevices) {
  Devices two(2);
  struct Across : Function<Across> {
    Tensor forward(const Tensor& x) {
      save(x);
      return x * 2;
    }
    TensorList backward(const TensorList& g) {
      EnableGrad guard;
      Tensor x = saved(0).detach().requires_grad_();
      return {grad({(x.to("cpu:1") * 2).to("cpu:0")}, {x}, {}, {g[0]})[0]};
    }
  };
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = Across::apply(Across::apply(x).to("cpu:1").to("cpu:0"));
  sum(y).backward();
  EXPECT_EQ(values(x.grad()), (Doubles{4, 4}));
}

// What is asked for by hooks on a leaf, inside of a checkpoint or not, is called when all has run.
TEST(AfterBackward, IsCalledAtTheEndOfTheOutermostPass) {
  Tensor w = ones({}, {f64}).requires_grad_(), v = ones({}, {f64}).requires_grad_();
  int asked = 0, called = 0;
  bool accepted = true;
  auto ask = [&](const Tensor&) {
    ++asked;
    accepted = after_backward([&](bool well) {
      EXPECT_TRUE(well);
      EXPECT_FALSE(grad_enabled());
      EXPECT_EQ(w.grad().item<double>(), 3) << "all has been accumulated";
      EXPECT_EQ(v.grad().item<double>(), 1);
      ++called;
    });
  };
  w.register_post_accumulate_hook(ask);
  auto piece = [&](const Tensor& x) { return checkpoint([&](const Tensor& y) { return y + w; }, x); };
  Tensor y = piece(piece(v)) + w;
  y.backward();
  EXPECT_EQ(asked, 1);  // a leaf accumulates once, however many checkpoints use it
  EXPECT_EQ(called, 1);
  EXPECT_TRUE(accepted);

  EXPECT_FALSE(after_backward([](bool) { FAIL() << "there is no pass"; }));
  w.register_hook([&](const Tensor& g) {
    EXPECT_FALSE(after_backward([](bool) { FAIL() << "grad() accumulates nothing"; }));
    return g;
  });
  grad(w * 2.0, w);
}

TEST(AfterBackward, IsToldOfFailuresAndMayFailItself) {
  Tensor w = ones({}, {f64}).requires_grad_();
  std::vector<bool> told;
  bool throws = false;
  w.register_post_accumulate_hook([&](const Tensor&) {
    after_backward([&](bool well) {
      told.push_back(well);
      if (well && throws) throw ValueError("from the end");
    });
    after_backward([&](bool well) { told.push_back(well); });
    if (!throws) throw ValueError("from the middle");
  });
  EXPECT_THAT(message_of<ValueError>([&] { (w * 2.0).backward(); }), HasSubstr("from the middle"));
  EXPECT_EQ(told, (std::vector<bool>{false, false}));
  told.clear();
  throws = true;
  EXPECT_THAT(message_of<ValueError>([&] { (w * 2.0).backward(); }), HasSubstr("from the end"));
  EXPECT_EQ(told, (std::vector<bool>{true, false}));
}

TEST(AfterBackward, LowerOrdersComeFirst) {
  Tensor w = ones({}, {f64}).requires_grad_();
  std::vector<int> called;
  w.register_post_accumulate_hook([&](const Tensor&) {
    after_backward([&](bool) { called.push_back(3); }, 3);
    after_backward(
        [&](bool) {
          called.push_back(1);
          after_backward([&](bool) { called.push_back(2); }, 2);  // while others wait
        },
        1);
    after_backward([&](bool) { called.push_back(0); });
  });
  (w * 2.0).backward();
  EXPECT_EQ(called, (std::vector<int>{0, 1, 2, 3}));
}

TEST(AfterBackward, KnowsThePassInItsWorkers) {
  Devices devices(3);
  std::atomic<int> called = 0;
  TensorList leaves;
  Tensor sum = zeros({}, {.dtype = f64, .device = "cpu:0"});
  for (int i = 0; i < 3; ++i) {
    Tensor w = ones({}, {.dtype = f64, .device = Device(DeviceKind::cpu, i)}).requires_grad_();
    w.register_post_accumulate_hook([&](const Tensor&) {
      EXPECT_TRUE(after_backward([&](bool well) {
        EXPECT_TRUE(well);
        ++called;
      }));
    });
    leaves.push_back(w);
    sum = sum + (w * 2.0).to("cpu:0");
  }
  sum.backward();
  EXPECT_EQ(called, 3);
}

TEST(GraphTask, TakesGradientsFromOutside) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = x * 2;
  GraphTask task({});
  Edge edge = gradient_edge(y);
  task.add_root(edge, ones({2}));
  task.expect(edge.node);
  std::thread other([&] { task.deliver(edge, ones({2}) * 10); });
  task.run();
  other.join();
  EXPECT_EQ(values(x.grad()), (Doubles{22, 22}));
}

TEST(GraphTask, TakesGradientsThatCameBeforeItRan) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = x * 2;
  GraphTask task({});
  Edge edge = gradient_edge(y);
  task.expect(edge.node);
  task.deliver(edge, ones({2}) * 3);
  task.run();
  EXPECT_EQ(values(x.grad()), (Doubles{6, 6}));
}

TEST(GraphTask, CanBeCancelled) {
  Tensor x = ones({2}, {.requires_grad = true});
  Tensor y = x * 2;
  GraphTask task({});
  task.expect(gradient_edge(y).node);
  std::thread other([&] { task.cancel(std::make_exception_ptr(OwnError{1})); });
  EXPECT_THROW(task.run(), OwnError);
  other.join();
}

TEST(Anomaly, NamesTheForwardLine) {
  Tensor x = zeros({2}, {.requires_grad = true});
  AnomalyMode guard;
  int line = __LINE__ + 1;
  Tensor y = sqrt(x);
  std::string text = message_of<GradError>([&] { sum(y * 0).backward(); });
  EXPECT_THAT(text, HasSubstr("'sqrt"));
  EXPECT_THAT(text, HasSubstr("NaN"));
#ifdef TUTTI_TEST_EXPECTS_LINES
  EXPECT_THAT(text, HasSubstr("engine_test.cpp:" + std::to_string(line)));
#else
  (void)line;
#endif
}

TEST(Anomaly, NamesTheLineThatWroteAPart) {
  Tensor x = zeros({2}, {.requires_grad = true});
  AnomalyMode guard;
  Tensor y = x * 1;
  int line = __LINE__ + 1;
  y.slice(0, 0, 1).sqrt_();
  std::string text = message_of<GradError>([&] { sum(y * 0).backward(); });
  EXPECT_THAT(text, HasSubstr("'sqrt"));
  EXPECT_THAT(text, testing::Not(HasSubstr("outside of anomaly mode")));
#ifdef TUTTI_TEST_EXPECTS_LINES
  EXPECT_THAT(text, HasSubstr("engine_test.cpp:" + std::to_string(line)));
#else
  (void)line;
#endif
}

TEST(Anomaly, FindsWhatAddingMade) {
  Tensor x = zeros({2}, {.requires_grad = true}), y = x * 1;
  AnomalyMode guard;
  EXPECT_THAT(message_of<GradError>([&] { sum(sqrt(x - x)).backward(); }),
              HasSubstr("the leaf f32[2] on cpu:0 are NaN"));
  Tensor z = y * 1;
  EXPECT_THAT(message_of<GradError>([&] { sum(sqrt(z - z)).backward(); }), HasSubstr("come to output 0 of 'mul'"));
}

TEST(Anomaly, LooksAtSparseGradients) {
  Tensor leaf = sparse_coo(tensor({{0}, {1}}, {i64}), ones({1}), {2, 2}).requires_grad_();
  AnomalyMode guard;
  Tensor y = mm(leaf, full({2, 2}, NAN));
  EXPECT_THAT(message_of<GradError>([&] { sum(y).backward(); }), HasSubstr("gave NaN"));
}

// Nodes that several threads made may have equal numbers: the order of sums depends on the graph all the same.
TEST(Engine, GraphsOfSeveralThreadsHaveTheSameBits) {
  Devices four(4);
  double first = 0;
  for (int pass = 0; pass < 400; ++pass) {
    Tensor x = ones({1}).requires_grad_();
    const double factors[] = {1e8, 1, -1e8};
    TensorList parts(3);
    std::vector<std::thread> threads;
    for (int d = 0; d < 3; ++d)
      threads.emplace_back(
          [&, d] { parts[static_cast<size_t>(d)] = x.to(Device(DeviceKind::cpu, d + 1)) * factors[d]; });
    for (auto& t : threads) t.join();
    (parts[0].to("cpu:0") + parts[1].to("cpu:0") + parts[2].to("cpu:0")).sum().backward();
    // 0 or 1 in f32, depending on which two come first.
    if (pass == 0) first = x.grad().item<double>();
    ASSERT_EQ(x.grad().item<double>(), first) << "at pass " << pass;
  }
}

TEST(Anomaly, NamesHooksThatMadeIt) {
  Tensor x = ones({2}, {.requires_grad = true});
  AnomalyMode guard;
  Tensor y = x * 2;
  y.register_hook([](const Tensor& g) { return g * NAN; });
  EXPECT_THAT(message_of<GradError>([&] { y.sum().backward(); }),
              AllOf(HasSubstr("output 0 of 'mul' are NaN after a hook has changed them"), HasSubstr("called at")));
}

// A graph of many nodes that save something; the gradient is 2^30.
Tensor squared_often(const Tensor& x) {
  Tensor y = x;
  for (int i = 0; i < 30; ++i) y = y * y;
  return y.sum();
}

// Threads that each do this until it throws, or once; counts those that were told that the graph was freed.
template <class F>
std::vector<std::thread> in_threads(int count, std::atomic<int>& late, F f) {
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t)
    threads.emplace_back([&late, f] {
      if (message_of<GradError>(f).find("already used and freed") != std::string::npos) ++late;
    });
  return threads;
}

// Note [Passes that meet]: of passes that free a graph one gets through; nobody reads what another frees.
TEST(Engine, PassesThatFreeOneGraphAtOnce) {
  for (int round = 0; round < 50; ++round) {
    Tensor x = ones({8}).requires_grad_(), loss = squared_often(x);
    std::atomic<int> well = 0, late = 0;
    for (auto& t : in_threads(3, late, [&] {
           loss.backward();
           ++well;
         }))
      t.join();
    ASSERT_EQ(well, 1);
    ASSERT_EQ(late, 2);
    ASSERT_EQ(values(x.grad())[0], 1 << 30);
  }
}

TEST(Engine, APassThatFreesBesideOnesThatRead) {
  for (int round = 0; round < 50; ++round) {
    Tensor x = ones({8}).requires_grad_(), loss = squared_often(x);
    std::atomic<int> well = 0, late = 0;
    auto threads = in_threads(2, late, [&] {
      while (true) {
        ASSERT_EQ(values(grad(loss, x, {.retain_graph = true}))[0], 1 << 30);
        ++well;
      }
    });
    while (well == 0) std::this_thread::yield();
    // Nodes at which others read are not freed, so one pass need not end it for them; each that follows frees more.
    while (late < 2) message_of<GradError>([&] { loss.backward(); });
    for (auto& t : threads) t.join();
    ASSERT_EQ(late, 2);
  }
}

TEST(Engine, ThreadsMayHookOneNode) {
  Tensor x = ones({1}).requires_grad_();
  for (int round = 0; round < 50; ++round) {
    Tensor y = x * 2;
    std::vector<std::thread> threads;
    std::atomic<int> calls = 0;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] { register_pre_hook(*y.grad_node(), [&](Gradients&) { ++calls; }); });
    for (auto& t : threads) t.join();
    y.backward();
    ASSERT_EQ(calls, 3);
  }
}

}  // namespace
}  // namespace tutti
