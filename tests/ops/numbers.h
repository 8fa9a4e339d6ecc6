// Values that tests of several operators begin with or compare with.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tutti/ops.h"

namespace tutti::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr DType kAllDTypes[] = {f32, f64, bf16, f16, i8, u8, i16, i32, i64, boolean, c64, c128};

using Ints = std::vector<int64_t>;
inline Ints ints(const Tensor& t) { return t.to_vector<int64_t>(); }
/// 0, 1, 2, ... in row-major order.
inline Tensor counting(const Shape& sizes, DType dtype = f32) {
  return arange(sizes.product()).to(dtype).reshape(sizes);
}

/// Numbers without a pattern in [low, high), the same each time.
inline Tensor scattered(const Shape& sizes, DType dtype = f64, uint64_t seed = 1, double low = -1, double high = 1) {
  std::vector<double> v(static_cast<size_t>(sizes.product()));
  for (double& x : v) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    x = low + (high - low) * (static_cast<double>(seed >> 40) / 16777216.0);
  }
  return reshape(tensor(v, {f64}), sizes).to(dtype);
}

}  // namespace tutti::test
