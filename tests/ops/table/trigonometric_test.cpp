// Rows of src/pointwise/trigonometric.isa.cpp.
#include <cmath>

#include "tests/support/table.h"

namespace tutti::test {
namespace {

const bool trigonometry = add_rows({
    POINTWISE(sin).takes(kNumber),
    POINTWISE(cos).takes(kNumber),
    POINTWISE(tan).takes(kNumber).on({{-1.2, 1.2}}),
    POINTWISE(asin).takes(kNumber).on({{-0.9, 0.9}}),
    POINTWISE(acos).takes(kNumber).on({{-0.9, 0.9}}),
    POINTWISE(atan).takes(kNumber),
    POINTWISE(atan2),
    POINTWISE(sinh).takes(kNumber),
    POINTWISE(cosh).takes(kNumber),
    POINTWISE(tanh).takes(kNumber),
    POINTWISE(asinh).takes(kNumber),
    POINTWISE(acosh).takes(kNumber).on({{1.2, 4}}),
    POINTWISE(atanh).takes(kNumber).on({{-0.9, 0.9}}),
    POINTWISE(sinc).has_limits().differs(
        "exactly 0 at whole numbers",
        [](auto& x, double ours, double) { return x[0] != 0 && x[0] == std::round(x[0]) && ours == 0; }),
    POINTWISE(deg2rad),
    POINTWISE(rad2deg),
});

}  // namespace
}  // namespace tutti::test
