// Schedules against PyTorch's.
#include <cmath>

#include "tests/optim/golden.h"
#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tutti/io.h"
#include "tutti/optim.h"

namespace tutti::test {
namespace {

using namespace optim;
using testing::HasSubstr;

SGD make_sgd(double lr = 0.5) { return SGD({zeros({1}).requires_grad_()}, {.lr = lr, .momentum = 0.9}); }

void agree(const std::string& key, const Schedule& schedule) {
  SGD sgd = make_sgd();
  Scheduler scheduler(sgd, schedule);
  Doubles expected = values(golden().read("schedule/" + key));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(sgd.lr(), expected[i], 1e-12) << key << " at step " << i;
    EXPECT_EQ(scheduler.steps(), static_cast<int64_t>(i));
    scheduler.step();
  }
}

TEST(Schedule, AgreesWithPyTorch) {
  agree("step", step_decay(3, 0.3));
  agree("multi", multi_step({2, 5, 5, 9}, 0.3));
  agree("exponential", exponential(0.8));
  agree("cosine", cosine(11, 0.1));  // PyTorch's lowest is a rate, ours a factor of 0.5
  agree("restarts", cosine_restarts(3, 2, 0.1));
  agree("linear", linear(0.25, 0.75, 5));
  agree("polynomial", polynomial(8, 2));
  agree("cycle", one_cycle(20, {.rise = 0.4}));
  agree("sequential", then(linear(0.1, 1, 4), 4, exponential(0.7)));
  agree("chained", linear(0.1, 1, 4) * exponential(0.7));
}

TEST(Schedule, CyclesOfMomentumAgreeWithPyTorch) {
  Doubles rates = values(golden().read("schedule/cycle")), momenta = values(golden().read("schedule/cycle.momentum"));
  SGD sgd = make_sgd();
  Adam adam({zeros({1}).requires_grad_()}, {.lr = 0.5});
  Scheduler one(sgd, one_cycle(20, {.rise = 0.4}), one_cycle_momentum(20, 0.85, 0.95, 0.4));
  Scheduler two(adam, one_cycle(20, {.rise = 0.4}), one_cycle_momentum(20, 0.85, 0.95, 0.4));
  for (size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(adam.lr(), rates[i], 1e-12);
    EXPECT_NEAR(sgd.momentum(0), momenta[i], 1e-12) << i;
    EXPECT_NEAR(adam.options().beta1, momenta[i], 1e-12);
    one.step();
    two.step();
  }
}

TEST(Schedule, ValuesOfThoseThatPyTorchHasNot) {
  Schedule up = warmup(4);
  EXPECT_EQ(up(0), 0.25);
  EXPECT_EQ(up(3), 1);
  EXPECT_EQ(up(9), 1);
  EXPECT_EQ(constant(0.3)(7), 0.3);
  // Beyond their ends they stay.
  EXPECT_NEAR(cosine(10, 0.2)(99), 0.2, 1e-15);
  EXPECT_EQ(polynomial(10)(99), 0);
  EXPECT_NEAR(one_cycle(10)(99), 1.0 / 25 / 1e4, 1e-15);
  EXPECT_EQ(linear(0, 2, 10)(99), 2);
  Schedule own([](int64_t step) { return 1.0 / static_cast<double>(1 + step); });
  EXPECT_EQ((own * constant(2))(3), 0.5);
}

TEST(Schedule, EachGroupKeepsItsProportion) {
  Tensor a = zeros({1}).requires_grad_(), b = zeros({1}).requires_grad_();
  SGD sgd(std::vector<optim::ParameterGroup<SGDOptions>>{{{a}, {.lr = 1}}, {{b}, {.lr = 10}}});
  Scheduler scheduler(sgd, exponential(0.5));
  scheduler.step();
  EXPECT_EQ(sgd.lr(0), 0.5);
  EXPECT_EQ(sgd.lr(1), 5);
  sgd.add_group({zeros({1}).requires_grad_()}, {});
  EXPECT_THAT(message_of<ValueError>([&] { scheduler.step(); }), HasSubstr("3 groups"));
}

TEST(Schedule, StatesContinue) {
  SGD sgd = make_sgd(), other = make_sgd(7);
  Scheduler scheduler(sgd, cosine(20), one_cycle_momentum(20)), fresh(other, cosine(20), one_cycle_momentum(20));
  for (int i = 0; i < 8; ++i) scheduler.step();
  fresh.load_state(io::state_from_bytes(io::state_to_bytes(scheduler.state()), "here"));
  EXPECT_EQ(other.lr(), sgd.lr());
  EXPECT_EQ(other.momentum(0), sgd.momentum(0));
  scheduler.step();
  fresh.step();
  EXPECT_EQ(other.lr(), sgd.lr());
  Tensor a = zeros({1}).requires_grad_(), b = zeros({1}).requires_grad_();
  SGD two(std::vector<optim::ParameterGroup<SGDOptions>>{{{a}}, {{b}}});
  Scheduler wrong(two, cosine(20));
  EXPECT_THROW(wrong.load_state(scheduler.state()), ValueError);
}

TEST(Schedule, PlateausAgreeWithPyTorch) {
  struct {
    const char* key;
    double sign;
    PlateauOptions options;
  } cases[] = {
      {"min", 1, {.factor = 0.5, .patience = 2}},
      {"cooldown", 1, {.factor = 0.3, .patience = 1, .cooldown = 2, .lowest = 0.01}},
      {"max", -1, {.larger_is_better = true, .factor = 0.5, .patience = 2, .threshold = 0.02}},
  };
  Doubles measures = values(golden().read("plateau/measures"));
  for (auto& [key, sign, options] : cases) {
    Doubles expected = values(golden().read(std::string("plateau/") + key));
    SGD sgd = make_sgd();
    Plateau plateau(sgd, options);
    for (size_t i = 0; i < measures.size(); ++i) {
      // In the middle a fresh one takes over.
      if (i == 9) {
        Plateau fresh(sgd, options);
        fresh.load_state(io::state_from_bytes(io::state_to_bytes(plateau.state()), "here"));
        plateau = fresh;
      }
      plateau.step(10 + sign * measures[i]);
      EXPECT_NEAR(sgd.lr(), expected[i], 1e-12) << key << " after measure " << i;
    }
  }
}

TEST(Schedule, PlateausGoTogetherWithSchedules) {
  SGD sgd = make_sgd(1);
  Scheduler scheduler(sgd, warmup(4));
  Plateau plateau(sgd, {.factor = 0.5, .patience = 0});
  auto one = [&] {
    scheduler.step();
    return sgd.lr();
  };
  EXPECT_EQ(sgd.lr(), 0.25);
  EXPECT_EQ(one(), 0.5);
  plateau.step(1);
  plateau.step(1);  // no better
  EXPECT_EQ(sgd.lr(), 0.25);
  EXPECT_EQ(one(), 0.375);  // 3/4 of the way up, halved
  EXPECT_EQ(one(), 0.5);
  EXPECT_EQ(one(), 0.5);
  plateau.step(2);
  EXPECT_EQ(one(), 0.25);
  EXPECT_EQ(sgd.lr_scale(), 0.25);
  // All of it is in the states, in whatever order they are loaded.
  for (bool optimizer_first : {true, false}) {
    SGD other = make_sgd(7);
    Scheduler schedule(other, warmup(4));
    if (optimizer_first) other.load_state(sgd.state());
    schedule.load_state(scheduler.state());
    if (!optimizer_first) other.load_state(sgd.state());
    EXPECT_EQ(other.lr(), 0.25);
    schedule.step();
    EXPECT_EQ(other.lr(), 0.25);
  }
  // A schedule that begins late does not take it for a part of the rate.
  SGD copy = sgd;  // the schedule of sgd is not that of a copy
  Scheduler late(copy, constant(1));
  EXPECT_EQ(copy.lr(), 0.25);
  late.step();
  EXPECT_EQ(copy.lr(), 0.25);
}

TEST(Schedule, NonsenseIsRefusedAtOnce) {
  SGD sgd = make_sgd(1);
  EXPECT_THROW(Plateau(sgd, {.patience = -1}), ValueError);
  EXPECT_THROW(Plateau(sgd, {.threshold = -1e-4}), ValueError);
  EXPECT_THROW(Plateau(sgd, {.threshold = NAN}), ValueError);
  EXPECT_THROW(Plateau(sgd, {.cooldown = -1}), ValueError);
  EXPECT_THROW(Plateau(sgd, {.lowest = -1}), ValueError);
  Plateau usual(sgd, {.patience = 0, .threshold = 0, .cooldown = 0, .lowest = 0});
  EXPECT_THROW(then(constant(1), -5, constant(2)), ValueError);
  EXPECT_EQ(then(constant(1), 0, constant(2))(0), 2);
  EXPECT_THROW(polynomial(10, -1), ValueError);
  EXPECT_THROW(polynomial(10, INFINITY), ValueError);
}

TEST(Schedule, AnOptimizerHasOneScheduler) {
  SGD sgd = make_sgd(1);
  std::optional<Scheduler> first(std::in_place, sgd, constant(0.5));
  EXPECT_THAT(message_of<ValueError>([&] { Scheduler(sgd, constant(2)); }), testing::HasSubstr("a * b"));
  EXPECT_EQ(sgd.lr(), 0.5);
  Scheduler copy = *first;  // the same one
  copy.step();
  first.reset();
  EXPECT_THROW(Scheduler(sgd, constant(2)), ValueError);
  copy = Scheduler(*std::make_unique<SGD>(make_sgd(1)), constant(1));
  EXPECT_THROW(Scheduler(sgd, constant(NAN)), ValueError);  // one that could not be made is none
  Scheduler second(sgd, constant(2));
  EXPECT_EQ(sgd.lr(), 1);
}

TEST(Schedule, PlateausNeverRaiseARate) {
  SGD sgd = make_sgd(1);
  Scheduler scheduler(sgd, warmup(100));  // 0.01 now
  Plateau plateau(sgd, {.factor = 0.5, .patience = 0, .lowest = 0.1});
  plateau.step(1);
  plateau.step(1);
  EXPECT_EQ(sgd.lr(), 0.01);
  for (double odd : {0.0, static_cast<double>(INFINITY)}) {
    sgd.set_lr(odd);
    plateau.step(1);
    EXPECT_EQ(sgd.lr(), odd);
  }
  EXPECT_THROW(sgd.scale_lr(0, -1), ValueError);
  EXPECT_THROW(sgd.scale_lr(0, NAN), ValueError);
}

TEST(Schedule, StatesThatMakeNoSenseAreRefused) {
  SGD sgd = make_sgd(1);
  Scheduler scheduler(sgd, cosine_restarts(3, 2));
  Plateau plateau(sgd);
  scheduler.step();
  double lr = sgd.lr();
  for (int64_t step : {int64_t{-1}, INT64_MAX, INT64_MIN}) {
    io::State state = scheduler.state();
    state["base"] = io::ValueList{7.0};
    state["step"] = step;
    EXPECT_THROW(scheduler.load_state(state), ValueError);
    io::State other = plateau.state();
    other["bad"] = step;
    EXPECT_THROW(plateau.load_state(other), ValueError);
  }
  io::State state = scheduler.state();
  state["base"] = io::ValueList{NAN};
  EXPECT_THROW(scheduler.load_state(state), ValueError);
  scheduler.step();
  EXPECT_NEAR(sgd.lr(), 0.25, 1e-12);
  EXPECT_NE(sgd.lr(), lr);
  // However long it runs.
  for (int64_t growth : {1, 2, 1000}) {
    double factor = cosine_restarts(3, growth)(int64_t{1} << 60);
    EXPECT_TRUE(factor >= 0 && factor <= 1);
  }
}

TEST(Schedule, PlateausTakeAnyMeasure) {
  SGD sgd = make_sgd(1);
  Plateau plateau(sgd, {.factor = 0.5, .patience = 0});
  io::State unused = io::state_from_bytes(io::state_to_bytes(plateau.state()), "here");  // infinite best
  EXPECT_TRUE(std::isinf(unused["best"].as<double>()));
  plateau.step(NAN);
  EXPECT_EQ(sgd.lr(), 0.5);
  plateau.step(-INFINITY);
  EXPECT_EQ(sgd.lr(), 0.5);
  plateau.step(3);  // nothing is better than that
  EXPECT_EQ(sgd.lr(), 0.25);
}

TEST(Schedule, WrongArgumentsAreNamed) {
  EXPECT_THROW(step_decay(0), ValueError);
  EXPECT_THROW(linear(0, 1, 0), ValueError);
  EXPECT_THROW(warmup(-1), ValueError);
  EXPECT_THROW(cosine(0), ValueError);
  EXPECT_THROW(cosine_restarts(0), ValueError);
  EXPECT_THROW(cosine_restarts(3, 0), ValueError);
  EXPECT_THROW(polynomial(0), ValueError);
  EXPECT_THAT(message_of<ValueError>([] { one_cycle(10, {.rise = 2}); }), HasSubstr("rise"));
  SGD sgd = make_sgd();
  EXPECT_THAT(message_of<ValueError>([&] { Plateau(sgd, {.factor = 1}); }), HasSubstr("factor"));
}

TEST(Schedule, TakesAnyFunctionOfTheStep) {
  SGD sgd = make_sgd(1);
  Scheduler schedule(sgd, [](int64_t step) { return step == 0 ? 0.5 : 0.25; }, [](int64_t) { return 0.75; });
  EXPECT_EQ(sgd.lr(), 0.5);
  EXPECT_EQ(sgd.momentum(0), 0.75);
  schedule.step();
  EXPECT_EQ(sgd.lr(), 0.25);
  Schedule both = constant(0.5) * [](int64_t) { return 0.5f; };
  EXPECT_EQ(both(0), 0.25);
}

TEST(Schedule, RefusesFactorsThatAreNone) {
  SGD sgd = make_sgd(1);
  Scheduler schedule(sgd, [](int64_t step) { return step < 1 ? 0.5 : NAN; });
  EXPECT_THAT(message_of<ValueError>([&] { schedule.step(); }), HasSubstr("factor of nan for step 1"));
  EXPECT_THROW(Scheduler(sgd, constant(-1)), ValueError);
  EXPECT_EQ(sgd.lr(), 0.5);
  Adagrad plain({zeros({1}).requires_grad_()}, {.lr = 1});
  EXPECT_THAT(message_of<ValueError>([&] { Scheduler(plain, constant(0.5), constant(0.9)); }),
              HasSubstr("Adagrad: has no momentum"));
  EXPECT_EQ(plain.lr(), 1);
}

TEST(Schedule, PlateausWithLargeThresholdsHaveAFirstMeasure) {
  for (double threshold : {1.0, 3.0})
    for (bool larger : {false, true}) {
      Tensor p = zeros({1}).requires_grad_();
      SGD sgd({p}, {.lr = 1});
      Plateau plateau(sgd, {.larger_is_better = larger, .factor = 0.5, .patience = 0, .threshold = threshold});
      plateau.step(5);
      EXPECT_EQ(sgd.lr(0), 1);
      plateau.step(5);
      EXPECT_EQ(sgd.lr(0), 0.5);
    }
}

TEST(Schedule, RefusesFactorsAndMilestonesThatCannotBe) {
  EXPECT_THROW(exponential(-1), ValueError);
  EXPECT_THROW(multi_step({5, 2}), ValueError);
  EXPECT_EQ(multi_step({2, 2, 5})(2), multi_step({2, 5})(5));
}

}  // namespace
}  // namespace tutti::test
