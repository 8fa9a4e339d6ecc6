// A tensor that was never given a value, told in the name of the function it was given to.
#pragma once

#include "base/check.h"
#include "tutti/tensor.h"

namespace tutti {

inline void check_defined(const Tensor& x, const char* operation) {
  check<ValueError>(x.defined(), operation, "the tensor is undefined: it was never given a value");
}

}  // namespace tutti
