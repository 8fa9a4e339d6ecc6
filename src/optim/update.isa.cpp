#include "optim/update.h"

#include "tutti/pointwise/primitives.h"

namespace tutti::optim {
namespace {

using namespace pointwise;

template <class V>
TUTTI_HD V change(const SgdRule& r, V p, V g, V* s) {
  g = g * V(r.sign) + V(r.weight_decay) * p;
  if (r.has_momentum) {
    s[0] = r.first ? g : V(r.momentum) * s[0] + V(r.damped) * g;
    g = r.nesterov ? g + V(r.momentum) * s[0] : s[0];
  }
  return p - V(r.lr) * g;
}

template <class V>
TUTTI_HD V change(const AdamRule& r, V p, V g, V* s) {
  g = g * V(r.sign) + V(r.decay) * p;
  p = p * V(r.shrink);
  s[0] = s[0] * V(r.beta1) + g * V(1 - r.beta1);
  s[1] = s[1] * V(r.beta2) + g * g * V(1 - r.beta2);
  V square = s[1];
  if (r.amsgrad) square = s[2] = select(square > s[2], square, s[2]);
  V root = sqrt(square) / V(r.root_correction) + V(r.eps);
  return p - V(r.step_size) * (s[0] / root);
}

template <class V>
TUTTI_HD V change(const AdagradRule& r, V p, V g, V* s) {
  g = g * V(r.sign) + V(r.weight_decay) * p;
  s[0] = s[0] + g * g;
  return p - V(r.lr) * (g / (sqrt(s[0]) + V(r.eps)));
}

template <class V>
TUTTI_HD V change(const RmspropRule& r, V p, V g, V* s) {
  g = g * V(r.sign) + V(r.weight_decay) * p;
  s[0] = s[0] * V(r.alpha) + g * g * V(1 - r.alpha);
  V square = s[0];
  if (r.centered) {
    s[2] = s[2] * V(r.alpha) + g * V(1 - r.alpha);
    square = square - s[2] * s[2];
    square = select(square < V(0), V(0), square);  // of equal gradients it is 0 but for rounding
  }
  V ratio = g / (sqrt(square) + V(r.eps));
  if (!r.has_momentum) return p - V(r.lr) * ratio;
  s[1] = s[1] * V(r.momentum) + ratio;
  return p - V(r.lr) * s[1];
}

template <class V>
TUTTI_HD V change(const LionRule& r, V p, V g, V* s) {
  g = g * V(r.sign);
  V direction = s[0] * V(r.beta1) + g * V(1 - r.beta1);
  // The sign, which is 0 of 0 and NaN of NaN.
  V sign = select(direction > V(0), V(1), select(direction < V(0), V(-1), direction));
  s[0] = s[0] * V(r.beta2) + g * V(1 - r.beta2);
  return p * V(r.shrink) - V(r.lr) * sign;
}

template <int States, class Rule, class T>
TUTTI_HD void run(const Rule& rule, T* p, const T* g, T* const* state, int64_t n) {
  constexpr int kLanes = 64 / sizeof(T);
  using V = Vec<T, kLanes>;
  auto part = [&](int64_t i, auto... count) {
    V s[States];
    for (int k = 0; k < States; ++k) s[k] = state[k] ? V::load(state[k] + i, count...) : V(0);
    V next = change(rule, V::load(p + i, count...), V::load(g + i, count...), s);
    next.store(p + i, count...);
    for (int k = 0; k < States; ++k)
      if (state[k]) s[k].store(state[k] + i, count...);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) part(i);
  if (i < n) part(i, static_cast<int>(n - i));
}

}  // namespace

TUTTI_ISA_DEFINE(sgd_f32, void, (const SgdRule& rule, float* p, const float* g, float* const* state, int64_t n)) {
  run<1>(rule, p, g, state, n);
}
TUTTI_ISA_DEFINE(sgd_f64, void, (const SgdRule& rule, double* p, const double* g, double* const* state, int64_t n)) {
  run<1>(rule, p, g, state, n);
}
TUTTI_ISA_DEFINE(adam_f32, void, (const AdamRule& rule, float* p, const float* g, float* const* state, int64_t n)) {
  run<3>(rule, p, g, state, n);
}
TUTTI_ISA_DEFINE(adam_f64, void, (const AdamRule& rule, double* p, const double* g, double* const* state, int64_t n)) {
  run<3>(rule, p, g, state, n);
}
TUTTI_ISA_DEFINE(adagrad_f32, void,
                 (const AdagradRule& rule, float* p, const float* g, float* const* state, int64_t n)) {
  run<1>(rule, p, g, state, n);
}
TUTTI_ISA_DEFINE(adagrad_f64, void,
                 (const AdagradRule& rule, double* p, const double* g, double* const* state, int64_t n)) {
  run<1>(rule, p, g, state, n);
}
TUTTI_ISA_DEFINE(rmsprop_f32, void,
                 (const RmspropRule& rule, float* p, const float* g, float* const* state, int64_t n)) {
  run<3>(rule, p, g, state, n);
}
TUTTI_ISA_DEFINE(rmsprop_f64, void,
                 (const RmspropRule& rule, double* p, const double* g, double* const* state, int64_t n)) {
  run<3>(rule, p, g, state, n);
}
TUTTI_ISA_DEFINE(lion_f32, void, (const LionRule& rule, float* p, const float* g, float* const* state, int64_t n)) {
  run<1>(rule, p, g, state, n);
}
TUTTI_ISA_DEFINE(lion_f64, void, (const LionRule& rule, double* p, const double* g, double* const* state, int64_t n)) {
  run<1>(rule, p, g, state, n);
}

}  // namespace tutti::optim
