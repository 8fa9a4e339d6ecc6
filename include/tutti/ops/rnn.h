// Recurrent layers over whole sequences: rnn, lstm and gru.
//
// Sequences are [T, B, I] ([B, T, I] with batch_first), or [T, I] without a batch. States are [layers · directions, B,
// H] (without B where there is no batch); undefined ones stand for zeros. Weights are those of PyTorch, gates in its
// order: w_ih [gates·H, I], w_hh [gates·H, H], and two biases [gates·H] or none. There is one RnnWeights for each layer
// and direction: layer 0 forward, layer 0 backward, layer 1 forward, ...
#pragma once

#include <vector>

#include "tutti/fields.h"
#include "tutti/tensor.h"

namespace tutti {

struct RnnWeights {
  Tensor w_ih, w_hh, b_ih = {}, b_hh = {};
  Tensor w_hr = {};  // lstm only: [P, H], projects each step's result, which has then P numbers; w_hh is [4·H, P]
};

struct RnnOptions {
  int64_t layers = 1;
  bool bidirectional = false;  // a second pass from the end; both results side by side
  double dropout = 0;          // of what goes from layer to layer, when training
  bool training = false;
  bool batch_first = false;
  /// i64 [B]: how long each sequence is. What comes after its length is not looked at, and gives zeros; last states are
  /// those at the length, where the backward direction begins. Sequences need not be sorted.
  Tensor lengths = {};
};

struct RnnResult {
  Tensor output, hidden;
  TUTTI_FIELDS(output, hidden)
};
struct LstmState {
  Tensor hidden = {}, cell = {};
  TUTTI_FIELDS(hidden, cell)
};
struct LstmResult {
  Tensor output, hidden, cell;
  TUTTI_FIELDS(output, hidden, cell)
};

enum class Nonlinearity : uint8_t { tanh, relu };
inline const char* to_string(Nonlinearity f) { return f == Nonlinearity::tanh ? "tanh" : "relu"; }

/// h = f(w_ih x + b_ih + w_hh h + b_hh)
RnnResult rnn(const Tensor& x, const Tensor& hidden, const std::vector<RnnWeights>& weights,
              Nonlinearity nonlinearity = Nonlinearity::tanh, const RnnOptions& options = {});
/// Gates r, z, n; h = (1 - z)·n + z·h with n = tanh(w_in x + b_in + r·(w_hn h + b_hn)).
RnnResult gru(const Tensor& x, const Tensor& hidden, const std::vector<RnnWeights>& weights,
              const RnnOptions& options = {});
/// Gates i, f, g, o; c = f·c + i·g, h = o·tanh(c).
LstmResult lstm(const Tensor& x, const LstmState& state, const std::vector<RnnWeights>& weights,
                const RnnOptions& options = {});

}  // namespace tutti
