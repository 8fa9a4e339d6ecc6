#include "tutti/nn/rnn.h"

#include <cmath>

#include "base/check.h"
#include "tutti/nn/init.h"
#include "tutti/ops.h"

namespace tutti::nn {
namespace detail {
namespace {

// Calls f(suffix, layer) for each layer and direction, in the order of RnnWeights.
template <class F>
void for_each_pass(const RnnLayerOptions& o, F&& f) {
  for (int64_t layer = 0; layer < o.layers; ++layer)
    for (int direction = 0; direction < (o.bidirectional ? 2 : 1); ++direction)
      f(fmt::format("_l{}{}", layer, direction ? "_reverse" : ""), layer);
}

}  // namespace

std::map<std::string, Parameter> make_rnn(const char* layer, int64_t gates, int64_t input, int64_t hidden,
                                          const RnnLayerOptions& o) {
  check<ValueError>(input > 0 && hidden > 0 && o.layers > 0, layer, "takes sizes and layers > 0, not {}, {} and {}",
                    input, hidden, o.layers);
  check<ValueError>(o.projection >= 0 && o.projection < hidden, layer,
                    "the projection must be smaller than the hidden state's {}, not {}", hidden, o.projection);
  check<ValueError>(o.dropout >= 0 && o.dropout <= 1, layer, "dropout is a probability, not {}", o.dropout);
  double bound = 1 / std::sqrt(static_cast<double>(hidden));
  std::map<std::string, Parameter> weights;
  auto add = [&](const std::string& name, const Shape& sizes) {
    weights[name] = init::uniform_(empty(sizes), -bound, bound);
  };
  int64_t result = o.projection ? o.projection : hidden;
  for_each_pass(o, [&](const std::string& suffix, int64_t index) {
    add("weight_ih" + suffix, {gates * hidden, index ? result * (o.bidirectional ? 2 : 1) : input});
    add("weight_hh" + suffix, {gates * hidden, result});
    if (o.bias) add("bias_ih" + suffix, {gates * hidden});
    if (o.bias) add("bias_hh" + suffix, {gates * hidden});
    if (o.projection) add("weight_hr" + suffix, {o.projection, hidden});
  });
  return weights;
}

std::vector<RnnWeights> list_rnn(const std::map<std::string, Parameter>& weights, const RnnLayerOptions& o) {
  std::vector<RnnWeights> list;
  auto get = [&](const std::string& name) {
    auto found = weights.find(name);
    return found == weights.end() ? Tensor() : Tensor(found->second);
  };
  for_each_pass(o, [&](const std::string& s, int64_t) {
    list.push_back(
        {get("weight_ih" + s), get("weight_hh" + s), get("bias_ih" + s), get("bias_hh" + s), get("weight_hr" + s)});
  });
  return list;
}

RnnOptions run_options(const RnnLayerOptions& o, bool training, const Tensor& lengths) {
  return {o.layers, o.bidirectional, o.dropout, training, o.batch_first, lengths};
}

}  // namespace detail

RNN::RNN(int64_t input, int64_t hidden, const RnnLayerOptions& options, Nonlinearity nonlinearity)
    : weights(detail::make_rnn("RNN", 1, input, hidden, options)), options(options), nonlinearity(nonlinearity) {
  check<ValueError>(options.projection == 0, "RNN", "only LSTM has projections");
}
RnnResult RNN::forward(const Tensor& x, const Tensor& hidden, const Tensor& lengths) {
  return rnn(x, hidden, detail::list_rnn(weights, options), nonlinearity,
             detail::run_options(options, is_training(), lengths));
}

GRU::GRU(int64_t input, int64_t hidden, const RnnLayerOptions& options)
    : weights(detail::make_rnn("GRU", 3, input, hidden, options)), options(options) {
  check<ValueError>(options.projection == 0, "GRU", "only LSTM has projections");
}
RnnResult GRU::forward(const Tensor& x, const Tensor& hidden, const Tensor& lengths) {
  return gru(x, hidden, detail::list_rnn(weights, options), detail::run_options(options, is_training(), lengths));
}

LSTM::LSTM(int64_t input, int64_t hidden, const RnnLayerOptions& options)
    : weights(detail::make_rnn("LSTM", 4, input, hidden, options)), options(options) {}
LstmResult LSTM::forward(const Tensor& x, const LstmState& state, const Tensor& lengths) {
  return lstm(x, state, detail::list_rnn(weights, options), detail::run_options(options, is_training(), lengths));
}

// ---- Calls with braces among the arguments

RnnResult RNN::operator()(const Tensor& x, const Tensor& hidden, const Tensor& lengths) {
  return Module<RNN>::operator()(x, hidden, lengths);
}

RnnResult GRU::operator()(const Tensor& x, const Tensor& hidden, const Tensor& lengths) {
  return Module<GRU>::operator()(x, hidden, lengths);
}

LstmResult LSTM::operator()(const Tensor& x, const LstmState& state, const Tensor& lengths) {
  return Module<LSTM>::operator()(x, state, lengths);
}

}  // namespace tutti::nn
