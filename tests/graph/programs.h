// Random small programs with mutation, views and gradients, and the comparison of compiled with eager that they are
// for.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "tests/support/compare.h"
#include "tests/support/held.h"
#include "tutti/autograd.h"
#include "tutti/compile.h"
#include "tutti/ops.h"

namespace tutti::test {

/// A program is a seed: the same steps whenever it runs.
class Program {
 public:
  explicit Program(uint64_t seed) : seed_(seed) {}

  TensorList run(const TensorList& arguments) const {
    std::mt19937_64 random(seed_);
    auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
    TensorList values = arguments;
    size_t steps = 3 + pick(10);
    for (size_t i = 0; i < steps; ++i) {
      const Tensor a = values[pick(values.size())], b = values[pick(values.size())];
      step(values, a, b, pick(18), pick);
    }
    TensorList results;
    size_t count = 1 + pick(3);
    for (size_t i = 0; i < count; ++i) results.push_back(values[pick(values.size())]);
    results.push_back(values.back() * 1);
    return results;
  }

 private:
  template <class Pick>
  static void step(TensorList& values, Tensor a, const Tensor& b, size_t what, Pick& pick) {
    bool same = a.sizes() == b.sizes();
    int64_t last = a.dim() - 1;
    switch (what) {
      case 0:
        return values.push_back(same ? a * b : a * 2);
      case 1:
        return values.push_back(same ? a + b : a - 1);
      case 2:
        return values.push_back(sin(a));
      case 3:
        return values.push_back(tanh(a));
      case 4:
        return values.push_back(a.dim() > 0 ? a.sum({0}, true).expand(a.sizes()) : a);
      case 5:
        if (a.dim() == 2) return values.push_back(a.t());
        return;
      case 6:
        if (a.dim() > 0 && a.size(0) > 1) values.push_back(a.narrow(0, 1, a.size(0) - 1));
        return;
      case 7:
        if (a.dim() > 0 && a.size(last) > 0) values.push_back(a.select(last, 0));
        return;
      case 8:
        return values.push_back(a.clone());
      case 9:
        return write(values, a, [&](Tensor& t) { t.mul_(0.5); });
      case 10:
        return write(values, a, [&](Tensor& t) { same && !t.shares_storage(b) ? t.add_(b) : t.add_(1); });
      case 11:
        return write(values, a, [&](Tensor& t) { t.sin_(); });
      case 12:
        return write(values, a, [&](Tensor& t) {
          int64_t end = t.dim() > 0 ? static_cast<int64_t>(pick(2)) * (t.size(0) - 1) : 0;
          if (t.dim() > 0) t[end].fill_(0.25);
        });
      case 13:
        return write(values, a, [&](Tensor& t) { t.copy_(same ? b * 2 : t * 2); });
      case 14:
        return values.push_back(a.detach() * 3);
      case 15:
        if (a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0)) values.push_back(matmul(a, b) * 0.1);
        return;
      case 16: {
        Tensor made = zeros(a.sizes(), {.dtype = a.dtype()});
        made.add_(a);
        return values.push_back(made);
      }
      default:
        return values.push_back(exp(a * 0.1) + exp(a * 0.1));
    }
  }
  // Writing in place fails on leaves and expanded views, in both worlds alike: then the program does something else.
  template <class F>
  static void write(TensorList& values, Tensor& t, F f) {
    try {
      f(t);
    } catch (const Error&) {
      values.push_back(t + 1);
    }
  }

  uint64_t seed_;
};

/// What a run leaves behind, or the error it ended with.
struct Outcome {
  TensorList tensors;
  std::string error;
};

template <class F>
Outcome run_program(const F& f, uint64_t seed, bool gradients, int64_t rows) {
  Outcome outcome;
  std::mt19937_64 random(seed);
  auto fill = [&](const Shape& sizes) {
    Tensor t = empty(sizes, {.dtype = DType::f64});
    for (int64_t i = 0; i < t.numel(); ++i) t.data<double>()[i] = static_cast<double>(random() % 2001) / 1000.0 - 1;
    return t;
  };
  TensorList leaves{fill({rows, 3}), fill({rows, 3}), fill({3})}, arguments;
  for (Tensor& t : leaves) {
    if (gradients) t.requires_grad_();
    arguments.push_back(t * 1);  // no leaves, so that programs may write them
  }
  arguments.push_back(fill({3, 3}));
  try {
    TensorList results = f(arguments);
    for (const Tensor& t : results) outcome.tensors.push_back(t.detach().clone());
    for (const Tensor& t : arguments) outcome.tensors.push_back(t.detach().clone());
    if (gradients) {
      Tensor loss;
      for (const TensorList* list : {&results, &arguments})
        for (const Tensor& t : *list)
          if (t.requires_grad()) loss = loss.defined() ? loss + (t * t).sum() : (t * t).sum();
      if (loss.defined()) loss.backward();
      for (const Tensor& t : leaves) outcome.tensors.push_back(t.grad());
    }
  } catch (const Error& e) {
    outcome.error = typeid(e).name();
  }
  return outcome;
}

/// Runs a program in both worlds, with other values each time, on as many rows as the list says. How many of these
/// numbers of rows were not traced.
inline int64_t compare_program(uint64_t seed, const std::vector<int64_t>& rows = {3, 3, 3}) {
  // An argument that is written after an operator has saved it is held by its own history: docs/compile.md.
  [[maybe_unused]] Held held;
  SCOPED_TRACE("program " + std::to_string(seed));
  Program program(seed);
  auto f = [program](const TensorList& xs) { return program.run(xs); };
  bool gradients = seed % 3 != 0;
  auto compiled = compile(f, {.dynamic_batch = rows.front() != rows.back()});
  auto compare = [&](uint64_t turn, const Outcome& got, const Outcome& wanted) {
    EXPECT_EQ(got.error.empty(), wanted.error.empty()) << got.error << " against " << wanted.error;
    if (!got.error.empty() || !wanted.error.empty()) return;
    ASSERT_EQ(got.tensors.size(), wanted.tensors.size());
    for (size_t i = 0; i < got.tensors.size(); ++i) {
      ASSERT_EQ(got.tensors[i].defined(), wanted.tensors[i].defined()) << "tensor " << i << " in turn " << turn;
      if (!got.tensors[i].defined()) continue;
      ASSERT_TRUE(identical(got.tensors[i], wanted.tensors[i])) << "tensor " << i << " in turn " << turn << "\n"
                                                                << compiled.print() << compiled.explain();
    }
  };
  for (uint64_t turn = 0; turn < rows.size() && !testing::Test::HasFailure(); ++turn) {
    Outcome wanted = run_program(f, seed * 31 + turn, gradients, rows[turn]);
    compare(turn, run_program(compiled, seed * 31 + turn, gradients, rows[turn]), wanted);
    if (!wanted.error.empty()) break;
  }
  return compiled.stats().fitted;
}

}  // namespace tutti::test
