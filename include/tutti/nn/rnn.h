// Recurrent layers: nn::LSTM(28, 128, {.layers = 2, .bidirectional = true}).
#pragma once

#include "tutti/nn/module.h"
#include "tutti/ops/rnn.h"

namespace tutti::nn {

struct RnnLayerOptions {
  int64_t layers = 1;
  bool bias = true;
  bool batch_first = false;
  double dropout = 0;  // between the layers
  bool bidirectional = false;
  int64_t projection = 0;  // LSTM: size of each step's result, 0: that of the hidden state
  TUTTI_FIELDS(layers, bias, batch_first, dropout, bidirectional, projection)
};

namespace detail {
/// The weights of all layers and directions, named as the field names them ("weight_ih_l0_reverse").
std::map<std::string, Parameter> make_rnn(const char* layer, int64_t gates, int64_t input, int64_t hidden,
                                          const RnnLayerOptions& options);
std::vector<RnnWeights> list_rnn(const std::map<std::string, Parameter>& weights, const RnnLayerOptions& options);
RnnOptions run_options(const RnnLayerOptions& options, bool training, const Tensor& lengths);
}  // namespace detail

struct RNN : Module<RNN> {
  static constexpr bool anonymous_fields = true;
  std::map<std::string, Parameter> weights;
  RnnLayerOptions options;
  Nonlinearity nonlinearity;
  TUTTI_FIELDS(weights, options, nonlinearity)
  RNN(int64_t input, int64_t hidden, const RnnLayerOptions& options = {},
      Nonlinearity nonlinearity = Nonlinearity::tanh);
  /// `lengths` ([batch]): sequences that end earlier, see ops/rnn.h.
  RnnResult forward(const Tensor& x, const Tensor& hidden = {}, const Tensor& lengths = {});
  using Module<RNN>::operator();
  RnnResult operator()(const Tensor& x, const Tensor& hidden, const Tensor& lengths = {});  // lets braces through
};

struct GRU : Module<GRU> {
  static constexpr bool anonymous_fields = true;
  std::map<std::string, Parameter> weights;
  RnnLayerOptions options;
  TUTTI_FIELDS(weights, options)
  GRU(int64_t input, int64_t hidden, const RnnLayerOptions& options = {});
  RnnResult forward(const Tensor& x, const Tensor& hidden = {}, const Tensor& lengths = {});
  using Module<GRU>::operator();
  RnnResult operator()(const Tensor& x, const Tensor& hidden, const Tensor& lengths = {});  // lets braces through
};

struct LSTM : Module<LSTM> {
  static constexpr bool anonymous_fields = true;
  std::map<std::string, Parameter> weights;
  RnnLayerOptions options;
  TUTTI_FIELDS(weights, options)
  LSTM(int64_t input, int64_t hidden, const RnnLayerOptions& options = {});
  LstmResult forward(const Tensor& x, const LstmState& state = {}, const Tensor& lengths = {});
  using Module<LSTM>::operator();
  LstmResult operator()(const Tensor& x, const LstmState& state, const Tensor& lengths = {});  // lets braces through
};

// Compiled once, in src/nn/layers.cpp.
extern template class Module<RNN>;
extern template class Module<GRU>;
extern template class Module<LSTM>;

}  // namespace tutti::nn
