// Rows of src/ops/conv. A bias that is there is multiplied by one, since an undefined one would be none.
#include "tutti/ops/conv.h"

#include "tests/support/table.h"

namespace tutti::test {
namespace {

using Convolve = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&);
using Transpose = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const ConvTransposeOptions&);

template <class F, class Options>
Row conv(const char* name, F f, std::vector<Sample> samples, Options options,
         std::source_location where = std::source_location::current()) {
  auto body = [=](In x) -> Out { return {f(x[0], x[1], x.size() > 2 ? x[2] * 1 : Tensor(), options)}; };
  // Sums of many products of numbers that were rounded to half precision, one of them in steps.
  return row(name, body, std::move(samples), where).takes(kFloat).loose(1, 8).speaks_of("mul");
}
Row forward(const char* name, Convolve f, std::vector<Sample> samples, const ConvOptions& options = {},
            std::source_location where = std::source_location::current()) {
  return conv(name, f, std::move(samples), options, where);
}
Row transposed(const char* name, Transpose f, std::vector<Sample> samples, const ConvTransposeOptions& options = {},
               std::source_location where = std::source_location::current()) {
  return conv(name, f, std::move(samples), options, where);
}

const bool convolutions = add_rows({
    forward("conv1d", conv1d, {{value({2, 2, 5}), value({3, 2, 3}), value({3})}}),
    forward("conv1d.options", conv1d, {{value({2, 7}), value({4, 1, 2}), value({4})}},
            {.stride = 2, .padding = 3, .dilation = 2, .groups = 2}),
    forward("conv2d", conv2d,
            {{value({2, 2, 4, 3}), value({3, 2, 3, 2}), value({3})}, {value({2, 2, 3, 3}), value({2, 2, 2, 2})}}),
    forward("conv2d.options", conv2d, {{value({1, 2, 5, 4}), value({4, 1, 3, 2}), value({4})}},
            {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2}),
    forward("conv2d.depthwise", conv2d, {{value({1, 3, 4, 3}), value({6, 1, 3, 3})}}, {.padding = 1, .groups = 3}),
    forward("conv2d.single", conv2d, {{value({3, 4, 4}), value({2, 3, 1, 1}), value({2})}}, {.stride = 3}),
    forward("conv2d.wide", conv2d, {{value({0, 3, 4, 4}), value({2, 3, 3, 3}), value({2})}}, {.padding = 1}),
    forward("conv3d", conv3d, {{value({1, 2, 2, 4, 2}), value({2, 2, 2, 2, 2}), value({2})}},
            {.stride = {1, 2, 1}, .padding = {1, 0, 1}}),
});

const bool transposes = add_rows({
    transposed("conv_transpose1d", conv_transpose1d, {{value({2, 2, 3}), value({2, 2, 3}), value({2})}},
               {.stride = 2, .padding = 1, .output_padding = 1}),
    transposed("conv_transpose2d", conv_transpose2d,
               {{value({2, 2, 3, 2}), value({2, 3, 2, 3}), value({3})}, {value({1, 2, 2, 2}), value({2, 1, 2, 2})}}),
    transposed("conv_transpose2d.options", conv_transpose2d, {{value({1, 2, 3, 2}), value({2, 2, 3, 2}), value({4})}},
               {.stride = {3, 2}, .padding = {2, 0}, .output_padding = {2, 1}, .dilation = {1, 2}, .groups = 2}),
    transposed("conv_transpose2d.dilated", conv_transpose2d, {{value({2, 3, 3}), value({2, 2, 2, 2}), value({2})}},
               {.padding = 1, .output_padding = 2, .dilation = 3}),
    transposed("conv_transpose3d", conv_transpose3d, {{value({1, 2, 2, 2, 2}), value({2, 1, 2, 2, 2}), value({1})}},
               {.stride = {1, 2, 2}, .padding = {0, 1, 1}, .output_padding = {0, 1, 0}}),
});

// The gradients by themselves.
const bool gradients = add_rows({
    // (3 - 1)·2 - 2 + 2 = 4 and 1 more, (2 - 1)·2 - 2 + 2 = 2 and 1 more.
    row("conv_backward_data",
        [](In x) -> Out { return {conv_backward_data(x[0], x[1], {2, 2, 5, 3}, {.stride = 2, .padding = 1})}; },
        {{value({2, 3, 3, 2}), value({3, 2, 2, 2})}})
        .takes(kFloat)
        .loose(1, 8)
        .reference([](In x) -> Out {
          return {conv_transpose2d(x[0], x[1], {}, {.stride = 2, .padding = 1, .output_padding = 1})};
        }),
    // With batch and channels exchanged it is a convolution, whose stride is the dilation.
    row("conv_backward_weight",
        [](In x) -> Out { return {conv_backward_weight(x[0], x[1], {3, 2, 2, 3}, {.stride = 2, .padding = 1})}; },
        {{value({2, 3, 3, 2}), value({2, 2, 4, 3})}})
        .takes(kFloat)
        .loose(1, 8)
        .reference([](In x) -> Out {
          Tensor g = transpose(x[0], 0, 1), y = transpose(x[1], 0, 1);
          return {transpose(conv2d(y, g, {}, {.padding = 1, .dilation = 2}).narrow(2, 0, 2).narrow(3, 0, 3), 0, 1)};
        }),
});

}  // namespace
}  // namespace tutti::test
