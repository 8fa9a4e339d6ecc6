// Rows of src/pointwise/activation.isa.cpp and exponential.isa.cpp.
#include <cmath>

#include "tests/support/table.h"

namespace tutti::test {
namespace {

const bool activations = add_rows({
    POINTWISE(relu).any_zero(),
    POINTWISE(relu6).on({{-2, 8}}).any_zero(),
    POINTWISE(leaky_relu).on({{-2, 2}, {0.1, 0.5}}),
    POINTWISE(elu).on({{-2, 2}, {0.5, 1.5}}).any_zero(),
    POINTWISE(selu).any_zero(),
    POINTWISE(celu).on({{-2, 2}, {0.5, 1.5}}).any_zero(),
    POINTWISE(gelu).has_limits().any_zero().differs(
        "far left it is tiny, not 0",
        [](auto& x, double ours, double theirs) { return x[0] < -8 && theirs == 0 && std::abs(ours) < 1e-14; }),
    POINTWISE(gelu_tanh).loose(5).has_limits().any_zero(),
    POINTWISE(silu).has_limits().any_zero(),
    POINTWISE(mish).has_limits().any_zero(),
    POINTWISE(softplus).on({{-2, 2}, {0.5, 2}}),
    POINTWISE(softsign).has_limits(),
    POINTWISE(hardtanh).on({{-2, 2}, {-1, -0.5}, {0.5, 1}}),
    POINTWISE(hardsigmoid).on({{-5, 5}}),
    POINTWISE(hardswish).on({{-5, 5}}).has_limits().no_overflow().any_zero(),
    POINTWISE(hardshrink).on({{-2, 2}, {0.3, 0.8}}),
    POINTWISE(softshrink).on({{-2, 2}, {0.3, 0.8}}).keeps_nan(),
    POINTWISE(threshold).on({{-2, 2}, {-0.5, 0.5}, {-1, 1}}),
    POINTWISE(tanhshrink)
        .differs("x and tanh(x) cancel",
                 [](auto& x, double ours, double theirs) { return std::abs(ours - theirs) < 1e-7 * std::abs(x[0]); }),
});

const bool exponentials = add_rows({
    POINTWISE(exp).takes(kNumber),
    POINTWISE(exp2).takes(kNumber),
    POINTWISE(expm1).takes(kNumber),
    POINTWISE(log).takes(kNumber).on({{0.2, 3}}),
    POINTWISE(log2).takes(kNumber).on({{0.2, 3}}),
    POINTWISE(log10).takes(kNumber).on({{0.2, 3}}),
    POINTWISE(log1p).takes(kNumber).on({{-0.6, 2}}).no_overflow(),
    POINTWISE(sqrt).takes(kNumber).on({{0.2, 3}}),
    POINTWISE(rsqrt).takes(kNumber).on({{0.2, 3}}),
    POINTWISE(logaddexp),
    POINTWISE(logaddexp2),
    POINTWISE(xlogy).on({{-2, 2}, {0.3, 3}}).any_zero(),
    POINTWISE(xlog1py).on({{-2, 2}, {-0.6, 2}}).any_zero(),
    POINTWISE(logit).on({{0.1, 0.9}}),
    POINTWISE(erf),
    POINTWISE(erfc),
    POINTWISE(erfinv).on({{-0.9, 0.9}}),
    POINTWISE(lgamma).on({{0.3, 4}}),
    POINTWISE(digamma).on({{0.3, 4}}),
    // PyTorch's trigamma has about nine digits, and no poles.
    POINTWISE(trigamma)
        .on({{0.3, 4}})
        .loose(100)
        .differs("a pole", [](auto& x, double ours,
                              double) { return x[0] < 0 && x[0] == std::floor(x[0]) && ours > 0 && std::isinf(ours); }),
    POINTWISE(sigmoid).takes(kNumber),
    POINTWISE(log_sigmoid),
});

}  // namespace
}  // namespace tutti::test
