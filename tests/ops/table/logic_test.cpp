// Rows of src/pointwise/comparison.isa.cpp and logic.isa.cpp.
#include "tests/support/table.h"

namespace tutti::test {
namespace {

const bool comparisons = add_rows({
    POINTWISE(eq).takes(kNumber).no_gradient(),
    POINTWISE(ne).takes(kNumber).no_gradient(),
    POINTWISE(lt).no_gradient(),
    POINTWISE(le).no_gradient(),
    POINTWISE(gt).no_gradient(),
    POINTWISE(ge).no_gradient(),
    POINTWISE_PURE(isnan).takes(kNumber).no_gradient(),
    POINTWISE_PURE(isinf).takes(kNumber).no_gradient(),
    POINTWISE_PURE(isfinite).takes(kNumber).no_gradient(),
    POINTWISE_PURE(signbit).no_gradient(),
    POINTWISE_PURE(isclose).takes(kNumber).no_gradient().on({{-2, 2}, {-2, 2}, {0.1, 0.3}, {0.1, 0.5}}),
    row("isclose.equal_nan", [](In x) -> Out { return {isclose(x[0], x[1], 0.5, 0.5, true)}; },
        {{value({2, 3}), value({3})}, {value({0, 2}), value({})}})
        .takes(kNumber)
        .no_gradient()
        .reference([](In x) -> Out { return {isclose(x[0], x[1], 0.5, 0.5) | ((x[0] != x[0]) & (x[1] != x[1]))}; }),
});

const bool logic = add_rows({
    POINTWISE(logical_and).takes(kNumber).no_gradient(),
    POINTWISE(logical_or).takes(kNumber).no_gradient(),
    POINTWISE(logical_xor).takes(kNumber).no_gradient(),
    POINTWISE(logical_not).takes(kNumber).no_gradient(),
    POINTWISE(bitwise_and).takes(kBool | kInt).no_gradient().on({{-60, 60}, {-60, 60}}),
    POINTWISE(bitwise_or).takes(kBool | kInt).no_gradient().on({{-60, 60}, {-60, 60}}),
    POINTWISE(bitwise_xor).takes(kBool | kInt).no_gradient().on({{-60, 60}, {-60, 60}}),
    POINTWISE(bitwise_not).takes(kBool | kInt).no_gradient().bools_differ().on({{-60, 60}}),
    POINTWISE(shift_left).takes(kBool | kInt).no_gradient().on({{-7, 7}, {0, 4}}),
    POINTWISE(shift_right).takes(kBool | kInt).no_gradient().on({{-60, 60}, {0, 4}}),
});

}  // namespace
}  // namespace tutti::test
