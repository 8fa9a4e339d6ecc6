// Optimizers, schedules, gradient clipping, averages of weights.
#pragma once

#include "tutti/optim/gradients.h"  // IWYU pragma: export
#include "tutti/optim/optimizer.h"  // IWYU pragma: export
#include "tutti/optim/schedule.h"   // IWYU pragma: export
