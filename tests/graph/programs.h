// Random small programs with mutation, views and gradients, and the comparison of compiled with eager that they are
// for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string_view>

#include "tests/support/compare.h"
#include "tests/support/held.h"
#include "tutti/amp.h"
#include "tutti/autograd.h"
#include "tutti/compile.h"
#include "tutti/ops.h"
#include "tutti/ops/conv.h"
#include "tutti/ops/norm.h"
#include "tutti/ops/pool.h"
#include "tutti/random.h"

namespace tutti::test {

/// How many programs to try. What runs graphs through operators runs the same graphs: a fifth of them is enough there.
inline uint64_t some_of(uint64_t programs) {
  const char* backend = std::getenv("TUTTI_BACKEND");
  return backend && std::string_view(backend) == "eager" ? programs / 5 : programs;
}

/// A program is a seed: the same steps whenever it runs.
class Program {
 public:
  explicit Program(uint64_t seed) : seed_(seed) {}

  /// Of images: convolutions, norms and pools, in f32 with channels that go into blocks.
  bool images() const { return seed_ % 8 == 5; }

  TensorList run(const TensorList& arguments) const {
    std::mt19937_64 random(seed_);
    auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
    TensorList values = arguments;
    if (images()) values.resize(2);  // the rest are weights
    size_t steps = 3 + pick(10), kinds = seed_ % 4 == 0 ? kPlain : kPlain + kMore;
    for (size_t i = 0; i < steps; ++i) {
      const Tensor a = values[pick(values.size())], b = values[pick(values.size())];
      size_t what = pick(images() ? kImages : kinds);
      if (images())
        step_images(values, a, b, what, arguments, pick);
      else if (what < kPlain)
        step(values, a, b, what, pick);
      else
        step_more(values, a, b, what - kPlain, pick);
    }
    TensorList results;
    size_t count = 1 + pick(3);
    for (size_t i = 0; i < count; ++i) results.push_back(values[pick(values.size())]);
    results.push_back(values.back() * 1);
    return results;
  }

 private:
  static constexpr size_t kPlain = 18, kMore = 28, kImages = 19;

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
        if (a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.dtype() == b.dtype())
          values.push_back(matmul(a, b) * 0.1);
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

  // What is less simple: chains that passes look for with a write between, views of views that are written, several
  // results, other dtypes, reductions over several dims, hooks, parts that run without gradients or again.
  template <class Pick>
  static void step_more(TensorList& values, Tensor a, const Tensor& b, size_t what, Pick& pick) {
    bool same = a.sizes() == b.sizes(), flat = a.dim() == 2, rows = a.dim() > 0 && a.size(0) > 1;
    switch (what) {
      case 0:
        return values.push_back(relu(a));
      case 1: {  // a value that is written between two relus
        Tensor h = a * 2, before = relu(h);
        h.mul_(-1);
        values.push_back(before);
        return values.push_back(relu(h) * (same ? b : a));
      }
      case 2:
        return values.push_back(relu(relu(a - 0.25)));
      case 3:
        return write(values, a, [&](Tensor& t) { t.relu_(); });
      case 4:  // a view of a view of a view
        return write(values, a, [&](Tensor& t) {
          Tensor part = t.dim() == 2 ? t.t().narrow(1, 0, 1).select(0, t.size(1) - 1) : t;
          part.mul_(3);
          part.add_(0.5);
        });
      case 5:
        return write(values, a, [&](Tensor& t) {
          if (t.dim() > 0) t.narrow(0, 0, 1).copy_(t.narrow(0, t.size(0) - 1, 1) * 0.5);
        });
      case 6:
        return write(values, a, [&](Tensor& t) { masked_fill_(t, (same ? b : t) > 0.5, -0.125); });
      case 7:
        return values.push_back(flat ? a.sum({0, 1}, true) * a : a.sum());
      case 8:
        return values.push_back(flat ? a.mean({1, 0}) + a : a.mean());
      case 9:
        return values.push_back(flat ? amax(a, {0, 1}) - a : a * 1);
      case 10:
        return values.push_back(flat && rows ? var(a, {0}) * a : a * a);
      case 11:
        if (a.dim() > 0) values.push_back(softmax(a, a.dim() - 1));
        return;
      case 12:  // two results, one of which is used twice
        if (a.dim() > 0 && a.size(0) > 0) {
          auto [largest, place] = max(a, 0, true);
          values.push_back(a - largest);
          values.push_back(gather(a, 0, place) * largest);
        }
        return;
      case 13:
        if (rows) {
          TensorList parts = a.split({1, a.size(0) - 1});
          values.push_back(parts[1]);
          values.push_back(cat({parts[1], parts[0]}));
        }
        return;
      case 14:
        return values.push_back(where((same ? b : a) > 0, a, a * 0.125));
      case 15:
        return values.push_back((a.to(f32) * 1.5).sin());
      case 16:
        return values.push_back((a.to(bf16) + 1).to(f64));
      case 17:
        return values.push_back((a * 8).to(i64).to(a.dtype()) * 0.125);
      case 18: {  // hooks that close over others
        Tensor h = a * 1.5;
        Tensor other = b.detach() * 1;
        if (h.requires_grad())
          h.register_hook([other](const Tensor& g) { return g.sizes() == other.sizes() ? g * other : g * 0.5; });
        return values.push_back(h.tanh());
      }
      case 19: {
        NoGrad guard;
        return values.push_back(a * 2 + 1);
      }
      case 20:
        return values.push_back(checkpoint([](const Tensor& t) { return (t * t).sin() * t; }, a));
      case 21: {
        amp::Autocast cast(bf16);
        Tensor half = a.to(f32);
        return values.push_back(flat ? matmul(half, half.t()).sum({0}).to(a.dtype()) : exp(half * 0.125));
      }
      case 22:
        return values.push_back(dropout(a, 0.25));
      case 23:
        if (flat) values.push_back(layer_norm(a, {a.size(1)}, {}, {}, 1e-5));
        return;
      case 24:
        if (a.dim() > 0) values.push_back(cumsum(a.flip({0}), 0));
        return;
      case 25:
        return values.push_back(flat ? a.unsqueeze(0).expand({2, a.size(0), a.size(1)}).sum({0, 2}) : -a);
      case 26: {  // one that is made, written by parts and read between
        Tensor made = zeros_like(a), view = made.view(made.sizes());
        made.copy_(a * 0.5);
        Tensor between = view * 2;
        view.add_(pick(2) ? between : between.detach());
        return values.push_back(made);
      }
      default:
        return write(values, a, [&](Tensor& t) {
          Tensor alias = t.view(t.sizes());
          alias.mul_(2);
          t.sub_(alias.detach() * 0.25);
        });
    }
  }

  // Convolutions with what stands around them; weights are w3, w1 [32, 32, k, k], w0, scale and shift [32].
  template <class Pick>
  static void step_images(TensorList& values, Tensor a, const Tensor& b, size_t what, const TensorList& given,
                          Pick& pick) {
    const Tensor &w3 = given[2], &w1 = given[3], &bias = given[4], &scale = given[5], &shift = given[6];
    bool same = a.sizes() == b.sizes(), image = a.dim() == 4;
    if (!image) return values.push_back(a.sin());
    auto conv = [&](const Tensor& x) { return conv2d(x, w3, pick(2) ? bias : Tensor(), {.padding = 1}); };
    auto norm = [&](const Tensor& x) {
      bool affine = pick(2);
      return batch_norm(x, affine ? scale : Tensor(), affine ? shift : Tensor(), {}, {}, true, 0.1, 1e-5);
    };
    switch (what) {
      case 0:
      case 1:
        return values.push_back(conv(a));
      case 2:
        return values.push_back(conv2d(a, w1, bias));
      case 3:
        return values.push_back(norm(a));
      case 4:
        return values.push_back(relu(a));
      case 5:
        return values.push_back(relu(norm(conv(a))));
      case 6:
        return values.push_back(relu(same ? norm(conv(a)) + b : a + norm(conv(a))));
      case 7: {
        Tensor made = norm(conv(a));
        return values.push_back(relu(made + norm(conv2d(a, w1))));
      }
      case 8:
        return values.push_back(max_pool2d(a, 3, {.stride = 1, .padding = 1}));
      case 9:
        if (a.size(2) > 1) values.push_back(max_pool2d(relu(a), 2));
        return;
      case 10:
        return values.push_back(avg_pool2d(a, 3, {.stride = 1, .padding = 1}));
      case 11:
        return values.push_back(same ? a + b : a * 0.5);
      case 12:
        return values.push_back(same ? a * b * 0.125 : a * scale.reshape({32, 1, 1}));
      case 13:
        return write(values, a, [&](Tensor& t) { t.relu_(); });
      case 14:
        return write(values, a, [&](Tensor& t) { same && !t.shares_storage(b) ? t.add_(b) : t.mul_(0.5); });
      case 15:
        return write(values, a, [&](Tensor& t) { t.narrow(1, 8, 16).select(0, 0).mul_(-1); });
      case 16:
        return values.push_back(a.mean({2, 3}, true) * a);
      case 17: {  // a value that is written between two relus
        Tensor h = norm(conv(a)), before = relu(h);
        h.mul_(-1);
        values.push_back(before);
        return values.push_back(relu(h));
      }
      default:
        return values.push_back(a.sum({0, 2, 3}) * scale);
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
  std::string error, text;
};

/// What is done with the results.
enum class Use {
  backward,     // one pass through all of them
  twice,        // two passes
  captured,     // a pass through CompiledBackward
  part,         // a pass through the last one, then one through all of them
  written,      // they are written before the pass
  second_call,  // another call comes before the pass
};

template <class F>
Outcome run_program(const F& f, uint64_t seed, bool gradients, int64_t rows, bool images = false,
                    Use use = Use::backward, const CompiledBackward* pass = nullptr) {
  Outcome outcome;
  std::mt19937_64 random(seed);
  auto fill = [&](const Shape& sizes) {
    Tensor t = empty(sizes, {.dtype = DType::f64});
    for (int64_t i = 0; i < t.numel(); ++i) t.data<double>()[i] = static_cast<double>(random() % 2001) / 1000.0 - 1;
    return images ? t.to(f32) : t;
  };
  TensorList leaves, arguments;
  if (images)
    leaves = {fill({rows, 32, 5, 5}),
              fill({rows, 32, 5, 5}),
              fill({32, 32, 3, 3}) * 0.1,
              fill({32, 32, 1, 1}) * 0.2,
              fill({32}),
              fill({32}) + 1,
              fill({32})};
  else
    leaves = {fill({rows, 3}), fill({rows, 3}), fill({3})};
  for (Tensor& t : leaves) {
    if (gradients) t.requires_grad_();
    arguments.push_back(t * 1);  // no leaves, so that programs may write them
  }
  if (!images) arguments.push_back(fill({3, 3}));
  manual_seed(seed);
  auto loss_of = [](std::initializer_list<const TensorList*> lists) {
    Tensor loss;
    for (const TensorList* list : lists)
      for (const Tensor& t : *list)
        if (t.requires_grad()) {
          Tensor term = (t * t).sum().to(f64);
          loss = loss.defined() ? loss + term : term;
        }
    return loss;
  };
  try {
    TensorList results = f(arguments), others;
    if (use == Use::second_call) others = f(arguments);
    for (const TensorList* list : {&results, &others, &arguments})
      for (const Tensor& t : *list) outcome.tensors.push_back(t.detach().clone());
    if (gradients) {
      Tensor loss = loss_of({&results, &others, &arguments});
      Tensor last = use == Use::part && results.back().requires_grad() ? results.back().sum() : Tensor();
      if (use == Use::written) {
        loss = Tensor();
        for (const Tensor& t : results)
          if (t.requires_grad()) loss = loss.defined() ? loss + t.sum().to(f64) : t.sum().to(f64);
        NoGrad guard;
        auto outside = [&](const Tensor& t) {  // arguments must stay as they were: docs/compile.md
          return std::any_of(arguments.begin(), arguments.end(), [&](const Tensor& x) { return x.shares_storage(t); });
        };
        for (const Tensor& t : results)
          if (!outside(t)) t.detach().fill_(2);
      }
      if (last.defined()) last.backward({.retain_graph = true});
      if (loss.defined() && use == Use::twice) loss.backward({.retain_graph = true});
      if (loss.defined()) pass ? (*pass)(loss) : loss.backward();
      for (const Tensor& t : leaves) outcome.tensors.push_back(t.grad());
    }
  } catch (const Error& e) {
    outcome.error = typeid(e).name();
    outcome.text = e.what();
  }
  return outcome;
}

/// Runs a program in both worlds, with other values each time, on as many rows as the list says. How many of these
/// numbers of rows were not traced.
inline int64_t compare_program(uint64_t seed, const std::vector<int64_t>& rows = {3, 3, 3}, Use use = Use::backward) {
  // An argument that is written after an operator has saved it is held by its own history: docs/compile.md.
  [[maybe_unused]] Held held;
  SCOPED_TRACE("program " + std::to_string(seed) + ", use " + std::to_string(static_cast<int>(use)));
  Program program(seed);
  auto f = [program](const TensorList& xs) { return program.run(xs); };
  bool gradients = seed % 3 != 0, images = program.images();
  std::string backend = seed / 8 % 2 ? "eager" : "";  // generating code takes longest
  auto compiled = compile(f, {.backend = backend, .dynamic_batch = rows.front() != rows.back()});
  auto compare = [&](uint64_t turn, const Outcome& got, const Outcome& wanted) {
    EXPECT_EQ(got.error.empty(), wanted.error.empty()) << got.text << " against " << wanted.text << "\n"
                                                       << compiled.print({.code = false}) << compiled.explain();
    if (!got.error.empty() || !wanted.error.empty()) return;
    ASSERT_EQ(got.tensors.size(), wanted.tensors.size());
    for (size_t i = 0; i < got.tensors.size(); ++i) {
      ASSERT_EQ(got.tensors[i].defined(), wanted.tensors[i].defined()) << "tensor " << i << " in turn " << turn;
      if (!got.tensors[i].defined()) continue;
      ASSERT_TRUE(identical(got.tensors[i], wanted.tensors[i]))
          << "tensor " << i << " in turn " << turn << "\n"
          << compiled.print({.code = false}) << compiled.explain();
    }
  };
  CompiledBackward pass;
  const CompiledBackward* captured = use == Use::captured ? &pass : nullptr;
  for (uint64_t turn = 0; turn < rows.size() && !testing::Test::HasFailure(); ++turn) {
    Outcome wanted = run_program(f, seed * 31 + turn, gradients, rows[turn], images, use);
    if (use == Use::written && !wanted.error.empty()) break;  // eager had saved one of them
    Outcome got = run_program(compiled, seed * 31 + turn, gradients, rows[turn], images, use, captured);
    // A function that writes its arguments cannot run again: docs/compile.md.
    if (got.text.find("cannot run again") != std::string::npos) break;
    compare(turn, got, wanted);
    if (!wanted.error.empty()) break;
  }
  return compiled.stats().fitted;
}

/// How a program of this seed is used: mostly in the simple way.
inline Use use_of(uint64_t seed) {
  uint64_t n = seed / 24 % 8;
  return n < 6 ? static_cast<Use>(n) : Use::backward;
}

}  // namespace tutti::test
