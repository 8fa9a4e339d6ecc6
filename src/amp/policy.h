// Autocast for functions that are made of several operators and want one policy for all of them.
#pragma once

#include "tutti/operator.h"

namespace tutti::amp {

/// x as an operator of this policy (low or full precision) would get it: cast inside of Autocast, as it is outside.
Tensor input_for(AutocastPolicy policy, const Tensor& x);
/// Whether that is another tensor than x.
bool casts(AutocastPolicy policy, const Tensor& x);

}  // namespace tutti::amp
