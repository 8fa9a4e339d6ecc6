#include "parallel/memory.h"

#include "tutti/autograd.h"
#include "tutti/comm/collectives.h"
#include "tutti/ops.h"

namespace tutti::parallel {

Tensor group_zeros(int64_t elements, const Options& options, const GroupMemoryOptions& memory) {
  if (!(options.device.value_or(Device()) == Device())) return zeros({elements}, options);
  NoGrad guard;
  GroupMemoryOptions wanted = memory;
  wanted.dtype = *options.dtype;
  return group_empty({elements}, wanted).zero_();
}

}  // namespace tutti::parallel
