#include "tutti/data/collate.h"

#include "base/check.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::data::detail {

Tensor stack_samples(const TensorList& tensors) {
  for (size_t k = 1; k < tensors.size(); ++k)
    check<ShapeError>(tensors[k].defined() == tensors[0].defined() &&
                          (!tensors[0].defined() ||
                           (tensors[k].sizes() == tensors[0].sizes() && tensors[k].dtype() == tensors[0].dtype())),
                      "collate", "samples 0 and {} of a batch have {} and {} in the same place: they do not stack", k,
                      tensors[0], tensors[k]);
  if (!tensors[0].defined()) return {};
  return stack(tensors, 0);
}

Tensor tensor_of(const std::vector<int64_t>& values) { return tensor(values); }
Tensor tensor_of(const std::vector<float>& values) { return tensor(values, {f32}); }
Tensor tensor_of(const std::vector<double>& values) { return tensor(values, {f64}); }
Tensor tensor_of_bools(const std::vector<uint8_t>& values) { return tensor(values).to(boolean); }

void samples_differ(size_t sample, const char* what) {
  fail<ShapeError>("collate", "samples 0 and {} of a batch differ in {}", sample, what);
}

}  // namespace tutti::data::detail
