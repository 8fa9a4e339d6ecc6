// What the rows of recurrent layers (tests/ops/table) leave: fused kernels against public operators, lengths, threads,
// errors.
#include "tutti/ops/rnn.h"

#include <cmath>

#include "ops/rnn/sequence.h"
#include "tests/ops/numbers.h"
#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tutti/autograd.h"
#include "tutti/compile.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

using recurrent::Cell;
using testing::HasSubstr;

constexpr std::pair<const char*, Cell> kCells[] = {
    {"tanh", Cell::tanh}, {"relu", Cell::relu}, {"gru", Cell::gru}, {"lstm", Cell::lstm}};

TensorList run_cell(Cell cell, const Tensor& x, const Tensor& h, const Tensor& c, const std::vector<RnnWeights>& w,
                    const RnnOptions& o = {}) {
  if (cell == Cell::lstm) {
    LstmResult r = lstm(x, {h, c}, w, o);
    return {r.output, r.hidden, r.cell};
  }
  RnnResult r = cell == Cell::gru ? gru(x, h, w, o)
                                  : rnn(x, h, w, cell == Cell::tanh ? Nonlinearity::tanh : Nonlinearity::relu, o);
  return {r.output, r.hidden};
}

struct RnnCase {
  Tensor x, h, c;
  RnnWeights w;
  TensorList all() const { return {x, h, c, w.w_ih, w.w_hh, w.b_ih, w.b_hh}; }
};
RnnCase make_case(Cell cell, int64_t steps, int64_t batch, int64_t inputs, int64_t units, DType dtype = f64,
                  bool bias = true) {
  int64_t rows = recurrent::gates_of(cell) * units;
  double size = 1 / std::sqrt(static_cast<double>(units));
  RnnCase k{scattered({steps, batch, inputs}, dtype, 1),
            scattered({batch, units}, dtype, 2),
            cell == Cell::lstm ? scattered({batch, units}, dtype, 3) : Tensor(),
            {scattered({rows, inputs}, dtype, 4, -size, size), scattered({rows, units}, dtype, 5, -size, size)}};
  if (bias) {
    k.w.b_ih = scattered({rows}, dtype, 6);
    k.w.b_hh = scattered({rows}, dtype, 7);
  }
  for (Tensor t : k.all())
    if (t.defined()) t.requires_grad_();
  return k;
}

// Gradients of Σ weights·states by everything.
TensorList gradients_of(const recurrent::States& s, const RnnCase& k) {
  TensorList roots{s.hidden}, wanted;
  if (s.cell.defined()) roots.push_back(s.cell);
  TensorList weights;
  for (const Tensor& r : roots) weights.push_back(fixed_weights(r));
  for (const Tensor& t : k.all())
    if (t.defined()) wanted.push_back(t);
  return grad(roots, wanted, {.allow_unused = true}, weights);
}

TEST(Rnn, FusedAgreesWithComposed) {
  struct {
    int64_t steps, batch, inputs, units;
  } sizes[] = {{3, 13, 5, 33}, {2, 1, 4, 16}, {5, 25, 7, 70}, {1, 2, 3, 1}, {4, 12, 40, 64}};
  for (auto [label, cell] : kCells)
    for (auto [steps, batch, inputs, units] : sizes)
      for (bool with_lengths : {false, true}) {
        SCOPED_TRACE(testing::Message() << label << " " << steps << "x" << batch << "x" << inputs << " to " << units);
        RnnCase k = make_case(cell, steps, batch, inputs, units, f64, units != 70);
        Tensor lengths = with_lengths ? arange(batch) % (steps + 1) : Tensor();
        recurrent::Layer layer{cell, k.h, k.c, k.w, lengths};
        auto a = recurrent::run_sequence(k.x, layer), b = recurrent::compose_sequence(k.x, layer);
        EXPECT_TRUE(close(a.hidden, b.hidden, 1e-13));
        if (cell == Cell::lstm) {
          EXPECT_TRUE(close(a.cell, b.cell, 1e-13));
        }
        TensorList g = gradients_of(a, k), h = gradients_of(b, k);
        for (size_t i = 0; i < g.size(); ++i) EXPECT_TRUE(close(g[i], h[i], 1e-12)) << "gradient " << i;
      }
}

// The kernels of f32 at sizes that layers have, against f64 of the same numbers.
TEST(Rnn, FusedInF32AgreesWithF64) {
  for (auto [label, cell] : kCells)
    for (auto [steps, batch, inputs, units] : {std::array<int64_t, 4>{20, 12, 64, 256}, {7, 33, 100, 96}}) {
      SCOPED_TRACE(testing::Message() << label << " " << steps << "x" << batch << "x" << inputs << " to " << units);
      RnnCase k = make_case(cell, steps, batch, inputs, units, f32), wide = k;
      auto widen = [](Tensor& t) {
        if (t.defined()) t = t.detach().to(f64).requires_grad_();
      };
      for (Tensor* t : {&wide.x, &wide.h, &wide.c, &wide.w.w_ih, &wide.w.w_hh, &wide.w.b_ih, &wide.w.b_hh}) widen(*t);
      auto a = recurrent::run_sequence(k.x, {cell, k.h, k.c, k.w, {}});
      auto b = recurrent::compose_sequence(wide.x, {cell, wide.h, wide.c, wide.w, {}});
      EXPECT_TRUE(close(a.hidden, b.hidden, 1e-5));
      TensorList g = gradients_of(a, k), h = gradients_of(b, wide);
      for (size_t i = 0; i < g.size(); ++i) EXPECT_TRUE(close(g[i], h[i], 2e-5)) << "gradient " << i;
    }
}

TEST(Rnn, WhatComesAfterTheLengthDoesNotMatter) {
  for (auto [label, cell] : kCells) {
    SCOPED_TRACE(label);
    auto result = [&](double rest) {
      RnnCase k = make_case(cell, 4, 2, 3, 5);
      Tensor x = k.x.detach().clone();
      x.narrow(0, 2, 2).select(1, 0).fill_(rest);
      std::vector<RnnWeights> two{k.w, k.w};
      TensorList out = run_cell(cell, x, {}, {}, two, {.bidirectional = true, .lengths = tensor({2, 4})});
      EXPECT_EQ(values(out[0].narrow(0, 2, 2).select(1, 0)), Doubles(20, 0));
      for (Tensor& g : grad({out[0]}, {k.w.w_ih, k.w.w_hh}, {}, {fixed_weights(out[0])})) out.push_back(g);
      return out;
    };
    TensorList a = result(0), b = result(NAN);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(identical(a[i], b[i])) << i;
  }
}

TEST(Rnn, LooksAtTheLengthsOfEveryCompiledRun) {
  RnnCase k = make_case(Cell::gru, 4, 2, 3, 5);
  auto f =
      compile([&](const Tensor& x, const Tensor& lengths) { return gru(x, {}, {k.w}, {.lengths = lengths}).output; });
  Tensor x = k.x.detach();
  for (Tensor lengths : {tensor({2, 4}), tensor({3, 1}), tensor({0, 4})})
    EXPECT_TRUE(identical(f(x, lengths), gru(x, {}, {k.w}, {.lengths = lengths}).output));
  EXPECT_THAT(message_of<ValueError>([&] { f(x, tensor({1, 5})); }), HasSubstr("length 5 of sequence 1"));
  EXPECT_LE(f.stats().traces, 2);  // a second time, since it captures the weights
}

TEST(Rnn, GivesSomeInputsNoGradient) {
  for (auto [label, cell] : kCells) {
    RnnCase k = make_case(cell, 3, 2, 4, 3);
    Tensor whole = grad({run_cell(cell, k.x, {}, {}, {k.w})[0].sum()}, {k.w.w_hh})[0];
    for (Tensor t : k.all())
      if (t.defined()) t.requires_grad_(false);
    k.w.w_hh.requires_grad_();
    Tensor y = run_cell(cell, k.x, {}, {}, {k.w})[0];
    y.sum().backward();
    EXPECT_TRUE(identical(k.w.w_hh.grad(), whole)) << label;
    EXPECT_FALSE(k.w.b_ih.grad().defined());
    // Both biases want one: gradients must not share memory.
    k.w.b_ih.requires_grad_();
    k.w.b_hh.requires_grad_();
    run_cell(cell, k.x, {}, {}, {k.w})[0].sum().backward();
    EXPECT_FALSE(k.w.b_ih.grad().shares_storage(k.w.b_hh.grad()));
  }
}

TEST(Rnn, TakesAnyLayoutAndDtype) {
  for (auto [label, cell] : kCells) {
    SCOPED_TRACE(label);
    RnnCase k = make_case(cell, 4, 3, 5, 6, f32);
    auto across = [](const Tensor& t) { return t.t().contiguous().t(); };
    RnnWeights odd{across(k.w.w_ih), across(k.w.w_hh), k.w.b_ih, k.w.b_hh};
    Tensor y = run_cell(cell, k.x, {}, {}, {k.w})[0];
    EXPECT_TRUE(identical(run_cell(cell, transpose(k.x, 0, 1), {}, {}, {odd}, {.batch_first = true})[0].contiguous(),
                          transpose(y, 0, 1).contiguous()));
    RnnWeights half{k.w.w_ih.to(bf16), k.w.w_hh.to(bf16), k.w.b_ih.to(bf16), k.w.b_hh.to(bf16)};
    Tensor small = run_cell(cell, k.x.to(bf16), {}, {}, {half})[0];
    EXPECT_EQ(small.dtype(), bf16);
    EXPECT_TRUE(close(small, y, 0.1));
    auto meta = [](const Tensor& t) { return t.to("meta"); };
    RnnWeights shapes{meta(k.w.w_ih), meta(k.w.w_hh), meta(k.w.b_ih), meta(k.w.b_hh)};
    EXPECT_EQ(run_cell(cell, meta(k.x), {}, {}, {shapes})[0].sizes(), (Shape{4, 3, 6}));
    RnnCase narrow = make_case(cell, 2, 2, 0, 3, f32);
    Tensor lone = run_cell(cell, narrow.x, {}, {}, {narrow.w})[0];
    lone.sum().backward();
    EXPECT_EQ(narrow.x.grad().sizes(), (Shape{2, 2, 0}));
    for (Shape sizes : {Shape{0, 3, 5}, Shape{4, 0, 5}}) {
      Tensor none = zeros(sizes).requires_grad_();
      TensorList out = run_cell(cell, none, {}, {}, {k.w});
      EXPECT_EQ(out[0].sizes(), (Shape{sizes[0], sizes[1], 6}));
      TensorList g = grad({out[0].sum() + out[1].sum()}, {none, k.w.w_hh, k.w.b_hh}, {.allow_unused = true});
      if (g[1].defined()) {
        EXPECT_EQ(values(g[1]), Doubles(static_cast<size_t>(k.w.w_hh.numel()), 0));
      }
    }
  }
}

TEST(Rnn, DropsBetweenLayersWhenTraining) {
  RnnCase k = make_case(Cell::gru, 5, 3, 4, 4);
  std::vector<RnnWeights> two{k.w, k.w};
  auto run_two = [&](bool training) {
    manual_seed(1);
    return run_cell(Cell::gru, k.x, {}, {}, two, {.layers = 2, .dropout = 0.5, .training = training})[0];
  };
  EXPECT_TRUE(identical(run_two(false), run_cell(Cell::gru, k.x, {}, {}, two, {.layers = 2})[0]));
  EXPECT_FALSE(allclose(run_two(true), run_two(false)));
  EXPECT_TRUE(identical(run_two(true), run_two(true)));
}

TEST(Rnn, HasTheSameBitsOnAnyThreads) {
  for (auto [label, cell] : kCells)
    for (int64_t batch : {12, 3}) {  // shared by rows, and by units
      auto result = [&](int threads) {
        ThreadsGuard guard(threads);
        RnnCase k = make_case(cell, 3, batch, 128, 256, f32);
        recurrent::States s = recurrent::run_sequence(k.x, {cell, k.h, k.c, k.w, {}});
        TensorList all = gradients_of(s, k);
        all.push_back(s.hidden.detach());
        return all;
      };
      TensorList one = result(1), four = result(4);
      for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(identical(one[i], four[i])) << label << " " << i;
    }
}

TEST(Rnn, TakesNarrowInputUnderAutocast) {
  RnnCase k = make_case(Cell::lstm, 3, 2, 4, 5, f32);
  Tensor x = k.x.detach().to(bf16);
  ModeGuard on(kAutocastMode, 0);
  Tensor y = lstm(x, {}, {k.w}).output;
  EXPECT_EQ(y.dtype(), bf16);
  EXPECT_TRUE(identical(y, lstm(x.to(f32), {}, {k.w}).output));
}

TEST(Rnn, RefusesWhatItCannotTake) {
  RnnCase k = make_case(Cell::lstm, 4, 2, 3, 5);
  auto text = [&](auto error, const Tensor& x, const LstmState& s, std::vector<RnnWeights> w, RnnOptions o = {}) {
    return message_of<decltype(error)>([&] { lstm(x, s, w, o); });
  };
  RnnWeights bad = k.w;
  EXPECT_THAT(text(ValueError(""), k.x, {}, {k.w}, {.layers = 2}), HasSubstr("need 2 weights, not 1"));
  EXPECT_THAT(text(ShapeError(""), zeros({4, 2, 7}, {f64}), {}, {k.w}), HasSubstr("w_ih"));
  EXPECT_THAT(text(ShapeError(""), zeros({4}, {f64}), {}, {k.w}), HasSubstr("[T, B, I]"));
  EXPECT_THAT(text(ShapeError(""), k.x, {zeros({1, 2, 4}, {f64}), zeros({1, 2, 5}, {f64})}, {k.w}),
              HasSubstr("[1, 2, 5]"));
  EXPECT_THAT(text(ValueError(""), k.x, {{}, zeros({1, 2, 5}, {f64})}, {k.w}), HasSubstr("hidden is undefined"));
  EXPECT_THAT(text(DTypeError(""), zeros({4, 2, 3}), {}, {k.w}), HasSubstr("dtype"));
  EXPECT_THAT(text(ValueError(""), k.x, {}, {k.w}, {.lengths = tensor({1, 5})}), HasSubstr("length 5 of sequence 1"));
  EXPECT_THAT(text(ShapeError(""), k.x, {}, {k.w}, {.lengths = tensor({1})}), HasSubstr("one for each sequence"));
  bad.w_hh = zeros({20, 4}, {f64});
  EXPECT_THAT(text(ShapeError(""), k.x, {}, {bad}), HasSubstr("w_hh"));
  bad = k.w;
  bad.b_hh = {};
  EXPECT_THAT(text(ValueError(""), k.x, {}, {bad}), HasSubstr("both biases or none"));
  EXPECT_THAT(message_of<ValueError>([&] {
                RnnWeights w{zeros({15, 3}, {f64}), zeros({15, 5}, {f64}), {}, {}, zeros({2, 5}, {f64})};
                gru(k.x, {}, {w});
              }),
              HasSubstr("projection"));
}

}  // namespace
}  // namespace tutti::test
