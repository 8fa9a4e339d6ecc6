// Data: datasets, samplers, a loader with worker threads, readers of data files.
#pragma once

#include "tutti/data/collate.h"  // IWYU pragma: export
#include "tutti/data/dataset.h"  // IWYU pragma: export
#include "tutti/data/loader.h"   // IWYU pragma: export
#include "tutti/data/readers.h"  // IWYU pragma: export
#include "tutti/data/sampler.h"  // IWYU pragma: export
