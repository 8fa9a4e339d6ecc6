// Files: safetensors, numpy's, checkpoints, TensorBoard's. Wrong and damaged files are a FileError, never a crash.
#pragma once

#include "tutti/io/checkpoint.h"   // IWYU pragma: export
#include "tutti/io/curve.h"        // IWYU pragma: export
#include "tutti/io/events.h"       // IWYU pragma: export
#include "tutti/io/file.h"         // IWYU pragma: export
#include "tutti/io/numpy.h"        // IWYU pragma: export
#include "tutti/io/safetensors.h"  // IWYU pragma: export
#include "tutti/io/state.h"        // IWYU pragma: export
