// Comparing tensors with plain loops, so that a test does not lean on the operators it tests.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tutti/tensor.h"

namespace tutti::test {

/// Equal shapes, and values that agree within relative·(|expected| + 0.1·largest |expected|). Integers must be equal,
/// NaN and infinities must stand in the same places. Dtypes may differ.
testing::AssertionResult close(const Tensor& got, const Tensor& expected, double relative);
/// Equal shapes, dtypes and bits; any NaN equals any other.
testing::AssertionResult identical(const Tensor& got, const Tensor& expected);
/// Equal shape, dtype and strides.
testing::AssertionResult same_form(const Tensor& got, const Tensor& expected);

/// What a dtype can be expected to hold of a result: a few units in its last place.
double precision(DType dtype);

/// Numbers that stand for the gradient of an output: small, exact in every dtype, the same in golden/make.py.
Tensor fixed_weights(const Tensor& output);

/// The same values in memory that is not contiguous.
enum class Arrangement { contiguous, transposed, stepped, expanded, channels_last };
inline constexpr Arrangement kArrangements[] = {Arrangement::contiguous, Arrangement::transposed, Arrangement::stepped,
                                                Arrangement::expanded, Arrangement::channels_last};
const char* name(Arrangement arrangement);
/// Undefined where x cannot be arranged so (channels-last needs 4 dims). `expanded` repeats the first entry along the
/// first dim that has more than one, so its values differ from x's.
Tensor arrange(const Tensor& x, Arrangement arrangement);

}  // namespace tutti::test
