// Matrix products to measure: of a layer, and of its two gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bench/support/measure.h"
#include "tutti/tensor.h"

namespace bench {

/// Uniform numbers between -2 and 2. Not by the library: a benchmark of one operator should not need another.
tutti::Tensor uniform(const tutti::Shape& sizes);

/// a [m, k] · b [k, n] = g [m, n], or the gradient of a (g · bᵀ) or of b (aᵀ · g).
struct Product {
  enum class Part { forward, grad_a, grad_b };
  Part part;
  int64_t m, k, n;

  /// "mm_64x1024x1024_grad_a_t1"
  std::string name(int threads) const;
  /// "mm", "mm_grad_a" or "mm_grad_b"
  std::string kind() const;
  double gflop() const { return 2e-9 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n); }
  /// The product by Tutti.
  Contender by_tutti() const;
};

/// Calls f for every product that benchmarks measure.
void for_each_product(const std::function<void(const Product&)>& f);

}  // namespace bench
