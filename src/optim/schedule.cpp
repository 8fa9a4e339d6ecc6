#include "tutti/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/check.h"

namespace tutti::optim {
namespace {

double ratio(int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

void check_steps(const char* schedule, int64_t steps) {
  check<ValueError>(steps > 0, schedule, "needs at least one step, not {}", steps);
}

// From a to b along half a cosine, as t goes from 0 to 1.
double half_cosine(double a, double b, double t) {
  return b + (a - b) / 2 * (1 + std::cos(std::numbers::pi * std::clamp(t, 0.0, 1.0)));
}

// low at 0, high at the end of the rise, end at the last step.
Schedule cycle(const char* name, int64_t steps, double rise, double low, double high, double end) {
  check_steps(name, steps);
  check<ValueError>(rise >= 0 && rise <= 1, name, "rise is a share of the steps, between 0 and 1, not {}", rise);
  double top = rise * static_cast<double>(steps) - 1, last = static_cast<double>(steps - 1);
  return Schedule([=](int64_t step) {
    auto t = static_cast<double>(step);
    if (t <= top) return half_cosine(low, high, top > 0 ? t / top : 1);
    return half_cosine(high, end, last > top ? (t - top) / (last - top) : 1);
  });
}

// A count in a state, which will be counted on.
int64_t count_in(const io::State& state, const char* key, const char* whose) {
  int64_t count = state[key].as<int64_t>();
  check<ValueError>(count >= 0 && count <= int64_t{1} << 60, whose, "'{}' of the state is {}", key, count);
  return count;
}

}  // namespace

Schedule operator*(Schedule a, Schedule b) {
  return Schedule([a = std::move(a), b = std::move(b)](int64_t step) { return a(step) * b(step); });
}
Schedule then(Schedule a, int64_t steps, Schedule b) {
  check<ValueError>(steps >= 0, "then", "the first schedule is for a number of steps ≥ 0, not {}", steps);
  return Schedule([a = std::move(a), steps, b = std::move(b)](int64_t s) { return s < steps ? a(s) : b(s - steps); });
}
Schedule constant(double factor) {
  return Schedule([=](int64_t) { return factor; });
}
Schedule step_decay(int64_t size, double gamma) {
  check_steps("step_decay", size);
  return Schedule([=](int64_t step) { return std::pow(gamma, static_cast<double>(step / size)); });
}
Schedule multi_step(std::vector<int64_t> milestones, double gamma) {
  check<ValueError>(std::ranges::is_sorted(milestones), "multi_step", "milestones must rise from one to the next");
  return Schedule([milestones = std::move(milestones), gamma](int64_t step) {
    return std::pow(gamma,
                    static_cast<double>(std::ranges::count_if(milestones, [&](int64_t m) { return m <= step; })));
  });
}
Schedule exponential(double gamma) {
  check<ValueError>(gamma > 0, "exponential", "the factor of each step must be above 0, not {}", gamma);
  return Schedule([=](int64_t step) { return std::pow(gamma, static_cast<double>(step)); });
}
Schedule linear(double start, double end, int64_t steps) {
  check_steps("linear", steps);
  return Schedule([=](int64_t step) { return start + (end - start) * ratio(std::min(step, steps), steps); });
}
Schedule warmup(int64_t steps) {
  check_steps("warmup", steps);
  return Schedule([=](int64_t step) { return std::min(1.0, ratio(step + 1, steps)); });
}
Schedule cosine(int64_t steps, double lowest) {
  check_steps("cosine", steps);
  return Schedule([=](int64_t step) { return half_cosine(1, lowest, ratio(step, steps)); });
}
Schedule cosine_restarts(int64_t first, int64_t growth, double lowest) {
  check_steps("cosine_restarts", first);
  check<ValueError>(growth >= 1, "cosine_restarts", "growth must be at least 1, not {}", growth);
  return Schedule([=](int64_t step) {
    int64_t length = first;
    if (growth == 1) step %= first;
    while (step >= length) {
      step -= length;
      length = length <= INT64_MAX / growth ? length * growth : INT64_MAX;
    }
    return half_cosine(1, lowest, ratio(step, length));
  });
}
Schedule polynomial(int64_t steps, double power) {
  check_steps("polynomial", steps);
  check<ValueError>(power >= 0 && std::isfinite(power), "polynomial", "takes a power ≥ 0, not {}", power);
  return Schedule([=](int64_t step) { return std::pow(1 - ratio(std::min(step, steps), steps), power); });
}
Schedule one_cycle(int64_t steps, const OneCycleOptions& o) {
  return cycle("one_cycle", steps, o.rise, o.start, 1, o.end);
}
Schedule one_cycle_momentum(int64_t steps, double low, double high, double rise) {
  return cycle("one_cycle_momentum", steps, rise, high, low, high);
}

Scheduler::Scheduler(Optimizer& optimizer, Schedule schedule, std::optional<Schedule> momentum)
    : optimizer_(&optimizer),
      claim_(std::make_shared<const Optimizer*>(&optimizer)),
      schedule_(std::move(schedule)),
      momentum_(std::move(momentum)) {
  auto other = optimizer.scheduled_.lock();
  check<ValueError>(!other || *other != &optimizer, "Scheduler",
                    "the optimizer has a Scheduler, which this one would override: multiply schedules (a * b), chain "
                    "them with then(), or let the other go first");
  for (size_t g = 0; g < optimizer.group_count(); ++g) {
    double scale = optimizer.lr_scale(g);
    base_.push_back(scale > 0 ? optimizer.lr(g) / scale : optimizer.lr(g));
  }
  apply();
  optimizer.scheduled_ = claim_;
}

void Scheduler::apply() {
  check<ValueError>(base_.size() == optimizer_->group_count(), "Scheduler",
                    "the optimizer has {} groups now, and had {} when the scheduler was made",
                    optimizer_->group_count(), base_.size());
  double factor = schedule_(step_);
  check<ValueError>(factor >= 0, "Scheduler", "the schedule gave a factor of {} for step {}", factor, step_);
  for (size_t g = 0; g < base_.size(); ++g) {
    if (momentum_) optimizer_->set_momentum(g, (*momentum_)(step_));
    optimizer_->set_lr(g, base_[g] * factor * optimizer_->lr_scale(g));
  }
}

void Scheduler::step() {
  ++step_;
  apply();
}

io::State Scheduler::state() const {
  io::ValueList base;
  for (double lr : base_) base.push_back(lr);
  return {{"step", step_}, {"base", std::move(base)}};
}

void Scheduler::load_state(const io::State& state) {
  const auto& base = state["base"].as<io::ValueList>();
  check<ValueError>(base.size() == base_.size(), "Scheduler", "the state has {} groups, the optimizer {}", base.size(),
                    base_.size());
  std::vector<double> rates;
  for (const io::Value& value : base) {
    rates.push_back(value.as<double>());
    check<ValueError>(rates.back() >= 0, "Scheduler", "the state has a rate of {}", rates.back());
  }
  step_ = count_in(state, "step", "Scheduler");
  base_ = std::move(rates);
  apply();
}

Plateau::Plateau(Optimizer& optimizer, const PlateauOptions& options)
    : optimizer_(&optimizer),
      options_(options),
      best_(options.larger_is_better ? -std::numeric_limits<double>::infinity()
                                     : std::numeric_limits<double>::infinity()) {
  check<ValueError>(options.factor > 0 && options.factor < 1, "Plateau", "factor must be between 0 and 1, not {}",
                    options.factor);
  check<ValueError>(options.patience >= 0 && options.cooldown >= 0, "Plateau",
                    "patience and cooldown are numbers of steps ≥ 0, not {} and {}", options.patience,
                    options.cooldown);
  check<ValueError>(options.threshold >= 0 && options.lowest >= 0, "Plateau",
                    "threshold and lowest must be ≥ 0, not {} and {}", options.threshold, options.lowest);
}

void Plateau::step(double measure) {
  bool first = std::isinf(best_);  // of which a part is no number
  double up = first ? best_ : best_ * (1 + options_.threshold), down = first ? best_ : best_ * (1 - options_.threshold);
  if (options_.larger_is_better ? measure > up : measure < down) {
    best_ = measure;
    bad_ = 0;
  } else {
    ++bad_;
  }
  if (cooldown_ > 0) {
    --cooldown_;
    bad_ = 0;
  }
  if (bad_ <= options_.patience) return;
  for (size_t g = 0; g < optimizer_->group_count(); ++g) lower(g);
  cooldown_ = options_.cooldown;
  bad_ = 0;
}

void Plateau::lower(size_t group) {
  double now = optimizer_->lr(group), next = std::min(now, std::max(options_.lowest, now * options_.factor));
  bool usual = now > 0 && std::isfinite(now);
  optimizer_->scale_lr(group, usual ? next / now : options_.factor);
  if (usual) optimizer_->set_lr(group, next);  // without the rounding of a quotient
}

io::State Plateau::state() const { return {{"best", best_}, {"bad", bad_}, {"cooldown", cooldown_}}; }
void Plateau::load_state(const io::State& state) {
  double best = state["best"].as<double>();
  int64_t bad = count_in(state, "bad", "Plateau"), cooldown = count_in(state, "cooldown", "Plateau");
  best_ = best;
  bad_ = bad;
  cooldown_ = cooldown;
}

}  // namespace tutti::optim
