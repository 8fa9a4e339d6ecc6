// Pointwise operators under the names of functions that are made of them, so that errors name what was called.
#pragma once

#include "pointwise/signature.h"

namespace tutti::pointwise {

const PointwiseOperator& where_operator();
const PointwiseOperator& mul_operator();

inline PointwiseOperator renamed(const PointwiseOperator& op, const char* name) {
  PointwiseOperator other = op;
  other.name = name;
  return other;
}

}  // namespace tutti::pointwise
