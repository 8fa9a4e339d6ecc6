// Rows of src/ops/norm. Weights that are there are multiplied by one, since undefined ones would be none.
#include "tutti/ops/norm.h"

#include "tests/support/table.h"

namespace tutti::test {
namespace {

// The gradients of normalised values are differences of sums: halves lose more there.
Row norm(const char* name, Body body, std::vector<Sample> samples,
         std::source_location where = std::source_location::current()) {
  return row(name, std::move(body), std::move(samples), where)
      .takes(kFloat)
      .loose(1, 8)
      .speaks_of("mul")
      .speaks_of("dim")
      .speaks_of("size")
      .speaks_of("detach");
}

const bool rows = add_rows({
    norm("layer_norm", [](In x) -> Out { return {layer_norm(x[0], 5, x[1] * 1, x[2] * 1)}; },
         {{value({2, 2, 5}), value({5}), value({5})}, {value({0, 5}), value({5}), value({5})}}),
    norm("layer_norm.dims", [](In x) -> Out { return {layer_norm(x[0], {3, 4}, x[1] * 1, x[2] * 1, 0.125)}; },
         {{value({2, 3, 4}), value({3, 4}), value({3, 4})}}),
    norm("layer_norm.plain", [](In x) -> Out { return {layer_norm(x[0], x[0].size(-1))}; }, {{value({3, 9})}}),
    norm("rms_norm", [](In x) -> Out { return {rms_norm(x[0], {2, 5}, x[1] * 1, 0.25)}; },
         {{value({3, 2, 5}), value({2, 5})}}),
    norm("rms_norm.plain", [](In x) -> Out { return {rms_norm(x[0], x[0].size(-1))}; }, {{value({3, 9})}}),
});

Tensor train(const Tensor& x, const Tensor& w, const Tensor& b, double eps = 1e-5) {
  return batch_norm(x, w, b, {}, {}, true, 0.1, eps);
}

const bool channels = add_rows({
    norm("group_norm", [](In x) -> Out { return {group_norm(x[0], 2, x[1] * 1, x[2] * 1)}; },
         {{value({2, 4, 3, 2}), value({4}), value({4})}, {value({0, 4, 3}), value({4}), value({4})}}),
    norm("group_norm.flat", [](In x) -> Out { return {group_norm(x[0], 3, {}, {}, 0.125)}; }, {{value({2, 6})}}),
    norm("batch_norm", [](In x) -> Out { return {train(x[0], x[1] * 1, x[2] * 1)}; },
         {{value({2, 3, 2, 3}), value({3}), value({3})}, {value({0, 3, 2}), value({3}), value({3})}}),
    norm("batch_norm.flat", [](In x) -> Out { return {train(x[0], x[1] * 1, x[2] * 1, 0.125)}; },
         {{value({4, 3}), value({3}), value({3})}}),
    norm("batch_norm.plain", [](In x) -> Out { return {train(x[0], {}, {})}; }, {{value({2, 3, 5})}}),
    norm("batch_norm.running",
         [](In x) -> Out {
           Tensor mean = x[1].detach().clone(), var = x[2].detach().clone();
           batch_norm(x[0], {}, {}, mean, var, true, 0.25);
           return {mean, var};
         },
         {{value({3, 2, 4}), value({2}), value({2}, {0.5, 2})}})
        .no_gradient(),
    norm("batch_norm.eval",
         [](In x) -> Out { return {batch_norm(x[0], x[1] * 1, x[2] * 1, x[3], x[4], false, 0.1, 0.125)}; },
         {{value({3, 2, 4}), value({2}), value({2}), value({2}), value({2}, {0.5, 2})}}),
    norm("batch_norm_apply",
         [](In x) -> Out { return {batch_norm_apply(x[0], x[3], x[4], x[1] * 1, x[2] * 1, 0.125)}; },
         {{value({3, 2, 4}), value({2}), value({2}), value({2}), value({2}, {0.5, 2})}}),
    norm("batch_norm_statistics",
         [](In x) -> Out {
           auto s = batch_norm_statistics(x[0]);
           return {cast(s.mean, x[0].dtype()), cast(s.var, x[0].dtype())};  // of bf16 and f16 they are f32
         },
         {{value({3, 2, 4})}}),
    norm("instance_norm", [](In x) -> Out { return {instance_norm(x[0], x[1] * 1, x[2] * 1)}; },
         {{value({2, 3, 2, 3}), value({3}), value({3})}}),
    norm("instance_norm.running",
         [](In x) -> Out {
           Tensor mean = x[1].detach().clone(), var = x[2].detach().clone();
           instance_norm(x[0], {}, {}, mean, var, true, 0.25);
           return {mean, var};
         },
         {{value({3, 2, 4}), value({2}), value({2}, {0.5, 2})}})
        .no_gradient(),
});

}  // namespace
}  // namespace tutti::test
