#include "tutti/nn/activation.h"

#include "base/check.h"

namespace tutti::nn {

Tensor GLU::forward(const Tensor& x) {
  check<ShapeError>(x.size(dim) % 2 == 0, "GLU", "dim {} of {} does not divide into halves", dim, x);
  int64_t half = x.size(dim) / 2;
  return x.narrow(dim, 0, half) * sigmoid(x.narrow(dim, half, half));
}

}  // namespace tutti::nn
