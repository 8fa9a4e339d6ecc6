// What dtype each operator of the table gives under autocast. See amp::Autocast.
#include <gtest/gtest.h>

#include <set>

#include "tests/support/table.h"
#include "tutti/amp.h"

namespace tutti::test {
namespace {

using Names = std::set<std::string>;

const Names low = {
    "mm",
    "bmm",
    "mv",
    "addmm",
    "baddbmm",
    "matmul",
    "dot",
    "einsum",
    "tensordot",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "conv_backward_data",
    "conv_backward_weight",
    "scaled_dot_product_attention",
    "rnn",
    "gru",
    "lstm",
};
const Names full_precision = {
    "exp",        "exp2",     "expm1",      "log",   "log2",    "log10",       "log1p",     "rsqrt",    "logaddexp",
    "logaddexp2", "xlogy",    "xlog1py",    "logit", "erfinv",  "lgamma",      "digamma",   "trigamma", "reciprocal",
    "pow",        "tan",      "asin",       "acos",  "sinh",    "cosh",        "softplus",  "sum",      "mean",
    "prod",       "var",      "stddev",     "norm",  "softmax", "log_softmax", "logsumexp", "cumsum",   "cumprod",
    "layer_norm", "rms_norm", "group_norm", "trace", "sum_to",
};
const Names losses = {"mse_loss",
                      "l1_loss",
                      "smooth_l1_loss",
                      "huber_loss",
                      "cross_entropy",
                      "nll_loss",
                      "binary_cross_entropy",
                      "binary_cross_entropy_with_logits",
                      "kl_div",
                      "cosine_similarity",
                      "cosine_embedding_loss",
                      "margin_ranking_loss",
                      "hinge_embedding_loss",
                      "soft_margin_loss",
                      "pairwise_distance",
                      "triplet_margin_loss"};

// Outputs that do not have the dtype of the inputs even without autocast tell nothing.
std::vector<DType> dtypes(const Row& row, const TensorList& inputs) {
  std::vector<DType> found;
  for (const Tensor& y : row.body(inputs)) found.push_back(y.dtype());
  return found;
}

TEST(OperatorTable, AutocastGivesWhatAmpSays) {
  Names met;
  for (const Row& row : all_rows()) {
    if (!row.takes_dtype(bf16) || row.fixed_dtype || row.all_samples().empty()) continue;
    if (row.name == "einsum.trace") continue;  // of one operand: a sum, no product
    std::string name = row.operator_name();
    bool is_low = low.contains(name), is_full = full_precision.contains(name) || losses.contains(name);
    if (is_low || is_full) met.insert(name);
    for (DType given : {f32, bf16}) {
      SCOPED_TRACE(row.name + " of " + to_string(given));
      TensorList inputs = make_inputs(row.all_samples().at(0), given);
      std::vector<DType> plain, cast;
      try {
        plain = dtypes(row, inputs);
        amp::Autocast guard(bf16);
        cast = dtypes(row, inputs);
      } catch (const Error& e) {
        ADD_FAILURE() << e.what();
        continue;
      }
      for (size_t i = 0; i < plain.size(); ++i) {
        DType expected = plain[i] != given ? plain[i] : is_low ? bf16 : is_full ? f32 : given;
        EXPECT_EQ(to_string(cast[i]), to_string(expected)) << "output " << i;
      }
    }
  }
  for (const Names* names : {&low, &full_precision, &losses})
    for (const std::string& name : *names) EXPECT_TRUE(met.contains(name)) << name << " has no row";
}

// Pointwise operators of two dtypes give the wider.
TEST(OperatorTable, AutocastWidensPointwise) {
  int seen = 0;
  for (const Row& row : all_rows()) {
    if (row.arity < 2 || !row.takes_dtype(bf16) || row.first_is_mask) continue;
    TensorList narrow = make_inputs(row.all_samples().at(0), bf16);
    if (narrow.size() < 2) continue;
    TensorList mixed = narrow;
    mixed[1] = mixed[1].to(f32);
    if (dtypes(row, narrow)[0] != bf16) continue;
    amp::Autocast guard(bf16);
    EXPECT_EQ(to_string(dtypes(row, mixed)[0]), "f32") << row.name;
    ++seen;
  }
  EXPECT_GT(seen, 10);
}

}  // namespace
}  // namespace tutti::test
