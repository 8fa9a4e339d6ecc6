#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/index/indices.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

struct Classes {
  int64_t classes;
  TUTTI_FIELDS(classes)
};

Tensor as_i64(const Tensor& index) {
  NoGrad guard;
  return cast(index.detach(), DType::i64).contiguous();
}

const Operator one_hot_op{
    .name = "one_hot",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          check_together(c.inputs, "one_hot");
          check_index_dtype(c.input(0), "one_hot");
          out[0] = {.sizes = c.input(0).sizes(), .dtype = DType::i64, .device = c.input(0).device()};
          out[0].sizes.push_back(c.as<Classes>().classes);
          check_sizes(out[0].sizes, "one_hot");
        },
    .cpu =
        [](const Call& c) {
          int64_t classes = c.as<Classes>().classes;
          Tensor index = as_i64(c.input(0));
          int64_t n = index.numel();
          if (n == 0) return;
          const auto* at = index.data<int64_t>();
          Extremes found = extremes(at, n);
          if (found.low < 0 || found.high >= classes) {
            const int64_t* bad = std::find_if(at, at + n, [&](int64_t i) { return i < 0 || i >= classes; });
            fail<IndexError>("one_hot", "class {} of {} is not one of the {} classes from 0 on", *bad, c.input(0),
                             classes);
          }
          auto* out = c.output().data<int64_t>();
          parallel_for(n, std::max<int64_t>(1, kReadGrain / classes), [&](int64_t begin, int64_t end) {
            std::fill(out + begin * classes, out + end * classes, 0);
            for (int64_t i = begin; i < end; ++i) out[i * classes + at[i]] = 1;
          });
        },
};

int64_t count_classes(const Tensor& index) {
  check<ValueError>(index.numel() > 0, "one_hot",
                    "the number of classes cannot be seen from {}, which is empty: give it", index);
  check<DeviceError>(!index.device().is_meta(), "one_hot",
                     "the number of classes cannot be seen from {}, which has no values: give it", index);
  Tensor values = as_i64(index.device().is_cpu() ? index : copy_to(index, Device()));
  Extremes found = extremes(values.data<int64_t>(), values.numel());
  check<IndexError>(found.low >= 0, "one_hot", "class {} of {} is negative; classes count from 0", found.low, index);
  return found.high + 1;
}

}  // namespace

Tensor one_hot(const Tensor& index, int64_t classes) {
  check_index_dtype(index, "one_hot");
  check<ValueError>(classes >= -1, "one_hot", "the number of classes must be positive, or -1 to look for it, not {}",
                    classes);
  check<ValueError>(!index.is_sparse(), "one_hot", "{} is sparse; to_dense() it first", index);
  Classes a{classes == -1 ? count_classes(index) : classes};
  return call(one_hot_op, {&index}, attributes(a));
}

}  // namespace tutti
