// Rows of src/ops/view: views, and shape operators that copy.
#include "tests/support/table.h"

namespace tutti::test {
namespace {

const bool views = add_rows({
    row("view", [](In x) -> Out { return {view(x[0], {3, -1})}; }, {{value({2, 3, 2})}, {value({0, 3})}})
        .takes(kNumber)
        .contiguous_only(),
    row("view_dtype", [](In x) -> Out { return {view_dtype(x[0], i16)}; }, {{value({2, 4})}})
        .takes(kNumber)
        .shows_bytes()
        .no_gradient()
        .contiguous_only(),
    row("reshape", [](In x) -> Out { return {reshape(x[0], {4, -1})}; }, {{value({2, 3, 2})}, {value({2, 2, 3, 2})}})
        .takes(kNumber),
    row("permute", [](In x) -> Out { return {permute(x[0], {2, 0, -2})}; }, {{value({2, 3, 4})}, {value({2, 0, 4})}})
        .takes(kNumber),
    row("transpose", [](In x) -> Out { return {transpose(x[0], 0, -1)}; },
        {{value({2, 3, 2})}, {value({4})}, {value({})}})
        .takes(kNumber),
    row("movedim", [](In x) -> Out { return {movedim(x[0], 0, -1), movedim(x[0], {2, 0}, {0, 1})}; },
        {{value({2, 3, 4})}, {value({2, 0, 4})}})
        .takes(kNumber),
    row("squeeze", [](In x) -> Out { return {squeeze(x[0])}; }, {{value({1, 3, 1, 2})}, {value({1, 1})}, {value({})}})
        .takes(kNumber),
    row("squeeze.dim", [](In x) -> Out { return {squeeze(x[0], -2)}; }, {{value({2, 1, 3})}, {value({1, 2, 3})}})
        .takes(kNumber),
    row("unsqueeze", [](In x) -> Out { return {unsqueeze(x[0], -1), unsqueeze(x[0], 1)}; },
        {{value({2, 3})}, {value({2, 0, 2})}})
        .takes(kNumber),
    row("expand", [](In x) -> Out { return {expand(x[0], {2, -1, 3, 2})}; }, {{value({3, 1, 2})}, {value({4, 1, 1})}})
        .takes(kNumber),
    row("narrow", [](In x) -> Out { return {narrow(x[0], 1, -3, 2)}; }, {{value({2, 5, 2})}}).takes(kNumber),
    row("slice", [](In x) -> Out { return {slice(x[0], -1, 1, {}, 2), slice(x[0], 0, -9, 9), slice(x[0], 1, 3, 1)}; },
        {{value({2, 3, 5})}})
        .takes(kNumber),
    row("select", [](In x) -> Out { return {select(x[0], 1, -2)}; }, {{value({2, 3, 2})}}).takes(kNumber),
    row("split", [](In x) -> Out { return split(x[0], 2, 1); }, {{value({2, 5})}, {value({2, 4, 1})}}).takes(kNumber),
    row("split.lengths", [](In x) -> Out { return split(x[0], {1, 0, 3}, -1); }, {{value({2, 4})}}).takes(kNumber),
    row("chunk", [](In x) -> Out { return chunk(x[0], 3, 0); }, {{value({7, 2})}, {value({4})}}).takes(kNumber),
    row("unbind", [](In x) -> Out { return unbind(x[0], -1); }, {{value({2, 3})}, {value({0, 2})}}).takes(kNumber),
    row("flatten", [](In x) -> Out { return {flatten(x[0], 1, -2), flatten(x[0])}; },
        {{value({2, 2, 3, 2})}, {value({2, 0, 2})}})
        .takes(kNumber),
    row("as_strided", [](In x) -> Out { return {as_strided(x[0], {3, 2}, {2, 1}, 1)}; }, {{value({2, 4})}})
        .takes(kNumber)
        .sees_strides(),
    row("diagonal", [](In x) -> Out { return {diagonal(x[0], 1, -1, 0), diagonal(x[0], -1)}; }, {{value({4, 2, 3})}})
        .takes(kNumber),
    row("unfold", [](In x) -> Out { return {unfold(x[0], 1, 3, 2)}; }, {{value({2, 7})}, {value({2, 4, 2})}})
        .takes(kNumber),
    row("broadcast_tensors", [](In x) -> Out { return broadcast_tensors(x); }, {{value({3, 1}), value({2}), value({})}})
        .takes(kNumber)
        .any_devices(),
    row("sum_to", [](In x) -> Out { return {sum_to(x[0], {3, 1}), sum_to(x[0], {})}; },
        {{value({2, 3, 4})}, {value({2, 3, 0})}})
        .takes(kNumber)
        .widens_integers(),
});

const bool copies = add_rows({
    row("flip", [](In x) -> Out { return {flip(x[0], {0, -1})}; },
        {{value({2, 3, 2})}, {value({2, 3, 2, 2})}, {value({0, 2})}})
        .takes(kNumber),
    row("roll", [](In x) -> Out { return {roll(x[0], {1, -2}, {0, 1}), roll(x[0], 3)}; },
        {{value({2, 3})}, {value({3, 5, 2})}})
        .takes(kNumber),
    row("repeat", [](In x) -> Out { return {repeat(x[0], {2, 1, 3})}; }, {{value({2, 2})}, {value({1, 2, 1})}})
        .takes(kNumber),
    row("tile", [](In x) -> Out { return {tile(x[0], 2), tile(x[0], {2, 1, 3})}; }, {{value({2, 2})}, {value({})}})
        .takes(kNumber),
    row("diag", [](In x) -> Out { return {diag(x[0]), diag(x[0], -1)}; }, {{value({3})}, {value({0})}}).takes(kNumber),
    row("diag.matrix", [](In x) -> Out { return {diag(x[0]), diag(x[0], 1)}; }, {{value({3, 4})}, {value({2, 0})}})
        .takes(kNumber),
    row("meshgrid", [](In x) -> Out { return meshgrid(x); },
        {{value({2}), value({3}), value({})}, {value({2}), value({0})}})
        .takes(kNumber),
    row("meshgrid.columns", [](In x) -> Out { return meshgrid(x, true); }, {{value({2}), value({3}), value({2})}})
        .takes(kNumber),
    row("repeat_interleave", [](In x) -> Out { return {repeat_interleave(x[0], 2, 1)}; },
        {{value({2, 3})}, {value({2, 0, 2})}})
        .takes(kNumber),
    row("cat", [](In x) -> Out { return {cat(x, 1)}; },
        {{value({2, 3}), value({2, 1}), value({2, 0})}, {value({2, 3, 2, 2}), value({2, 1, 2, 2})}})
        .takes(kNumber),
    row("stack", [](In x) -> Out { return {stack(x, -1), stack(x, 0)}; },
        {{value({2, 3}), value({2, 3})}, {value({}), value({})}})
        .takes(kNumber),
    row("pad", [](In x) -> Out { return {pad(x[0], {1, 2, 0, 1}, PadMode::constant, 1.5)}; },
        {{value({2, 3})}, {value({2, 2, 3, 2})}})
        .takes(kNumber),
    row("pad.crop", [](In x) -> Out { return {pad(x[0], {-1, 2, 1, -1})}; }, {{value({3, 3})}}).takes(kNumber),
    row("pad.reflect", [](In x) -> Out { return {pad(x[0], {1, 2, 2, 1}, PadMode::reflect)}; }, {{value({1, 2, 3, 4})}})
        .takes(kNumber),
    row("pad.replicate", [](In x) -> Out { return {pad(x[0], {1, 2, 0, 3}, PadMode::replicate)}; },
        {{value({1, 2, 3, 2})}})
        .takes(kNumber),
    row("pad.circular", [](In x) -> Out { return {pad(x[0], {1, 2, 0, 1}, PadMode::circular)}; },
        {{value({1, 2, 3, 4})}})
        .takes(kNumber),
});

}  // namespace
}  // namespace tutti::test
