// Comparing a layer with PyTorch's: the cases of tests/golden/layers.py.
#pragma once

#include <string>

#include "tests/support/compare.h"
#include "tests/support/expect.h"
#include "tests/support/npz.h"

namespace tutti::test {

struct LayerOptions {
  double f32 = 1e-5, f64 = 1e-10;
  bool training = true;
  bool counts_batches = true;  // PyTorch's instance norms have a counter that stays 0
};

/// The tensors below `prefix` by the rest of their names.
inline nn::StateDict entries(const Npz& file, const std::string& prefix) {
  nn::StateDict state;
  for (const std::string& key : file.keys(prefix)) state[key.substr(prefix.size())] = file.read(key);
  return state;
}

/// Gradients of Σ weights·outputs, zeros where none flows.
inline TensorList weighted(const TensorList& outputs, const TensorList& wanted, bool create_graph) {
  TensorList roots, weights;
  for (const Tensor& y : outputs)
    if (y.requires_grad()) {
      roots.push_back(y);
      weights.push_back(fixed_weights(y));
    }
  TensorList found(wanted.size());
  if (!roots.empty())
    found = grad(roots, wanted, {.retain_graph = true, .create_graph = create_graph, .allow_unused = true}, weights);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) found[i] = zeros_like(wanted[i]);
    if (found[i].is_sparse()) found[i] = to_dense(found[i]);
  }
  return found;
}

/// Compares with the parts of a flat array, one after another.
inline void expect_parts(const TensorList& got, const std::vector<std::string>& names, const Tensor& all,
                         const char* what, double allowed) {
  int64_t at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    int64_t count = got[i].numel();
    ASSERT_LE(at + count, all.numel()) << what << names[i];
    EXPECT_TRUE(close(got[i], all.narrow(0, at, count).reshape(got[i].sizes()), allowed)) << what << names[i];
    at += count;
  }
  EXPECT_EQ(at, all.numel());
}

/// Loads the case's state into copies of the module, runs them in f64 and f32, and compares outputs, gradients by
/// inputs and parameters, second gradients and buffers. `run(module, inputs)` gives a TensorList.
template <class M, class F>
  requires std::invocable<F, M&, const TensorList&>
void expect_layer(const Npz& file, const std::string& key, const M& module, F&& run, const LayerOptions& o = {}) {
  for (DType dtype : {f64, f32}) {
    SCOPED_TRACE(key + (dtype == f64 ? " in f64" : " in f32"));
    double allowed = dtype == f64 ? o.f64 : o.f32;
    M m = module.clone();
    m.to(dtype);
    m.train(o.training);
    m.load_state_dict(entries(file, key + "/state/"));
    TensorList inputs, wanted;
    std::vector<std::string> names;
    for (size_t i = 0; file.has(key + "/in" + std::to_string(i)); ++i) {
      Tensor x = file.read(key + "/in" + std::to_string(i));
      if (x.is_floating()) {
        x = x.to(dtype).clone().requires_grad_();
        wanted.push_back(x);
        names.push_back("input " + std::to_string(i));
      }
      inputs.push_back(x);
    }
    ASSERT_FALSE(inputs.empty()) << "no such golden";
    std::map<std::string, Tensor> parameters;
    for (const auto& [name, p] : m.named_parameters()) parameters[name] = p;
    for (const auto& [name, p] : parameters) {
      wanted.push_back(p);
      names.push_back(name);
    }
    TensorList outputs = run(m, inputs);
    ASSERT_FALSE(file.has(key + "/out" + std::to_string(outputs.size())));
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i].dtype(), dtype);
      EXPECT_TRUE(close(outputs[i], file.read(key + "/out" + std::to_string(i)), allowed)) << "output " << i;
    }
    nn::StateDict after = entries(file, key + "/after/");
    EXPECT_EQ(after.size(), m.named_buffers().size());
    for (const auto& [name, b] : m.named_buffers())
      if (o.counts_batches || name != "num_batches_tracked") {
        EXPECT_TRUE(close(b, after[name], allowed)) << name;
      }
    bool twice = file.has(key + "/seconds");
    TensorList grads = weighted(outputs, wanted, twice);
    expect_parts(grads, names, file.read(key + "/grads"), "gradient by ", allowed);
    if (!twice) continue;
    expect_parts(weighted(grads, wanted, false), names, file.read(key + "/seconds"), "second gradient by ", allowed);
  }
}

/// Of a layer that takes one tensor and gives one.
template <class M>
void expect_layer(const Npz& file, const std::string& key, const M& module, const LayerOptions& o = {}) {
  expect_layer(file, key, module, [](M& m, const TensorList& x) { return TensorList{m(x[0])}; }, o);
}

}  // namespace tutti::test
