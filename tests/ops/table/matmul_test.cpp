// Rows of src/ops/matmul.
#include "tests/support/table.h"

namespace tutti::test {
namespace {

const bool products = add_rows({
    row("mm", [](In x) -> Out { return {mm(x[0], x[1])}; },
        {{value({2, 3}), value({3, 4})}, {value({2, 0}), value({0, 3})}})
        .takes(kNumber),
    row("mv", [](In x) -> Out { return {mv(x[0], x[1])}; }, {{value({2, 3}), value({3})}}).takes(kNumber),
    row("bmm", [](In x) -> Out { return {bmm(x[0], x[1])}; }, {{value({2, 2, 3}), value({2, 3, 2})}}).takes(kNumber),
    row("matmul.1x1", [](In x) -> Out { return {matmul(x[0], x[1])}; }, {{value({3}), value({3})}}).takes(kNumber),
    row("matmul.2x1", [](In x) -> Out { return {matmul(x[0], x[1])}; }, {{value({2, 3}), value({3})}}).takes(kNumber),
    row("matmul.1x2", [](In x) -> Out { return {matmul(x[0], x[1])}; }, {{value({3}), value({3, 2})}}).takes(kNumber),
    row("matmul.2x2", [](In x) -> Out { return {matmul(x[0], x[1])}; }, {{value({2, 3}), value({3, 2})}})
        .takes(kNumber),
    row("matmul.3x2", [](In x) -> Out { return {matmul(x[0], x[1])}; }, {{value({2, 2, 3}), value({3, 2})}})
        .takes(kNumber),
    row("matmul.batches", [](In x) -> Out { return {matmul(x[0], x[1])}; },
        {{value({2, 1, 2, 3}), value({2, 3, 2})}, {value({3}), value({2, 3, 2})}, {value({2, 2, 3}), value({3})}})
        .takes(kNumber),
    row("addmm", [](In x) -> Out { return {addmm(x[0], x[1], x[2]), addmm(x[0], x[1], x[2], 2, 3)}; },
        {{value({2, 4}), value({2, 3}), value({3, 4})}, {value({4}), value({2, 3}), value({3, 4})}})
        .takes(kNumber),
    row("baddbmm", [](In x) -> Out { return {baddbmm(x[0], x[1], x[2]), baddbmm(x[0], x[1], x[2], 2, 3)}; },
        {{value({2, 2, 2}), value({2, 2, 3}), value({2, 3, 2})}, {value({2, 1}), value({2, 2, 3}), value({2, 3, 2})}})
        .takes(kNumber),
    row("dot", [](In x) -> Out { return {dot(x[0], x[1])}; }, {{value({4}), value({4})}, {value({0}), value({0})}})
        .takes(kNumber),
    row("outer", [](In x) -> Out { return {outer(x[0], x[1])}; }, {{value({2}), value({3})}}).takes(kNumber),
    row("tensordot",
        [](In x) -> Out { return {tensordot(x[0], x[1]), tensordot(x[0], x[1], 1, 0), tensordot(x[0], x[1], 0)}; },
        {{value({2, 3, 2}), value({3, 2, 2})}})
        .takes(kNumber),
    row("einsum", [](In x) -> Out { return {einsum("bij,bjk->bik", x)}; }, {{value({2, 2, 3}), value({2, 3, 2})}})
        .takes(kNumber),
    row("einsum.trace",
        [](In x) -> Out { return {einsum("ii", {x[0]}), einsum("ii->i", {x[0]}), einsum("ij->ji", {x[0]})}; },
        {{value({3, 3})}})
        .takes(kNumber),
    row("einsum.ellipsis", [](In x) -> Out { return {einsum("...i,ij->...j", x)}; },
        {{value({2, 2, 3}), value({3, 2})}})
        .takes(kNumber),
    row("einsum.implicit", [](In x) -> Out { return {einsum("ij,jk", x), einsum("ij,jk->", x)}; },
        {{value({2, 3}), value({3, 2})}})
        .takes(kNumber),
    row("einsum.three", [](In x) -> Out { return {einsum("i,ij,j", x), einsum("a,ab,b->ab", x)}; },
        {{value({2}), value({2, 3}), value({3})}})
        .takes(kNumber)
        .loose(1, 10),
});

}  // namespace
}  // namespace tutti::test
