// Further figures of bench/comm: many ranks, and overlap.
#pragma once

#include "bench/support/run.h"

namespace bench {

void report_scale(const Options& options);
void report_overlap(const Options& options);

}  // namespace bench
