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

}  // namespace

Schedule operator*(Schedule a, Schedule b) {
  return Schedule([a = std::move(a), b = std::move(b)](int64_t step) { return a(step) * b(step); });
}
Schedule then(Schedule a, int64_t steps, Schedule b) {
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
  return Schedule([milestones = std::move(milestones), gamma](int64_t step) {
    return std::pow(gamma,
                    static_cast<double>(std::ranges::count_if(milestones, [&](int64_t m) { return m <= step; })));
  });
}
Schedule exponential(double gamma) {
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
    while (step >= length) {
      step -= length;
      length *= growth;
    }
    return half_cosine(1, lowest, ratio(step, length));
  });
}
Schedule polynomial(int64_t steps, double power) {
  check_steps("polynomial", steps);
  return Schedule([=](int64_t step) { return std::pow(1 - ratio(std::min(step, steps), steps), power); });
}
Schedule one_cycle(int64_t steps, const OneCycleOptions& o) {
  return cycle("one_cycle", steps, o.rise, o.start, 1, o.end);
}
Schedule one_cycle_momentum(int64_t steps, double low, double high, double rise) {
  return cycle("one_cycle_momentum", steps, rise, high, low, high);
}

Scheduler::Scheduler(Optimizer& optimizer, Schedule schedule, std::optional<Schedule> momentum)
    : optimizer_(&optimizer), schedule_(std::move(schedule)), momentum_(std::move(momentum)) {
  for (size_t g = 0; g < optimizer.group_count(); ++g) base_.push_back(optimizer.lr(g));
  apply();
}

void Scheduler::apply() {
  check<ValueError>(base_.size() == optimizer_->group_count(), "Scheduler",
                    "the optimizer has {} groups now, and had {} when the scheduler was made",
                    optimizer_->group_count(), base_.size());
  for (size_t g = 0; g < base_.size(); ++g) {
    optimizer_->set_lr(g, base_[g] * schedule_(step_));
    if (momentum_) optimizer_->set_momentum(g, (*momentum_)(step_));
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
  for (size_t g = 0; g < base.size(); ++g) base_[g] = base[g].as<double>();
  step_ = state["step"].as<int64_t>();
  apply();
}

Plateau::Plateau(Optimizer& optimizer, const PlateauOptions& options)
    : optimizer_(&optimizer),
      options_(options),
      best_(options.larger_is_better ? -std::numeric_limits<double>::infinity()
                                     : std::numeric_limits<double>::infinity()) {
  check<ValueError>(options.factor > 0 && options.factor < 1, "Plateau", "factor must be between 0 and 1, not {}",
                    options.factor);
}

void Plateau::step(double measure) {
  if (options_.larger_is_better ? measure > best_ * (1 + options_.threshold)
                                : measure < best_ * (1 - options_.threshold)) {
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
  for (size_t g = 0; g < optimizer_->group_count(); ++g)
    optimizer_->set_lr(g, std::max(options_.lowest, optimizer_->lr(g) * options_.factor));
  cooldown_ = options_.cooldown;
  bad_ = 0;
}

io::State Plateau::state() const { return {{"best", best_}, {"bad", bad_}, {"cooldown", cooldown_}}; }
void Plateau::load_state(const io::State& state) {
  best_ = state["best"].as<double>();
  bad_ = state["bad"].as<int64_t>();
  cooldown_ = state["cooldown"].as<int64_t>();
}

}  // namespace tutti::optim
