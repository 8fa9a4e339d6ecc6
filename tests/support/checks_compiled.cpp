// Checks of an operator in a compiled function: against eager, forward and backward, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/compare.h"
#include "tests/support/table.h"
#include "tutti/autograd.h"
#include "tutti/compile.h"
#include "tutti/random.h"

namespace tutti::test {
namespace {

bool differentiable(const Row& row) { return row.has_gradient && (row.taken & kFloat || row.complex_gradient); }

TensorList copies(const TensorList& inputs, const Sample& sample, bool leaves) {
  TensorList list;
  for (const Tensor& x : inputs) {
    Tensor y = empty_strided(x.sizes(), x.strides(), {.dtype = x.dtype(), .device = x.device()});
    y.copy_(x);
    list.push_back(y);
  }
  return leaves ? as_leaves(list, sample) : list;
}

TensorList gradients(const TensorList& outputs, const TensorList& inputs) {
  TensorList roots, weights;
  for (const Tensor& y : outputs)
    if (y.defined() && y.requires_grad()) {
      roots.push_back(y);
      weights.push_back(y.is_sparse() ? ones_like(to_dense(y.detach())) : fixed_weights(y.detach()));
    }
  if (roots.empty()) return {};
  backward(roots, weights);
  TensorList list;
  for (const Tensor& x : inputs) list.push_back(x.grad());
  return list;
}

Tensor dense(const Tensor& t) { return t.defined() && t.is_sparse() ? to_dense(t) : t; }

void expect_same(const TensorList& got, const TensorList& wanted, const char* what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), wanted[i].defined()) << what << " " << i;
    if (got[i].defined()) {
      EXPECT_TRUE(identical(dense(got[i]), dense(wanted[i]))) << what << " " << i;
    }
  }
}

// Backends generate code for neighbouring pointwise operators, so one has to have a neighbour.
TensorList with_neighbour(TensorList results) {
  for (Tensor& t : results)
    if (t.defined() && !t.is_sparse()) t = t.dtype() == DType::boolean ? logical_not(t) : t * 2;
  return results;
}

// Traced once, then run from the graphs twice, each time with other values.
void check_compiled(const Row& row, DType dtype, bool neighbours) {
  for (const Sample& sample : row.all_samples()) {
    TensorList given = make_inputs(sample, dtype);
    SCOPED_TRACE(row.name + " " + describe_all(given));
    // The gradient of sparse_values looks for duplicates among the indices, and so cannot be traced.
    bool leaves = differentiable(row) && !row.refused.size() && row.name != "sparse_values";
    auto body = [&](const TensorList& xs) { return neighbours ? with_neighbour(row.body(xs)) : row.body(xs); };
    auto compiled = compile(body, {.name = row.name});
    for (int turn = 0; turn < 3; ++turn) {
      TensorList mine = copies(given, sample, leaves), theirs = copies(given, sample, leaves), wanted, got;
      manual_seed(kRowSeed);
      wanted = body(theirs);
      manual_seed(kRowSeed);
      try {
        got = compiled(mine);
      } catch (const TraceError&) {
        // Where shapes depend on values.
        EXPECT_TRUE(row.shape_from_values || row.operator_name() == "one_hot") << "cannot be traced";
        return;
      }
      TensorList results, wanted_results;
      for (const Tensor& t : got) results.push_back(t.defined() ? t.detach() : t);
      for (const Tensor& t : wanted) wanted_results.push_back(t.defined() ? t.detach() : t);
      expect_same(results, wanted_results, "result");
      expect_same(gradients(got, mine), gradients(wanted, theirs), "gradient");
      if (testing::Test::HasFailure()) return;
    }
    if (compiled.explain().find("runs uncompiled") != std::string::npos) continue;  // views that only eager can make
    EXPECT_EQ(compiled.stats().traces, 1) << compiled.explain();
    EXPECT_EQ(compiled.stats().runs, 2);
  }
}

}  // namespace

void check_compiled(const Row& row) {
  bool pointwise = row.arity != 0;
  check_compiled(row, row.main_dtype(), pointwise);
  // Others may be made of pointwise operators, but their results may be views too, which neighbours would hide.
  if (!pointwise && !testing::Test::HasFailure()) check_compiled(row, row.main_dtype(), true);
  if (row.taken & kFloat && !testing::Test::HasFailure()) check_compiled(row, f32, pointwise);
  if (row.arity == 0 || row.fixed_dtype) return;
  for (DType t : {f16, bf16, i32, u8, boolean}) {
    bool taken = row.taken & (is_floating(t) ? kFloat : t == boolean ? kBool : kInt);
    bool refused = std::find(row.refused.begin(), row.refused.end(), t) != row.refused.end();
    if (taken && !refused && !testing::Test::HasFailure()) check_compiled(row, t, true);
  }
}

}  // namespace tutti::test
