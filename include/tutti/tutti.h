// Everything of Tutti.
#pragma once

#include "tutti/autograd.h"  // IWYU pragma: export
#include "tutti/context.h"   // IWYU pragma: export
#include "tutti/dlpack.h"    // IWYU pragma: export
#include "tutti/operator.h"  // IWYU pragma: export
#include "tutti/ops.h"       // IWYU pragma: export
#include "tutti/ops/conv.h"  // IWYU pragma: export
#include "tutti/ops/norm.h"  // IWYU pragma: export
#include "tutti/ops/pool.h"  // IWYU pragma: export
#include "tutti/random.h"    // IWYU pragma: export
#include "tutti/tensor.h"    // IWYU pragma: export
