// The optimizers' rules over dense gradients: all parameters of a group in one pass, in pieces for the threads.
#include <cmath>
#include <memory>

#include "base/check.h"
#include "base/parallel.h"
#include "optim/slot.h"
#include "optim/sparse.h"
#include "optim/update.h"
#include "tensor/convert.h"
#include "tensor/impl.h"
#include "tutti/ops.h"
#include "tutti/optim/optimizer.h"

namespace tutti::optim {
namespace {

constexpr int64_t kPiece = 16384;
constexpr int kMostStates = 3;

template <class Rule>
struct Kernels {
  void (*f32)(const Rule&, float*, const float*, float* const*, int64_t);
  void (*f64)(const Rule&, double*, const double*, double* const*, int64_t);
};

// Makes state k of a slot, filled with `value`.
void need_state(Slot& slot, size_t k, double value = 0) {
  if (slot.state[k].defined()) return;
  const Tensor& p = slot.parameter;
  slot.state[k] = empty_state(p).fill_(p.is_complex() ? Tensor(std::complex<double>(value, value)) : Tensor(value));
}

// One parameter as plain memory: element i of each array belongs together.
struct Arrays {
  Tensor target, gradient;  // keeps copies alive
  std::byte *p, *g, *state[kMostStates] = {};
  DType dtype;  // of p and g
  int64_t count;
};

Arrays arrays_of(Slot& slot, const Tensor& gradient) {
  const Tensor& p = slot.parameter;
  Arrays a;
  // Parameters whose elements do not fill their memory are updated in a copy.
  a.target = is_dense(p.sizes(), p.strides()) ? p : p.contiguous();
  a.gradient = gradient;
  if (gradient.dtype() != p.dtype()) a.gradient = gradient.to(p.dtype());
  if (!(a.gradient.strides() == a.target.strides()))
    a.gradient =
        empty_strided(p.sizes(), a.target.strides(), {.dtype = p.dtype(), .device = p.device()}).copy_(a.gradient);
  a.dtype = p.dtype() == DType::c64 ? DType::f32 : p.dtype() == DType::c128 ? DType::f64 : p.dtype();
  a.count = p.numel() * (p.is_complex() ? 2 : 1);
  a.p = impl(a.target)->data();
  a.g = impl(a.gradient)->data();
  for (size_t k = 0; k < slot.state.size(); ++k) {
    Tensor& s = slot.state[k];
    if (!s.defined()) continue;
    fit_state(s, p);
    if (!(s.strides() == a.target.strides()))
      s = empty_strided(p.sizes(), a.target.strides(), {.dtype = s.dtype(), .device = s.device()}).copy_(s);
    a.state[k] = impl(s)->data();
  }
  return a;
}

template <class Rule, class T>
void run_piece(void (*kernel)(const Rule&, T*, const T*, T* const*, int64_t), const Rule& rule, const Arrays& a,
               int64_t begin, int64_t count) {
  T* state[kMostStates];
  for (int k = 0; k < kMostStates; ++k) state[k] = a.state[k] ? reinterpret_cast<T*>(a.state[k]) + begin : nullptr;
  if (size_of(a.dtype) == sizeof(T)) {
    kernel(rule, reinterpret_cast<T*>(a.p) + begin, reinterpret_cast<const T*>(a.g) + begin, state, count);
    return;
  }
  // Half-precision parameters are computed in f32.
  auto buffer = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(2 * count));
  auto offset = begin * static_cast<int64_t>(size_of(a.dtype));
  Convert load = converter(dtype_of<T>, a.dtype), store = converter(a.dtype, dtype_of<T>);
  load(reinterpret_cast<std::byte*>(buffer.get()), 1, a.p + offset, 1, count);
  load(reinterpret_cast<std::byte*>(buffer.get() + count), 1, a.g + offset, 1, count);
  kernel(rule, buffer.get(), buffer.get() + count, state, count);
  store(a.p + offset, 1, reinterpret_cast<std::byte*>(buffer.get()), 1, count);
}

// Runs rule_of(slot) over each slot. The pieces do not depend on the number of threads.
template <class Rule, class RuleOf>
void run_fused(const char* optimizer, Kernels<Rule> kernels, std::vector<Slot*>& slots, const TensorList& gradients,
               RuleOf rule_of) {
  std::vector<Arrays> arrays;
  std::vector<Rule> rules;
  std::vector<std::pair<size_t, int64_t>> pieces;
  for (size_t i = 0; i < slots.size(); ++i) {
    ++slots[i]->step;
    rules.push_back(rule_of(*slots[i]));
    arrays.push_back(arrays_of(*slots[i], gradients[i]));
    for (int64_t begin = 0; begin < arrays[i].count; begin += kPiece) pieces.emplace_back(i, begin);
  }
  // Many small parameters are not worth a thread each.
  int64_t total = 1, count = static_cast<int64_t>(pieces.size());
  for (const Arrays& a : arrays) total += a.count;
  parallel_for(count, std::max<int64_t>(1, count * kPiece / total), [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      auto [i, begin] = pieces[static_cast<size_t>(k)];
      int64_t count = std::min(kPiece, arrays[i].count - begin);
      if (computing_dtype(arrays[i].dtype) == DType::f64)
        run_piece<Rule, double>(kernels.f64, rules[i], arrays[i], begin, count);
      else
        run_piece<Rule, float>(kernels.f32, rules[i], arrays[i], begin, count);
    }
  });
  for (size_t i = 0; i < slots.size(); ++i) {
    Tensor& p = slots[i]->parameter;
    if (arrays[i].target.is_same(p))
      impl(p)->storage->wrote(optimizer);
    else
      p.copy_(arrays[i].target);
  }
}

constexpr double kAny = std::numeric_limits<double>::infinity();
constexpr double kBelowOne = 1 - 1e-16;
void check_range(const char* optimizer, const char* what, double value, double high) {
  const char* range = high == kAny ? "at least 0" : high < 1 ? "at least 0 and below 1" : "from 0 to 1";
  check<ValueError>(value >= 0 && value <= high, optimizer, "{} must be {}, not {}", what, range, value);
}

template <class O>
void check_adam(const char* name, const O& o) {
  check_range(name, "lr", o.lr, kAny);
  check_range(name, "beta1", o.beta1, kBelowOne);
  check_range(name, "beta2", o.beta2, kBelowOne);
  check_range(name, "eps", o.eps, kAny);
}

}  // namespace

void SGDOptions::check() const {
  check_range("SGD", "lr", lr, kAny);
  check_range("SGD", "momentum", momentum, kAny);
  check_range("SGD", "dampening", dampening, 1);
  check_range("SGD", "weight_decay", weight_decay, kAny);
  tutti::check<ValueError>(!nesterov || (momentum > 0 && dampening == 0), "SGD",
                           "nesterov needs a momentum and no dampening, not {} and {}", momentum, dampening);
}
void AdamOptions::check() const {
  check_adam("Adam", *this);
  check_range("Adam", "weight_decay", weight_decay, kAny);
}
void AdamWOptions::check() const {
  check_adam("AdamW", *this);
  check_range("AdamW", "weight_decay", weight_decay, kAny);
}
void SparseAdamOptions::check() const { check_adam("SparseAdam", *this); }
void AdagradOptions::check() const {
  check_range("Adagrad", "lr", lr, kAny);
  check_range("Adagrad", "lr_decay", lr_decay, kAny);
  check_range("Adagrad", "weight_decay", weight_decay, kAny);
  check_range("Adagrad", "initial", initial, kAny);
  check_range("Adagrad", "eps", eps, kAny);
}
void RMSpropOptions::check() const {
  check_range("RMSprop", "lr", lr, kAny);
  check_range("RMSprop", "alpha", alpha, 1);
  check_range("RMSprop", "eps", eps, kAny);
  check_range("RMSprop", "momentum", momentum, kAny);
  check_range("RMSprop", "weight_decay", weight_decay, kAny);
}
void LionOptions::check() const {
  check_range("Lion", "lr", lr, kAny);
  check_range("Lion", "beta1", beta1, kBelowOne);
  check_range("Lion", "beta2", beta2, kBelowOne);
  check_range("Lion", "weight_decay", weight_decay, kAny);
}

void SGD::check_gradient(size_t group, const Tensor& parameter, const Tensor& gradient) {
  if (!gradient.is_sparse()) return Optimizer::check_gradient(group, parameter, gradient);
  const SGDOptions& o = options(group);
  tutti::check<ValueError>(o.momentum == 0 && o.weight_decay == 0, "SGD",
                           "takes sparse gradients (of {}) only without momentum and weight decay", parameter);
}
void SGD::update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) {
  const SGDOptions& o = options(group);
  double sign = o.maximize ? -1 : 1;
  TensorList dense = gradients;
  take_sparse(slots, dense, [&](Slot& slot, const Tensor& g) {
    ++slot.step;
    slot.parameter.add_(g * (-sign * o.lr));
  });
  bool has_momentum = o.momentum != 0;
  run_fused<SgdRule>("SGD", {sgd_f32_pointer(), sgd_f64_pointer()}, slots, dense, [&](Slot& slot) {
    bool first = has_momentum && !slot.state[0].defined();
    if (has_momentum) need_state(slot, 0);
    return SgdRule{o.lr, o.momentum, 1 - o.dampening, o.weight_decay, sign, first, o.nesterov, has_momentum};
  });
}

namespace {
// Decoupled: decay shrinks the weights directly instead of adding to the gradient.
template <class Options>
void update_adam(const char* name, bool decoupled, const Options& o, std::vector<Slot*>& slots,
                 const TensorList& gradients) {
  run_fused<AdamRule>(name, {adam_f32_pointer(), adam_f64_pointer()}, slots, gradients, [&](Slot& slot) {
    need_state(slot, 0);
    need_state(slot, 1);
    if (o.amsgrad) need_state(slot, 2);
    auto step = static_cast<double>(slot.step);
    return AdamRule{.step_size = o.lr / (1 - std::pow(o.beta1, step)),
                    .beta1 = o.beta1,
                    .beta2 = o.beta2,
                    .root_correction = std::sqrt(1 - std::pow(o.beta2, step)),
                    .eps = o.eps,
                    .decay = decoupled ? 0 : o.weight_decay,
                    .shrink = decoupled ? 1 - o.lr * o.weight_decay : 1,
                    .sign = o.maximize ? -1.0 : 1.0,
                    .amsgrad = o.amsgrad};
  });
}
}  // namespace

void Adam::update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) {
  update_adam(name(), false, options(group), slots, gradients);
}
void AdamW::update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) {
  update_adam(name(), true, options(group), slots, gradients);
}

void SparseAdam::check_gradient(size_t, const Tensor& parameter, const Tensor& gradient) {
  tutti::check<ValueError>(gradient.is_sparse(), "SparseAdam",
                           "takes sparse gradients only (that of {} is dense); Adam takes dense ones", parameter);
}
void SparseAdam::update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) {
  const SparseAdamOptions& o = options(group);
  TensorList rest = gradients;
  take_sparse(slots, rest, [&](Slot& slot, const Tensor& g) {
    need_state(slot, 0);
    need_state(slot, 1);
    auto step = static_cast<double>(++slot.step);
    change_rows(slot, g, [&](Rows& rows) {
      Tensor values = o.maximize ? -rows.gradient : rows.gradient;
      rows.state[0] = rows.state[0] * o.beta1 + values * (1 - o.beta1);
      rows.state[1] = rows.state[1] * o.beta2 + values * values * (1 - o.beta2);
      double size = o.lr * std::sqrt(1 - std::pow(o.beta2, step)) / (1 - std::pow(o.beta1, step));
      rows.parameter = rows.parameter - rows.state[0] / (sqrt(rows.state[1]) + o.eps) * size;
    });
  });
}

void Adagrad::check_gradient(size_t group, const Tensor& parameter, const Tensor& gradient) {
  if (!gradient.is_sparse()) return Optimizer::check_gradient(group, parameter, gradient);
  tutti::check<ValueError>(options(group).weight_decay == 0, "Adagrad",
                           "takes sparse gradients (of {}) only without weight decay", parameter);
}
void Adagrad::update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) {
  const AdagradOptions& o = options(group);
  double sign = o.maximize ? -1 : 1;
  auto rate = [&](const Slot& slot) { return o.lr / (1 + static_cast<double>(slot.step - 1) * o.lr_decay); };
  TensorList dense = gradients;
  take_sparse(slots, dense, [&](Slot& slot, const Tensor& g) {
    need_state(slot, 0, o.initial);
    ++slot.step;
    change_rows(slot, g, [&](Rows& rows) {
      Tensor values = rows.gradient * sign;
      rows.state[0] = rows.state[0] + values * values;
      rows.parameter = rows.parameter - values / (sqrt(rows.state[0]) + o.eps) * rate(slot);
    });
  });
  run_fused<AdagradRule>("Adagrad", {adagrad_f32_pointer(), adagrad_f64_pointer()}, slots, dense, [&](Slot& slot) {
    need_state(slot, 0, o.initial);
    return AdagradRule{rate(slot), o.weight_decay, o.eps, sign};
  });
}

void RMSprop::update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) {
  const RMSpropOptions& o = options(group);
  run_fused<RmspropRule>("RMSprop", {rmsprop_f32_pointer(), rmsprop_f64_pointer()}, slots, gradients, [&](Slot& slot) {
    need_state(slot, 0);
    if (o.momentum > 0) need_state(slot, 1);
    if (o.centered) need_state(slot, 2);
    return RmspropRule{o.lr,       o.alpha,       o.eps, o.weight_decay, o.momentum, o.maximize ? -1.0 : 1.0,
                       o.centered, o.momentum > 0};
  });
}

void Lion::update(size_t group, std::vector<Slot*>& slots, const TensorList& gradients) {
  const LionOptions& o = options(group);
  run_fused<LionRule>("Lion", {lion_f32_pointer(), lion_f64_pointer()}, slots, gradients, [&](Slot& slot) {
    need_state(slot, 0);
    return LionRule{o.lr, o.beta1, o.beta2, 1 - o.lr * o.weight_decay, o.maximize ? -1.0 : 1.0};
  });
}

template class OptimizerWith<SGDOptions>;
template class OptimizerWith<AdamOptions>;
template class OptimizerWith<AdamWOptions>;
template class OptimizerWith<SparseAdamOptions>;
template class OptimizerWith<AdagradOptions>;
template class OptimizerWith<RMSpropOptions>;
template class OptimizerWith<LionOptions>;

}  // namespace tutti::optim
