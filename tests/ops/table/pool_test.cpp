// Rows of src/ops/pool.
#include "tutti/ops/pool.h"

#include "tests/support/table.h"

namespace tutti::test {
namespace {

// The maxima by one function, their places by the other.
Row maxima(const char* name, std::function<Tensor(const Tensor&)> values,
           std::function<ValuesIndices(const Tensor&)> both, const Shape& sizes,
           std::source_location where = std::source_location::current()) {
  auto body = [=](In x) -> Out { return {values(x[0]), both(x[0]).indices}; };
  return row(name, body, {{value(sizes)}}, where).takes(kFloat);
}
Row averages(const char* name, std::function<Tensor(const Tensor&)> f, const Shape& sizes,
             std::source_location where = std::source_location::current()) {
  return row(name, [f](In x) -> Out { return {f(x[0])}; }, {{value(sizes)}}, where).takes(kFloat).loose(1, 4);
}

using T = const Tensor&;

const bool pools = add_rows({
    maxima(
        "max_pool1d", [](T x) { return max_pool1d(x, 3, {.stride = 2, .padding = 1}); },
        [](T x) { return max_pool1d_with_indices(x, 3, {.stride = 2, .padding = 1}); }, {2, 3, 5}),
    maxima(
        "max_pool2d", [](T x) { return max_pool2d(x, 2); }, [](T x) { return max_pool2d_with_indices(x, 2); },
        {2, 3, 4, 5}),
    maxima(
        "max_pool2d.options",
        [](T x) {
          return max_pool2d(x, {3, 2}, {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .ceil_mode = true});
        },
        [](T x) {
          return max_pool2d_with_indices(x, {3, 2},
                                         {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .ceil_mode = true});
        },
        {2, 4, 5}),
    maxima(
        "max_pool2d.ceil", [](T x) { return max_pool2d(x, 3, {.stride = 4, .padding = 1, .ceil_mode = true}); },
        [](T x) { return max_pool2d_with_indices(x, 3, {.stride = 4, .padding = 1, .ceil_mode = true}); },
        {1, 2, 5, 6}),
    maxima(
        "max_pool3d", [](T x) { return max_pool3d(x, {2, 3, 2}, {.stride = {2, 1, 1}, .padding = {1, 1, 0}}); },
        [](T x) { return max_pool3d_with_indices(x, {2, 3, 2}, {.stride = {2, 1, 1}, .padding = {1, 1, 0}}); },
        {1, 2, 3, 3, 3}),
    averages("avg_pool1d", [](T x) { return avg_pool1d(x, 3, {.stride = 2, .padding = 1}); }, {2, 2, 6}),
    averages("avg_pool2d", [](T x) { return avg_pool2d(x, {3, 2}); }, {2, 2, 4, 5}),
    averages("avg_pool2d.ceil", [](T x) { return avg_pool2d(x, 3, {.stride = 2, .padding = 1, .ceil_mode = true}); },
             {2, 5, 4}),
    averages("avg_pool2d.exclude",
             [](T x) {
               return avg_pool2d(x, {3, 2}, {.stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false});
             },
             {1, 2, 4, 5}),
    averages("avg_pool2d.divisor",
             [](T x) { return avg_pool2d(x, 2, {.stride = 1, .padding = 1, .divisor_override = 3}); }, {1, 2, 3, 3}),
    averages("avg_pool3d", [](T x) { return avg_pool3d(x, {2, 3, 2}, {.stride = {2, 1, 1}, .padding = {1, 1, 0}}); },
             {1, 2, 3, 3, 3}),
});

const bool adaptive = add_rows({
    averages("adaptive_avg_pool1d", [](T x) { return adaptive_avg_pool1d(x, 3); }, {2, 2, 5}),
    averages("adaptive_avg_pool2d", [](T x) { return adaptive_avg_pool2d(x, {3, 10}); }, {2, 2, 4, 5}),
    averages("adaptive_avg_pool3d", [](T x) { return adaptive_avg_pool3d(x, {2, -1, 1}); }, {2, 3, 2, 3}),
    maxima(
        "adaptive_max_pool1d", [](T x) { return adaptive_max_pool1d(x, 3); },
        [](T x) { return adaptive_max_pool1d_with_indices(x, 3); }, {2, 3, 5}),
    maxima(
        "adaptive_max_pool2d", [](T x) { return adaptive_max_pool2d(x, {3, 4}); },
        [](T x) { return adaptive_max_pool2d_with_indices(x, {3, 4}); }, {2, 2, 4, 5}),
    maxima(
        "adaptive_max_pool3d", [](T x) { return adaptive_max_pool3d(x, {2, 4, 3}); },
        [](T x) { return adaptive_max_pool3d_with_indices(x, {2, 4, 3}); }, {2, 3, 4, 5}),
});

}  // namespace
}  // namespace tutti::test
