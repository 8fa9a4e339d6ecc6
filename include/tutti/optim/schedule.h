// Learning rates that change with the step. A Schedule is a factor for each step, by which the learning rate that the
// optimizer began with is multiplied; a Scheduler applies it.
//
//   optim::Scheduler schedule(adam, optim::warmup(100) * optim::cosine(10'000));
//   ... each step: adam.step(); schedule.step();
//
// An optimizer has one Scheduler: schedules are multiplied and chained instead. A Plateau goes together with it, since
// what it takes off stays off (Optimizer::scale_lr), whatever the schedule does then.
#pragma once

#include <concepts>
#include <functional>

#include "tutti/optim/optimizer.h"

namespace tutti::optim {

class Schedule {
 public:
  /// Any function of the step, so that Scheduler(sgd, [](int64_t step) { return 0.5; }) reads well.
  template <class F>
    requires(!std::same_as<F, Schedule> && std::is_invocable_r_v<double, F&, int64_t>)
  Schedule(F factor) : factor_(std::move(factor)) {}  // NOLINT
  double operator()(int64_t step) const { return factor_(step); }

 private:
  std::function<double(int64_t)> factor_;
};
/// Both at once.
Schedule operator*(Schedule a, Schedule b);
/// a for the first `steps`, then b from its own beginning.
Schedule then(Schedule a, int64_t steps, Schedule b);

Schedule constant(double factor = 1);
/// Times gamma every `size` steps.
Schedule step_decay(int64_t size, double gamma = 0.1);
/// Times gamma at each of these steps.
Schedule multi_step(std::vector<int64_t> milestones, double gamma = 0.1);
Schedule exponential(double gamma);
/// From `start` to `end` in a straight line, then `end`.
Schedule linear(double start, double end, int64_t steps);
/// From nothing (1/steps at step 0) to 1.
Schedule warmup(int64_t steps);
/// From 1 to `lowest` along half a cosine, then `lowest`.
Schedule cosine(int64_t steps, double lowest = 0);
/// Cosines that begin anew after `first` steps, then after `growth` times as many.
Schedule cosine_restarts(int64_t first, int64_t growth = 1, double lowest = 0);
/// (1 - step/steps)^power
Schedule polynomial(int64_t steps, double power = 1);

struct OneCycleOptions {
  double rise = 0.3;            // the share of steps in which the rate rises
  double start = 1.0 / 25;      // factor at the beginning
  double end = 1.0 / 25 / 1e4;  // factor at the end
};
/// From start to 1 (the optimizer's own rate) and down to end, along cosines.
Schedule one_cycle(int64_t steps, const OneCycleOptions& options = {});
/// What goes with it for the momentum: from `high` down to `low` and back. These are momenta, not factors.
Schedule one_cycle_momentum(int64_t steps, double low = 0.85, double high = 0.95, double rise = 0.3);

class Scheduler {
 public:
  /// Sets the rates of step 0. `momentum`, if given, is the momentum at each step. ValueError if another Scheduler of
  /// this optimizer lives (a copy is not another one).
  Scheduler(Optimizer& optimizer, Schedule schedule, std::optional<Schedule> momentum = {});
  /// After each step of the optimizer (or each epoch: what a step is, is yours to say).
  void step();
  int64_t steps() const { return step_; }
  io::State state() const;
  void load_state(const io::State& state);

 private:
  void apply();
  Optimizer* optimizer_;
  std::shared_ptr<const Optimizer*> claim_;  // that it is this one's
  Schedule schedule_;
  std::optional<Schedule> momentum_;
  std::vector<double> base_;
  int64_t step_ = 0;
};

struct PlateauOptions {
  bool larger_is_better = false;
  double factor = 0.1;
  int64_t patience = 10;    // steps without improvement that are put up with
  double threshold = 1e-4;  // relative improvement that counts
  int64_t cooldown = 0;     // steps after a change in which nothing counts
  double lowest = 0;        // the smallest learning rate
};
/// Lowers the rate when a measure (a validation loss) no longer improves. With a Scheduler on the same optimizer, a
/// warm-up say, the rate is that of the schedule times what the plateau has taken off.
class Plateau {
 public:
  explicit Plateau(Optimizer& optimizer, const PlateauOptions& options = {});
  void step(double measure);
  io::State state() const;
  void load_state(const io::State& state);

 private:
  void lower(size_t group);
  Optimizer* optimizer_;
  PlateauOptions options_;
  double best_;
  int64_t bad_ = 0, cooldown_ = 0;
};

}  // namespace tutti::optim
