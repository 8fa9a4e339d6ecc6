// Attention and the layers of transformers.
#pragma once

#include "tutti/nn/activation.h"
#include "tutti/nn/linear.h"
#include "tutti/nn/norm.h"
#include "tutti/ops/attention.h"

namespace tutti::nn {

struct MultiheadAttentionOptions {
  double dropout = 0;
  bool bias = true;
  bool batch_first = false;                // [batch, time, width] instead of [time, batch, width]
  int64_t key_width = 0, value_width = 0;  // 0: that of the queries
  bool add_bias_kv = false;                // one more key and value, which are learnt
  bool add_zero_attn = false;              // one more key and value of zeros: something to attend to where nothing fits
};
struct AttendOptions {
  Tensor mask = {};  // [T, S], [batch·heads, T, S], [batch, heads, T, S]: bool (true: may attend) or added to scores
  Tensor key_padding = {};  // bool [batch, S]: true marks keys that are no keys
  bool causal = false;
  TUTTI_FIELDS(mask, key_padding, causal)
};

struct AttendResult {
  Tensor output, weights;
  TUTTI_FIELDS(output, weights)
};

/// Queries, keys and values are projected to heads, attend, and are projected back.
struct MultiheadAttention : Module<MultiheadAttention> {
  int64_t heads;
  double dropout;
  bool batch_first;
  Parameter in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias;  // one for all, or one each
  Parameter bias_k, bias_v;                                                             // [1, 1, width]
  bool add_zero_attn;
  Linear out_proj;
  TUTTI_FIELDS(heads, dropout, batch_first, in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias,
               bias_k, bias_v, add_zero_attn, out_proj)

  MultiheadAttention(int64_t width, int64_t heads, const MultiheadAttentionOptions& options = {});
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const AttendOptions& options = {});
  using Module<MultiheadAttention>::operator();
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttendOptions& options);  // lets braces through
  /// The same, and the weights by which values were added up (those that dropout left, in training): [batch, T, S],
  /// the mean over the heads, or [batch, heads, T, S]. Makes them as a whole, which forward does not. Runs no hooks.
  AttendResult with_weights(const Tensor& query, const Tensor& key, const Tensor& value,
                            const AttendOptions& options = {}, bool average = true);

 private:
  AttendResult run(const Tensor& query, const Tensor& key, const Tensor& value, const AttendOptions& options,
                   bool need_weights);
};

struct TransformerOptions {
  int64_t feedforward = 2048;
  double dropout = 0.1;
  bool gelu = false;  // relu otherwise
  bool batch_first = false;
  bool norm_first = false;
  double eps = 1e-5;
  std::optional<bool> final_norm = {};  // TransformerEncoder/Decoder: a last norm; by default if the layers norm first
};

struct TransformerEncoderLayer : Module<TransformerEncoderLayer> {
  MultiheadAttention self_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2;
  Dropout dropout, dropout1, dropout2;
  bool gelu, norm_first;
  TUTTI_FIELDS(self_attn, linear1, linear2, norm1, norm2, dropout, dropout1, dropout2, gelu, norm_first)

  TransformerEncoderLayer(int64_t width, int64_t heads, const TransformerOptions& options = {});
  Tensor forward(const Tensor& x, const AttendOptions& options = {});
  using Module<TransformerEncoderLayer>::operator();
  Tensor operator()(const Tensor& x, const AttendOptions& options);  // lets braces through
};

struct TransformerDecoderLayer : Module<TransformerDecoderLayer> {
  MultiheadAttention self_attn, multihead_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2, norm3;
  Dropout dropout, dropout1, dropout2, dropout3;
  bool gelu, norm_first;
  TUTTI_FIELDS(self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3, dropout, dropout1, dropout2, dropout3,
               gelu, norm_first)

  TransformerDecoderLayer(int64_t width, int64_t heads, const TransformerOptions& options = {});
  /// `memory` is what an encoder made; the second options are for attending to it.
  Tensor forward(const Tensor& x, const Tensor& memory, const AttendOptions& options = {},
                 const AttendOptions& memory_options = {});
  using Module<TransformerDecoderLayer>::operator();
  Tensor operator()(const Tensor& x, const Tensor& memory, const AttendOptions& options,
                    const AttendOptions& memory_options = {});  // lets braces through
};

/// Layers one after another, equal at first in shape but not in weights, and perhaps a last norm.
struct TransformerEncoder : Module<TransformerEncoder> {
  std::vector<TransformerEncoderLayer> layers;
  std::optional<LayerNorm> norm;
  TUTTI_FIELDS(layers, norm)
  TransformerEncoder(int64_t width, int64_t heads, int64_t count, const TransformerOptions& options = {});
  Tensor forward(const Tensor& x, const AttendOptions& options = {});
  using Module<TransformerEncoder>::operator();
  Tensor operator()(const Tensor& x, const AttendOptions& options);  // lets braces through
};
struct TransformerDecoder : Module<TransformerDecoder> {
  std::vector<TransformerDecoderLayer> layers;
  std::optional<LayerNorm> norm;
  TUTTI_FIELDS(layers, norm)
  TransformerDecoder(int64_t width, int64_t heads, int64_t count, const TransformerOptions& options = {});
  Tensor forward(const Tensor& x, const Tensor& memory, const AttendOptions& options = {},
                 const AttendOptions& memory_options = {});
  using Module<TransformerDecoder>::operator();
  Tensor operator()(const Tensor& x, const Tensor& memory, const AttendOptions& options,
                    const AttendOptions& memory_options = {});  // lets braces through
};

// Compiled once, in src/nn/layers.cpp.
extern template class Module<MultiheadAttention>;
extern template class Module<TransformerEncoderLayer>;
extern template class Module<TransformerDecoderLayer>;
extern template class Module<TransformerEncoder>;
extern template class Module<TransformerDecoder>;

}  // namespace tutti::nn
