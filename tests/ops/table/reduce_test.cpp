// Rows of src/ops/reduce.
#include <limits>

#include "tests/support/table.h"

namespace tutti::test {
namespace {

const double infinity = std::numeric_limits<double>::infinity();

const bool reductions = add_rows({
    row("sum", [](In x) -> Out { return {sum(x[0])}; }, {{value({2, 3})}, {value({})}, {value({0, 3})}})
        .takes(kNumber)
        .widens_integers(),
    row("sum.dims", [](In x) -> Out { return {sum(x[0], {0, -1}), sum(x[0], 1, true)}; },
        {{value({2, 3, 4})}, {value({2, 3, 2, 2})}, {value({2, 0, 3})}})
        .takes(kNumber)
        .widens_integers(),
    row("sum.dtype", [](In x) -> Out { return {sum(x[0], 1, false, c128)}; }, {{value({2, 3})}})
        .takes(kNumber)
        .chooses_dtype(),
    row("mean", [](In x) -> Out { return {mean(x[0])}; }, {{value({2, 3})}, {value({})}}).takes(kFloat | kComplex),
    row("mean.dims", [](In x) -> Out { return {mean(x[0], {0, -1}), mean(x[0], 1, true)}; },
        {{value({2, 3, 4})}, {value({2, 3, 2, 2})}})
        .takes(kFloat | kComplex),
    row("prod", [](In x) -> Out { return {prod(x[0])}; }, {{value({2, 3}, {0.5, 2})}, {value({})}, {value({0, 3})}})
        .takes(kNumber)
        .widens_integers()
        .constant_gradient([](In x) { return x[0].numel() == 0; }),
    row("prod.dims", [](In x) -> Out { return {prod(x[0], {0, 1}), prod(x[0], -1, true)}; },
        {{value({2, 3, 2}, {0.5, 2})}})
        .takes(kNumber)
        .widens_integers(),
    // The product of the others is the derivative by a zero.
    row("prod.zeros",
        [](In x) -> Out { return {prod(x[0] * tensor({{1, 0, 1}, {0, 1, 0}}, {i64}).to(x[0].device()), 1)}; },
        {{value({2, 3}, {0.5, 2})}})
        .speaks_of("mul")
        .speaks_of("device")
        .takes(kNumber)
        .widens_integers(),
    row("amax", [](In x) -> Out { return {amax(x[0]), amax(x[0], {0, 2}), amax(x[0], -1, true)}; },
        {{value({2, 3, 2})}}),
    row("amin", [](In x) -> Out { return {amin(x[0]), amin(x[0], {0, 2}), amin(x[0], -1, true)}; },
        {{value({2, 3, 2})}}),
    row("max", [](In x) -> Out { return {max(x[0])}; }, {{value({2, 3})}, {value({})}}),
    row("min", [](In x) -> Out { return {min(x[0])}; }, {{value({2, 3})}, {value({})}}),
    row("max.dim", [](In x) -> Out { return both(max(x[0], 1)); }, {{value({2, 3, 2})}, {value({2, 3, 2, 2})}}),
    row("min.dim", [](In x) -> Out { return both(min(x[0], -1, true)); }, {{value({2, 3, 2})}, {value({2, 3, 2, 2})}}),
    row("min.two", [](In x) -> Out { return {min(x[0], x[1])}; }, {{value({2, 3}), value({3})}})
        .reference([](In x) -> Out { return {where(x[0] < x[1], x[0], x[1])}; }),
    row("min.number", [](In x) -> Out { return {min(x[0], 0.25)}; }, {{value({2, 3})}}).reference([](In x) -> Out {
      return {where(x[0] < 0.25, x[0], 0.25)};
    }),
    row("max.two", [](In x) -> Out { return {max(x[0], x[1])}; }, {{value({2, 3}), value({3})}})
        .reference([](In x) -> Out { return {where(x[0] > x[1], x[0], x[1])}; }),
    row("max.number", [](In x) -> Out { return {max(x[0], 0.25)}; }, {{value({2, 3})}}).reference([](In x) -> Out {
      return {where(x[0] > 0.25, x[0], 0.25)};
    }),
    row("argmax", [](In x) -> Out { return {argmax(x[0]), argmax(x[0], 0), argmax(x[0], -1, true)}; },
        {{value({3, 4})}})
        .no_gradient(),
    row("argmin", [](In x) -> Out { return {argmin(x[0]), argmin(x[0], 0), argmin(x[0], -1, true)}; },
        {{value({3, 4})}})
        .no_gradient(),
    row("all", [](In x) -> Out { return {all(x[0]), all(x[0], 1), all(x[0], {0}, true)}; },
        {{value({3, 4})}, {value({2, 0})}})
        .takes(kNumber)
        .no_gradient(),
    row("any", [](In x) -> Out { return {any(x[0]), any(x[0], 1), any(x[0], {0}, true)}; },
        {{value({3, 4})}, {value({2, 0})}})
        .takes(kNumber)
        .no_gradient(),
    row("count_nonzero",
        [](In x) -> Out { return {count_nonzero(x[0]), count_nonzero(x[0], 1), count_nonzero(x[0], 0, true)}; },
        {{value({3, 4})}})
        .takes(kNumber)
        .no_gradient(),
    row("norm", [](In x) -> Out { return {norm(x[0]), norm(x[0], 2, 1), norm(x[0], 2, {0}, true)}; }, {{value({3, 4})}})
        .takes(kFloat | kComplex),
    row("norm.1", [](In x) -> Out { return {norm(x[0], 1), norm(x[0], 1, -1)}; }, {{value({3, 4})}})
        .takes(kFloat | kComplex),
    row("norm.3", [](In x) -> Out { return {norm(x[0], 3), norm(x[0], 3, 0)}; }, {{value({3, 4})}})
        .takes(kFloat | kComplex),
    row("norm.half", [](In x) -> Out { return {norm(x[0], 0.5, 0)}; }, {{value({3, 4})}}).takes(kFloat | kComplex),
    row("norm.infinity", [](In x) -> Out { return {norm(x[0], infinity), norm(x[0], -infinity, 1)}; },
        {{value({3, 4})}})
        .takes(kFloat | kComplex),
    row("norm.0", [](In x) -> Out { return {norm(x[0], 0), norm(x[0], 0, 1)}; }, {{value({3, 4})}})
        .takes(kFloat | kComplex)
        .no_gradient(),
    row("var", [](In x) -> Out { return {var(x[0]), var(x[0], 1), var(x[0], {0, 1}, true, 0)}; }, {{value({3, 4})}})
        .takes(kFloat | kComplex),
    row("stddev", [](In x) -> Out { return {stddev(x[0]), stddev(x[0], 1), stddev(x[0], {0, 1}, true, 0)}; },
        {{value({3, 4})}})
        .takes(kFloat | kComplex)
        .loose(1, 4),
    row("trace", [](In x) -> Out { return {trace(x[0])}; }, {{value({3, 4})}, {value({2, 0})}})
        .takes(kNumber)
        .widens_integers(),
    row("median", [](In x) -> Out { return {median(x[0])}; }, {{value({2, 4})}, {value({})}}),
    row("median.dim",
        [](In x) -> Out {
          auto rows = median(x[0], 1), columns = median(x[0], 0, true);
          return {rows.values, rows.indices, columns.values, columns.indices};
        },
        {{value({3, 4})}}),
    row("logsumexp", [](In x) -> Out { return {logsumexp(x[0]), logsumexp(x[0], 1), logsumexp(x[0], {0, 1}, true)}; },
        {{value({3, 4})}, {value({2, 3, 2, 2})}})
        .takes(kFloat),
    row("cumsum", [](In x) -> Out { return {cumsum(x[0], 0), cumsum(x[0], -1)}; },
        {{value({2, 3, 2})}, {value({0, 2})}})
        .takes(kNumber)
        .widens_integers(),
    row("cumprod", [](In x) -> Out { return {cumprod(x[0], 0), cumprod(x[0], -1)}; }, {{value({2, 3}, {0.5, 2})}})
        .takes(kNumber)
        .widens_integers(),
    row("softmax", [](In x) -> Out { return {softmax(x[0], -1), softmax(x[0], 0)}; },
        {{value({2, 3, 2})}, {value({2, 3, 2, 2})}})
        .takes(kFloat)
        .loose(1, 4),
    row("softmax.dtype", [](In x) -> Out { return {softmax(x[0], 0, f64), log_softmax(x[0], -1, f64)}; },
        {{value({2, 3})}, {value({})}})
        .takes(kReal)
        .chooses_dtype(),
    row("cumsum.dtype", [](In x) -> Out { return {cumsum(x[0], 0, f64), cumprod(x[0], -1, f64)}; }, {{value({2, 3})}})
        .takes(kReal)
        .chooses_dtype(),
    row("log_softmax", [](In x) -> Out { return {log_softmax(x[0], -1), log_softmax(x[0], 0)}; },
        {{value({2, 3, 2})}, {value({2, 3, 2, 2})}})
        .takes(kFloat),
});

}  // namespace
}  // namespace tutti::test
