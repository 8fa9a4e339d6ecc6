// Layers, directions, dropout, lengths: on top of one layer in one direction.
#include "tutti/ops/rnn.h"

#include <algorithm>

#include "amp/policy.h"
#include "base/check.h"
#include "base/named.h"
#include "ops/rnn/sequence.h"
#include "tutti/context.h"
#include "tutti/operator.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using recurrent::Cell;

const char* name_of(Cell cell) { return cell == Cell::lstm ? "lstm" : cell == Cell::gru ? "gru" : "rnn"; }

struct Steps {
  Cell cell;
  int64_t count;
  TUTTI_FIELDS(cell, count)
};

// The lengths as i64, none of them longer than there are steps: an operator, so that a compiled function looks at them
// too.
const Operator lengths_op{
    .name = "rnn_lengths",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = c.input(0).sizes(), .dtype = i64, .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Steps>();
          std::vector<int64_t> all = c.input(0).to_vector<int64_t>();
          for (size_t b = 0; b < all.size(); ++b)
            check<ValueError>(all[b] >= 0 && all[b] <= a.count, name_of(a.cell),
                              "length {} of sequence {} must lie in [0, {}]", all[b], b, a.count);
          std::copy(all.begin(), all.end(), c.output().data<int64_t>());
        },
};

// Everything in the one form the layers take: x [T, B, I] of f32 or f64.
struct Stack {
  Cell cell;
  const RnnOptions& o;
  const std::vector<RnnWeights>& weights;
  Tensor x, hidden, cells, lengths;
  Tensor inside;  // [T, B, 1]: before the length
  Tensor turned;  // [T, B, 1]: where each sequence, up to its length, has the step at the other end
  const char* name = name_of(cell);

  int64_t directions() const { return o.bidirectional ? 2 : 1; }
  int64_t batch() const { return x.size(1); }

  void check_weights(const RnnWeights& w, int64_t inputs, size_t number) const;
  Tensor state(const Tensor& given, int64_t index, int64_t units) const;
  void prepare_lengths();
  Tensor flipped(const Tensor& y) const;
  LstmResult direction(const Tensor& y, int64_t index) const;
  LstmResult run();
};

void Stack::check_weights(const RnnWeights& w, int64_t inputs, size_t number) const {
  for (const Tensor* t : {&w.w_ih, &w.w_hh}) {
    check<ValueError>(t->defined(), name, "weight {} lacks w_ih or w_hh", number);
    check<ShapeError>(t->dim() == 2, name, "w_ih and w_hh must be matrices: {} of weight {} is not", *t, number);
  }
  int64_t gates = recurrent::gates_of(cell), rows = w.w_ih.size(0);
  check<ShapeError>(number > 0 || w.w_ih.size(1) == inputs, name,
                    "the input {} must have {} features in its last dim, as the weights w_ih {} do", x, w.w_ih.size(1),
                    w.w_ih);
  check<ShapeError>(rows % gates == 0 && w.w_ih.size(1) == inputs, name,
                    "w_ih {} of weight {} must be [{}·H, {}] for its input", w.w_ih, number, gates, inputs);
  int64_t units = rows / gates, back = w.w_hr.defined() ? w.w_hr.size(0) : units;
  check<ValueError>(!w.w_hr.defined() || cell == Cell::lstm, name, "only an lstm has a projection w_hr, {}", w.w_hr);
  if (w.w_hr.defined())
    check<ShapeError>(w.w_hr.dim() == 2 && w.w_hr.size(1) == units, name, "w_hr {} of weight {} must be [P, {}]",
                      w.w_hr, number, units);
  check<ShapeError>(w.w_hh.sizes() == Shape({rows, back}), name, "w_hh {} of weight {} must be [{}, {}]", w.w_hh,
                    number, rows, back);
  check<ValueError>(w.b_ih.defined() == w.b_hh.defined(), name, "weight {} must have both biases or none", number);
  for (const Tensor* b : {&w.b_ih, &w.b_hh})
    check<ShapeError>(!b->defined() || b->sizes() == Shape(rows), name, "the bias {} of weight {} must be [{}]", *b,
                      number, rows);
  for (const Tensor* t : {&w.w_ih, &w.w_hh, &w.b_ih, &w.b_hh, &w.w_hr}) {
    if (!t->defined()) continue;
    check<DTypeError>(t->dtype() == x.dtype(), name, "{} of weight {} must have the dtype of the input {}", *t, number,
                      x);
    check<DeviceError>(t->device() == x.device(), name, "{} of weight {} is not on the device of the input {}", *t,
                       number, x);
  }
}

// The state before the first step of one layer and direction: [B, units].
Tensor Stack::state(const Tensor& given, int64_t index, int64_t units) const {
  if (!given.defined()) return zeros({batch(), units}, {.dtype = x.dtype(), .device = x.device()});
  Shape wanted{o.layers * directions(), batch(), units};
  check<ShapeError>(given.sizes() == wanted, name, "the initial state {} must have the shape {}", given, wanted);
  check<DTypeError>(given.dtype() == x.dtype(), name, "the initial state {} must have the dtype of the input {}", given,
                    x);
  check<DeviceError>(given.device() == x.device(), name, "the initial state {} is not on the device of the input {}",
                     given, x);
  return select(given, 0, index);
}

void Stack::prepare_lengths() {
  if (!o.lengths.defined()) return;
  check<DTypeError>(o.lengths.dtype() == i64 || o.lengths.dtype() == i32, name, "lengths must be i64 or i32, not {}",
                    o.lengths);
  check<ShapeError>(o.lengths.sizes() == Shape(batch()), name, "lengths {} must be [{}]: one for each sequence",
                    o.lengths, batch());
  check<DeviceError>(o.lengths.device() == x.device(), name, "lengths {} are not on the device of the input {}",
                     o.lengths, x);
  int64_t steps = x.size(0);
  Steps a{cell, steps};
  lengths = call(lengths_op, {&o.lengths}, attributes(a));
  Tensor t = unsqueeze(arange(steps, {.dtype = i64, .device = x.device()}), 1), last = unsqueeze(lengths, 0);
  Tensor before = t < last;
  inside = unsqueeze(before, 2);
  if (o.bidirectional) turned = unsqueeze(where(before, last - 1 - t, t), 2);
  // What lies beyond is not looked at: not even a NaN may reach the gradients.
  x = where(inside, x, zeros({}, {.dtype = x.dtype(), .device = x.device()}));
}

// Sequences from their ends; its own inverse.
Tensor Stack::flipped(const Tensor& y) const {
  if (!turned.defined()) return flip(y, {0});
  return gather(y, 0, expand(turned, y.sizes()));
}

LstmResult Stack::direction(const Tensor& y, int64_t index) const {
  const RnnWeights& w = weights[static_cast<size_t>(index)];
  check_weights(w, y.size(2), static_cast<size_t>(index));
  bool backwards = o.bidirectional && index % 2 == 1;
  int64_t units = w.w_ih.size(0) / recurrent::gates_of(cell), results = w.w_hh.size(1);
  recurrent::Layer layer{cell, state(hidden, index, results), {}, w, lengths};
  if (cell == Cell::lstm) layer.c = state(cells, index, units);
  int64_t steps = y.size(0);
  recurrent::States states = recurrent::run_sequence(backwards ? flipped(y) : y, layer);
  LstmResult r;
  r.output = narrow(states.hidden, 0, 1, steps);
  r.hidden = select(states.hidden, 0, steps);
  if (states.cell.defined()) r.cell = select(states.cell, 0, steps);
  if (inside.defined()) r.output = where(inside, r.output, zeros({}, {.dtype = x.dtype(), .device = x.device()}));
  if (backwards) r.output = flipped(r.output);
  return r;
}

LstmResult Stack::run() {
  prepare_lengths();
  TensorList last_hidden, last_cells;
  Tensor y = x;
  for (int64_t layer = 0; layer < o.layers; ++layer) {
    if (layer > 0) y = dropout(y, o.dropout, o.training);
    TensorList outputs;
    for (int64_t d = 0; d < directions(); ++d) {
      LstmResult r = direction(y, layer * directions() + d);
      outputs.push_back(r.output);
      last_hidden.push_back(r.hidden);
      if (r.cell.defined()) last_cells.push_back(r.cell);
    }
    y = outputs.size() == 1 ? outputs[0] : cat(outputs, 2);
  }
  return {y, stack(last_hidden), last_cells.empty() ? Tensor() : stack(last_cells)};
}

LstmResult run_cast(Cell cell, const Tensor& x, const Tensor& hidden, const Tensor& cells,
                    const std::vector<RnnWeights>& weights, const RnnOptions& o);

// Brings inputs to the form of Stack, and results back.
LstmResult run(Cell cell, const Tensor& x, const Tensor& hidden, const Tensor& cells,
               const std::vector<RnnWeights>& weights, const RnnOptions& o) {
  const char* name = name_of(cell);
  check<ValueError>(x.defined(), name, "the input is undefined: it was never given a value");
  check<DTypeError>(x.is_floating(), name, "needs floating-point elements, not {}; cast it first", x);
  check<ShapeError>(x.dim() == 2 || x.dim() == 3, name,
                    "needs [T, B, I], [B, T, I] with batch_first, or [T, I], not {}", x);
  check<ValueError>(o.layers >= 1, name, "there must be at least one layer, not {}", o.layers);
  auto count = static_cast<size_t>(o.layers * (o.bidirectional ? 2 : 1));
  check<ValueError>(weights.size() == count, name, "{} layers in {} directions need {} weights, not {}", o.layers,
                    o.bidirectional ? 2 : 1, count, weights.size());
  if (x.dtype() == DType::bf16 || x.dtype() == DType::f16) return run_cast(cell, x, hidden, cells, weights, o);
  if (x.dim() == 2) {
    check<ValueError>(!o.lengths.defined(), name, "lengths are for batches; {} is one sequence", x);
    RnnOptions batched = o;
    batched.batch_first = false;
    auto wide = [](const Tensor& t) { return t.defined() ? unsqueeze(t, 1) : t; };
    LstmResult r = run(cell, unsqueeze(x, 1), wide(hidden), wide(cells), weights, batched);
    return {squeeze(r.output, 1), squeeze(r.hidden, 1), r.cell.defined() ? squeeze(r.cell, 1) : r.cell};
  }
  Stack layers{.cell = cell,
               .o = o,
               .weights = weights,
               .x = o.batch_first ? transpose(x, 0, 1) : x,
               .hidden = hidden,
               .cells = cells,
               .lengths = {},
               .inside = {},
               .turned = {}};
  LstmResult r = layers.run();
  if (o.batch_first) r.output = transpose(r.output, 0, 1);
  return r;
}

// bf16 and f16: computed in f32, rounded at the end.
LstmResult run_cast(Cell cell, const Tensor& x, const Tensor& hidden, const Tensor& cells,
                    const std::vector<RnnWeights>& weights, const RnnOptions& o) {
  auto wide = [](const Tensor& t) { return t.defined() ? cast(t, f32) : t; };
  std::vector<RnnWeights> all;
  for (const RnnWeights& w : weights)
    all.push_back({wide(w.w_ih), wide(w.w_hh), wide(w.b_ih), wide(w.b_hh), wide(w.w_hr)});
  LstmResult r = run(cell, wide(x), wide(hidden), wide(cells), all, o);
  auto narrow = [&](const Tensor& t) { return t.defined() ? cast(t, x.dtype()) : t; };
  return {narrow(r.output), narrow(r.hidden), narrow(r.cell)};
}

// Under autocast: products for the most part, recurrent layers get and give low precision.
LstmResult run_autocast(Cell cell, const Tensor& x, const Tensor& hidden, const Tensor& cells,
                        const std::vector<RnnWeights>& weights, const RnnOptions& o) {
  if (!(context().modes & kAutocastMode)) return run(cell, x, hidden, cells, weights, o);
  auto low = [](const Tensor& t) { return amp::input_for(AutocastPolicy::low_precision, t); };
  std::vector<RnnWeights> all;
  for (const RnnWeights& w : weights) all.push_back({low(w.w_ih), low(w.w_hh), low(w.b_ih), low(w.b_hh), low(w.w_hr)});
  Tensor low_x = low(x), low_hidden = low(hidden), low_cells = low(cells);
  ModeGuard off(0, kAutocastMode);  // what is inside is computed as for any inputs of this dtype
  return run(cell, low_x, low_hidden, low_cells, all, o);
}

LstmResult run_named(Cell cell, const Tensor& x, const Tensor& hidden, const Tensor& cells,
                     const std::vector<RnnWeights>& weights, const RnnOptions& o) {
  return named(name_of(cell), [&] { return run_autocast(cell, x, hidden, cells, weights, o); });
}

}  // namespace

RnnResult rnn(const Tensor& x, const Tensor& hidden, const std::vector<RnnWeights>& weights, Nonlinearity nonlinearity,
              const RnnOptions& options) {
  Cell cell = nonlinearity == Nonlinearity::tanh ? Cell::tanh : Cell::relu;
  LstmResult r = run_named(cell, x, hidden, {}, weights, options);
  return {r.output, r.hidden};
}

RnnResult gru(const Tensor& x, const Tensor& hidden, const std::vector<RnnWeights>& weights,
              const RnnOptions& options) {
  LstmResult r = run_named(Cell::gru, x, hidden, {}, weights, options);
  return {r.output, r.hidden};
}

LstmResult lstm(const Tensor& x, const LstmState& state, const std::vector<RnnWeights>& weights,
                const RnnOptions& options) {
  check<ValueError>(state.hidden.defined() == state.cell.defined(), "lstm",
                    "an initial state has both hidden and cell, or neither: {} is undefined",
                    state.cell.defined() ? "hidden" : "cell");
  return run_named(Cell::lstm, x, state.hidden, state.cell, weights, options);
}

}  // namespace tutti
