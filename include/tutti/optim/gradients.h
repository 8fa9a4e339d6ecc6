// What is done with gradients between backward and step, and with weights after it.
#pragma once

#include "tutti/io/state.h"
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

/// average ← decay·average + (1-decay)·module for all parameters; buffers are copied. ValueError if the two do not have
/// the same ones.
void average_into(nn::ModuleBase& average, const nn::ModuleBase& module, double decay);
/// ValueError for what an Ema cannot have.
void check_ema(double decay, int64_t updates);

/// A second copy of a module whose weights are an exponential moving average: ema.module is for evaluation.
template <class M>
struct Ema {
  M module;
  double decay;
  bool ramp;
  int64_t updates = 0;
  /// With `ramp`, the decay of update n is at most (1 + n) / (10 + n): early on the average is shorter, so that it is
  /// not held back by where training began.
  explicit Ema(const M& source, double decay = 0.999, bool ramp = true)
      : module(source.clone()), decay(decay), ramp(ramp) {
    check_ema(decay, 0);
    module.requires_grad_(false);
    module.eval();
  }
  /// After each step.
  void update(const M& source) {
    ++updates;
    double early = static_cast<double>(1 + updates) / static_cast<double>(10 + updates);
    average_into(module, source, !ramp || decay < early ? decay : early);
  }
  /// For checkpoints: the averages, and how many updates they have seen.
  io::State state() const {
    return {{"module", io::to_state(module.state_dict())}, {"decay", decay}, {"updates", updates}};
  }
  void load_state(const io::State& state) {
    double loaded_decay = state["decay"].as<double>();
    int64_t loaded_updates = state["updates"].as<int64_t>();
    check_ema(loaded_decay, loaded_updates);
    module.load_state_dict(io::from_state<nn::StateDict>(state["module"].as<io::State>()));
    decay = loaded_decay;
    updates = loaded_updates;
  }
};

}  // namespace tutti::optim
