// Descriptors of pointwise operators that passes over graphs look for.
#pragma once

#include "pointwise/signature.h"

namespace tutti::pointwise {

const PointwiseOperator& add_operator();
const PointwiseOperator& relu_operator();

}  // namespace tutti::pointwise
