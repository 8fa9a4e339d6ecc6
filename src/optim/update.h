// The loops that change parameters: one pass over a parameter, its gradient and what is kept for it.
#pragma once

#include <cstdint>

#include "base/isa.h"

namespace tutti::optim {

// What each rule needs, as it stands at this step. Sign is -1 when maximizing.
struct SgdRule {
  double lr, momentum, damped, weight_decay, sign;
  bool first, nesterov, has_momentum;
};
struct AdamRule {
  double step_size, beta1, beta2, root_correction, eps, decay, shrink, sign;  // decay: into the gradient
  bool amsgrad;
};
struct AdagradRule {
  double lr, weight_decay, eps, sign;
};
struct RmspropRule {
  double lr, alpha, eps, weight_decay, momentum, sign;
  bool centered, has_momentum;
};
struct LionRule {
  double lr, beta1, beta2, shrink, sign;
};

// state: as many arrays as the rule keeps, in the order of state_names(); null where not needed.
TUTTI_ISA_DECLARE(sgd_f32, void, (const SgdRule& rule, float* p, const float* g, float* const* state, int64_t n))
TUTTI_ISA_DECLARE(sgd_f64, void, (const SgdRule& rule, double* p, const double* g, double* const* state, int64_t n))
TUTTI_ISA_DECLARE(adam_f32, void, (const AdamRule& rule, float* p, const float* g, float* const* state, int64_t n))
TUTTI_ISA_DECLARE(adam_f64, void, (const AdamRule& rule, double* p, const double* g, double* const* state, int64_t n))
TUTTI_ISA_DECLARE(adagrad_f32, void,
                  (const AdagradRule& rule, float* p, const float* g, float* const* state, int64_t n))
TUTTI_ISA_DECLARE(adagrad_f64, void,
                  (const AdagradRule& rule, double* p, const double* g, double* const* state, int64_t n))
TUTTI_ISA_DECLARE(rmsprop_f32, void,
                  (const RmspropRule& rule, float* p, const float* g, float* const* state, int64_t n))
TUTTI_ISA_DECLARE(rmsprop_f64, void,
                  (const RmspropRule& rule, double* p, const double* g, double* const* state, int64_t n))
TUTTI_ISA_DECLARE(lion_f32, void, (const LionRule& rule, float* p, const float* g, float* const* state, int64_t n))
TUTTI_ISA_DECLARE(lion_f64, void, (const LionRule& rule, double* p, const double* g, double* const* state, int64_t n))

}  // namespace tutti::optim
