// Further figures of bench/ddp: DataParallel.
#pragma once

#include "bench/support/run.h"

namespace bench {

void report_devices(const Options& options, int rounds, int steps);

}  // namespace bench
