// Rows of src/ops/attention. A mask that is there is copied, since an undefined one would be none.
#include "tutti/ops/attention.h"

#include <cmath>

#include "tests/support/table.h"

namespace tutti::test {
namespace {

AttentionOptions with_mask(AttentionOptions o, In x) {
  if (x.size() > 3) o.mask = x[3].clone();
  return o;
}

Row attends(const std::string& form, const AttentionOptions& o, std::vector<Sample> samples,
            std::source_location where = std::source_location::current()) {
  auto body = [o](In x) -> Out { return {scaled_dot_product_attention(x[0], x[1], x[2], with_mask(o, x))}; };
  return row("scaled_dot_product_attention" + form, body, std::move(samples), where)
      .takes(kFloat)
      .loose(1, 4)
      .speaks_of("clone");
}

// The formula. Of equal scores and values that are directions of their own, the result says which weights are dropped.
Body formula(const AttentionOptions& o) {
  return [o](In x) -> Out {
    Tensor scores = matmul(x[0], transpose(x[1], -2, -1)) / std::sqrt(static_cast<double>(x[0].size(-1)));
    if (x.size() > 3) scores = scores + x[3];
    Tensor weights = softmax(scores, -1);
    if (o.dropout > 0) {
      Tensor same = scaled_dot_product_attention(zeros_like(x[0]), zeros_like(x[1]),
                                                 eye(x[1].size(-2), x[1].size(-2), {x[0].dtype()}), o);
      weights = weights * ne(same, 0) / (1 - o.dropout);
    }
    return {matmul(weights, x[2])};
  };
}

const Sample three = {value({2, 3, 2}), value({2, 4, 2}), value({2, 4, 2})};
Sample three_and(const Input& mask) { return {three[0], three[1], three[2], mask}; }
const Input allowed = mask({3, 4}, {1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0});

const bool attention_rows = add_rows({
    attends("", {},
            {three,
             {value({3, 2}), value({4, 2}), value({4, 3})},
             {value({2, 1, 2, 2}), value({2, 3, 2}), value({2, 3, 1})}}),
    attends(".scale", {.scale = 0.3}, {three}),
    attends(".causal", {.causal = true},
            {three,
             {value({4, 2}), value({2, 2}), value({2, 1})},
             {value({1, 4, 2, 2}), value({1, 2, 3, 2}), value({1, 2, 3, 1})}}),
    attends(".bool", {}, {three_and(allowed)}),
    row("scaled_dot_product_attention.bool.causal",
        [](In x) -> Out {
          Options like{.device = x[3].device()};
          Tensor mask = x[3] | (eye(x[3].size(0), x[3].size(1), like) == 1);
          return {scaled_dot_product_attention(x[0], x[1], x[2], {.mask = mask, .causal = true})};
        },
        {three_and(allowed)})
        .takes(kFloat)
        .loose(1, 4)
        .speaks_of("device")
        .speaks_of("size")
        .speaks_of("bitwise_or"),
    attends(".added", {}, {three_and(value({3, 4})), three_and(value({2, 1, 4}))}),
    // Of a mask that wants no gradient, weights never exist as a whole.
    attends(".added.constant", {}, {three_and(constant({3, 4})), three_and(constant({2, 1, 4}))})
        .reference(formula({})),
    attends(".dropout", {.dropout = 0.4}, {three}).random().reference(formula({.dropout = 0.4})),
    attends(".added.dropout", {.dropout = 0.4}, {three_and(value({3, 4}))})
        .random()
        .reference(formula({.dropout = 0.4})),
});

}  // namespace
}  // namespace tutti::test
