// Indices drawn by weights.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/random/draw.h"
#include "ops/random/kernels.h"
#include "tensor/impl.h"
#include "tutti/operator.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Draws {
  int64_t count;
  bool replacement;
  TUTTI_FIELDS(count, replacement)
};

// Whether a distribution (and enough draws) can be made of the weights. Row by row before anything is drawn, so that
// the first row that is wrong is the one named.
void check_weights(const double* w, int64_t n, int64_t row, const Draws& draws) {
  double sum = 0;
  int64_t positive = 0;
  for (int64_t i = 0; i < n; ++i) {
    check<ValueError>(w[i] >= 0 && std::isfinite(w[i]), "multinomial",
                      "weights must be finite and not negative; weight {} of row {} is {}", i, row, w[i]);
    sum += w[i];
    positive += w[i] > 0;
  }
  check<ValueError>(sum > 0 && std::isfinite(sum), "multinomial",
                    "the weights of row {} sum to {}; a positive, finite sum is needed", row, sum);
  check<ValueError>(draws.replacement || draws.count <= positive, "multinomial",
                    "cannot draw {} different indices from row {}, which has {} positive weights", draws.count, row,
                    positive);
}

// The first index whose sum exceeds u·total: never one of weight zero.
void draw_with_replacement(const double* w, int64_t n, const double* u, int64_t count, int64_t* out) {
  std::vector<double> sums(static_cast<size_t>(n));
  std::partial_sum(w, w + n, sums.begin());
  int64_t last = n - 1;
  while (w[last] == 0) --last;
  for (int64_t k = 0; k < count; ++k)
    out[k] = std::min(last, std::upper_bound(sums.begin(), sums.end(), u[k] * sums.back()) - sums.begin());
}

// A race: index i arrives after a time that is exponential with rate w[i]; the first `count` are drawn, in that order.
// (What is drawn next among those left has just the probabilities of their weights.)
void draw_without_replacement(const double* w, int64_t n, double* times, int64_t count, int64_t* out) {
  std::vector<int64_t> runners;
  for (int64_t i = 0; i < n; ++i) {
    if (w[i] == 0) continue;
    times[i] /= w[i];
    runners.push_back(i);
  }
  std::partial_sort(runners.begin(), runners.begin() + count, runners.end(),
                    [&](int64_t a, int64_t b) { return times[a] != times[b] ? times[a] < times[b] : a < b; });
  std::copy_n(runners.begin(), count, out);
}

const Operator multinomial_op{
    .name = "multinomial",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          Shape sizes = c.input(0).sizes();
          sizes[sizes.size() - 1] = c.as<Draws>().count;
          out[0] = {.sizes = sizes, .dtype = DType::i64, .device = c.input(0).device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          const auto& a = c.as<Draws>();
          Tensor weights = c.input(0).detach().to(DType::f64).contiguous();
          int64_t n = weights.size(-1), rows = n ? weights.numel() / n : 0;
          if (rows == 0 || c.output().numel() == 0) return;
          const double* w = weights.data<double>();
          auto* out = c.output().data<int64_t>();
          for (int64_t r = 0; r < rows; ++r) check_weights(w + r * n, n, r, a);
          int64_t each = a.replacement ? a.count : n;  // numbers a row needs
          // Rows start at groups, so that a row's numbers can be made on their own.
          int64_t stride = (each + kElementsOfOneWord - 1) / kElementsOfOneWord * kElementsOfOneWord;
          auto state = reserve_words(rows * stride, 2);
          parallel_for(rows, std::max<int64_t>(1, 4096 / each), [&](int64_t begin, int64_t end) {
            std::vector<double> numbers(static_cast<size_t>(each));
            for (int64_t r = begin; r < end; ++r) {
              RandomRange range{state.seed, state.position, r * stride, each};
              if (a.replacement) {
                random_uniform_f64_pointer()(range, 0, 1, 1, numbers.data());
                draw_with_replacement(w + r * n, n, numbers.data(), a.count, out + r * a.count);
              } else {
                random_exponential_f64_pointer()(range, numbers.data());
                draw_without_replacement(w + r * n, n, numbers.data(), a.count, out + r * a.count);
              }
            }
          });
        },
    .random = true,
};

}  // namespace

Tensor multinomial(const Tensor& weights, int64_t count, bool replacement) {
  check<ValueError>(weights.defined(), "multinomial", "the input is undefined: it was never given a value");
  check<ShapeError>(weights.dim() == 1 || weights.dim() == 2, "multinomial", "needs weights of 1 or 2 dims, not {}",
                    weights);
  check<DTypeError>(weights.is_floating(), "multinomial", "needs floating-point weights, not {}", weights);
  check<ValueError>(count >= 0, "multinomial", "cannot draw {} indices", count);
  int64_t n = weights.size(-1);
  check<ValueError>(n > 0 || count == 0, "multinomial", "{} has no weights to draw by", weights);
  check<ValueError>(replacement || count <= n, "multinomial",
                    "cannot draw {} different indices from {} weights; draw with replacement", count, n);
  Draws a{count, replacement};
  return call(multinomial_op, {&weights}, attributes(a));
}

}  // namespace tutti
