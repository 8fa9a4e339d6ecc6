#include "tutti/nn/embedding.h"

#include "base/check.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti::nn {
namespace {

Tensor table(const char* layer, int64_t entries, int64_t width, std::optional<int64_t> padding) {
  check<ValueError>(entries >= 0 && width >= 0, layer, "takes sizes ≥ 0, not {} and {}", entries, width);
  Tensor weight = randn({entries, width});
  if (padding) {
    check<IndexError>(*padding >= -entries && *padding < entries, layer, "padding_idx {} is not an entry of {}",
                      *padding, entries);
    weight.select(0, *padding).zero_();
  }
  return weight;
}

}  // namespace

Embedding::Embedding(int64_t entries, int64_t width, const EmbeddingOptions& options)
    : weight(table("Embedding", entries, width, options.padding_idx)), options(options) {}

EmbeddingBag::EmbeddingBag(int64_t entries, int64_t width, const EmbeddingBagOptions& options)
    : weight(table("EmbeddingBag", entries, width, options.padding_idx)), options(options) {
  check<ValueError>(!options.per_sample_weights.defined(), "EmbeddingBag",
                    "per_sample_weights belong to a batch: they are the third argument of the call");
  check<ValueError>(!options.sparse || options.mode != BagMode::max, "EmbeddingBag",
                    "gradients of the mode max are dense: leave sparse out, or sum or average");
}

Tensor EmbeddingBag::forward(const Tensor& indices, const Tensor& offsets, const Tensor& per_sample_weights) {
  EmbeddingBagOptions now = options;
  if (per_sample_weights.defined()) now.per_sample_weights = per_sample_weights;
  return embedding_bag(weight, indices, offsets, now);
}

}  // namespace tutti::nn
