// Attention.
#pragma once

#include <optional>

#include "tutti/tensor.h"

namespace tutti {

struct AttentionOptions {
  Tensor mask = {};     // broadcast to [..., T, S]: bool (true: may attend) or numbers that are added to the scores
  double dropout = 0;   // of the attention weights; the caller says whether it is training
  bool causal = false;  // query i attends to keys 0 ... i only; together with a mask, both hold
  std::optional<double> scale = {};  // of the scores; 1/√D unless given
};
/// softmax(q @ kᵀ · scale + mask) @ v for q [..., T, D], k [..., S, D] and v [..., S, E]: [..., T, E].
///
/// Dims in front are broadcast. Heads (the third dim from the end) may be fewer in k and v, as long as they divide q's:
/// each then serves a group of q's that stand next to each other. A query that may attend to nothing gives zeros.
///
/// The T×S weights never exist as a whole, in memory or for the gradient, unless there is a mask that wants a gradient,
/// or second derivatives are asked for. The result lies in memory in the order of q's dims.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

}  // namespace tutti
