// One recurrent layer in one direction over a whole sequence: one operator, and the same in public operators.
#pragma once

#include "ops/rnn/kernels.h"
#include "tutti/ops/rnn.h"

namespace tutti::recurrent {

/// States before the first and after each step: [T + 1, B, H].
struct States {
  Tensor hidden, cell;
};

struct Layer {
  Cell cell;
  Tensor h, c;  // states before the first step: [B, H]; c for lstm only
  const RnnWeights& weights;
  Tensor lengths;  // i64 [B], or undefined: states stay as they are from there on
};

/// x is [T, B, I], f32 or f64.
States run_sequence(const Tensor& x, const Layer& layer);
/// The same step by step, of public operators: for second derivatives and projections.
States compose_sequence(const Tensor& x, const Layer& layer);

}  // namespace tutti::recurrent
