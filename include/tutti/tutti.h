// Everything of Tutti.
#pragma once

#include "tutti/amp.h"            // IWYU pragma: export
#include "tutti/autograd.h"       // IWYU pragma: export
#include "tutti/comm.h"           // IWYU pragma: export
#include "tutti/compile.h"        // IWYU pragma: export
#include "tutti/context.h"        // IWYU pragma: export
#include "tutti/data.h"           // IWYU pragma: export
#include "tutti/dlpack.h"         // IWYU pragma: export
#include "tutti/io.h"             // IWYU pragma: export
#include "tutti/memory.h"         // IWYU pragma: export
#include "tutti/nn.h"             // IWYU pragma: export
#include "tutti/operator.h"       // IWYU pragma: export
#include "tutti/ops.h"            // IWYU pragma: export
#include "tutti/ops/attention.h"  // IWYU pragma: export
#include "tutti/ops/conv.h"       // IWYU pragma: export
#include "tutti/ops/embedding.h"  // IWYU pragma: export
#include "tutti/ops/loss.h"       // IWYU pragma: export
#include "tutti/ops/norm.h"       // IWYU pragma: export
#include "tutti/ops/pool.h"       // IWYU pragma: export
#include "tutti/ops/rnn.h"        // IWYU pragma: export
#include "tutti/optim.h"          // IWYU pragma: export
#include "tutti/parallel.h"       // IWYU pragma: export
#include "tutti/progress.h"       // IWYU pragma: export
#include "tutti/random.h"         // IWYU pragma: export
#include "tutti/rpc.h"            // IWYU pragma: export
#include "tutti/tensor.h"         // IWYU pragma: export
#include "tutti/tree.h"           // IWYU pragma: export
