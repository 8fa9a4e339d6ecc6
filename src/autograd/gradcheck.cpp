// gradcheck: gradients against central differences.
#include <cmath>

#include "base/check.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"
#include "tutti/random.h"

namespace tutti {
namespace {

using Body = std::function<TensorList(const TensorList&)>;

// Inputs as fresh leaves, so that what the caller has is left alone.
TensorList fresh_leaves(const TensorList& inputs) {
  TensorList leaves;
  for (auto& x : inputs) {
    if (!x.defined()) {
      leaves.push_back(x);
      continue;
    }
    Tensor leaf = x.detach().clone();
    if (x.requires_grad()) leaf.requires_grad_();
    leaves.push_back(leaf);
  }
  return leaves;
}

// A function of dense tensors that does the same: a sparse input is made of its entries, where it has several at one
// position the sum of them, and a sparse result is a dense one.
struct Dense {
  Body f;
  TensorList inputs;
};
Dense dense_form(const Body& f, const TensorList& inputs) {
  TensorList dense = inputs, forms(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].is_sparse()) continue;
    forms[i] = coalesce(inputs[i].detach());
    dense[i] = forms[i].values().detach().clone();
    if (inputs[i].requires_grad()) dense[i].requires_grad_();
  }
  auto body = [f, forms](const TensorList& xs) {
    TensorList given = xs, results;
    for (size_t i = 0; i < forms.size(); ++i)
      if (forms[i].defined()) given[i] = sparse_coo(forms[i].indices(), xs[i], forms[i].sizes());
    for (auto& y : f(given)) results.push_back(y.defined() && y.is_sparse() ? to_dense(y) : y);
    return results;
  };
  return {body, dense};
}

bool counts(const Tensor& t) { return t.defined() && is_differentiable(t.dtype()); }

// ⟨a, b⟩ = Re Σ conj(a)·b, the real inner product that gradients are taken in.
double inner(const Tensor& a, const Tensor& b) {
  Tensor product = a.is_complex() || b.is_complex() ? real(conj(a) * b) : a * b;
  return sum(cast(product, DType::f64)).item<double>();
}

// Differences of ⟨weight, output⟩ when one real number in one input moves.
double difference(const Body& f, TensorList& inputs, size_t which, int64_t element, bool imaginary,
                  const std::vector<Tensor>& weights, double epsilon) {
  NoGrad guard;
  Tensor flat = inputs[which].detach().view({-1}).select(0, element);
  Tensor original = flat.clone();
  auto value_at = [&](double step) {
    flat.copy_(imaginary ? original + Tensor(std::complex<double>(0, step)) : original + step);
    TensorList outputs = f(inputs);
    double total = 0;
    for (size_t o = 0; o < outputs.size(); ++o)
      if (weights[o].defined()) total += inner(weights[o], outputs[o]);
    return total;
  };
  double up = value_at(epsilon), down = value_at(-epsilon);
  flat.copy_(original);
  return (up - down) / (2 * epsilon);
}

bool close(double analytic, double numeric, const GradcheckOptions& o) {
  if (std::isnan(analytic) || std::isnan(numeric)) return false;
  return std::abs(analytic - numeric) <= o.atol + o.rtol * std::abs(numeric);
}

// One number for each output element, so that a wrong entry of the Jacobian cannot hide behind another.
std::vector<Tensor> random_weights(const TensorList& outputs, Generator& random) {
  Context mine = context();
  mine.generator = std::make_shared<Generator>(random.state().seed);
  mine.generator->set_state(random.state());
  std::vector<Tensor> weights;
  {
    ContextGuard guard(mine);
    NoGrad no_grad;
    for (auto& o : outputs) {
      if (!counts(o) || !o.requires_grad()) {
        weights.emplace_back();
        continue;
      }
      Tensor w = rand(o.sizes(), {.dtype = to_real(o.dtype()), .device = o.device()}) + 0.5;
      if (o.is_complex()) w = complex(w, rand(o.sizes(), {.dtype = to_real(o.dtype()), .device = o.device()}) + 0.5);
      weights.push_back(w);
    }
    random.set_state(mine.generator->state(), random.rank());
  }
  return weights;
}

bool check_against_differences(const Body& f, const TensorList& given, const GradcheckOptions& options,
                               const char* name) {
  // Differences are taken of contiguous copies, gradients of the inputs as they lie.
  TensorList inputs = fresh_leaves(given), plain = inputs;
  for (auto& x : plain)
    if (x.defined() && !x.is_contiguous() && x.requires_grad()) x = x.detach().contiguous().requires_grad_();
  TensorList outputs = f(inputs);
  TensorList wanted;
  std::vector<size_t> positions;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined() && inputs[i].requires_grad()) {
      wanted.push_back(inputs[i]);
      positions.push_back(i);
    }
  check<GradError>(!wanted.empty(), name,
                   "none of the inputs requires a gradient: call requires_grad_() on those to check");
  Generator random(20240607);
  std::vector<Tensor> weights = random_weights(outputs, random);
  TensorList roots, root_gradients;
  for (size_t o = 0; o < outputs.size(); ++o)
    if (weights[o].defined()) {
      roots.push_back(outputs[o]);
      root_gradients.push_back(weights[o]);
    }
  if (roots.empty() && !options.throw_on_failure) return false;
  check<GradError>(!roots.empty(), name, "no output depends differentiably on the inputs");
  TensorList analytic = grad(roots, wanted, {.allow_unused = true}, root_gradients);
  for (size_t k = 0; k < wanted.size(); ++k) {
    Tensor gradient =
        analytic[k].defined() ? analytic[k].is_sparse() ? to_dense(analytic[k]) : analytic[k] : zeros_like(wanted[k]);
    auto values = gradient.detach().contiguous().to_vector<std::complex<double>>();
    for (int64_t e = 0; e < wanted[k].numel(); ++e)
      for (bool imaginary : {false, true}) {
        if (imaginary && !wanted[k].is_complex()) continue;
        double numeric = difference(f, plain, positions[k], e, imaginary, weights, options.epsilon);
        auto v = values[static_cast<size_t>(e)];
        double found = imaginary ? v.imag() : v.real();
        if (close(found, numeric, options)) continue;
        if (!options.throw_on_failure) return false;
        bool coarse = wanted[k].dtype() != DType::f64 && wanted[k].dtype() != DType::c128;
        fail<GradError>(name, "input {} ({}), element {}{}: the gradient is {}, differences say {}{}", positions[k],
                        wanted[k], e, imaginary ? " (imaginary part)" : "", found, numeric,
                        coarse ? "; differences need more digits than this dtype has: use f64 or c128" : "");
      }
  }
  return true;
}

}  // namespace

bool gradcheck(const Body& f, const TensorList& inputs, const GradcheckOptions& options) {
  EnableGrad guard;
  Dense dense = dense_form(f, inputs);
  return check_against_differences(dense.f, dense.inputs, options, "gradcheck");
}

bool gradgradcheck(const Body& given, const TensorList& given_inputs, const GradcheckOptions& options) {
  EnableGrad guard;
  auto [f, inputs] = dense_form(given, given_inputs);
  // The first derivative, as a function of the inputs and of the gradients of the outputs, is checked like any other.
  TensorList outputs = f(fresh_leaves(inputs));
  Generator random(42);
  std::vector<Tensor> weights = random_weights(outputs, random);
  TensorList all = inputs;
  std::vector<size_t> used;
  for (size_t o = 0; o < weights.size(); ++o)
    if (weights[o].defined()) {
      used.push_back(o);
      all.push_back(weights[o].requires_grad_());
    }
  size_t count = inputs.size();
  auto first = [&](const TensorList& xs) {
    EnableGrad inside;
    TensorList leaves;
    // Differences run this without a graph; the first derivative needs one all the same.
    for (size_t i = 0; i < xs.size(); ++i)
      leaves.push_back(!all[i].defined() || !all[i].requires_grad() || xs[i].requires_grad()
                           ? xs[i]
                           : xs[i].detach().requires_grad_());
    TensorList some(leaves.begin(), leaves.begin() + static_cast<int64_t>(count));
    TensorList ys = f(some), roots, gradients, wanted;
    for (size_t k = 0; k < used.size(); ++k) {
      roots.push_back(ys[used[k]]);
      gradients.push_back(leaves[count + k]);
    }
    for (size_t i = 0; i < count; ++i)
      if (leaves[i].defined() && leaves[i].requires_grad()) wanted.push_back(leaves[i]);
    TensorList result = grad(roots, wanted, {.create_graph = true, .allow_unused = true}, gradients);
    for (size_t i = 0; i < result.size(); ++i)
      result[i] = result[i].defined() ? to_dense(result[i]) : zeros_like(wanted[i]);
    return result;
  };
  return check_against_differences(first, all, options, "gradgradcheck");
}

}  // namespace tutti
