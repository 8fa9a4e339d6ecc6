// Further figures of bench/comm: many ranks, overlap, and how soon a failure is known.
#pragma once

#include "bench/support/run.h"

namespace bench {

void report_scale(const Options& options);
void report_overlap(const Options& options);
void report_failures(const Options& options);

}  // namespace bench
