// The kernels of pooling. Tensors are [outer, depth, height, width, inner] in memory: inner is the channels of a
// channels-last tensor and else 1.
#pragma once

#include <cstdint>

#include "base/isa.h"
#include "tutti/dtype.h"

namespace tutti::pooling {

/// The windows along one spatial dim: positions first[o], first[o] + step, ..., count[o] of them, all inside.
struct Axis {
  int64_t in = 1, out = 1, step = 1;
  const int64_t* first = nullptr;
  const int64_t* count = nullptr;
  const int64_t* divisor = nullptr;             // averages divide by the product of these
  int64_t kernel = 0, stride = 0, padding = 0;  // of windows that are all alike; 0: they are not
};

struct Windows {
  Axis axis[3];
  int64_t outer, inner;
  int64_t divisor = 0;  // not 0: averages divide by this

  int64_t in() const { return axis[0].in * axis[1].in * axis[2].in; }
  int64_t out() const { return axis[0].out * axis[1].out * axis[2].out; }
  /// Rows of the result, along the width.
  int64_t rows() const { return outer * axis[0].out * axis[1].out; }
  /// Whether windows are whole and have no place in common.
  bool apart() const {
    for (const Axis& a : axis) {
      if (a.in == 1 && a.out == 1 && a.kernel <= 1) continue;
      int64_t reach = (a.kernel - 1) * a.step + 1;
      if (!a.kernel || a.padding || a.stride < reach || (a.out - 1) * a.stride + reach > a.in) return false;
    }
    return true;
  }
};

}  // namespace tutti::pooling

namespace tutti {

struct Operator;
struct Attributes;

/// Whether this is max_pool's gradient, from (gradient, indices), with something in every window.
bool is_max_pool_gradient(const Operator& op, const Attributes& attributes);

// f32 or f64. Rows begin..end of the result.
TUTTI_ISA_DECLARE(max_pool_rows, void,
                  (DType dtype, const pooling::Windows& w, const void* x, void* y, int64_t* indices, int64_t begin,
                   int64_t end))
TUTTI_ISA_DECLARE(avg_pool_rows, void,
                  (DType dtype, const pooling::Windows& w, const void* x, void* y, int64_t begin, int64_t end))
// The transpose of max_pool, for one `outer` and `count` inner elements from `first` on, where windows are apart():
// writes 0 + g where the largest was, and 0 in the rest of the windows.
TUTTI_ISA_DECLARE(max_pool_spread, void,
                  (DType dtype, const pooling::Windows& w, const void* g, const int64_t* indices, void* x,
                   int64_t outer, int64_t first, int64_t count))
// The transpose of avg_pool: adds the gradients of one `outer` to x's, for `count` inner elements from `first` on.
TUTTI_ISA_DECLARE(avg_pool_spread, void,
                  (DType dtype, const pooling::Windows& w, const void* g, void* x, int64_t outer, int64_t first,
                   int64_t count))

}  // namespace tutti
