#include "tutti/nn/attention.h"

#include "base/check.h"
#include "tutti/nn/init.h"

namespace tutti::nn {

MultiheadAttention::MultiheadAttention(int64_t width, int64_t heads, const MultiheadAttentionOptions& o)
    : heads(heads), dropout(o.dropout), batch_first(o.batch_first), out_proj(width, width, {.bias = o.bias}) {
  check<ValueError>(width > 0 && heads > 0 && width % heads == 0, "MultiheadAttention",
                    "a width of {} does not divide into {} heads", width, heads);
  int64_t key = o.key_width ? o.key_width : width, value = o.value_width ? o.value_width : width;
  if (key == width && value == width) {
    in_proj_weight = init::xavier_uniform_(empty({3 * width, width}));
  } else {
    q_proj_weight = init::xavier_uniform_(empty({width, width}));
    k_proj_weight = init::xavier_uniform_(empty({width, key}));
    v_proj_weight = init::xavier_uniform_(empty({width, value}));
  }
  if (o.bias) in_proj_bias = zeros({3 * width});
  if (o.bias) init::zeros_(out_proj.bias);
}

namespace {

// [time, batch, width] (or batch first) to [batch, heads, time, width / heads].
Tensor to_heads(const Tensor& x, int64_t heads, bool batch_first) {
  Tensor split = x.view({x.size(0), x.size(1), heads, x.size(2) / heads});
  return split.permute(batch_first ? Shape{0, 2, 1, 3} : Shape{1, 2, 0, 3});
}

// A mask of keys that are none, and the caller's, as one that attention takes.
Tensor joined_mask(const AttendOptions& o, int64_t batch, int64_t heads) {
  Tensor mask = o.mask;
  if (mask.defined() && mask.dim() == 3) mask = mask.view({batch, heads, mask.size(1), mask.size(2)});
  if (!o.key_padding.defined()) return mask;
  check<DTypeError>(o.key_padding.dtype() == DType::boolean, "MultiheadAttention", "key_padding must be bool, not {}",
                    o.key_padding);
  Tensor keys = o.key_padding.view({o.key_padding.size(0), 1, 1, o.key_padding.size(1)});
  if (!mask.defined()) return logical_not(keys);
  if (mask.dtype() == DType::boolean) return logical_and(mask, logical_not(keys));
  return masked_fill(mask.expand(broadcast_shapes(mask.sizes(), keys.sizes())), keys,
                     -std::numeric_limits<double>::infinity());
}

}  // namespace

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttendOptions& o) {
  if (query.dim() == 2) {
    AttendOptions batched = o;
    if (o.key_padding.defined()) batched.key_padding = o.key_padding.unsqueeze(0);
    int64_t at = batch_first ? 0 : 1;
    return forward(query.unsqueeze(at), key.unsqueeze(at), value.unsqueeze(at), batched).squeeze(at);
  }
  check<ShapeError>(query.dim() == 3 && key.dim() == 3 && value.dim() == 3, "MultiheadAttention",
                    "takes queries, keys and values of 3 dims (or 2 without a batch), not {}, {} and {}", query, key,
                    value);
  TensorList b = in_proj_bias.defined() ? in_proj_bias.chunk(3) : TensorList(3);
  Tensor q, k, v;
  if (in_proj_weight.defined() && query.is_same(key) && key.is_same(value)) {
    TensorList parts = linear(query, in_proj_weight, in_proj_bias).chunk(3, -1);
    q = parts[0], k = parts[1], v = parts[2];
  } else {
    TensorList w =
        in_proj_weight.defined() ? in_proj_weight.chunk(3) : TensorList{q_proj_weight, k_proj_weight, v_proj_weight};
    q = linear(query, w[0], b[0]), k = linear(key, w[1], b[1]), v = linear(value, w[2], b[2]);
  }
  int64_t batch = query.size(batch_first ? 0 : 1);
  Tensor y = scaled_dot_product_attention(
      to_heads(q, heads, batch_first), to_heads(k, heads, batch_first), to_heads(v, heads, batch_first),
      {.mask = joined_mask(o, batch, heads), .dropout = is_training() ? dropout : 0, .causal = o.causal});
  y = y.permute(batch_first ? Shape{0, 2, 1, 3} : Shape{2, 0, 1, 3});
  return out_proj(y.reshape({query.size(0), query.size(1), q.size(-1)}));
}

TransformerEncoderLayer::TransformerEncoderLayer(int64_t width, int64_t heads, const TransformerOptions& o)
    : self_attn(width, heads, {.dropout = o.dropout, .batch_first = o.batch_first}),
      linear1(width, o.feedforward),
      linear2(o.feedforward, width),
      norm1(width, {.eps = o.eps}),
      norm2(width, {.eps = o.eps}),
      dropout(o.dropout),
      dropout1(o.dropout),
      dropout2(o.dropout),
      gelu(o.gelu),
      norm_first(o.norm_first) {}

Tensor TransformerEncoderLayer::forward(const Tensor& x, const AttendOptions& o) {
  auto attend = [&](const Tensor& t) { return dropout1(self_attn(t, t, t, o)); };
  auto feed = [&](const Tensor& t) {
    Tensor h = linear1(t);
    return dropout2(linear2(dropout(gelu ? tutti::gelu(h) : relu(h))));
  };
  if (norm_first) {
    Tensor y = x + attend(norm1(x));
    return y + feed(norm2(y));
  }
  Tensor y = norm1(x + attend(x));
  return norm2(y + feed(y));
}

TransformerDecoderLayer::TransformerDecoderLayer(int64_t width, int64_t heads, const TransformerOptions& o)
    : self_attn(width, heads, {.dropout = o.dropout, .batch_first = o.batch_first}),
      multihead_attn(width, heads, {.dropout = o.dropout, .batch_first = o.batch_first}),
      linear1(width, o.feedforward),
      linear2(o.feedforward, width),
      norm1(width, {.eps = o.eps}),
      norm2(width, {.eps = o.eps}),
      norm3(width, {.eps = o.eps}),
      dropout(o.dropout),
      dropout1(o.dropout),
      dropout2(o.dropout),
      dropout3(o.dropout),
      gelu(o.gelu),
      norm_first(o.norm_first) {}

Tensor TransformerDecoderLayer::forward(const Tensor& x, const Tensor& memory, const AttendOptions& o,
                                        const AttendOptions& memory_options) {
  auto attend = [&](const Tensor& t) { return dropout1(self_attn(t, t, t, o)); };
  auto look = [&](const Tensor& t) { return dropout2(multihead_attn(t, memory, memory, memory_options)); };
  auto feed = [&](const Tensor& t) {
    Tensor h = linear1(t);
    return dropout3(linear2(dropout(gelu ? tutti::gelu(h) : relu(h))));
  };
  if (norm_first) {
    Tensor y = x + attend(norm1(x));
    y = y + look(norm2(y));
    return y + feed(norm3(y));
  }
  Tensor y = norm1(x + attend(x));
  y = norm2(y + look(y));
  return norm3(y + feed(y));
}

TransformerEncoder::TransformerEncoder(int64_t width, int64_t heads, int64_t count, const TransformerOptions& o) {
  for (int64_t i = 0; i < count; ++i) layers.emplace_back(width, heads, o);
  if (o.norm_first) norm.emplace(width, NormOptions{.eps = o.eps});
}
Tensor TransformerEncoder::forward(const Tensor& x, const AttendOptions& o) {
  Tensor y = x;
  for (auto& layer : layers) y = layer(y, o);
  return norm ? (*norm)(y) : y;
}

TransformerDecoder::TransformerDecoder(int64_t width, int64_t heads, int64_t count, const TransformerOptions& o) {
  for (int64_t i = 0; i < count; ++i) layers.emplace_back(width, heads, o);
  if (o.norm_first) norm.emplace(width, NormOptions{.eps = o.eps});
}
Tensor TransformerDecoder::forward(const Tensor& x, const Tensor& memory, const AttendOptions& o,
                                   const AttendOptions& memory_options) {
  Tensor y = x;
  for (auto& layer : layers) y = layer(y, memory, o, memory_options);
  return norm ? (*norm)(y) : y;
}

}  // namespace tutti::nn
