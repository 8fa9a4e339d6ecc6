#include "tests/ops/family.h"

#include "tutti/autograd.h"

namespace tutti::test {
namespace {

// Zeros where the file has none.
Tensor expected(const Npz& file, const std::string& key, const Tensor& like) {
  return file.has(key) ? file.read(key) : zeros(like.sizes(), {f64});
}

// Gradients of Σ weights·outputs by the floating-point inputs, zeros where none flows.
TensorList gradients_by_inputs(const TensorList& outputs, const TensorList& inputs, bool create_graph) {
  TensorList roots, weights, wanted;
  for (const Tensor& y : outputs)
    if (y.defined() && y.requires_grad()) {
      roots.push_back(y);
      weights.push_back(fixed_weights(y));
    }
  for (const Tensor& x : inputs)
    if (x.requires_grad()) wanted.push_back(x);
  if (roots.empty()) return TensorList(wanted.size());
  return grad(roots, wanted, {.retain_graph = true, .create_graph = create_graph, .allow_unused = true}, weights);
}

Tensor dense(const Tensor& g, const Tensor& like) {
  return !g.defined() ? zeros_like(like) : g.is_sparse() ? to_dense(g) : g;
}

}  // namespace

void expect_golden(const Npz& file, const std::string& key, const std::function<TensorList(const TensorList&)>& body,
                   int orders, Tolerance tolerance) {
  for (DType dtype : {f64, f32}) {
    SCOPED_TRACE(key + (dtype == f64 ? " in f64" : " in f32"));
    double allowed = dtype == f64 ? tolerance.f64 : tolerance.f32;
    TensorList inputs;
    std::vector<size_t> wanted;
    for (size_t i = 0; file.has(key + "/in" + std::to_string(i)); ++i) {
      Tensor x = file.read(key + "/in" + std::to_string(i));
      if (x.is_floating()) {
        x = x.to(dtype).clone().requires_grad_(orders > 0);
        wanted.push_back(i);
      }
      inputs.push_back(x);
    }
    ASSERT_FALSE(inputs.empty()) << "no such golden";
    TensorList outputs = body(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      ASSERT_TRUE(file.has(key + "/out" + std::to_string(i)));
      EXPECT_TRUE(close(outputs[i], file.read(key + "/out" + std::to_string(i)), allowed)) << "output " << i;
    }
    TensorList found = outputs;
    for (int order = 1; order <= orders; ++order) {
      found = gradients_by_inputs(found, inputs, order < orders);
      for (size_t k = 0; k < wanted.size(); ++k) {
        const Tensor& x = inputs[wanted[k]];
        std::string name = (order == 1 ? "/grad" : "/second") + std::to_string(wanted[k]);
        EXPECT_TRUE(close(dense(found[k], x), expected(file, key + name, x), allowed)) << name;
      }
    }
  }
}

}  // namespace tutti::test
