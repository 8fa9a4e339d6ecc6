// DLPack: tensors shared with other libraries without a copy. `DLManagedTensor` is the struct of the DLPack protocol
// (version 0.x, what `__dlpack__` capsules named "dltensor" hold); include DLPack's own header or ours to look inside.
#pragma once

#include "tutti/tensor.h"

struct DLManagedTensor;

namespace tutti {

/// The receiver must call the deleter in it once.
DLManagedTensor* to_dlpack(const Tensor& tensor);
/// Takes ownership of `managed`: its deleter runs when the last view of the tensor is gone. If this throws, `managed`
/// still belongs to the caller.
Tensor from_dlpack(DLManagedTensor* managed);

}  // namespace tutti
