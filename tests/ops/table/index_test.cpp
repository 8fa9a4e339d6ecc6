// Rows of src/ops/index.
#include "tests/support/table.h"

namespace tutti::test {
namespace {

const Input pairs = indices({2, 2}, {0, 2, 1, 0});
const Input row_mask = mask({2, 3}, {1, 0, 1, 0, 0, 1});

const bool indexing = add_rows({
    row("index.basic",
        [](In x) -> Out {
          return {index(x[0], {1}), index(x[0], {Slice(1, {}), Ellipsis, -1}),
                  index(x[0], {Ellipsis, NewAxis, Slice({}, {}, 2)})};
        },
        {{value({3, 2, 4})}})
        .takes(kNumber),
    row("index.tensor", [](In x) -> Out { return {index(x[0], {x[1]}), index(x[0], {Slice(), x[1] % 2})}; },
        {{value({3, 2}), indices({2, 2}, {0, -1, 1, 0})}})
        .takes(kNumber),
    row("index.tensors", [](In x) -> Out { return {index(x[0], {x[1], Slice(), x[2]}), index(x[0], {x[1], x[2]})}; },
        {{value({3, 2, 2}), indices({3}, {0, 2, 0}), indices({3}, {1, 0, 1})}})
        .takes(kNumber),
    row("index.mask", [](In x) -> Out { return {index(x[0], {x[1]}), index(x[0], {1, select(x[1], 0, 0)})}; },
        {{value({2, 3}), row_mask}})
        .takes(kNumber)
        .dynamic(),
    row("index_put", [](In x) -> Out { return {index_put(x[0], {x[1]}, x[2]), index_put(x[0], {Slice(), 1}, x[3])}; },
        {{value({3, 2}), indices({2}, {2, 0}), value({2, 2}), value({3})}})
        .takes(kNumber),
    row("index_put.accumulate", [](In x) -> Out { return {index_put(x[0], {x[1]}, x[2], true)}; },
        {{value({3, 2}), indices({3}, {0, 2, 0}), value({3, 2})}, {value({3, 2}), indices({3}, {0, 2, 0}), value({2})}})
        .takes(kNumber)
        .changes([](TensorList& x) { x[0].index_put_({x[1]}, x[2], true); }),
    row("gather", [](In x) -> Out { return {gather(x[0], 0, x[1])}; },
        {{value({3, 2}), pairs}, {value({3, 3}), indices({1, 2}, {2, 2})}})
        .takes(kNumber),
    row("scatter", [](In x) -> Out { return {scatter(x[0], 0, x[1], x[2])}; }, {{value({3, 2}), pairs, value({2, 2})}})
        .takes(kNumber)
        .changes([](TensorList& x) { scatter_(x[0], 0, x[1], x[2]); }),
    row("scatter_add", [](In x) -> Out { return {scatter_add(x[0], 1, x[1], x[2])}; },
        {{value({2, 3}), indices({2, 3}, {0, 0, 2, 1, 1, 1}), value({2, 3})}})
        .takes(kNumber)
        .changes([](TensorList& x) { scatter_add_(x[0], 1, x[1], x[2]); }),
    row("index_select", [](In x) -> Out { return {index_select(x[0], 1, x[1])}; },
        {{value({2, 3}), indices({4}, {2, 0, 0, 1})},
         {value({2, 3, 2, 2}), indices({2}, {2, 0})},
         {value({2, 3}), indices({0}, {})}})
        .takes(kNumber),
    row("index_add", [](In x) -> Out { return {index_add(x[0], 0, x[1], x[2])}; },
        {{value({3, 2}), indices({4}, {0, 2, 0, 0}), value({4, 2})}})
        .takes(kNumber)
        .changes([](TensorList& x) { index_add_(x[0], 0, x[1], x[2]); }),
    row("index_copy", [](In x) -> Out { return {index_copy(x[0], 0, x[1], x[2])}; },
        {{value({3, 2}), indices({2}, {2, 0}), value({2, 2})}})
        .takes(kNumber)
        .changes([](TensorList& x) { index_copy_(x[0], 0, x[1], x[2]); }),
    row("index_fill", [](In x) -> Out { return {index_fill(x[0], 1, x[1], x[2])}; },
        {{value({2, 3}), indices({2}, {2, 0}), value({})}})
        .takes(kNumber)
        .changes([](TensorList& x) { index_fill_(x[0], 1, x[1], x[2]); }),
    row("masked_select", [](In x) -> Out { return {masked_select(x[0], x[1])}; },
        {{value({2, 3}), row_mask}, {value({2, 3}), mask({3}, {1, 0, 1})}})
        .takes(kNumber)
        .dynamic(),
    row("masked_fill", [](In x) -> Out { return {masked_fill(x[0], x[1], x[2])}; },
        {{value({2, 3}), row_mask, value({})}})
        .takes(kNumber)
        .changes([](TensorList& x) { x[0].masked_fill_(x[1], x[2]); }),
    row("nonzero", [](In x) -> Out { return {nonzero(x[0])}; }, {{value({2, 3})}, {value({0, 3})}})
        .takes(kNumber)
        .no_gradient()
        .dynamic(),
    row("topk", [](In x) -> Out { return both(topk(x[0], 2)); }, {{value({2, 5})}, {value({3, 4, 2})}}),
    row("topk.smallest", [](In x) -> Out { return both(topk(x[0], 2, 0, false)); }, {{value({4, 3})}}),
    row("sort", [](In x) -> Out { return both(sort(x[0])); }, {{value({2, 5})}, {value({})}, {value({2, 0})}}),
    row("sort.descending", [](In x) -> Out { return both(sort(x[0], 0, true)); }, {{value({4, 3})}}),
    row("argsort", [](In x) -> Out { return {argsort(x[0]), argsort(x[0], 0, true)}; }, {{value({4, 3})}})
        .no_gradient(),
    row("kthvalue",
        [](In x) -> Out {
          auto rows = kthvalue(x[0], 2), columns = kthvalue(x[0], 3, 0, true);
          return {rows.values, rows.indices, columns.values, columns.indices};
        },
        {{value({3, 4})}}),
    row("bincount", [](In x) -> Out { return {bincount(x[0]), bincount(x[0], {}, 7)}; }, {{indices({4}, {0, 3, 1, 3})}})
        .no_gradient()
        .dynamic(),
    row("one_hot", [](In x) -> Out { return {one_hot(x[0], 4)}; }, {{indices({2, 3}, {0, 3, 1, 2, 2, 0})}})
        .no_gradient(),
    row("one_hot.unknown", [](In x) -> Out { return {one_hot(x[0])}; }, {{indices({2, 3}, {0, 3, 1, 2, 2, 0})}})
        .no_gradient()
        .dynamic(),
});

}  // namespace
}  // namespace tutti::test
