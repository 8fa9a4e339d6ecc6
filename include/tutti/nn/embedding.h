// Tables of vectors.
#pragma once

#include "tutti/nn/module.h"
#include "tutti/ops/embedding.h"

namespace tutti::nn {

struct Embedding : Module<Embedding> {
  Parameter weight;  // [entries, width]
  EmbeddingOptions options;
  TUTTI_FIELDS(weight, options)
  /// Drawn from a normal distribution; the row of padding_idx is zero.
  Embedding(int64_t entries, int64_t width, const EmbeddingOptions& options = {});
  Tensor forward(const Tensor& indices) { return embedding(weight, indices, options); }
};

struct EmbeddingBag : Module<EmbeddingBag> {
  Parameter weight;
  EmbeddingBagOptions options;  // weights of single lookups are an argument of forward
  TUTTI_FIELDS(weight, options)
  EmbeddingBag(int64_t entries, int64_t width, const EmbeddingBagOptions& options = {});
  Tensor forward(const Tensor& indices, const Tensor& offsets = {}, const Tensor& per_sample_weights = {});
};

// Compiled once, in src/nn/layers.cpp.
extern template class Module<Embedding>;
extern template class Module<EmbeddingBag>;

}  // namespace tutti::nn
