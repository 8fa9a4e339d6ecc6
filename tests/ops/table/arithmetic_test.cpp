// Rows of src/pointwise/arithmetic.isa.cpp, complex.isa.cpp, rounding.isa.cpp and select.isa.cpp.
#include "tests/support/table.h"

namespace tutti::test {
namespace {

const bool arithmetic = add_rows({
    POINTWISE(add).takes(kNumber),
    POINTWISE(sub).takes(kNumber & ~kBool),
    POINTWISE(mul).takes(kNumber),
    POINTWISE(div).takes(kNumber).on({{-2, 2}, {0.5, 2}}),
    POINTWISE(floor_divide).on({{-5, 5}, {0.5, 3}}).constant_gradient(),
    POINTWISE(trunc_divide).on({{-5, 5}, {0.5, 3}}).constant_gradient(),
    POINTWISE(remainder).on({{-5, 5}, {0.6, 2.5}}),
    POINTWISE(fmod).on({{-5, 5}, {0.6, 2.5}}),
    POINTWISE(neg).takes(kNumber & ~kBool),
    POINTWISE(reciprocal).takes(kNumber).on({{0.5, 2}}),
    POINTWISE(square).takes(kNumber),
    POINTWISE(abs).takes(kNumber),
    POINTWISE(sign).keeps_nan().any_zero().constant_gradient(),
    POINTWISE(pow).takes(kNumber).on({{0.3, 2}, {-2, 2}}),
    POINTWISE(maximum).any_zero(),
    POINTWISE(minimum).any_zero(),
    POINTWISE(fmax).any_zero(),
    POINTWISE(fmin).any_zero(),
    POINTWISE(clamp).on({{-2, 2}, {-1, -0.2}, {0.2, 1}}),
    POINTWISE(clamp_min).any_zero(),
    POINTWISE(clamp_max).any_zero(),
    POINTWISE(lerp).takes(kNumber).on({{-2, 2}, {-2, 2}, {-0.3, 1.3}}),
    POINTWISE(addcmul).takes(kNumber),
    POINTWISE(addcdiv).takes(kNumber).on({{-2, 2}, {-2, 2}, {0.5, 2}, {-2, 2}}),
    POINTWISE(hypot),
    POINTWISE(copysign),
    POINTWISE(heaviside).keeps_nan(),
    POINTWISE(fused_multiply_add),
    POINTWISE(conj).takes(kNumber),
    row("add.alpha", [](In x) -> Out { return {add(x[0], x[1], 3), add(x[0], x[1], x[2])}; },
        {{value({2, 3}), value({3}), value({2, 1})}, {value({0, 2}), value({2}), value({})}})
        .takes(kNumber)
        .reference([](In x) -> Out { return {x[0] + x[1] * 3, x[0] + x[1] * x[2]}; }),
    row("sub.alpha", [](In x) -> Out { return {sub(x[0], x[1], 3), sub(x[0], x[1], x[2])}; },
        {{value({2, 3}), value({3}), value({2, 1})}, {value({0, 2}), value({2}), value({})}})
        .takes(kNumber)
        .reference([](In x) -> Out { return {x[0] - x[1] * 3, x[0] - x[1] * x[2]}; }),
});

const bool rounding = add_rows({
    POINTWISE(floor).on({{-3, 3}}).constant_gradient(),
    POINTWISE(ceil).on({{-3, 3}}).constant_gradient(),
    POINTWISE(round).on({{-3, 3}}).constant_gradient(),
    POINTWISE(trunc).on({{-3, 3}}).constant_gradient(),
    POINTWISE(frac).on({{-3, 3}}),
});

const bool choices = add_rows({
    POINTWISE_PURE(where).takes(kNumber).chooses(),
    POINTWISE(nan_to_num),
    row("nan_to_num.nan", [](In x) -> Out { return {nan_to_num(x[0]), nan_to_num(x[0], 2)}; },
        {{value({2, 3})}, {value({0, 3})}})
        .takes(kNumber)
        .reference([](In x) -> Out { return {x[0], x[0]}; }),
});

}  // namespace
}  // namespace tutti::test
