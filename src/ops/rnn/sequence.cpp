// The fused operator of one recurrent layer. The part of the gates that comes from x is one large product for all
// steps, and so are the gradients of x and of the weights; what has to go step by step is the product with the state
// before and the cell itself. Threads share the batch, each going through all steps on its own; or, where the batch is
// small, each step by pieces of units. No element's sum depends on how that is cut.
#include "ops/rnn/sequence.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/again.h"
#include "ops/matmul/gemm.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti::recurrent {
namespace {

// Inputs of the operator, and of its gradient the same after the gradients of its outputs and these.
enum Input : size_t { kX, kH, kC, kWih, kWhh, kBih, kBhh, kLengths, kInputs };
enum Output : size_t { kHidden, kGates, kCells, kOutputs };

struct Sequence {
  Cell cell;
  TUTTI_FIELDS(cell)
};
struct SequenceGradient {
  Cell cell;
  int64_t needs;  // bit i: the gradient of input i is wanted
  TUTTI_FIELDS(cell, needs)
};

struct Sizes {
  int64_t steps, batch, inputs, units, gates, kept;
  Sizes(Cell cell, const Tensor& x, const Tensor& w_hh)
      : steps(x.size(0)),
        batch(x.size(1)),
        inputs(x.size(2)),
        units(w_hh.size(1)),
        gates(gates_of(cell)),
        kept(kept_of(cell)) {}
};

// Contiguous, without autograd.
Tensor plain(const Tensor& x) {
  if (!x.defined()) return x;
  NoGrad guard;
  return x.detach().contiguous();
}

// ---- Weights in the order in which steps read them

template <class T>
class Slivers {
 public:
  static constexpr int64_t piece = piece_units(dtype_of<T>);

  /// `count` slivers a piece, each of `depth` rows: number(sliver, row, unit) is what stands there.
  Slivers(int64_t units, int64_t count, int64_t depth)
      : count_(count), depth_(depth), pieces_((units + piece - 1) / piece) {
    data_ = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(pieces_ * count * depth * piece));
  }
  int64_t pieces() const { return pieces_; }
  T* at(int64_t p, int64_t sliver) const { return data_.get() + (p * count_ + sliver) * depth_ * piece; }

 private:
  int64_t count_, depth_, pieces_;
  std::unique_ptr<T[]> data_;
};

// For forward steps: sliver g of a piece holds, in row k, what unit k of the state before adds to gate g of the units.
template <class T>
Slivers<T> forward_slivers(const T* w_hh, const Sizes& s) {
  constexpr int64_t piece = Slivers<T>::piece;
  Slivers<T> slivers(s.units, s.gates, s.units);
  parallel_for(slivers.pieces(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      for (int64_t g = 0; g < s.gates; ++g) {
        T* to = slivers.at(p, g);
        for (int64_t u = 0; u < piece; ++u) {
          int64_t unit = p * piece + u;
          const T* from = w_hh + (g * s.units + unit) * s.units;
          for (int64_t k = 0; k < s.units; ++k) to[k * piece + u] = unit < s.units ? from[k] : T(0);
        }
      }
  });
  return slivers;
}

// For backward steps: one sliver a piece, the rows all gates of all units.
template <class T>
Slivers<T> backward_slivers(const T* w_hh, const Sizes& s) {
  constexpr int64_t piece = Slivers<T>::piece;
  int64_t depth = s.gates * s.units;
  Slivers<T> slivers(s.units, 1, depth);
  parallel_for(slivers.pieces(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      int64_t count = std::min(piece, s.units - p * piece);
      for (int64_t k = 0; k < depth; ++k) {
        T* to = slivers.at(p, 0) + k * piece;
        std::copy_n(w_hh + k * s.units + p * piece, count, to);
        std::fill(to + count, to + piece, T(0));
      }
    }
  });
  return slivers;
}

// Rows of the batch.
struct Rows {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// Calls step(t, piece, rows) for t = first, first + by, ... before `end`, all pieces and all rows; steps in order.
template <class Step>
void for_steps(const Sizes& s, int64_t first, int64_t end, int64_t by, int64_t pieces, int64_t piece, Step&& step) {
  // With fewer rows, reading the weights takes longer than computing with them.
  constexpr int64_t least_rows = 4;
  double work = static_cast<double>(s.batch) * static_cast<double>(s.gates * s.units) * static_cast<double>(s.units);
  int64_t groups = std::min<int64_t>(thread_share(), s.batch / least_rows);
  if (groups > 1 && work * static_cast<double>(s.steps) > 0x1p20) {
    int64_t share = (s.batch + groups - 1) / groups;
    parallel_for(s.batch, share, [&](int64_t begin, int64_t stop) {
      for (int64_t t = first; t != end; t += by)
        for (int64_t p = 0; p < pieces; ++p) step(t, p, Rows{begin, stop});
    });
    return;
  }
  // A step's whole work may not be worth two threads.
  double part = work * static_cast<double>(piece) / static_cast<double>(s.units);
  auto grain = static_cast<int64_t>(std::clamp(0x1p18 / std::max(part, 1.0), 1.0, 1e6));
  for (int64_t t = first; t != end; t += by)
    parallel_for(pieces, grain, [&](int64_t begin, int64_t stop) {
      for (int64_t p = begin; p < stop; ++p) step(t, p, Rows{0, s.batch});
    });
}

// Rows of a step lie far apart, and only a piece of each is used: the machine does not foresee that. So they are read
// before the step's product, which takes long enough for them to come; that makes a whole pass 1 to 3 % faster.
// (Prefetches do not: they are dropped where a row's page is not at hand.)
template <class T>
void fetch_rows(const T* first, int64_t rows, int64_t stride, int64_t count) {
  if (!first) return;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < count; i += static_cast<int64_t>(64 / sizeof(T)))
      static_cast<void>(*static_cast<const volatile T*>(first + r * stride + i));
}

// ---- Forward

// Biases of x's part: both where the sums are one, and of a gru's n only x's.
template <class T>
std::vector<T> bias_of(Cell cell, const Tensor& b_ih, const Tensor& b_hh, int64_t units) {
  std::vector<T> bias = b_ih.to_vector<T>(), other = b_hh.to_vector<T>();
  size_t shared = cell == Cell::gru ? static_cast<size_t>(2 * units) : bias.size();
  for (size_t i = 0; i < shared; ++i) bias[i] += other[i];
  return bias;
}

template <class T>
struct Forward {
  Cell cell;
  Sizes s;
  Tensor w_hh, b_hh, lengths;
  T *hidden, *gates,
      *cells;        // [T + 1, B, H]; [T, B, kept·H], or the hidden states where they take the sums; [T + 1, B, H]
  int64_t gate_row;  // from row to row of the gates

  void from_x(const Tensor& x, const Tensor& w_ih, const Tensor& b_ih) {
    std::vector<T> bias;
    if (b_ih.defined()) bias = bias_of<T>(cell, b_ih, b_hh, s.units);
    if (s.inputs == 0) {
      bias.resize(static_cast<size_t>(s.gates * s.units));
      for (int64_t r = 0; r < s.steps * s.batch; ++r) std::copy(bias.begin(), bias.end(), gates + r * gate_row);
      return;
    }
    products::gemm({.dtype = dtype_of<T>,
                    .rows = s.steps * s.batch,
                    .columns = s.gates * s.units,
                    .depth = s.inputs,
                    .a = {x.raw_data(), s.inputs, 1},
                    .b = {w_ih.raw_data(), 1, s.inputs},
                    .c = gates,
                    .c_row = gate_row,
                    .d = bias.empty() ? nullptr : bias.data(),
                    .d_row = 0,
                    .beta = bias.empty() ? 0.0 : 1.0});
  }

  void run() {
    Slivers<T> slivers = forward_slivers(w_hh.data<T>(), s);
    for_steps(s, 0, s.steps, 1, slivers.pieces(), Slivers<T>::piece,
              [&](int64_t t, int64_t p, Rows rows) { step(t, p, rows, slivers); });
  }

  void step(int64_t t, int64_t p, Rows rows, const Slivers<T>& slivers) const {
    int64_t first = p * Slivers<T>::piece, count = std::min(Slivers<T>::piece, s.units - first);
    const T* before = hidden + (t * s.batch + rows.begin) * s.units;
    T* sums = gates + (t * s.batch + rows.begin) * gate_row + first;
    for (int64_t g = 0; g < s.gates; ++g) fetch_rows(sums + g * s.units, rows.count(), gate_row, count);
    for (int64_t g = 0; g < s.gates; ++g) {
      bool apart = cell == Cell::gru && g == 2;  // the recurrent part of n stays a number of its own
      const T* bias = apart && b_hh.defined() ? b_hh.data<T>() + 2 * s.units + first : nullptr;
      multiply_panel_pointer()({.dtype = dtype_of<T>,
                                .rows = rows.count(),
                                .columns = count,
                                .depth = s.units,
                                .a = before,
                                .a_row = s.units,
                                .sliver = slivers.at(p, g),
                                .c = sums + (apart ? 3 : g) * s.units,
                                .c_row = gate_row,
                                .bias = bias,
                                .adds = !apart});
    }
    const int64_t* length = lengths.defined() ? lengths.data<int64_t>() : nullptr;
    for (int64_t b = rows.begin; b < rows.end; ++b) {
      int64_t old = (t * s.batch + b) * s.units + first, now = old + s.batch * s.units;
      if (length && t >= length[b]) {
        std::copy_n(hidden + old, count, hidden + now);
        if (cells) std::copy_n(cells + old, count, cells + now);
        continue;
      }
      cell_forward_pointer()({.dtype = dtype_of<T>,
                              .cell = cell,
                              .count = count,
                              .gate = s.units,
                              .gates = sums + (b - rows.begin) * gate_row,
                              .h_before = hidden + old,
                              .h = hidden + now,
                              .c_before = cells ? cells + old : nullptr,
                              .c = cells ? cells + now : nullptr});
    }
  }
};

template <class T>
void forward(const Call& c) {
  Cell cell = c.as<Sequence>().cell;
  Tensor x = plain(c.input(kX)), w_ih = plain(c.input(kWih)), w_hh = plain(c.input(kWhh));
  Sizes s(cell, x, w_hh);
  T* hidden = c.output(kHidden).data<T>();
  int64_t state = s.batch * s.units;
  if (state == 0) return;
  auto begin = [&](T* to, const Tensor& from) { std::copy_n(plain(from).data<T>(), state, to); };
  begin(hidden, c.input(kH));
  Forward<T> f{.cell = cell,
               .s = s,
               .w_hh = w_hh,
               .b_hh = plain(c.input(kBhh)),
               .lengths = plain(c.input(kLengths)),
               .hidden = hidden,
               .gates = s.kept ? c.output(kGates).data<T>() : hidden + state,
               .cells = cell == Cell::lstm ? c.output(kCells).data<T>() : nullptr,
               .gate_row = std::max<int64_t>(1, s.kept) * s.units};
  if (f.cells) begin(f.cells, c.input(kC));
  f.from_x(x, w_ih, plain(c.input(kBih)));
  f.run();
}

// ---- Backward

template <class T>
struct Backward {
  Cell cell;
  Sizes s;
  Tensor w_hh, lengths;
  const T *hidden, *gates, *cells;   // what forward left
  const T *hidden_grad, *cell_grad;  // null: none
  T *h_carry, *c_carry;              // [B, H]
  T *x_gates, *h_gates;              // [T, B, gates·H], the same but for a gru

  void run() {
    Slivers<T> slivers = backward_slivers(w_hh.data<T>(), s);
    // The last turn is the product that takes the gradient to the state before the first step.
    for_steps(s, s.steps - 1, -2, -1, slivers.pieces(), Slivers<T>::piece,
              [&](int64_t t, int64_t p, Rows rows) { step(t, p, rows, slivers); });
  }

  void step(int64_t t, int64_t p, Rows rows, const Slivers<T>& slivers) const {
    int64_t first = p * Slivers<T>::piece, count = std::min(Slivers<T>::piece, s.units - first);
    int64_t row = s.gates * s.units;
    if (t >= 0) fetch(t, first, count, rows);
    if (t + 1 < s.steps)
      multiply_panel_pointer()({.dtype = dtype_of<T>,
                                .rows = rows.count(),
                                .columns = count,
                                .depth = row,
                                .a = h_gates + ((t + 1) * s.batch + rows.begin) * row,
                                .a_row = row,
                                .sliver = slivers.at(p, 0),
                                .c = h_carry + rows.begin * s.units + first,
                                .c_row = s.units,
                                .bias = nullptr,
                                .adds = true});
    for (int64_t b = rows.begin; b < rows.end; ++b) t < 0 ? add_first(b, first, count) : cell_step(t, b, first, count);
  }

  void fetch(int64_t t, int64_t first, int64_t count, Rows rows) const {
    int64_t kept = s.kept * s.units, from = t * s.batch + rows.begin;
    int64_t before = from * s.units + first, now = before + s.batch * s.units, n = rows.count();
    for (int64_t g = 0; g < s.kept; ++g) fetch_rows(gates + from * kept + g * s.units + first, n, kept, count);
    fetch_rows(cells ? cells + before : hidden + before, n, s.units, count);
    fetch_rows(hidden_grad ? hidden_grad + now : nullptr, n, s.units, count);
  }

  // What arrives from outside for the states before the first step.
  void add_first(int64_t b, int64_t first, int64_t count) const {
    int64_t at = b * s.units + first;
    for (int64_t u = at; u < at + count; ++u) {
      if (hidden_grad) h_carry[u] += hidden_grad[u];
      if (cell_grad) c_carry[u] += cell_grad[u];
    }
  }

  void cell_step(int64_t t, int64_t b, int64_t first, int64_t count) const {
    int64_t old = (t * s.batch + b) * s.units + first, now = old + s.batch * s.units, carry = b * s.units + first;
    int64_t row = (t * s.batch + b) * s.gates * s.units + first;
    if (lengths.defined() && t >= lengths.data<int64_t>()[b]) {  // the state went through
      for (int64_t g = 0; g < s.gates; ++g) {
        std::fill_n(x_gates + row + g * s.units, count, T(0));
        std::fill_n(h_gates + row + g * s.units, count, T(0));
      }
      for (int64_t u = 0; u < count; ++u) {
        if (hidden_grad) h_carry[carry + u] += hidden_grad[now + u];
        if (cell_grad) c_carry[carry + u] += cell_grad[now + u];
      }
      return;
    }
    cell_backward_pointer()({.dtype = dtype_of<T>,
                             .cell = cell,
                             .count = count,
                             .gate = s.units,
                             .gates = s.kept ? gates + (t * s.batch + b) * s.kept * s.units + first : nullptr,
                             .h_before = hidden + old,
                             .h = hidden + now,
                             .c_before = cells ? cells + old : nullptr,
                             .c = cells ? cells + now : nullptr,
                             .h_grad = hidden_grad ? hidden_grad + now : nullptr,
                             .c_grad = cell_grad ? cell_grad + now : nullptr,
                             .h_carry = h_carry + carry,
                             .c_carry = c_carry ? c_carry + carry : nullptr,
                             .x_gates = x_gates + row,
                             .h_gates = h_gates + row});
  }
};

// gradᵀ @ values for a weight [gates·H, columns], or zeros where there are no steps.
template <class T>
void weight_gradient(const Sizes& s, const T* gate_grads, const T* values, int64_t columns, const Tensor& out) {
  int64_t row = s.gates * s.units;
  if (s.steps * s.batch == 0) {
    std::fill_n(out.data<T>(), row * columns, T(0));
    return;
  }
  products::gemm({.dtype = dtype_of<T>,
                  .rows = row,
                  .columns = columns,
                  .depth = s.steps * s.batch,
                  .a = {gate_grads, 1, row},
                  .b = {values, columns, 1},
                  .c = out.raw_data(),
                  .c_row = columns});
}

// Inputs: gradients of the outputs 0 and 2, the operator's inputs, its outputs. Outputs: gradients of the inputs
// before lengths; those that are not wanted are empty.
template <class T>
void backward(const Call& c) {
  const auto& a = c.as<SequenceGradient>();
  auto input = [&](size_t i) -> const Tensor& { return c.input(2 + i); };
  auto output = [&](size_t i) -> const Tensor& { return c.input(2 + kInputs + i); };
  Tensor x = plain(input(kX)), w_ih = plain(input(kWih)), w_hh = plain(input(kWhh)), hidden = plain(output(kHidden)),
         gates = plain(output(kGates)), cells = plain(output(kCells)), hidden_grad = plain(c.input(0)),
         cell_grad = plain(c.input(1));
  Sizes s(a.cell, x, w_hh);
  int64_t row = s.gates * s.units, count = s.steps * s.batch * row;
  Options like{.dtype = x.dtype(), .device = x.device()};
  Tensor h_carry = zeros({s.batch, s.units}, like),
         c_carry = cells.defined() ? zeros({s.batch, s.units}, like) : Tensor();
  bool gru = a.cell == Cell::gru;
  Tensor x_gates = empty({s.steps, s.batch, row}, like), h_gates = gru ? empty({s.steps, s.batch, row}, like) : x_gates;
  auto data = [](const Tensor& t) { return t.defined() ? t.data<T>() : nullptr; };
  if (s.batch * s.units > 0)
    Backward<T>{.cell = a.cell,
                .s = s,
                .w_hh = w_hh,
                .lengths = plain(input(kLengths)),
                .hidden = data(hidden),
                .gates = data(gates),
                .cells = data(cells),
                .hidden_grad = data(hidden_grad),
                .cell_grad = data(cell_grad),
                .h_carry = data(h_carry),
                .c_carry = data(c_carry),
                .x_gates = data(x_gates),
                .h_gates = data(h_gates)}
        .run();
  auto wanted = [&](size_t i) { return a.needs >> i & 1; };
  NoGrad guard;
  if (wanted(kH)) c.output(kH).copy_(h_carry);
  if (wanted(kC)) c.output(kC).copy_(c_carry);
  if (wanted(kX))
    products::gemm({.dtype = dtype_of<T>,
                    .rows = s.steps * s.batch,
                    .columns = s.inputs,
                    .depth = row,
                    .a = {x_gates.raw_data(), row, 1},
                    .b = {w_ih.raw_data(), s.inputs, 1},
                    .c = c.output(kX).raw_data(),
                    .c_row = s.inputs});
  if (wanted(kWih)) weight_gradient(s, data(x_gates), data(x), s.inputs, c.output(kWih));
  if (wanted(kWhh)) weight_gradient(s, data(h_gates), data(hidden), s.units, c.output(kWhh));
  if (wanted(kBih)) c.output(kBih).copy_(count ? sum(x_gates, {0, 1}) : zeros({row}, like));
  if (wanted(kBhh))
    c.output(kBhh).copy_(wanted(kBih) && !gru ? c.output(kBih) : count ? sum(h_gates, {0, 1}) : zeros({row}, like));
}

// ---- Descriptors

const Operator sequence_gradient_op{
    .name = "rnn_gradient",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<SequenceGradient>();
          const Tensor& x = c.input(2 + kX);
          for (size_t i = 0; i < kLengths; ++i)
            out[i] = {.sizes = a.needs >> i & 1 ? c.input(2 + i).sizes() : Shape(0),
                      .dtype = x.dtype(),
                      .device = x.device()};
        },
    .cpu = [](const Call& c) { c.input(2).dtype() == DType::f64 ? backward<double>(c) : backward<float>(c); },
};

// The fused operator's gradient once more, from public operators.
void gradient_again(GradientCall& c, const TensorList& inputs) {
  Cell cell = c.as<Sequence>().cell;
  Tensor lengths = inputs[kLengths];
  auto f = [&](const TensorList& in) {
    RnnWeights w{in[kWih], in[kWhh], in[kBih], in[kBhh], {}};
    States states = compose_sequence(in[kX], {cell, in[kH], in[kC], w, lengths});
    return TensorList{states.hidden, {}, states.cell};
  };
  TensorList gradients{c.grad(kHidden), {}, cell == Cell::lstm ? c.grad(kCells) : Tensor()};
  TensorList found = differentiate_again(f, inputs, gradients);
  for (size_t i = 0; i < kLengths; ++i) c.set(i, found[i]);
}

void gradient(GradientCall& c) {
  TensorList inputs;
  for (size_t i = 0; i < kInputs; ++i) inputs.push_back(c.input(i));
  if (grad_enabled()) return gradient_again(c, inputs);
  Cell cell = c.as<Sequence>().cell;
  TensorList all{c.grad(kHidden), cell == Cell::lstm ? c.grad(kCells) : Tensor()};
  all.insert(all.end(), inputs.begin(), inputs.end());
  all.push_back(c.output(kHidden));
  all.push_back(kept_of(cell) ? c.output(kGates) : Tensor());
  all.push_back(cell == Cell::lstm ? c.output(kCells) : Tensor());
  std::vector<const Tensor*> pointers;
  for (const Tensor& t : all) pointers.push_back(&t);
  SequenceGradient a{cell, 0};
  for (size_t i = 0; i < kLengths; ++i) a.needs |= int64_t{inputs[i].defined() && c.needs(i)} << i;
  Tensor outputs[kLengths];
  call(sequence_gradient_op, pointers, attributes(a), outputs);
  for (size_t i = 0; i < kLengths; ++i)
    if (a.needs >> i & 1) c.set(i, outputs[i]);
}

void infer(const Call& c, std::span<TensorSpec> out) {
  Cell cell = c.as<Sequence>().cell;
  const Tensor& x = c.input(kX);
  Sizes s(cell, x, c.input(kWhh));
  TensorSpec states{.sizes = {s.steps + 1, s.batch, s.units}, .dtype = x.dtype(), .device = x.device()};
  out[kHidden] = states;
  if (s.kept) out[kGates] = {.sizes = {s.steps, s.batch, s.kept * s.units}, .dtype = x.dtype(), .device = x.device()};
  if (cell == Cell::lstm) out[kCells] = states;
}

void run(const Call& c) { c.input(kX).dtype() == DType::f64 ? forward<double>(c) : forward<float>(c); }

// By the number of outputs, all of which the gradient reads: hidden states; gates; cells.
template <size_t outputs>
const Operator& sequence_op() {
  static const Operator op{
      .name = outputs == 3   ? "lstm"
              : outputs == 2 ? "gru"
                             : "rnn",
      .infer = infer,
      .cpu = run,
      .gradient = gradient,
      .saves_inputs = (1u << kInputs) - 1,
      .saves_outputs = (1u << outputs) - 1,
  };
  return op;
}

}  // namespace

States run_sequence(const Tensor& x, const Layer& layer) {
  const RnnWeights& w = layer.weights;
  if (w.w_hr.defined()) return compose_sequence(x, layer);
  const Tensor* inputs[kInputs] = {&x, &layer.h, &layer.c, &w.w_ih, &w.w_hh, &w.b_ih, &w.b_hh, &layer.lengths};
  Sequence a{layer.cell};
  Tensor outputs[kOutputs];
  size_t count = layer.cell == Cell::lstm ? 3 : layer.cell == Cell::gru ? 2 : 1;
  const Operator& op = count == 3 ? sequence_op<3>() : count == 2 ? sequence_op<2>() : sequence_op<1>();
  call(op, inputs, attributes(a), {outputs, count});
  return {outputs[kHidden], outputs[kCells]};
}

}  // namespace tutti::recurrent
