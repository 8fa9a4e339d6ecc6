// Recurrent, attention and transformer layers against PyTorch's.
#include "tests/nn/golden.h"

namespace tutti::test {
namespace {

using namespace nn;
using testing::HasSubstr;

const Npz& golden_sequences() {
  static const Npz file("tests/golden/layers_sequences.npz");
  return file;
}

template <class M>
TensorList list(const M& result) {
  return tree::tensors(result);
}

// The four forms that all three cells have; `make(input, hidden, options)`.
template <class M, class Make>
void agree_recurrent(const std::string& cell, Make make) {
  auto plain = [](M& m, const TensorList& x) { return list(m(x[0])); };
  expect_layer(golden_sequences(), cell, make(3, 2, RnnLayerOptions{}), plain);
  expect_layer(golden_sequences(), cell + ".deep", make(2, 2, RnnLayerOptions{.layers = 2, .bidirectional = true}),
               plain);
  expect_layer(golden_sequences(), cell + ".first", make(2, 2, RnnLayerOptions{.bias = false, .batch_first = true}),
               [](M& m, const TensorList& x) {
                 if constexpr (std::same_as<M, LSTM>)
                   return list(m(x[0], LstmState{x[1], x[2]}));
                 else
                   return list(m(x[0], x[1]));
               });
  expect_layer(golden_sequences(), cell + ".lengths",
               make(2, 2, RnnLayerOptions{.batch_first = true, .bidirectional = true}), [](M& m, const TensorList& x) {
                 if constexpr (std::same_as<M, LSTM>)
                   return list(m(x[0], LstmState{}, x[1]));
                 else
                   return list(m(x[0], Tensor(), x[1]));
               });
}

TEST(Recurrent, RefuseWhatDoesNotFitAndSayWhy) {
  LSTM lstm(2, 3);
  EXPECT_THAT(message_of<ShapeError>([&] { lstm(zeros({5, 4, 7})); }),
              testing::StartsWith("lstm: the input f32[5, 4, 7] on cpu:0 must have 2 features in its last dim"));
  EXPECT_THAT(message_of<ValueError>([&] { lstm(zeros({5, 4, 2}), LstmState{.hidden = zeros({1, 4, 3})}); }),
              testing::HasSubstr("both hidden and cell, or neither: cell is undefined"));
}

TEST(Sequences, RecurrentLayersAgreeWithPyTorch) {
  agree_recurrent<RNN>("rnn", [](int64_t i, int64_t h, const RnnLayerOptions& o) { return RNN(i, h, o); });
  agree_recurrent<GRU>("gru", [](int64_t i, int64_t h, const RnnLayerOptions& o) { return GRU(i, h, o); });
  agree_recurrent<LSTM>("lstm", [](int64_t i, int64_t h, const RnnLayerOptions& o) { return LSTM(i, h, o); });
  expect_layer(golden_sequences(), "rnn.relu", RNN(3, 2, {}, Nonlinearity::relu),
               [](RNN& m, const TensorList& x) { return list(m(x[0])); });
  auto plain = [](LSTM& m, const TensorList& x) { return list(m(x[0])); };
  expect_layer(golden_sequences(), "lstm.projection", LSTM(2, 3, {.layers = 2, .projection = 2}), plain);
  expect_layer(golden_sequences(), "lstm.projection.first",
               LSTM(2, 3, {.bias = false, .batch_first = true, .projection = 2}), plain);
  expect_layer(golden_sequences(), "lstm.projection.lengths", LSTM(2, 3, {.bidirectional = true, .projection = 2}),
               [](LSTM& m, const TensorList& x) { return list(m(x[0], LstmState{}, x[1])); });
  expect_layer(golden_sequences(), "lstm.single", LSTM(3, 2), plain);
}

TEST(Sequences, RecurrentLayersRefuseNonsense) {
  EXPECT_THAT(message_of<ValueError>([] { GRU(3, 2, {.projection = 1}); }), HasSubstr("only LSTM"));
  EXPECT_THAT(message_of<ValueError>([] { RNN(3, 2, {.projection = 1}); }), HasSubstr("only LSTM"));
  EXPECT_THROW(LSTM(3, 2, {.projection = 2}), ValueError);
  EXPECT_THROW(LSTM(3, 2, {.layers = 0}), ValueError);
  EXPECT_THROW(LSTM(3, 2, {.dropout = 2}), ValueError);
}

TEST(Sequences, RecurrentDropoutIsForTrainingOnly) {
  LSTM m(3, 4, {.layers = 2, .dropout = 0.5});
  Tensor x = randn({5, 2, 3});
  EXPECT_FALSE(identical(m(x).output, m(x).output));
  m.eval();
  EXPECT_TRUE(identical(m(x).output, m(x).output));
}

// Runs attention of x[0] to itself with options made of the other inputs. Some second gradients are sums of weights'
// gradients that cancel (a bias of the keys has none at all): in f32 what is left is the rounding of the terms.
template <class F>
void agree_masked(const std::string& key, F options) {
  expect_layer(golden_sequences(), key, MultiheadAttention(4, 2),
               [&](MultiheadAttention& m, const TensorList& x) { return TensorList{m(x[0], x[0], x[0], options(x))}; },
               {.f32 = 2e-5});
}

TEST(Sequences, AttentionAgreesWithPyTorch) {
  using M = MultiheadAttention;
  auto own = [](M& m, const TensorList& x) { return TensorList{m(x[0], x[0], x[0])}; };
  auto cross = [](M& m, const TensorList& x) { return TensorList{m(x[0], x[1], x[2])}; };
  expect_layer(golden_sequences(), "attention", M(4, 2), own);
  expect_layer(golden_sequences(), "attention.first", M(4, 2, {.batch_first = true}), own);
  expect_layer(golden_sequences(), "attention.single", M(4, 2), own);
  expect_layer(golden_sequences(), "attention.single", M(4, 2, {.batch_first = true}), own);
  expect_layer(golden_sequences(), "attention.cross", M(4, 2), cross);
  expect_layer(golden_sequences(), "attention.nobias", M(4, 2, {.bias = false}), cross);
  // Here too: numbers of a millionth, of terms of a tenth.
  expect_layer(golden_sequences(), "attention.wide", M(4, 2, {.batch_first = true, .key_width = 3, .value_width = 2}),
               cross, {.f32 = 2e-5});
  expect_layer(golden_sequences(), "attention.wide.nobias", M(4, 2, {.bias = false, .key_width = 3, .value_width = 2}),
               cross);
  expect_layer(golden_sequences(), "attention.wide.bias_kv", M(4, 2, {.key_width = 3, .add_bias_kv = true}), cross);
}

TEST(Sequences, MaskedAttentionAgreesWithPyTorch) {
  agree_masked("attention.causal", [](const TensorList&) { return AttendOptions{.causal = true}; });
  // PyTorch's masks of bools say what is forbidden.
  agree_masked("attention.bool", [](const TensorList& x) { return AttendOptions{.mask = logical_not(x[1])}; });
  agree_masked("attention.added", [](const TensorList& x) { return AttendOptions{.mask = x[1]}; });
  agree_masked("attention.heads", [](const TensorList& x) { return AttendOptions{.mask = x[1]}; });
  agree_masked("attention.bool.heads", [](const TensorList& x) { return AttendOptions{.mask = logical_not(x[1])}; });
  // The same with the batch and the heads as dims of their own.
  auto apart = [](const Tensor& mask) { return mask.view({2, 2, 3, 3}); };
  agree_masked("attention.heads", [&](const TensorList& x) { return AttendOptions{.mask = apart(x[1])}; });
  agree_masked("attention.bool.heads",
               [&](const TensorList& x) { return AttendOptions{.mask = apart(logical_not(x[1]))}; });
  agree_masked("attention.added", [](const TensorList& x) { return AttendOptions{.mask = x[1].view({1, 1, 3, 3})}; });
  agree_masked("attention.padding", [](const TensorList& x) { return AttendOptions{.key_padding = x[1]}; });
  agree_masked("attention.both", [](const TensorList& x) { return AttendOptions{.mask = x[1], .key_padding = x[2]}; });
  agree_masked("attention.bools",
               [](const TensorList& x) { return AttendOptions{.mask = logical_not(x[1]), .key_padding = x[2]}; });
  agree_masked("attention.bools",
               [](const TensorList& x) { return AttendOptions{.key_padding = x[2], .causal = true}; });
}

TEST(Sequences, AttentionWithMoreKeysAgreesWithPyTorch) {
  using M = MultiheadAttention;
  expect_layer(golden_sequences(), "attention.bias_kv", M(4, 2, {.add_bias_kv = true}), [](M& m, const TensorList& x) {
    return TensorList{m(x[0], x[0], x[0], AttendOptions{.mask = logical_not(x[1]), .key_padding = x[2]})};
  });
  expect_layer(golden_sequences(), "attention.bias_kv", M(4, 2, {.add_bias_kv = true}), [](M& m, const TensorList& x) {
    return TensorList{m(x[0], x[0], x[0], AttendOptions{.key_padding = x[2], .causal = true})};
  });
  expect_layer(golden_sequences(), "attention.more",
               M(4, 2, {.batch_first = true, .add_bias_kv = true, .add_zero_attn = true}),
               [](M& m, const TensorList& x) { return TensorList{m(x[0], x[1], x[2])}; });
  expect_layer(golden_sequences(), "attention.zero", M(4, 2, {.add_zero_attn = true}),
               [](M& m, const TensorList& x) { return TensorList{m(x[0], x[0], x[0], AttendOptions{.mask = x[1]})}; });
  expect_layer(golden_sequences(), "attention.bias_kv.causal", M(4, 2, {.add_bias_kv = true}),
               [](M& m, const TensorList& x) {
                 return TensorList{m(x[0], x[0], x[0], AttendOptions{.mask = x[1], .causal = true})};
               });
  expect_layer(golden_sequences(), "attention.more.causal", M(4, 2, {.add_bias_kv = true, .add_zero_attn = true}),
               [](M& m, const TensorList& x) {
                 AttendOptions o{.mask = x[1], .key_padding = x[2], .causal = true};
                 return TensorList{m(x[0], x[0], x[0], o)};
               });
}

TEST(Sequences, AttentionWeightsAgreeWithPyTorch) {
  using M = MultiheadAttention;
  Tensor padding = tensor({{0, 0, 1}, {0, 0, 0}}) == 1;
  expect_layer(golden_sequences(), "attention.weights", M(4, 2), [&](M& m, const TensorList& x) {
    return list(m.with_weights(x[0], x[0], x[0], {.key_padding = padding}));
  });
  auto heads = [](M& m, const TensorList& x) { return list(m.with_weights(x[0], x[1], x[1], {}, false)); };
  expect_layer(golden_sequences(), "attention.weights.heads", M(4, 2, {.batch_first = true}), heads);
  expect_layer(golden_sequences(), "attention.weights.single", M(4, 2, {.add_zero_attn = true}), heads);
  // The result is that of the plain call; what dropout leaves is what is told.
  M m(4, 2);
  Tensor x = randn({3, 2, 4});
  EXPECT_TRUE(close(m.with_weights(x, x, x).output, m(x, x, x), 1e-5));
  M dropping(4, 2, {.dropout = 0.5});
  EXPECT_GT((dropping.with_weights(x, x, x, {}, false).weights == 0).sum().item<double>(), 0);
  dropping.eval();
  Tensor weights = dropping.with_weights(x, x, x, {.causal = true}).weights;
  EXPECT_TRUE(close(weights.sum(-1), ones({2, 3}), 1e-5));
  EXPECT_EQ(weights.select(1, 0).select(1, 2).abs().max().item<double>(), 0);
}

TEST(Sequences, AttentionRefusesNonsense) {
  EXPECT_THAT(message_of<ValueError>([] { MultiheadAttention(5, 2); }), HasSubstr("2 heads"));
  MultiheadAttention m(4, 2);
  Tensor x = zeros({3, 2, 4});
  EXPECT_THAT(message_of<DTypeError>([&] { m(x, x, x, AttendOptions{.key_padding = zeros({2, 3})}); }),
              HasSubstr("bool"));
  EXPECT_THROW(m(x, x, x, AttendOptions{.key_padding = zeros({2, 4}, {boolean})}), ShapeError);
  EXPECT_THROW(m(x, x, x, AttendOptions{.mask = zeros({3, 5})}), ShapeError);
  EXPECT_THROW(m(x, x, x, AttendOptions{.mask = zeros({3, 3, 3})}), ShapeError);
  auto refused = [&](const AttendOptions& o, const char* text) {
    EXPECT_THAT(message_of<ShapeError>([&] { m(x, x, x, o); }),
                testing::AllOf(HasSubstr("MultiheadAttention: "), HasSubstr(text)));
  };
  refused({.mask = zeros({3, 5})}, "the mask f32[3, 5] on cpu:0 must be [queries, keys] = [3, 3]");
  refused({.mask = zeros({2, 3, 3})}, "[batch·heads, queries, keys] = [4, 3, 3]");
  refused({.mask = zeros({3})}, "the mask f32[3]");
  refused({.mask = zeros({2, 3, 3, 3})}, "[batch, heads, queries, keys] = [2, 2, 3, 3]");
  refused({.mask = zeros({3, 1, 3, 3})}, "the mask f32[3, 1, 3, 3]");
  refused({.mask = zeros({1, 3, 3})}, "the mask f32[1, 3, 3]");
  refused({.key_padding = zeros({3, 2}, {boolean})}, "key_padding bool[3, 2] on cpu:0 must be [batch, keys] = [2, 3]");
  EXPECT_THROW(m(x, x, zeros({3, 2, 5})), ShapeError);
  EXPECT_THROW(m(x, zeros({4}), x), ShapeError);
  Tensor other = zeros({3, 5, 4});
  EXPECT_THAT(message_of<ShapeError>([&] { m(x, other, other); }),
              testing::AllOf(testing::StartsWith("MultiheadAttention: "), HasSubstr("f32[3, 5, 4]")));
  EXPECT_THAT(message_of<ShapeError>([&] { m(x, x, zeros({4, 2, 4})); }), testing::StartsWith("MultiheadAttention: "));
  MultiheadAttention more(4, 2, {.add_zero_attn = true});
  EXPECT_THAT(message_of<ShapeError>([&] { more(x, x, x, AttendOptions{.mask = zeros({3, 4})}); }),
              HasSubstr("[queries, keys] = [3, 3]"));
  EXPECT_THROW(more(x, x, x, AttendOptions{.mask = zeros({})}), ShapeError);
}

TEST(Sequences, TransformersAgreeWithPyTorch) {
  TransformerOptions plain{.feedforward = 3, .dropout = 0};
  TransformerOptions other{.feedforward = 3, .dropout = 0, .gelu = true, .batch_first = true, .norm_first = true};
  TransformerOptions first{.feedforward = 3, .dropout = 0, .norm_first = true};
  TransformerOptions wide{.feedforward = 3, .dropout = 0, .eps = 1e-3};
  using Encoder = TransformerEncoderLayer;
  using Decoder = TransformerDecoderLayer;
  expect_layer(golden_sequences(), "encoder", Encoder(4, 2, plain));
  expect_layer(golden_sequences(), "encoder.gelu", Encoder(4, 2, other));
  expect_layer(golden_sequences(), "encoder.masked", Encoder(4, 2, wide), [](Encoder& m, const TensorList& x) {
    return TensorList{m(x[0], AttendOptions{.key_padding = x[1], .causal = true})};
  });
  auto two = [](auto& m, const TensorList& x) { return TensorList{m(x[0], x[1])}; };
  expect_layer(golden_sequences(), "decoder", Decoder(4, 2, plain), two);
  expect_layer(golden_sequences(), "decoder.gelu", Decoder(4, 2, other), [](Decoder& m, const TensorList& x) {
    return TensorList{m(x[0], x[1], AttendOptions{.causal = true}, AttendOptions{.key_padding = x[2]})};
  });
  expect_layer(golden_sequences(), "encoders", TransformerEncoder(4, 2, 2, first));
  // Gradients here are differences of numbers a hundred thousand times their size.
  expect_layer(golden_sequences(), "decoders", TransformerDecoder(4, 2, 2, plain), two, {.f32 = 2e-5});
  TransformerOptions normed = plain, bare = first;
  normed.final_norm = true, bare.final_norm = false;
  expect_layer(golden_sequences(), "encoders.normed", TransformerEncoder(4, 2, 1, normed));
  expect_layer(golden_sequences(), "encoders.bare", TransformerEncoder(4, 2, 1, bare));
}

TEST(Sequences, MaskedTransformersAgreeWithPyTorch) {
  TransformerOptions plain{.feedforward = 3, .dropout = 0};
  TransformerOptions first{.feedforward = 3, .dropout = 0, .norm_first = true};
  TransformerOptions wide{.feedforward = 3, .dropout = 0, .eps = 1e-3};
  TransformerOptions other{.feedforward = 3, .dropout = 0, .gelu = true, .batch_first = true, .norm_first = true};
  using Encoders = TransformerEncoder;
  using Decoders = TransformerDecoder;
  expect_layer(golden_sequences(), "encoders.masked", Encoders(4, 2, 2, plain), [](Encoders& m, const TensorList& x) {
    return TensorList{m(x[0], AttendOptions{.key_padding = x[1], .causal = true})};
  });
  expect_layer(golden_sequences(), "decoder.masked", TransformerDecoderLayer(4, 2, wide),
               [](TransformerDecoderLayer& m, const TensorList& x) {
                 return TensorList{m(x[0], x[1], AttendOptions{.key_padding = x[3]}, AttendOptions{.mask = x[2]})};
               });
  expect_layer(golden_sequences(), "decoders.masked", Decoders(4, 2, 2, other), [](Decoders& m, const TensorList& x) {
    AttendOptions own{.key_padding = x[3], .causal = true}, memory{.mask = x[2], .key_padding = x[3]};
    return TensorList{m(x[0], x[1], own, memory)};
  });
  auto two = [](Decoders& m, const TensorList& x) { return TensorList{m(x[0], x[1])}; };
  TransformerOptions normed = plain, bare = first;
  normed.final_norm = true, bare.final_norm = false;
  expect_layer(golden_sequences(), "decoders.normed", Decoders(4, 2, 1, normed), two);
  expect_layer(golden_sequences(), "decoders.bare", Decoders(4, 2, 1, bare), two);
}

TEST(Sequences, TransformersDropInTrainingOnly) {
  TransformerEncoder m(8, 2, 2, {.feedforward = 16, .dropout = 0.5});
  Tensor x = randn({5, 2, 8});
  EXPECT_FALSE(identical(m(x), m(x)));
  m.eval();
  EXPECT_TRUE(identical(m(x), m(x)));
  EXPECT_FALSE(identical(m.layers[0].linear1.weight, m.layers[1].linear1.weight));
}

TEST(Sequences, TakeArgumentsInBraces) {
  manual_seed(3);
  Tensor x = randn({4, 2, 6}), lengths = tensor({4, 2}, {i64});
  LSTM lstm(6, 3);
  EXPECT_TRUE(identical(lstm(x, {}, lengths).output, lstm(x, LstmState{}, lengths).output));
  GRU gru(6, 3);
  EXPECT_TRUE(identical(gru(x, {}, lengths).output, gru(x, Tensor(), lengths).output));
  TransformerEncoder encoder(6, 2, 2, {.feedforward = 8, .dropout = 0});
  EXPECT_TRUE(identical(encoder(x, {.causal = true}), encoder(x, AttendOptions{.causal = true})));
  EXPECT_FALSE(identical(encoder(x, {.causal = true}), encoder(x)));
  TransformerDecoder decoder(6, 2, 1, {.feedforward = 8, .dropout = 0});
  EXPECT_TRUE(identical(decoder(x, x, {.causal = true}), decoder(x, x, AttendOptions{.causal = true})));
  MultiheadAttention attention(6, 2);
  EXPECT_TRUE(identical(attention(x, x, x, {.causal = true}), attention(x, x, x, AttendOptions{.causal = true})));
}

}  // namespace
}  // namespace tutti::test
