#include "parallel/memory.h"

#include "tutti/ops.h"

namespace tutti::parallel {

Tensor group_zeros(int64_t elements, const Options& options, const Group&) { return zeros({elements}, options); }

}  // namespace tutti::parallel
