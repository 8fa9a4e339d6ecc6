// Pointwise operators under the names of functions that are made of them, so that errors name what was called.
#pragma once

#include <algorithm>
#include <iterator>

#include "pointwise/signature.h"

namespace tutti::pointwise {

const PointwiseOperator& where_operator();
const PointwiseOperator& mul_operator();

/// Of one of the two above.
inline PointwiseOperator renamed(const PointwiseOperator& op, const char* name) {
  PointwiseOperator other = op;
  other.name = name;
  return other;
}
/// The operator whose formula this is: mostly itself.
inline const PointwiseOperator& original(const PointwiseOperator& op) {
  for (const PointwiseOperator* known : {&where_operator(), &mul_operator()})
    if (std::equal(std::begin(op.kernels.forward), std::end(op.kernels.forward), known->kernels.forward)) return *known;
  return op;
}

}  // namespace tutti::pointwise
