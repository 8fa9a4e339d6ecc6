// A recurrent layer in public operators.
#include "ops/rnn/sequence.h"
#include "tutti/ops.h"

namespace tutti::recurrent {
namespace {

Tensor with_bias(const Tensor& x, const Tensor& bias) { return bias.defined() ? x + bias : x; }

struct Step {
  Tensor h, c;
};

Step step(Cell cell, const Tensor& from_x, const Tensor& from_h, const Step& before) {
  if (cell == Cell::tanh) return {tanh(from_x + from_h), {}};
  if (cell == Cell::relu) return {relu(from_x + from_h), {}};
  if (cell == Cell::lstm) {
    TensorList gates = chunk(from_x + from_h, 4, -1);
    Tensor c = sigmoid(gates[1]) * before.c + sigmoid(gates[0]) * tanh(gates[2]);
    return {sigmoid(gates[3]) * tanh(c), c};
  }
  TensorList a = chunk(from_x, 3, -1), b = chunk(from_h, 3, -1);
  Tensor r = sigmoid(a[0] + b[0]), z = sigmoid(a[1] + b[1]), n = tanh(a[2] + r * b[2]);
  return {(1 - z) * n + z * before.h, {}};
}

}  // namespace

States compose_sequence(const Tensor& x, const Layer& layer) {
  const RnnWeights& w = layer.weights;
  Tensor all = with_bias(matmul(x, transpose(w.w_ih, 0, 1)), w.b_ih), across = transpose(w.w_hh, 0, 1);
  Step now{layer.h, layer.c};
  TensorList hidden{now.h}, cells;
  if (now.c.defined()) cells.push_back(now.c);
  for (int64_t t = 0; t < x.size(0); ++t) {
    Step next = step(layer.cell, select(all, 0, t), with_bias(matmul(now.h, across), w.b_hh), now);
    if (w.w_hr.defined()) next.h = matmul(next.h, transpose(w.w_hr, 0, 1));
    if (layer.lengths.defined()) {
      Tensor active = unsqueeze(layer.lengths > t, 1);
      next.h = where(active, next.h, now.h);
      if (next.c.defined()) next.c = where(active, next.c, now.c);
    }
    now = next;
    hidden.push_back(now.h);
    if (now.c.defined()) cells.push_back(now.c);
  }
  return {stack(hidden), cells.empty() ? Tensor() : stack(cells)};
}

}  // namespace tutti::recurrent
