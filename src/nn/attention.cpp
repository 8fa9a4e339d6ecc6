#include "tutti/nn/attention.h"

#include "base/check.h"
#include "tutti/nn/init.h"

namespace tutti::nn {

namespace {
int64_t checked_heads(const char* layer, int64_t width, int64_t heads, double dropout) {
  check<ValueError>(width > 0 && heads > 0 && width % heads == 0, layer, "a width of {} does not divide into {} heads",
                    width, heads);
  check<ValueError>(dropout >= 0 && dropout <= 1, layer, "dropout is a probability, between 0 and 1, not {}", dropout);
  return heads;
}
int64_t checked_heads(const char* layer, int64_t width, int64_t heads, const TransformerOptions& o) {
  check<ValueError>(o.feedforward >= 0, layer, "takes feedforward ≥ 0, not {}", o.feedforward);
  check<ValueError>(o.eps >= 0, layer, "takes eps ≥ 0, not {}", o.eps);
  return checked_heads(layer, width, heads, o.dropout);
}
int64_t checked_count(const char* layer, int64_t count) {
  check<ValueError>(count >= 0, layer, "takes a number of layers ≥ 0, not {}", count);
  return count;
}
}  // namespace

MultiheadAttention::MultiheadAttention(int64_t width, int64_t heads, const MultiheadAttentionOptions& o)
    : heads(checked_heads("MultiheadAttention", width, heads, o.dropout)),
      dropout(o.dropout),
      batch_first(o.batch_first),
      add_zero_attn(o.add_zero_attn),
      out_proj(width, width, {.bias = o.bias}) {
  check<ValueError>(o.key_width >= 0 && o.value_width >= 0, "MultiheadAttention",
                    "takes widths of keys and values > 0 (0: that of the queries), not {} and {}", o.key_width,
                    o.value_width);
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
  if (o.add_bias_kv) {
    bias_k = init::xavier_normal_(empty({1, 1, width}));
    bias_v = init::xavier_normal_(empty({1, 1, width}));
  }
}

namespace {

// [time, batch, width] (or batch first) to [batch, heads, time, width / heads].
Tensor to_heads(const Tensor& x, int64_t heads, bool batch_first) {
  Tensor split = x.view({x.size(0), x.size(1), heads, x.size(2) / heads});
  return split.permute(batch_first ? Shape{0, 2, 1, 3} : Shape{1, 2, 0, 3});
}

// With one more key or value, [1, 1, width], at the end of the time.
Tensor with_key(const Tensor& x, const Tensor& more, int64_t time) {
  Shape sizes = x.sizes();
  sizes[static_cast<size_t>(time)] = 1;
  return cat({x, cast(more, x.dtype()).expand(sizes)}, time);
}

// Sizes may also be 1, which is broadcast (but in front of a 3-dim mask, which is as PyTorch's).
void check_masks(const AttendOptions& o, int64_t batch, int64_t heads, int64_t queries, int64_t keys) {
  constexpr const char* kName = "MultiheadAttention";
  auto is = [](int64_t size, int64_t wanted) { return size == wanted || size == 1; };
  if (const Tensor& m = o.mask; m.defined())
    check<ShapeError>((m.dim() == 2 || (m.dim() == 3 && m.size(0) == batch * heads) ||
                       (m.dim() == 4 && is(m.size(0), batch) && is(m.size(1), heads))) &&
                          is(m.size(-2), queries) && is(m.size(-1), keys),
                      kName,
                      "the mask {} must be [queries, keys] = [{}, {}], [batch·heads, queries, keys] = [{}, {}, {}] or "
                      "[batch, heads, queries, keys] = [{}, {}, {}, {}]",
                      m, queries, keys, batch * heads, queries, keys, batch, heads, queries, keys);
  if (const Tensor& p = o.key_padding; p.defined()) {
    check<DTypeError>(p.dtype() == DType::boolean, kName, "key_padding must be bool, not {}", p);
    check<ShapeError>(p.dim() == 2 && is(p.size(0), batch) && p.size(1) == keys, kName,
                      "key_padding {} must be [batch, keys] = [{}, {}]: true marks keys that are no keys", p, batch,
                      keys);
  }
}

// A mask of keys that are none, and the caller's, as one that attention takes.
Tensor joined_mask(const AttendOptions& o, int64_t batch, int64_t heads) {
  Tensor mask = o.mask;
  if (mask.defined() && mask.dim() == 3) mask = mask.view({batch, heads, mask.size(1), mask.size(2)});
  if (!o.key_padding.defined()) return mask;
  Tensor keys = o.key_padding.view({o.key_padding.size(0), 1, 1, o.key_padding.size(1)});
  if (!mask.defined()) return logical_not(keys);
  if (mask.dtype() == DType::boolean) return logical_and(mask, logical_not(keys));
  return masked_fill(mask.expand(broadcast_shapes(mask.sizes(), keys.sizes())), keys,
                     -std::numeric_limits<double>::infinity());
}

// What is said of `keys` keys, said of `more` behind them too: they may always be attended to.
AttentionOptions with_more_keys(AttentionOptions o, int64_t queries, int64_t keys, int64_t more, Device device) {
  if (o.causal) {
    Tensor past = tril(ones({queries, keys}, {.dtype = DType::boolean, .device = device}));
    o.mask = !o.mask.defined()                  ? past
             : o.mask.dtype() == DType::boolean ? logical_and(o.mask, past)
                                                : where(past, o.mask, -std::numeric_limits<double>::infinity());
    o.causal = false;
  }
  if (!o.mask.defined()) return o;
  Shape sizes = o.mask.sizes();
  sizes[sizes.size() - 1] = keys;
  o.mask = o.mask.expand(sizes);
  sizes[sizes.size() - 1] = more;
  Options like{.dtype = o.mask.dtype(), .device = o.mask.device()};
  o.mask = cat({o.mask, o.mask.dtype() == DType::boolean ? ones(sizes, like) : zeros(sizes, like)}, -1);
  return o;
}

}  // namespace

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttendOptions& o) {
  return run(query, key, value, o, false).output;
}

AttendResult MultiheadAttention::with_weights(const Tensor& query, const Tensor& key, const Tensor& value,
                                              const AttendOptions& o, bool average) {
  AttendResult r = run(query, key, value, o, true);
  if (average) r.weights = mean(r.weights, -3);
  return r;
}

AttendResult MultiheadAttention::run(const Tensor& query, const Tensor& key, const Tensor& value,
                                     const AttendOptions& o, bool need_weights) {
  check<ValueError>(query.defined() && key.defined() && value.defined(), "MultiheadAttention",
                    "the {} are undefined: they were never given a value",
                    !query.defined() ? "queries"
                    : !key.defined() ? "keys"
                                     : "values");
  if (query.dim() == 2) {
    AttendOptions batched = o;
    if (o.key_padding.defined()) batched.key_padding = o.key_padding.unsqueeze(0);
    int64_t at = batch_first ? 0 : 1;
    AttendResult r = run(query.unsqueeze(at), key.unsqueeze(at), value.unsqueeze(at), batched, need_weights);
    return {r.output.squeeze(at), need_weights ? r.weights.squeeze(0) : Tensor()};
  }
  check<ShapeError>(query.dim() == 3 && key.dim() == 3 && value.dim() == 3, "MultiheadAttention",
                    "takes queries, keys and values of 3 dims (or 2 without a batch), not {}, {} and {}", query, key,
                    value);
  int64_t batch = query.size(batch_first ? 0 : 1), time = batch_first ? 1 : 0;
  check<ShapeError>(key.size(1 - time) == batch && value.size(1 - time) == batch && key.size(time) == value.size(time),
                    "MultiheadAttention",
                    "queries, keys and values are of one batch, keys and values of one length, not {}, {} and {} ({})",
                    query, key, value, batch_first ? "[batch, time, width]" : "[time, batch, width]");
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
  int64_t keys = k.size(time);
  check_masks(o, batch, heads, query.size(time), keys);
  AttentionOptions options{
      .mask = joined_mask(o, batch, heads), .dropout = is_training() ? dropout : 0, .causal = o.causal};
  if (bias_k.defined()) k = with_key(k, bias_k, time), v = with_key(v, bias_v, time);
  if (add_zero_attn) {
    Tensor zero = zeros({1, 1, k.size(2)}, {.dtype = k.dtype(), .device = k.device()});
    k = with_key(k, zero, time), v = with_key(v, zero, time);
  }
  if (int64_t more = k.size(time) - keys) options = with_more_keys(options, query.size(time), keys, more, k.device());
  q = to_heads(q, heads, batch_first), k = to_heads(k, heads, batch_first), v = to_heads(v, heads, batch_first);
  Tensor weights, y;
  if (need_weights) {  // those with which each value counts are the result for values 1, 0, 0, ...; 0, 1, 0, ...; ...
    Tensor each = eye(k.size(2), k.size(2), {.dtype = k.dtype(), .device = k.device()});
    weights = scaled_dot_product_attention(q, k, each.expand({batch, heads, k.size(2), k.size(2)}), options);
    y = matmul(weights, v);
  } else {
    y = scaled_dot_product_attention(q, k, v, options);
  }
  y = y.permute(batch_first ? Shape{0, 2, 1, 3} : Shape{2, 0, 1, 3});
  return {out_proj(y.reshape({query.size(0), query.size(1), heads * q.size(-1)})), weights};
}

TransformerEncoderLayer::TransformerEncoderLayer(int64_t width, int64_t heads, const TransformerOptions& o)
    : self_attn(width, checked_heads("TransformerEncoderLayer", width, heads, o),
                {.dropout = o.dropout, .batch_first = o.batch_first}),
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
    : self_attn(width, checked_heads("TransformerDecoderLayer", width, heads, o),
                {.dropout = o.dropout, .batch_first = o.batch_first}),
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
  for (int64_t i = 0; i < checked_count("TransformerEncoder", count); ++i) layers.emplace_back(width, heads, o);
  if (o.final_norm.value_or(o.norm_first)) norm.emplace(width, NormOptions{.eps = o.eps});
}
Tensor TransformerEncoder::forward(const Tensor& x, const AttendOptions& o) {
  Tensor y = x;
  for (auto& layer : layers) y = layer(y, o);
  return norm ? (*norm)(y) : y;
}

TransformerDecoder::TransformerDecoder(int64_t width, int64_t heads, int64_t count, const TransformerOptions& o) {
  for (int64_t i = 0; i < checked_count("TransformerDecoder", count); ++i) layers.emplace_back(width, heads, o);
  if (o.final_norm.value_or(o.norm_first)) norm.emplace(width, NormOptions{.eps = o.eps});
}
Tensor TransformerDecoder::forward(const Tensor& x, const Tensor& memory, const AttendOptions& o,
                                   const AttendOptions& memory_options) {
  Tensor y = x;
  for (auto& layer : layers) y = layer(y, memory, o, memory_options);
  return norm ? (*norm)(y) : y;
}

// ---- Calls with braces among the arguments

Tensor MultiheadAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttendOptions& options) {
  return Module<MultiheadAttention>::operator()(query, key, value, options);
}

Tensor TransformerEncoderLayer::operator()(const Tensor& x, const AttendOptions& options) {
  return Module<TransformerEncoderLayer>::operator()(x, options);
}

Tensor TransformerEncoder::operator()(const Tensor& x, const AttendOptions& options) {
  return Module<TransformerEncoder>::operator()(x, options);
}

Tensor TransformerDecoderLayer::operator()(const Tensor& x, const Tensor& memory, const AttendOptions& options,
                                           const AttendOptions& memory_options) {
  return Module<TransformerDecoderLayer>::operator()(x, memory, options, memory_options);
}

Tensor TransformerDecoder::operator()(const Tensor& x, const Tensor& memory, const AttendOptions& options,
                                      const AttendOptions& memory_options) {
  return Module<TransformerDecoder>::operator()(x, memory, options, memory_options);
}

}  // namespace tutti::nn
