// Everything of Tutti.
#pragma once

#include "tutti/autograd.h"  // IWYU pragma: export
#include "tutti/context.h"   // IWYU pragma: export
#include "tutti/data.h"      // IWYU pragma: export
#include "tutti/dlpack.h"    // IWYU pragma: export
#include "tutti/io.h"        // IWYU pragma: export
#include "tutti/nn.h"        // IWYU pragma: export
#include "tutti/operator.h"  // IWYU pragma: export
#include "tutti/ops.h"       // IWYU pragma: export
#include "tutti/progress.h"  // IWYU pragma: export
#include "tutti/random.h"    // IWYU pragma: export
#include "tutti/tensor.h"    // IWYU pragma: export
#include "tutti/tree.h"      // IWYU pragma: export
