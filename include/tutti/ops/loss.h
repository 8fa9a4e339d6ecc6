// Losses. Each compares predictions with targets element by element (or row by row) and reduces what it finds; all are
// differentiable any number of times.
#pragma once

#include "tutti/tensor.h"

namespace tutti {

enum class Reduction : uint8_t { none, mean, sum };

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);
Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);
/// Quadratic (divided by beta) where |input - target| < beta, linear with slope 1 beyond; l1_loss for beta 0.
Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, double beta = 1,
                      Reduction reduction = Reduction::mean);
/// Quadratic where |input - target| < delta, linear with slope delta beyond.
Tensor huber_loss(const Tensor& input, const Tensor& target, double delta = 1, Reduction reduction = Reduction::mean);

struct CrossEntropyOptions {
  Tensor weight = {};           // [C]: how much each class counts; a constant (no gradient flows to it)
  int64_t ignore_index = -100;  // targets of this value count nothing
  double label_smoothing = 0;   // this share of each target is spread evenly over all classes
  Reduction reduction = Reduction::mean;
};
/// Logits [C], [N, C] or [N, C, d1, ...] against classes: i64 (or i32) indices of the logits' shape without C, or
/// probabilities of the logits' own shape. The mean over indices is weighted by the weights of the targets; that over
/// probabilities is over all places. Without any target (all ignored) the mean is NaN, as 0/0.
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options = {});

struct NllOptions {
  Tensor weight = {};
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
};
/// The same from log-probabilities, for indices.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& target, const NllOptions& options = {});

struct BinaryOptions {
  Tensor weight = {};  // broadcast to the input
  Reduction reduction = Reduction::mean;
};
/// Of probabilities in [0, 1]. Logarithms are cut at -100, so that certain and wrong predictions cost much, not ∞.
Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, const BinaryOptions& options = {});

struct BinaryLogitsOptions {
  Tensor weight = {};
  Tensor pos_weight = {};  // how much a positive target counts, broadcast to the input
  Reduction reduction = Reduction::mean;
};
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& target,
                                        const BinaryLogitsOptions& options = {});

struct KlOptions {
  bool log_target = false;  // the target holds log-probabilities too
  Reduction reduction = Reduction::mean;
  bool batch_mean = false;  // instead of the reduction: the sum divided by the first dim's size
};
/// target · (log target - input), the input being log-probabilities. The divergence of a batch of distributions is
/// that with batch_mean, not the mean over all elements.
Tensor kl_div(const Tensor& input, const Tensor& target, const KlOptions& options = {});

Tensor cosine_similarity(const Tensor& x1, const Tensor& x2, int64_t dim = 1, double epsilon = 1e-8);

struct MarginOptions {
  double margin = 0;
  Reduction reduction = Reduction::mean;
};
/// x1 and x2 are [N, D] (or [D]), targets ±1: 1 - cos where alike is wanted, max(0, cos - margin) where not.
Tensor cosine_embedding_loss(const Tensor& x1, const Tensor& x2, const Tensor& target,
                             const MarginOptions& options = {});
/// max(0, -target · (x1 - x2) + margin), targets ±1 saying which of the two should be larger.
Tensor margin_ranking_loss(const Tensor& x1, const Tensor& x2, const Tensor& target, const MarginOptions& options = {});
struct HingeOptions {
  double margin = 1;
  Reduction reduction = Reduction::mean;
};
/// The input where the target is 1, max(0, margin - input) where it is -1.
Tensor hinge_embedding_loss(const Tensor& input, const Tensor& target, const HingeOptions& options = {});
/// log(1 + exp(-target · input)), targets ±1.
Tensor soft_margin_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);

/// The norm of order p of x1 - x2 + epsilon along the last dim.
Tensor pairwise_distance(const Tensor& x1, const Tensor& x2, double p = 2, double epsilon = 1e-6, bool keepdim = false);

struct TripletOptions {
  double margin = 1;
  double p = 2;
  double epsilon = 1e-6;
  bool swap = false;  // measure the negative from the positive where that is nearer than from the anchor
  Reduction reduction = Reduction::mean;
};
/// max(0, |anchor - positive| - |anchor - negative| + margin) along the last dim.
Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletOptions& options = {});

}  // namespace tutti
