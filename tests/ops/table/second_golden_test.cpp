// Gradients of gradients against PyTorch's: the arrays second0, ... that tests/golden/nn_cases.py adds to a case.
#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/table.h"
#include "tutti/autograd.h"

namespace tutti::test {
namespace {

const Row* find_row(const std::string& name) {
  for (const Row& r : all_rows())
    if (r.name == name) return &r;
  return nullptr;
}

TensorList weights_of(In tensors) {
  TensorList list;
  for (auto& t : tensors) list.push_back(fixed_weights(t));
  return list;
}

// The inputs of the case in the given dtype, all of them leaves; then Σ weights·gradients by them.
TensorList second_gradients(const Row& row, TensorList inputs) {
  TensorList wanted, outputs;
  for (auto& x : inputs)
    if (x.is_floating()) wanted.push_back(x.requires_grad_());
  for (auto& y : row.body(inputs))
    if (y.requires_grad()) outputs.push_back(y);
  TensorList roots;
  for (auto& g : grad(outputs, wanted, {.create_graph = true, .allow_unused = true}, weights_of(outputs)))
    if (g.defined() && g.requires_grad()) roots.push_back(g);
  TensorList found = grad(roots, wanted, {.allow_unused = true}, weights_of(roots));
  for (size_t i = 0; i < found.size(); ++i)
    if (!found[i].defined()) found[i] = zeros_like(wanted[i]);
  return found;
}

void compare_file(const std::string& file, size_t least) {
  Npz golden("tests/golden/" + file + ".npz");
  size_t cases = 0;
  for (const std::string& key : golden.keys()) {
    if (!key.ends_with("/second0")) continue;
    ++cases;
    std::string prefix = key.substr(0, key.rfind('/') + 1);
    const Row* row = find_row(key.substr(0, key.find('/')));
    ASSERT_TRUE(row) << key;
    for (DType dtype : {f64, f32}) {
      TensorList inputs;
      for (int i = 0; golden.has(prefix + "in" + std::to_string(i)); ++i)
        inputs.push_back(golden.read(prefix + "in" + std::to_string(i)).to(dtype));
      SCOPED_TRACE(key + " " + describe_all(inputs));
      TensorList found = second_gradients(*row, inputs);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(
            close(found[i], golden.read(prefix + "second" + std::to_string(i)), precision(dtype) * row->looseness * 4))
            << "input " << i;
    }
  }
  EXPECT_GE(cases, least);
}

TEST(SecondGolden, Convolutions) { compare_file("nn_conv", 12); }
TEST(SecondGolden, Norms) { compare_file("nn_norm", 10); }

}  // namespace
}  // namespace tutti::test
