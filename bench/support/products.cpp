#include "bench/support/products.h"

#include <fmt/format.h>

#include "tutti/tutti.h"

namespace bench {

using tutti::Tensor;

Tensor uniform(const tutti::Shape& sizes) {
  static uint64_t state = 1;
  Tensor x = tutti::empty(sizes);
  float* data = x.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-30f;
  }
  return x;
}

std::string Product::kind() const {
  return part == Part::forward ? "mm" : part == Part::grad_a ? "mm_grad_a" : "mm_grad_b";
}

std::string Product::name(int threads) const {
  return fmt::format("mm_{}x{}x{}{}_t{}", m, k, n, kind().substr(2), threads);
}

Contender Product::by_tutti() const {
  Tensor a = uniform({m, k}), b = uniform({k, n}), g = uniform({m, n});
  Tensor left = part == Part::forward ? a : part == Part::grad_a ? g : a.t();
  Tensor right = part == Part::forward ? b : part == Part::grad_a ? b.t() : g;
  return contender("tutti", [=] { tutti::mm(left, right); });
}

void for_each_product(const std::function<void(const Product&)>& f) {
  constexpr int64_t shapes[][3] = {{64, 1024, 1024}, {512, 512, 512}, {1024, 1024, 1024},
                                   {128, 768, 3072}, {256, 256, 256}, {8, 64, 64}};
  for (auto [m, k, n] : shapes)
    for (auto part : {Product::Part::forward, Product::Part::grad_a, Product::Part::grad_b}) f({part, m, k, n});
}

}  // namespace bench
