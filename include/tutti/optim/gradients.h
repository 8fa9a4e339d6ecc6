// What is done with gradients between backward and step, and with weights after it.
#pragma once

#include "tutti/nn/module.h"

namespace tutti::optim {

struct ClipOptions {
  double p = 2;                     // the norm's order; infinity: the largest
  bool error_if_nonfinite = false;  // a norm that is NaN or infinite is an error, not a scale
};
/// Scales all gradients so that their common norm is at most `max_norm`; returns the norm they had.
double clip_grad_norm_(const TensorList& parameters, double max_norm, const ClipOptions& options = {});
/// The norm alone.
double grad_norm(const TensorList& parameters, double p = 2);
/// Limits each entry to [-limit, limit].
void clip_grad_value_(const TensorList& parameters, double limit);

/// average ← decay·average + (1-decay)·module for all parameters; buffers are copied.
void average_into(nn::ModuleBase& average, const nn::ModuleBase& module, double decay);

/// A second copy of a module whose weights are an exponential moving average: ema.module is for evaluation.
template <class M>
struct Ema {
  M module;
  double decay;
  int64_t updates = 0;
  explicit Ema(const M& source, double decay = 0.999) : module(source.clone()), decay(decay) {
    module.requires_grad_(false);
    module.eval();
  }
  /// After each step. Early on the average is shorter, so that it is not held back by where training began.
  void update(const M& source) {
    ++updates;
    double early = static_cast<double>(1 + updates) / static_cast<double>(10 + updates);
    average_into(module, source, decay < early ? decay : early);
  }
};

}  // namespace tutti::optim
