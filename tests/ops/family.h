// What the tests of the families that layers are made of share: goldens with second gradients (tests/golden/twice.py).
#pragma once

#include <functional>
#include <string>

#include "tests/ops/numbers.h"
#include "tests/support/compare.h"
#include "tests/support/expect_ops.h"
#include "tests/support/npz.h"
#include "tutti/ops.h"

namespace tutti::test {

struct Tolerance {
  double f64 = 1e-10, f32 = 1e-5;
};

/// Runs body on the case's inputs in f64 and f32 and compares outputs, gradients and second gradients. `orders` is how
/// many orders of gradients the case has.
void expect_golden(const Npz& file, const std::string& key, const std::function<TensorList(const TensorList&)>& body,
                   int orders = 2, Tolerance tolerance = {});

}  // namespace tutti::test
