// Mixed precision: autocast, and the scaling of losses that f16 needs.
//
//   optim::Adam adam(net.parameters());
//   amp::GradScaler scaler;
//   {
//     amp::Autocast cast(DType::f16);
//     loss = cross_entropy(net(x), y);
//   }
//   scaler.scale(loss).backward();
//   scaler.step(adam);   // skipped when a gradient overflowed
//   scaler.update();
//
// bf16 has the range of f32 and needs no scaler.
#pragma once

#include <functional>

#include "tutti/context.h"
#include "tutti/fields.h"
#include "tutti/tensor.h"

namespace tutti::amp {

/// Inside, operators cast their floating-point inputs (but f64, which was asked for by name) as the policy in their
/// descriptor says:
///   `dtype`: products (mm, linear, bilinear, einsum, ...), convolutions, recurrent layers, attention;
///   f32:     losses; layer, group and RMS norms; sums, means, variances and norms; softmax; exponentials,
///            logarithms, powers and what is as steep (1/x, tan, ...);
///   the widest of the inputs: other arithmetic, embedding_bag;
///   as it comes: everything else. Batch and instance norms are of these: they give the dtype of their input, but
///            their statistics are in f32.
class [[nodiscard]] Autocast {
 public:
  explicit Autocast(DType dtype = DType::bf16, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  uint32_t modes_;
  DType dtype_;
};

struct ScalerOptions {
  double scale = 65536;
  double growth = 2;
  double backoff = 0.5;
  int64_t growth_interval = 2000;  // steps without overflow before the scale grows
  bool enabled = true;
};

class GradScaler {
 public:
  explicit GradScaler(const ScalerOptions& options = {});
  /// The loss times the scale.
  Tensor scale(const Tensor& loss) const;
  /// Divides the gradients by the scale, once a step; call it before clipping. step() does it otherwise. ValueError
  /// when it was called already since the last update().
  template <class Optimizer>
  void unscale_(Optimizer& optimizer) {
    unscale(&optimizer, optimizer.parameters());
  }
  /// optimizer.step(), unless a gradient is infinite or NaN; says whether it was done.
  template <class Optimizer>
  bool step(Optimizer& optimizer) {
    return step(&optimizer, optimizer.parameters(), [&] { optimizer.step(); });
  }
  /// After all optimizers of this iteration: a smaller scale after an overflow, a larger one after many good steps.
  void update();
  double scale() const { return scale_; }
  struct State {
    double scale = 0;
    int64_t good_steps = 0;
    TUTTI_FIELDS(scale, good_steps)
  };
  State state() const { return {scale_, good_steps_}; }
  /// ValueError for what no scaler can have.
  void load_state(const State& state);

 private:
  struct Seen {
    const void* optimizer;
    bool overflow, stepped;
  };
  void unscale(const void* optimizer, const TensorList& parameters);
  bool step(const void* optimizer, const TensorList& parameters, const std::function<void()>& run);
  Seen& unscaled(const void* optimizer, const TensorList& parameters);
  ScalerOptions options_;
  double scale_;
  int64_t good_steps_ = 0;
  std::vector<Seen> seen_;  // in this iteration
};

}  // namespace tutti::amp
