// Tables of rows looked up by index. Gradients of the table are dense, or sparse COO tensors with one entry for each
// lookup (not coalesced), so that a step costs what it touches and not the size of the table.
#pragma once

#include <optional>

#include "tutti/fields.h"
#include "tutti/tensor.h"

namespace tutti {

struct EmbeddingOptions {
  std::optional<int64_t> padding_idx = {};  // this row gets no gradient; negative counts from the end
  bool sparse = false;                      // the weight's gradient is sparse
  std::optional<double> max_norm = {};      // rows that are looked up and longer are first shortened, in place
  double norm_type = 2;
  bool scale_grad_by_freq = false;  // divide each row's gradient by how often it was looked up
  TUTTI_FIELDS(padding_idx, sparse, max_norm, norm_type, scale_grad_by_freq)
};
/// Rows of weight [V, D] at indices (i64 or i32, any shape): indices.sizes() + [D].
Tensor embedding(const Tensor& weight, const Tensor& indices, const EmbeddingOptions& options = {});

enum class BagMode : uint8_t { sum, mean, max };
inline const char* to_string(BagMode mode) {
  return mode == BagMode::sum ? "sum" : mode == BagMode::mean ? "mean" : "max";
}
struct EmbeddingBagOptions {
  BagMode mode = BagMode::mean;
  bool sparse = false;                      // not with BagMode::max
  Tensor per_sample_weights = {};           // of the indices' shape; BagMode::sum only
  bool include_last_offset = false;         // offsets has one more entry, the end of the last bag
  std::optional<int64_t> padding_idx = {};  // such indices count as if they were not there
  std::optional<double> max_norm = {};
  double norm_type = 2;
  bool scale_grad_by_freq = false;
  TUTTI_FIELDS(mode, sparse, include_last_offset, padding_idx, max_norm, norm_type, scale_grad_by_freq)  // no tensors
};
/// Rows of weight reduced over bags: [bags, D]. `indices` is 1-D with `offsets` saying where each bag begins (the first
/// is 0, none is below the one before), or 2-D [bags, n] without offsets. An empty bag gives zeros.
Tensor embedding_bag(const Tensor& weight, const Tensor& indices, const Tensor& offsets = {},
                     const EmbeddingBagOptions& options = {});

}  // namespace tutti
