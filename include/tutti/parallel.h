// Training on many ranks.
#pragma once

#include "tutti/parallel/data_parallel.h"    // IWYU pragma: export
#include "tutti/parallel/ddp.h"              // IWYU pragma: export
#include "tutti/parallel/fsdp.h"             // IWYU pragma: export
#include "tutti/parallel/join.h"             // IWYU pragma: export
#include "tutti/parallel/sync_batch_norm.h"  // IWYU pragma: export
