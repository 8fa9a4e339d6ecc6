// Rows of src/ops/random. All begin at one seed, so that a plain reference can draw the same numbers.
#include "tutti/random.h"

#include <gtest/gtest.h>

#include "tests/ops/plain_philox.h"
#include "tests/support/table.h"

namespace tutti::test {
namespace {

constexpr PlainStream kStream{kRowSeed};

// The tensor whose element i is f(i).
template <class F>
Tensor elements(const Shape& sizes, DType dtype, F f) {
  std::vector<double> values;
  for (int64_t i = 0; i < sizes.product(); ++i) values.push_back(static_cast<double>(f(i)));
  return tensor(values, {.dtype = dtype}).view(sizes);
}
Tensor uniforms(const Shape& sizes, DType dtype) {
  return elements(sizes, dtype,
                  [&](int64_t i) { return dtype == f32 ? kStream.uniform_f32(i) : kStream.uniform_f64(i); });
}
Tensor normals(const Shape& sizes, DType dtype) {
  return elements(sizes, dtype,
                  [&](int64_t i) { return dtype == f32 ? kStream.normal_f32(i) : kStream.normal_f64(i); });
}

// Fisher and Yates.
Tensor permutation(int64_t n) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < n; ++i) order.push_back(i);
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)], order[kStream.below(static_cast<uint64_t>(i) + 1, i)]);
  return tensor(order);
}

const bool from_sizes = add_rows({
    row("rand", [](In) -> Out { return {rand({3, 50})}; }, {})
        .takes(kFloat | kComplex)
        .random()
        .creates([](Options o) -> Out { return {rand({3, 5}, o), rand({0, 2}, o), rand({}, o)}; })
        .reference([](In) -> Out { return {uniforms({3, 50}, f32)}; }),
    row("rand.f64", [](In) -> Out { return {rand({3, 50}, f64)}; }, {}).random().reference([](In) -> Out {
      return {uniforms({3, 50}, f64)};
    }),
    row("randn", [](In) -> Out { return {randn({3, 50})}; }, {})
        .takes(kFloat | kComplex)
        .random()
        .creates([](Options o) -> Out { return {randn({3, 5}, o), randn({0, 2}, o), randn({}, o)}; })
        .reference([](In) -> Out { return {normals({3, 50}, f32)}; }),
    row("randn.f64", [](In) -> Out { return {randn({3, 50}, f64)}; }, {}).random().reference([](In) -> Out {
      return {normals({3, 50}, f64)};
    }),
    row("randint", [](In) -> Out { return {randint(-4, 1000, {3, 50})}; }, {})
        .takes(kNumber)
        .random()
        .creates([](Options o) -> Out { return {randint(0, 2, {3, 5}, o), randint(0, 2, {0}, o)}; })
        .reference(
            [](In) -> Out { return {elements({3, 50}, i64, [](int64_t i) { return kStream.below(1004, i); }) - 4}; }),
    row("randint.from_zero", [](In) -> Out { return {randint(7, {3, 50}, {u8})}; }, {})
        .random()
        .reference([](In) -> Out { return {elements({3, 50}, u8, [](int64_t i) { return kStream.below(7, i); })}; }),
    row("randperm", [](In) -> Out { return {randperm(100)}; }, {})
        .takes(kNumber)
        .random()
        .creates([](Options o) -> Out { return {randperm(2, o), randperm(0, o)}; })
        .reference([](In) -> Out { return {permutation(100)}; }),
});

// Of one dtype the numbers are rand's; each dtype has numbers of its own.
const bool alike = add_rows({
    row("rand_like", [](In x) -> Out { return {rand_like(x[0])}; }, {{value({5, 20})}, {value({2, 3, 2, 2})}})
        .takes(kFloat | kComplex)
        .no_gradient()
        .shows_bytes()
        .random()
        .reference([](In x) -> Out { return {uniforms(x[0].sizes(), x[0].dtype())}; }),
    row("randn_like", [](In x) -> Out { return {randn_like(x[0])}; }, {{value({5, 20})}, {value({2, 3, 2, 2})}})
        .takes(kFloat | kComplex)
        .no_gradient()
        .shows_bytes()
        .random()
        .reference([](In x) -> Out { return {normals(x[0].sizes(), x[0].dtype())}; }),
});

// The numbers of each row of weights begin at a multiple of 64.
Tensor numbers_of_rows(const Tensor& weights, int64_t count) {
  Shape sizes = weights.sizes(), padded = sizes;
  padded[padded.size() - 1] = 64;
  return narrow(uniforms(padded, f64), -1, 0, count);
}

const bool drawn = add_rows({
    row("bernoulli", [](In x) -> Out { return {bernoulli(x[0])}; }, {{value({5, 20}, {0, 1})}, {value({3}, {0, 1})}})
        .takes(kFloat)
        .constant_gradient()
        .random()
        .reference([](In x) -> Out { return {cast(lt(uniforms(x[0].sizes(), f64), x[0]), x[0].dtype())}; }),
    row("multinomial", [](In x) -> Out { return {multinomial(x[0], 3)}; },
        {{value({2, 5}, {0.1, 2})}, {value({4}, {0.1, 2})}})
        .takes(kFloat)
        .no_gradient()
        .random()
        // The first to arrive, where each comes after a time that is exponential.
        .reference([](In x) -> Out {
          Tensor times = -log1p(-numbers_of_rows(x[0], x[0].size(-1))) / x[0];
          return {narrow(argsort(times, -1), -1, 0, 3)};
        }),
    row("multinomial.replacement", [](In x) -> Out { return {multinomial(x[0], 7, true)}; },
        {{value({2, 5}, {0.1, 2})}, {value({4}, {0.1, 2})}})
        .takes(kFloat)
        .no_gradient()
        .random()
        // How many of the sums of weights lie below a share of the whole.
        .reference([](In x) -> Out {
          Tensor sums = cumsum(cast(x[0], f64), -1), whole = narrow(sums, -1, x[0].size(-1) - 1, 1);
          Tensor share = numbers_of_rows(x[0], 7) * whole;
          return {sum(le(unsqueeze(sums, -2), unsqueeze(share, -1)), -1)};
        }),
});

const bool dropouts = add_rows({
    // Under one seed the same elements are dropped: those of ones are the mask.
    row("dropout", [](In x) -> Out { return {dropout(x[0], 0.4)}; }, {{value({4, 5})}})
        .takes(kFloat | kComplex)
        .changes([](TensorList& x) { dropout_(x[0], 0.4); })
        .random()
        .reference([](In x) -> Out {
          Tensor kept = elements(x[0].sizes(), boolean, [](int64_t i) { return kStream.word(i) >= 0.4 * 0x1p32; });
          auto count = sum(kept).item<int64_t>();
          EXPECT_TRUE(count > 4 && count < 19) << count << " of 20 are kept";
          return {x[0] * kept / 0.6};
        }),
    row("dropout.off", [](In x) -> Out { return {dropout(x[0], 0.4, false)}; }, {{value({2, 3})}})
        .takes(kNumber)
        .reference([](In x) -> Out { return {x[0]}; }),
});

}  // namespace
}  // namespace tutti::test
